// Where activations come from: a .npy file, or a seed. Knows the front door and elements.h only.
#pragma once

#include <cstdint>
#include <filesystem>
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

}  // namespace swiglu::cli
