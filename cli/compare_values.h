// Two matrices of one shape, element by element: what is equal, and the simple ways in which all elements of one
// may follow from the other's. Knows TensorSource and slices; what a finding means is for compare_causes.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

/// Ordered: each is a weaker statement than the one before.
enum class Match : std::uint8_t {
  bits,          ///< one type, the same bits
  values,        ///< every element has the same value
  rounded,       ///< every element of one is that of the other rounded to nearest even
  different,     ///< none of these
  not_compared,  ///< the shapes differ
};

/// An element that is not the same.
struct Difference {
  std::int64_t row, col;
  double a, b;
};

/// What is true of all pairs (a, b); of NaN pairs everything is.
struct Relations {
  std::optional<DType> b_is_a_in;  ///< b is a rounded to this type
  std::optional<DType> a_is_b_in;
  bool b_is_a_cut = false, a_is_b_cut = false;  ///< bf16 by dropping the lower half of a float
  bool b_is_a_plus_1 = false, a_is_b_plus_1 = false;  ///< up to a rounding to bf16
  bool b_is_a_or_0 = false, a_is_b_or_0 = false;
  DType a_fits, b_fits;  ///< the narrowest type that holds the values: that of the file, or f16 or bf16
};

struct Comparison {
  Match match = Match::not_compared;
  DType a = DType::f32, b = DType::f32;  ///< as the files hold them
  std::int64_t elements = 0, differing = 0;
  std::int64_t nan_bits = 0;     ///< pairs of NaNs of one type with other bits: equal values
  std::int64_t zero_signs = 0;   ///< +0 beside -0: equal values
  double relative_error = 0;     ///< ‖b - a‖ / ‖a‖ over the elements that are finite in both
  std::optional<Difference> first;
  Relations relations{};
  /// Of `rounded`: what to, and whether it is b that was rounded.
  [[nodiscard]] DType rounded_to() const { return relations.b_is_a_in ? *relations.b_is_a_in : *relations.a_is_b_in; }
};

/// Reads both, twice where they differ. The shapes must be equal. `read_elements` is told, from any thread, how many
/// pairs were looked at since it was called last; all of them are reported once.
[[nodiscard]] Comparison compare_values(const TensorSource& a, const TensorSource& b, ThreadPool& pool,
                                        const std::function<void(std::int64_t)>& read_elements);

/// To nearest even, once, denormals kept; beyond the largest value infinity. NaN and f64 stay.
[[nodiscard]] double round_to(DType type, double x);

}  // namespace swiglu::cli
