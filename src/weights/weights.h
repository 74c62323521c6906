// TensorSource -> PackedMatrix: the one packed copy that serves every token count. Knows the layout of
// kernels/kernel.h, and neither files nor the layer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "kernels/kernel.h"
#include "swiglu/packed.hpp"

namespace swiglu::weights {

/// What a packed matrix is made of: panels of 32 outputs, each cut along k into pieces at `borders` (ascending;
/// all but the last multiples of 32 from the first).
struct MatrixShape {
  std::int64_t panels = 0;
  std::vector<std::int64_t> borders;
  std::int64_t elements = 0;  ///< that exist: without padding
};
/// Rows [row0, row1) of gate and up: panel p holds 16 gate rows and the 16 up rows of the same units.
[[nodiscard]] MatrixShape gate_up_shape(std::int64_t row0, std::int64_t row1, std::int64_t dim);
/// Columns [borders.front(), borders.back()) of down.
[[nodiscard]] MatrixShape down_shape(std::int64_t dim, std::vector<std::int64_t> borders);

/// A part of a matrix that is a matrix of its own: its panels are neighbours in the whole, from `first_panel` on, and
/// so are its pieces in each of those panels, from `first_piece` on.
struct MatrixShare {
  MatrixShape shape;
  std::int64_t first_panel = 0;
  std::int64_t first_piece = 0;
};

/// Memory that kernels stream through: panels lie in it one after another.
struct Stream {
  const std::byte* start = nullptr;
  std::int64_t bytes = 0;
};

/// One panel, wherever it lies. In compact storage each is compact or plain.
struct Panel {
  const std::byte* bytes = nullptr;
  bool compact = false;
  std::array<unsigned char, 16> table{};   ///< compact only, as what follows
  std::vector<kernels::Patch> patches;     ///< of all pieces, each ended by kNoPatch
  std::vector<std::int64_t> first_patch;   ///< of each piece
  Buffer own;                              ///< of a panel that lies alone
};

/// A piece is 64-byte aligned and position-independent. Built by this room, constant afterwards.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(const MatrixShape& shape, DType dtype, Storage storage);

  [[nodiscard]] DType dtype() const noexcept { return dtype_; }  ///< f32, bf16 or f16
  [[nodiscard]] Storage storage() const noexcept { return storage_; }
  [[nodiscard]] std::int64_t panels() const noexcept { return std::ssize(panels_); }
  [[nodiscard]] std::int64_t pieces() const noexcept { return std::ssize(steps_); }
  /// Panel steps of piece `i`, the same in every panel; 0 for an empty piece.
  [[nodiscard]] std::int64_t steps(std::int64_t i) const noexcept { return steps_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const Panel& panel(std::int64_t p) const noexcept { return panels_[static_cast<std::size_t>(p)]; }
  [[nodiscard]] Panel& panel(std::int64_t p) noexcept { return panels_[static_cast<std::size_t>(p)]; }
  /// Where piece `i` begins in a panel; i == pieces(): the panel's bytes.
  [[nodiscard]] std::int64_t offset(bool compact, std::int64_t i) const noexcept {
    return offsets_[compact ? 1 : 0][static_cast<std::size_t>(i)];
  }
  [[nodiscard]] std::int64_t panel_bytes(bool compact) const noexcept { return offset(compact, pieces()); }
  [[nodiscard]] const std::byte* piece(std::int64_t p, std::int64_t i) const noexcept {
    return panel(p).bytes + offset(panel(p).compact, i);
  }
  /// The memory around panel `p`: what comes next lies there.
  [[nodiscard]] Stream stream(std::int64_t p) const noexcept {
    const Buffer& own = panel(p).own;
    return own.size() == 0 ? stream_ : Stream{own.data(), own.size()};
  }
  void set_stream(Stream stream) noexcept { stream_ = stream; }  ///< of the panels without memory of their own
  /// Of a compact panel: the patches of piece `i`; kNoPatch follows them in memory.
  [[nodiscard]] std::span<const kernels::Patch> patches(std::int64_t p, std::int64_t i) const noexcept;
  /// Of a compact panel: its table, and the patches of piece `i` from the first on that is not before `step`.
  [[nodiscard]] kernels::Codes codes(std::int64_t p, std::int64_t i, std::int64_t step) const noexcept;
  /// The product whose kernels read panel `p`, if `plain` is the one for plain panels.
  [[nodiscard]] kernels::Product product(std::int64_t p, kernels::Product plain) const noexcept {
    return panel(p).compact ? kernels::compact_of(plain) : plain;
  }
  [[nodiscard]] PackedInfo info() const;

  /// Memory that panels lie in, kept as long as the matrix.
  void keep(std::shared_ptr<const void> memory) { memory_.push_back(std::move(memory)); }

 private:
  DType dtype_ = DType::bf16;
  Storage storage_ = Storage::plain;
  std::int64_t elements_ = 0;
  std::vector<std::int64_t> steps_;
  std::vector<std::int64_t> offsets_[2];  // of the pieces in a plain panel, in a compact one
  std::vector<Panel> panels_;
  Stream stream_;
  std::vector<std::shared_ptr<const void>> memory_;
};

/// Told from packing threads how many source elements have been packed since the last call.
struct Progress {
  void (*advance)(void* ctx, std::int64_t elements) = nullptr;
  void* ctx = nullptr;
};

/// How and where packing works. `storage` is not automatic; compact is for bf16 only.
struct Packing {
  const kernels::Table& table;
  const Runner& runner;
  Storage storage = Storage::plain;
  Progress progress = {};
};

/// Streams: memory beyond the result is less than 1 MiB per running task, and a panel more in compact storage.
/// The task that packs a panel is the first to touch its memory. Throws what the sources throw, and no_memory.
/// The result does not depend on the table or the runner.
[[nodiscard]] PackedMatrix pack_gate_up(const TensorSource& gate, const TensorSource& up, std::int64_t row0,
                                        std::int64_t row1, DType dtype, const Packing& packing);
[[nodiscard]] PackedMatrix pack_down(const TensorSource& down, const std::vector<std::int64_t>& borders, DType dtype,
                                     const Packing& packing);

/// A share of a matrix of shape `whole` that was packed before; every table, offset and patch of the whole is checked
/// here before a kernel sees any. Reads the share's payload, and no more of it, into fresh memory, in parallel, unless
/// the source has it in memory. The weights are those of packing the share alone; compact storage chose kinds and
/// tables for whole panels, so bytes may differ from that. Throws format, and what the source throws.
[[nodiscard]] PackedMatrix load_packed(const MatrixShape& whole, const MatrixShare& share, const PackedSource& source,
                                       PackedSource::Part part, const Runner& runner, const Progress& progress = {});

/// The matrix as a packed file holds it: its index, and its payload, piece by piece.
[[nodiscard]] std::vector<std::byte> index_of(const PackedMatrix& matrix);
[[nodiscard]] std::int64_t payload_bytes(const PackedMatrix& matrix);
void copy_payload(const PackedMatrix& matrix, std::int64_t offset, std::span<std::byte> dst);

/// The packed weights as matrices: element for element what was packed.
enum class Rows : std::uint8_t { gate, up, down };
[[nodiscard]] std::shared_ptr<const TensorSource> unpack_rows(std::string name,
                                                              std::shared_ptr<const PackedMatrix> matrix, Rows which,
                                                              std::int64_t rows, std::int64_t cols);

}  // namespace swiglu::weights
