// Refusals of what is there already; see target.h.
#include "files/target.h"

#include <string>
#include <system_error>

#include <fmt/format.h>

#include "base/text.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::files {

void check_new_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  if (error) return;  // missing, or not a folder: OutputFolder will say so
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const std::string_view view = name;
    if (name == "config.json" || name == "params.json" || view.ends_with(".safetensors") ||
        view.ends_with(".safetensors.index.json") || view.ends_with(".gguf") ||
        (view.starts_with("consolidated.") && view.ends_with(".pth")) ||
        (view.starts_with("pytorch_model") && view.ends_with(".bin"))) {
      throw Error(ErrorCode::usage, fmt::format("{} already holds a checkpoint ({}); expected a new or empty folder",
                                                escaped(folder.string()), escaped(name)));
    }
  }
}

void check_new_file(const std::filesystem::path& path, int shards) {
  if (shards != 1) {
    throw Error(ErrorCode::usage, fmt::format("{}: {} shards do not fit one file; expected the name of a folder",
                                              escaped(path.string()), shards));
  }
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    throw Error(ErrorCode::usage,
                fmt::format("{} exists already; expected the name of a new file", escaped(path.string())));
  }
}

}  // namespace swiglu::files
