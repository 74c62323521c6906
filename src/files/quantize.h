// Weights as ggml's blocks: 32 neighbours of a row, one scale in half precision and 8 or 4 bits each, rounded as ggml's
// own quantizer rounds. Knows nothing of files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace swiglu::files {

inline constexpr std::int64_t kQuantBlock = 32;
inline constexpr std::int64_t kQ8Bytes = 34;  ///< f16 scale, 32 signed bytes
inline constexpr std::int64_t kQ4Bytes = 18;  ///< f16 scale, 16 bytes: elements 0-15 below, 16-31 above

/// Each rounds blocks * 32 floats to `blocks` blocks and returns how many it did: fewer where the next block holds NaN
/// or Inf, or so large a number that its scale is no finite half, which no block can express. In the floating-point
/// mode that keeps denormals (FloatMode::kExact), as the bits of ggml ask for.
[[nodiscard]] std::int64_t quantize_q8_0(const float* src, std::int64_t blocks, std::byte* dst) noexcept;
[[nodiscard]] std::int64_t quantize_q4_0(const float* src, std::int64_t blocks, std::byte* dst) noexcept;

}  // namespace swiglu::files
