// The oracle against numbers that were not computed by it, by hand or by Python (the form meta, by exact
// rounding of each step); its contract on runners, reads and arguments.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "reference/memory_source.h"
#include "swiglu/reference.hpp"

namespace swiglu {
namespace {

using reference::Numerics;
using reference::Request;
using reference::Trace;
using testing::layer_of;
using testing::memory_source;

using Doubles = std::vector<double>;

double bf16(double x) { return static_cast<double>(float_from_bf16(bf16_from_double(x))); }

// dim 2, hidden 2: rms(1, -1) = 1, so n = g ⊙ h = (1, -2), gate = (1, -2), up = (1, 2).
LayerSource hand_layer(DType dtype = DType::f64) {
  return layer_of(memory_source("gate", dtype, 2, 2, {1, 0, 0, 1}), memory_source("up", dtype, 2, 2, {3, 1, 0, -1}),
                  memory_source("down", dtype, 2, 2, {1, 1, 2, -1}), {1, 2}, 0.0);
}

LayerSource random_layer(std::int64_t dim, std::int64_t hidden, DType dtype, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  const auto values = [&](std::int64_t n) {
    Doubles out(static_cast<std::size_t>(n));
    for (double& v : out) v = normal(generator);
    return out;
  };
  std::vector<float> norm;
  for (std::int64_t k = 0; k < dim; ++k) norm.push_back(static_cast<float>(1.0 + 0.1 * normal(generator)));
  return layer_of(memory_source("gate", dtype, hidden, dim, values(dim * hidden)),
                  memory_source("up", dtype, hidden, dim, values(dim * hidden)),
                  memory_source("down", dtype, dim, hidden, values(dim * hidden)), norm, 1e-5);
}

Doubles random_input(std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  Doubles out(static_cast<std::size_t>(n));
  for (double& v : out) v = static_cast<double>(static_cast<float>(normal(generator)));
  return out;
}

void expect_near(const Doubles& found, const Doubles& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << i;
}

ErrorCode code_of(const LayerSource& layer, const Doubles& h, std::int64_t tokens, const Request& request = {}) {
  try {
    (void)reference::run(layer, h, tokens, request);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

TEST(Reference, agrees_with_a_case_worked_by_hand) {
  const double silu1 = 0.7310585786300049;   // 1 / (1 + e^-1)
  const double silu2 = -0.2384058440442351;  // -2 / (1 + e^2)
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const Trace trace = reference::run(hand_layer(dtype), Doubles{1, -1}, 1);
    expect_near(trace.norm, {1, -2}, 0.0);
    expect_near(trace.gate, {1, -2}, 0.0);
    expect_near(trace.up, {1, 2}, 0.0);
    expect_near(trace.z, {silu1, 2 * silu2}, 1e-16);
    expect_near(trace.down, {silu1 + 2 * silu2, 2 * silu1 - 2 * silu2}, 1e-15);
    expect_near(trace.out, {1 + silu1 + 2 * silu2, -1 + 2 * silu1 - 2 * silu2}, 1e-15);
  }
}

TEST(Reference, eps_is_added_to_the_mean_square) {
  LayerSource layer = layer_of(memory_source("gate", DType::f32, 1, 4, {1, 0, 0, 0}),
                               memory_source("up", DType::f32, 1, 4, {1, 0, 0, 0}),
                               memory_source("down", DType::f32, 4, 1, {1, 0, 0, 0}), {3, 3, 3, 3}, 2.75);
  const Trace trace = reference::run(layer, Doubles{3, 4, 0, 0}, 1);  // mean 25/4, root of 9 is 3
  expect_near(trace.norm, {3, 4, 0, 0}, 1e-15);
}

TEST(Reference, without_block_the_input_is_already_normalised) {
  LayerSource layer = hand_layer();
  layer.norm.clear();
  const Trace trace = reference::run(layer, Doubles{1, -2}, 1, {.block = false});
  expect_near(trace.norm, {1, -2}, 0.0);
  EXPECT_EQ(trace.out, trace.down);
  expect_near(trace.down, reference::run(hand_layer(), Doubles{1, -1}, 1).down, 0.0);
}

TEST(Reference, silu_at_the_ends) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto z_of = [&](double gate, Numerics numerics) {
    const LayerSource layer =
        layer_of(memory_source("gate", DType::f64, 1, 1, {gate}), memory_source("up", DType::f64, 1, 1, {1}),
                 memory_source("down", DType::f64, 1, 1, {1}), {}, 0.0);
    return reference::run(layer, Doubles{1}, 1, {.numerics = numerics, .block = false}).z[0];
  };
  for (const double gate : {-infinity, -1e300, -801.0}) {
    EXPECT_EQ(z_of(gate, Numerics::exact), 0.0) << gate;
    EXPECT_TRUE(std::signbit(z_of(gate, Numerics::exact))) << gate;
  }
  EXPECT_NEAR(z_of(-700.0, Numerics::exact) / (-700.0 * std::exp(-700.0)), 1.0, 1e-15);
  EXPECT_EQ(z_of(800.0, Numerics::exact), 800.0);
  EXPECT_EQ(z_of(infinity, Numerics::exact), infinity);
  EXPECT_TRUE(std::isnan(z_of(std::nan(""), Numerics::exact)));
  EXPECT_TRUE(std::isnan(z_of(-infinity, Numerics::meta)));  // -inf / (1 + inf)
  EXPECT_EQ(z_of(infinity, Numerics::meta), infinity);
  EXPECT_EQ(z_of(-1000.0, Numerics::meta), 0.0);
}

// Chosen so that leaving out any one of the eight roundings changes the output.
TEST(Reference, meta_rounds_at_all_eight_places) {
  const LayerSource layer =
      layer_of(memory_source("gate", DType::f64, 1, 2, {1.19921875, -0.40234375}),
               memory_source("up", DType::f64, 1, 2, {-0.626953125, 1.55859375}),
               memory_source("down", DType::f64, 2, 1, {1.296875, -1.4921875}), {2.0234375F, 0.828125F}, 0.25);
  const Trace trace = reference::run(layer, Doubles{0.39453125, 1.73046875}, 1, {.numerics = Numerics::meta});
  EXPECT_EQ(trace.norm, (Doubles{0.58984375, 1.0625}));
  EXPECT_EQ(trace.gate, (Doubles{0.28125}));
  EXPECT_EQ(trace.up, (Doubles{1.2890625}));
  EXPECT_EQ(trace.z, (Doubles{0.2060546875}));
  EXPECT_EQ(trace.down, (Doubles{0.267578125, -0.306640625}));
  EXPECT_EQ(trace.out, (Doubles{0.6640625, 1.4296875}));
}

TEST(Reference, meta_intermediates_are_bf16_values_for_every_weight_type) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const LayerSource layer = random_layer(24, 40, dtype, 3);
    const Doubles h = random_input(3 * 24, 4);
    for (const bool block : {true, false}) {
      const Trace trace = reference::run(layer, h, 3, {.numerics = Numerics::meta, .block = block});
      for (const auto* values : {&trace.norm, &trace.gate, &trace.up, &trace.z, &trace.down, &trace.out}) {
        for (const double v : *values) EXPECT_EQ(v, bf16(v));
      }
    }
  }
}

// Sums of ones stall at 256 when they are added in bf16.
TEST(Reference, meta_sums_in_double_and_rounds_the_sum) {
  for (const std::int64_t n : {1, 255, 256, 257, 300, 1001, 5000}) {
    const Doubles ones(static_cast<std::size_t>(n), 1.0);
    const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
      return memory_source("ones", DType::bf16, rows, cols, ones);
    };
    const LayerSource layer = layer_of(matrix(1, n), matrix(1, n), matrix(n, 1), {}, 1e-5);
    EXPECT_EQ(reference::run(layer, ones, 1, {.block = false}).gate[0], static_cast<double>(n));
    EXPECT_EQ(reference::run(layer, ones, 1, {.numerics = Numerics::meta, .block = false}).gate[0],
              bf16(static_cast<double>(n)));
  }
}

TEST(Reference, meta_is_near_exact) {
  const LayerSource layer = random_layer(64, 172, DType::bf16, 5);
  const Doubles h = random_input(4 * 64, 6);
  const Trace exact = reference::run(layer, h, 4);
  const Trace meta = reference::run(layer, h, 4, {.numerics = Numerics::meta});
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < exact.down.size(); ++i) {
    difference += std::pow(exact.down[i] - meta.down[i], 2);
    size += std::pow(exact.down[i], 2);
  }
  EXPECT_GT(std::sqrt(difference / size), 1e-4);
  EXPECT_LT(std::sqrt(difference / size), 2e-2);
}

TEST(Reference, selected_outputs_are_those_of_all) {
  const LayerSource layer = random_layer(37, 50, DType::f32, 7);
  const Doubles h = random_input(2 * 37, 8);
  const Trace all = reference::run(layer, h, 2);
  const std::vector<std::int64_t> outputs = {0, 3, 4, 5, 20, 36};
  const Trace some = reference::run(layer, h, 2, {.outputs = outputs});
  ASSERT_EQ(some.out.size(), 2 * outputs.size());
  for (std::size_t t = 0; t < 2; ++t) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::size_t k = t * 37 + static_cast<std::size_t>(outputs[i]);
      EXPECT_EQ(some.down[t * outputs.size() + i], all.down[k]);
      EXPECT_EQ(some.out[t * outputs.size() + i], all.out[k]);
    }
  }
  EXPECT_EQ(some.z, all.z);
}

TEST(Reference, a_runner_changes_no_bit_and_reads_are_bounded) {
  const std::int64_t dim = 700;
  const std::int64_t hidden = 1500;
  const LayerSource layer = random_layer(dim, hidden, DType::f32, 9);
  const Doubles h = random_input(2 * dim, 10);
  const Trace alone = reference::run(layer, h, 2);
  const auto& gate = dynamic_cast<const testing::MemorySource&>(*layer.gate);
  EXPECT_EQ(gate.rows_read, hidden);
  EXPECT_LE(gate.largest_read, 1 << 20);
  EXPECT_GE(gate.largest_read, 1 << 19);
  const Runner runner = testing::backward_threads();
  const Trace together = reference::run(layer, h, 2, {.runner = &runner});
  EXPECT_EQ(alone.gate, together.gate);
  EXPECT_EQ(alone.out, together.out);
}

TEST(Reference, a_failing_read_is_thrown_on_the_caller) {
  LayerSource layer = random_layer(700, 1500, DType::f32, 11);
  auto cut = std::make_shared<testing::MemorySource>("w3", DType::f32, 1500, 700, Doubles(700 * 1500, 1.0));
  cut->failing_row = 1400;
  layer.up = cut;
  const Runner runner = testing::backward_threads();
  const Doubles h = random_input(700, 12);
  EXPECT_EQ(code_of(layer, h, 1), ErrorCode::io);
  EXPECT_EQ(code_of(layer, h, 1, {.runner = &runner}), ErrorCode::io);
}

TEST(Reference, refuses_what_does_not_fit) {
  const LayerSource good = hand_layer();
  const Doubles h = {1, -1};
  EXPECT_EQ(code_of(good, h, 2), ErrorCode::shape);
  EXPECT_EQ(code_of(good, h, -1), ErrorCode::shape);
  EXPECT_EQ(code_of(good, Doubles{1}, 0), ErrorCode::shape);
  for (const std::vector<std::int64_t>& outputs : {std::vector<std::int64_t>{2}, {-1}, {1, 1}, {1, 0}}) {
    EXPECT_EQ(code_of(good, h, 1, {.outputs = outputs}), ErrorCode::usage);
  }
  LayerSource bad = good;
  bad.norm.pop_back();
  EXPECT_EQ(code_of(bad, h, 1), ErrorCode::shape);
  bad = good;
  bad.down = memory_source("w2", DType::f32, 2, 3, Doubles(6));
  EXPECT_EQ(code_of(bad, h, 1), ErrorCode::shape);
  bad = good;
  bad.gate = nullptr;
  EXPECT_EQ(code_of(bad, h, 1), ErrorCode::usage);
  bad = good;
  bad.config.hidden = 0;
  EXPECT_EQ(code_of(bad, h, 1), ErrorCode::shape);
}

TEST(Reference, every_stage_starts_from_given_intermediates) {
  const LayerTrace from = {{1, 0}, {0, 1}, {5, 6}, {1, 10}, {100, 200}};
  const Trace trace = reference::run(hand_layer(), Doubles{1, -1}, 1, {.from = &from});
  expect_near(trace.norm, {1, -2}, 0.0);
  expect_near(trace.gate, {1, 0}, 0.0);
  expect_near(trace.up, {3, 0}, 0.0);
  expect_near(trace.z, {0, 6 * 0.7310585786300049}, 1e-15);
  expect_near(trace.down, {11, -8}, 0.0);
  expect_near(trace.out, {101, 199}, 0.0);
  const std::vector<std::int64_t> second = {1};
  expect_near(reference::run(hand_layer(), Doubles{1, -1}, 1, {.outputs = second, .from = &from}).out, {199}, 0.0);
  expect_near(reference::run(hand_layer(), Doubles{1, -1}, 1, {.block = false, .from = &from}).out, {100, 200}, 0.0);
  EXPECT_EQ(code_of(hand_layer(), {1, -1, 1, -1}, 2, {.from = &from}), ErrorCode::shape);
}

TEST(Reference, no_tokens_is_a_valid_call) {
  const Trace trace = reference::run(hand_layer(), {}, 0);
  EXPECT_TRUE(trace.norm.empty() && trace.z.empty() && trace.out.empty());
}

}  // namespace
}  // namespace swiglu
