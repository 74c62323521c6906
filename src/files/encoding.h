// How elements that are no plain numbers (blocks of a quantised GGUF matrix, 8-bit floats) become floats. The table of
// what is known is in blocks.cc; sources decode with it, containers size tensors by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace swiglu::files {

/// `block` neighbours of a row are stored together in `bytes` bytes, little-endian, at any alignment. A row is a whole
/// number of blocks.
struct Encoding {
  std::string_view name;  ///< as the format's documents spell it: "Q4_K", "F8_E4M3"
  std::int64_t block = 1;
  std::int64_t bytes = 1;
  /// Decodes `blocks` blocks to blocks * block floats, with the operations and roundings of the format's definition:
  /// every bit is that of ggml. Runs in the floating-point mode that keeps denormals (FloatMode::kExact).
  void (*decode)(const std::byte* src, std::int64_t blocks, float* dst) noexcept = nullptr;
};

}  // namespace swiglu::files
