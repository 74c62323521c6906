// Files being written: under a temporary name until complete, gone if anything fails; and a folder whose files
// appear together or not at all. Knows the operating system, no file format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "swiglu/files.hpp"

namespace swiglu::files {

/// A new file, invisible under `path` until commit() renames it there (replacing what was there).
/// Destroyed without commit, it leaves nothing. A symbolic link is followed; a device, pipe or folder
/// in the way is refused. Every failure is an Error (io; not_found for a missing folder) that names
/// `path` and the system's reason.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }  ///< bytes written so far
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// The file is complete: closes and renames it. Nothing may be written afterwards.
  void commit();

 private:
  [[noreturn]] void fail(const char* what, int error) const;
  void discard() noexcept;

  std::filesystem::path path_;       ///< as the caller named it, for messages
  std::filesystem::path target_;     ///< with links followed
  std::filesystem::path temporary_;  ///< empty once committed
  int fd_ = -1;
  std::uint64_t position_ = 0;
};

/// A folder that files are added to. Unless keep() is called, the destructor removes the files that were
/// added and the folders that this object made.
class OutputFolder {
 public:
  /// Makes the folder, with its parents, if missing.
  explicit OutputFolder(std::filesystem::path path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// Adds the file `name` with the contents that `make` writes.
  void add(const std::string& name, const std::function<void(OutputFile&)>& make);
  void keep() noexcept { kept_ = true; }

 private:
  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;   ///< folders, outermost first
  std::vector<std::filesystem::path> added_;  ///< files
  bool kept_ = false;
};

}  // namespace swiglu::files
