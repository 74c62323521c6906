// The checksum of packed files: XXH3 with 64 bits, faster than any disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace swiglu::files {

/// XXH3_64bits with seed 0. Finds accidents; whoever changes bytes on purpose computes it anew.
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes) noexcept;

}  // namespace swiglu::files
