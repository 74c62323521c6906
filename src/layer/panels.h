// How a panel of weights meets all tiles of a block: in which pieces, with which weights widened, and what is
// fetched meanwhile. None of it changes a bit: every output stays one chain of additions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"
#include "layer/matmul.h"
#include "weights/weights.h"

namespace swiglu::layer {

/// A phase's work as tasks: a panel each, its tiles split only when there are too few panels for the workers.
class PanelTasks {
 public:
  struct Task {
    std::int64_t panel;
    std::int64_t first_tile;
    std::int64_t last_tile;
  };
  PanelTasks(const Plan& plan, std::int64_t panels, const Tiling& tiling);
  [[nodiscard]] std::int64_t size() const noexcept { return panels_ * splits_; }
  [[nodiscard]] Task operator[](std::int64_t i) const noexcept {
    const std::int64_t split = i % splits_;
    return {i / splits_, tiles_ * split / splits_, tiles_ * (split + 1) / splits_};
  }

 private:
  std::int64_t panels_;
  std::int64_t tiles_;
  std::int64_t splits_;
};

/// Weights and activations of one product.
struct PanelProduct {
  const Plan& plan;
  const weights::PackedMatrix& weights;
  kernels::Product product;
  const Tiling& tiling;
  const Tiles& in;

  /// sums[row of the block][32] = Σ over `piece`, whose first step is number `steps_before` of the
  /// activations, for the rows of the task's tiles. Needs 130 KiB of stack.
  void run(const PanelTasks::Task& task, std::int64_t piece, std::int64_t steps_before, float* sums) const;

 private:
  void stream(std::int64_t panel, std::int64_t piece, std::int64_t steps_before, float* sums) const;
  [[nodiscard]] const std::byte* activations(std::int64_t tile, std::int64_t step) const noexcept;
};

}  // namespace swiglu::layer
