// The pieces of the formula that the oracle and its error bounds share, in double precision.
// Knows base/dtype only: no weights, no files, no threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "base/dtype.h"

namespace swiglu::reference {

/// The nearest bf16 value, ties to even, rounded once.
[[nodiscard]] inline double round_to_bf16(double x) noexcept {
  return static_cast<double>(float_from_bf16(bf16_from_double(x)));
}

/// x * sigmoid(x) without an overflow on either side: -0 at -inf, +inf at +inf.
[[nodiscard]] inline double silu(double x) noexcept {
  if (x < -800.0) return -0.0;  // the value is below the smallest double; -inf * 0 would be NaN
  const double e = std::exp(-std::abs(x));
  return (x < 0.0 ? x * e : x) / (1.0 + e);
}

/// 1 / sqrt(mean(h²) + eps).
[[nodiscard]] inline double inverse_rms(std::span<const double> h, double eps) noexcept {
  double sum = 0.0;
  for (const double x : h) sum += x * x;
  return 1.0 / std::sqrt(sum / static_cast<double>(h.size()) + eps);
}

/// Σ a[k] * b[k]. Eight partial sums, so that the additions need not wait for each other.
[[nodiscard]] inline double dot(std::span<const double> a, std::span<const double> b) noexcept {
  double partial[8] = {};
  const std::size_t whole = a.size() / 8 * 8;
  for (std::size_t k = 0; k < whole; k += 8) {
    for (std::size_t j = 0; j < 8; ++j) partial[j] += a[k + j] * b[k + j];
  }
  double sum = 0.0;
  for (const double p : partial) sum += p;
  for (std::size_t k = whole; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}

}  // namespace swiglu::reference
