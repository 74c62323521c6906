// A matrix in slices, several at once: how `compare` and `inspect --stats` read weights. Knows TensorSource and
// elements.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

/// Some whole rows of a matrix.
struct Slice {
  std::int64_t index;
  std::int64_t row, rows;
};

/// Elements of a slice, about: half a MiB once they are doubles, which stays in the cache.
inline constexpr std::int64_t kSliceElements = std::int64_t{1} << 16;

/// How many slices a matrix of this shape is read in.
[[nodiscard]] std::int64_t slices_of(std::int64_t rows, std::int64_t cols, std::int64_t elements = kSliceElements);

/// Calls `task` for every slice, from the pool's threads; throws what the first failing task threw.
void for_slices(std::int64_t rows, std::int64_t cols, ThreadPool& pool, const std::function<void(const Slice&)>& task,
                std::int64_t elements = kSliceElements);

/// The slice's elements, row after row, as stored.
[[nodiscard]] std::vector<std::byte> read_bytes(const TensorSource& source, const Slice& slice);
/// The same, widened.
[[nodiscard]] std::vector<double> read_doubles(const TensorSource& source, const Slice& slice);

}  // namespace swiglu::cli
