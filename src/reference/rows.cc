// Streaming of weight rows and the checks before it; see rows.h.
#include "reference/rows.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/text.h"

namespace swiglu::reference {
namespace {

constexpr std::int64_t kReadBytes = std::int64_t{1} << 20;

// One task after another on this thread, for callers that gave no runner.
constexpr Runner kInline{[](void*, std::int64_t n, void (*task)(void*, std::int64_t), void* arg) {
                           for (std::int64_t i = 0; i < n; ++i) task(arg, i);
                         },
                         nullptr};

void check_matrix(std::string_view role, const TensorSource* matrix, std::int64_t rows, std::int64_t cols) {
  if (matrix == nullptr) throw Error(ErrorCode::usage, fmt::format("the layer has no {} matrix", role));
  if (matrix->rows() != rows || matrix->cols() != cols) {
    throw Error(ErrorCode::shape, fmt::format("{} ({}): expected [{}, {}], found [{}, {}]", role,
                                              escaped(matrix->name()), rows, cols, matrix->rows(), matrix->cols()));
  }
}

}  // namespace

void for_each_row(const TensorSource& matrix, std::span<const std::int64_t> rows, const Runner* runner,
                  const VisitRow& visit) {
  const std::int64_t cols = matrix.cols();
  const std::int64_t count = rows.empty() ? matrix.rows() : std::ssize(rows);
  const std::int64_t row_bytes = cols * size_of(matrix.dtype());
  const std::int64_t block = std::max<std::int64_t>(1, kReadBytes / row_bytes);
  const auto row_at = [&](std::int64_t i) { return rows.empty() ? i : rows[static_cast<std::size_t>(i)]; };

  parallel_for(runner != nullptr ? *runner : kInline, (count + block - 1) / block, [&](std::int64_t task) {
    const std::int64_t end = std::min(count, (task + 1) * block);
    std::vector<std::byte> stored(static_cast<std::size_t>((end - task * block) * row_bytes));
    std::vector<double> row(static_cast<std::size_t>(cols));
    for (std::int64_t first = task * block; first < end;) {
      std::int64_t last = first + 1;  // [first, last): rows that are neighbours in the matrix too
      while (last < end && row_at(last) == row_at(last - 1) + 1) ++last;
      matrix.read(row_at(first), last - first, 0, cols, stored.data());
      for (std::int64_t i = first; i < last; ++i) {
        for (std::int64_t k = 0; k < cols; ++k) {
          row[static_cast<std::size_t>(k)] = load_double(stored.data(), matrix.dtype(), (i - first) * cols + k);
        }
        visit(i, row);
      }
      first = last;
    }
  });
}

void check_request(const LayerSource& layer, std::span<const double> h, std::int64_t tokens, const Request& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 48;
  const std::int64_t dim = layer.config.dim;
  const std::int64_t hidden = layer.config.hidden;
  if (dim <= 0 || hidden <= 0 || dim > kLargest || hidden > kLargest) {
    throw Error(ErrorCode::shape, fmt::format("dim {} and hidden {} must be from 1 to 2^48", dim, hidden));
  }
  check_matrix("gate", layer.gate.get(), hidden, dim);
  check_matrix("up", layer.up.get(), hidden, dim);
  check_matrix("down", layer.down.get(), dim, hidden);
  if (request.block && std::ssize(layer.norm) != dim) {
    throw Error(ErrorCode::shape, fmt::format("norm: expected {} values, found {}", dim, layer.norm.size()));
  }
  if (tokens < 0 || std::ssize(h) / dim != tokens || std::ssize(h) % dim != 0) {
    throw Error(ErrorCode::shape,
                fmt::format("input: expected {} tokens of {} values, found {} values", tokens, dim, h.size()));
  }
  if (tokens > std::numeric_limits<std::int64_t>::max() / 8 / hidden) {
    throw Error(ErrorCode::no_memory, fmt::format("{} tokens of {} hidden values do not fit memory", tokens, hidden));
  }
  if (const LayerTrace* from = request.from; from != nullptr) {
    const auto narrow = static_cast<std::size_t>(tokens * dim);
    const auto wide = static_cast<std::size_t>(tokens * hidden);
    if (from->norm.size() != narrow || from->gate.size() != wide || from->up.size() != wide || from->z.size() != wide ||
        from->down.size() != narrow) {
      throw Error(ErrorCode::shape, "the intermediates to start from belong to another input or layer");
    }
  }
  std::int64_t previous = -1;
  for (const std::int64_t output : request.outputs) {
    if (output <= previous || output >= dim) {
      throw Error(ErrorCode::usage, fmt::format("outputs: expected ascending numbers below {}, found {} after {}", dim,
                                                output, previous));
    }
    previous = output;
  }
}

}  // namespace swiglu::reference
