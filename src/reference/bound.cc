// Element-wise worst-case bounds on |fast - exact|, stage by stage, from the order of addition that
// docs/design.md fixes ("Numbers"). Errors of one stage enter the next in full and with the worst sign;
// nothing is assumed about how they are distributed. Knows the formula and the rows of the weights, and
// of the fast path only that document.
//
// Notation. A hat is what the fast path holds, E[.] a bound on its distance from the exact value.
// u = 2^-24 is the largest relative error of one fp32 rounding (24 significant bits, ties to even),
// v = 2^-8 of one rounding to bf16 (8 significant bits). gamma(n) = n u / (1 - n u) bounds what n
// roundings, in numerator or denominator, do to a term. a ("tiny") bounds what one operation loses near
// zero besides: half the smallest denormal (2^-150) in f32 compute, the smallest normal number (2^-126)
// in bf16 compute, where denormals of operands and results are zero; both are doubled for what follows
// in the same stage. One more u per stage pays for the oracle's own double rounding (dim < 2^29).
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "reference/formula.h"
#include "reference/rows.h"

namespace swiglu::reference {
namespace {

constexpr double kU = 0x1p-24;
constexpr double kV = 0x1p-8;
constexpr double kSiluSlope = 1.1;       // max |silu'| = 1.0998…
constexpr double kSiluError = 8.0 * kU;  // 3.5 ulp, an ulp being at most 2 u of the value; 1 u spare

double gamma(std::int64_t n) {
  const double nu = static_cast<double>(n) * kU;
  return nu < 1.0 ? nu / (1.0 - nu) : std::numeric_limits<double>::infinity();
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Arithmetic {
  bool bf16;
  double tiny;
  std::int64_t chunk;
  // E of a value of magnitude `value` and error `error` after it is rounded to the activation type.
  [[nodiscard]] double stored(double value, double error) const {
    return bf16 ? error + kV * (value + error) + tiny : error;
  }
};

Arithmetic arithmetic_of(const LayerSource& layer, Compute compute) {
  const auto is_bf16 = [](const TensorSource& matrix) { return matrix.dtype() == DType::bf16; };
  const bool bf16 = compute == Compute::bf16 || (compute == Compute::automatic && is_bf16(*layer.gate) &&
                                                 is_bf16(*layer.up) && is_bf16(*layer.down));
  return bf16 ? Arithmetic{true, 0x1p-125, 1024} : Arithmetic{false, 0x1p-149, 512};
}

// The input is read as fp32 (exactly, unless it was f64), and flushed in bf16 compute.
std::vector<double> input_errors(std::span<const double> h, const Arithmetic& arithmetic) {
  std::vector<double> errors;
  errors.reserve(h.size());
  for (const double x : h) {
    const bool flushed = arithmetic.bf16 && std::abs(x) < 0x1p-126;
    errors.push_back(flushed ? std::abs(x) : std::abs(static_cast<double>(static_cast<float>(x)) - x));
  }
  return errors;
}

// One token's n̂ = (ĥ r̂) g, before it is rounded to the activation type.
//   s = Σ h²: in one of 16 lanes a term meets ceil(dim/16) fma and then 4 folds. m = s/dim + eps: dim and
//   eps are converted (1 each), one division, one addition. All terms are positive, so
//     |m̂ - m| <= gamma(ceil(dim/16) + 8) m + (1 + gamma) Σ (2|h| E[h] + E[h]²) / dim + 32 a,
//   32 a for at most (dim + 15) / dim + 3 operations near zero. With that as rho * m,
//   r̂ = 1 / sqrt(m̂) is within (1 - rho)^(-1/2) and 2 roundings of r; the products add 2 (and 1 spare).
//   A product near zero loses a, the first one then times g; a flushed g loses a |h| r.
void norm_errors(std::span<const double> h, std::span<const double> h_errors, std::span<const float> weight, double eps,
                 const Arithmetic& arithmetic, std::span<double> errors) {
  const auto dim = static_cast<std::int64_t>(h.size());
  const double r = inverse_rms(h, eps);
  const double mean = 1.0 / (r * r);
  const double g = gamma(ceil_div(dim, 16) + 8);
  double moved = 0.0;
  for (std::size_t k = 0; k < h.size(); ++k) moved += (2.0 * std::abs(h[k]) + h_errors[k]) * h_errors[k];
  const double rho = g + ((1.0 + g) * moved / static_cast<double>(dim) + 32.0 * arithmetic.tiny) / mean;
  // When nothing is left of m̂ (eps = 0 and h² below the fp32 range) there is no bound.
  const double factor = rho < 1.0 ? (1.0 + gamma(5)) / std::sqrt(1.0 - rho) : std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < h.size(); ++k) {
    const double size = std::abs(static_cast<double>(weight[k]));
    const double scaled = std::abs(h[k]) * r;
    errors[k] = (factor - 1.0) * scaled * size + factor * h_errors[k] * r * size +
                factor * arithmetic.tiny * (size + 1.0 + scaled);
  }
}

// The products of a matrix with [tokens, cols] activations of these magnitudes and errors.
//   A weight is exact, or narrowed once: f64 in f32 compute (u), any type but bf16 in bf16 compute (v, and
//   2 u for one that passes through fp32): |ŵ - w| <= omega |w| + a, the a for denormals.
//   With P = |x| + E[x] >= |x̂|, A = Σ |w| P, B = Σ |w| E[x] and N = Σ P:
//     Σ |ŵ x̂ - w x| <= B + omega A + a N
//   and summing ŵ x̂ over a tree in which no term meets more than `depth` roundings adds
//     gamma(depth) Σ |ŵ||x̂| <= gamma(depth) ((1 + omega) A + a N)
//   and a for each operation, of which there are fewer than 2 cols + 64.
std::vector<double> product_errors(const TensorSource& matrix, std::span<const std::int64_t> rows,
                                   const std::vector<double>& values, const std::vector<double>& errors,
                                   std::int64_t tokens, std::int64_t depth, const Arithmetic& arithmetic,
                                   const Runner* runner) {
  const std::int64_t cols = matrix.cols();
  const std::int64_t outputs = rows.empty() ? matrix.rows() : std::ssize(rows);
  double omega = 0.0;
  if (arithmetic.bf16 && matrix.dtype() != DType::bf16) omega = kV + 2.0 * kU;
  if (!arithmetic.bf16 && matrix.dtype() == DType::f64) omega = kU;
  const double g = gamma(depth + 1);

  std::vector<double> largest(values.size());  // P
  for (std::size_t i = 0; i < values.size(); ++i) largest[i] = std::abs(values[i]) + errors[i];
  std::vector<double> losses(static_cast<std::size_t>(tokens));  // near zero, the same for every row
  for (std::int64_t t = 0; t < tokens; ++t) {
    double n = 0.0;
    for (const double p : row_of(std::span<const double>(largest), t, cols)) n += p;
    losses[static_cast<std::size_t>(t)] = arithmetic.tiny * (1.0 + g) * (n + 2.0 * static_cast<double>(cols) + 64.0);
  }

  std::vector<double> out(static_cast<std::size_t>(tokens * outputs));
  for_each_row(matrix, rows, runner, [&](std::int64_t i, std::span<const double> row) {
    std::vector<double> sizes(row.begin(), row.end());
    for (double& weight : sizes) weight = std::abs(weight);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double a = dot(sizes, row_of(std::span<const double>(largest), t, cols));
      const double b = dot(sizes, row_of(std::span<const double>(errors), t, cols));
      out[static_cast<std::size_t>(t * outputs + i)] =
          b + (omega + g * (1.0 + omega)) * a + losses[static_cast<std::size_t>(t)];
    }
  });
  return out;
}

// The most roundings a term meets in a sum of k products: those of its chunk, one per chunk added to the
// running sum (the first addition, to +0, is exact, but counted).
std::int64_t chunked_depth(std::int64_t k, std::int64_t chunk) { return std::min(k, chunk) + ceil_div(k, chunk); }

// The down projection sums 16 groups of at most 32 ceil(ceil(hidden/32) / 16) terms, then 4 levels.
std::int64_t down_depth(std::int64_t hidden, std::int64_t chunk) {
  const std::int64_t group = std::min(hidden, 32 * ceil_div(ceil_div(hidden, 32), 16));
  return chunked_depth(group, chunk) + 4;
}

// ẑ = silu(ĝate) ûp: E[silu] = slope E[gate], and the computed silu is within 3.5 ulp of silu(ĝate)
// (near zero: 4 a); one product, one rounding to the activation type.
double z_error(double gate, double gate_error, double up, double up_error, const Arithmetic& arithmetic) {
  const double s = std::abs(silu(gate));
  const double moved = kSiluSlope * gate_error;
  const double s_error = moved + kSiluError * (s + moved) + 4.0 * arithmetic.tiny;
  const double u = std::abs(up);
  const double error =
      s * up_error + (u + up_error) * s_error + 2.0 * kU * (s + s_error) * (u + up_error) + arithmetic.tiny;
  return arithmetic.stored(s * u, error);
}

Bound derive(const LayerSource& layer, const Trace& exact, std::span<const double> h, std::int64_t tokens,
             const Arithmetic& arithmetic, const Request& request) {
  const std::int64_t dim = layer.config.dim;
  const std::int64_t hidden = layer.config.hidden;
  const std::int64_t outputs = count_outputs(layer, request);
  Bound bound;

  const std::vector<double> h_errors = input_errors(h, arithmetic);
  bound.norm = h_errors;
  if (request.block) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      norm_errors(row_of(h, t, dim), row_of(std::span<const double>(h_errors), t, dim), layer.norm, layer.config.eps,
                  arithmetic, row_of(std::span(bound.norm), t, dim));
    }
  }
  for (std::size_t i = 0; i < bound.norm.size(); ++i) {
    bound.norm[i] = arithmetic.stored(std::abs(exact.norm[i]), bound.norm[i]);
  }

  // A stage that starts from given intermediates starts without error.
  const LayerTrace* from = request.from;
  const auto inherited = [&](const std::vector<double>& errors) {
    return from == nullptr ? errors : std::vector<double>(errors.size());
  };

  const std::vector<double> n = stage_input(from != nullptr ? &from->norm : nullptr, exact.norm);
  const std::vector<double> n_errors = inherited(bound.norm);
  const std::int64_t depth = chunked_depth(dim, arithmetic.chunk);
  bound.gate = product_errors(*layer.gate, {}, n, n_errors, tokens, depth, arithmetic, request.runner);
  bound.up = product_errors(*layer.up, {}, n, n_errors, tokens, depth, arithmetic, request.runner);

  const std::vector<double> gate = stage_input(from != nullptr ? &from->gate : nullptr, exact.gate);
  const std::vector<double> up = stage_input(from != nullptr ? &from->up : nullptr, exact.up);
  const std::vector<double> gate_errors = inherited(bound.gate);
  const std::vector<double> up_errors = inherited(bound.up);
  bound.z.resize(gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    bound.z[i] = z_error(gate[i], gate_errors[i], up[i], up_errors[i], arithmetic);
  }

  const std::vector<double> z = stage_input(from != nullptr ? &from->z : nullptr, exact.z);
  bound.down = product_errors(*layer.down, request.outputs, z, inherited(bound.z), tokens,
                              down_depth(hidden, arithmetic.chunk), arithmetic, request.runner);

  // out = down + h, one addition in fp32 (without block, down itself).
  bound.out = inherited(bound.down);
  if (request.block) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::span<const double> sums = row_of(std::span<const double>(exact.out), t, outputs);
      const std::span<double> errors = row_of(std::span(bound.out), t, outputs);
      for (std::size_t i = 0; i < errors.size(); ++i) {
        errors[i] += h_errors[static_cast<std::size_t>(t * dim) + output_at(request, i)];
        errors[i] += 2.0 * kU * (std::abs(sums[i]) + errors[i]) + arithmetic.tiny;
      }
    }
  }

  // An infinite error beside a zero makes NaN; both say that there is no bound.
  for (auto* errors : {&bound.norm, &bound.gate, &bound.up, &bound.z, &bound.down, &bound.out}) {
    for (double& error : *errors) {
      if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    }
  }
  return bound;
}

}  // namespace

Bound bound(const LayerSource& layer, const Trace& exact, std::span<const double> h, std::int64_t tokens,
            Compute compute, const Request& request) {
  check_request(layer, h, tokens, request);
  const auto wide = static_cast<std::size_t>(tokens * layer.config.hidden);
  const auto narrow = static_cast<std::size_t>(tokens * count_outputs(layer, request));
  if (exact.norm.size() != h.size() || exact.gate.size() != wide || exact.up.size() != wide || exact.z.size() != wide ||
      exact.down.size() != narrow || exact.out.size() != narrow) {
    throw Error(ErrorCode::usage, "the exact trace belongs to another input or request");
  }
  try {
    return derive(layer, exact, h, tokens, arithmetic_of(layer, compute), request);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::no_memory, "the bounds do not fit memory");
  }
}

}  // namespace swiglu::reference
