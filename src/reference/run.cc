// The oracle: the sublayer as plain loops in double precision, in the order of the formula
//     n = h / sqrt(mean(h²) + eps) ⊙ g,  z = silu(W1 · n) ⊙ (W3 · n),  out = h + W2 · z.
// Knows the formula and the rows of the weights; shares no code with any fast path, so that a mistake
// there cannot be made here as well.
#include <cmath>
#include <new>
#include <vector>

#include "reference/formula.h"
#include "reference/rows.h"

namespace swiglu::reference {
namespace {

// What `numerics` does to a value wherever Meta's bf16 code stores one.
class Rounding {
 public:
  explicit Rounding(Numerics numerics) : bf16_(numerics == Numerics::meta) {}
  [[nodiscard]] double operator()(double x) const noexcept { return bf16_ ? round_to_bf16(x) : x; }
  [[nodiscard]] double silu_of(double x) const noexcept { return bf16_ ? x / (1.0 + std::exp(-x)) : silu(x); }
  [[nodiscard]] bool changes(DType stored) const noexcept { return bf16_ && stored != DType::bf16; }

 private:
  bool bf16_;
};

// [tokens, rows]: round(Σ_k round(matrix[row, k]) * in[token, k]) for the chosen rows (empty: all).
std::vector<double> multiply(const TensorSource& matrix, std::span<const std::int64_t> rows,
                             const std::vector<double>& in, std::int64_t tokens, const Rounding& round,
                             const Runner* runner) {
  const std::int64_t outputs = rows.empty() ? matrix.rows() : std::ssize(rows);
  std::vector<double> out(static_cast<std::size_t>(tokens * outputs));
  for_each_row(matrix, rows, runner, [&](std::int64_t i, std::span<const double> row) {
    std::vector<double> rounded;
    if (round.changes(matrix.dtype())) {
      rounded.assign(row.begin(), row.end());
      for (double& weight : rounded) weight = round(weight);
      row = rounded;
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double sum = dot(row, row_of(std::span(in), t, matrix.cols()));
      out[static_cast<std::size_t>(t * outputs + i)] = round(sum);
    }
  });
  return out;
}

Trace compute(const LayerSource& layer, std::span<const double> h, std::int64_t tokens, const Request& request) {
  const Rounding round(request.numerics);
  const auto dim = static_cast<std::size_t>(layer.config.dim);
  Trace trace;

  std::vector<double> x(h.begin(), h.end());
  for (double& value : x) value = round(value);

  trace.norm = x;
  if (request.block) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::span<double> row = row_of(std::span(trace.norm), t, layer.config.dim);
      const double r = inverse_rms(row, layer.config.eps);
      for (std::size_t k = 0; k < dim; ++k) {
        row[k] = round(round(row[k] * r) * round(static_cast<double>(layer.norm[k])));
      }
    }
  }

  const LayerTrace* from = request.from;
  const std::vector<double> n = stage_input(from != nullptr ? &from->norm : nullptr, trace.norm);
  trace.gate = multiply(*layer.gate, {}, n, tokens, round, request.runner);
  trace.up = multiply(*layer.up, {}, n, tokens, round, request.runner);

  trace.z = stage_input(from != nullptr ? &from->gate : nullptr, trace.gate);
  const std::vector<double> up = stage_input(from != nullptr ? &from->up : nullptr, trace.up);
  for (std::size_t i = 0; i < trace.z.size(); ++i) trace.z[i] = round(round(round.silu_of(trace.z[i])) * up[i]);

  const std::vector<double> z = stage_input(from != nullptr ? &from->z : nullptr, trace.z);
  trace.down = multiply(*layer.down, request.outputs, z, tokens, round, request.runner);

  const std::int64_t outputs = count_outputs(layer, request);
  trace.out = trace.down;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::span<const double> residual = row_of(std::span<const double>(x), t, layer.config.dim);
    const std::span<double> out = row_of(std::span(trace.out), t, outputs);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t k = output_at(request, i);
      if (from != nullptr) out[i] = static_cast<double>(from->down[static_cast<std::size_t>(t) * dim + k]);
      if (request.block) out[i] = round(residual[k] + out[i]);
    }
  }
  return trace;
}

}  // namespace

Trace run(const LayerSource& layer, std::span<const double> h, std::int64_t tokens, const Request& request) {
  check_request(layer, h, tokens, request);
  try {
    return compute(layer, h, tokens, request);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::no_memory, "the reference computation does not fit memory");
  }
}

}  // namespace swiglu::reference
