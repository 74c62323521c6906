// The AVX-512 vector type, shared by avx512.cc and avx512bf16.cc. 32 registers: 14 rows of 2 vectors are
// 28 accumulators, 2 weights and a broadcast.

struct V512 {
  static constexpr int kWidth = 16;
  static constexpr int kMaxRows = 14;
  static constexpr int vectors_at_once(int) { return 2; }
  static constexpr bool kHasDot = false;
  static constexpr int kCrowded = 24;  // sums that leave too few registers for loads of the next k
  using F = __m512;
  using I = __m512i;

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const void* at) { return _mm512_loadu_ps(at); }
  static F broadcast(const void* at) { return _mm512_set1_ps(*static_cast<const float*>(at)); }
  static void store(void* at, F x) { _mm512_storeu_ps(at, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F dot_bf16(F acc, F, F) { return acc; }  // named by shared code, never called without kHasDot
  static F negative_abs(F x) { return _mm512_or_ps(x, set(-0.0F)); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static I to_int(F x) { return _mm512_cvtps_epi32(x); }
  static F from_int(I n) { return _mm512_cvtepi32_ps(n); }
  static I half_of(I n) { return _mm512_srai_epi32(n, 1); }
  static I subtract(I a, I b) { return _mm512_sub_epi32(a, b); }
  static F power_of_two(I n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
  }
  static __mmask16 less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static __mmask16 is_nan(F x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
  static F select(__mmask16 which, F yes, F no) { return _mm512_mask_blend_ps(which, no, yes); }
  static F flush(F x) {
    const __mmask16 tiny = _mm512_testn_epi32_mask(_mm512_castps_si512(x), _mm512_set1_epi32(0x7f800000));
    return _mm512_mask_and_ps(x, tiny, x, set(-0.0F));
  }

  static I words(const void* at) { return _mm512_loadu_si512(at); }
  static F as_floats(I x) { return _mm512_castsi512_ps(x); }
  static F even_of(I x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static F odd_of(I x) {
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
  }

  // Compact weights: words of step Half of a block.
  using CodeTable = I;
  static I code_table(const unsigned char* table) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  }
  template <int Half, int N>
  static void decode(I (&out)[N], const char* block, int, I table) {
    static_assert(N == 2);
    const I low = words(block + 64 * Half), both = words(block + 128);
    const I codes = _mm512_and_si512(Half == 0 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
    const I high = _mm512_shuffle_epi8(table, codes);
    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
  }
  // What decode undoes.
  static I low_bytes(I a, I b) {
    const I mask = _mm512_set1_epi16(255);
    return _mm512_packus_epi16(_mm512_and_si512(a, mask), _mm512_and_si512(b, mask));
  }
  static I high_bytes(I a, I b) { return _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8)); }
  static I codes_of(I high, const unsigned char* table) {
    I codes = _mm512_set1_epi8(-128);
    for (int t = 0; t < 16; ++t) {
      const __mmask64 found = _mm512_cmpeq_epi8_mask(high, _mm512_set1_epi8(static_cast<char>(table[t])));
      codes = _mm512_mask_mov_epi8(codes, found, _mm512_set1_epi8(static_cast<char>(t)));
    }
    return codes;
  }
  static std::uint64_t sign_bits(I x) { return _mm512_movepi8_mask(x); }

  static F even_bf16(const void* at) { return even_of(words(at)); }
  static F odd_bf16(const void* at) { return odd_of(words(at)); }
  // 16 bytes of each of four rows; units of Bytes of two vectors in turns, lane by lane. The masks are full and cost
  // nothing: g++ 12 warns of an uninitialised value in its own unmasked forms.
  static I load_lanes(const char* at, std::int64_t stride) {
    const auto lane = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + i * stride)); };
    I x = _mm512_castsi128_si512(lane(0));
    x = _mm512_inserti32x4(x, lane(1), 1);
    x = _mm512_inserti32x4(x, lane(2), 2);
    return _mm512_inserti32x4(x, lane(3), 3);
  }
  template <int Bytes>
  static I zip_low(I a, I b) {
    return Bytes == 2 ? _mm512_unpacklo_epi16(a, b) : _mm512_maskz_unpacklo_epi32(0xffff, a, b);
  }
  template <int Bytes>
  static I zip_high(I a, I b) {
    return Bytes == 2 ? _mm512_unpackhi_epi16(a, b) : _mm512_maskz_unpackhi_epi32(0xffff, a, b);
  }
  static void store(void* at, I x) { _mm512_storeu_si512(at, x); }

  static __m256i halves(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
  static F from_bf16(const void* at) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves(at)), 16));
  }
  static F from_f16(const void* at) { return _mm512_cvtph_ps(halves(at)); }
  static F from_f64(const void* at) {
    const auto* d = static_cast<const double*>(at);
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(_mm512_loadu_pd(d))),
                              _mm512_cvtpd_ps(_mm512_loadu_pd(d + 8)), 1);
  }
  static void to_bf16(void* at, F x) {
    const I bits = _mm512_castps_si512(x);
    const I last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const I rounded = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    const I chosen = _mm512_mask_or_epi32(rounded, is_nan(x), bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(static_cast<__m256i*>(at), _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
  }
  static void to_f16(void* at, F x) {
    _mm256_storeu_si256(static_cast<__m256i*>(at), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void to_f64(void* at, F x) {
    auto* d = static_cast<double*>(at);
    _mm512_storeu_pd(d, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    _mm512_storeu_pd(d + 8, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
  }
};

// With dot products of bf16 pairs, and with vpermb, which takes no notice of an index's upper bits (the table is
// there four times). Templates, because not every unit that includes them is compiled for such a processor.
template <class Base>
struct Bf16Dot : Base {
  static constexpr bool kHasDot = true;
  static __m512 dot_bf16(__m512 acc, __m512 a, __m512 b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

template <class Base>
struct Vbmi : Base {
  template <int Half, int N>
  static void decode(__m512i (&out)[N], const char* block, int, __m512i table) {
    static_assert(N == 2);
    const __m512i low = Base::words(block + 64 * Half), both = Base::words(block + 128);
    const __m512i high = _mm512_permutexvar_epi8(Half == 0 ? both : _mm512_srli_epi16(both, 4), table);
    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
  }
};
