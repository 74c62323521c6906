// Where a checkpoint may be written: never over anything. Knows by which names readers find checkpoints.
#pragma once

#include <filesystem>
#include <string_view>

namespace swiglu::files {

/// Throws usage if `folder` holds what a reader would take for weights or their description, complete or not. `caller`
/// is the function in whose name is spoken.
void check_new_folder(const std::filesystem::path& folder, std::string_view caller);

/// Throws usage unless `path` is free and one file is to be written.
void check_new_file(const std::filesystem::path& path, int shards, std::string_view caller);

}  // namespace swiglu::files
