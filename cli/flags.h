// The text behind a flag, as a value, and words that are none. Every refusal is a usage error that names the
// flag, what it takes and what was found. Knows nothing of what the commands do, or of the parser.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "swiglu/files.hpp"

namespace swiglu::cli {

/// A decimal whole number from `least` to `most`.
[[nodiscard]] std::int64_t parse_whole(std::string_view flag, std::string_view text, std::int64_t least,
                                       std::int64_t most = INT64_MAX);
/// All 64-bit seeds.
[[nodiscard]] std::uint64_t parse_seed(std::string_view flag, std::string_view text);
/// A positive, finite number; correctly rounded to double, which the width recipe depends on.
[[nodiscard]] double parse_positive(std::string_view flag, std::string_view text);
/// The index of `text` in `choices`.
[[nodiscard]] std::size_t parse_choice(std::string_view flag, std::string_view text,
                                       std::span<const std::string_view> choices);
[[nodiscard]] DType parse_dtype(std::string_view flag, std::string_view text);
/// Also ggml's blocks, which GGUF files hold.
[[nodiscard]] TensorType parse_tensor_type(std::string_view flag, std::string_view text);
[[nodiscard]] CheckpointFormat parse_format(std::string_view flag, std::string_view text);

/// The pieces of a list between its commas. Refuses empty pieces and repetitions.
[[nodiscard]] std::vector<std::string> parse_list(std::string_view flag, std::string_view text);

/// Numbers and ranges between commas, "0,3,5-8", as ascending ranges, first and last of each. Refuses a number
/// that is in two of them.
[[nodiscard]] std::vector<std::pair<std::int64_t, std::int64_t>> parse_ranges(std::string_view flag,
                                                                              std::string_view text);

/// The choice most like `word`; empty if none is close enough to be meant.
[[nodiscard]] std::string_view nearest(std::string_view word, std::span<const std::string_view> choices);

/// A command and its long flags.
struct Words {
  std::string command;
  std::vector<std::string> flags;
};
/// Words that are no command or flag are answered with what was probably meant. (The parser would first complain
/// of a required flag that is missing because it was mistyped.) `arguments` are those after the program's name.
void check_words(std::string_view program, const std::vector<std::string>& arguments,
                 const std::vector<Words>& commands);

}  // namespace swiglu::cli
