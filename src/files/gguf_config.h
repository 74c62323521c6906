// What a GGUF file's keys say about the feed-forward. Knows keys and architectures, no tensors.
#pragma once

#include <string>
#include <vector>

#include "files/gguf.h"
#include "files/layers.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::files {

struct GgufConfig {
  std::string family;  ///< general.architecture
  double eps = 0;
  Statement stated;
  std::vector<std::string> notes;
};

/// Throws unsupported for an architecture or a key that changes what the sublayer computes, format for a key that is
/// missing or no number of its kind; both name the key.
[[nodiscard]] GgufConfig read_gguf_config(const GgufFile& file, const OpenOptions& options);

}  // namespace swiglu::files
