// The file of packed layers (docs/formats.md): its marks and alignments, and what its header says once it is
// proved. What index and payload bytes mean is the weights room's business; here they are ranges of a file.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/checkpoint.h"
#include "files/source.h"
#include "swiglu/packed.hpp"

namespace swiglu::files {

inline constexpr std::string_view kPackedMagic = "SWIGLUPK";  ///< the first 8 bytes and the last 8
inline constexpr std::uint32_t kPackedVersion = 1;
inline constexpr std::uint64_t kPackedFrame = 64;  ///< bytes of the preamble, and of the trailer
inline constexpr std::uint64_t kMaxPackedHeader = std::uint64_t{16} << 20;
inline constexpr std::int64_t kMaxPackedLayers = 1'000'000;  ///< of the model that was packed

/// Where the trailer holds the header's offset, bytes and checksum (u64 each). Zeros follow, then the magic.
inline constexpr std::size_t kTrailerOffset = 0, kTrailerBytes = 8, kTrailerChecksum = 16, kTrailerZeros = 24;

inline constexpr std::uint64_t kPackedAlignment = 64;  ///< of everything but payloads
/// Payloads are mapped: they begin at a page, large ones at a huge page.
[[nodiscard]] constexpr std::uint64_t payload_alignment(std::uint64_t bytes) noexcept {
  constexpr std::uint64_t kPage = 4096;
  constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
  return bytes >= kHugePage ? kHugePage : kPage;
}
[[nodiscard]] constexpr std::uint64_t aligned_up(std::uint64_t offset, std::uint64_t alignment) noexcept {
  return (offset + alignment - 1) / alignment * alignment;
}

/// The chunks that a payload is read and checked in; each has 8 bytes in the payload's list of checksums.
[[nodiscard]] constexpr std::uint64_t chunks_of(std::uint64_t payload_bytes) noexcept {
  constexpr auto kChunk = static_cast<std::uint64_t>(PackedSource::kChunkBytes);
  return payload_bytes / kChunk + (payload_bytes % kChunk != 0 ? 1 : 0);
}

/// A range of the file.
struct PackedRegion {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< not of a payload, whose chunks have one each
};

struct PackedPart {
  DType dtype = DType::bf16;
  Storage storage = Storage::plain;
  PackedRegion index;
  PackedRegion payload;
  PackedRegion checksums;  ///< u64 for each chunk of the payload

  [[nodiscard]] PackedSource::Matrix matrix() const noexcept {
    return {dtype, storage, static_cast<std::int64_t>(index.bytes), static_cast<std::int64_t>(payload.bytes)};
  }
};
/// As headers and messages call them; in the order of PackedSource::Part.
inline constexpr std::array<const char*, 2> kPackedParts = {"gate_up", "down"};

struct PackedLayer {
  std::int64_t number = 0;
  Compute compute = Compute::bf16;
  PackedRegion norm;  ///< f32 [dim]
  std::array<PackedPart, 2> parts;
};

struct PackedHeader {
  std::string writer;  ///< "swiglu 0.1.0"; untrusted text, as the other strings
  std::string family;
  FfnConfig config;
  Origin origin;
  std::vector<PackedLayer> layers;  ///< at least one, numbers ascending and below origin.layers
};

/// The header's text and where it begins, preamble, trailer and checksum found right. Throws format, or
/// unsupported for another format version.
struct PackedText {
  std::string text;
  std::uint64_t offset = 0;
};
[[nodiscard]] PackedText read_packed_text(const File& file);

/// Reads and proves everything but the bytes in the regions: these lie inside the file, at their alignments,
/// without overlap, and with gaps between them only as alignment wants them (`gaps`, if not null, gets those).
/// Throws format, or unsupported for another format version or layout family.
[[nodiscard]] PackedHeader read_packed_header(const File& file, std::vector<PackedRegion>* gaps = nullptr);

/// The layers of one opened file. Immutable, so safe for several threads.
class PackedFile {
 public:
  PackedFile(std::shared_ptr<const File> file, PackedHeader header, bool map);
  /// Reads the lists of checksums. `position` counts the layers in the file.
  [[nodiscard]] std::shared_ptr<const PackedSource> layer(std::size_t position) const;
  /// Its checksum is verified whenever it is read.
  [[nodiscard]] std::shared_ptr<const TensorSource> norm(std::size_t position) const;
  /// Compares everything with its checksum and every gap with zeros: a read of the whole file.
  void check() const;

 private:
  std::shared_ptr<const File> file_;
  PackedHeader header_;
  bool map_;
};

}  // namespace swiglu::files
