// Where results are written. Knows the front door only.
#pragma once

#include <filesystem>
#include <string_view>

#include "swiglu/files.hpp"

namespace swiglu::cli {

/// Throws io unless a file can be made at `output`: its folder must be writable, and what stands there
/// already must be a file (a rename would quietly replace a device such as /dev/null).
void check_writable(const std::filesystem::path& output);

/// An existing file is replaced only if it is empty or starts with `start`, as what this command writes does:
/// a MODEL that slipped into the place of the output's name must survive. Throws usage if it would not, io as
/// check_writable.
void check_replaceable(std::string_view flag, const std::filesystem::path& output, std::string_view start);

/// A new file at `output`, made now and visible on commit(), where check_replaceable allows it.
[[nodiscard]] NewFile open_output(std::string_view flag, const std::filesystem::path& output, std::string_view start);

/// What so many layers take in a checkpoint of `type`, about. In double: it is shown, and compared with what the disk
/// has; the writer checks for overflow.
[[nodiscard]] double weight_bytes(const FfnConfig& config, std::int64_t layers, TensorType type);
/// Throws io if fewer than `bytes` are free where `output` is to be.
void check_room(const std::filesystem::path& output, double bytes);

/// "Hugging Face", "Meta", "GGUF".
[[nodiscard]] std::string_view title_of(CheckpointFormat format);
/// On stderr: types that had to differ, and numbers that became Inf.
void tell_notes(const WrittenCheckpoint& written);

}  // namespace swiglu::cli
