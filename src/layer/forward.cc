// The sublayer, call by call: argument checks, workspace, and the four phases per block of rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include <fmt/format.h>

#include "base/buffer.h"
#include "base/cpu.h"
#include "base/dtype.h"
#include "layer/layer.h"

namespace swiglu {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

void check_view(const char* call, const char* what, const TensorView& view, std::int64_t dim) {
  if (view.cols != dim) {
    throw Error(ErrorCode::shape, fmt::format("{}: {} has {} columns, expected dim {}", call, what, view.cols, dim));
  }
  constexpr std::int64_t kMostElements = INT64_MAX / 16;  // their bytes are a number, too
  if (view.rows < 0 || view.stride < view.cols || (view.rows > 0 && view.data == nullptr) ||
      (view.rows > 0 && view.stride > kMostElements / view.rows)) {
    throw Error(ErrorCode::usage, fmt::format("{}: {} is no matrix: {} rows, stride {}, data {}", call, what, view.rows,
                                              view.stride, view.data == nullptr ? "null" : "given"));
  }
}

// In place is fine; any other overlap would read outputs as inputs.
bool overlap(const TensorView& a, const TensorView& b) {
  const auto range = [](const TensorView& v) {
    const auto first = reinterpret_cast<std::uintptr_t>(v.data);
    return std::pair(first, first + static_cast<std::uintptr_t>(((v.rows - 1) * v.stride + v.cols) * size_of(v.dtype)));
  };
  const auto [a0, a1] = range(a);
  const auto [b0, b1] = range(b);
  return a0 < b1 && b0 < a1 && !(a.data == b.data && a.dtype == b.dtype && a.stride == b.stride);
}

template <class View>
View rows_of(View view, std::int64_t row0, std::int64_t rows) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, const std::byte, std::byte>;
  view.data = static_cast<Byte*>(view.data) + row0 * view.stride * size_of(view.dtype);
  view.rows = rows;
  return view;
}

// The addition that a Reducer is handed: a kernel, in the layer's mode.
template <std::uint32_t kMode>
void add_in_mode(float* dst, const float* left, const float* right, std::int64_t n) {
  static const kernels::Table* const kBest = kernels::find_table(name_of(available_isas().back()));
  const FloatMode mode(kMode);
  kBest->add(dst, left, right, n);
}

void canonicalise(std::vector<float>& values) {
  for (float& value : values) {
    if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
  }
}

// Rows of tiles back to [rows][k] floats.
void read_tiles(const layer::Tiling& tiling, const layer::Tiles& tiles, bool pairs, std::int64_t k, float* dst) {
  for (std::int64_t t = 0; t < tiling.tiles; ++t) {
    const std::int64_t rows = tiling.rows_of(t);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = dst + (tiling.start(t) + r) * k;
      for (std::int64_t i = 0; i < k; ++i) {
        if (pairs) {
          std::uint16_t half = 0;
          std::memcpy(&half, tiles.tile(tiling, t) + (i / 2 * rows + r) * 4 + i % 2 * 2, 2);
          row[i] = float_from_bf16(half);
        } else {
          std::memcpy(row + i, tiles.tile(tiling, t) + (i * rows + r) * 4, 4);
        }
      }
    }
  }
}

}  // namespace

layer::Plan FeedForward::Impl::plan() const {
  const bool bf16 = info.compute == Compute::bf16;
  return {table,   bf16 ? FloatMode::kFlush : FloatMode::kExact,
          bf16,    table->product[static_cast<int>(down_product)].pairs,
          workers, &runner};
}

FeedForward::Impl::Areas FeedForward::Impl::areas(std::int64_t tokens) const {
  const std::int64_t rows = std::clamp<std::int64_t>(tokens, 0, layer::kBlockRows);
  const std::int64_t per_k = layer::bytes_per_k(plan().pairs);
  Areas at{};
  at.input_row_bytes = round_up(info.config.dim, kernels::kLanes) * per_k;
  at.z_row_bytes = round_up(local_hidden, kernels::kLanes) * per_k;
  at.z_at = round_up(rows * at.input_row_bytes, 64);
  at.partial_at = at.z_at + round_up(rows * at.z_row_bytes, 64);
  at.root_at = at.partial_at;
  at.bytes = at.partial_at;
  if (reducer != nullptr) {
    const std::int64_t sums = rows * info.config.dim * static_cast<std::int64_t>(sizeof(float));
    at.root_at += round_up(static_cast<std::int64_t>(subtrees.size()) * sums, 64);
    at.sums_bytes = at.root_at + round_up(sums, 64) - at.partial_at;
    at.bytes += (tokens > layer::kBlockRows ? 2 : 1) * at.sums_bytes;
  }
  return at;
}

void FeedForward::Impl::run(const char* call, const TensorView& h, const MutableTensorView& out,
                            std::span<std::byte> workspace, bool block, LayerTrace* trace) const {
  check_view(call, "the input", h, info.config.dim);
  check_view(call, "the output", out, info.config.dim);
  if (h.rows != out.rows) {
    throw Error(ErrorCode::shape, fmt::format("{}: the input has {} rows, the output {}", call, h.rows, out.rows));
  }
  if (h.rows == 0) return;
  if (overlap(h, out)) {
    throw Error(ErrorCode::usage, fmt::format("{}: input and output overlap without being the same", call));
  }
  if (block && norm.empty()) {
    throw Error(ErrorCode::usage, fmt::format("{}: this layer was made without a norm vector", call));
  }
  const Areas at = areas(h.rows);
  if (static_cast<std::int64_t>(workspace.size()) < at.bytes ||
      reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 != 0) {
    throw Error(ErrorCode::usage,
                fmt::format("{}: expected a 64-byte aligned workspace of {} bytes, found {} bytes at {}", call,
                            at.bytes, workspace.size(), static_cast<void*>(workspace.data())));
  }
  const layer::Plan shared = plan();
  const auto rows_at = [&h](std::int64_t row0) { return std::min(layer::kBlockRows, h.rows - row0); };
  if (reducer == nullptr) {
    for (std::int64_t row0 = 0; row0 < h.rows; row0 += layer::kBlockRows) {
      run_block(shared, at, h, out, row0, rows_at(row0), workspace.data(), nullptr, block, trace);
    }
    return;
  }
  // The sums of one block are reduced while the next one is computed.
  std::optional<Reduction> before;
  const auto write = [&](const Reduction& done) {
    const TensorView residual = block ? rows_of(h, done.row0, done.rows) : TensorView{};
    layer::OutputPhase{done.root, done.rows, info.config.dim, residual, rows_of(out, done.row0, done.rows)}.run(shared);
  };
  for (std::int64_t row0 = 0, i = 0; row0 < h.rows; row0 += layer::kBlockRows, ++i) {
    std::byte* const sums = workspace.data() + i % 2 * at.sums_bytes;
    auto* const partial = reinterpret_cast<float*>(sums + at.partial_at);
    auto* const root = reinterpret_cast<float*>(sums + at.root_at);
    run_block(shared, at, h, out, row0, rows_at(row0), workspace.data(), partial, block, trace);
    if (before) reducer->finish();
    const Reduction now = start(shared, row0, rows_at(row0), partial, root);
    if (before) write(*before);
    before = now;
  }
  reducer->finish();
  write(*before);
}

FeedForward::Impl::Reduction FeedForward::Impl::start(const layer::Plan& plan, std::int64_t row0, std::int64_t rows,
                                                      float* partial, float* root) const {
  PartialSum parts[layer::kGroups];
  std::size_t count = 0;
  const std::int64_t n = rows * info.config.dim;
  for (const auto& subtree : subtrees) {
    parts[count] = {subtree.first_group, subtree.groups, partial + static_cast<std::int64_t>(count) * n};
    ++count;
  }
  reducer->start({parts, count}, n, root, plan.round ? add_in_mode<FloatMode::kFlush> : add_in_mode<FloatMode::kExact>);
  return {row0, rows, root};
}

void FeedForward::Impl::run_block(const layer::Plan& plan, const Areas& at, const TensorView& h,
                                  const MutableTensorView& out, std::int64_t row0, std::int64_t rows, std::byte* memory,
                                  float* partial, bool block, LayerTrace* trace) const {
  const std::int64_t dim = info.config.dim;
  const layer::Tiling tiling(rows, table->product[static_cast<int>(gate_up_product)].max_rows);
  const layer::Tiles input{memory, at.input_row_bytes};
  const layer::Tiles z{memory + at.z_at, at.z_row_bytes};
  const MutableTensorView block_out = rows_of(out, row0, rows);
  const TensorView residual = block ? rows_of(h, row0, rows) : TensorView{};

  layer::InputPhase{h, row0, block ? norm.data() : nullptr, dim_as_float, eps_as_float, tiling, input}.run(plan);

  layer::GateUpTrace seen{};
  if (trace != nullptr) {
    seen = {trace->gate.data() + row0 * local_hidden, trace->up.data() + row0 * local_hidden};
    read_tiles(tiling, input, plan.pairs, dim, trace->norm.data() + row0 * dim);
  }
  layer::GateUpPhase{gate_up, gate_up_product, local_hidden, tiling, input, z, trace == nullptr ? nullptr : &seen}.run(
      plan);
  if (trace != nullptr) read_tiles(tiling, z, plan.pairs, local_hidden, trace->z.data() + row0 * local_hidden);

  layer::DownPhase{down, down_product, subtrees, dim, tiling, z, residual, block_out, partial}.run(plan);
}

FeedForward::FeedForward(const LayerSource& layer, ThreadPool& pool, const Options& options)
    : impl_(std::make_unique<Impl>(layer, pool.runner(), pool.threads(), options)) {}
FeedForward::FeedForward(const LayerSource& layer, Runner runner, const Options& options)
    : impl_(std::make_unique<Impl>(layer, runner, usable_cpus(), options)) {}
FeedForward::FeedForward(FeedForward&&) noexcept = default;
FeedForward& FeedForward::operator=(FeedForward&&) noexcept = default;
FeedForward::~FeedForward() = default;

const FeedForwardInfo& FeedForward::info() const noexcept { return impl_->info; }

std::size_t FeedForward::workspace_bytes(std::int64_t tokens) const noexcept {
  return static_cast<std::size_t>(impl_->areas(tokens).bytes);
}

void FeedForward::block(const TensorView& h, const MutableTensorView& out, std::span<std::byte> workspace) const {
  impl_->run("block", h, out, workspace, true, nullptr);
}
void FeedForward::block(const TensorView& h, const MutableTensorView& out) const {
  const Buffer workspace(impl_->areas(h.rows).bytes);
  block(h, out, {workspace.data(), static_cast<std::size_t>(workspace.size())});
}
void FeedForward::forward(const TensorView& x, const MutableTensorView& y, std::span<std::byte> workspace) const {
  impl_->run("forward", x, y, workspace, false, nullptr);
}
void FeedForward::forward(const TensorView& x, const MutableTensorView& y) const {
  const Buffer workspace(impl_->areas(x.rows).bytes);
  forward(x, y, {workspace.data(), static_cast<std::size_t>(workspace.size())});
}

LayerTrace FeedForward::trace(const TensorView& h, bool normalise) const {
  if (impl_->local_hidden != impl_->info.config.hidden) {
    throw Error(ErrorCode::usage, "trace: this layer holds only one rank's share of the weights");
  }
  check_view("trace", "the input", h, impl_->info.config.dim);
  const auto rows = static_cast<std::size_t>(h.rows);
  const auto dim = static_cast<std::size_t>(h.cols);
  const auto hidden = static_cast<std::size_t>(impl_->local_hidden);
  LayerTrace seen;
  seen.norm.resize(rows * dim);
  seen.gate.resize(rows * hidden);
  seen.up.resize(rows * hidden);
  seen.z.resize(rows * hidden);
  seen.down.resize(rows * dim);
  // The down sums are what forward() gives for the normalised rows; those are already rounded, so
  // reading them again changes nothing.
  const Buffer workspace(impl_->areas(h.rows).bytes);
  const std::span<std::byte> memory{workspace.data(), static_cast<std::size_t>(workspace.size())};
  std::vector<float> out(normalise ? rows * dim : 0);
  impl_->run("trace", h, view_f32(normalise ? out.data() : seen.down.data(), h.rows, h.cols), memory, normalise, &seen);
  if (normalise) {
    impl_->run("trace", view_f32(seen.norm.data(), h.rows, h.cols), view_f32(seen.down.data(), h.rows, h.cols), memory,
               false, nullptr);
  }
  for (auto* values : {&seen.norm, &seen.gate, &seen.up, &seen.z}) canonicalise(*values);
  return seen;
}

}  // namespace swiglu
