// minizip walks the directory; it reads through our own callbacks, so a file can only be touched by
// positioned reads. minizip is forgiving: what it lets pass (bytes before the archive, local names that
// differ, overlapping payloads, wrong counts) is checked here. The only file that knows minizip.
#include "files/zip.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <span>

#include <fmt/format.h>
#include <minizip/unzip.h>
#include <zlib.h>

#include "base/text.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kLocalHeaderBytes = 30;
constexpr std::uint64_t kDirectoryEntryBytes = 46;
constexpr std::uint64_t kLocalHeader = 0x04034b50;
constexpr std::uint64_t kDescriptor = 0x08074b50;
constexpr std::uint64_t kDirectoryEntry = 0x02014b50;
constexpr std::uint64_t kEndRecord = 0x06054b50;
constexpr std::uint64_t kZip64EndRecord = 0x06064b50;
constexpr std::uint64_t kLocator = 0x07064b50;
constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kZip64EndBytes = 56;
constexpr std::uint64_t kLocatorBytes = 20;
constexpr std::uint64_t kMaxEntries = std::uint64_t{1} << 20;
constexpr unsigned kDescribed = 0x8;     // flag bit: sizes follow the payload
constexpr unsigned kEncrypted = 0x2041;  // flag bits: encrypted, strongly encrypted, masked headers

std::uint64_t little(const std::byte* bytes, int count) {
  std::uint64_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

// The file as minizip sees it. minizip reads byte by byte, hence the block. Exceptions must not cross C
// frames: they wait in `failure` while minizip sees an end of file.
class Stream {
 public:
  explicit Stream(const File& file) : file_(file) {}
  [[nodiscard]] zlib_filefunc64_def callbacks() {
    zlib_filefunc64_def functions{};
    functions.zopen64_file = [](voidpf self, const void*, int) -> voidpf { return self; };
    functions.zread_file = [](voidpf, voidpf self, void* to, uLong count) -> uLong {
      return static_cast<Stream*>(self)->read(static_cast<std::byte*>(to), count);
    };
    functions.zwrite_file = [](voidpf, voidpf, const void*, uLong) -> uLong { return 0; };
    functions.ztell64_file = [](voidpf, voidpf self) -> ZPOS64_T { return static_cast<Stream*>(self)->position_; };
    functions.zseek64_file = [](voidpf, voidpf self, ZPOS64_T offset, int origin) -> long {
      return static_cast<Stream*>(self)->seek(offset, origin) ? 0 : -1;
    };
    functions.zclose_file = [](voidpf, voidpf) -> int { return 0; };
    functions.zerror_file = [](voidpf, voidpf) -> int { return 0; };
    functions.opaque = this;
    return functions;
  }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  uLong read(std::byte* to, std::uint64_t count) noexcept {
    std::uint64_t done = 0;
    try {
      while (done < count && position_ < file_.size()) {
        if (position_ < block_start_ || position_ >= block_start_ + block_size_) {
          block_size_ = 0;
          const auto size = std::min<std::uint64_t>(block_.size(), file_.size() - position_);
          file_.read(position_, std::span(block_).first(size));
          block_start_ = position_;
          block_size_ = size;
        }
        const std::uint64_t from = position_ - block_start_;
        const std::uint64_t piece = std::min(count - done, block_size_ - from);
        std::memcpy(to + done, block_.data() + from, piece);
        done += piece;
        position_ += piece;
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
    return static_cast<uLong>(done);
  }
  bool seek(std::uint64_t offset, int origin) noexcept {
    // Unsigned wrap-around is meant: minizip passes negative steps as large numbers.
    const std::uint64_t base = origin == ZLIB_FILEFUNC_SEEK_CUR   ? position_
                               : origin == ZLIB_FILEFUNC_SEEK_END ? file_.size()
                                                                  : 0;
    if (base + offset > file_.size()) return false;
    position_ = base + offset;
    return true;
  }

  const File& file_;
  std::uint64_t position_ = 0;
  std::array<std::byte, 4096> block_{};
  std::uint64_t block_start_ = 0;
  std::uint64_t block_size_ = 0;
  std::exception_ptr failure_;
};

// Names are never used as paths; one that could be is a sign of an attack all the same.
bool safe_name(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != name.npos || name.find('\0') != name.npos)
    return false;
  for (std::size_t start = 0; start <= name.size();) {
    const std::size_t end = std::min(name.find('/', start), name.size());
    if (name.substr(start, end - start) == "..") return false;
    start = end + 1;
  }
  return true;
}

// One walk over the directory.
class DirectoryReader {
 public:
  DirectoryReader(const File& file, const std::string& where)
      : file_(file), where_(where), stream_(file), zip_(nullptr, unzClose) {}

  std::vector<ZipEntry> read() {
    zlib_filefunc64_def callbacks = stream_.callbacks();
    zip_.reset(unzOpen2_64("", &callbacks));
    stream_.rethrow();
    if (!zip_) fail("is truncated or not a zip archive: expected a central directory at its end, found none");
    unz_global_info64 global{};
    unzGetGlobalInfo64(zip_.get(), &global);
    count_ = global.number_entry;
    if (count_ == 0) fail("expected a zip archive with entries, found an empty one");
    if (count_ > kMaxEntries || count_ > file_.size() / (kLocalHeaderBytes + kDirectoryEntryBytes)) {
      fail(fmt::format("expected a zip archive, found an end record that counts {} entries in {} bytes", count_,
                       file_.size()));
    }
    std::vector<ZipEntry> entries;
    for (std::uint64_t i = 0; i < count_; ++i) entries.push_back(read_entry(i));
    check_end();
    check_layout(entries);
    return entries;
  }

 private:
  [[noreturn]] void fail(const std::string& text, ErrorCode code = ErrorCode::format) const {
    throw Error(code, fmt::format("{}: {}", where_, text));
  }

  std::uint64_t signature_at(std::uint64_t position) const {
    std::array<std::byte, 4> bytes{};
    if (position <= file_.size() - bytes.size()) file_.read(position, bytes);
    return little(bytes.data(), 4);
  }

  ZipEntry read_entry(std::uint64_t i) {
    int status = i == 0 ? unzGoToFirstFile(zip_.get()) : unzGoToNextFile(zip_.get());
    unz_file_info64 info{};
    if (status == UNZ_OK) status = unzGetCurrentFileInfo64(zip_.get(), &info, nullptr, 0, nullptr, 0, nullptr, 0);
    ZipEntry entry;
    entry.name.resize(info.size_filename);
    if (status == UNZ_OK) {
      status =
          unzGetCurrentFileInfo64(zip_.get(), &info, entry.name.data(), info.size_filename, nullptr, 0, nullptr, 0);
    }
    stream_.rethrow();
    const std::uint64_t position = unzGetOffset64(zip_.get());
    if (i == 0) {
      directory_ = position;
      if (signature_at(position) != kDirectoryEntry) {
        fail(fmt::format(
            "expected the zip directory at byte {}, where its end record puts it, found other bytes (the file "
            "is damaged, or something stands before the archive)",
            position));
      }
    }
    if (status != UNZ_OK) {
      fail(fmt::format("expected {} entries in the zip directory, found entry {} missing or malformed", count_, i));
    }
    after_last_ =
        position + kDirectoryEntryBytes + info.size_filename + info.size_file_extra + info.size_file_comment;

    const std::string shown = fmt::format("zip entry '{}'", escaped(entry.name));
    if (!safe_name(entry.name)) fail(shown + ": refuses a name that could lead out of a folder");
    if ((info.flag & kEncrypted) != 0) fail(shown + ": is marked as encrypted", ErrorCode::unsupported);
    if (info.compression_method != 0 && info.compression_method != Z_DEFLATED) {
      fail(fmt::format("{}: uses the unknown compression method {}", shown, std::uint64_t{info.compression_method}),
           ErrorCode::unsupported);
    }
    entry.stored = info.compression_method == 0;
    entry.size = info.compressed_size;
    entry.crc = static_cast<std::uint32_t>(info.crc);
    if (entry.stored && info.compressed_size != info.uncompressed_size) {
      fail(fmt::format("{}: expected equal sizes of a stored entry, found {} and {} bytes", shown, entry.size,
                       std::uint64_t{info.uncompressed_size}));
    }
    locate(entry, shown);
    return entry;
  }

  // minizip finds the local header by the directory's offset; here the header's own words are compared.
  void locate(ZipEntry& entry, const std::string& shown) {
    const int status = unzOpenCurrentFile2(zip_.get(), nullptr, nullptr, 1);
    stream_.rethrow();
    if (status != UNZ_OK) fail(shown + ": expected a local header that agrees with the directory, found none");
    entry.offset = unzGetCurrentFileZStreamPos64(zip_.get());
    const auto extra = static_cast<std::uint64_t>(std::max(0, unzGetLocalExtrafield(zip_.get(), nullptr, 0)));
    unzCloseCurrentFile(zip_.get());
    const std::uint64_t before = kLocalHeaderBytes + entry.name.size() + extra;
    if (entry.offset < before || entry.offset > file_.size()) {
      fail(fmt::format("{}: expected its bytes inside the file, found them at byte {}", shown, entry.offset));
    }
    entry.header = entry.offset - before;
    std::vector<std::byte> bytes(kLocalHeaderBytes + entry.name.size());
    file_.read(entry.header, bytes);
    const std::string_view name(reinterpret_cast<const char*>(bytes.data()) + kLocalHeaderBytes, entry.name.size());
    std::string wrong;
    if (little(bytes.data(), 4) != kLocalHeader) {
      wrong = "other bytes";
    } else if (little(bytes.data() + 26, 2) != entry.name.size() || little(bytes.data() + 28, 2) != extra) {
      wrong = "other lengths";
    } else if (name != entry.name) {
      wrong = fmt::format("the name '{}'", escaped(name));
    } else if ((little(bytes.data() + 6, 2) & kEncrypted) != 0) {
      wrong = "the mark of an encrypted entry";
    } else if (little(bytes.data() + 8, 2) != (entry.stored ? 0U : unsigned{Z_DEFLATED})) {
      wrong = "another compression method";
    }
    if (!wrong.empty()) {
      fail(fmt::format("{}: expected a local header that agrees with the directory at byte {}, found {}", shown,
                       entry.header, wrong));
    }
    entry.described = (little(bytes.data() + 6, 2) & kDescribed) != 0;
    std::array<std::byte, 8> after{};
    if (entry.described && entry.size <= file_.size() - entry.offset &&
        after.size() <= file_.size() - entry.offset - entry.size) {
      file_.read(entry.offset + entry.size, after);
    }
    // The descriptor's signature is optional.
    const bool agrees = little(after.data(), 4) == entry.crc ||
                        (little(after.data(), 4) == kDescriptor && little(after.data() + 4, 4) == entry.crc);
    if (entry.described && !agrees) {
      fail(fmt::format("{}: expected a data descriptor after its {} bytes at {}, found other bytes", shown,
                       entry.size, entry.offset));
    }
  }

  // The directory is followed by its end records and nothing else, up to the last byte of the file.
  void check_end() const {
    std::uint64_t position = after_last_;
    if (signature_at(position) == kZip64EndRecord) {
      std::array<std::byte, kZip64EndBytes + kLocatorBytes> records{};
      if (records.size() <= file_.size() - position) file_.read(position, records);
      const std::byte* locator = records.data() + kZip64EndBytes;
      if (little(records.data() + 4, 8) != kZip64EndBytes - 12 || little(locator, 4) != kLocator ||
          little(locator + 8, 8) != position) {
        fail(fmt::format("expected zip64 end records at byte {}, found other bytes", position));
      }
      position += records.size();
    }
    std::array<std::byte, kEndBytes> record{};
    if (position <= file_.size() && record.size() <= file_.size() - position) file_.read(position, record);
    if (little(record.data(), 4) != kEndRecord) {
      fail(fmt::format("is truncated or damaged: expected the end of the zip directory after {} entries, at byte {}",
                       count_, position));
    }
    const std::uint64_t end = position + record.size() + little(record.data() + 20, 2);
    if (end != file_.size()) {
      fail(fmt::format("expected the zip archive to end at byte {}, found {} bytes", end, file_.size()));
    }
  }

  // Sorts by name; names are unique, and the payloads lie one after the other before the directory.
  void check_layout(std::vector<ZipEntry>& entries) const {
    std::sort(entries.begin(), entries.end(), [](const ZipEntry& a, const ZipEntry& b) { return a.name < b.name; });
    std::vector<const ZipEntry*> by_place;
    for (const ZipEntry& entry : entries) {
      if (!by_place.empty() && by_place.back()->name == entry.name) {
        fail(fmt::format("zip entry '{}': expected each name once, found it twice", escaped(entry.name)));
      }
      by_place.push_back(&entry);
    }
    std::sort(by_place.begin(), by_place.end(),
              [](const ZipEntry* a, const ZipEntry* b) { return a->header < b->header; });
    for (std::size_t i = 0; i < by_place.size(); ++i) {
      const ZipEntry& entry = *by_place[i];
      const ZipEntry* next = i + 1 < by_place.size() ? by_place[i + 1] : nullptr;
      const std::uint64_t end = next != nullptr ? next->header : directory_;
      const bool inside = entry.offset <= end && entry.size <= end - entry.offset;
      if (inside && (entry.described || entry.offset + entry.size == end)) continue;
      fail(fmt::format("zip entry '{}': expected {} bytes from byte {} on and then {}, found {} at byte {}",
                       escaped(entry.name), entry.size, entry.offset,
                       entry.described ? "a descriptor" : "the next entry",
                       next != nullptr ? "entry '" + escaped(next->name) + "'" : std::string("the directory"), end));
    }
  }

  const File& file_;
  const std::string& where_;
  Stream stream_;
  std::unique_ptr<void, int (*)(unzFile)> zip_;
  std::uint64_t count_ = 0;
  std::uint64_t directory_ = 0;   // where the end record says the directory begins
  std::uint64_t after_last_ = 0;  // where an entry after the last one read would be
};

}  // namespace

ZipArchive::ZipArchive(std::shared_ptr<const File> file)
    : file_(std::move(file)), where_(escaped(file_->name())), entries_(DirectoryReader(*file_, where_).read()) {}

const ZipEntry* ZipArchive::find(std::string_view name) const noexcept {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                                   [](const ZipEntry& entry, std::string_view n) { return entry.name < n; });
  return at != entries_.end() && at->name == name ? &*at : nullptr;
}

std::string ZipArchive::read(const ZipEntry& entry, std::uint64_t limit) const {
  if (!entry.stored) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: zip entry '{}': expected stored bytes, found compressed ones (torch.save never compresses: "
                    "zip the file again without compression)",
                    where_, escaped(entry.name)));
  }
  if (entry.size > limit) {
    throw Error(ErrorCode::unsupported, fmt::format("{}: zip entry '{}': expected at most {} bytes, found {}", where_,
                                                    escaped(entry.name), limit, entry.size));
  }
  std::string bytes(entry.size, '\0');
  file_->read(entry.offset, std::as_writable_bytes(std::span(bytes)));
  const auto found =
      static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  if (found != entry.crc) crc_differs(entry, found);
  return bytes;
}

void ZipArchive::check_crc(const ZipEntry& entry) const {
  std::vector<std::byte> block(std::min<std::uint64_t>(entry.size, std::uint64_t{1} << 20));
  uLong crc = crc32_z(0, nullptr, 0);
  for (std::uint64_t done = 0; done < entry.size;) {
    const auto piece = std::span(block).first(std::min<std::uint64_t>(block.size(), entry.size - done));
    file_->read(entry.offset + done, piece);
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
    done += piece.size();
  }
  if (static_cast<std::uint32_t>(crc) != entry.crc) crc_differs(entry, static_cast<std::uint32_t>(crc));
}

void ZipArchive::crc_differs(const ZipEntry& entry, std::uint32_t found) const {
  throw Error(ErrorCode::format,
              fmt::format("{}: zip entry '{}': expected checksum {:08x}, found {:08x}: its bytes are damaged", where_,
                          escaped(entry.name), entry.crc, found));
}

}  // namespace swiglu::files
