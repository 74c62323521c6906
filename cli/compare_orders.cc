// Orders, blocks and parts of lists of hashes; see compare_orders.h.
#include "compare_orders.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace swiglu::cli {

namespace {

constexpr std::array<std::size_t, 4> kWays = {2, 4, 8, 16};

/// The places of a list in the order of their contents, equal ones in the order of the places.
std::vector<std::int64_t> sorted_places(HashSpan list) {
  std::vector<std::int64_t> places(list.size());
  std::iota(places.begin(), places.end(), 0);
  std::sort(places.begin(), places.end(), [list](std::int64_t x, std::int64_t y) {
    const std::uint64_t left = list[static_cast<std::size_t>(x)], right = list[static_cast<std::size_t>(y)];
    return left != right ? left < right : x < y;
  });
  return places;
}

HashSpan block(HashSpan list, std::size_t ways, std::size_t i) {
  const std::size_t size = list.size() / ways;
  return list.subspan(i * size, size);
}

}  // namespace

std::optional<std::vector<std::int64_t>> order_of(HashSpan a, HashSpan b) {
  if (a.size() != b.size()) return std::nullopt;
  const auto in_a = sorted_places(a), in_b = sorted_places(b);
  std::vector<std::int64_t> order(b.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto from = static_cast<std::size_t>(in_a[i]), to = static_cast<std::size_t>(in_b[i]);
    if (a[from] != b[to]) return std::nullopt;
    order[to] = in_a[i];
  }
  return order;
}

std::vector<std::int64_t> Blocks::missing() const {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < ways; ++i) {
    if (std::find(from.begin(), from.end(), i) == from.end()) out.push_back(i);
  }
  return out;
}

std::optional<Blocks> blocks_of(HashSpan a, HashSpan b) {
  if (a.size() != b.size() || std::ranges::equal(a, b)) return std::nullopt;
  for (const std::size_t ways : kWays) {
    if (a.size() % ways != 0) continue;
    Blocks found{static_cast<std::int64_t>(ways), {}};
    for (std::size_t i = 0; i < ways; ++i) {
      // A block that is where it was has not come from elsewhere, even if there is another like it.
      for (std::size_t step = 0; step < ways && found.from.size() == i; ++step) {
        const std::size_t j = step == 0 ? i : step <= i ? step - 1 : step;
        if (std::ranges::equal(block(a, ways, j), block(b, ways, i)))
          found.from.push_back(static_cast<std::int64_t>(j));
      }
      if (found.from.size() == i) break;
    }
    if (found.from.size() == ways) return found;
  }
  return std::nullopt;
}

std::optional<Repetition> repetition_in(HashSpan list) {
  for (const std::size_t ways : kWays) {
    if (list.empty() || list.size() % ways != 0) continue;
    for (std::size_t again = 1; again < ways; ++again) {
      for (std::size_t first = 0; first < again; ++first) {
        if (!std::ranges::equal(block(list, ways, first), block(list, ways, again))) continue;
        return Repetition{static_cast<std::int64_t>(ways), static_cast<std::int64_t>(first),
                          static_cast<std::int64_t>(again)};
      }
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> part_of(HashSpan whole, HashSpan part) {
  if (part.empty() || whole.size() <= part.size() || whole.size() % part.size() != 0) return std::nullopt;
  const std::size_t ways = whole.size() / part.size();
  for (std::size_t i = 0; i < ways; ++i) {
    if (std::ranges::equal(block(whole, ways, i), part)) return static_cast<std::int64_t>(i);
  }
  return std::nullopt;
}

bool copies_of(HashSpan part, HashSpan list) {
  if (part.empty() || list.size() <= part.size() || list.size() % part.size() != 0) return false;
  const std::size_t ways = list.size() / part.size();
  for (std::size_t i = 0; i < ways; ++i) {
    if (!std::ranges::equal(block(list, ways, i), part)) return false;
  }
  return true;
}

std::optional<Range> differing_range(HashSpan a, HashSpan b) {
  std::optional<Range> range;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    const auto place = static_cast<std::int64_t>(i);
    range = Range{range ? range->first : place, place};
  }
  return range;
}

}  // namespace swiglu::cli
