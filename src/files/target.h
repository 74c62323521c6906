// Where a checkpoint may be written: never over anything. Knows by which names readers find checkpoints.
#pragma once

#include <filesystem>

namespace swiglu::files {

/// Throws usage if `folder` holds what a reader would take for weights or their description, complete or not.
void check_new_folder(const std::filesystem::path& folder);

/// Throws usage unless `path` is free and one file is to be written.
void check_new_file(const std::filesystem::path& path, int shards);

}  // namespace swiglu::files
