// Layers that were packed before: what a packed file gives and what it is written from. Programs that only open
// such files, or write what FeedForward::packed() gives, need not look in here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "swiglu/swiglu.hpp"

#pragma GCC visibility push(default)
namespace swiglu {

/// One layer that was packed before, as a packed file holds it: bytes whose layout only the library's packing
/// knows. They are checked when a FeedForward is made from them. FeedForward::packed() makes such a source.
class PackedSource {
 public:
  /// Gate and up lie together, in one matrix.
  enum class Part : std::uint8_t { gate_up = 0, down = 1 };
  /// One packed matrix. The index (panel kinds, code tables, patches; empty for plain storage) is small, the
  /// payload is what the kernels stream.
  struct Matrix {
    DType dtype = DType::bf16;         ///< of an element once it is unpacked: f32, bf16 or f16
    Storage storage = Storage::plain;  ///< plain, or compact (bf16 only)
    std::int64_t index_bytes = 0;
    std::int64_t payload_bytes = 0;
  };
  /// What has a checksum of its own in a file; the last chunk of a payload may be shorter.
  static constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
  /// The layout's family: a packed file of another family is refused.
  static constexpr std::string_view kFamily = "x86-panel32";

  virtual ~PackedSource() = default;
  [[nodiscard]] virtual std::string name() const = 0;  ///< for error texts: the file and the layer
  [[nodiscard]] virtual FfnConfig config() const = 0;
  [[nodiscard]] virtual Compute compute() const = 0;  ///< what the layer was packed for: f32 or bf16
  [[nodiscard]] virtual Matrix matrix(Part part) const = 0;
  /// The whole index, into `dst` of index_bytes. Throws io, or format where a checksum does not fit.
  virtual void read_index(Part part, std::span<std::byte> dst) const = 0;
  /// The payload's bytes from `offset` on, as many as `dst` takes. The chunks that they cover whole are checked like
  /// the index; what is read of others is not compared with any checksum, and damage there changes results, no more.
  /// Called from several threads at once.
  virtual void read_payload(Part part, std::int64_t offset, std::span<std::byte> dst) const = 0;
  /// The payload where it already lies in memory, 64-byte aligned and kept alive by the pointer; null if it
  /// must be read. Not checked against checksums. Whoever changes it meanwhile changes results, no more.
  [[nodiscard]] virtual std::shared_ptr<const std::byte> view_payload(Part part) const = 0;
};

/// A layer from a packed file with gate, up and down as matrices, element for element what was packed: for
/// whoever wants to see weights rather than run them. The packed bytes are read into memory (view_payload
/// aside), checked, and kept as long as a matrix lives. Other layers come back as they are.
[[nodiscard]] LayerSource unpack(const LayerSource& layer, const Runner& runner);

}  // namespace swiglu
#pragma GCC visibility pop
