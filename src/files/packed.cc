// Layers of a packed file as the front door gives them: ranges of the file that are read with their checksums
// verified, or mapped without. The header was proved before (packed_header.cc); here remain the bytes of the
// regions, and a file that changes after it was opened.
#include "files/packed.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/checksum.h"

namespace swiglu::files {
namespace {

std::string layer_name(const File& file, std::int64_t number) {
  return fmt::format("{}: layer {}", escaped(file.name()), number);
}

void compare(std::span<const std::byte> bytes, std::uint64_t expected, const std::string& layer,
             const std::string& what) {
  const std::uint64_t found = checksum(bytes);
  if (found == expected) return;
  throw Error(ErrorCode::format,
              fmt::format("{}: {}: expected the checksum {:016x}, found {:016x}: the file is damaged", layer, what,
                          expected, found));
}

std::vector<std::uint64_t> read_checksums(const File& file, const PackedPart& part, const std::string& layer,
                                          const char* name) {
  std::vector<std::uint64_t> list(static_cast<std::size_t>(part.checksums.bytes / 8));
  const auto bytes = std::as_writable_bytes(std::span(list));
  file.read(part.checksums.offset, bytes);
  compare(bytes, part.checksums.checksum, layer, fmt::format("{}: checksums of the payload", name));
  return list;
}

class NormSource final : public TensorSource {
 public:
  NormSource(std::shared_ptr<const File> file, const PackedLayer& layer)
      : TensorSource(fmt::format("layers.{}.norm", layer.number), DType::f32, 1,
                     static_cast<std::int64_t>(layer.norm.bytes / 4)),
        file_(std::move(file)), norm_(layer.norm), number_(layer.number) {}

  void read(std::int64_t /*row0*/, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    std::vector<std::byte> whole(static_cast<std::size_t>(norm_.bytes));
    file_->read(norm_.offset, whole);
    compare(whole, norm_.checksum, layer_name(*file_, number_), "norm");
    if (rows > 0 && cols > 0) std::memcpy(dst, whole.data() + col0 * 4, static_cast<std::size_t>(cols) * 4);
  }

 private:
  std::shared_ptr<const File> file_;
  PackedRegion norm_;
  std::int64_t number_;
};

class FileLayer final : public PackedSource {
 public:
  FileLayer(std::shared_ptr<const File> file, const PackedLayer& layer, const FfnConfig& config, bool map)
      : file_(std::move(file)), layer_(layer), config_(config), map_(map) {
    for (std::size_t p = 0; p < kPackedParts.size(); ++p) {
      checksums_[p] = read_checksums(*file_, layer_.parts[p], name(), kPackedParts[p]);
    }
  }

  [[nodiscard]] std::string name() const override { return layer_name(*file_, layer_.number); }
  [[nodiscard]] FfnConfig config() const override { return config_; }
  [[nodiscard]] Compute compute() const override { return layer_.compute; }
  [[nodiscard]] Matrix matrix(Part part) const override { return of(part).matrix(); }

  void read_index(Part part, std::span<std::byte> dst) const override {
    const PackedRegion& index = of(part).index;
    check_room(part, "index", index.bytes, dst.size());
    file_->read(index.offset, dst);
    compare(dst, index.checksum, name(), fmt::format("{}: index", label(part)));
  }

  void read_payload(Part part, std::int64_t offset, std::span<std::byte> dst) const override {
    const PackedRegion& payload = of(part).payload;
    const auto first = static_cast<std::uint64_t>(offset);
    if (offset < 0 || first > payload.bytes || dst.size() > payload.bytes - first) {
      throw Error(ErrorCode::usage,
                  fmt::format("{}: {}: expected a range of the payload's {} bytes, found {} bytes at {}", name(),
                              label(part), payload.bytes, dst.size(), offset));
    }
    file_->read(payload.offset + first, dst);
    const std::uint64_t end = first + dst.size();
    const auto& sums = checksums_[static_cast<std::size_t>(part)];
    for (std::uint64_t chunk = (first + kChunkBytes - 1) / kChunkBytes; chunk < sums.size(); ++chunk) {
      const std::uint64_t at = chunk * kChunkBytes;
      const std::uint64_t bytes = std::min<std::uint64_t>(kChunkBytes, payload.bytes - at);
      if (at + bytes > end) return;
      compare(dst.subspan(at - first, bytes), sums[chunk], name(),
              fmt::format("{}: payload, {} bytes at {} of the file", label(part), bytes, payload.offset + at));
    }
  }

  [[nodiscard]] std::shared_ptr<const std::byte> view_payload(Part part) const override {
    const PackedRegion& payload = of(part).payload;
    if (!map_ || payload.bytes == 0) return nullptr;
    return file_->map(payload.offset, static_cast<std::size_t>(payload.bytes));
  }

 private:
  [[nodiscard]] const PackedPart& of(Part part) const { return layer_.parts[static_cast<std::size_t>(part)]; }
  static const char* label(Part part) { return kPackedParts[static_cast<std::size_t>(part)]; }
  void check_room(Part part, const char* what, std::uint64_t expected, std::size_t found) const {
    if (expected == found) return;
    throw Error(ErrorCode::usage, fmt::format("{}: {}: expected room for the {} bytes of the {}, found {}", name(),
                                              label(part), expected, what, found));
  }

  std::shared_ptr<const File> file_;
  PackedLayer layer_;
  FfnConfig config_;
  bool map_;
  std::array<std::vector<std::uint64_t>, kPackedParts.size()> checksums_;
};

void check_gap(const File& file, PackedRegion gap) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(gap.bytes));
  file.read(gap.offset, bytes);
  const auto other = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; });
  if (other == bytes.end()) return;
  throw Error(ErrorCode::format, fmt::format("{}: expected zeros from {} to {}, found another byte at {}: the file is "
                                             "damaged",
                                             escaped(file.name()), gap.offset, gap.offset + gap.bytes,
                                             gap.offset + static_cast<std::uint64_t>(other - bytes.begin())));
}

// "layers 0-3, 5": short however many there are.
std::string layer_text(const std::vector<std::int64_t>& numbers) {
  return fmt::format("layer{} {}", numbers.size() == 1 ? "" : "s", ranges_text(numbers));
}

void add_tensors(Contents& contents, const PackedLayer& layer, const std::string& file) {
  const auto [dim, hidden, eps] = contents.config;
  const auto add = [&](const char* role, std::string dtype, std::vector<std::int64_t> shape) {
    contents.tensors.push_back({.name = fmt::format("layers.{}.{}", layer.number, role),
                                .role = role,
                                .layer = layer.number,
                                .dtype = std::move(dtype),
                                .shape = std::move(shape),
                                .files = {file}});
  };
  const auto type = [&](PackedSource::Part p) {
    const PackedPart& part = layer.parts[static_cast<std::size_t>(p)];
    const char* name = part.dtype == DType::f32 ? "F32" : part.dtype == DType::f16 ? "F16" : "BF16";
    return std::string(name) + (part.storage == Storage::compact ? " compact" : "");
  };
  add("gate", type(PackedSource::Part::gate_up), {hidden, dim});
  add("up", type(PackedSource::Part::gate_up), {hidden, dim});
  add("down", type(PackedSource::Part::down), {dim, hidden});
  add("norm", "F32", {dim});
}

}  // namespace

PackedFile::PackedFile(std::shared_ptr<const File> file, PackedHeader header, bool map)
    : file_(std::move(file)), header_(std::move(header)), map_(map) {}

std::shared_ptr<const PackedSource> PackedFile::layer(std::size_t position) const {
  return std::make_shared<FileLayer>(file_, header_.layers.at(position), header_.config, map_);
}

std::shared_ptr<const TensorSource> PackedFile::norm(std::size_t position) const {
  return std::make_shared<NormSource>(file_, header_.layers.at(position));
}

void PackedFile::check() const {
  std::vector<PackedRegion> gaps;
  const PackedHeader header = read_packed_header(*file_, &gaps);
  std::vector<std::byte> bytes;
  for (const PackedLayer& place : header.layers) {
    std::vector<std::byte> norm(static_cast<std::size_t>(place.norm.bytes));
    NormSource(file_, place).read(0, 1, 0, header.config.dim, norm.data());
    const FileLayer layer(file_, place, header.config, false);
    for (const auto part : {PackedSource::Part::gate_up, PackedSource::Part::down}) {
      const PackedSource::Matrix matrix = layer.matrix(part);
      bytes.resize(static_cast<std::size_t>(matrix.index_bytes));
      layer.read_index(part, bytes);
      for (std::int64_t done = 0; done < matrix.payload_bytes; done += PackedSource::kChunkBytes) {
        bytes.resize(static_cast<std::size_t>(std::min(PackedSource::kChunkBytes, matrix.payload_bytes - done)));
        layer.read_payload(part, done, bytes);
      }
    }
  }
  for (const PackedRegion& gap : gaps) check_gap(*file_, gap);
}

Contents open_packed(const std::shared_ptr<const File>& file, const OpenOptions& options) {
  const std::string where = escaped(file->name());
  PackedHeader header = read_packed_header(*file);
  Contents contents;
  contents.format = "packed";
  contents.family = header.family;
  contents.shards = 1;
  contents.size_bytes = file->size();
  contents.origin = header.origin;
  if (options.eps && *options.eps != header.config.eps) {
    contents.notes.push_back(fmt::format("{}: eps {} instead of {}", where, *options.eps, header.config.eps));
  }
  if (options.eps) header.config.eps = *options.eps;
  contents.config = header.config;
  std::optional<Error> fault;
  if (options.hidden && *options.hidden != header.config.hidden) {
    fault = Error(ErrorCode::shape, fmt::format("--hidden is {}, but the layers in {} were packed with {}",
                                                *options.hidden, where, header.config.hidden));
    report(contents, options, *fault);
  }
  for (const PackedLayer& layer : header.layers) {
    contents.numbers.push_back(layer.number);
    add_tensors(contents, layer, file->path().filename().string());
  }
  const auto& sources = header.origin.files;
  contents.notes.push_back(fmt::format(
      "{}: {} of {}, packed by {} from {}{}", where, layer_text(contents.numbers), header.origin.layers,
      escaped(header.writer),
      sources.empty() ? "no file" : fmt::format("{} ({} bytes)", escaped(sources[0].name), sources[0].bytes),
      sources.size() > 1 ? fmt::format(" and {} more", sources.size() - 1) : ""));
  contents.packed = std::make_shared<const PackedFile>(file, std::move(header), options.map);
  for (std::size_t i = 0; i < contents.numbers.size(); ++i) {
    LayerParts parts;
    parts.norm = contents.packed->norm(i);
    parts.fault = fault;
    contents.layers.push_back(std::move(parts));
  }
  return contents;
}

}  // namespace swiglu::files
