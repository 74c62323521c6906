// The phases of matmul.h. Which task computes what never changes a bit: every output is one chain of
// additions inside one kernel call, and group sums are combined in the fixed tree.
#include "layer/matmul.h"

#include <algorithm>
#include <cstring>

namespace swiglu::layer {
namespace {

using kernels::kLanes;
using kernels::kMaxTileRows;
using kernels::kPanel;

// Enough parts to balance a few dozen threads, few enough that each starts seldom.
constexpr std::int64_t kMaxParts = 64;

kernels::Elem elem(DType type) { return static_cast<kernels::Elem>(type); }

const std::byte* row_of(const TensorView& view, std::int64_t row, std::int64_t col) {
  return static_cast<const std::byte*>(view.data) + (row * view.stride + col) * size_of(view.dtype);
}
std::byte* row_of(const MutableTensorView& view, std::int64_t row, std::int64_t col) {
  return static_cast<std::byte*>(view.data) + (row * view.stride + col) * size_of(view.dtype);
}

// One piece of a panel for one tile. A single tile streams the weights, so the fetch runs ahead of it;
// of several tiles each fetches its share of the piece that follows in memory.
kernels::Tile matmul_call(const weights::PackedMatrix& weights, std::int64_t panel, std::int64_t piece,
                          std::int64_t step_bytes, const Tiling& tiling, std::int64_t tile, const void* activations,
                          float* sum) {
  const auto* at = static_cast<const std::byte*>(weights.piece(panel, piece));
  const std::int64_t steps = weights.steps(piece);
  if (tiling.tiles > 1) {
    const std::int64_t share = step_bytes / tiling.tiles;
    return {activations, at, sum, steps, at + steps * (step_bytes + share * tile), share};
  }
  const std::int64_t distance = weights_prefetch_distance(tiling.rows_of(tile));
  return {activations, at, sum, steps, at + distance, distance == 0 ? 0 : step_bytes};
}

// Finishes columns [col, col + n) of one row from `sum`.
void finish_row(const Plan& plan, const float* sum, const TensorView& residual, const MutableTensorView& out,
                std::int64_t row, std::int64_t col, std::int64_t n) {
  const void* h = residual.data == nullptr ? nullptr : row_of(residual, row, col);
  plan.table->row_out({sum, h, row_of(out, row, col), n, elem(residual.dtype), elem(out.dtype), plan.round});
}

}  // namespace

void InputPhase::run(const Plan& plan) const {
  const std::int64_t k = source.cols;
  const std::int64_t padded = out.row_bytes / bytes_per_k(plan.pairs);
  run_parts(plan, tiling.tiles, kMaxParts, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      for (int r = 0; r < tiling.rows_of(t); ++r) {
        plan.table->row_in({row_of(source, row0 + tiling.start(t) + r, 0), elem(source.dtype), k, padded, norm, dim,
                            eps, out.tile(tiling, t), r, tiling.rows_of(t), plan.round});
      }
    }
  });
}

void GateUpPhase::run(const Plan& plan) const {
  const auto& kernels = plan.table->product[static_cast<int>(product)];
  const std::int64_t step_bytes = weights::step_bytes(product);
  const std::int64_t panel_bytes = kLanes * bytes_per_k(plan.pairs);  // of one row of z
  run_parts(plan, weights.panels(), kMaxParts, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) float sum[kMaxTileRows * kPanel];
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t unit = panel * kLanes;
      const auto valid = static_cast<int>(std::min<std::int64_t>(kLanes, hidden - unit));
      for (std::int64_t t = 0; t < tiling.tiles; ++t) {
        const int rows = tiling.rows_of(t);
        kernels.matmul[rows](matmul_call(weights, panel, 0, step_bytes, tiling, t, in.tile(tiling, t), sum));
        plan.table->gate_up[plan.pairs ? 1 : 0](
            {sum, out.tile(tiling, t) + panel * panel_bytes * rows, rows, valid, plan.round});
        if (trace == nullptr) continue;
        for (int r = 0; r < rows; ++r) {
          const std::int64_t at = (tiling.start(t) + r) * hidden + unit;
          std::memcpy(trace->gate + at, sum + r * kPanel, static_cast<std::size_t>(valid) * sizeof(float));
          std::memcpy(trace->up + at, sum + r * kPanel + kLanes, static_cast<std::size_t>(valid) * sizeof(float));
        }
      }
    }
  });
}

void DownPhase::run(const Plan& plan) const {
  const auto& kernels = plan.table->product[static_cast<int>(product)];
  const std::int64_t step_bytes = weights::step_bytes(product);
  const std::int64_t bytes_per_step = weights::k_per_step(product) * bytes_per_k(plan.pairs);  // of one row of z
  run_parts(plan, weights.panels(), kMaxParts, [&](std::int64_t begin, std::int64_t end) {
    // A binary counter of subtree sums: equal neighbours join, so at most log2(16) + 1 wait at once.
    // Groups outside, tiles inside: a piece of weights stays in L2 while all tiles use it.
    alignas(64) float stack[5][kBlockRows * kPanel];
    int sizes[5] = {};
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t col = panel * kPanel;
      const std::int64_t n = std::min<std::int64_t>(kPanel, dim - col);
      std::int64_t piece = 0;
      std::int64_t steps_before = 0;
      for (std::size_t s = 0; s < subtrees.size(); ++s) {
        int depth = 0;
        for (int g = 0; g < subtrees[s].groups; ++g, ++piece) {
          for (std::int64_t t = 0; t < tiling.tiles; ++t) {
            const int rows = tiling.rows_of(t);
            const std::byte* activations = in.tile(tiling, t) + steps_before * bytes_per_step * rows;
            float* sum = stack[depth] + tiling.start(t) * kPanel;
            kernels.matmul[rows](matmul_call(weights, panel, piece, step_bytes, tiling, t, activations, sum));
          }
          steps_before += weights.steps(piece);
          sizes[depth++] = 1;
          while (depth >= 2 && sizes[depth - 2] == sizes[depth - 1]) {
            plan.table->add(stack[depth - 2], stack[depth - 2], stack[depth - 1], tiling.rows * kPanel);
            sizes[depth - 2] *= 2;
            --depth;
          }
        }
        for (std::int64_t row = 0; row < tiling.rows; ++row) {
          if (partial == nullptr) {
            finish_row(plan, stack[0] + row * kPanel, residual, out, row, col, n);
          } else {
            std::memcpy(partial + (static_cast<std::int64_t>(s) * tiling.rows + row) * dim + col,
                        stack[0] + row * kPanel, static_cast<std::size_t>(n) * sizeof(float));
          }
        }
      }
    }
  });
}

void OutputPhase::run(const Plan& plan) const {
  run_parts(plan, rows, kMaxParts, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) finish_row(plan, root + r * dim, residual, out, r, 0, dim);
  });
}

}  // namespace swiglu::layer
