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

}  // namespace swiglu::cli
