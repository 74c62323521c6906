// Where activations come from: a .npy file, or a seed. Knows the front door and elements.h only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "swiglu/files.hpp"

namespace swiglu::cli {

/// Throws shape, naming file and both numbers, unless `x` is [dim], [tokens, dim] or
/// [batch, tokens, dim]. Returns the number of tokens, which may be 0.
std::int64_t tokens_of(const Array& x, const std::filesystem::path& path, std::int64_t dim,
                       const std::filesystem::path& model);

/// The same numbers on every machine, for a given seed.
[[nodiscard]] std::vector<float> normal_input(std::int64_t count, std::uint64_t seed);
/// Student's t with 3 degrees of freedom: no fourth moment, so single elements dominate a norm, as
/// they do in the residual stream of a trained model.
[[nodiscard]] std::vector<float> heavy_tailed_input(std::int64_t count, std::uint64_t seed);

/// Tokens to try layers on, [tokens, dim].
struct Input {
  std::string name;
  std::vector<float> h;
  std::int64_t tokens;
};
/// Of the inputs that are made up.
inline constexpr std::uint64_t kInputSeed = 20240418;
/// The rows of `file`, or without one 4 normal and 4 heavy-tailed tokens. Throws what read_npy and tokens_of throw, and
/// usage for a file without tokens.
[[nodiscard]] std::vector<Input> make_inputs(const std::optional<std::filesystem::path>& file, std::int64_t dim,
                                             const std::filesystem::path& model);

}  // namespace swiglu::cli
