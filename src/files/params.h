// Meta's params.json: the numbers the feed-forward needs, strictly read. Knows JSON and the width
// recipe; shapes of tensors are compared with it elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/json.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::files {

struct MetaParams {
  FfnConfig config;                    ///< hidden: stated, or what the recipe gives
  std::optional<std::int64_t> layers;  ///< n_layers
  std::string width_origin;            ///< which keys gave the width, for messages
  std::vector<std::string> notes;
};

/// `where` begins error texts: the file, escaped. Throws format for values that make no sense and
/// unsupported for quantised weights, adapters and experts; both name the key.
[[nodiscard]] MetaParams read_params(const Json& root, const std::string& where);

}  // namespace swiglu::files
