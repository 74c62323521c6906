// Element conversions that are too long to inline; see dtype.h.
#include "base/dtype.h"

namespace swiglu {
namespace {

// Rounds to float so that a later rounding to fewer bits gives what one rounding would have given:
// truncate toward zero, and set the last bit if anything was lost ("round to odd").
float float_rounded_to_odd(double value) {
  if (!std::isfinite(value)) return static_cast<float>(value);
  auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) == value) return narrow;
  auto bits = std::bit_cast<std::uint32_t>(narrow);
  // The conversion rounded away from zero (or to infinity): step back toward zero.
  if (std::abs(static_cast<double>(narrow)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1U);
}

}  // namespace

std::uint16_t bf16_from_double(double value) noexcept { return bf16_from_float(float_rounded_to_odd(value)); }
std::uint16_t f16_from_double(double value) noexcept { return f16_from_float(float_rounded_to_odd(value)); }

float float_from_f16(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0x1fU) {  // a NaN becomes quiet, as the hardware conversion makes it
    return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13) | (mantissa != 0 ? 0x400000U : 0U));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t f16_from_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U | ((bits >> 13) & 0x3ffU));
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // >= 65536
  if (magnitude >= 0x38800000U) {                                                   // a normal half
    const std::uint32_t rebased = magnitude - (112U << 23);
    return static_cast<std::uint16_t>(sign | ((rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13));
  }
  // A denormal half counts units of 2^-24.
  const std::uint32_t exponent = magnitude >> 23;
  if (exponent < 102U) return sign;  // below half of the smallest denormal
  const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
  const std::uint32_t shift = 126U - exponent;  // 14 … 24
  const std::uint32_t half_unit = 1U << (shift - 1);
  return static_cast<std::uint16_t>(sign | ((mantissa + half_unit - 1U + ((mantissa >> shift) & 1U)) >> shift));
}

double load_double(const void* data, DType t, std::int64_t i) noexcept {
  const auto* bytes = static_cast<const char*>(data) + i * size_of(t);
  if (t == DType::f64) {
    double value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  if (t == DType::f32) {
    float value;
    std::memcpy(&value, bytes, sizeof value);
    return static_cast<double>(value);
  }
  std::uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return static_cast<double>(t == DType::bf16 ? float_from_bf16(half) : float_from_f16(half));
}

void store_double(void* data, DType t, std::int64_t i, double value) noexcept {
  auto* bytes = static_cast<char*>(data) + i * size_of(t);
  if (t == DType::f64) {
    std::memcpy(bytes, &value, sizeof value);
  } else if (t == DType::f32) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(bytes, &narrow, sizeof narrow);
  } else {
    const std::uint16_t half = t == DType::bf16 ? bf16_from_double(value) : f16_from_double(value);
    std::memcpy(bytes, &half, sizeof half);
  }
}

}  // namespace swiglu
