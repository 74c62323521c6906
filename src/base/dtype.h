// Conversions between element types, one element at a time, in integer arithmetic where that is what
// makes them independent of the floating-point mode. Knows nothing else. Not for hot loops.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "swiglu/swiglu.hpp"

namespace swiglu {

[[nodiscard]] inline float float_from_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest even, denormals kept; NaN stays NaN (quiet, upper payload bits kept).
[[nodiscard]] inline std::uint16_t bf16_from_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// A double is rounded to bf16 once: through float by rounding to odd, so no double rounding happens.
[[nodiscard]] std::uint16_t bf16_from_double(double value) noexcept;

[[nodiscard]] float float_from_f16(std::uint16_t bits) noexcept;
/// Round to nearest even, denormals kept.
[[nodiscard]] std::uint16_t f16_from_float(float value) noexcept;
[[nodiscard]] std::uint16_t f16_from_double(double value) noexcept;

/// Element `i` of an array of type `t`, exactly.
[[nodiscard]] double load_double(const void* data, DType t, std::int64_t i) noexcept;
/// Stores with one rounding to nearest even.
void store_double(void* data, DType t, std::int64_t i, double value) noexcept;

}  // namespace swiglu
