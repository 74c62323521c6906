// Conversions by the row; see convert.h. Integers and selections instead of branches, so that there are vectors
// of them.
#include "weights/convert.h"

#include <bit>
#include <cstring>

#include "base/dtype.h"

namespace swiglu::weights {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000U;
constexpr std::uint32_t kQuiet = 0x400000U;

template <class T>
T element(const void* source, std::int64_t i) noexcept {
  T value;
  std::memcpy(&value, static_cast<const char*>(source) + i * static_cast<std::int64_t>(sizeof value), sizeof value);
  return value;
}

float quiet_from_bf16(std::uint16_t half) noexcept {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  return std::bit_cast<float>(bits | ((bits & ~0x80000000U) > kInfinity ? kQuiet : 0U));
}

// All bits set where `condition` holds. A selection by masks stays one: g++ turns nested ?: into branches.
std::uint32_t mask(bool condition) noexcept { return condition ? ~0U : 0U; }

float quiet_from_f16(std::uint16_t half) noexcept {
  const std::uint32_t magnitude = half & 0x7fffU;
  const std::uint32_t tiny = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24F);
  const std::uint32_t to_special = mask(magnitude >= 0x7c00U) & (112U << 23);
  const std::uint32_t normal = (magnitude << 13) + (112U << 23) + to_special;
  const std::uint32_t is_tiny = mask(magnitude < 0x400U);
  const std::uint32_t bits = (tiny & is_tiny) | (normal & ~is_tiny) | (mask(magnitude > 0x7c00U) & kQuiet);
  return std::bit_cast<float>(bits | (half & 0x8000U) << 16);
}

template <class From, class To, class Convert>
void convert(To* dst, const void* source, std::int64_t n, const Convert& convert_one) noexcept {
  for (std::int64_t i = 0; i < n; ++i) dst[i] = convert_one(element<From>(source, i));
}

}  // namespace

void convert_to_f32(float* dst, const void* source, DType type, std::int64_t n) noexcept {
  switch (type) {
    case DType::bf16:
      return convert<std::uint16_t>(dst, source, n, quiet_from_bf16);
    case DType::f16:
      return convert<std::uint16_t>(dst, source, n, quiet_from_f16);
    case DType::f64:
      return convert<double>(dst, source, n, [](double x) { return static_cast<float>(x); });
    case DType::f32:
      break;
  }
  std::memcpy(dst, source, static_cast<std::size_t>(n) * sizeof *dst);
}

void convert_to_bf16(std::uint16_t* dst, const void* source, DType type, std::int64_t n) noexcept {
  switch (type) {
    case DType::f32:
      return convert<float>(dst, source, n, bf16_from_float);
    case DType::f16:
      return convert<std::uint16_t>(dst, source, n, [](std::uint16_t x) { return bf16_from_float(quiet_from_f16(x)); });
    case DType::f64:
      return convert<double>(dst, source, n, bf16_from_double);
    case DType::bf16:
      break;
  }
  std::memcpy(dst, source, static_cast<std::size_t>(n) * sizeof *dst);
}

}  // namespace swiglu::weights
