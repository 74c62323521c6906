// TensorSource -> PackedMatrix: the one packed copy that serves every token count. Knows the layout of
// kernels/kernel.h, and neither files nor the layer.
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "kernels/kernel.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::weights {

/// Weights in panels of 32 outputs, each cut along k into pieces (the reduction groups of the down
/// product; one piece otherwise). A piece is 64-byte aligned and position-independent.
class PackedMatrix {
 public:
  [[nodiscard]] std::int64_t panels() const noexcept { return panels_; }
  [[nodiscard]] std::int64_t pieces() const noexcept { return static_cast<std::int64_t>(steps_.size()); }
  /// Panel steps of piece `i`, the same in every panel; 0 for an empty piece.
  [[nodiscard]] std::int64_t steps(std::int64_t i) const noexcept { return steps_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const void* piece(std::int64_t panel, std::int64_t i) const noexcept {
    return bytes_.data() + offsets_[static_cast<std::size_t>(panel * pieces() + i)];
  }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return bytes_.size(); }

 private:
  friend class Packer;
  std::int64_t panels_ = 0;
  std::vector<std::int64_t> steps_;
  std::vector<std::int64_t> offsets_;  // the (panel, piece) table
  Buffer bytes_;
};

/// Told from packing threads how many source elements have been packed since the last call.
struct Progress {
  void (*advance)(void* ctx, std::int64_t elements) = nullptr;
  void* ctx = nullptr;
};

/// Rows [row0, row1) of gate and up: panel p holds 16 gate rows and the 16 up rows of the same units.
/// Streams: memory beyond the result is less than 1 MiB per running task. The task that packs a panel is the
/// first to touch its memory. Throws what the sources throw, and no_memory. The result does not depend on `table`.
[[nodiscard]] PackedMatrix pack_gate_up(const kernels::Table& table, const TensorSource& gate, const TensorSource& up,
                                        std::int64_t row0, std::int64_t row1, kernels::Product product,
                                        const Runner& runner, const Progress& progress = {});

/// Columns [borders.front(), borders.back()) of down, cut into pieces at `borders` (ascending; all but
/// the last multiples of 32 from the first).
[[nodiscard]] PackedMatrix pack_down(const kernels::Table& table, const TensorSource& down,
                                     const std::vector<std::int64_t>& borders, kernels::Product product,
                                     const Runner& runner, const Progress& progress = {});

}  // namespace swiglu::weights
