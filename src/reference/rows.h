// Weights one row at a time: what both the oracle and its bounds do with a matrix.
// Knows TensorSource and Runner of the front door; nothing about the formula.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "swiglu/reference.hpp"

namespace swiglu::reference {

/// Gets row `rows[i]` of a matrix, as doubles; the span is valid during the call only.
using VisitRow = std::function<void(std::int64_t i, std::span<const double> row)>;

/// Visits the rows of `matrix` named by `rows` (ascending), or all when it is empty, each once, spread
/// over the runner (null: in order on this thread). Reads at most about 1 MiB per thread at a time, but
/// always whole rows. What a read or a visit throws is thrown here, once all tasks have ended.
void for_each_row(const TensorSource& matrix, std::span<const std::int64_t> rows, const Runner* runner,
                  const VisitRow& visit);

/// Throws usage or shape unless layer, input and request fit together.
void check_request(const LayerSource& layer, std::span<const double> h, std::int64_t tokens, const Request& request);

/// Which output of down element `i` of a row of results is.
[[nodiscard]] inline std::size_t output_at(const Request& request, std::size_t i) noexcept {
  return request.outputs.empty() ? i : static_cast<std::size_t>(request.outputs[i]);
}

/// How many outputs of down the request asks for.
[[nodiscard]] inline std::int64_t count_outputs(const LayerSource& layer, const Request& request) noexcept {
  return request.outputs.empty() ? layer.config.dim : std::ssize(request.outputs);
}

/// The values a stage starts from: `given` as doubles when there is one, else the oracle's `own`.
[[nodiscard]] inline std::vector<double> stage_input(const std::vector<float>* given, const std::vector<double>& own) {
  return given == nullptr ? own : std::vector<double>(given->begin(), given->end());
}

/// Row `token` of a dense [tokens, cols] array.
template <typename T>
[[nodiscard]] std::span<T> row_of(std::span<T> array, std::int64_t token, std::int64_t cols) {
  return array.subspan(static_cast<std::size_t>(token * cols), static_cast<std::size_t>(cols));
}

}  // namespace swiglu::reference
