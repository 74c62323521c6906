// Models copied as they are, within their format: what the formats share. Knows bytes and sizes of tensors, not what
// they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "files/checkpoint.h"
#include "files/output.h"
#include "files/tensor_table.h"

namespace swiglu::files {

/// A model's weight files, in their order, and how they are to be written.
struct CopyJob {
  std::vector<std::shared_ptr<const File>> files;
  std::filesystem::path folder;  ///< whose other files come along; empty for a model that is a file by its own path
  std::filesystem::path target;
  int shards = 1;
  std::function<void(std::int64_t, std::int64_t)> progress;
};

struct CopiedTensor {
  std::string name;
  StoredTensor stored;
};

/// Bytes on their way from file to file, a few MiB at a time.
class RawStream {
 public:
  /// `total` bytes will be copied in all. Reports at once that none are yet.
  RawStream(const CopyJob& job, std::uint64_t total);
  void append(OutputFile& to, const File& from, std::uint64_t offset, std::uint64_t bytes);

 private:
  const CopyJob& job_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
  std::vector<std::byte> slice_;
};

/// The formats. What can be refused without writing is refused before the target exists.
[[nodiscard]] WrittenCheckpoint copy_huggingface(const CopyJob& job);
[[nodiscard]] WrittenCheckpoint copy_gguf(const CopyJob& job);

}  // namespace swiglu::files
