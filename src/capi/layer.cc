// Pools and layers of the C ABI: making them, and the two calls.
#include "capi/handles.h"

using namespace swiglu;        // NOLINT(google-build-using-namespace): these are the names of C
using namespace swiglu::capi;  // NOLINT(google-build-using-namespace)

namespace {

template <class View, class CView>
View view_of(const char* what, const CView& given) {
  const auto dtype = value_of("the element type", given.dtype, DType::f64);
  if (given.stride < 0) throw Error(ErrorCode::usage, std::string(what) + ": a stride is negative");
  return {given.data, dtype, given.rows, given.cols, given.stride == 0 ? given.cols : given.stride};
}

// The norm as floats; empty where none is given.
std::vector<float> norm_of(const swiglu_view& given, std::int64_t dim, double eps) {
  if (given.data == nullptr) return {};
  const auto view = view_of<TensorView>("norm", given);
  if (view.rows != 1 || view.cols != dim) {
    throw Error(ErrorCode::shape, "norm: expected 1 x " + std::to_string(dim) + ", found " + std::to_string(view.rows) +
                                      " x " + std::to_string(view.cols));
  }
  if (!(eps > 0)) {
    throw Error(ErrorCode::usage,
                "eps: expected the model's, a positive number such as 1e-5, found " + std::to_string(eps));
  }
  return read_floats(*view_source("norm", view));
}

swiglu_status make(const swiglu_layer_options* options, swiglu_layer** out, const auto& source) {
  if (out != nullptr) *out = nullptr;
  return guarded([&] {
    require(out, "the layer to be made");
    const swiglu_layer_options given = taken("swiglu_layer_options", options);
    Options how;
    how.compute = value_of("compute", given.compute, Compute::bf16);
    how.storage = value_of("storage", given.storage, Storage::compact);
    how.isa = value_of("isa", given.isa, Isa::avx512bf16);
    how.progress = given.progress;
    how.progress_ctx = given.progress_ctx;
    if (given.pool != nullptr && given.runner != nullptr) {
      throw Error(ErrorCode::usage, "swiglu_layer_options: expected a pool or a runner, found both");
    }
    if (given.reserved != 0) throw Error(ErrorCode::usage, "swiglu_layer_options: reserved must be 0");
    const LayerSource layer = source();
    auto made = std::make_unique<swiglu_layer>();
    made->has_norm = !layer.norm.empty();
    if (given.runner != nullptr) {
      require(given.runner->run, "runner: run");
      made->layer.emplace(layer, Runner{given.runner->run, given.runner->ctx}, how);
    } else {
      made->pool = given.pool != nullptr ? given.pool->pool : std::make_shared<ThreadPool>(1);
      made->layer.emplace(layer, *made->pool, how);
    }
    *out = made.release();
  });
}

swiglu_status call(const swiglu_layer* layer, const swiglu_view* in, const swiglu_mutable_view* out, void* workspace,
                   int64_t workspace_bytes, bool block) {
  return guarded([&] {
    require(layer, "the layer");
    require(in, "the input");
    require(out, "the output");
    const auto from = view_of<TensorView>("the input", *in);
    const auto to = view_of<MutableTensorView>("the output", *out);
    if (workspace == nullptr && workspace_bytes == 0) {
      if (block) return layer->layer->block(from, to);
      return layer->layer->forward(from, to);
    }
    require(workspace, "the workspace");
    if (workspace_bytes < 0) throw Error(ErrorCode::usage, "the workspace: its size is negative");
    const std::span space(static_cast<std::byte*>(workspace), static_cast<std::size_t>(workspace_bytes));
    if (block) return layer->layer->block(from, to, space);
    return layer->layer->forward(from, to, space);
  });
}

}  // namespace

swiglu_status swiglu_pool_create(int32_t threads, swiglu_pool** pool) {
  if (pool != nullptr) *pool = nullptr;
  return guarded([&] {
    require(pool, "swiglu_pool_create: pool");
    auto made = std::make_unique<swiglu_pool>();
    made->pool = std::make_shared<ThreadPool>(threads);
    *pool = made.release();
  });
}

void swiglu_pool_free(swiglu_pool* pool) { const std::unique_ptr<swiglu_pool> owned(pool); }

int32_t swiglu_pool_threads(const swiglu_pool* pool) { return pool == nullptr ? 0 : pool->pool->threads(); }

swiglu_status swiglu_layer_load(const swiglu_checkpoint* checkpoint, int64_t layer, int64_t expert,
                                const swiglu_layer_options* options, swiglu_layer** out) {
  return make(options, out, [&] {
    require(checkpoint, "swiglu_layer_load: checkpoint");
    return checkpoint->model.layer(layer, expert == -1 ? std::nullopt : std::optional(expert));
  });
}

swiglu_status swiglu_layer_create(const swiglu_weights* weights, const swiglu_layer_options* options,
                                  swiglu_layer** out) {
  return make(options, out, [&] {
    require(weights, "swiglu_layer_create: weights");
    const swiglu_weights given = taken("swiglu_weights", weights);
    LayerSource layer;
    layer.config = {given.gate.cols, given.gate.rows, given.eps > 0 ? given.eps : 1e-5};
    layer.gate = view_source("gate", view_of<TensorView>("gate", given.gate));
    layer.up = view_source("up", view_of<TensorView>("up", given.up));
    layer.down = view_source("down", view_of<TensorView>("down", given.down));
    layer.norm = norm_of(given.norm, layer.config.dim, given.eps);
    return layer;
  });
}

void swiglu_layer_free(swiglu_layer* layer) { const std::unique_ptr<swiglu_layer> owned(layer); }

swiglu_status swiglu_layer_get_info(const swiglu_layer* layer, swiglu_layer_info* info) {
  return guarded([&] {
    require(layer, "swiglu_layer_get_info: layer");
    const FeedForwardInfo& known = layer->layer->info();
    swiglu_layer_info ours{};
    ours.dim = known.config.dim;
    ours.hidden = known.config.hidden;
    ours.eps = known.config.eps;
    ours.compute = static_cast<swiglu_compute>(known.compute);
    ours.isa = static_cast<swiglu_isa>(known.isa);
    ours.gate_up_storage = known.gate_up.storage;
    ours.down_storage = known.down.storage;
    ours.packed_bytes = known.packed_bytes;
    ours.bits_per_weight = known.bits_per_weight;
    ours.has_norm = layer->has_norm ? 1 : 0;
    give("swiglu_layer_info", ours, info);
  });
}

int64_t swiglu_layer_workspace_bytes(const swiglu_layer* layer, int64_t tokens) {
  return layer == nullptr ? 0 : static_cast<int64_t>(layer->layer->workspace_bytes(tokens));
}

swiglu_status swiglu_layer_block(const swiglu_layer* layer, const swiglu_view* h, const swiglu_mutable_view* out,
                                 void* workspace, int64_t workspace_bytes) {
  return call(layer, h, out, workspace, workspace_bytes, true);
}

swiglu_status swiglu_layer_forward(const swiglu_layer* layer, const swiglu_view* x, const swiglu_mutable_view* y,
                                   void* workspace, int64_t workspace_bytes) {
  return call(layer, x, y, workspace, workspace_bytes, false);
}
