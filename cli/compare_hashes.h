// Every row and every column of a matrix as one number: what tells orders, copies and other layers' weights without
// holding a matrix. A row's number depends on its values and their columns, not on which row it is; likewise a
// column's. Knows TensorSource and slices.
#pragma once

#include <cstdint>
#include <vector>

#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

struct Hashes {
  std::vector<std::uint64_t> rows, cols;
  bool operator==(const Hashes&) const = default;
};

/// Of the values rounded to `type`, so that matrices of several types can be recognised in each other. One read.
[[nodiscard]] Hashes hash_matrix(const TensorSource& source, DType type, ThreadPool& pool);

/// The rows of hash_matrix, but of a few rows spread over the matrix only: cheap, to look through all layers.
[[nodiscard]] std::vector<std::uint64_t> hash_some_rows(const TensorSource& source, DType type);

}  // namespace swiglu::cli
