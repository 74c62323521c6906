// See blocks.h. One function per kind of block, plain rather than fast. Every product and sum is a float that is
// rounded by itself, in the order of the format's reference implementation, ggml: the build forbids contraction to
// fused multiply-adds, and the results are ggml's to the bit.
#include "files/blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "base/dtype.h"

namespace swiglu::files {
namespace {

unsigned byte_at(const std::byte* block, int at) noexcept { return std::to_integer<unsigned>(block[at]); }
int signed_at(const std::byte* block, int at) noexcept { return static_cast<std::int8_t>(block[at]); }
unsigned u16_at(const std::byte* block, int at) noexcept { return byte_at(block, at) | byte_at(block, at + 1) << 8; }
float half_at(const std::byte* block, int at) noexcept {
  return float_from_f16(static_cast<std::uint16_t>(u16_at(block, at)));
}
float number(unsigned code) noexcept { return static_cast<float>(code); }
float number(int code) noexcept { return static_cast<float>(code); }

// ---- Blocks of 32: a scale, and perhaps an offset. Element i shares a byte with element i + 16.

// Bit 4 of the codes of Q5_0 and Q5_1: 32 bits, element 0 lowest.
unsigned fifth_bit(const std::byte* block, int at, int i) noexcept {
  return (byte_at(block, at + i / 8) >> (i % 8) & 1U) << 4;
}

unsigned nibble(const std::byte* block, int at, int i) noexcept {
  return i < 16 ? byte_at(block, at + i) & 15U : byte_at(block, at + i - 16) >> 4;
}

void q4_0(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) x[i] = number(static_cast<int>(nibble(block, 2, i)) - 8) * d;
}

void q4_1(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 0);
  const float m = half_at(block, 2);
  for (int i = 0; i < 32; ++i) {
    const float scaled = number(nibble(block, 4, i)) * d;
    x[i] = scaled + m;
  }
}

void q5_0(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) {
    x[i] = number(static_cast<int>(nibble(block, 6, i) | fifth_bit(block, 2, i)) - 16) * d;
  }
}

void q5_1(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 0);
  const float m = half_at(block, 2);
  for (int i = 0; i < 32; ++i) {
    const float scaled = number(nibble(block, 8, i) | fifth_bit(block, 4, i)) * d;
    x[i] = scaled + m;
  }
}

void q8_0(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) x[i] = number(signed_at(block, 2 + i)) * d;
}

// The levels of the IQ4 types, and those of E2M1 floats, doubled to be integers.
constexpr std::array<int, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr std::array<int, 16> kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void iq4_nl(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) x[i] = d * number(kIq4[nibble(block, 2, i)]);
}

void mxfp4(const std::byte* block, float* x) noexcept {
  // 2^(e - 128), which is subnormal for e below 2. 255 is 2^127 as in ggml; OCP calls it NaN.
  const unsigned e = byte_at(block, 0);
  const float d = std::bit_cast<float>(e < 2 ? 0x200000U << e : (e - 1) << 23);
  for (int i = 0; i < 32; ++i) x[i] = number(kE2m1[nibble(block, 1, i)]) * d;
}

// ---- 8-bit floats

constexpr float kQuiet = std::bit_cast<float>(0x7fc00000U);

// Of the lower 7 bits: 4 of exponent with bias 7, 3 of mantissa. The code of NaN is 480 here.
constexpr float e4m3_magnitude(unsigned code) noexcept {
  const unsigned exponent = code >> 3 & 15U;
  const unsigned mantissa = code & 7U;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-9F;
  return std::bit_cast<float>((exponent + 120U) << 23 | mantissa << 20);
}

constexpr float e4m3(unsigned code) noexcept {  // no infinities
  const float magnitude = (code & 0x7fU) == 0x7fU ? kQuiet : e4m3_magnitude(code);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | (code & 0x80U) << 24);
}

constexpr float e5m2(unsigned code) noexcept {
  const unsigned exponent = code >> 2 & 31U;
  const unsigned mantissa = code & 3U;
  float magnitude = static_cast<float>(mantissa) * 0x1p-16F;
  if (exponent == 31U) {
    magnitude = mantissa != 0 ? kQuiet : std::bit_cast<float>(0x7f800000U);
  } else if (exponent != 0) {
    magnitude = std::bit_cast<float>((exponent + 112U) << 23 | mantissa << 21);
  }
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | (code & 0x80U) << 24);
}

using Values = std::array<std::uint32_t, 256>;  // bits, because loading a NaN as a float may change it

constexpr Values values_of(float (*value)(unsigned)) noexcept {
  Values values{};
  for (unsigned code = 0; code < 256; ++code) values[code] = std::bit_cast<std::uint32_t>(value(code));
  return values;
}
constexpr Values kE4m3 = values_of(e4m3);
constexpr Values kE5m2 = values_of(e5m2);

void f8_e4m3(const std::byte* block, float* x) noexcept { std::memcpy(x, &kE4m3[byte_at(block, 0)], sizeof *x); }
void f8_e5m2(const std::byte* block, float* x) noexcept { std::memcpy(x, &kE5m2[byte_at(block, 0)], sizeof *x); }

void nvfp4(const std::byte* block, float* x) noexcept {
  for (int s = 0; s < 4; ++s) {
    // Without a sign; halved, because the levels are doubled.
    const unsigned code = byte_at(block, s);
    const float d = code == 0x7fU ? 0.0F : e4m3_magnitude(code) * 0.5F;
    for (int i = 0; i < 16; ++i) {
      const unsigned pair = byte_at(block, 4 + 8 * s + i % 8);
      x[16 * s + i] = number(kE2m1[i < 8 ? pair & 15U : pair >> 4]) * d;
    }
  }
}

// ---- Blocks of 256, in parts with scales of their own. The product of the two scales is rounded first.

void q2_k(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 80);
  const float dmin = half_at(block, 82);
  for (int i = 0; i < 256; ++i) {
    const unsigned q = byte_at(block, 16 + 32 * (i / 128) + i % 32) >> (2 * (i % 128 / 32)) & 3U;
    const unsigned scale = byte_at(block, i / 16);
    const float least = dmin * number(scale >> 4);
    const float step = d * number(scale & 15U);
    const float scaled = step * number(q);
    x[i] = scaled - least;
  }
}

void q3_k(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 108);
  for (int i = 0; i < 256; ++i) {
    const int part = i / 16;
    const unsigned low = byte_at(block, 96 + part % 8) >> (4 * (part / 8)) & 15U;
    const unsigned high = byte_at(block, 104 + part % 4) >> (2 * (part / 4)) & 3U;
    const float step = d * number(static_cast<int>(low | high << 4) - 32);
    const unsigned q = byte_at(block, 32 + 32 * (i / 128) + i % 32) >> (2 * (i % 128 / 32)) & 3U;
    const unsigned third = byte_at(block, i % 32) >> (i / 32) & 1U;  // clear: 4 less
    x[i] = step * number(static_cast<int>(q | third << 2) - 4);
  }
}

struct ScaleAndMin {
  unsigned scale;
  unsigned min;
};
// Part `j` of 8: two 6-bit numbers out of 12 bytes, the upper bits of the last four in what the first four leave.
ScaleAndMin scale_and_min(const std::byte* scales, int j) noexcept {
  if (j < 4) return {byte_at(scales, j) & 63U, byte_at(scales, j + 4) & 63U};
  return {(byte_at(scales, j + 4) & 15U) | (byte_at(scales, j - 4) >> 6) << 4,
          (byte_at(scales, j + 4) >> 4) | (byte_at(scales, j) >> 6) << 4};
}

// Q4_K, and with a fifth bit at `high` Q5_K.
void q4_or_q5_k(const std::byte* block, const std::byte* high, int low_at, float* x) noexcept {
  const float d = half_at(block, 0);
  const float dmin = half_at(block, 2);
  for (int j = 0; j < 8; ++j) {
    const auto [scale, min] = scale_and_min(block + 4, j);
    const float step = d * number(scale);
    const float least = dmin * number(min);
    for (int l = 0; l < 32; ++l) {
      unsigned q = byte_at(block, low_at + 32 * (j / 2) + l) >> (4 * (j % 2)) & 15U;
      if (high != nullptr) q |= (byte_at(high, l) >> j & 1U) << 4;
      const float scaled = step * number(q);
      x[32 * j + l] = scaled - least;
    }
  }
}
void q4_k(const std::byte* block, float* x) noexcept { q4_or_q5_k(block, nullptr, 16, x); }
void q5_k(const std::byte* block, float* x) noexcept { q4_or_q5_k(block, block + 16, 48, x); }

void q6_k(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int quarter = i % 128 / 32;
    const unsigned low = byte_at(block, 64 * half + i % 32 + 32 * (quarter & 1)) >> (4 * (quarter >> 1)) & 15U;
    const unsigned high = byte_at(block, 128 + 32 * half + i % 32) >> (2 * quarter) & 3U;
    const float step = d * number(signed_at(block, 192 + i / 16));
    x[i] = step * number(static_cast<int>(low | high << 4) - 32);
  }
}

void iq4_xs(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 0);
  for (int part = 0; part < 8; ++part) {
    const unsigned low = byte_at(block, 4 + part / 2) >> (4 * (part % 2)) & 15U;
    const unsigned high = u16_at(block, 2) >> (2 * part) & 3U;
    const float step = d * number(static_cast<int>(low | high << 4) - 32);
    for (int i = 0; i < 32; ++i) x[32 * part + i] = step * number(kIq4[nibble(block, 8 + 16 * part, i)]);
  }
}

// ---- One and two bits

void tq2_0(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 64);
  for (int i = 0; i < 256; ++i) {
    const unsigned q = byte_at(block, 32 * (i / 128) + i % 32) >> (2 * (i % 128 / 32)) & 3U;
    x[i] = number(static_cast<int>(q) - 1) * d;
  }
}

void q1_0(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 0);
  for (int i = 0; i < 128; ++i) x[i] = (byte_at(block, 2 + i / 8) >> (i % 8) & 1U) != 0 ? d : -d;
}

void q2_0(const std::byte* block, float* x) noexcept {
  const float d = half_at(block, 0);
  for (int i = 0; i < 64; ++i) {
    const unsigned q = byte_at(block, 2 + i / 4) >> (2 * (i % 4)) & 3U;
    x[i] = number(static_cast<int>(q) - 1) * d;
  }
}

// ---- The tables

template <void (*kOne)(const std::byte*, float*) noexcept, int kBlock, int kBytes>
constexpr Encoding row(std::string_view name) {
  return {name, kBlock, kBytes, [](const std::byte* src, std::int64_t blocks, float* dst) noexcept {
            for (std::int64_t b = 0; b < blocks; ++b) kOne(src + b * kBytes, dst + b * kBlock);
          }};
}

constexpr Encoding kEncodings[] = {
    row<q8_0, 32, 34>("Q8_0"),     row<q4_0, 32, 18>("Q4_0"),     row<q4_1, 32, 20>("Q4_1"),
    row<q5_0, 32, 22>("Q5_0"),     row<q5_1, 32, 24>("Q5_1"),     row<q2_k, 256, 84>("Q2_K"),
    row<q3_k, 256, 110>("Q3_K"),   row<q4_k, 256, 144>("Q4_K"),   row<q5_k, 256, 176>("Q5_K"),
    row<q6_k, 256, 210>("Q6_K"),   row<iq4_nl, 32, 18>("IQ4_NL"), row<iq4_xs, 256, 136>("IQ4_XS"),
    row<mxfp4, 32, 17>("MXFP4"),   row<nvfp4, 64, 36>("NVFP4"),   row<tq2_0, 256, 66>("TQ2_0"),
    row<q1_0, 128, 18>("Q1_0"),    row<q2_0, 64, 18>("Q2_0"),     row<f8_e4m3, 1, 1>("F8_E4M3"),
    row<f8_e5m2, 1, 1>("F8_E5M2"),
};

constexpr const Encoding* encoding_called(std::string_view name) noexcept {
  for (const Encoding& encoding : kEncodings) {
    if (encoding.name == name) return &encoding;
  }
  return nullptr;
}

constexpr GgufType number_type(std::uint32_t id, std::string_view name, int bytes, std::optional<DType> dtype = {}) {
  return {id, name, 1, bytes, dtype, nullptr};
}
constexpr GgufType decoded(std::uint32_t id, std::string_view name) {
  const Encoding* encoding = encoding_called(name);
  return {id, name, encoding->block, encoding->bytes, std::nullopt, encoding};
}
constexpr GgufType sized(std::uint32_t id, std::string_view name, int bytes) {
  return {id, name, 256, bytes, std::nullopt, nullptr};
}

constexpr GgufType kTypes[] = {
                                 // ascending ids
    number_type(0, "F32", 4, DType::f32),
    number_type(1, "F16", 2, DType::f16),
    decoded(2, "Q4_0"),
    decoded(3, "Q4_1"),
    decoded(6, "Q5_0"),
    decoded(7, "Q5_1"),
    decoded(8, "Q8_0"),
    decoded(10, "Q2_K"),
    decoded(11, "Q3_K"),
    decoded(12, "Q4_K"),
    decoded(13, "Q5_K"),
    decoded(14, "Q6_K"),
    sized(16, "IQ2_XXS", 66),
    sized(17, "IQ2_XS", 74),
    sized(18, "IQ3_XXS", 98),
    sized(19, "IQ1_S", 50),
    decoded(20, "IQ4_NL"),
    sized(21, "IQ3_S", 110),
    sized(22, "IQ2_S", 82),
    decoded(23, "IQ4_XS"),
    number_type(24, "I8", 1),
    number_type(25, "I16", 2),
    number_type(26, "I32", 4),
    number_type(27, "I64", 8),
    number_type(28, "F64", 8, DType::f64),
    sized(29, "IQ1_M", 56),
    number_type(30, "BF16", 2, DType::bf16),
    sized(34, "TQ1_0", 54),
    decoded(35, "TQ2_0"),
    decoded(39, "MXFP4"),
    decoded(40, "NVFP4"),
    decoded(41, "Q1_0"),
    decoded(42, "Q2_0"),
};

}  // namespace

const Encoding* find_encoding(std::string_view name) noexcept { return encoding_called(name); }

const GgufType* gguf_type(std::uint32_t id) noexcept {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const GgufType& t) { return t.id == id; });
  return found != std::end(kTypes) ? found : nullptr;
}

const GgufType* gguf_type(std::string_view name) noexcept {
  const auto* found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const GgufType& t) { return t.name == name; });
  return found != std::end(kTypes) ? found : nullptr;
}

std::string_view gguf_type_refusal(std::uint32_t id) noexcept {
  switch (id) {
    case 4:
      return "Q4_2, which was removed from the format";
    case 5:
      return "Q4_3, which was removed from the format";
    case 9:
      return "Q8_1, which is no type of files";
    case 15:
      return "Q8_K, which is no type of files";
    case 31:
      return "Q4_0_4_4, which was removed from the format";
    case 32:
      return "Q4_0_4_8, which was removed from the format";
    case 33:
      return "Q4_0_8_8, which was removed from the format";
    case 36:
      return "IQ4_NL_4_4, which was removed from the format";
    case 37:
      return "IQ4_NL_4_8, which was removed from the format";
    case 38:
      return "IQ4_NL_8_8, which was removed from the format";
    default:
      return "unknown";
  }
}

}  // namespace swiglu::files
