// Statistics of a matrix in bounded memory. Slices are summed in their own order, so the result does
// not depend on the number of threads.
#include "stats.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <span>
#include <vector>

#include "elements.h"

namespace swiglu::cli {

namespace {

struct Slice {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double squares = 0;
  std::int64_t nan = 0, inf = 0;
  std::exception_ptr fault;

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

Stats merge(std::span<const Slice> slices, std::int64_t elements) {
  Slice sum;
  for (const Slice& slice : slices) {
    if (slice.fault) std::rethrow_exception(slice.fault);
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

Stats stats_of(const TensorSource& source, ThreadPool& pool, const std::function<void(std::int64_t)>& read_bytes) {
  constexpr std::int64_t kSliceElements = 1 << 20;
  struct Work {
    const TensorSource& source;
    const std::function<void(std::int64_t)>& read_bytes;
    std::int64_t rows_each;
    std::vector<Slice> slices;
  };
  const std::int64_t rows_each = std::max<std::int64_t>(1, kSliceElements / std::max<std::int64_t>(1, source.cols()));
  Work work{source, read_bytes, rows_each, {}};
  work.slices.resize(static_cast<std::size_t>((source.rows() + rows_each - 1) / rows_each));
  const Runner runner = pool.runner();
  runner.run(
      runner.ctx, static_cast<std::int64_t>(work.slices.size()),
      [](void* arg, std::int64_t i) {
        auto& w = *static_cast<Work*>(arg);
        Slice slice;
        try {
          const std::int64_t row = i * w.rows_each;
          const std::int64_t rows = std::min(w.rows_each, w.source.rows() - row);
          const std::int64_t bytes = rows * w.source.cols() * size_of(w.source.dtype());
          std::vector<std::byte> raw(static_cast<std::size_t>(bytes));
          w.source.read(row, rows, 0, w.source.cols(), raw.data());
          for (const double x : to_doubles(w.source.dtype(), raw)) slice.add(x);
          w.read_bytes(bytes);
        } catch (...) {
          slice.fault = std::current_exception();
        }
        w.slices[static_cast<std::size_t>(i)] = slice;
      },
      &work);
  return merge(work.slices, source.rows() * source.cols());
}

Stats stats_of(std::span<const float> values) {
  Slice slice;
  for (const float x : values) slice.add(static_cast<double>(x));
  return merge({&slice, 1}, static_cast<std::int64_t>(values.size()));
}

}  // namespace swiglu::cli
