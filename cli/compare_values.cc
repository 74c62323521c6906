// Elements beside each other; see compare_values.h. Relations are rules that start out true in every slice and fall at
// the first pair that breaks them, so nearly all are gone after a few elements of unrelated matrices.
#include "compare_values.h"

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "elements.h"
#include "slices.h"

namespace swiglu::cli {

namespace {

double cut(double x) {
  return static_cast<double>(
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) & std::uint32_t{0xFFFF0000U}));
}

bool is(double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); }

/// `y` is `x` + 1, where both may have been rounded to bf16 on the way.
bool plus_1(double x, double y) { return std::fabs(y - (x + 1)) <= 0x1p-8 * std::max(std::fabs(x), std::fabs(y)); }

struct Rule {
  bool (*holds)(double a, double b);
};

/// In this order, which relations_of() knows.
constexpr std::array kRules = {
    Rule{[](double a, double b) { return is(round_to(DType::f32, a), b); }},
    Rule{[](double a, double b) { return is(round_to(DType::f16, a), b); }},
    Rule{[](double a, double b) { return is(round_to(DType::bf16, a), b); }},
    Rule{[](double a, double b) { return is(round_to(DType::f32, b), a); }},
    Rule{[](double a, double b) { return is(round_to(DType::f16, b), a); }},
    Rule{[](double a, double b) { return is(round_to(DType::bf16, b), a); }},
    Rule{[](double a, double b) { return is(cut(a), b); }},
    Rule{[](double a, double b) { return is(cut(b), a); }},
    Rule{[](double a, double b) { return plus_1(a, b); }},
    Rule{[](double a, double b) { return plus_1(b, a); }},
    Rule{[](double a, double) { return is(round_to(DType::f16, a), a); }},
    Rule{[](double a, double) { return is(round_to(DType::bf16, a), a); }},
    Rule{[](double, double b) { return is(round_to(DType::f16, b), b); }},
    Rule{[](double, double b) { return is(round_to(DType::bf16, b), b); }},
    Rule{[](double a, double b) { return is(a, b) || b == 0; }},
    Rule{[](double a, double b) { return is(a, b) || a == 0; }},
};
using Rules = std::uint32_t;  // a bit for each that still holds
constexpr Rules kAllRules = (Rules{1} << kRules.size()) - 1;

/// Without those that are true of every value of the files' types, which nobody asks for.
Rules rules_for(DType a, DType b) {
  const auto narrow = [](DType type) { return type == DType::f16 || type == DType::bf16; };
  Rules rules = kAllRules;
  if (narrow(a)) rules &= ~(Rules{3} << 10);
  if (narrow(b)) rules &= ~(Rules{3} << 12);
  return rules;
}

/// One slice's part of the result.
struct Part {
  std::int64_t differing = 0, nan_bits = 0, zero_signs = 0;
  double error = 0, size = 0;  ///< squares
  std::optional<Difference> first;
  Rules rules = kAllRules;
};

bool same_nan_bits(const std::byte* a, const std::byte* b, std::size_t item, std::size_t i) {
  return std::memcmp(a + i * item, b + i * item, item) == 0;
}

void look_at(Part& part, double a, double b, std::int64_t row, std::int64_t col) {
  for (Rules left = part.rules; left != 0; left &= left - 1) {
    const int rule = std::countr_zero(left);
    if (!kRules[static_cast<std::size_t>(rule)].holds(a, b)) part.rules &= ~(Rules{1} << rule);
  }
  if (std::isfinite(a) && std::isfinite(b)) {
    part.error += (b - a) * (b - a);
    part.size += a * a;
  }
  if (a == b) {
    if (a == 0 && std::signbit(a) != std::signbit(b)) ++part.zero_signs;
    return;
  }
  ++part.differing;
  if (!part.first) part.first = Difference{row, col, a, b};
}

/// The same bits throughout, of sources of one type. Stops reading at the first slice that is not so.
bool same_bits(const TensorSource& a, const TensorSource& b, ThreadPool& pool) {
  std::atomic<bool> same{true};
  for_slices(a.rows(), a.cols(), pool, [&](const Slice& slice) {
    if (same && read_bytes(a, slice) != read_bytes(b, slice)) same = false;
  });
  return same;
}

Relations relations_of(Rules rules, DType a, DType b) {
  const auto holds = [rules](int rule) { return (rules >> rule & 1U) != 0; };
  constexpr std::array kTypes = {DType::f32, DType::f16, DType::bf16};
  // Where a few elements satisfy several, the type that the file has is the likely one.
  const auto rounding = [&](int first, DType file) {
    std::optional<DType> found;
    for (int i = 2; i >= 0; --i) {
      if (holds(first + i)) found = kTypes[static_cast<std::size_t>(i)];
    }
    for (int i = 0; i < 3; ++i) {
      if (holds(first + i) && kTypes[static_cast<std::size_t>(i)] == file) found = file;
    }
    return found;
  };
  const auto fits = [&](int f16, DType file) {
    if (file == DType::f16 || file == DType::bf16) return file;
    return holds(f16 + 1) ? DType::bf16 : holds(f16) ? DType::f16 : file;
  };
  return {rounding(0, b), rounding(3, a), holds(6),  holds(7),    holds(8),
          holds(9),       holds(14),      holds(15), fits(10, a), fits(12, b)};
}

}  // namespace

double round_to(DType type, double x) {
  if (type == DType::f64 || !std::isfinite(x)) return x;
  if (type == DType::f32) return static_cast<double>(static_cast<float>(x));
  const bool half = type == DType::f16;
  const int lowest_exponent = half ? -14 : -126;
  const int dropped = half ? 42 : 45;  // of a double's 52 bits after the leading one
  auto bits = std::bit_cast<std::uint64_t>(x);
  const int exponent = static_cast<int>(bits >> 52 & 0x7FFU) - 1023;
  if (exponent < lowest_exponent) {  // multiples of the smallest denormal
    const double step = half ? 0x1p-24 : 0x1p-133;
    return std::copysign(std::nearbyint(x / step) * step, x);
  }
  bits += (std::uint64_t{1} << (dropped - 1)) - 1 + (bits >> dropped & 1U);
  bits &= ~((std::uint64_t{1} << dropped) - 1);
  const auto rounded = std::bit_cast<double>(bits);
  const double largest = half ? 65504 : 0x1.FEp127;
  return std::fabs(rounded) > largest ? std::copysign(HUGE_VAL, x) : rounded;
}

Comparison compare_values(const TensorSource& a, const TensorSource& b, ThreadPool& pool,
                          const std::function<void(std::int64_t)>& read_elements) {
  Comparison result;
  result.a = a.dtype();
  result.b = b.dtype();
  result.elements = a.rows() * a.cols();
  result.relations.a_fits = result.a;
  result.relations.b_fits = result.b;
  if (a.dtype() == b.dtype() && same_bits(a, b, pool)) {
    read_elements(result.elements);
    result.match = Match::bits;
    return result;
  }
  std::vector<Part> parts(static_cast<std::size_t>(slices_of(a.rows(), a.cols())));
  for_slices(a.rows(), a.cols(), pool, [&](const Slice& slice) {
    const auto raw_a = read_bytes(a, slice), raw_b = read_bytes(b, slice);
    const auto left = to_doubles(a.dtype(), raw_a), right = to_doubles(b.dtype(), raw_b);
    const auto item = static_cast<std::size_t>(size_of(a.dtype()));
    Part part;
    part.rules = rules_for(a.dtype(), b.dtype());
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (std::isnan(left[i]) && std::isnan(right[i])) {
        if (a.dtype() == b.dtype() && !same_nan_bits(raw_a.data(), raw_b.data(), item, i)) ++part.nan_bits;
        continue;
      }
      const auto at = static_cast<std::int64_t>(i);
      look_at(part, left[i], right[i], slice.row + at / a.cols(), at % a.cols());
    }
    parts[static_cast<std::size_t>(slice.index)] = part;
    read_elements(std::ssize(left));
  });
  Part all;
  for (const Part& part : parts) {
    all.differing += part.differing;
    all.nan_bits += part.nan_bits;
    all.zero_signs += part.zero_signs;
    all.error += part.error;
    all.size += part.size;
    all.rules &= part.rules;
    if (!all.first) all.first = part.first;
  }
  result.differing = all.differing;
  result.nan_bits = all.nan_bits;
  result.zero_signs = all.zero_signs;
  result.relative_error = all.error == 0 ? 0 : std::sqrt(all.error / all.size);
  result.first = all.first;
  result.relations = relations_of(all.rules, result.a, result.b);
  const bool rounded = result.relations.b_is_a_in || result.relations.a_is_b_in;
  result.match = all.differing == 0 ? Match::values : rounded ? Match::rounded : Match::different;
  return result;
}

}  // namespace swiglu::cli
