// Slices of a matrix; see slices.h.
#include "slices.h"

#include <algorithm>
#include <exception>
#include <mutex>

#include "elements.h"

namespace swiglu::cli {

namespace {

std::int64_t rows_each(std::int64_t cols, std::int64_t elements) {
  return std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, cols));
}

}  // namespace

std::int64_t slices_of(std::int64_t rows, std::int64_t cols, std::int64_t elements) {
  const std::int64_t each = rows_each(cols, elements);
  return rows / each + (rows % each != 0 ? 1 : 0);
}

void for_slices(std::int64_t rows, std::int64_t cols, ThreadPool& pool, const std::function<void(const Slice&)>& task,
                std::int64_t elements) {
  struct Work {
    const std::function<void(const Slice&)>& task;
    std::int64_t rows, each;
    std::mutex mutex;
    std::exception_ptr fault;
  };
  Work work{task, rows, rows_each(cols, elements), {}, {}};
  const Runner runner = pool.runner();
  runner.run(
      runner.ctx, slices_of(rows, cols, elements),
      [](void* arg, std::int64_t i) {
        auto& w = *static_cast<Work*>(arg);
        try {
          const std::int64_t row = i * w.each;
          w.task({i, row, std::min(w.each, w.rows - row)});
        } catch (...) {
          const std::lock_guard lock(w.mutex);
          if (!w.fault) w.fault = std::current_exception();
        }
      },
      &work);
  if (work.fault) std::rethrow_exception(work.fault);
}

std::vector<std::byte> read_bytes(const TensorSource& source, const Slice& slice) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(slice.rows * source.cols() * size_of(source.dtype())));
  source.read(slice.row, slice.rows, 0, source.cols(), bytes.data());
  return bytes;
}

std::vector<double> read_doubles(const TensorSource& source, const Slice& slice) {
  return to_doubles(source.dtype(), read_bytes(source, slice));
}

}  // namespace swiglu::cli
