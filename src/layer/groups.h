// Reduction groups of the down product: which hidden units each of the 16 holds, and who owns them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

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

/// Groups [first, last) of one rank.
struct GroupRange {
  int first = 0;
  int last = kGroups;
};
[[nodiscard]] constexpr GroupRange owned_groups(int rank, int ranks) noexcept {
  const auto border = [ranks](std::int64_t r) { return static_cast<int>(kGroups * r / ranks); };
  return {border(rank), border(rank + 1)};
}

/// A range as complete subtrees of the fixed tree, in order; at most 3 for the ranges ranks own.
struct Subtree {
  int first;
  int groups;
};
[[nodiscard]] inline std::vector<Subtree> subtrees(GroupRange range) {
  std::vector<Subtree> found;
  for (int g = range.first; g < range.last;) {
    int size = 1;
    while (g % (2 * size) == 0 && g + 2 * size <= range.last) size *= 2;
    found.push_back({g, size});
    g += size;
  }
  return found;
}

}  // namespace swiglu::layer
