// Compact bf16 weights, written once over an ISA's vector type V: the matmul that decodes as it goes. Included by
// tile.inl. The layout is in kernel.h; encode.inl makes it.
//
// A block's low bytes and codes hold bytes of two vectors in turns, so that the table lookup gives the high
// bytes in the same order and unpack instructions leave whole words: 7 to 9 instructions for 128 weights.

constexpr int kLinesPerBlock = kBlockBytes / 64;

// The patches of a call, one step after the other.
struct Patches {
  const Patch* next;
  std::int64_t first_step;
  std::int64_t step;  // of the next patch, counted like the call's steps

  explicit Patches(const Codes& codes) : next(codes.patches), first_step(codes.first_step), step(-1) { settle(); }
  void settle() {
    if (next != nullptr) step = step_of(*next) - first_step;
  }
};

// Which lane of a step vector n of a pass begins at: half the vectors are of the first 16 outputs, half of the
// second.
template <int N>
constexpr int place_of(int pass, int n) {
  constexpr int kHalf = N / 2;
  return (n < kHalf ? pass * kHalf + n : kPanel / 2 / V::kWidth + pass * kHalf + n - kHalf) * V::kWidth;
}

inline __attribute__((always_inline)) void put_patches(unsigned char* line, std::int64_t step, Patches& patches) {
  for (; patches.step == step; patches.settle()) {
    const Patch patch = *patches.next++;
    line[place_in_step(patch)] = static_cast<unsigned char>(patch & 255U);
  }
}

template <int N>
inline __attribute__((always_inline)) void store_words(unsigned char* line, const V::I (&words)[N], int pass) {
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) V::store(line + 4 * place_of<N>(pass, n), words[n]);
}

// acc[m][n] += step `Half` of a block. The words stay in registers, unless the sums leave too few of them; then,
// and where a byte is to be replaced, they go by way of memory.
template <Product P, int Half, int M, int N>
inline __attribute__((always_inline)) void multiply_compact(V::F (&acc)[M][N], const char* a, const char* block,
                                                            int pass, V::CodeTable table, std::int64_t step,
                                                            Patches& patches, float* widened) {
  constexpr bool kOddFirst = P == Product::bf16_compact;
  const auto place = [pass](int n) { return place_of<N>(pass, n); };
  alignas(64) unsigned char line[kPanel * 4];
  V::I words[N];
  V::template decode<Half, N>(words, block, pass, table);
  if (step == patches.step) [[unlikely]] {
    store_words<N>(line, words, pass);
    put_patches(line, step, patches);
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) words[n] = V::words(line + 4 * place(n));
  }
  if constexpr (kPairs<P>) {
    if (widened != nullptr) {
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) V::store(widened + place(n), words[n]);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const V::F x = V::broadcast(a + m * 4);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[m][n] = V::dot_bf16(acc[m][n], x, V::as_floats(words[n]));
    }
    if constexpr (M * N >= V::kCrowded) keep_order();
  } else if constexpr (M >= 8 && M * N + 2 * N >= V::kCrowded) {
    // Vector by vector, where a vector has enough sums to keep fma busy: the words take registers too.
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const bool odd = (half == 0) == kOddFirst;
        const V::F w = odd ? V::odd_of(words[n]) : V::even_of(words[n]);
        if (widened != nullptr) V::store(widened + half * kPanel + place(n), w);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) acc[m][n] = V::fma(V::broadcast(a + (odd ? M + m : m) * 4), w, acc[m][n]);
        keep_order();
      }
    }
  } else {
    multiply_halves<kOddFirst>(
        acc, a, [&](bool odd, int n) { return odd ? V::odd_of(words[n]) : V::even_of(words[n]); }, widened, place);
  }
}

// One chunk for the N vectors of a pass, from step `begin` (even) to `end`, added to the running sum (or to +0).
template <Product P, int M, int N>
inline __attribute__((always_inline)) void add_compact_chunk(const char* a, const char* block, int pass,
                                                             std::int64_t begin, std::int64_t end, float* sum,
                                                             bool first, Walk& walk, std::int64_t near_by,
                                                             float* widened, const unsigned char* codes,
                                                             Patches& patches) {
  constexpr std::int64_t kNext = kActivationsPerStep<P> * M * 4;
  V::F acc[M][N];
  clear(acc);
  const V::CodeTable table = V::code_table(codes);
  for (std::int64_t s = begin; s < end; s += 2, block += kBlockBytes) {
    while (static_cast<std::uint64_t>(walk.due) < static_cast<std::uint64_t>(kLinesPerBlock * (s / 2 + 1)))
      walk.fetch();
    if (near_by != 0) {
#pragma GCC unroll 4
      for (int at = 0; at < kBlockBytes; at += 64) __builtin_prefetch(block + near_by + at, 0, 3);
    }
    if constexpr (M >= 4) {
#pragma GCC unroll 4
      for (int at = 0; at < 2 * kNext; at += 64) __builtin_prefetch(a + kNearActivations + at, 0, 3);
    }
    multiply_compact<P, 0>(acc, a, block, pass, table, s, patches, widened);
    a += kNext;
    if (widened != nullptr) widened += kActivationsPerStep<P> * kPanel;
    if (s + 1 == end) break;  // the last block of an odd piece
    multiply_compact<P, 1>(acc, a, block, pass, table, s + 1, patches, widened);
    a += kNext;
    if (widened != nullptr) widened += kActivationsPerStep<P> * kPanel;
  }
  add_to_sums(acc, sum, first, [&](int n) { return place_of<N>(pass, n); });
}
