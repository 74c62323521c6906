// The phases of matmul.h. Which task computes what never changes a bit: every output is one chain of
// additions inside one kernel call, and group sums are combined in the fixed tree.
#include "layer/matmul.h"

#include <algorithm>
#include <cstring>

#include "layer/panels.h"

namespace swiglu::layer {
namespace {

using kernels::kLanes;
using kernels::kPanel;

kernels::Elem elem(DType type) { return static_cast<kernels::Elem>(type); }

const std::byte* row_of(const TensorView& view, std::int64_t row, std::int64_t col) {
  return static_cast<const std::byte*>(view.data) + (row * view.stride + col) * size_of(view.dtype);
}
std::byte* row_of(const MutableTensorView& view, std::int64_t row, std::int64_t col) {
  return static_cast<std::byte*>(view.data) + (row * view.stride + col) * size_of(view.dtype);
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
  run_tasks(plan, tiling.tiles, [&](std::int64_t t) {
    for (int r = 0; r < tiling.rows_of(t); ++r) {
      plan.table->row_in({row_of(source, row0 + tiling.start(t) + r, 0), elem(source.dtype), k, padded, norm, dim, eps,
                          out.tile(tiling, t), r, tiling.rows_of(t), plan.round});
    }
  });
}

void GateUpPhase::run(const Plan& plan) const {
  const PanelProduct panels{plan, weights, product, tiling, in};
  const PanelTasks tasks(plan, weights.panels(), tiling);
  const std::int64_t panel_bytes = kLanes * bytes_per_k(plan.pairs);  // of one row of z
  run_tasks(plan, tasks.size(), [&](std::int64_t i) {
    alignas(64) float sums[kBlockRows * kPanel];
    const auto task = tasks[i];
    panels.run(task, 0, 0, sums);
    const std::int64_t unit = task.panel * kLanes;
    const auto valid = static_cast<int>(std::min<std::int64_t>(kLanes, hidden - unit));
    for (std::int64_t t = task.first_tile; t < task.last_tile; ++t) {
      const int rows = tiling.rows_of(t);
      const float* sum = sums + tiling.start(t) * kPanel;
      plan.table->gate_up[plan.pairs ? 1 : 0](
          {sum, out.tile(tiling, t) + task.panel * panel_bytes * rows, rows, valid, plan.round});
      if (trace == nullptr) continue;
      for (int r = 0; r < rows; ++r) {
        const std::int64_t at = (tiling.start(t) + r) * hidden + unit;
        std::memcpy(trace->gate + at, sum + r * kPanel, static_cast<std::size_t>(valid) * sizeof(float));
        std::memcpy(trace->up + at, sum + r * kPanel + kLanes, static_cast<std::size_t>(valid) * sizeof(float));
      }
    }
  });
}

void DownPhase::run(const Plan& plan) const {
  const PanelProduct panels{plan, weights, product, tiling, in};
  const PanelTasks tasks(plan, weights.panels(), tiling);
  run_tasks(plan, tasks.size(), [&](std::int64_t i) {
    // A binary counter of subtree sums: equal neighbours join, so at most log2(16) + 1 wait at once.
    // Groups outside, tiles inside: a piece of weights stays in L2 while all tiles use it.
    alignas(64) float stack[5][kBlockRows * kPanel];
    int sizes[5] = {};
    const auto task = tasks[i];
    const std::int64_t col = task.panel * kPanel;
    const std::int64_t n = std::min<std::int64_t>(kPanel, dim - col);
    const std::int64_t row0 = tiling.start(task.first_tile);
    const std::int64_t rows_end = tiling.start(task.last_tile);
    std::int64_t piece = 0;
    std::int64_t steps_before = 0;
    for (std::size_t s = 0; s < subtrees.size(); ++s) {
      int depth = 0;
      for (int g = 0; g < subtrees[s].groups; ++g, ++piece) {
        panels.run(task, piece, steps_before, stack[depth]);
        steps_before += weights.steps(piece);
        sizes[depth++] = 1;
        while (depth >= 2 && sizes[depth - 2] == sizes[depth - 1]) {
          float* left = stack[depth - 2] + row0 * kPanel;
          plan.table->add(left, left, stack[depth - 1] + row0 * kPanel, (rows_end - row0) * kPanel);
          sizes[depth - 2] *= 2;
          --depth;
        }
      }
      for (std::int64_t row = row0; row < rows_end; ++row) {
        const float* sum = stack[0] + row * kPanel;
        if (partial == nullptr) {
          finish_row(plan, sum, residual, out, row, col, n);
        } else {
          std::memcpy(partial + (static_cast<std::int64_t>(s) * tiling.rows + row) * dim + col, sum,
                      static_cast<std::size_t>(n) * sizeof(float));
        }
      }
    }
  });
}

void OutputPhase::run(const Plan& plan) const {
  run_tasks(plan, rows, [&](std::int64_t r) { finish_row(plan, root + r * dim, residual, out, r, 0, dim); });
}

}  // namespace swiglu::layer
