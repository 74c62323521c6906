// What may be written where; see outputs.h.
#include "outputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>

#include "report.h"

namespace swiglu::cli {

void check_writable(const std::filesystem::path& output) {
  const auto refuse = [&](std::string_view why) {
    throw Error(ErrorCode::io, fmt::format("{}: cannot be written: {}", printable(output.string()), why));
  };
  if (!output.has_filename()) refuse("a file name is expected, not a folder");
  std::error_code ignored;
  const auto present = std::filesystem::status(output, ignored);
  if (std::filesystem::is_directory(present)) refuse("it is a folder");
  if (std::filesystem::exists(present) && !std::filesystem::is_regular_file(present))
    refuse("it is not a regular file");
  const std::filesystem::path folder = output.has_parent_path() ? output.parent_path() : ".";
  if (!std::filesystem::is_directory(folder, ignored)) {
    refuse(fmt::format("{} is not a folder", printable(folder.string())));
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    refuse(fmt::format("{}: {}", printable(folder.string()), std::strerror(errno)));
  }
}

void check_replaceable(std::string_view flag, const std::filesystem::path& output, std::string_view start) {
  check_writable(output);
  std::ifstream present(output, std::ios::binary);
  std::string bytes(start.size(), '\0');
  if (present.is_open()) {
    present.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    bytes.resize(static_cast<std::size_t>(present.gcount()));
    if (!bytes.empty() && bytes != start) {
      throw Error(ErrorCode::usage, fmt::format("{} {}: this file exists and is none that {} writes: not replaced",
                                                flag, printable(output.string()), flag));
    }
  }
}

NewFile open_output(std::string_view flag, const std::filesystem::path& output, std::string_view start) {
  check_replaceable(flag, output, start);
  return NewFile(output);
}

double weight_bytes(const FfnConfig& config, std::int64_t layers, TensorType type) {
  constexpr double kBytes[] = {4, 2, 2, 8, 34.0 / 32, 18.0 / 32};  // by TensorType
  const auto dim = static_cast<double>(config.dim);
  const auto hidden = static_cast<double>(config.hidden);
  return static_cast<double>(layers) * (3 * dim * hidden + dim) * kBytes[static_cast<int>(type)];
}

void check_room(const std::filesystem::path& output, double bytes) {
  std::filesystem::path existing = std::filesystem::absolute(output);
  std::error_code fault;
  while (!std::filesystem::exists(existing, fault) && existing.has_relative_path()) existing = existing.parent_path();
  const auto room = std::filesystem::space(existing, fault);
  if (fault || bytes <= static_cast<double>(room.available)) return;
  throw Error(ErrorCode::io, fmt::format("{}: {} are needed, {} are free", printable(output.string()),
                                         format_bytes(bytes), format_bytes(static_cast<double>(room.available))));
}

std::string_view title_of(CheckpointFormat format) {
  constexpr std::string_view kTitles[] = {"Hugging Face", "Meta", "GGUF"};
  return kTitles[static_cast<int>(format)];
}

void tell_notes(const WrittenCheckpoint& written) {
  for (const std::string& note : written.notes) tell(fmt::format("swiglu: note: {}\n", note));
  if (written.overflowed == 0) return;
  tell(fmt::format("swiglu: warning: {} too large for the type and became Inf\n",
                   written.overflowed == 1 ? "1 weight is" : fmt::format("{} weights are", written.overflowed)));
}

}  // namespace swiglu::cli
