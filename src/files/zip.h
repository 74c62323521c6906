// The directory of a zip archive as facts: where each entry's bytes lie in the file, proved against its
// own local header. Knows nothing of what the entries mean. Payloads are never decompressed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/source.h"

namespace swiglu::files {

struct ZipEntry {
  std::string name;
  std::uint64_t header = 0;  ///< of the local header in the file
  std::uint64_t offset = 0;  ///< of the payload in the file
  std::uint64_t size = 0;    ///< of the payload as it lies there
  std::uint32_t crc = 0;     ///< of the uncompressed bytes, as the directory states it
  bool described = false;    ///< sizes and checksum follow the payload
  bool stored = true;        ///< false: compressed, so its bytes are of no use to us
};

class ZipArchive {
 public:
  /// Reads the directory. Throws format for anything inconsistent (names that repeat or could leave a
  /// folder, local headers that disagree, payloads that overlap, leave the file or leave holes: a hole
  /// is how a payload shifted by a damaged length shows), unsupported for encryption and unknown
  /// compression. Archive comments, missing zip64 records and payloads at any alignment are fine; bytes
  /// before or after the archive are not.
  explicit ZipArchive(std::shared_ptr<const File> file);

  /// By name, ascending.
  [[nodiscard]] const std::vector<ZipEntry>& entries() const noexcept { return entries_; }
  /// Null when there is none of that name.
  [[nodiscard]] const ZipEntry* find(std::string_view name) const noexcept;

  /// The bytes of a stored entry of at most `limit` bytes, its checksum verified.
  [[nodiscard]] std::string read(const ZipEntry& entry, std::uint64_t limit) const;
  /// Verifies the checksum of a stored entry of any size, a block at a time.
  void check_crc(const ZipEntry& entry) const;

 private:
  [[noreturn]] void crc_differs(const ZipEntry& entry, std::uint32_t found) const;

  std::shared_ptr<const File> file_;
  std::string where_;  ///< the file's name, escaped
  std::vector<ZipEntry> entries_;
};

}  // namespace swiglu::files
