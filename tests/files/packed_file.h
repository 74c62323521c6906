// Packed layers of random bytes, files of them, and files with any header: what the tests of the packed format
// break on purpose. The layouts of index and payload mean nothing here, as in the room under test.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "files/checksum.h"
#include "support/huggingface.h"
#include "swiglu/files.hpp"
#include "swiglu/packed.hpp"

namespace swiglu::testing {

using Part = PackedSource::Part;
inline constexpr std::array<Part, 2> kParts = {Part::gate_up, Part::down};
inline constexpr std::int64_t kChunk = PackedSource::kChunkBytes;

inline std::string random_bytes(std::int64_t size, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::string out(static_cast<std::size_t>((size + 7) / 8 * 8), '\0');
  for (std::size_t i = 0; i < out.size(); i += 8) {
    const std::uint64_t value = generator();
    std::memcpy(out.data() + i, &value, 8);
  }
  out.resize(static_cast<std::size_t>(size));
  return out;
}

/// A layer in memory. Members may be changed before use.
struct FakeLayer final : PackedSource {
  struct Bytes {
    Matrix matrix;
    std::string index, payload;
  };
  FfnConfig shape{.dim = kDim, .hidden = kHidden, .eps = 1e-6};
  Compute kind = Compute::bf16;
  std::array<Bytes, 2> parts;
  std::int64_t fail_at_read = -1;  ///< this read of all throws
  mutable std::int64_t reads = 0;
  std::vector<float> norm = {1, 2, -3, 0.5F};

  FakeLayer() = default;
  FakeLayer(std::int64_t index, std::int64_t payload_gate_up, std::int64_t payload_down, unsigned seed) {
    fill(0, index, payload_gate_up, seed);
    fill(1, index == 0 ? 0 : index + 1, payload_down, seed + 1);
  }
  void fill(std::size_t part, std::int64_t index, std::int64_t payload, unsigned seed) {
    Bytes& bytes = parts[part];
    bytes.index = random_bytes(index, 2 * seed);
    bytes.payload = random_bytes(payload, 2 * seed + 1);
    bytes.matrix = {DType::bf16, index > 0 ? Storage::compact : Storage::plain, index, payload};
  }

  [[nodiscard]] std::string name() const override { return "fake"; }
  [[nodiscard]] FfnConfig config() const override { return shape; }
  [[nodiscard]] Compute compute() const override { return kind; }
  [[nodiscard]] Matrix matrix(Part part) const override { return of(part).matrix; }
  void read_index(Part part, std::span<std::byte> dst) const override {
    step();
    copy(of(part).index, 0, dst);
  }
  void read_payload(Part part, std::int64_t offset, std::span<std::byte> dst) const override {
    step();
    copy(of(part).payload, static_cast<std::size_t>(offset), dst);
  }
  [[nodiscard]] std::shared_ptr<const std::byte> view_payload(Part /*part*/) const override { return nullptr; }

 private:
  [[nodiscard]] const Bytes& of(Part part) const { return parts[static_cast<std::size_t>(part)]; }
  void step() const {
    if (reads++ == fail_at_read) throw Error(ErrorCode::io, "source gone");
  }
  static void copy(const std::string& from, std::size_t at, std::span<std::byte> dst) {
    EXPECT_LE(at + dst.size(), from.size());
    if (!dst.empty()) std::memcpy(dst.data(), from.data() + at, dst.size());
  }
};

inline std::string read_index(const PackedSource& layer, Part part) {
  std::string out(static_cast<std::size_t>(layer.matrix(part).index_bytes), '\0');
  layer.read_index(part, std::as_writable_bytes(std::span(out)));
  return out;
}
inline std::string read_payload(const PackedSource& layer, Part part) {
  std::string out(static_cast<std::size_t>(layer.matrix(part).payload_bytes), '\0');
  for (std::size_t at = 0; at < out.size(); at += kChunk) {
    const auto bytes = std::as_writable_bytes(std::span(out)).subspan(at);
    layer.read_payload(part, static_cast<std::int64_t>(at), bytes.first(std::min<std::size_t>(bytes.size(), kChunk)));
  }
  return out;
}
/// Everything that a reader of the file may look at, but check_payloads().
inline void read_all(const Checkpoint& model) {
  for (const std::int64_t i : model.layer_numbers()) {
    const LayerSource layer = model.layer(i);
    for (const Part part : kParts) {
      (void)read_index(*layer.packed, part);
      (void)read_payload(*layer.packed, part);
    }
  }
}

/// Tests with a model of 8 layers, shaped [kHidden, kDim], and one packed file.
class Packed : public ::testing::Test {
 protected:
  Packed() {
    SafetensorsBuilder weights;
    for (int i = 0; i < 8; ++i) weights.add_layer(i, kDim, kHidden);
    write_file(folder_ / "model.safetensors", weights.bytes());
    write_file(folder_ / "config.json", config_text({{"num_hidden_layers", "8"}}));
  }
  [[nodiscard]] Checkpoint original() const { return Checkpoint::open(folder_.path()); }
  [[nodiscard]] Checkpoint open(const OpenOptions& options = {}) const { return Checkpoint::open(path_, options); }
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) out.insert(entry.path().filename());
    return out;
  }
  void write(const std::vector<std::pair<std::int64_t, const FakeLayer*>>& layers) const {
    PackedWriter writer(path_, original());
    for (const auto& [number, layer] : layers) writer.add(number, *layer, layer->norm);
    writer.commit();
  }
  void refused(std::string_view bytes, std::initializer_list<std::string_view> parts,
               ErrorCode code = ErrorCode::format) const {
    write_file(path_, bytes);
    expect_error(code, parts, [&] { (void)open(); });
    expect_error(code, {"model.swiglu"}, [&] { (void)open(); });
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "model.swiglu";
};

inline std::string preamble() { return "SWIGLUPK" + std::string("\1\0\0\0", 4) + std::string(52, '\0'); }
inline std::string trailer(std::uint64_t offset, std::string_view header) {
  const std::uint64_t sum = files::checksum(std::as_bytes(std::span(header)));
  return little_endian(offset) + little_endian(header.size()) + little_endian(sum) + std::string(32, '\0') + "SWIGLUPK";
}
/// Preamble, these bytes, then the header, with the checksum that fits.
inline std::string packed_file(std::string_view header, const std::string& data = "") {
  const std::string before = preamble() + data;
  return before + std::string(header) + trailer(before.size(), header);
}

}  // namespace swiglu::testing
