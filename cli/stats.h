// What `inspect --stats` counts in the elements of a matrix. Knows TensorSource and elements.h only.
#pragma once

#include <cstdint>
#include <functional>

#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

struct Stats {
  double min = 0, max = 0, rms = 0;  ///< of the finite elements; 0 when there are none
  std::int64_t elements = 0, nan = 0, inf = 0;
  [[nodiscard]] std::int64_t non_finite() const { return nan + inf; }
};

/// Reads all of `source` in slices of a few MiB, several at a time. `read_bytes` is told, from any
/// thread, how many bytes were read since it was called last. Throws what source.read() throws.
[[nodiscard]] Stats stats_of(const TensorSource& source, ThreadPool& pool,
                             const std::function<void(std::int64_t)>& read_bytes);
[[nodiscard]] Stats stats_of(std::span<const float> values);

}  // namespace swiglu::cli
