// One loop for each pair of types that occurs; see conversion.h. From f64 straight to the narrow type, never through a
// rounded float; everything else goes through float, which holds it exactly.
#include "files/conversion.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "files/quantize.h"

namespace swiglu::files {
namespace {

template <class T>
T load(const std::byte* src, std::int64_t i) noexcept {
  T value;
  std::memcpy(&value, src + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* dst, std::int64_t i, T value) noexcept {
  std::memcpy(dst + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

std::uint16_t bf16_of(float value) noexcept { return bf16_from_float(value); }
std::uint16_t bf16_of(double value) noexcept { return bf16_from_double(value); }
std::uint16_t f16_of(float value) noexcept { return f16_from_float(value); }
std::uint16_t f16_of(double value) noexcept { return f16_from_double(value); }

// `get(i)` is a float or a double.
template <class Get>
std::int64_t store_as(TensorType type, const Get& get, std::int64_t n, std::byte* dst) noexcept {
  std::int64_t overflowed = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = get(i);
    bool infinite = false;
    if (type == TensorType::f64) {
      store(dst, i, static_cast<double>(value));
      continue;
    }
    if (type == TensorType::f32) {
      const auto narrow = static_cast<float>(value);
      store(dst, i, narrow);
      infinite = std::isinf(narrow);
    } else if (type == TensorType::bf16) {
      const std::uint16_t bits = bf16_of(value);
      store(dst, i, bits);
      infinite = (bits & 0x7fffU) == 0x7f80U;
    } else {
      const std::uint16_t bits = f16_of(value);
      store(dst, i, bits);
      infinite = (bits & 0x7fffU) == 0x7c00U;
    }
    if (infinite && std::isfinite(value)) ++overflowed;
  }
  return overflowed;
}

std::int64_t store_from(const std::byte* src, DType given, std::int64_t n, std::byte* dst, TensorType type) noexcept {
  switch (given) {
    case DType::f32:
      return store_as(type, [&](std::int64_t i) { return load<float>(src, i); }, n, dst);
    case DType::bf16:
      return store_as(type, [&](std::int64_t i) { return float_from_bf16(load<std::uint16_t>(src, i)); }, n, dst);
    case DType::f16:
      return store_as(type, [&](std::int64_t i) { return float_from_f16(load<std::uint16_t>(src, i)); }, n, dst);
    case DType::f64:
      break;
  }
  return store_as(type, [&](std::int64_t i) { return load<double>(src, i); }, n, dst);
}

}  // namespace

std::int64_t stored_bytes(TensorType type, std::int64_t elements) noexcept {
  if (type == TensorType::q8_0) return elements / kQuantBlock * kQ8Bytes;
  if (type == TensorType::q4_0) return elements / kQuantBlock * kQ4Bytes;
  return elements * size_of(static_cast<DType>(type));
}

Converted convert_elements(const std::byte* src, DType given, std::int64_t n, std::byte* dst,
                           TensorType type) noexcept {
  if (tensor_type(given) == type) {  // also a NaN keeps all its bits
    std::memcpy(dst, src, static_cast<std::size_t>(n * size_of(given)));
    return {.done = n};
  }
  if (!is_quantized(type)) return {.overflowed = store_from(src, given, n, dst, type), .done = n};
  constexpr std::int64_t kPiece = 128 * kQuantBlock;
  std::array<float, kPiece> floats;
  for (std::int64_t at = 0; at < n; at += kPiece) {
    const std::int64_t piece = std::min(kPiece, n - at);
    // What is too large for a float becomes Inf here, and a block refuses that.
    static_cast<void>(store_from(src + at * size_of(given), given, piece, reinterpret_cast<std::byte*>(floats.data()),
                                 TensorType::f32));
    const std::int64_t blocks = piece / kQuantBlock;
    std::byte* const to = dst + stored_bytes(type, at);
    const std::int64_t done =
        type == TensorType::q8_0 ? quantize_q8_0(floats.data(), blocks, to) : quantize_q4_0(floats.data(), blocks, to);
    if (done < blocks) return {.done = at + done * kQuantBlock};
  }
  return {.done = n};
}

}  // namespace swiglu::files
