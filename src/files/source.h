// The wall between bytes and weights, seen from the files side: a file that is read at positions, and
// TensorSources over ranges of it. Everything here is checked against the file's size before use.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/encoding.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::files {

/// How many bytes have been read from the files that share it.
using ReadCounter = std::atomic<std::uint64_t>;

/// A regular file opened for positioned reads. Safe for several threads.
class File {
 public:
  /// Throws not_found or io; refuses directories and anything without a size. `counter`, if any, is told of reads.
  explicit File(const std::filesystem::path& path, std::shared_ptr<ReadCounter> counter = nullptr);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::string name() const { return path_.string(); }  ///< for messages; escape it there
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// Reads exactly `bytes` at `offset`. Throws io when the file has become shorter.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// The same bytes as memory that all processes share, unmapped with the last copy of the pointer. `offset` is
  /// a multiple of the page. Throws io, also when the file has become shorter, or no_memory.
  [[nodiscard]] std::shared_ptr<const std::byte> map(std::uint64_t offset, std::size_t bytes) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<ReadCounter> counter_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

/// A strided matrix inside a file: element (r, c) is at byte offset + (r * row_stride + c * col_stride)
/// * element size. Strides in elements. The caller has checked that every element is inside the file.
struct FileMatrix {
  std::shared_ptr<const File> file;
  std::uint64_t offset = 0;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;
};
[[nodiscard]] std::shared_ptr<const TensorSource> make_source(std::string name, FileMatrix matrix);

/// A matrix of encoded rows inside a file: row r begins at byte offset + r * row_bytes. The caller has checked that
/// every row is inside the file and that cols is a multiple of the encoding's block.
struct EncodedMatrix {
  std::shared_ptr<const File> file;
  std::uint64_t offset = 0;
  const Encoding* encoding = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_bytes = 0;
};
/// The decoded values, as f32.
[[nodiscard]] std::shared_ptr<const TensorSource> make_decoded_source(std::string name, EncodedMatrix matrix);
/// Every element of a row times that row's factor, which counts as an f32, rounded once to f32. `values` is f32;
/// `factors` has one column.
[[nodiscard]] std::shared_ptr<const TensorSource> scale_rows(std::shared_ptr<const TensorSource> values,
                                                             std::shared_ptr<const TensorSource> factors);

/// Parts of one matrix, joined along rows (dim 0) or columns (dim 1); the other dimension and the
/// type agree (checked by the caller).
[[nodiscard]] std::shared_ptr<const TensorSource> join_rows(std::string name,
                                                            std::vector<std::shared_ptr<const TensorSource>> parts);
[[nodiscard]] std::shared_ptr<const TensorSource> join_cols(std::string name,
                                                            std::vector<std::shared_ptr<const TensorSource>> parts);

/// What the first bytes say a file is, for messages: "an HTML page (a failed download)", "a Git-LFS
/// pointer …", "a zip archive", "a GGUF file", … or "" if they say nothing.
[[nodiscard]] std::string describe_contents(const File& file);

/// a * b and a + b, or false when they do not fit.
[[nodiscard]] bool checked_mul(std::uint64_t a, std::uint64_t b, std::uint64_t& product) noexcept;
[[nodiscard]] bool checked_add(std::uint64_t a, std::uint64_t b, std::uint64_t& sum) noexcept;

}  // namespace swiglu::files
