// Hidden units in another order, in blocks, or not all there; see compare_units.h.
#include "compare_units.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compare_orders.h"

namespace swiglu::cli {

namespace {

constexpr std::array kWeights = {Role::gate, Role::up, Role::down};

HashSpan units(const ByRole<Hashes>& side, Role role) { return role == Role::down ? side[role].cols : side[role].rows; }

/// A unit's three parts as one number.
std::vector<std::uint64_t> whole_units(const ByRole<Hashes>& side) {
  const HashSpan gate = units(side, Role::gate), up = units(side, Role::up), down = units(side, Role::down);
  std::vector<std::uint64_t> out;
  out.reserve(gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    out.push_back((gate[i] * 0x9E3779B97F4A7C15U ^ up[i]) * 0xBF58476D1CE4E5B9U ^ down[i]);
  }
  return out;
}

bool is_open(const std::vector<Role>& open, Role role) {
  return std::find(open.begin(), open.end(), role) != open.end();
}

std::string show_order(const Blocks& blocks) {
  return fmt::format("{} shards of A in the order {}", blocks.ways, fmt::join(blocks.from, ", "));
}

/// Everything that is known of units that all are there, in another order.
struct Moved {
  std::vector<Role> roles;
  bool all_there = true;  ///< in all three matrices
  std::vector<std::optional<Blocks>> blocks;
  std::vector<std::vector<std::int64_t>> orders;
  [[nodiscard]] bool one_order() const {
    return std::all_of(orders.begin(), orders.end(), [&](const auto& order) { return order == orders.front(); });
  }
  /// They were moved as whole shards, in one way.
  [[nodiscard]] bool as_shards() const {
    return std::all_of(blocks.begin(), blocks.end(), [&](const auto& b) { return b && *b == *blocks.front(); });
  }
};

Moved find_moved(const Evidence& e, const std::vector<Role>& open) {
  Moved moved;
  for (const Role role : kWeights) {
    const auto order = order_of(units(e.a, role), units(e.b, role));
    moved.all_there = moved.all_there && order;
    if (!order || !is_open(open, role) || std::ranges::equal(units(e.a, role), units(e.b, role))) continue;
    moved.roles.push_back(role);
    moved.orders.push_back(*order);
    moved.blocks.push_back(blocks_of(units(e.a, role), units(e.b, role)));
  }
  return moved;
}

Cause explain_moved(const Evidence& e, const Moved& moved) {
  const auto whole_a = whole_units(e.a), whole_b = whole_units(e.b);
  const bool consistent = moved.all_there && order_of(whole_a, whole_b);
  const bool shards = moved.as_shards();
  Cause cause;
  cause.roles = moved.roles;
  cause.same_function = consistent;
  if (consistent) {
    cause.kind = shards ? "shards_exchanged" : "hidden_units_permuted";
    cause.text = shards ? fmt::format("B holds the {}", show_order(*moved.blocks.front()))
                        : "the hidden units are in another order";
    cause.text += ", the same in gate, up and down: the function is the same, but for the order of its sums";
    cause.general = cause.text;
    cause.advice = shards ? "nothing is wrong; to get A's bits, join the shards in the order of their numbers"
                          : "nothing is wrong; to get A's bits, put the units into A's order";
    return cause;
  }
  std::vector<Role> still;
  for (const Role role : kWeights) {
    if (std::find(moved.roles.begin(), moved.roles.end(), role) == moved.roles.end()) still.push_back(role);
  }
  cause.kind = shards ? "shards_exchanged_inconsistently" : "hidden_units_permuted_inconsistently";
  if (shards) {
    cause.text = fmt::format("B holds the {} in {}", show_order(*moved.blocks.front()), show_roles(moved.roles));
  } else if (moved.one_order()) {
    cause.text = fmt::format("the hidden units of {} are in another order", show_roles(moved.roles));
  } else {
    cause.text = fmt::format("the hidden units of {} are in other orders, not in one", show_roles(moved.roles));
  }
  if (!still.empty()) cause.text += fmt::format(", but not of {}", show_roles(still));
  cause.text += ": the matrices do not fit each other, and the function is another one";
  cause.advice = shards ? "join the shards of gate, up (by rows) and down (by columns) in one order"
                        : "put the units of gate, up (rows) and down (columns) into one order";
  return cause;
}

/// Some shard of `good` is not in `bad`, and another one is there instead.
std::optional<Cause> repeated(const Evidence& e, Role role, bool b_is_bad) {
  const ByRole<Hashes>& good = b_is_bad ? e.a : e.b;
  const ByRole<Hashes>& bad = b_is_bad ? e.b : e.a;
  const char* good_name = b_is_bad ? "A" : "B";
  const char* bad_name = b_is_bad ? "B" : "A";
  const auto blocks = blocks_of(units(good, role), units(bad, role));
  if (!blocks || blocks->missing().empty()) return std::nullopt;
  Cause cause;
  cause.kind = "shard_repeated";
  cause.roles = {role};
  const auto missing = blocks->missing();
  const bool one = missing.size() == 1;
  cause.text = fmt::format("{} is made of shards {} of {}'s {}: {} {} missing, and {} repeated", bad_name,
                           fmt::join(blocks->from, ", "), good_name, blocks->ways, fmt::join(missing, ", "),
                           one ? "is" : "are", one ? "another one is" : "others are");
  cause.advice = fmt::format("write {} anew, every shard once and in the order of the numbers", bad_name);
  return cause;
}

std::optional<Cause> repeated_within(const Evidence& e, Role role, bool b_is_bad) {
  const auto found = repetition_in(units(b_is_bad ? e.b : e.a, role));
  if (!found || repetition_in(units(b_is_bad ? e.a : e.b, role)) == found) return std::nullopt;
  const char* bad_name = b_is_bad ? "B" : "A";
  Cause cause;
  cause.kind = "shard_repeated";
  cause.roles = {role};
  cause.text =
      fmt::format("shard {} of {} of {} repeats its shard {}", found->again, found->ways, bad_name, found->first);
  cause.advice = fmt::format("write {} anew, every shard once and in the order of the numbers", bad_name);
  return cause;
}

/// Rows of gate and up that all are there, but not each in its matrix.
bool mixed_rows(const Evidence& e) {
  const auto joined = [](const ByRole<Hashes>& side) {
    std::vector<std::uint64_t> rows = side[Role::gate].rows;
    rows.insert(rows.end(), side[Role::up].rows.begin(), side[Role::up].rows.end());
    return rows;
  };
  return order_of(joined(e.a), joined(e.b)).has_value();
}

}  // namespace

std::vector<Cause> explain_units(const Evidence& e, const std::vector<Role>& open) {
  std::vector<Cause> causes;
  std::vector<Role> left = open;
  const auto add = [&](Cause cause) {
    for (const Role role : cause.roles) std::erase(left, role);
    causes.push_back(std::move(cause));
  };
  if (const Moved moved = find_moved(e, left); !moved.roles.empty()) add(explain_moved(e, moved));
  for (const bool b_is_bad : {true, false}) {
    for (const Role role : kWeights) {
      if (!is_open(left, role)) continue;
      if (auto cause = repeated(e, role, b_is_bad)) add(std::move(*cause));
    }
  }
  if (is_open(left, Role::gate) && is_open(left, Role::up) && mixed_rows(e)) {
    add({"gate_up_rows_mixed",
         {Role::gate, Role::up},
         "gate and up hold rows of each other",
         "split the fused matrix as it was joined (halves, rows in turns, or halves of each shard)",
         "",
         false});
  }
  for (const bool b_is_bad : {true, false}) {
    for (const Role role : kWeights) {
      if (!is_open(left, role)) continue;
      if (auto cause = repeated_within(e, role, b_is_bad)) add(std::move(*cause));
    }
  }
  return causes;
}

std::vector<Cause> explain_width(const Evidence& e) {
  const bool b_is_short = e.hidden_b < e.hidden_a;
  const ByRole<Hashes>& wide = b_is_short ? e.a : e.b;
  const ByRole<Hashes>& narrow = b_is_short ? e.b : e.a;
  const char* wide_name = b_is_short ? "A" : "B";
  const char* narrow_name = b_is_short ? "B" : "A";
  const std::int64_t ways = std::max(e.hidden_a, e.hidden_b) / std::min(e.hidden_a, e.hidden_b);
  const std::vector<Role> roles(kWeights.begin(), kWeights.end());
  const auto all = [&](auto test) { return std::all_of(kWeights.begin(), kWeights.end(), test); };
  if (all([&](Role role) { return copies_of(units(narrow, role), units(wide, role)); })) {
    return {{"shards_repeated", roles,
             fmt::format("{}'s hidden units are {}'s {} times over", wide_name, narrow_name, ways),
             fmt::format("join shards that are different, or none, where {} was written", wide_name), "", false}};
  }
  const auto part = part_of(units(wide, Role::gate), units(narrow, Role::gate));
  if (part && all([&](Role role) { return part_of(units(wide, role), units(narrow, role)) == part; })) {
    return {{"shard_missing", roles,
             fmt::format("{} holds shard {} of {} of {} alone", narrow_name, *part, ways, wide_name),
             fmt::format("look for the weight files that {} lacks", narrow_name), "", false}};
  }
  // A prefix of more than one shard: 3 of 4, say.
  const auto begins = [&](Role role) {
    const HashSpan short_one = units(narrow, role), long_one = units(wide, role);
    return !short_one.empty() && std::ranges::equal(short_one, long_one.first(short_one.size()));
  };
  if (all(begins)) {
    return {{"shard_missing", roles,
             fmt::format("{} holds the first {} hidden units of {}'s {}, and the last {} are missing", narrow_name,
                         std::min(e.hidden_a, e.hidden_b), wide_name, std::max(e.hidden_a, e.hidden_b),
                         std::max(e.hidden_a, e.hidden_b) - std::min(e.hidden_a, e.hidden_b)),
             fmt::format("look for the weight files that {} lacks", narrow_name), "", false}};
  }
  return {};
}

std::string unknown_width(const Evidence& e) {
  const std::int64_t wide = std::max(e.hidden_a, e.hidden_b), narrow = std::min(e.hidden_a, e.hidden_b);
  if (wide % narrow != 0)
    return fmt::format("hidden {} and {}: these are matrices of other models", e.hidden_a, e.hidden_b);
  return fmt::format(
      "hidden {} is {} times {}, as if shards were missing or repeated, but the weights are not parts of "
      "each other",
      wide, wide / narrow, narrow);
}

}  // namespace swiglu::cli
