// See panels.h. Sizes and orders here were measured (docs/speed.md).
#include "layer/panels.h"

#include <algorithm>

#include "base/cpu.h"

namespace swiglu::layer {
namespace {

using kernels::Ahead;
using kernels::kPanel;
using kernels::Tile;

constexpr std::int64_t kPairBytes = 128;               // what a kernel fetches at a time
constexpr std::int64_t kChunkBytes = std::int64_t{64} << 10;  // of weights, the longest
constexpr std::int64_t kWidened = std::int64_t{1024} * kPanel;  // floats of the longest chunk of k

}  // namespace

PanelTasks::PanelTasks(const Plan& plan, std::int64_t panels, const Tiling& tiling)
    : panels_(panels), tiles_(tiling.tiles), splits_(1) {
  const std::int64_t wanted = 2 * std::int64_t{plan.workers};  // so that the last ones to end are short
  if (panels > 0 && panels < wanted) splits_ = std::clamp<std::int64_t>(wanted / panels, 1, tiles_);
}

const std::byte* PanelProduct::activations(std::int64_t tile, std::int64_t step) const noexcept {
  const std::int64_t bytes_per_step = kernels::k_per_step(product) * bytes_per_k(plan.pairs);
  return in.tile(tiling, tile) + step * bytes_per_step * tiling.rows_of(tile);
}

// One tile uses each weight once, so memory is the limit: the piece in one call, fetching ahead in a stream
// that runs on into the next panel.
void PanelProduct::stream(std::int64_t panel, std::int64_t piece, std::int64_t steps_before, float* sums) const {
  const int rows = tiling.rows_of(0);
  const kernels::Product stored = weights.product(panel, product);
  const std::byte* at = weights.piece(panel, piece);
  const PrefetchPolicy fetch = weights_prefetch(rows);
  const weights::Stream memory = weights.stream(panel);
  const Ahead ahead = kernels::stream_ahead(memory.start, at - memory.start, memory.bytes,
                                            kernels::counted_bytes(stored), fetch.far, fetch.pages_log2, fetch.near_by);
  Tile tile{activations(0, steps_before), at, sums, weights.steps(piece), false, ahead};
  tile.codes = weights.codes(panel, piece, 0);
  plan.table->product[static_cast<int>(stored)].matmul[rows](tile);
}

void PanelProduct::run(const PanelTasks::Task& task, std::int64_t piece, std::int64_t steps_before, float* sums) const {
  if (tiling.tiles == 1) return stream(task.panel, piece, steps_before, sums);
  const auto& table = plan.table->product;
  const kernels::Product stored = weights.product(task.panel, product);
  const auto& narrow = table[static_cast<int>(stored)];
  // The first tile leaves the weights widened for the others.
  const std::int64_t tiles = task.last_tile - task.first_tile;
  const bool widens = narrow.wide != stored && tiles > 1;
  const auto& others = table[static_cast<int>(narrow.wide)];
  // bf16 to f32_f32 makes two steps of one; the others keep their number.
  const std::int64_t wide_steps = kernels::k_per_step(stored) / kernels::k_per_step(narrow.wide);
  const std::int64_t step_bytes = kernels::step_bytes(stored);
  const std::int64_t chunk = kernels::chunk_steps(stored);
  const std::int64_t all = weights.steps(piece);
  const std::int64_t near_by = weights_prefetch(tiling.rows_of(task.first_tile)).near_by;
  alignas(64) float widened[kWidened];
  // All tiles together fetch, evenly, the chunk that follows in memory.
  Ahead ahead;
  ahead.at = weights.piece(task.panel, piece);
  ahead.bytes = kernels::piece_bytes(stored, all) + kChunkBytes;
  ahead.pages_log2 = 3;
  for (std::int64_t begin = 0;;) {
    const std::int64_t steps = std::min(chunk, all - begin);
    const auto* at = static_cast<const std::byte*>(ahead.at) + begin * step_bytes;
    const std::int64_t pairs = steps * step_bytes / kPairBytes;
    const kernels::Codes codes = weights.codes(task.panel, piece, begin);
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t t = task.first_tile + i;
      const bool wide = widens && i > 0;
      const std::int64_t first_pair = pairs * i / tiles;
      const std::int64_t share = pairs * (i + 1) / tiles - first_pair;
      Tile tile{activations(t, steps_before + begin),
                wide ? static_cast<const void*>(widened) : at,
                sums + tiling.start(t) * kPanel,
                wide ? steps * wide_steps : steps,
                begin > 0,
                ahead};
      tile.ahead.done = (begin * step_bytes + kChunkBytes) / kPairBytes + first_pair;
      const std::int64_t counts = wide ? tile.steps : steps * step_bytes / kernels::counted_bytes(stored);
      tile.ahead.every = std::max<std::int64_t>(counts / std::max<std::int64_t>(share, 1), 1);
      if (i == 0) tile.ahead.near_by = near_by;
      if (i == 0 && widens) tile.widened = widened;
      if (!wide) tile.codes = codes;
      (wide ? others : narrow).matmul[tiling.rows_of(t)](tile);
    }
    begin += steps;
    if (begin >= all) break;
  }
}

}  // namespace swiglu::layer
