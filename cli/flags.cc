// The text behind a flag, as a value: std::from_chars everywhere, so that no locale, octal prefix or
// long double comes between what was typed and what is computed with.
#include "flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "report.h"

namespace swiglu::cli {

namespace {

[[noreturn]] void refuse(std::string_view flag, const std::string& expected, std::string_view found) {
  throw Error(ErrorCode::usage, fmt::format("{}: expected {}, found '{}'", flag, expected, printable(found)));
}

template <class Number>
bool parse_all(std::string_view text, Number& value) {
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  return fault == std::errc() && end == text.data() + text.size();
}

/// Letters inserted, deleted, replaced or swapped with their neighbour.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::int64_t parse_whole(std::string_view flag, std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  if (!parse_all(text, value) || value < least || value > most) {
    refuse(flag,
           most == INT64_MAX ? fmt::format("a whole number, at least {}", least)
                             : fmt::format("a whole number from {} to {}", least, most),
           text);
  }
  return value;
}

std::uint64_t parse_seed(std::string_view flag, std::string_view text) {
  std::uint64_t value = 0;
  if (!parse_all(text, value)) refuse(flag, "a whole number from 0 to 2^64 - 1", text);
  return value;
}

double parse_positive(std::string_view flag, std::string_view text) {
  double value = 0;
  if (!parse_all(text, value) || !std::isfinite(value) || value <= 0) refuse(flag, "a positive number", text);
  return value;
}

std::size_t parse_choice(std::string_view flag, std::string_view text, std::span<const std::string_view> choices) {
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) refuse(flag, fmt::format("{}", fmt::join(choices, ", ")), text);
  return static_cast<std::size_t>(found - choices.begin());
}

DType parse_dtype(std::string_view flag, std::string_view text) {
  static constexpr std::string_view kNames[] = {"f32", "bf16", "f16", "f64"};
  return static_cast<DType>(parse_choice(flag, text, kNames));
}

TensorType parse_tensor_type(std::string_view flag, std::string_view text) {
  static constexpr std::string_view kTypes[] = {"f32", "bf16", "f16", "f64", "q8_0", "q4_0"};
  return static_cast<TensorType>(parse_choice(flag, text, kTypes));
}

CheckpointFormat parse_format(std::string_view flag, std::string_view text) {
  static constexpr std::string_view kFormats[] = {"hf", "meta", "gguf"};
  return static_cast<CheckpointFormat>(parse_choice(flag, text, kFormats));
}

std::vector<std::string> parse_list(std::string_view flag, std::string_view text) {
  std::vector<std::string> pieces;
  for (std::string_view left = text;;) {
    const std::size_t comma = left.find(',');
    std::string piece(left.substr(0, comma));
    if (piece.empty()) refuse(flag, "a list with commas between, as 1,2", text);
    if (std::find(pieces.begin(), pieces.end(), piece) != pieces.end()) {
      refuse(flag, fmt::format("each of a list once ({} is there twice)", printable(piece)), text);
    }
    pieces.push_back(std::move(piece));
    if (comma == std::string_view::npos) return pieces;
    left.remove_prefix(comma + 1);
  }
}

std::vector<std::pair<std::int64_t, std::int64_t>> parse_ranges(std::string_view flag, std::string_view text) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const std::string& piece : parse_list(flag, text)) {
    const std::string_view whole = piece;
    const std::size_t dash = whole.find('-');
    std::int64_t first = 0, last = 0;
    bool good = parse_all(whole.substr(0, dash), first) && first >= 0;
    last = first;
    if (dash != std::string_view::npos) good = good && parse_all(whole.substr(dash + 1), last) && last >= first;
    if (!good) refuse(flag, "numbers and ranges with commas between, as 0,3,5-8", text);
    ranges.emplace_back(first, last);
  }
  std::sort(ranges.begin(), ranges.end());
  const auto twice = std::adjacent_find(ranges.begin(), ranges.end(),
                                        [](const auto& a, const auto& b) { return b.first <= a.second; });
  if (twice != ranges.end()) refuse(flag, fmt::format("each number once, not {} twice", (twice + 1)->first), text);
  return ranges;
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> choices) {
  constexpr std::size_t kLongest = 64;  // nobody mistypes a command by a paragraph
  if (word.empty() || word.size() > kLongest || choices.empty()) return {};
  const auto best = std::min_element(choices.begin(), choices.end(), [word](std::string_view a, std::string_view b) {
    return distance(word, a) < distance(word, b);
  });
  const std::size_t close_enough = std::max<std::size_t>(2, best->size() / 3);
  return distance(word, *best) <= close_enough ? *best : std::string_view{};
}

namespace {

std::string did_you_mean(std::string_view meant, const std::string& otherwise) {
  return meant.empty() ? otherwise : fmt::format("did you mean '{}'?", meant);
}

}  // namespace

void check_words(std::string_view program, const std::vector<std::string>& arguments,
                 const std::vector<Words>& commands) {
  if (arguments.empty()) {
    throw Error(ErrorCode::usage, fmt::format("no command given: try `{0} demo`, or `{0} --help`", program));
  }
  const std::string& word = arguments.front();
  if (word.starts_with("-")) return;
  std::vector<std::string_view> choices;
  choices.reserve(commands.size());
  for (const Words& words : commands) choices.emplace_back(words.command);
  const auto found = std::find(choices.begin(), choices.end(), word);
  if (found == choices.end()) {
    throw Error(ErrorCode::usage,
                fmt::format("no command '{}': {}", printable(word),
                            did_you_mean(nearest(word, choices), fmt::format("`{} --help` lists them", program))));
  }
  const std::vector<std::string>& flags = commands[static_cast<std::size_t>(found - choices.begin())].flags;
  const std::vector<std::string_view> known(flags.begin(), flags.end());
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string_view full = arguments[i];
    const std::string_view given = full.substr(0, full.find('='));
    if (given == "--") break;
    if (!given.starts_with("--") || std::find(known.begin(), known.end(), given) != known.end()) continue;
    throw Error(ErrorCode::usage, fmt::format("{}: no flag '{}': {}", word, printable(given),
                                              did_you_mean(nearest(given, known),
                                                           fmt::format("`{} {} --help` lists them", program, word))));
  }
}

}  // namespace swiglu::cli
