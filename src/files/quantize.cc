// Blocks of 8 and 4 bits; see quantize.h. The scale is stored as a half, but elements are divided by the float that it
// was rounded from: that is ggml's arithmetic, and other roundings would be other files.
#include "files/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/dtype.h"

namespace swiglu::files {
namespace {

// 1/scale. A scale so small that this overflows is stored as 0: then no element matters, and 0 makes them all zero.
float inverse(float scale) noexcept {
  const float one_by = scale != 0 ? 1.0F / scale : 0.0F;
  return std::isfinite(one_by) ? one_by : 0.0F;
}

bool put_scale(float scale, std::byte* dst) noexcept {
  const std::uint16_t half = f16_from_float(scale);
  std::memcpy(dst, &half, sizeof half);
  return (half & 0x7c00U) != 0x7c00U;
}

// The first of the elements that are greatest in magnitude, with its sign; NaN if any element is none.
float greatest(const float* x) noexcept {
  float most = 0;
  float magnitude = 0;
  for (std::int64_t i = 0; i < kQuantBlock; ++i) {
    if (std::isnan(x[i])) return std::numeric_limits<float>::quiet_NaN();
    if (std::abs(x[i]) > magnitude) {
      magnitude = std::abs(x[i]);
      most = x[i];
    }
  }
  return most;
}

}  // namespace

std::int64_t quantize_q8_0(const float* src, std::int64_t blocks, std::byte* dst) noexcept {
  for (std::int64_t b = 0; b < blocks; ++b, src += kQuantBlock, dst += kQ8Bytes) {
    const float scale = std::abs(greatest(src)) / 127.0F;
    if (!put_scale(scale, dst)) return b;
    const float one_by = inverse(scale);
    for (std::int64_t i = 0; i < kQuantBlock; ++i) {
      dst[2 + i] = static_cast<std::byte>(static_cast<int>(std::round(src[i] * one_by)));  // halves away from zero
    }
  }
  return blocks;
}

std::int64_t quantize_q4_0(const float* src, std::int64_t blocks, std::byte* dst) noexcept {
  constexpr std::int64_t kHalf = kQuantBlock / 2;
  for (std::int64_t b = 0; b < blocks; ++b, src += kQuantBlock, dst += kQ4Bytes) {
    const float scale = greatest(src) / -8.0F;
    if (!put_scale(scale, dst)) return b;
    const float one_by = inverse(scale);
    const auto code = [&](std::int64_t i) {
      return std::min(15U, static_cast<unsigned>(static_cast<int>(src[i] * one_by + 8.5F)));
    };
    for (std::int64_t i = 0; i < kHalf; ++i) dst[2 + i] = static_cast<std::byte>(code(i) | code(i + kHalf) << 4U);
  }
  return blocks;
}

}  // namespace swiglu::files
