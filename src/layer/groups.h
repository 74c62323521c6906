// Reduction groups of the down product: which hidden units each of the 16 holds, as whole granules.
#pragma once

#include <array>
#include <cstdint>

#include "swiglu/swiglu.hpp"

namespace swiglu::layer {

inline constexpr int kGroups = 16;
inline constexpr std::int64_t kGranule = 32;

/// Group g is the half-open range [b[g], b[g + 1]): whole granules, spread evenly; some may be empty.
[[nodiscard]] constexpr std::array<std::int64_t, kGroups + 1> group_borders(std::int64_t hidden) noexcept {
  const std::int64_t granules = (hidden + kGranule - 1) / kGranule;
  std::array<std::int64_t, kGroups + 1> borders{};
  for (int g = 0; g <= kGroups; ++g) {
    const std::int64_t border = kGranule * (g * granules / kGroups);
    borders[static_cast<std::size_t>(g)] = border < hidden ? border : hidden;
  }
  return borders;
}

/// Groups [first, last).
struct GroupRange {
  int first = 0;
  int last = 0;
};
/// Of one rank; {0, 0} if it owns none.
[[nodiscard]] inline GroupRange owned_groups(int rank, int ranks) {
  const auto trees = owned_subtrees(rank, ranks);
  if (trees.empty()) return {};
  return {trees.front().first_group, trees.back().first_group + trees.back().groups};
}

}  // namespace swiglu::layer
