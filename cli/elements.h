// Elements of the four types as doubles and back: for the oracle, which computes in double, and for
// statistics. Not a hot path. Knows nothing of files or layers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

/// Exact. `bytes` need not be aligned.
[[nodiscard]] std::vector<double> to_doubles(DType dtype, std::span<const std::byte> bytes);

/// One rounding to nearest even, denormals kept; beyond the largest value infinity; NaN is the
/// positive canonical one.
[[nodiscard]] std::vector<std::byte> from_doubles(DType dtype, std::span<const double> values);

}  // namespace swiglu::cli
