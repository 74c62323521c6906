// AVX2 with FMA and F16C: people's desktops. 16 registers: 8 + 8 lanes of a panel at a time, up to 6 rows.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace swiglu::kernels {
namespace {

struct V {
  static constexpr int kWidth = 8;
  static constexpr int kMaxRows = 6;
  static constexpr bool kHasDot = false;
  // 2 rows of 4 vectors, or 6 of 2: at most 12 accumulators, with room for weights and a broadcast.
  static constexpr int vectors_at_once(int rows) { return rows <= 2 ? 4 : 2; }
  static constexpr int kCrowded = 8;  // sums that leave too few registers for loads of the next k
  using F = __m256;
  using I = __m256i;

  static F zero() { return _mm256_setzero_ps(); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const void* at) { return _mm256_loadu_ps(static_cast<const float*>(at)); }
  static F broadcast(const void* at) { return _mm256_broadcast_ss(static_cast<const float*>(at)); }
  static void store(void* at, F x) { _mm256_storeu_ps(static_cast<float*>(at), x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F dot_bf16(F acc, F, F) { return acc; }  // named by shared code, never called without kHasDot
  static F negative_abs(F x) { return _mm256_or_ps(x, set(-0.0F)); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static I to_int(F x) { return _mm256_cvtps_epi32(x); }
  static F from_int(I n) { return _mm256_cvtepi32_ps(n); }
  static I half_of(I n) { return _mm256_srai_epi32(n, 1); }
  static I subtract(I a, I b) { return _mm256_sub_epi32(a, b); }
  static F power_of_two(I n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static F less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static F is_nan(F x) { return _mm256_cmp_ps(x, x, _CMP_UNORD_Q); }
  static F select(F which, F yes, F no) { return _mm256_blendv_ps(no, yes, which); }
  static F flush(F x) {
    const I exponent = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7f800000));
    const I tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
    return select(_mm256_castsi256_ps(tiny), _mm256_and_ps(x, set(-0.0F)), x);
  }

  static I words(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
  // 16 bytes of each of two rows; units of Bytes of two vectors in turns, lane by lane.
  static I load_lanes(const char* at, std::int64_t stride) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(halves(at)), halves(at + stride), 1);
  }
  template <int Bytes>
  static I zip_low(I a, I b) {
    return Bytes == 2 ? _mm256_unpacklo_epi16(a, b) : _mm256_unpacklo_epi32(a, b);
  }
  template <int Bytes>
  static I zip_high(I a, I b) {
    return Bytes == 2 ? _mm256_unpackhi_epi16(a, b) : _mm256_unpackhi_epi32(a, b);
  }
  static void store(void* at, I x) { _mm256_storeu_si256(static_cast<__m256i*>(at), x); }

  static __m128i halves(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
  // Shuffles and blends, because shifts would take turns with fma at the same ports.
  static F even_of(I x) {
    constexpr char kZero = -128;
    const __m128i low_to_high =
        _mm_setr_epi8(kZero, kZero, 0, 1, kZero, kZero, 4, 5, kZero, kZero, 8, 9, kZero, kZero, 12, 13);
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(low_to_high)));
  }
  static F odd_of(I x) { return _mm256_castsi256_ps(_mm256_blend_epi16(_mm256_setzero_si256(), x, 0xaa)); }
  static F even_bf16(const void* at) { return even_of(words(at)); }
  static F odd_bf16(const void* at) { return odd_of(words(at)); }
  static F as_floats(I x) { return _mm256_castsi256_ps(x); }

  // Compact weights: words of step Half of a block. A pass of two vectors takes half of each line.
  using CodeTable = I;
  static I code_table(const unsigned char* table) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  }
  template <int Half, int N>
  static void decode(I (&out)[N], const char* block, int pass, I table) {
    for (int i = 0; i < N / 2; ++i) {
      const int at = 32 * (pass * (N / 2) + i);
      const I low = words(block + 64 * Half + at), both = words(block + 128 + at);
      const I codes = _mm256_and_si256(Half == 0 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
      const I high = _mm256_shuffle_epi8(table, codes);
      out[i] = _mm256_unpacklo_epi8(low, high);
      out[N / 2 + i] = _mm256_unpackhi_epi8(low, high);
    }
  }
  // What decode undoes.
  static I low_bytes(I a, I b) {
    const I mask = _mm256_set1_epi16(255);
    return _mm256_packus_epi16(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
  }
  static I high_bytes(I a, I b) { return _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)); }
  static I codes_of(I high, const unsigned char* table) {
    I codes = _mm256_set1_epi8(-128);
    for (int t = 0; t < 16; ++t) {
      const I found = _mm256_cmpeq_epi8(high, _mm256_set1_epi8(static_cast<char>(table[t])));
      codes = _mm256_xor_si256(codes, _mm256_and_si256(found, _mm256_set1_epi8(static_cast<char>(t | 0x80))));
    }
    return codes;
  }
  static std::uint64_t sign_bits(I x) { return static_cast<std::uint32_t>(_mm256_movemask_epi8(x)); }
  static F from_bf16(const void* at) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves(at)), 16));
  }
  static F from_f16(const void* at) { return _mm256_cvtph_ps(halves(at)); }
  static F from_f64(const void* at) {
    const auto* d = static_cast<const double*>(at);
    return _mm256_set_m128(_mm256_cvtpd_ps(_mm256_loadu_pd(d + 4)), _mm256_cvtpd_ps(_mm256_loadu_pd(d)));
  }
  static void to_bf16(void* at, F x) {
    const I bits = _mm256_castps_si256(x);
    const I last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const I rounded = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    const I quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const I chosen = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan(x)));
    const I narrow = _mm256_srli_epi32(chosen, 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(narrow), _mm256_extracti128_si256(narrow, 1));
    _mm_storeu_si128(static_cast<__m128i*>(at), packed);
  }
  static void to_f16(void* at, F x) {
    _mm_storeu_si128(static_cast<__m128i*>(at), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void to_f64(void* at, F x) {
    auto* d = static_cast<double*>(at);
    _mm256_storeu_pd(d, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
    _mm256_storeu_pd(d + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
  }
};

#include "kernels/tile.inl"

#include "kernels/probe.inl"

#include "kernels/pack.inl"

#include "kernels/encode.inl"

#include "kernels/rowwise.inl"

}  // namespace

const Table kAvx2 = make_table();

}  // namespace swiglu::kernels
