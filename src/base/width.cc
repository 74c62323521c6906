// The width recipe of Meta's FeedForward, and the shapes of Meta's releases.
// Knows the front door only. The arithmetic must stay what Python does with the same numbers: IEEE
// double without contraction, truncation toward zero at the same two places.
#include <cmath>
#include <cstddef>

#include <fmt/format.h>

#include "base/text.h"
#include "swiglu/swiglu.hpp"

namespace swiglu {
namespace {

// Far beyond any model, and far below 2^53, so that every integer here is exact as a double and no
// sum or product below leaves 64 bits.
constexpr std::int64_t kLargest = std::int64_t{1} << 48;

constexpr std::optional<double> kAbsent = std::nullopt;

// From Meta's params.json files. LLaMA-1, Llama-2 7B and 13B carry no multiplier. The vision models
// count their text layers only. A chat or instruct model has the shape of its base model.
// Llama-Guard-3-1B-INT4 is left out: it was pruned to a width (6400) that no recipe gives.
constexpr Preset kPresets[] = {
    {"llama-7b", 4096, 32, 256, kAbsent, 1e-6, 1},
    {"llama-13b", 5120, 40, 256, kAbsent, 1e-6, 2},
    {"llama-30b", 6656, 60, 256, kAbsent, 1e-6, 4},
    {"llama-65b", 8192, 80, 256, kAbsent, 1e-5, 8},
    {"llama-2-7b", 4096, 32, 256, kAbsent, 1e-5, 1},
    {"llama-2-13b", 5120, 40, 256, kAbsent, 1e-5, 2},
    {"llama-2-70b", 8192, 80, 4096, 1.3, 1e-5, 8},
    {"code-llama-7b", 4096, 32, 256, 1.0, 1e-5, 1},
    {"code-llama-13b", 5120, 40, 256, 1.0, 1e-5, 2},
    {"code-llama-34b", 8192, 48, 256, 1.0, 1e-5, 4},
    {"code-llama-70b", 8192, 80, 4096, 1.3, 1e-5, 8},
    {"llama-3-8b", 4096, 32, 1024, 1.3, 1e-5, 1},
    {"llama-3-70b", 8192, 80, 4096, 1.3, 1e-5, 8},
    {"llama-3.1-8b", 4096, 32, 1024, 1.3, 1e-5, 1},
    {"llama-3.1-70b", 8192, 80, 4096, 1.3, 1e-5, 8},
    {"llama-3.1-405b", 16384, 126, 4096, 1.2, 1e-5, 8},
    {"llama-3.1-405b-mp16", 16384, 126, 4096, 1.2, 1e-5, 16},
    {"llama-3.2-1b", 2048, 16, 256, 1.5, 1e-5, 1},
    {"llama-3.2-3b", 3072, 28, 256, 1.0, 1e-5, 1},
    {"llama-3.2-11b-vision", 4096, 32, 1024, 1.3, 1e-5, 1},
    {"llama-3.2-90b-vision", 8192, 80, 4096, 1.3, 1e-5, 8},
    {"llama-3.3-70b", 8192, 80, 4096, 1.3, 1e-5, 8},
    {"llama-guard-7b", 4096, 32, 256, kAbsent, 1e-5, 1},
    {"llama-guard-2-8b", 4096, 32, 256, 1.3, 1e-5, 1},
    {"llama-guard-3-1b", 2048, 16, 256, 1.5, 1e-5, 1},
    {"llama-guard-3-8b", 4096, 32, 1024, 1.3, 1e-5, 1},
    {"llama-guard-3-11b-vision", 4096, 32, 1024, 1.3, 1e-5, 1},
};

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::usage, text); }

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

}  // namespace

std::int64_t ffn_width(std::int64_t dim, std::int64_t multiple_of, std::optional<double> multiplier) {
  if (dim <= 0 || dim > kLargest) refuse(fmt::format("dim must be from 1 to 2^48, found {}", dim));
  if (multiple_of <= 0 || multiple_of > kLargest) {
    refuse(fmt::format("multiple_of must be from 1 to 2^48, found {}", multiple_of));
  }
  // int(2 * (4 * dim) / 3): the division is of doubles, both exact.
  auto hidden = static_cast<std::int64_t>(static_cast<double>(2 * (4 * dim)) / 3.0);
  // int(multiplier * hidden); without a multiplier nothing is multiplied. Out of range a cast to an
  // integer is undefined, so the product is compared first.
  if (multiplier.has_value()) {
    if (!std::isfinite(*multiplier) || *multiplier <= 0.0) {
      refuse(fmt::format("ffn_dim_multiplier must be positive and finite, found {}", *multiplier));
    }
    const double scaled = *multiplier * static_cast<double>(hidden);
    if (!(scaled <= static_cast<double>(kLargest))) {
      refuse(fmt::format("dim {} times ffn_dim_multiplier {} gives a width beyond 2^48", dim, *multiplier));
    }
    hidden = static_cast<std::int64_t>(scaled);
    if (hidden == 0) refuse(fmt::format("dim {} times ffn_dim_multiplier {} gives a width of 0", dim, *multiplier));
  }
  const std::int64_t width = (hidden + multiple_of - 1) / multiple_of;  // in units of multiple_of
  if (width > kLargest / multiple_of) {
    refuse(fmt::format("dim {} with multiple_of {} gives a width beyond 2^48", dim, multiple_of));
  }
  return width * multiple_of;
}

std::span<const Preset> presets() { return kPresets; }

const Preset& find_preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (equal_ignoring_case(preset.name, name)) return preset;
  }
  std::string known;
  for (const Preset& preset : kPresets) {
    if (!known.empty()) known += ", ";
    known += preset.name;
  }
  refuse(fmt::format("no preset is named \"{}\"; known are {}", escaped(name), known));
}

}  // namespace swiglu
