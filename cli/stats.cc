// Statistics of a matrix in bounded memory. Slices are summed in their own order, so the result does
// not depend on the number of threads.
#include "stats.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "slices.h"

namespace swiglu::cli {

namespace {

struct Sums {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double squares = 0;
  std::int64_t nan = 0, inf = 0;

  void add(double x) {
    if (std::isfinite(x)) {
      min = std::min(min, x);
      max = std::max(max, x);
      squares += x * x;
    } else {
      ++(std::isnan(x) ? nan : inf);
    }
  }
};

Stats merge(std::span<const Sums> slices, std::int64_t elements) {
  Sums sum;
  for (const Sums& slice : slices) {
    sum.min = std::min(sum.min, slice.min);
    sum.max = std::max(sum.max, slice.max);
    sum.squares += slice.squares;
    sum.nan += slice.nan;
    sum.inf += slice.inf;
  }
  Stats stats{.elements = elements, .nan = sum.nan, .inf = sum.inf};
  const std::int64_t finite = elements - stats.non_finite();
  if (finite > 0) {
    stats.min = sum.min;
    stats.max = sum.max;
    stats.rms = std::sqrt(sum.squares / static_cast<double>(finite));
  }
  return stats;
}

}  // namespace

Stats stats_of(const TensorSource& source, ThreadPool& pool, const std::function<void(std::int64_t)>& read) {
  constexpr std::int64_t kElements = std::int64_t{1} << 20;
  std::vector<Sums> sums(static_cast<std::size_t>(slices_of(source.rows(), source.cols(), kElements)));
  const auto look_at = [&](const Slice& slice) {
    Sums sum;
    for (const double x : read_doubles(source, slice)) sum.add(x);
    sums[static_cast<std::size_t>(slice.index)] = sum;
    read(slice.rows * source.cols() * size_of(source.dtype()));
  };
  for_slices(source.rows(), source.cols(), pool, look_at, kElements);
  return merge(sums, source.rows() * source.cols());
}

Stats stats_of(std::span<const float> values) {
  Sums slice;
  for (const float x : values) slice.add(static_cast<double>(x));
  return merge({&slice, 1}, static_cast<std::int64_t>(values.size()));
}

}  // namespace swiglu::cli
