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
  check_shape("gate", source.gate, hidden, dim);
  check_shape("up", source.up, hidden, dim);
  check_shape("down", source.down, dim, hidden);
  if (!source.norm.empty() && static_cast<std::int64_t>(source.norm.size()) != dim) {
    throw Error(ErrorCode::shape,
                fmt::format("the norm vector: expected {} elements, found {}", dim, source.norm.size()));
  }
}

// In f32 compute weights stay as they are stored, in the widest type if gate and up differ.
Product product_for(Compute compute, DType first, DType second) {
  if (compute == Compute::bf16) return Product::bf16_bf16;
  if (first != second || first == DType::f32 || first == DType::f64) return Product::f32_f32;
  return first == DType::bf16 ? Product::f32_bf16 : Product::f32_f16;
}

const char* storage_name(Product product) {
  switch (product) {
    case Product::f32_f32:
      return "plain f32";
    case Product::f32_f16:
      return "plain f16";
    case Product::f32_bf16:
    case Product::bf16_bf16:
    case Product::bf16_wide:
      break;
  }
  return "plain bf16";
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
  static void advance(void* ctx, std::int64_t n) {
    auto& meter = *static_cast<Meter*>(ctx);
    const std::int64_t so_far = meter.done.fetch_add(n) + n;
    const double share = static_cast<double>(so_far) / static_cast<double>(meter.elements);
    meter.options.progress(meter.options.progress_ctx,
                           static_cast<std::int64_t>(share * static_cast<double>(meter.bytes)), meter.bytes);
  }
};

}  // namespace

FeedForward::Impl::Impl(const LayerSource& source, Runner runner_in, int workers_in, const Options& options)
    : runner(runner_in), workers(workers_in), reducer(options.reducer), norm(source.norm) {
  check(source);
  dim_as_float = to_float(static_cast<double>(source.config.dim));
  eps_as_float = to_float(source.config.eps);
  const bool all_bf16 =
      source.gate->dtype() == DType::bf16 && source.up->dtype() == DType::bf16 && source.down->dtype() == DType::bf16;
  info.config = source.config;
  info.isa = resolve_isa(options.isa);
  info.compute = options.compute != Compute::automatic ? options.compute : all_bf16 ? Compute::bf16 : Compute::f32;
  table = kernels::find_table(name_of(info.isa));
  gate_up_product = product_for(info.compute, source.gate->dtype(), source.up->dtype());
  down_product = product_for(info.compute, source.down->dtype(), source.down->dtype());

  if (reducer != nullptr) {
    if (reducer->size() < 1 || reducer->rank() < 0 || reducer->rank() >= reducer->size()) {
      throw Error(ErrorCode::usage, fmt::format("rank {} of {}: not a rank", reducer->rank(), reducer->size()));
    }
    groups = layer::owned_groups(reducer->rank(), reducer->size());
  }
  subtrees = layer::subtrees(groups);
  const auto all = layer::group_borders(source.config.hidden);
  const std::vector<std::int64_t> borders(all.begin() + groups.first, all.begin() + groups.last + 1);
  local_hidden = borders.back() - borders.front();

  Meter meter{options, local_hidden * source.config.dim * 3, 0};
  const auto bytes_of = [](Product p) { return p == Product::f32_f32 ? 4 : 2; };
  meter.bytes = local_hidden * source.config.dim * (2 * bytes_of(gate_up_product) + bytes_of(down_product));
  weights::Progress progress;
  if (options.progress != nullptr) progress = {&Meter::advance, &meter};
  gate_up = weights::pack_gate_up(*table, *source.gate, *source.up, borders.front(), borders.back(), gate_up_product,
                                  runner, progress);
  down = weights::pack_down(*table, *source.down, borders, down_product, runner, progress);

  info.gate_up.storage = storage_name(gate_up_product);
  info.down.storage = storage_name(down_product);
  info.packed_bytes = gate_up.size_bytes() + down.size_bytes();
  info.bits_per_weight = local_hidden == 0
                             ? 0.0
                             : 8.0 * static_cast<double>(info.packed_bytes) /
                                   (3.0 * static_cast<double>(local_hidden) * static_cast<double>(source.config.dim));
}

}  // namespace swiglu
