// The transposes that pack weights, written once over an ISA's vector type V: 32 rows become panel steps of
// 32 neighbours. Included after V, inside the anonymous namespace. Copies bits, whatever they mean.
//
// Plain stores: the destination was zeroed by the operating system when it was first touched, a page at a time,
// and is partly still in the caches. With stores around them packing takes a third longer, page faults included.

template <class Unit>
inline void copy_steps(Unit* dst, const char* rows, std::int64_t row_bytes, std::int64_t steps) {
  for (std::int64_t s = 0; s < steps; ++s, dst += kPanel, rows += sizeof(Unit)) {
    for (int lane = 0; lane < kPanel; ++lane) __builtin_memcpy(dst + lane, rows + lane * row_bytes, sizeof(Unit));
  }
}

// Squares of 16 bytes of as many rows as 16 bytes have units, one square in each 128-bit lane. Interleaving row i
// with row i + half rotates the bits of an element's address (row, column) by one: log2(side) times swaps
// row and column.
template <class Unit, class W>
inline void transpose_squares(Unit* dst, const char* rows, std::int64_t row_bytes) {
  constexpr int kSide = 16 / sizeof(Unit);
  typename W::I at[kSide], next[kSide];
#pragma GCC unroll 8
  for (int i = 0; i < kSide; ++i) at[i] = W::load_lanes(rows + i * row_bytes, kSide * row_bytes);
#pragma GCC unroll 3
  for (int round = 1; round < kSide; round *= 2) {
#pragma GCC unroll 4
    for (int i = 0; i < kSide / 2; ++i) {
      next[2 * i] = W::template zip_low<sizeof(Unit)>(at[i], at[i + kSide / 2]);
      next[2 * i + 1] = W::template zip_high<sizeof(Unit)>(at[i], at[i + kSide / 2]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kSide; ++i) at[i] = next[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < kSide; ++i) W::store(dst + i * kPanel, at[i]);
}

template <class Unit, class W = V>
void interleave(void* dst, const void* rows, std::int64_t row_bytes, std::int64_t steps) {
  auto* out = static_cast<Unit*>(dst);
  const auto* in = static_cast<const char*>(rows);
  if constexpr (W::kWidth > 1) {
    constexpr int kSide = 16 / sizeof(Unit);
    constexpr int kRows = W::kWidth / 4 * kSide;
    for (; steps >= kSide; steps -= kSide, out += kSide * kPanel, in += 16) {
#pragma GCC unroll 4
      for (int row = 0; row < kPanel; row += kRows) {
        transpose_squares<Unit, W>(out + row, in + row * row_bytes, row_bytes);
      }
    }
  }
  copy_steps(out, in, row_bytes, steps);
}
