// What the oracle's tests need around it: weights in memory that watch how they are read, a runner of
// plain threads, and little conversions. Knows the front door and base/dtype.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::testing {

/// A matrix of any type, given as doubles and stored with one rounding.
class MemorySource : public TensorSource {
 public:
  MemorySource(std::string name, DType dtype, std::int64_t rows, std::int64_t cols, const std::vector<double>& values)
      : TensorSource(std::move(name), dtype, rows, cols),
        bytes_(values.size() * static_cast<std::size_t>(size_of(dtype))) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      store_double(bytes_.data(), dtype, static_cast<std::int64_t>(i), values[i]);
    }
  }
  void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    if (row0 <= failing_row && failing_row < row0 + rows) throw Error(ErrorCode::io, name() + " is cut");
    const auto line = static_cast<std::size_t>(cols * size_of(dtype()));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::byte* from = bytes_.data() + ((row0 + r) * this->cols() + col0) * size_of(dtype());
      std::copy_n(from, line, static_cast<std::byte*>(dst) + static_cast<std::size_t>(r) * line);
    }
    rows_read += rows;
    std::int64_t seen = largest_read;
    while (seen < rows * cols * size_of(dtype()) &&
           !largest_read.compare_exchange_weak(seen, rows * cols * size_of(dtype()))) {
    }
  }
  /// Element i as it is stored.
  [[nodiscard]] double at(std::int64_t i) const { return load_double(bytes_.data(), dtype(), i); }

  std::int64_t failing_row = -1;
  mutable std::atomic<std::int64_t> rows_read = 0;
  mutable std::atomic<std::int64_t> largest_read = 0;  ///< bytes

 private:
  std::vector<std::byte> bytes_;
};

inline std::shared_ptr<const MemorySource> memory_source(std::string name, DType dtype, std::int64_t rows,
                                                         std::int64_t cols, const std::vector<double>& values) {
  return std::make_shared<MemorySource>(std::move(name), dtype, rows, cols, values);
}

/// A layer from its three matrices; the shape is theirs.
inline LayerSource layer_of(std::shared_ptr<const TensorSource> gate, std::shared_ptr<const TensorSource> up,
                            std::shared_ptr<const TensorSource> down, std::vector<float> norm, double eps) {
  LayerSource layer;
  layer.config = {gate->cols(), gate->rows(), eps};
  layer.gate = std::move(gate);
  layer.up = std::move(up);
  layer.down = std::move(down);
  layer.norm = std::move(norm);
  return layer;
}

/// Three threads that take the tasks from the last to the first.
inline Runner backward_threads() {
  return {[](void*, std::int64_t n, void (*task)(void*, std::int64_t), void* arg) {
            std::atomic<std::int64_t> left = n;
            std::vector<std::thread> threads;
            for (int t = 0; t < 3; ++t) {
              threads.emplace_back([&] {
                for (std::int64_t i = --left; i >= 0; i = --left) task(arg, i);
              });
            }
            for (std::thread& thread : threads) thread.join();
          },
          nullptr};
}

}  // namespace swiglu::testing
