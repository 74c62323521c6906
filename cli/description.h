// A model's config.json or params.json for a converted copy of it: the text as it is, with the few values changed that
// the conversion changed. Knows JSON as far as that needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "commands.h"

namespace swiglu::cli {

/// `json` with the value of `key`, a number or a string, replaced by `value`; nothing unless the key stands in it
/// exactly once, as a key. The text has been read as JSON before.
[[nodiscard]] std::optional<std::string> with_value(std::string_view json, std::string_view key,
                                                    std::string_view value);

/// What OUT's config.json or params.json is to be; nothing: made from the recipe. Kept where source and target are of
/// one format and its words still hold: config.json for all layers only, as some of its keys list layers.
/// `layers` are converted; `decoded` says that weights are not stored as the text says.
[[nodiscard]] std::optional<std::string> kept_description(const ConvertOptions& options, const Checkpoint& model,
                                                          std::int64_t layers, bool decoded);

}  // namespace swiglu::cli
