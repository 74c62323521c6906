// Causes that lie in the hidden units: their order, shards exchanged, repeated or missing. A unit is a row of gate, the
// same row of up and the same column of down. Pure functions of the evidence.
#pragma once

#include <string>
#include <vector>

#include "compare_causes.h"

namespace swiglu::cli {

/// Of layers of one width; `open` are the matrices not accounted for yet.
[[nodiscard]] std::vector<Cause> explain_units(const Evidence& evidence, const std::vector<Role>& open);

/// Of layers whose hidden differ.
[[nodiscard]] std::vector<Cause> explain_width(const Evidence& evidence);
/// What to say where that finds nothing.
[[nodiscard]] std::string unknown_width(const Evidence& evidence);

}  // namespace swiglu::cli
