// The encoder of compact weights (kernel.h), written once over an ISA's vector type V. Included after V, inside
// the anonymous namespace.

// Where byte `at` of a step's 64 high or low bytes, in the order of the block, has its word: bytes from the step's
// start.
constexpr int word_of(int at) { return (at >> 3 & 1) * 64 + (at >> 4 << 3 | (at & 7)) * 2; }

// What encodes one block: the patches found so far, and where the block's plain bytes lie in the piece.
struct Encoder {
  const unsigned char* table;
  Patch* patches;
  std::int64_t found = 0;

  // Byte `at` of a step's high bytes, in the order of the block, is `high` and has no code.
  void patch(std::int64_t step, int at, unsigned char high) {
    const std::int64_t place = step * kPanel * 4 + word_of(at) + 1;
    patches[found++] = static_cast<Patch>(place << 8) | high;
  }
};

// A step's low bytes to `low`, and its codes to `codes`, 0x80 where there is none.
template <class W>
inline void encode_step(Encoder& encoder, const unsigned char* plain, std::int64_t step, unsigned char* low,
                        unsigned char* codes) {
  if constexpr (W::kWidth == 1) {
    for (int at = 0; at < 64; ++at) {
      const unsigned char* w = plain + word_of(at);
      low[at] = w[0];
      unsigned char code = 0x80;
      for (unsigned char t = 0; t < 16; ++t) code = encoder.table[t] == w[1] ? t : code;
      if (code == 0x80) encoder.patch(step, at, w[1]);
      codes[at] = code;
    }
  } else {
    constexpr int kBytes = W::kWidth * 4;
    for (int at = 0; at < 64; at += kBytes) {
      const typename W::I first = W::words(plain + at), second = W::words(plain + 64 + at);
      W::store(low + at, W::low_bytes(first, second));
      const typename W::I high = W::high_bytes(first, second);
      const typename W::I code = W::codes_of(high, encoder.table);
      W::store(codes + at, code);
      std::uint64_t missing = W::sign_bits(code);
      if (missing == 0) continue;
      alignas(64) unsigned char bytes[kBytes];
      W::store(bytes, high);
      for (; missing != 0; missing &= missing - 1) {
        const int i = __builtin_ctzll(missing);
        encoder.patch(step, at + i, bytes[i]);
      }
    }
  }
}

template <class W = V>
std::int64_t encode(const Encode& job) {
  Encoder encoder{job.table, job.patches};
  const auto* plain = static_cast<const unsigned char*>(job.plain);
  auto* block = static_cast<unsigned char*>(job.blocks);
  for (std::int64_t s = 0; s < job.steps; s += 2, plain += 2 * kPanel * 4, block += kBlockBytes) {
    alignas(64) unsigned char codes[2][64] = {};
    encode_step<W>(encoder, plain, s, block, codes[0]);
    if (s + 1 < job.steps) {
      encode_step<W>(encoder, plain + kPanel * 4, s + 1, block + 64, codes[1]);
    } else {
      __builtin_memset(block + 64, 0, 64);
    }
    for (int i = 0; i < 64; ++i) {
      block[128 + i] = static_cast<unsigned char>((codes[0][i] & 15) | (codes[1][i] & 15) << 4);
    }
  }
  return encoder.found;
}
