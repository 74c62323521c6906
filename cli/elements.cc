// Elements as doubles and back, by the definition of the formats: bf16 is the upper half of a float,
// f16 has 5 bits of exponent and 10 of mantissa. A double is rounded once, never by way of float.
#include "elements.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace swiglu::cli {

namespace {

double from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

double from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0) {
    const double size = static_cast<double>(mantissa) * 0x1p-24;
    return sign != 0 ? -size : size;
  }
  const std::uint32_t widened = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | widened << 23 | mantissa << 13);
}

/// The nearest value with `precision` significant bits, the last of them never below 2^lowest.
double rounded(double x, int precision, int lowest) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int last = std::max(std::ilogb(x) - (precision - 1), lowest);
  return std::ldexp(std::nearbyint(std::ldexp(x, -last)), last);
}

std::uint16_t to_bf16(double x) {
  if (std::isnan(x)) return 0x7FC0;
  const auto exact = static_cast<float>(rounded(x, 8, -133));  // too large becomes infinity here
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(exact) >> 16);
}

std::uint16_t to_f16(double x) {
  if (std::isnan(x)) return 0x7E00;
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double size = std::fabs(rounded(x, 11, -24));
  if (size > 65504) return sign | 0x7C00U;
  if (size < 0x1p-14) return static_cast<std::uint16_t>(sign | static_cast<unsigned>(size * 0x1p24));
  const int exponent = std::ilogb(size);
  const auto mantissa = static_cast<unsigned>(std::ldexp(size, 10 - exponent)) & 0x3FFU;
  return static_cast<std::uint16_t>(sign | static_cast<unsigned>(exponent + 15) << 10 | mantissa);
}

std::uint32_t to_f32(double x) {
  return std::isnan(x) ? 0x7FC00000U : std::bit_cast<std::uint32_t>(static_cast<float>(x));
}

std::uint64_t to_f64(double x) { return std::isnan(x) ? 0x7FF8000000000000U : std::bit_cast<std::uint64_t>(x); }

template <class Stored, class Convert>
void read_all(std::span<const std::byte> bytes, std::vector<double>& out, Convert convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored element;
    std::memcpy(&element, bytes.data() + i * sizeof element, sizeof element);
    out[i] = convert(element);
  }
}

template <class Convert>
void write_all(std::span<const double> values, std::vector<std::byte>& out, Convert convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto element = convert(values[i]);
    std::memcpy(out.data() + i * sizeof element, &element, sizeof element);
  }
}

}  // namespace

std::vector<double> to_doubles(DType dtype, std::span<const std::byte> bytes) {
  std::vector<double> out(bytes.size() / static_cast<std::size_t>(size_of(dtype)));
  switch (dtype) {
    case DType::f32:
      read_all<float>(bytes, out, [](float x) { return static_cast<double>(x); });
      break;
    case DType::f64:
      read_all<double>(bytes, out, [](double x) { return x; });
      break;
    case DType::bf16:
      read_all<std::uint16_t>(bytes, out, from_bf16);
      break;
    case DType::f16:
      read_all<std::uint16_t>(bytes, out, from_f16);
      break;
  }
  return out;
}

std::vector<std::byte> from_doubles(DType dtype, std::span<const double> values) {
  std::vector<std::byte> out(values.size() * static_cast<std::size_t>(size_of(dtype)));
  switch (dtype) {
    case DType::f32:
      write_all(values, out, to_f32);
      break;
    case DType::f64:
      write_all(values, out, to_f64);
      break;
    case DType::bf16:
      write_all(values, out, to_bf16);
      break;
    case DType::f16:
      write_all(values, out, to_f16);
      break;
  }
  return out;
}

}  // namespace swiglu::cli
