// The limit probes, written once over an ISA's vector type V: how fast memory can be read in several
// patterns, and how fast the arithmetic units run when nothing else holds them up. Included after V, inside
// the anonymous namespace. What they compute is of no use; their time is.

// Sums of loads in enough chains that loads and not the adder are the limit. `Streams` parts of the memory are
// read in turns, a block of lines each; Hint is the locality of a prefetch `Distance` bytes ahead (3: t0,
// 2: t1, 0: nta; negative: none).
template <int Streams, int Hint, std::int64_t Distance>
float read_memory(const void* bytes, std::int64_t n) {
  constexpr int kSums = 8;
  constexpr int kLine = 64;
  constexpr int kVectorBytes = V::kWidth * 4;
  constexpr int kBlockBytes = kSums * kVectorBytes < kLine ? kLine : kSums * kVectorBytes;
  V::F sum[kSums];
  for (auto& s : sum) s = V::zero();
  const auto* at = static_cast<const char*>(bytes);
  const std::int64_t part = n / Streams;
  for (std::int64_t i = 0; i < part; i += kBlockBytes) {
#pragma GCC unroll 4
    for (int stream = 0; stream < Streams; ++stream) {
      const char* block = at + stream * part + i;
      if constexpr (Hint >= 0) {
#pragma GCC unroll 8
        for (int line = 0; line < kBlockBytes; line += kLine) __builtin_prefetch(block + line + Distance, 0, Hint);
      }
#pragma GCC unroll 16
      for (int v = 0; v < kBlockBytes / kVectorBytes; ++v) {
        sum[v % kSums] = V::add(sum[v % kSums], V::load(block + v * kVectorBytes));
      }
    }
  }
  float lanes[V::kWidth];
  for (int s = 1; s < kSums; ++s) sum[0] = V::add(sum[0], sum[s]);
  V::store(lanes, sum[0]);
  return lanes[0];
}

constexpr std::int64_t kKiB = 1024;

// Enough independent chains to fill the pipes: latency 4 to 6, two a cycle.
constexpr int kChains = 12;
constexpr std::int64_t kFmaFlops = std::int64_t{2} * kChains * V::kWidth;

template <bool Dot>
float float_peak(std::int64_t rounds) {
  V::F chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = V::set(static_cast<float>(c));
  const V::F a = V::set(0.5F);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      if constexpr (Dot) {
        chain[c] = V::dot_bf16(chain[c], a, a);
      } else {
        chain[c] = V::fma(chain[c], a, a);
      }
    }
  }
  V::F sum = chain[0];
  for (int c = 1; c < kChains; ++c) sum = V::add(sum, chain[c]);
  float lanes[V::kWidth];
  V::store(lanes, sum);
  return lanes[0];
}

// Products of unsigned by signed bytes, summed in 32 bits: four a lane. With VNNI one instruction; without,
// three, the first of which saturates (so a kernel that must be exact has even less than this).
#if defined(__AVX512BW__)
constexpr std::int64_t kInt8Ops = std::int64_t{2} * kChains * 64;

float int8_peak(std::int64_t rounds) {
  __m512i chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = _mm512_set1_epi32(c);
  const __m512i a = _mm512_set1_epi8(3);
  const __m512i ones = _mm512_set1_epi16(1);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      const __m512i pairs = _mm512_maddubs_epi16(a, chain[c]);
      chain[c] = _mm512_add_epi32(chain[c], _mm512_madd_epi16(pairs, ones));
    }
  }
  __m512i sum = chain[0];
  for (int c = 1; c < kChains; ++c) sum = _mm512_add_epi32(sum, chain[c]);
  std::int32_t lanes[16];
  _mm512_storeu_si512(lanes, sum);
  return static_cast<float>(lanes[0]);
}

__attribute__((target("avx512vnni"))) float int8_vnni_peak(std::int64_t rounds) {
  __m512i chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = _mm512_set1_epi32(c);
  const __m512i a = _mm512_set1_epi8(3);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) chain[c] = _mm512_dpbusd_epi32(chain[c], a, a);
  }
  __m512i sum = chain[0];
  for (int c = 1; c < kChains; ++c) sum = _mm512_add_epi32(sum, chain[c]);
  std::int32_t lanes[16];
  _mm512_storeu_si512(lanes, sum);
  return static_cast<float>(lanes[0]);
}
constexpr PeakProbe kInt8Dot{int8_peak, kInt8Ops};
constexpr PeakProbe kInt8Vnni{int8_vnni_peak, kInt8Ops};
#elif defined(__AVX2__)
float int8_peak(std::int64_t rounds) {
  __m256i chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = _mm256_set1_epi32(c);
  const __m256i a = _mm256_set1_epi8(3);
  const __m256i ones = _mm256_set1_epi16(1);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      const __m256i pairs = _mm256_maddubs_epi16(a, chain[c]);
      chain[c] = _mm256_add_epi32(chain[c], _mm256_madd_epi16(pairs, ones));
    }
  }
  __m256i sum = chain[0];
  for (int c = 1; c < kChains; ++c) sum = _mm256_add_epi32(sum, chain[c]);
  std::int32_t lanes[8];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), sum);
  return static_cast<float>(lanes[0]);
}
constexpr PeakProbe kInt8Dot{int8_peak, std::int64_t{2} * kChains * 32};
constexpr PeakProbe kInt8Vnni{nullptr, 0};
#else
constexpr PeakProbe kInt8Dot{nullptr, 0};
constexpr PeakProbe kInt8Vnni{nullptr, 0};
#endif

constexpr Probes make_probes() {
  return {.read = {{"loads", read_memory<1, -1, 0>},
                   {"loads, prefetch t0 1 KiB ahead", read_memory<1, 3, kKiB>},
                   {"loads, prefetch t0 4 KiB ahead", read_memory<1, 3, 4 * kKiB>},
                   {"loads, prefetch nta 2 KiB ahead", read_memory<1, 0, 2 * kKiB>},
                   {"loads, prefetch t1 4 KiB ahead", read_memory<1, 2, 4 * kKiB>},
                   {"loads, prefetch t1 16 KiB ahead", read_memory<1, 2, 16 * kKiB>},
                   {"loads, prefetch t1 64 KiB ahead", read_memory<1, 2, 64 * kKiB>},
                   {"2 streams of loads", read_memory<2, -1, 0>},
                   {"4 streams of loads", read_memory<4, -1, 0>},
                   {"2 streams, prefetch t1 16 KiB ahead", read_memory<2, 2, 16 * kKiB>},
                   {"4 streams, prefetch t1 4 KiB ahead", read_memory<4, 2, 4 * kKiB>}},
          .fma = {float_peak<false>, kFmaFlops},
          .bf16_dot = {V::kHasDot ? float_peak<V::kHasDot> : nullptr, V::kHasDot ? 2 * kFmaFlops : 0},
          .int8_dot = kInt8Dot,
          .int8_vnni = kInt8Vnni};
}
