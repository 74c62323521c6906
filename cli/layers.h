// Which layers of a model a command was told to take. Knows the front door only.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

/// The numbers in `ranges`, ascending; all of the model's where there are none. Throws usage for a layer that the model
/// does not have, not_found for a model without any.
[[nodiscard]] std::vector<std::int64_t> choose_layers(const std::filesystem::path& path, const Checkpoint& model,
                                                      std::span<const std::pair<std::int64_t, std::int64_t>> ranges);

}  // namespace swiglu::cli
