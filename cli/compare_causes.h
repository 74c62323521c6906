// Why two layers differ, by evidence alone: a cause is named only if it accounts for every element of the matrices that
// it names. A pure function of what was measured; knows nothing of files.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare_factors.h"
#include "compare_hashes.h"
#include "compare_values.h"

namespace swiglu::cli {

enum class Role : std::uint8_t { norm = 0, gate = 1, up = 2, down = 3 };
inline constexpr std::array kRoles = {Role::norm, Role::gate, Role::up, Role::down};
[[nodiscard]] const char* name_of(Role role);

/// Something for each matrix of a layer.
template <class T>
class ByRole {
 public:
  T& operator[](Role role) { return items_[static_cast<std::size_t>(role)]; }
  const T& operator[](Role role) const { return items_[static_cast<std::size_t>(role)]; }

 private:
  std::array<T, kRoles.size()> items_{};
};

/// What was measured of one layer of A and the same of B.
struct Evidence {
  std::int64_t layer = 0;  ///< its number
  std::int64_t hidden_a = 0, hidden_b = 0;
  std::vector<float> norm_a, norm_b;
  ByRole<std::string> type_a, type_b;  ///< the files' names of the elements' types, "Q4_K"
  ByRole<Comparison> matrices;
  ByRole<Hashes> a, b;  ///< of values rounded to one type for both
  // Looked for only if nothing before explains a matrix:
  ByRole<std::optional<Factors>> factors;
  ByRole<std::optional<std::int64_t>> layer_in_a;  ///< B's matrix is that of this other layer of A
  ByRole<std::optional<std::int64_t>> layer_in_b;  ///< A's is that of this other layer of B

  [[nodiscard]] bool differs(Role role) const {
    return matrices[role].match == Match::different || matrices[role].match == Match::not_compared;
  }
};

struct Cause {
  std::string kind;  ///< "gate_up_swapped": for programs
  std::vector<Role> roles;  ///< the matrices that it accounts for
  std::string text;  ///< a sentence without its full stop
  std::string advice;  ///< the same; may be empty
  std::string general;  ///< the text without what differs from layer to layer
  bool same_function = false;
};

/// Empty if nothing differs. Matrices that no cause accounts for come last, in a cause of kind "unknown".
[[nodiscard]] std::vector<Cause> explain(const Evidence& evidence);

/// The matrices that `causes` leave unknown.
[[nodiscard]] std::vector<Role> unexplained(const std::vector<Cause>& causes);

/// "gate, up and down"
[[nodiscard]] std::string show_roles(const std::vector<Role>& roles);

}  // namespace swiglu::cli
