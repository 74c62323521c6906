// The tier that every other one is compared with: one lane, no FMA hardware needed (any x86-64).
#include <emmintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace swiglu::kernels {
namespace {

struct V {
  static constexpr int kWidth = 1;
  static constexpr int kMaxRows = 4;
  static constexpr bool kHasDot = false;
  static constexpr int vectors_at_once(int) { return 4; }
  static constexpr int kCrowded = 16;
  using F = float;
  using I = std::int32_t;

  static std::uint32_t bits(F x) { return __builtin_bit_cast(std::uint32_t, x); }
  static F from_bits(std::uint32_t b) { return __builtin_bit_cast(float, b); }
  template <class T>
  static T read(const void* at) {
    T value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
  }

  static F zero() { return 0.0F; }
  static F set(float x) { return x; }
  static F load(const void* at) { return read<float>(at); }
  static F broadcast(const void* at) { return read<float>(at); }
  static void store(void* at, F x) { __builtin_memcpy(at, &x, sizeof x); }
  static F add(F a, F b) { return a + b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }

  // a * b + c, rounded once, without FMA hardware. The product of two floats is exact in double; TwoSum
  // gives the sum and its error; where there is an error the sum's last bit is made odd ("round to odd"),
  // after which rounding to float equals rounding the exact value. FTZ and DAZ act through the
  // conversions as they do inside a hardware fma.
  static F fma(F a, F b, F c) {
    const double product = static_cast<double>(a) * static_cast<double>(b);
    const double addend = static_cast<double>(c);
    const double sum = product + addend;
    const double part = sum - product;
    const double error = (product - (sum - part)) + (addend - part);
    auto word = __builtin_bit_cast(std::uint64_t, sum);
    // NaN and infinite sums have a NaN error, which compares unequal: leave those sums alone.
    if (error != 0.0 && (word & 1U) == 0 && error == error) {
      const bool toward_zero = (error < 0.0) != (sum < 0.0);
      word += toward_zero ? ~std::uint64_t{0} : std::uint64_t{1};
    }
    return static_cast<float>(__builtin_bit_cast(double, word));
  }

  static F dot_bf16(F acc, F, F) { return acc; }  // named by shared code, never called without kHasDot
  static F negative_abs(F x) { return from_bits(bits(x) | 0x80000000U); }
  static F max(F a, F b) { return a > b ? a : b; }  // b when either is NaN, as maxps
  static I to_int(F x) { return _mm_cvtss_si32(_mm_set_ss(x)); }
  static F from_int(I n) { return static_cast<float>(n); }
  static I half_of(I n) { return n >> 1; }
  static I subtract(I a, I b) { return static_cast<I>(static_cast<std::uint32_t>(a) - static_cast<std::uint32_t>(b)); }
  static F power_of_two(I n) { return from_bits((static_cast<std::uint32_t>(n) + 127U) << 23); }
  static bool less(F a, F b) { return a < b; }
  static bool is_nan(F x) { return x != x; }
  static F select(bool which, F yes, F no) { return which ? yes : no; }
  static F flush(F x) { return (bits(x) & 0x7f800000U) == 0 ? from_bits(bits(x) & 0x80000000U) : x; }

  static I words(const void* at) { return read<I>(at); }
  static void store(void* at, I x) { __builtin_memcpy(at, &x, sizeof x); }
  static F as_floats(I x) { return from_bits(static_cast<std::uint32_t>(x)); }
  static F even_of(I x) { return from_bits(static_cast<std::uint32_t>(x) << 16); }
  static F odd_of(I x) { return from_bits(static_cast<std::uint32_t>(x) & 0xffff0000U); }
  static F even_bf16(const void* at) { return even_of(words(at)); }
  static F odd_bf16(const void* at) { return odd_of(words(at)); }

  // Compact weights: words of step Half of a block, two neighbouring outputs of each half of the panel a pass.
  using CodeTable = const unsigned char*;
  static CodeTable code_table(const unsigned char* table) { return table; }
  template <int Half, int N>
  static void decode(I (&out)[N], const char* block, int pass, CodeTable table) {
    for (int n = 0; n < N; ++n) {
      const int output = pass * (N / 2) + n % (N / 2), line = n / (N / 2);
      std::uint32_t word = 0;
      for (int odd = 0; odd < 2; ++odd) {
        const int at = output / 4 * 16 + line * 8 + output % 4 * 2 + odd;
        const std::uint32_t low = static_cast<unsigned char>(block[64 * Half + at]);
        const std::uint32_t code = static_cast<unsigned char>(block[128 + at]) >> (4 * Half) & 15U;
        word |= (low | static_cast<std::uint32_t>(table[code]) << 8) << (16 * odd);
      }
      out[n] = static_cast<I>(word);
    }
  }
  static F from_bf16(const void* at) { return from_bits(static_cast<std::uint32_t>(read<std::uint16_t>(at)) << 16); }
  static F from_f64(const void* at) { return static_cast<float>(read<double>(at)); }
  static F from_f16(const void* at) {
    const std::uint32_t half = read<std::uint16_t>(at);
    const std::uint32_t sign = (half & 0x8000U) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fU;
    const std::uint32_t mantissa = half & 0x3ffU;
    if (exponent == 0x1fU) return from_bits(sign | 0x7f800000U | mantissa << 13 | (mantissa != 0 ? 0x400000U : 0U));
    if (exponent != 0) return from_bits(sign | (exponent + 112U) << 23 | mantissa << 13);
    const F magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return from_bits(sign | bits(magnitude));
  }
  static void to_bf16(void* at, F x) {
    const std::uint32_t b = bits(x);
    const std::uint32_t rounded = x != x ? b | 0x400000U : b + 0x7fffU + ((b >> 16) & 1U);
    const auto half = static_cast<std::uint16_t>(rounded >> 16);
    __builtin_memcpy(at, &half, sizeof half);
  }
  static void to_f64(void* at, F x) {
    const auto wide = static_cast<double>(x);
    __builtin_memcpy(at, &wide, sizeof wide);
  }
  static void to_f16(void* at, F x) {
    const std::uint32_t b = bits(x);
    const std::uint32_t sign = (b >> 16) & 0x8000U;
    const std::uint32_t magnitude = b & 0x7fffffffU;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000U) {
      half = 0x7e00U | ((b >> 13) & 0x3ffU);
    } else if (magnitude >= 0x47800000U) {
      half = 0x7c00U;
    } else if (magnitude >= 0x38800000U) {
      const std::uint32_t rebased = magnitude - (112U << 23);
      half = (rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13;
    } else if (magnitude >> 23 >= 102U) {  // a denormal half counts units of 2^-24
      const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
      const std::uint32_t shift = 126U - (magnitude >> 23);
      half = (mantissa + (1U << (shift - 1)) - 1U + ((mantissa >> shift) & 1U)) >> shift;
    }
    const auto stored = static_cast<std::uint16_t>(sign | half);
    __builtin_memcpy(at, &stored, sizeof stored);
  }
};

#include "kernels/tile.inl"

#include "kernels/probe.inl"

#include "kernels/pack.inl"

#include "kernels/encode.inl"

#include "kernels/rowwise.inl"

}  // namespace

const Table kScalar = make_table();

}  // namespace swiglu::kernels
