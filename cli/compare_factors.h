// One matrix as another one times a factor: the same everywhere, or one for each row, or one for each column. Every
// element is checked against its factor. Knows TensorSource, slices and what compare_values.h found out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compare_values.h"

namespace swiglu::cli {

struct Factors {
  enum class Of : std::uint8_t { matrix, row, column };
  /// Whether a row's factor goes with its largest element, as the scales of weights quantised by row do.
  enum class Scale : std::uint8_t { unknown, applied_again, left_out };
  Of of;
  double least, most;  ///< b = factor * a
  double tolerance;    ///< relative, of elements beside their factor
  Scale scale = Scale::unknown;
  std::vector<double> columns{};  ///< one for each, of columns only
};

/// Nothing where no such factors fit all elements, or all that fit are 1 within the rounding of the elements, or a row
/// or column is so short that factors would fit anything. Reads both matrices until nothing can fit any more.
[[nodiscard]] std::optional<Factors> find_factors(const TensorSource& a, const TensorSource& b,
                                                  const Relations& relations, ThreadPool& pool);

/// `factors` beside the largest absolute values of the rows of a: the pure part of the above.
[[nodiscard]] Factors::Scale scale_of(std::span<const double> factors, std::span<const double> largest);

}  // namespace swiglu::cli
