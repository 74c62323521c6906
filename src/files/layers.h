// From tensors to layers: which tensors make up each layer's feed-forward, and whether their shapes agree with each
// other and with what a configuration states. Shapes of tensors decide; a statement that contradicts them is a fault
// that names both numbers. Used by every format whose files hold whole tensors (Hugging Face, GGUF).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "files/checkpoint.h"
#include "files/names.h"
#include "files/tensor_table.h"

namespace swiglu::files {

/// Tensors of all weight files, and why some that an index promises cannot be had.
struct Weights {
  TensorTable table;
  std::map<std::pair<std::int64_t, Role>, std::string> absent;  ///< by layer, of dense matrices
  std::string where;                                            ///< the file that lists the tensors, escaped
};

/// A number in a configuration, under the name it has there.
struct StatedNumber {
  std::string key;
  std::int64_t value = 0;  ///< 0: not stated
};

struct Statement {
  std::string where;  ///< the file, escaped
  StatedNumber dim, hidden, layers, experts;
  bool up_holds_both = false;  ///< the tensor called up holds the gate's rows first (Phi-3 in GGUF)
};

/// Fills layers, tensors, dim, hidden and experts of `contents`; eps is the caller's. `layers` are those that
/// find_layers found in the weights' table. `stated` is null for a bare file. Faults are thrown or collected as
/// `options` says.
void build_layers(Contents& contents, const Weights& weights, std::map<std::int64_t, LayerNames> layers,
                  const Statement* stated, const OpenOptions& options);

/// How many tensors speak for each value of a dimension.
using Votes = std::map<std::int64_t, int>;
/// What most say; `preferred` if it has as many votes as any.
[[nodiscard]] std::int64_t winner(const Votes& votes, std::int64_t preferred);

/// `count` rows of a matrix from `first` on, as a tensor of its own. Neighbours in memory stay where they are.
[[nodiscard]] StoredTensor rows_of(const StoredTensor& matrix, std::int64_t first, std::int64_t count);

/// The matrix number `index` of a tensor of three dimensions.
[[nodiscard]] StoredTensor matrix_of(const StoredTensor& stack, std::int64_t index);

/// A validated tensor as a matrix source; a vector becomes one row. Throws shape or unsupported naming
/// file and tensor unless it is [rows, cols] (or [cols] when rows is 1) of a type we compute with or decode.
/// 8-bit floats need `scale`, [rows] or [rows, 1] factors; nothing else may have one.
[[nodiscard]] std::shared_ptr<const TensorSource> matrix_source(const std::string& name, const StoredTensor& tensor,
                                                                std::int64_t rows, std::int64_t cols,
                                                                const StoredTensor* scale = nullptr);

}  // namespace swiglu::files
