// Reads the directory as APPNOTE.TXT describes it and demands more than most readers do: what is written
// twice must agree, nothing may overlap, and nothing may lie between the entries or around them.
// Own code on purpose: Debian's minizip never reads zip64 extra fields where long has 64 bits, so it
// fails on every checkpoint above 4 GiB, and forgives the contradictions that matter here.
#include "files/zip.h"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/format.h>
#include <zlib.h>

#include "base/text.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kLocalHeader = 0x04034b50;
constexpr std::uint64_t kDescriptor = 0x08074b50;
constexpr std::uint64_t kDirectoryEntry = 0x02014b50;
constexpr std::uint64_t kEndRecord = 0x06054b50;
constexpr std::uint64_t kZip64EndRecord = 0x06064b50;
constexpr std::uint64_t kLocator = 0x07064b50;
constexpr std::size_t kLocalHeaderBytes = 30;
constexpr std::size_t kDirectoryEntryBytes = 46;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kZip64EndBytes = 56;
constexpr std::size_t kLocatorBytes = 20;
constexpr std::size_t kMaxComment = 0xffff;
constexpr std::uint64_t kMax16 = 0xffff;
constexpr std::uint64_t kMax32 = 0xffffffff;  // in a 32-bit field: see the zip64 record
constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{1} << 25;  // 100000 tensors take 10 MB
constexpr unsigned kDescribed = 0x8;     // flag bit: sizes and checksum follow the payload
constexpr unsigned kEncrypted = 0x2041;  // flag bits: encrypted, strongly encrypted, masked headers
constexpr unsigned kStored = 0;
constexpr unsigned kDeflated = 8;

std::uint64_t little(std::string_view bytes, std::size_t at, int count) {
  std::uint64_t value = 0;
  for (int i = count - 1; i >= 0; --i) {
    value = value << 8 | static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)]);
  }
  return value;
}

// Names are never used as paths; one that could be is a sign of an attack all the same.
bool safe_name(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != name.npos || name.find('\0') != name.npos) return false;
  for (std::size_t start = 0; start <= name.size();) {
    const std::size_t end = std::min(name.find('/', start), name.size());
    if (name.substr(start, end - start) == "..") return false;
    start = end + 1;
  }
  return true;
}

class DirectoryReader {
 public:
  DirectoryReader(const File& file, const std::string& where) : file_(file), where_(where) {}

  std::vector<ZipEntry> read() {
    read_end_records();
    const std::string directory = bytes_at(directory_, directory_bytes_);
    std::vector<ZipEntry> entries;
    std::size_t position = 0;
    for (std::uint64_t i = 0; i < count_; ++i) {
      entries.push_back(read_entry(directory, position));
      check_local_header(entries.back());
    }
    if (position != directory.size()) {
      fail(fmt::format("expected {} entries in the zip directory, as its end record counts, found more", count_));
    }
    check_layout(entries);
    return entries;
  }

 private:
  [[noreturn]] void fail(const std::string& text, ErrorCode code = ErrorCode::format) const {
    throw Error(code, fmt::format("{}: {}", where_, text));
  }
  [[nodiscard]] std::string bytes_at(std::uint64_t offset, std::uint64_t size) const {
    std::string bytes(size, '\0');
    file_.read(offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  // The last record of the file, which ends with it; before it the zip64 records, if there are any;
  // directly before those the directory. So nothing can hide before, between or after.
  void read_end_records() {
    const std::uint64_t size = file_.size();
    const std::string tail = bytes_at(size - std::min<std::uint64_t>(size, kEndBytes + kMaxComment),
                                      std::min<std::uint64_t>(size, kEndBytes + kMaxComment));
    std::size_t at = tail.size() < kEndBytes ? tail.npos : tail.size() - kEndBytes;
    for (; at != tail.npos; at = at == 0 ? tail.npos : at - 1) {
      if (little(tail, at, 4) == kEndRecord && little(tail, at + 20, 2) == tail.size() - at - kEndBytes) break;
    }
    if (at == tail.npos) {
      fail("is truncated or not a zip archive: expected the end record of a directory at its end, found none");
    }
    const std::string_view record = std::string_view(tail).substr(at);
    std::uint64_t end = size - (tail.size() - at);  // of the directory
    count_ = little(record, 10, 2);
    directory_bytes_ = little(record, 12, 4);
    directory_ = little(record, 16, 4);
    const bool one_disk = little(record, 4, 4) == 0 && little(record, 8, 2) == count_;
    if (!one_disk) fail("expected a zip archive in one file, found a part of several");
    if (end >= kLocatorBytes + kZip64EndBytes && little(bytes_at(end - kLocatorBytes, 4), 0, 4) == kLocator) {
      end -= kLocatorBytes + kZip64EndBytes;
      read_zip64_record(end);
    }
    if (directory_ > end || directory_bytes_ != end - directory_) {
      fail(
          fmt::format("expected {} bytes of zip directory at {}, as its end record says, found {} before that record "
                      "(the file is damaged, or something stands before the archive)",
                      directory_bytes_, directory_, end - std::min(end, directory_)));
    }
    if (count_ == 0) fail("expected a zip archive with entries, found an empty one");
    if (count_ > directory_bytes_ / kDirectoryEntryBytes || directory_bytes_ > kMaxDirectoryBytes) {
      fail(fmt::format("expected a zip directory, found one of {} entries in {} bytes", count_, directory_bytes_));
    }
  }

  void read_zip64_record(std::uint64_t at) {
    const std::string record = bytes_at(at, kZip64EndBytes + kLocatorBytes);
    const std::uint64_t count = little(record, 32, 8);
    const std::uint64_t bytes = little(record, 40, 8);
    const std::uint64_t offset = little(record, 48, 8);
    const bool found = little(record, 0, 4) == kZip64EndRecord && little(record, 4, 8) == kZip64EndBytes - 12 &&
                       little(record, kZip64EndBytes + 8, 8) == at;
    if (!found || little(record, 16, 8) != 0 || little(record, 24, 8) != count) {
      fail(fmt::format("expected the zip64 end record at byte {}, found other bytes", at));
    }
    const auto agree = [](std::uint64_t narrow, std::uint64_t wide, std::uint64_t max) {
      return narrow == wide || narrow == max;
    };
    if (!agree(count_, count, kMax16) || !agree(directory_bytes_, bytes, kMax32) ||
        !agree(directory_, offset, kMax32)) {
      fail(fmt::format("expected end records that agree, found {} and {} entries", count_, count));
    }
    count_ = count;
    directory_bytes_ = bytes;
    directory_ = offset;
  }

  ZipEntry read_entry(std::string_view directory, std::size_t& position) const {
    const std::string_view fixed = directory.substr(position);
    if (fixed.size() < kDirectoryEntryBytes || little(fixed, 0, 4) != kDirectoryEntry) {
      fail(fmt::format("expected {} entries in the zip directory, found other bytes at byte {}", count_,
                       directory_ + position));
    }
    const std::size_t name_bytes = little(fixed, 28, 2);
    const std::size_t extra_bytes = little(fixed, 30, 2);
    const std::size_t whole = kDirectoryEntryBytes + name_bytes + extra_bytes + little(fixed, 32, 2);
    if (whole > fixed.size()) {
      fail(fmt::format("expected a zip directory entry of {} bytes at byte {}, found {}", whole, directory_ + position,
                       fixed.size()));
    }
    position += whole;

    ZipEntry entry;
    entry.name = fixed.substr(kDirectoryEntryBytes, name_bytes);
    const std::string shown = fmt::format("zip entry '{}'", escaped(entry.name));
    if (!safe_name(entry.name)) fail(shown + ": refuses a name that could lead out of a folder");
    if ((little(fixed, 8, 2) & kEncrypted) != 0) fail(shown + ": is marked as encrypted", ErrorCode::unsupported);
    const std::uint64_t method = little(fixed, 10, 2);
    if (method != kStored && method != kDeflated) {
      fail(fmt::format("{}: uses the unknown compression method {}", shown, method), ErrorCode::unsupported);
    }
    entry.stored = method == kStored;
    entry.crc = static_cast<std::uint32_t>(little(fixed, 16, 4));
    std::uint64_t original = little(fixed, 24, 4);
    entry.size = little(fixed, 20, 4);
    entry.header = little(fixed, 42, 4);
    widen(fixed.substr(kDirectoryEntryBytes + name_bytes, extra_bytes), {&original, &entry.size, &entry.header}, shown);
    if (entry.stored && entry.size != original) {
      fail(fmt::format("{}: expected equal sizes of a stored entry, found {} and {} bytes", shown, entry.size,
                       original));
    }
    return entry;
  }

  // Fields that say "see the zip64 extra field" take their values from there, in this order.
  void widen(std::string_view extra, std::array<std::uint64_t*, 3> fields, const std::string& shown) const {
    std::string_view wide;
    while (extra.size() >= 4) {
      const std::size_t size = std::min<std::size_t>(little(extra, 2, 2), extra.size() - 4);
      if (little(extra, 0, 2) == 1) wide = extra.substr(4, size);
      extra.remove_prefix(4 + size);
    }
    for (std::uint64_t* field : fields) {
      if (*field != kMax32) continue;
      if (wide.size() < 8) fail(shown + ": expected a zip64 extra field with its sizes, found none");
      *field = little(wide, 0, 8);
      wide.remove_prefix(8);
    }
  }

  // The payload is where the local header says it is; so that header is compared word by word.
  void check_local_header(ZipEntry& entry) const {
    const std::string shown = fmt::format("zip entry '{}'", escaped(entry.name));
    const std::size_t wanted = kLocalHeaderBytes + entry.name.size();
    if (entry.header > directory_ || wanted > directory_ - entry.header) {
      fail(fmt::format("{}: expected its local header before the directory, found it at byte {}", shown, entry.header));
    }
    const std::string bytes = bytes_at(entry.header, wanted);
    const std::string_view name = std::string_view(bytes).substr(kLocalHeaderBytes);
    const std::uint64_t flags = little(bytes, 6, 2);
    entry.described = (flags & kDescribed) != 0;
    entry.offset = entry.header + wanted + little(bytes, 28, 2);
    const std::uint64_t size = little(bytes, 18, 4);
    const bool same_sizes = little(bytes, 14, 4) == entry.crc && (size == entry.size || size == kMax32);
    std::string wrong;
    if (little(bytes, 0, 4) != kLocalHeader) {
      wrong = "other bytes";
    } else if (little(bytes, 26, 2) != entry.name.size() || name != entry.name) {
      wrong = fmt::format("the name '{}'", escaped(name));
    } else if ((flags & kEncrypted) != 0) {
      wrong = "the mark of an encrypted entry";
    } else if (little(bytes, 8, 2) != (entry.stored ? kStored : kDeflated)) {
      wrong = "another compression method";
    } else if (!entry.described && !same_sizes) {
      wrong = "another size or checksum";
    }
    if (!wrong.empty()) {
      fail(fmt::format("{}: expected a local header that agrees with the directory at byte {}, found {}", shown,
                       entry.header, wrong));
    }
    if (entry.described) check_descriptor(entry, shown);
  }

  void check_descriptor(const ZipEntry& entry, const std::string& shown) const {
    std::string after(8, '\0');
    if (entry.offset <= directory_ && entry.size <= directory_ - entry.offset) {
      after = bytes_at(entry.offset + entry.size, after.size());  // end records follow: 8 bytes are there
    }
    // APPNOTE lets writers omit the signature; none does, and without it a payload shifted by 4 bytes passes.
    if (little(after, 0, 4) == kDescriptor && little(after, 4, 4) == entry.crc) return;
    fail(fmt::format("{}: expected a data descriptor after its {} bytes at {}, found other bytes", shown, entry.size,
                     entry.offset));
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
      if (entry.offset <= end && entry.size <= end - entry.offset) {
        const std::uint64_t gap = end - entry.offset - entry.size;
        // After the payload: nothing, or a descriptor with 32 or 64-bit sizes.
        if (entry.described ? gap == 16 || gap == 24 : gap == 0) continue;
      }
      fail(fmt::format("zip entry '{}': expected {} bytes from byte {} on and then {}, found {} at byte {}",
                       escaped(entry.name), entry.size, entry.offset,
                       entry.described ? "a descriptor" : "the next entry",
                       next != nullptr ? "entry '" + escaped(next->name) + "'" : std::string("the directory"), end));
    }
  }

  const File& file_;
  const std::string& where_;
  std::uint64_t count_ = 0;
  std::uint64_t directory_ = 0;  // where it begins
  std::uint64_t directory_bytes_ = 0;
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
  const auto found = static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
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
