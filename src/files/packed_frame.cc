// The frame of a packed file: the preamble that says what it is, the trailer that says that it is whole, and the
// header's text, which the trailer's checksum covers. Lengths are compared with the file before anything is
// allocated. Knows nothing of what the header says.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/checksum.h"
#include "files/packed.h"

namespace swiglu::files {
namespace {

using Frame = std::array<std::byte, kPackedFrame>;

template <class T>
T number_at(const Frame& frame, std::size_t at) {
  T value = 0;
  std::memcpy(&value, frame.data() + at, sizeof(T));
  return value;
}

bool has_magic(const Frame& frame, std::size_t at) {
  return std::memcmp(frame.data() + at, kPackedMagic.data(), kPackedMagic.size()) == 0;
}

bool zeros(const Frame& frame, std::size_t from, std::size_t to) {
  return std::all_of(frame.begin() + static_cast<std::ptrdiff_t>(from), frame.begin() + static_cast<std::ptrdiff_t>(to),
                     [](std::byte b) { return b == std::byte{0}; });
}

class FrameReader {
 public:
  explicit FrameReader(const File& file) : file_(file), where_(escaped(file.name())) {}

  void check_preamble() const {
    Frame frame{};
    if (file_.size() < 2 * kPackedFrame) cut_short();
    file_.read(0, frame);
    if (!has_magic(frame, 0)) fail("not a file of packed layers: its first bytes are others");
    const auto version = number_at<std::uint32_t>(frame, kPackedMagic.size());
    if (version > kPackedVersion) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: written by a newer swiglu, format version {}; this one reads version {}: pack again",
                              where_, version, kPackedVersion));
    }
    if (version != kPackedVersion) fail(fmt::format("expected format version {}, found {}", kPackedVersion, version));
    if (!zeros(frame, kPackedMagic.size() + sizeof version, frame.size())) {
      fail(fmt::format("expected zeros after the format version, up to byte {}, found others", frame.size()));
    }
  }

  PackedText read_text() const {
    Frame frame{};
    const std::uint64_t trailer = file_.size() - kPackedFrame;
    file_.read(trailer, frame);
    if (!has_magic(frame, kPackedFrame - kPackedMagic.size())) cut_short();
    if (!zeros(frame, kTrailerZeros, kPackedFrame - kPackedMagic.size())) {
      fail("expected zeros before the end mark, found others");
    }
    const auto offset = number_at<std::uint64_t>(frame, kTrailerOffset);
    const auto bytes = number_at<std::uint64_t>(frame, kTrailerBytes);
    std::uint64_t end = 0;
    if (bytes > kMaxPackedHeader) {
      fail(fmt::format("expected a header of at most {} bytes, found {}", kMaxPackedHeader, bytes));
    }
    if (offset < kPackedFrame || offset % kPackedAlignment != 0 || !checked_add(offset, bytes, end) || end > trailer) {
      fail(fmt::format("expected the header at a multiple of {} between {} and {}, found it at {}, {} bytes long",
                       kPackedAlignment, kPackedFrame, trailer, offset, bytes));
    }
    if (end != trailer) {
      fail(fmt::format("expected the file to end {} bytes after its header, at {}, found {} bytes more", kPackedFrame,
                       end + kPackedFrame, trailer - end));
    }
    std::string text(static_cast<std::size_t>(bytes), '\0');
    file_.read(offset, std::as_writable_bytes(std::span(text)));
    const auto expected = number_at<std::uint64_t>(frame, kTrailerChecksum);
    const std::uint64_t found = checksum(std::as_bytes(std::span(text)));
    if (found != expected) {
      fail(fmt::format("header: expected the checksum {:016x}, found {:016x}: the file is damaged", expected, found));
    }
    return {std::move(text), offset};
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw Error(ErrorCode::format, where_ + ": " + reason); }

  [[noreturn]] void cut_short() const {
    fail(
        fmt::format("expected the end mark of a packed file in its last bytes, found none ({} bytes): it is cut "
                    "short, or something follows it",
                    file_.size()));
  }

  const File& file_;
  std::string where_;
};

}  // namespace

PackedText read_packed_text(const File& file) {
  const FrameReader reader(file);
  reader.check_preamble();
  return reader.read_text();
}

}  // namespace swiglu::files
