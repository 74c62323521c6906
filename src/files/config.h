// A Hugging Face config.json: the sublayer's numbers, and whether this family computes exactly Llama's
// feed-forward. Families are an allow-list; what is not on it is refused by name, because most others
// have the same tensor names and shapes and would be computed wrongly without any sign of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "files/source.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::files {

struct ModelConfig {
  std::string family;       ///< "llama", …; "" if the file does not say
  FfnConfig ffn;            ///< hidden_size, intermediate_size, rms_norm_eps (or options.eps)
  std::int64_t layers = 0;   ///< num_hidden_layers; untrusted: size nothing by it
  std::int64_t experts = 0;  ///< 0: no mixture of experts
  std::string hidden_key, experts_key;  ///< the names that hidden and experts have in the file
  std::vector<std::string> notes;
};

/// Throws format for numbers that are missing, no integers or out of range, unsupported for a family,
/// activation, expert, bias or quantisation that is not Llama's. All name the file and the key.
[[nodiscard]] ModelConfig read_config(const File& file, const OpenOptions& options);

}  // namespace swiglu::files
