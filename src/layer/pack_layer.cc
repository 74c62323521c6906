// Construction: which product, which groups, then packing. Everything that can fail fails here.
#include <atomic>
#include <cmath>

#include <fmt/format.h>

#include "base/cpu.h"
#include "base/dtype.h"
#include "base/text.h"
#include "layer/layer.h"

namespace swiglu {
namespace {

using kernels::Product;

void check_shape(const char* role, const std::shared_ptr<const TensorSource>& source, std::int64_t rows,
                 std::int64_t cols) {
  if (source == nullptr) throw Error(ErrorCode::usage, fmt::format("the {} matrix is missing", role));
  if (source->rows() != rows || source->cols() != cols) {
    throw Error(ErrorCode::shape, fmt::format("{} ({}): expected {} x {}, found {} x {}", escaped(source->name()), role,
                                              rows, cols, source->rows(), source->cols()));
  }
}

void check(const LayerSource& source) {
  const auto [dim, hidden, eps] = source.config;
  check_shape("gate", source.gate, hidden, dim);
  check_shape("up", source.up, hidden, dim);
  check_shape("down", source.down, dim, hidden);
}

// In f32 compute weights stay as they are stored, in the widest type if gate and up differ.
DType packed_type(Compute compute, DType first, DType second) {
  if (compute == Compute::bf16) return DType::bf16;
  return first != second || first == DType::f64 ? DType::f32 : first;
}

Product product_for(Compute compute, DType packed) {
  if (compute == Compute::bf16) return Product::bf16_bf16;
  return packed == DType::bf16 ? Product::f32_bf16 : packed == DType::f16 ? Product::f32_f16 : Product::f32_f32;
}

// A fixed table, measured (docs/speed.md): with 8 lanes and fewer, decoding costs more than the saved bytes give
// from 4 tokens on.
Storage storage_for(const Options& options, Isa isa, DType packed) {
  if (packed != DType::bf16) return Storage::plain;
  if (options.storage != Storage::automatic) return options.storage;
  return isa == Isa::avx512 || isa == Isa::avx512bf16 ? Storage::compact : Storage::plain;
}

// Rounds to nearest whatever mode the caller is in; store_double is compiled elsewhere, so the
// conversion cannot move out of the scope.
float to_float(double value) {
  const FloatMode exact(FloatMode::kExact);
  float narrow = 0;
  store_double(&narrow, DType::f32, 0, value);
  return narrow;
}

// Source elements packed so far, told to the caller in bytes of packed weights.
struct Meter {
  const Options& options;
  std::int64_t elements;
  std::int64_t bytes;
  std::atomic<std::int64_t> done{0};
  [[nodiscard]] weights::Progress progress() { return {&advance, this}; }
  static void advance(void* ctx, std::int64_t n) {
    auto& meter = *static_cast<Meter*>(ctx);
    const std::int64_t so_far = meter.done.fetch_add(n) + n;
    const double share = static_cast<double>(so_far) / static_cast<double>(meter.elements);
    meter.options.progress(meter.options.progress_ctx,
                           static_cast<std::int64_t>(share * static_cast<double>(meter.bytes)), meter.bytes);
  }
};

// Options that a packed layer can be run with as it is; with others it is unpacked and packed anew.
bool fits(const PackedSource& packed, const Options& options) {
  for (const auto part : {PackedSource::Part::gate_up, PackedSource::Part::down}) {
    const auto [dtype, storage, index_bytes, payload_bytes] = packed.matrix(part);
    if (options.compute == Compute::bf16 && dtype != DType::bf16) return false;
    const bool other = options.storage != Storage::automatic && options.storage != storage;
    if (other && dtype == DType::bf16) return false;
  }
  return true;
}

}  // namespace

namespace layer {

void check_config(const FfnConfig& config) {
  const auto [dim, hidden, eps] = config;
  // 2^40 keeps every size computation of this library inside 64 bits; no memory holds such a layer.
  std::int64_t elements = 0;
  if (dim < 1 || hidden < 1 || __builtin_mul_overflow(dim, hidden, &elements) || elements > INT64_MAX / 64 ||
      dim > (std::int64_t{1} << 40) || hidden > (std::int64_t{1} << 40)) {
    throw Error(ErrorCode::shape,
                fmt::format("dim {} and hidden {}: expected sizes from 1 that fit in memory", dim, hidden));
  }
  if (!(eps >= 0) || !std::isfinite(eps)) {
    throw Error(ErrorCode::usage, fmt::format("eps: expected a number of at least 0, found {}", eps));
  }
}

Shapes whole_shapes(const FfnConfig& config) {
  const auto borders = group_borders(config.hidden);
  return {weights::gate_up_shape(0, config.hidden, config.dim),
          weights::down_shape(config.dim, {borders.begin(), borders.end()})};
}

Shares shares(const FfnConfig& config, GroupRange groups) {
  const auto all = group_borders(config.hidden);
  Shares own;
  own.borders.assign(all.begin() + groups.first, all.begin() + groups.last + 1);
  const std::int64_t first = own.borders.front(), last = own.borders.back();
  // A border is a multiple of 32, or the end: panels of 16 hidden units belong to one rank each.
  own.gate_up = {weights::gate_up_shape(first, last, config.dim), first / kernels::kLanes, 0};
  own.down = {weights::down_shape(config.dim, own.borders), 0, groups.first};
  return own;
}

}  // namespace layer

FeedForward::Impl::Impl(const LayerSource& source, Runner runner_in, int workers_in, const Options& options)
    : runner(runner_in), workers(workers_in), reducer(options.reducer), norm(source.norm) {
  layer::check_config(source.config);
  if (!norm.empty() && std::ssize(norm) != source.config.dim) {
    throw Error(ErrorCode::shape,
                fmt::format("the norm vector: expected {} elements, found {}", source.config.dim, norm.size()));
  }
  dim_as_float = to_float(static_cast<double>(source.config.dim));
  eps_as_float = to_float(source.config.eps);
  info.config = source.config;
  info.isa = resolve_isa(options.isa);
  table = kernels::find_table(name_of(info.isa));
  if (reducer != nullptr) {
    if (reducer->size() < 1 || reducer->rank() < 0 || reducer->rank() >= reducer->size()) {
      throw Error(ErrorCode::usage, fmt::format("rank {} of {}: not a rank", reducer->rank(), reducer->size()));
    }
  }
  const int rank = reducer == nullptr ? 0 : reducer->rank(), ranks = reducer == nullptr ? 1 : reducer->size();
  groups = layer::owned_groups(rank, ranks);
  subtrees = owned_subtrees(rank, ranks);
  if (source.packed != nullptr && fits(*source.packed, options)) {
    take(*source.packed, options);
  } else {
    pack(unpack(source, runner), options);
  }
  gate_up_product = product_for(info.compute, gate_up.dtype());
  down_product = product_for(info.compute, down.dtype());
  info.gate_up = gate_up.info();
  info.down = down.info();
  info.packed_bytes = info.gate_up.bytes + info.down.bytes;
  info.bits_per_weight = local_hidden == 0
                             ? 0.0
                             : 8.0 * static_cast<double>(info.packed_bytes) /
                                   (3.0 * static_cast<double>(local_hidden) * static_cast<double>(source.config.dim));
}

void FeedForward::Impl::pack(const LayerSource& source, const Options& options) {
  check(source);
  const bool all_bf16 =
      source.gate->dtype() == DType::bf16 && source.up->dtype() == DType::bf16 && source.down->dtype() == DType::bf16;
  info.compute = options.compute != Compute::automatic ? options.compute : all_bf16 ? Compute::bf16 : Compute::f32;
  const DType gate_up_type = packed_type(info.compute, source.gate->dtype(), source.up->dtype());
  const DType down_type = packed_type(info.compute, source.down->dtype(), source.down->dtype());
  const Storage gate_up_storage = storage_for(options, info.isa, gate_up_type);
  const Storage down_storage = storage_for(options, info.isa, down_type);
  const std::vector<std::int64_t> borders = layer::shares(source.config, groups).borders;
  local_hidden = borders.back() - borders.front();
  Meter meter{options, local_hidden * source.config.dim * 3, 0};
  meter.bytes = local_hidden * source.config.dim * (2 * size_of(gate_up_type) + size_of(down_type));
  const weights::Progress progress = options.progress == nullptr ? weights::Progress{} : meter.progress();
  gate_up = weights::pack_gate_up(*source.gate, *source.up, borders.front(), borders.back(), gate_up_type,
                                  {*table, runner, gate_up_storage, progress});
  down = weights::pack_down(*source.down, borders, down_type, {*table, runner, down_storage, progress});
}

void FeedForward::Impl::take(const PackedSource& packed, const Options& options) {
  const FfnConfig& config = info.config;
  if (packed.config().dim != config.dim || packed.config().hidden != config.hidden) {
    throw Error(ErrorCode::shape, fmt::format("{}: expected dim {} and hidden {}, found {} and {}", packed.name(),
                                              config.dim, config.hidden, packed.config().dim, packed.config().hidden));
  }
  info.compute = options.compute != Compute::automatic ? options.compute : packed.compute();
  const layer::Shapes whole = layer::whole_shapes(config);
  const layer::Shares own = layer::shares(config, groups);
  local_hidden = own.hidden();
  Meter meter{options, 3 * config.dim * local_hidden, 0};
  for (const auto part : {PackedSource::Part::gate_up, PackedSource::Part::down}) {
    const double share = static_cast<double>(local_hidden) / static_cast<double>(config.hidden);
    meter.bytes += static_cast<std::int64_t>(share * static_cast<double>(packed.matrix(part).payload_bytes));
  }
  const weights::Progress progress = options.progress == nullptr ? weights::Progress{} : meter.progress();
  gate_up = weights::load_packed(whole.gate_up, own.gate_up, packed, PackedSource::Part::gate_up, runner, progress);
  down = weights::load_packed(whole.down, own.down, packed, PackedSource::Part::down, runner, progress);
  if (info.compute == Compute::bf16 && (gate_up.dtype() != DType::bf16 || down.dtype() != DType::bf16)) {
    throw Error(ErrorCode::format, fmt::format("{}: expected bf16 weights for compute bf16, found {} and {}",
                                               packed.name(), name_of(gate_up.dtype()), name_of(down.dtype())));
  }
}

}  // namespace swiglu
