// The packed sublayer and its workspace: what FeedForward holds behind its door.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel.h"
#include "layer/groups.h"
#include "layer/matmul.h"
#include "swiglu/swiglu.hpp"
#include "weights/weights.h"

namespace swiglu {
namespace layer {

/// Throws shape or usage unless the sizes are positive and fit into memory, and eps is a number.
void check_config(const FfnConfig& config);

/// A layer's two packed matrices when it is whole.
struct Shapes {
  weights::MatrixShape gate_up, down;
};
[[nodiscard]] Shapes whole_shapes(const FfnConfig& config);

/// What a rank packs of them: the hidden units of its groups.
struct Shares {
  std::vector<std::int64_t> borders;  ///< of its groups; at least one
  weights::MatrixShare gate_up, down;
  [[nodiscard]] std::int64_t hidden() const { return borders.back() - borders.front(); }
};
[[nodiscard]] Shares shares(const FfnConfig& config, GroupRange groups);

}  // namespace layer

struct FeedForward::Impl {
  FeedForwardInfo info{};
  const kernels::Table* table = nullptr;
  Runner runner{};
  int workers = 1;  ///< threads that the runner may use: the pool's, or as many as the process may have
  Reducer* reducer = nullptr;
  layer::GroupRange groups;
  std::vector<Subtree> subtrees;
  std::int64_t local_hidden = 0;  ///< hidden units of the owned groups
  kernels::Product gate_up_product{};
  kernels::Product down_product{};
  weights::PackedMatrix gate_up;
  weights::PackedMatrix down;
  std::vector<float> norm;
  float dim_as_float = 0;  ///< converted here: a call does no arithmetic in the caller's mode
  float eps_as_float = 0;

  Impl(const LayerSource& source, Runner runner_in, int workers_in, const Options& options);
  void pack(const LayerSource& source, const Options& options);
  void take(const PackedSource& packed, const Options& options);

  /// Offsets of a block's areas in the workspace; every area 64-byte aligned.
  struct Areas {
    std::int64_t input_row_bytes;
    std::int64_t z_row_bytes;
    std::int64_t z_at;
    std::int64_t partial_at;
    std::int64_t root_at;
    std::int64_t sums_bytes;  ///< from one block's sums to those of the next, which alternate
    std::int64_t bytes;
  };
  /// A block whose partial sums are on their way through the Reducer.
  struct Reduction {
    std::int64_t row0;
    std::int64_t rows;
    const float* root;
  };
  [[nodiscard]] layer::Plan plan() const;
  [[nodiscard]] Areas areas(std::int64_t tokens) const;

  /// Checks arguments, then runs blocks of rows. `trace` null or for all tokens.
  void run(const char* call, const TensorView& h, const MutableTensorView& out, std::span<std::byte> workspace,
           bool block, LayerTrace* trace) const;
  /// All of rows [row0, row0 + rows) but, with a Reducer, what follows the partial sums.
  void run_block(const layer::Plan& plan, const Areas& at, const TensorView& h, const MutableTensorView& out,
                 std::int64_t row0, std::int64_t rows, std::byte* memory, float* partial, bool block,
                 LayerTrace* trace) const;
  [[nodiscard]] Reduction start(const layer::Plan& plan, std::int64_t row0, std::int64_t rows, float* partial,
                                float* root) const;
};

}  // namespace swiglu
