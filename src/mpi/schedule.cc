// See schedule.h. The order of additions is that of docs/design.md, "Reduction groups", in every branch.
#include "mpi/schedule.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace swiglu::mpi {
namespace {

constexpr int kGroups = 16;
constexpr std::int64_t kSmall = 16384;  // floats: below, messages cost more than bytes

bool in_halves(int ranks) { return ranks <= kGroups && std::has_single_bit(static_cast<unsigned>(ranks)); }

struct Range {
  std::int64_t first;
  std::int64_t last;
  [[nodiscard]] std::int64_t size() const { return last - first; }
};

Range slice_of(int rank, int ranks, std::int64_t count) {
  // The quotient first: count * ranks may not fit.
  const std::int64_t each = count / ranks, rest = count % ranks;
  const auto border = [&](std::int64_t r) { return each * r + rest * r / ranks; };
  return {border(rank), border(rank + 1)};
}

/// What a rank and its partner keep of `from` when they halve it: the lower one the lower half.
Range half_of(Range from, bool upper) {
  const std::int64_t middle = from.first + (from.size() + 1) / 2;
  return upper ? Range{middle, from.last} : Range{from.first, middle};
}

Sum sum_of(float* dst, float* own, float* other, bool own_is_left, std::int64_t count) {
  return own_is_left ? Sum{dst, own, other, count} : Sum{dst, other, own, count};
}

std::vector<Step> whole_vectors(const Reduction& r, float* extra) {
  std::vector<Step> steps;
  float* const own = r.parts.front().floats;
  for (int distance = 1; distance < r.ranks; distance *= 2) {
    const int peer = r.rank ^ distance;
    float* const dst = 2 * distance == r.ranks ? r.root : own;
    steps.push_back({{{own, r.count}},
                     {{peer, own, r.count}},
                     {{peer, extra, r.count}},
                     {sum_of(dst, own, extra, r.rank < peer, r.count)}});
  }
  steps.push_back({{{r.root, r.count}}, {}, {}, {}});
  return steps;
}

std::vector<Step> halving_doubling(const Reduction& r, float* extra) {
  std::vector<Step> steps, back;
  float* const own = r.parts.front().floats;
  Range range{0, r.count};
  for (int distance = 1; distance < r.ranks; distance *= 2) {
    const int peer = r.rank ^ distance;
    const bool upper = r.rank > peer;
    const Range keep = half_of(range, upper), give = half_of(range, !upper);
    float* const dst = 2 * distance == r.ranks ? r.root : own;
    steps.push_back({{{own + range.first, range.size()}},
                     {{peer, own + give.first, give.size()}},
                     {{peer, extra, keep.size()}},
                     {sum_of(dst + keep.first, own + keep.first, extra, !upper, keep.size())}});
    back.push_back({{}, {{peer, r.root + keep.first, keep.size()}}, {{peer, r.root + give.first, give.size()}}, {}});
    range = keep;
  }
  back.back().rounded.push_back({r.root + range.first, range.size()});
  steps.insert(steps.end(), back.rbegin(), back.rend());
  return steps;
}

std::vector<Step> slices(const Reduction& r, float* extra) {
  std::vector<Step> steps(2);
  const Range mine = slice_of(r.rank, r.ranks, r.count);
  // All subtrees in order, as this rank will have them: its slice of each.
  struct Leaf {
    float* floats;
    int groups;
  };
  std::array<Leaf, kGroups> stack{};
  std::size_t depth = 0;
  for (int rank = 0; rank < r.ranks; ++rank) {
    const auto trees = owned_subtrees(rank, r.ranks);
    for (std::size_t t = 0; t < trees.size(); ++t) {
      Leaf leaf{nullptr, trees[t].groups};
      if (rank == r.rank) {
        leaf.floats = r.parts[t].floats + mine.first;
      } else {
        leaf.floats = extra;
        steps[0].receives.push_back({rank, extra, mine.size()});
        extra += mine.size();
      }
      stack[depth++] = leaf;
      while (depth >= 2 && stack[depth - 2].groups == stack[depth - 1].groups) {
        Leaf& left = stack[depth - 2];
        steps[0].sums.push_back({left.floats, left.floats, stack[depth - 1].floats, mine.size()});
        left.groups *= 2;
        --depth;
      }
    }
  }
  steps[0].sums.back().dst = r.root + mine.first;
  steps[1].rounded.push_back({r.root + mine.first, mine.size()});
  for (const PartialSum& part : r.parts) steps[0].rounded.push_back({part.floats, r.count});
  for (int rank = 0; rank < r.ranks; ++rank) {
    if (rank == r.rank) continue;
    const Range theirs = slice_of(rank, r.ranks, r.count);
    for (const PartialSum& part : r.parts) steps[0].sends.push_back({rank, part.floats + theirs.first, theirs.size()});
    steps[1].sends.push_back({rank, r.root + mine.first, mine.size()});
    steps[1].receives.push_back({rank, r.root + theirs.first, theirs.size()});
  }
  return steps;
}

}  // namespace

std::int64_t extra_floats(int rank, int ranks, std::int64_t count) {
  if (ranks == 1) return 0;
  if (in_halves(ranks)) return count <= kSmall ? count : (count + 1) / 2;
  std::int64_t others = 0;
  for (int other = 0; other < ranks; ++other) {
    if (other != rank) others += std::ssize(owned_subtrees(other, ranks));
  }
  return others * slice_of(rank, ranks, count).size();
}

std::vector<Step> schedule(const Reduction& reduction, float* extra) {
  if (reduction.ranks == 1) {
    std::memcpy(reduction.root, reduction.parts.front().floats,
                static_cast<std::size_t>(reduction.count) * sizeof(float));
    return {};
  }
  if (!in_halves(reduction.ranks)) return slices(reduction, extra);
  return reduction.count <= kSmall ? whole_vectors(reduction, extra) : halving_doubling(reduction, extra);
}

}  // namespace swiglu::mpi
