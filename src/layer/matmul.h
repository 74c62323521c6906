// The sublayer's phases over one block of rows: inputs to tiles, gate/up to z tiles, down to outputs.
// Knows packed matrices and kernel tables; no ISA, no files, no user-facing types but views.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/cpu.h"
#include "kernels/kernel.h"
#include "layer/groups.h"
#include "swiglu/swiglu.hpp"
#include "weights/weights.h"

namespace swiglu::layer {

/// Tokens that run at a time: bounds the workspace, and the stack of a task (at most 300 KiB, in the down phase).
inline constexpr std::int64_t kBlockRows = 256;

/// A balanced split of `rows` into as few tiles as kernels of at most `max_rows` rows allow.
struct Tiling {
  std::int64_t rows;
  std::int64_t tiles;
  Tiling(std::int64_t rows_in, int max_rows) : rows(rows_in), tiles((rows_in + max_rows - 1) / max_rows) {}
  [[nodiscard]] std::int64_t start(std::int64_t tile) const noexcept { return rows * tile / tiles; }
  [[nodiscard]] int rows_of(std::int64_t tile) const noexcept {
    return static_cast<int>(start(tile + 1) - start(tile));
  }
};

/// Activations of a block: tiles one after another, each [k][rows of the tile].
struct Tiles {
  std::byte* data;
  std::int64_t row_bytes;  ///< one row over all (padded) k
  [[nodiscard]] std::byte* tile(const Tiling& tiling, std::int64_t i) const noexcept {
    return data + tiling.start(i) * row_bytes;
  }
};

/// What all phases of a layer share.
struct Plan {
  const kernels::Table* table;
  std::uint32_t mode;  ///< MXCSR of every task
  bool round;          ///< bf16 compute
  bool pairs;          ///< tiles of bf16 pairs, else of floats
  int workers;         ///< how many threads the runner has, or may have
  const Runner* runner;
};
[[nodiscard]] inline std::int64_t bytes_per_k(bool pairs) noexcept { return pairs ? 2 : 4; }

/// Runs work(i) for i in [0, n) in the plan's mode. Neighbours in i are best run by one thread, in order.
/// `Work` may call kernels and move bytes; it may do no floating-point arithmetic of its own.
template <class Work>
void run_tasks(const Plan& plan, std::int64_t n, const Work& work) {
  struct Context {
    const Work& work;
    std::uint32_t mode;
  } context{work, plan.mode};
  plan.runner->run(
      plan.runner->ctx, n,
      [](void* arg, std::int64_t i) {
        const auto& c = *static_cast<const Context*>(arg);
        const FloatMode mode(c.mode);
        c.work(i);
      },
      &context);
}

/// Phase 1: rows of `source` (from `row0`), normalised by `norm` unless it is null, into tiles.
struct InputPhase {
  TensorView source;
  std::int64_t row0;
  const float* norm;
  float dim;  ///< the source's columns and eps, converted once at construction
  float eps;
  Tiling tiling;
  Tiles out;
  void run(const Plan& plan) const;
};

/// Where gate and up go when somebody wants to see them: [rows][hidden] each.
struct GateUpTrace {
  float* gate;
  float* up;
};

/// Phase 2: z = silu(W1 n) * (W3 n) for every hidden unit that `weights` hold.
struct GateUpPhase {
  const weights::PackedMatrix& weights;
  kernels::Product product;
  std::int64_t hidden;
  Tiling tiling;
  Tiles in;
  Tiles out;
  const GateUpTrace* trace;
  void run(const Plan& plan) const;
};

/// Phase 3: the group sums of W2 z, combined within each complete subtree. With one subtree of all
/// groups the outputs are finished at once; else each subtree's sums go to `partial`.
struct DownPhase {
  const weights::PackedMatrix& weights;  ///< pieces are the owned groups, in order
  kernels::Product product;
  const std::vector<Subtree>& subtrees;
  std::int64_t dim;
  Tiling tiling;
  Tiles in;
  TensorView residual;    ///< data null: none
  MutableTensorView out;  ///< rows of this block
  float* partial;         ///< null, or [subtrees][rows][dim]
  void run(const Plan& plan) const;
};

/// Phase 4, after a reduction: outputs from root sums [rows][dim].
struct OutputPhase {
  const float* root;
  std::int64_t rows;
  std::int64_t dim;
  TensorView residual;
  MutableTensorView out;
  void run(const Plan& plan) const;
};

}  // namespace swiglu::layer
