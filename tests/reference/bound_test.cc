// The bounds hold for the fast path's arithmetic (emulation.h) on ordinary, correlated and extreme data,
// are reached within a few per cent by data made for it, and are not absurd on ordinary data.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "reference/emulation.h"
#include "reference/memory_source.h"
#include "support/sanitized.h"
#include "swiglu/reference.hpp"

namespace swiglu {
namespace {

using reference::Bound;
using reference::Request;
using reference::Trace;
using testing::layer_of;
using testing::memory_source;

using Doubles = std::vector<double>;

enum class Data { normal, heavy, positive, ties };

class Values {
 public:
  Values(Data data, std::uint64_t seed) : data_(data), generator_(seed) {}
  double operator()(double scale) {
    const double x = normal_(generator_);
    switch (data_) {
      case Data::normal:
        return scale * x;
      case Data::heavy:
        return scale * std::pow(x, 5);
      case Data::positive:
        return scale * std::abs(x);
      case Data::ties:
        return scale * (1.0 + 0x1p-8);  // the worst value to round to bf16
    }
    return 0.0;
  }
  Doubles many(std::int64_t n, double scale) {
    Doubles out;
    for (std::int64_t i = 0; i < n; ++i) out.push_back((*this)(scale));
    return out;
  }

 private:
  Data data_;
  std::mt19937_64 generator_;
  std::normal_distribution<double> normal_;
};

struct Case {
  std::int64_t dim, hidden;
  DType dtype;
  Data data;
  double input_scale, weight_scale;
  double eps = 1e-5;
};

struct Stage {
  const char* name;
  const std::vector<float>& fast;
  const Doubles& exact;
  const Doubles& bound;
};

struct Outcome {
  double largest_ratio[6] = {};  ///< of error to bound, per stage
  double looseness[6] = {};      ///< ‖bound‖ / ‖error‖
};

enum class Errors { chained, by_stage };

LayerTrace trace_of(const testing::Emulation& fast) { return {fast.norm, fast.gate, fast.up, fast.z, fast.down}; }

Outcome compare(const LayerSource& layer, const Doubles& h, std::int64_t tokens, Compute compute, bool block,
                Errors which) {
  testing::Emulation fast(compute);
  fast.run(layer, h, block);
  const LayerTrace from = trace_of(fast);
  const Request request = {.block = block, .from = which == Errors::by_stage ? &from : nullptr};
  const Trace exact = reference::run(layer, h, tokens, request);
  const Bound bound = reference::bound(layer, exact, h, tokens, compute, request);
  const Stage stages[] = {{"norm", fast.norm, exact.norm, bound.norm}, {"gate", fast.gate, exact.gate, bound.gate},
                          {"up", fast.up, exact.up, bound.up},         {"z", fast.z, exact.z, bound.z},
                          {"down", fast.down, exact.down, bound.down}, {"out", fast.out, exact.out, bound.out}};
  Outcome outcome;
  for (std::size_t s = 0; s < 6; ++s) {
    const Stage& stage = stages[s];
    EXPECT_EQ(stage.fast.size(), stage.bound.size());
    EXPECT_EQ(stage.exact.size(), stage.bound.size());
    double errors = 0.0;
    double bounds = 0.0;
    int failures = 0;
    for (std::size_t i = 0; i < stage.bound.size(); ++i) {
      const double error = std::abs(static_cast<double>(stage.fast[i]) - stage.exact[i]);
      if (!(error <= stage.bound[i]) && ++failures < 4) {
        ADD_FAILURE() << stage.name << "[" << i << "]: " << stage.fast[i] << " for " << stage.exact[i] << ", error "
                      << error << ", bound " << stage.bound[i];
      }
      if (stage.bound[i] > 0.0) outcome.largest_ratio[s] = std::max(outcome.largest_ratio[s], error / stage.bound[i]);
      errors += error * error;
      bounds += stage.bound[i] * stage.bound[i];
    }
    outcome.looseness[s] = std::sqrt(bounds / errors);
  }
  return outcome;
}

struct Problem {
  LayerSource layer;
  Doubles h;
};
constexpr std::int64_t kTokens = 2;

Problem make(const Case& c) {
  Values values(c.data, static_cast<std::uint64_t>(c.dim * 1000 + c.hidden));
  const double gate_scale = c.weight_scale / std::sqrt(static_cast<double>(c.dim));
  const double down_scale = c.weight_scale / std::sqrt(static_cast<double>(c.hidden));
  std::vector<float> norm;
  for (std::int64_t k = 0; k < c.dim; ++k) norm.push_back(static_cast<float>(1.0 + values(0.1)));
  LayerSource layer =
      layer_of(memory_source("gate", c.dtype, c.hidden, c.dim, values.many(c.dim * c.hidden, gate_scale)),
               memory_source("up", c.dtype, c.hidden, c.dim, values.many(c.dim * c.hidden, gate_scale)),
               memory_source("down", c.dtype, c.dim, c.hidden, values.many(c.dim * c.hidden, down_scale)), norm, c.eps);
  return {std::move(layer), values.many(kTokens * c.dim, c.input_scale)};
}

void expect_holds(const Case& c) {
  const Problem problem = make(c);
  for (const Compute compute : {Compute::f32, Compute::bf16}) {
    for (const bool block : {true, false}) {
      for (const Errors which : {Errors::chained, Errors::by_stage}) {
        SCOPED_TRACE(::testing::Message()
                     << c.dim << " x " << c.hidden << " " << name_of(c.dtype) << " data " << static_cast<int>(c.data)
                     << " h " << c.input_scale << " w " << c.weight_scale
                     << (compute == Compute::bf16 ? " bf16" : " f32") << (block ? " block" : " ffn")
                     << (which == Errors::chained ? " chained" : " by stage"));
        (void)compare(problem.layer, problem.h, kTokens, compute, block, which);
      }
    }
  }
}

TEST(Bound, holds_for_every_shape_and_weight_type) {
  constexpr std::int64_t kShapes[][2] = {{1, 1}, {2, 3}, {37, 515}, {64, 172}, {34, 555}, {2051, 5}, {2, 17000}};
  for (const auto& shape : kShapes) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      for (const Data data : {Data::normal, Data::heavy, Data::positive, Data::ties}) {
        if (testing::kSanitized && data != Data::heavy) continue;  // the same loads and stores
        expect_holds({shape[0], shape[1], dtype, data, 1.0, 1.0});
      }
    }
  }
}

// Powers of ten at which squares, products or weights of the fast path are denormal, zero or near the top.
TEST(Bound, holds_near_zero_and_near_the_top) {
  for (const double input : {1e-45, 1e-39, 1e-37, 1e-30, 1e-23, 1e-19, 1e-10, 1e5, 1e15}) {
    for (const double weight : {1e-44, 1e-39, 1e-30, 1e-19, 1e-5, 10.0}) {
      for (const Data data : {Data::normal, Data::positive}) {
        expect_holds({33, 70, DType::f32, data, input, weight});
        expect_holds({33, 70, DType::f64, data, input, weight, 1e-30});
      }
    }
  }
}

TEST(Bound, is_infinite_where_nothing_is_left_of_the_mean_square) {
  const LayerSource layer =
      layer_of(memory_source("gate", DType::f32, 1, 2, {1, 0}), memory_source("up", DType::f32, 1, 2, {1, 1}),
               memory_source("down", DType::f32, 2, 1, {1, 0}), {1, 1}, 0.0);
  const Doubles h = {1e-30, 1e-31};
  const Trace exact = reference::run(layer, h, 1);
  const Bound bound = reference::bound(layer, exact, h, 1, Compute::f32);
  for (const auto* errors : {&bound.norm, &bound.gate, &bound.z, &bound.out}) {
    for (const double error : *errors) EXPECT_EQ(error, std::numeric_limits<double>::infinity());
  }
}

TEST(Bound, is_not_absurd_on_ordinary_data) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Problem small = make({64, 172, dtype, Data::normal, 1.0, 1.0});
    const Problem wide = make({256, 700, dtype, Data::normal, 1.0, 1.0});
    for (const Compute compute : {Compute::f32, Compute::bf16}) {
      const auto looseness = [&](const Problem& p, Errors which, std::size_t stage) {
        return compare(p.layer, p.h, kTokens, compute, true, which).looseness[stage];
      };
      EXPECT_LT(looseness(small, Errors::chained, 5), 1e4);
      for (std::size_t stage = 0; stage < 6; ++stage) EXPECT_LT(looseness(wide, Errors::by_stage, stage), 5e3);
    }
  }
}

// What the bounds by stage are for: an error that is small beside the rounding of whole layers.
TEST(Bound, by_stage_notices_a_single_missing_term) {
  const Problem p = make({512, 1400, DType::bf16, Data::normal, 1.0, 1.0});
  testing::Emulation fast(Compute::bf16);
  fast.run(p.layer, p.h, true);
  const LayerTrace from = trace_of(fast);
  const Request request = {.from = &from};
  const Trace exact = reference::run(p.layer, p.h, kTokens, request);
  const Bound bound = reference::bound(p.layer, exact, p.h, kTokens, Compute::bf16, request);
  const auto weights_of = [](const std::shared_ptr<const TensorSource>& matrix) {
    return std::dynamic_pointer_cast<const testing::MemorySource>(matrix);
  };
  int noticed = 0;
  for (std::int64_t i = 0; i < 100; ++i) {  // the last term of output i
    const auto at = static_cast<std::size_t>(i);
    noticed +=
        std::abs(weights_of(p.layer.gate)->at(i * 512 + 511) * static_cast<double>(from.norm[511])) > bound.gate[at];
    noticed +=
        std::abs(weights_of(p.layer.down)->at(i * 1400 + 1399) * static_cast<double>(from.z[1399])) > bound.down[at];
  }
  EXPECT_GT(noticed, 150);
}

// All activations and weights lose nearly 2^-8 in the same direction: half a bf16 ulp, to which nothing
// may be added and from which nothing may be taken.
TEST(Bound, is_reached_by_roundings_to_bf16_that_agree) {
  const Problem p = make({64, 64, DType::f32, Data::ties, 1.0, 1.0});
  const Outcome outcome = compare(p.layer, p.h, kTokens, Compute::bf16, false, Errors::chained);
  EXPECT_GT(outcome.largest_ratio[0], 0.99);
  EXPECT_GT(outcome.largest_ratio[1], 0.97);
}

// 1 and then terms of 2^-24, each lost: the whole depth of a chunk, then of the running sum.
TEST(Bound, is_reached_by_sums_that_lose_every_term) {
  for (const Compute compute : {Compute::f32, Compute::bf16}) {
    const std::size_t chunk = compute == Compute::bf16 ? 1024 : 512;
    const std::size_t chunks = 64;
    Doubles weights(chunks * chunk, 0.0);
    for (std::size_t k = 0; k < chunk; ++k) weights[k] = 0x1p-24;
    weights[compute == Compute::bf16 ? 1 : 0] = 1.0;  // what is added first
    for (std::size_t i = 1; i < chunks; ++i) weights[i * chunk] = 0x1p-24;
    const auto dim = std::ssize(weights);
    const LayerSource layer =
        layer_of(memory_source("gate", DType::bf16, 1, dim, weights), memory_source("up", DType::bf16, 1, dim, weights),
                 memory_source("down", DType::bf16, dim, 1, weights), {}, 0.0);
    const Doubles ones(weights.size(), 1.0);
    const Request request = {.block = false};
    const Trace exact = reference::run(layer, ones, 1, request);
    const Bound bound = reference::bound(layer, exact, ones, 1, compute, request);
    testing::Emulation fast(compute);
    fast.run(layer, ones, false);
    EXPECT_EQ(fast.gate[0], 1.0F);
    EXPECT_LE(std::abs(exact.gate[0] - 1.0), bound.gate[0]);
    // In bf16 compute the bound also allows for activations that were rounded, which these were not.
    const double rounding = compute == Compute::bf16 ? 0x1p-8 * exact.gate[0] : 0.0;
    EXPECT_GT((exact.gate[0] - 1.0) / (bound.gate[0] - rounding), 0.97);
  }
}

// The same through 16 groups and the tree over them; silu(64) is 64 in fp32.
TEST(Bound, is_reached_by_the_tree_of_the_down_projection) {
  constexpr std::size_t kGroup = 512;
  Doubles weights(16 * kGroup, 0.0);
  for (std::size_t k = 0; k < kGroup; ++k) weights[k] = 0x1p-24;
  weights[0] = 1.0;
  for (std::size_t g = 1; g < 16; g *= 2) weights[g * kGroup] = 0x1p-24;
  const auto hidden = std::ssize(weights);
  const LayerSource layer = layer_of(memory_source("gate", DType::f32, hidden, 1, Doubles(weights.size(), 64.0)),
                                     memory_source("up", DType::f32, hidden, 1, Doubles(weights.size(), 0x1p-6)),
                                     memory_source("down", DType::f32, 1, hidden, weights), {}, 0.0);
  const Outcome outcome = compare(layer, {1.0}, 1, Compute::f32, false, Errors::chained);
  EXPECT_GT(outcome.largest_ratio[4], 0.94);
}

TEST(Bound, automatic_is_bf16_only_if_all_matrices_are) {
  const Case c = {20, 24, DType::bf16, Data::normal, 1.0, 1.0};
  Values values(c.data, 1);
  const auto matrix = [&](DType dtype, std::int64_t rows, std::int64_t cols) {
    return memory_source("w", dtype, rows, cols, values.many(rows * cols, 1.0));
  };
  LayerSource layer = layer_of(matrix(DType::bf16, 24, 20), matrix(DType::bf16, 24, 20), matrix(DType::bf16, 20, 24),
                               std::vector<float>(20, 1.0F), 1e-5);
  const Doubles h = values.many(20, 1.0);
  const auto norm_bound = [&](Compute compute) {
    return reference::bound(layer, reference::run(layer, h, 1), h, 1, compute).norm;
  };
  EXPECT_EQ(norm_bound(Compute::automatic), norm_bound(Compute::bf16));
  EXPECT_NE(norm_bound(Compute::automatic), norm_bound(Compute::f32));
  layer.down = matrix(DType::f32, 20, 24);
  EXPECT_EQ(norm_bound(Compute::automatic), norm_bound(Compute::f32));
}

TEST(Bound, of_selected_outputs_is_that_of_all) {
  Values values(Data::normal, 2);
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    return memory_source("w", DType::f32, rows, cols, values.many(rows * cols, 1.0));
  };
  const LayerSource layer =
      layer_of(matrix(24, 20), matrix(24, 20), matrix(20, 24), std::vector<float>(20, 1.0F), 1e-5);
  const Doubles h = values.many(40, 1.0);
  const std::vector<std::int64_t> outputs = {2, 3, 19};
  const Request request = {.outputs = outputs};
  const Bound all = reference::bound(layer, reference::run(layer, h, 2), h, 2, Compute::bf16);
  const Trace some_exact = reference::run(layer, h, 2, request);
  const Bound some = reference::bound(layer, some_exact, h, 2, Compute::bf16, request);
  ASSERT_EQ(some.out.size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) {
    const std::size_t k = i / 3 * 20 + static_cast<std::size_t>(outputs[i % 3]);
    EXPECT_EQ(some.down[i], all.down[k]);
    EXPECT_EQ(some.out[i], all.out[k]);
  }
  EXPECT_THROW((void)reference::bound(layer, some_exact, h, 2, Compute::bf16), Error);
}

}  // namespace
}  // namespace swiglu
