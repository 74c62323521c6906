// The oracle: the sublayer in double precision as plain loops, to be checked against the formula by
// reading. Slow on purpose; every fast path is compared with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "swiglu/swiglu.hpp"

#pragma GCC visibility push(default)
namespace swiglu::reference {

/// exact: everything in double, from the weights and the input as stored.
/// meta: the eight bf16 roundings of Meta's bf16 code (input and weights rounded to bf16 first, sums in
/// double, silu as x / (1 + exp(-x)), which is NaN at -inf).
enum class Numerics : std::uint8_t { exact, meta };

/// Every intermediate, [tokens, …] dense.
struct Trace {
  std::vector<double> norm;          ///< [tokens, dim]
  std::vector<double> gate, up, z;   ///< [tokens, hidden]
  std::vector<double> down;          ///< [tokens, outputs]: the sublayer without the residual
  std::vector<double> out;           ///< [tokens, outputs]: with it (equal to down for part ffn)
};

struct Request {
  Numerics numerics = Numerics::exact;
  bool block = true;                       ///< false: the input is already normalised, no residual
  /// Which outputs of down to compute, ascending; empty: all.
  std::span<const std::int64_t> outputs = {};  // NOLINT(readability-redundant-member-init): gcc warns without it
  const Runner* runner = nullptr;          ///< rows of the weights are spread over it; null: one thread
  /// Not null: each stage starts from these intermediates of a fast path instead of the oracle's own, and
  /// bound() bounds that stage alone. (Bounds chained through all stages are larger than the values
  /// themselves for wide layers in bf16 compute; those of one stage notice one ordinary missing term.)
  const LayerTrace* from = nullptr;
};

/// `h` is [tokens, dim] dense. Reads the weights row by row through the layer's sources: about
/// 6 * tokens * dim * hidden double operations, and about 1 MiB of weights in memory per thread.
[[nodiscard]] Trace run(const LayerSource& layer, std::span<const double> h, std::int64_t tokens,
                        const Request& request = {});

/// Element-wise bounds on |fast - exact| of each intermediate, valid for any data without NaN, Inf or
/// overflow (denormals are allowed for); `request` as it was for run(). They are derived in
/// reference/bound.cc from the order of addition that docs/design.md fixes, assuming nothing about how
/// rounding errors are distributed. `out` is the float output, before any conversion to a narrower type;
/// infinity where there is no bound.
struct Bound {
  std::vector<double> norm, gate, up, z, down, out;
};
[[nodiscard]] Bound bound(const LayerSource& layer, const Trace& exact, std::span<const double> h, std::int64_t tokens,
                          Compute compute, const Request& request = {});

}  // namespace swiglu::reference
#pragma GCC visibility pop
