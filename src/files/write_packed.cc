// Writes a file of packed layers (docs/formats.md) in one pass: regions as they come, then the header that
// says where they lie, then the end mark. A payload passes through in chunks, so memory is bounded by the
// tables of one layer. Knows PackedSource, and nothing of what its bytes mean.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/checkpoint.h"
#include "files/checksum.h"
#include "files/output.h"
#include "files/packed.h"
#include "files/tensor_stream.h"
#include "swiglu/files.hpp"

namespace swiglu {
namespace files {
namespace {

using Part = PackedSource::Part;

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : escaped(text)) {  // what no text may hold is escaped here, once more for JSON there
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

// Checksums are texts: a JSON number that goes through a double, as in most programs, keeps 53 bits of 64.
std::string region_text(const PackedRegion& region) {
  return fmt::format(R"({{"offset": {}, "bytes": {}, "checksum": "{:016x}"}})", region.offset, region.bytes,
                     region.checksum);
}

std::string layer_text(const PackedLayer& layer) {
  std::string out = fmt::format(R"({{"number": {}, "compute": "{}", "norm": {})", layer.number, name_of(layer.compute),
                                region_text(layer.norm));
  for (std::size_t p = 0; p < kPackedParts.size(); ++p) {
    const PackedPart& part = layer.parts[p];
    out += fmt::format(
        R"(, "{}": {{"dtype": "{}", "storage": "{}", "index": {}, "payload": {{"offset": {}, "bytes": {}}}, )"
        R"("checksums": {}}})",
        kPackedParts[p], name_of(part.dtype), name_of(part.storage), region_text(part.index), part.payload.offset,
        part.payload.bytes, region_text(part.checksums));
  }
  return out + "}";
}

std::string header_text(const PackedHeader& header) {
  std::string out = fmt::format("{{\"layout\": \"{}\", \"writer\": {}, \"family\": {},\n", PackedSource::kFamily,
                                json_string(header.writer), json_string(header.family));
  out +=
      fmt::format(" \"config\": {{\"dim\": {}, \"hidden\": {}, \"eps\": {}}}, \"model_layers\": {},\n \"sources\": [",
                  header.config.dim, header.config.hidden, json_number(header.config.eps), header.origin.layers);
  const char* separator = "";
  for (const OriginFile& source : header.origin.files) {
    out += fmt::format("{}{{\"name\": {}, \"bytes\": {}}}", std::exchange(separator, ", "), json_string(source.name),
                       source.bytes);
  }
  out += "],\n \"layers\": [";
  separator = "";
  for (const PackedLayer& layer : header.layers) {
    out += fmt::format("{}\n  {}", std::exchange(separator, ","), layer_text(layer));
  }
  return out + "]}\n";
}

class Stream {
 public:
  explicit Stream(const std::filesystem::path& path) : file(path) {}

  void append(std::span<const std::byte> bytes, PackedRegion& region) {
    begin(kPackedAlignment, region);
    file.write(bytes);
    region.bytes = bytes.size();
    region.checksum = checksum(bytes);
  }
  void begin(std::uint64_t alignment, PackedRegion& region) {
    static constexpr std::array<std::byte, 4096> kZeros{};
    region.offset = aligned_up(file.position(), alignment);
    while (file.position() < region.offset) {
      const std::uint64_t missing = region.offset - file.position();
      file.write(std::span(kZeros).first(static_cast<std::size_t>(std::min<std::uint64_t>(missing, kZeros.size()))));
    }
  }

  OutputFile file;
};

template <class T>
void put(std::span<std::byte> frame, std::size_t at, T value) {
  std::memcpy(frame.data() + at, &value, sizeof value);
}

}  // namespace
}  // namespace files

struct PackedWriter::Impl {
  explicit Impl(const std::filesystem::path& path) : where(escaped(path.string())), stream(path) {}

  [[noreturn]] void fail(ErrorCode code, const std::string& reason) const { throw Error(code, where + ": " + reason); }

  void check(std::int64_t layer, const PackedSource& packed, std::span<const float> norm) const {
    const auto fault = [&](ErrorCode code, const std::string& what, const auto& expected, const auto& found) {
      fail(code, fmt::format("layer {}: {}: expected {}, found {}", layer, what, expected, found));
    };
    if (layer < 0 || layer >= header.origin.layers) {
      fault(ErrorCode::usage, "number", fmt::format("0 to {}", header.origin.layers - 1), layer);
    }
    if (!header.layers.empty() && layer <= header.layers.back().number) {
      fault(ErrorCode::usage, "number", fmt::format("ascending numbers, so one above {}", header.layers.back().number),
            layer);
    }
    const auto [dim, hidden, eps] = packed.config();
    if (dim != header.config.dim || hidden != header.config.hidden) {
      fault(ErrorCode::shape, "dim and hidden", fmt::format("{} and {}", header.config.dim, header.config.hidden),
            fmt::format("{} and {}", dim, hidden));
    }
    if (std::ssize(norm) != dim) fault(ErrorCode::shape, "elements of norm", dim, norm.size());
    if (packed.compute() != Compute::f32 && packed.compute() != Compute::bf16) {
      fault(ErrorCode::usage, "compute", "f32 or bf16", name_of(packed.compute()));
    }
    for (const auto part : {files::Part::gate_up, files::Part::down}) {
      const PackedSource::Matrix m = packed.matrix(part);
      const std::string name = files::kPackedParts[static_cast<std::size_t>(part)];
      const bool compact = m.storage == Storage::compact && m.dtype == DType::bf16;
      if (m.dtype == DType::f64 || (m.storage != Storage::plain && !compact)) {
        fault(ErrorCode::usage, name, "plain f32, bf16 or f16, or compact bf16",
              fmt::format("{} {}", name_of(m.storage), name_of(m.dtype)));
      }
      for (const std::int64_t bytes : {m.index_bytes, m.payload_bytes}) {
        if (bytes < 0) fault(ErrorCode::usage, name, "sizes of 0 or more", bytes);
      }
    }
  }

  // Offers progress after every chunk.
  template <class Progress>
  files::PackedPart append(const PackedSource& packed, files::Part which, const Progress& progress) {
    const PackedSource::Matrix matrix = packed.matrix(which);
    files::PackedPart part;
    part.dtype = matrix.dtype;
    part.storage = matrix.storage;
    buffer.resize(static_cast<std::size_t>(matrix.index_bytes));
    packed.read_index(which, buffer);
    stream.append(buffer, part.index);
    progress(matrix.index_bytes);

    part.payload.bytes = static_cast<std::uint64_t>(matrix.payload_bytes);
    stream.begin(files::payload_alignment(part.payload.bytes), part.payload);
    std::vector<std::uint64_t> checksums;
    for (std::int64_t done = 0; done < matrix.payload_bytes;) {
      buffer.resize(static_cast<std::size_t>(std::min(PackedSource::kChunkBytes, matrix.payload_bytes - done)));
      packed.read_payload(which, done, buffer);
      checksums.push_back(files::checksum(buffer));
      stream.file.write(buffer);
      done += std::ssize(buffer);
      progress(std::ssize(buffer));
    }
    stream.append(std::as_bytes(std::span(checksums)), part.checksums);
    return part;
  }

  std::string where;
  files::Stream stream;
  files::PackedHeader header;
  std::vector<std::byte> buffer;
  bool open = true;  ///< false once committed, or when a layer failed halfway
};

PackedWriter::PackedWriter(const std::filesystem::path& path, const Checkpoint& model)
    : impl_(std::make_unique<Impl>(path)) {
  const files::Contents& contents = model.impl_->contents;
  impl_->header.writer = fmt::format("swiglu {}", version());
  impl_->header.family = contents.family;
  impl_->header.config = contents.config;
  impl_->header.origin = contents.origin;
  if (contents.layers.empty()) impl_->fail(ErrorCode::usage, "the checkpoint has no layers to pack");
  if (contents.origin.layers > files::kMaxPackedLayers) {
    impl_->fail(ErrorCode::unsupported, fmt::format("expected a model of at most {} layers, found {}",
                                                    files::kMaxPackedLayers, contents.origin.layers));
  }
  std::array<std::byte, files::kPackedFrame> preamble{};
  std::memcpy(preamble.data(), files::kPackedMagic.data(), files::kPackedMagic.size());
  files::put(preamble, files::kPackedMagic.size(), files::kPackedVersion);
  impl_->stream.file.write(preamble);
}

PackedWriter::~PackedWriter() = default;
PackedWriter::PackedWriter(PackedWriter&&) noexcept = default;
PackedWriter& PackedWriter::operator=(PackedWriter&&) noexcept = default;

void PackedWriter::add(std::int64_t layer, const PackedSource& packed, std::span<const float> norm,
                       const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  if (!impl_->open) impl_->fail(ErrorCode::usage, "the file was committed, or a layer failed: nothing can be added");
  impl_->check(layer, packed, norm);
  std::int64_t total = 0;
  for (const auto part : {files::Part::gate_up, files::Part::down}) {
    total += packed.matrix(part).index_bytes + packed.matrix(part).payload_bytes;
  }
  std::int64_t done = 0;
  const auto advance = [&](std::int64_t bytes) {
    done += bytes;
    if (progress && bytes > 0) progress(done, total);
  };
  impl_->open = false;  // until the layer is complete: what throws in between leaves half of one
  files::PackedLayer place;
  place.number = layer;
  place.compute = packed.compute();
  impl_->stream.append(std::as_bytes(norm), place.norm);
  for (const auto part : {files::Part::gate_up, files::Part::down}) {
    place.parts[static_cast<std::size_t>(part)] = impl_->append(packed, part, advance);
  }
  impl_->header.layers.push_back(place);
  impl_->open = true;
}

void PackedWriter::commit() {
  if (!impl_->open) impl_->fail(ErrorCode::usage, "the file was committed, or a layer failed: it cannot be completed");
  if (impl_->header.layers.empty()) impl_->fail(ErrorCode::usage, "expected at least one layer, found none");
  const std::string text = files::header_text(impl_->header);
  if (text.size() > files::kMaxPackedHeader) {
    impl_->fail(ErrorCode::unsupported, fmt::format("expected a header of at most {} bytes, found {}: too many layers "
                                                    "or source files",
                                                    files::kMaxPackedHeader, text.size()));
  }
  impl_->open = false;
  files::PackedRegion region;
  impl_->stream.append(std::as_bytes(std::span(text)), region);
  std::array<std::byte, files::kPackedFrame> trailer{};
  files::put(trailer, files::kTrailerOffset, region.offset);
  files::put(trailer, files::kTrailerBytes, region.bytes);
  files::put(trailer, files::kTrailerChecksum, region.checksum);
  std::memcpy(trailer.data() + trailer.size() - files::kPackedMagic.size(), files::kPackedMagic.data(),
              files::kPackedMagic.size());
  impl_->stream.file.write(trailer);
  impl_->stream.file.commit();
}

}  // namespace swiglu
