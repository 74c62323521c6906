// Elements from the type in which they are given to the type in which a file stores them: one rounding to nearest
// even, denormals and NaN kept. Knows element types and ggml's blocks, no file format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "swiglu/files.hpp"

namespace swiglu::files {

[[nodiscard]] constexpr bool is_quantized(TensorType type) noexcept {
  return type == TensorType::q8_0 || type == TensorType::q4_0;
}

/// Of `elements` elements in a row; of a type in blocks, a whole number of them.
[[nodiscard]] std::int64_t stored_bytes(TensorType type, std::int64_t elements) noexcept;

struct Converted {
  std::int64_t overflowed = 0;  ///< finite before, Inf now
  std::int64_t done = 0;        ///< elements; fewer than asked for where a block cannot hold the next 32
};

/// Converts `n` elements. Call it in the floating-point mode that keeps denormals (FloatMode::kExact).
[[nodiscard]] Converted convert_elements(const std::byte* src, DType given, std::int64_t n, std::byte* dst,
                                         TensorType type) noexcept;

}  // namespace swiglu::files
