// GGUF files as checkpoints.
#include <fmt/format.h>

#include "base/text.h"
#include "files/checkpoint.h"

namespace swiglu::files {

Contents open_gguf(const std::filesystem::path& path, const OpenOptions& /*options*/) {
  throw Error(ErrorCode::unsupported, fmt::format("{}: a GGUF file, which is not supported", escaped(path.string())));
}

}  // namespace swiglu::files
