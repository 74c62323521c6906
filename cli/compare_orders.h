// What two lists of hashes say about each other: the same in another order, blocks exchanged or repeated, a part. The
// lists are the hidden units of a matrix (rows of gate and up, columns of down). Pure functions; knows nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace swiglu::cli {

using HashSpan = std::span<const std::uint64_t>;

/// Which element of `a` each element of `b` is; equal elements keep their order. Nothing unless `b` is all of `a`.
[[nodiscard]] std::optional<std::vector<std::int64_t>> order_of(HashSpan a, HashSpan b);

/// A list of blocks of one size: how Meta's shards divide the hidden units.
struct Blocks {
  std::int64_t ways = 0;
  std::vector<std::int64_t> from;  ///< for each block of `b`, which block of `a` it is
  /// The blocks of `a` that are in none.
  [[nodiscard]] std::vector<std::int64_t> missing() const;
  bool operator==(const Blocks&) const = default;
};
/// The fewest of 2, 4, 8 or 16 blocks such that every block of `b` is one of `a`. Nothing if `a` and `b` are equal, or
/// of different sizes, or no such number divides them.
[[nodiscard]] std::optional<Blocks> blocks_of(HashSpan a, HashSpan b);

/// Block `again` of `ways` has the contents of block `first`, which comes before it.
struct Repetition {
  std::int64_t ways, first, again;
  bool operator==(const Repetition&) const = default;
};
[[nodiscard]] std::optional<Repetition> repetition_in(HashSpan list);

/// Which block of `whole`, cut into as many as fit, `part` is. Nothing unless it is one and shorter than `whole`.
[[nodiscard]] std::optional<std::int64_t> part_of(HashSpan whole, HashSpan part);

/// `list` is `part` over and over, at least twice.
[[nodiscard]] bool copies_of(HashSpan part, HashSpan list);

/// First and last place at which lists of one size differ; nothing if they are equal.
struct Range {
  std::int64_t first, last;
};
[[nodiscard]] std::optional<Range> differing_range(HashSpan a, HashSpan b);

}  // namespace swiglu::cli
