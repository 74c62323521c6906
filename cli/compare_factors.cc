// Factors by least squares, then checked element by element; see compare_factors.h.
#include "compare_factors.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>
#include <vector>

#include "slices.h"

namespace swiglu::cli {

namespace {

constexpr std::int64_t kLeastElements = 8;  // that one factor must explain
constexpr std::int64_t kSampledRows = 64;   // for the factors of columns, and of the matrix

/// A factor that minimises ‖b - factor * a‖.
struct Fit {
  double ab = 0, aa = 0;
  void add(double a, double b) {
    ab += a * b;
    aa += a * a;
  }
  [[nodiscard]] double factor() const { return aa > 0 ? ab / aa : 1; }
};

/// What elements may be off after both were rounded to the type that holds them, with room for the fit's own error.
struct Tolerance {
  double relative, absolute;
  [[nodiscard]] bool allows(double a, double b, double factor) const {
    const double right = factor * a;
    return std::fabs(b - right) <= relative * std::fabs(right) + absolute;
  }
  [[nodiscard]] bool is_1(double factor) const { return std::fabs(factor - 1) <= relative; }
};

Tolerance tolerance_of(DType a, DType b) {
  const auto either = [&](DType type) { return a == type || b == type; };
  if (either(DType::bf16)) return {0x1p-6, 0x1p-130};
  if (either(DType::f16)) return {0x1p-9, 0x1p-22};
  if (either(DType::f32)) return {0x1p-21, 0x1p-140};
  return {0x1p-40, 0};
}

struct Estimate {
  double matrix;
  std::vector<double> cols;
};

Estimate estimate(const TensorSource& a, const TensorSource& b) {
  Fit all;
  std::vector<Fit> cols(static_cast<std::size_t>(a.cols()));
  const std::int64_t rows = std::min(a.rows(), kSampledRows);
  for (std::int64_t i = 0; i < rows; ++i) {
    const Slice slice{0, i * a.rows() / rows, 1};
    const auto left = read_doubles(a, slice), right = read_doubles(b, slice);
    for (std::size_t c = 0; c < cols.size(); ++c) {
      all.add(left[c], right[c]);
      cols[c].add(left[c], right[c]);
    }
  }
  Estimate out{all.factor(), {}};
  for (const Fit& fit : cols) out.cols.push_back(fit.factor());
  return out;
}

struct Rows {
  std::vector<double> factors, largest;
};

}  // namespace

Factors::Scale scale_of(std::span<const double> factors, std::span<const double> largest) {
  // The quotient (or the product) of the two is then one number; factors that hardly vary would show nothing.
  constexpr double kSame = 1.02, kVaries = 1.1;
  const auto spread = [&](auto value) {
    double least = HUGE_VAL, most = 0;
    for (std::size_t i = 0; i < factors.size(); ++i) {
      if (largest[i] == 0) continue;
      least = std::min(least, value(factors[i], largest[i]));
      most = std::max(most, value(factors[i], largest[i]));
    }
    return least > 0 ? most / least : HUGE_VAL;
  };
  if (!(spread([](double f, double) { return f; }) > kVaries)) return Factors::Scale::unknown;
  if (spread([](double f, double l) { return f / l; }) < kSame) return Factors::Scale::applied_again;
  if (spread([](double f, double l) { return f * l; }) < kSame) return Factors::Scale::left_out;
  return Factors::Scale::unknown;
}

std::optional<Factors> find_factors(const TensorSource& a, const TensorSource& b, const Relations& relations,
                                    ThreadPool& pool) {
  const Tolerance tolerance = tolerance_of(relations.a_fits, relations.b_fits);
  const Estimate guess = estimate(a, b);
  Rows rows{std::vector<double>(static_cast<std::size_t>(a.rows())),
            std::vector<double>(static_cast<std::size_t>(a.rows()))};
  std::atomic<bool> one{a.rows() * a.cols() >= kLeastElements}, by_row{a.cols() >= kLeastElements},
      by_col{a.rows() >= kLeastElements};
  for_slices(a.rows(), a.cols(), pool, [&](const Slice& slice) {
    if (!one && !by_row && !by_col) return;
    const auto left = read_doubles(a, slice), right = read_doubles(b, slice);
    const auto cols = static_cast<std::size_t>(a.cols());
    for (std::int64_t r = 0; r < slice.rows; ++r) {
      const auto begin = static_cast<std::size_t>(r) * cols;
      Fit fit;
      double largest = 0;
      for (std::size_t c = 0; c < cols; ++c) {
        fit.add(left[begin + c], right[begin + c]);
        largest = std::max(largest, std::fabs(left[begin + c]));
      }
      const auto number = static_cast<std::size_t>(slice.row + r);
      rows.factors[number] = fit.factor();
      rows.largest[number] = largest;
      for (std::size_t c = 0; c < cols; ++c) {
        const double x = left[begin + c], y = right[begin + c];
        if (one && !tolerance.allows(x, y, guess.matrix)) one = false;
        if (by_row && !tolerance.allows(x, y, fit.factor())) by_row = false;
        if (by_col && !tolerance.allows(x, y, guess.cols[c])) by_col = false;
      }
      if (!one && !by_row && !by_col) return;
    }
  });
  const auto several = [&](Factors::Of of, const std::vector<double>& factors) -> std::optional<Factors> {
    if (std::all_of(factors.begin(), factors.end(), [&](double f) { return tolerance.is_1(f); })) return std::nullopt;
    const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
    return Factors{of, *least, *most, tolerance.relative};
  };
  if (one && !tolerance.is_1(guess.matrix))
    return Factors{Factors::Of::matrix, guess.matrix, guess.matrix, tolerance.relative};
  std::optional<Factors> found;
  if (by_row) found = several(Factors::Of::row, rows.factors);
  if (found) found->scale = scale_of(rows.factors, rows.largest);
  if (found || !by_col) return found;
  found = several(Factors::Of::column, guess.cols);
  if (found) found->columns = guess.cols;
  return found;
}

}  // namespace swiglu::cli
