// Files being written: under a temporary name until complete, gone if anything fails. Also what the two
// checkpoint writers share: the slices of a tensor, and a folder whose files appear together or not at
// all. Knows the operating system and CheckpointRecipe, no file format.
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

/// A tensor as it stands in one file: the whole or, in a shard, a part of the layer's matrix.
struct OutputTensor {
  std::string name;
  std::int64_t layer = 0;
  std::string role;  ///< "gate", "up", "down" or "norm"
  std::int64_t row0 = 0, rows = 0, col0 = 0, cols = 0;

  [[nodiscard]] bool is_vector() const { return role == "norm"; }  ///< its shape is [cols], not [1, cols]
};

/// Writes tensors a few MiB at a time, so that memory stays bounded whatever their size, and reports
/// progress over all of them.
class TensorStream {
 public:
  /// `total` bytes will be written in all. The references must outlive this object.
  TensorStream(const CheckpointRecipe& recipe, const FillTensor& fill, std::int64_t total);
  /// Appends the tensor's elements; `seen`, if not empty, gets every slice that was written.
  void append(OutputFile& file, const OutputTensor& tensor,
              const std::function<void(std::span<const std::byte>)>& seen = {});
  [[nodiscard]] std::uint64_t size_bytes(const OutputTensor& tensor) const noexcept;

 private:
  const CheckpointRecipe& recipe_;
  const FillTensor& fill_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  std::vector<std::byte> slice_;
};

/// The shortest text that reads back as the same double, with a point or an exponent, as Python's json
/// writes it: 1e-05, 1.3, 1.0. `value` is finite.
[[nodiscard]] std::string json_number(double value);

/// A number of attention heads that divides dim (128 wide where possible); configurations want one.
[[nodiscard]] std::int64_t plausible_heads(std::int64_t dim) noexcept;

/// The two formats. The recipe has been checked; `folder` holds no checkpoint.
void write_huggingface(OutputFolder& folder, const CheckpointRecipe& recipe, const FillTensor& fill);
void write_meta(OutputFolder& folder, const CheckpointRecipe& recipe, const FillTensor& fill);

}  // namespace swiglu::files
