// The fast path against the numeric contract written a second time (contract.h), bit by bit: every
// ISA of this machine, both compute types, every storage type, shapes on both sides of every chunk
// and group border, and data that reaches denormals, overflow, Inf, NaN and zeros of both signs.
// Knows the front door only. One differing bit, even a zero's sign, is a failure.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "layer/contract.h"
#include "layer/contract_data.h"
#include "swiglu/swiglu.hpp"

namespace swiglu {
namespace {

using contract::Kind;
using contract::Matrix;
using contract::Random;
using contract::Token;

// ---------------------------------------------------------------------------------------------
// One case: weights and tokens, all ISAs

struct Case {
  std::int64_t dim, hidden, tokens = 1;
  Compute compute = Compute::f32;
  DType gate_type = DType::f32, up_type = DType::f32, down_type = DType::f32, in = DType::f32, out = DType::f32;
  Kind x = Kind::normal, gate = Kind::normal, up = Kind::normal, down = Kind::normal, norm = Kind::normal;
  double gate_scale = 1.0;  ///< of normal and heavy gate rows: how far out silu is asked
  double eps = 1e-5;

  Case& weights(DType t) {
    gate_type = up_type = down_type = t;
    return *this;
  }
  [[nodiscard]] std::string text() const {
    std::string s = "dim " + std::to_string(dim) + " hidden " + std::to_string(hidden) + " tokens " +
                    std::to_string(tokens) + " compute " + name_of(compute) + " eps " + std::to_string(eps);
    for (const DType t : {gate_type, up_type, down_type, in, out}) s += std::string(" ") + name_of(t);
    for (const Kind k : {x, gate, up, down, norm}) s += std::string(" ") + name_of(k);
    return s;
  }
};

ThreadPool& pool() {
  static ThreadPool two(2);
  return two;
}

/// Weights, inputs and what the contract says about them; check() runs the fast path on every ISA.
class Trial {
 public:
  explicit Trial(const Case& c)
      : c_(c),
        gate_(c.gate_type, c.hidden, c.dim, 1),
        up_(c.up_type, c.hidden, c.dim),
        down_(c.down_type, c.dim, c.hidden, 3),
        x_(c.in, c.tokens, c.dim, 5) {
    static std::uint64_t seed = 0;
    Random random(++seed);
    const double fan_in = 1.0 / std::sqrt(static_cast<double>(c.dim));
    gate_.fill(random, c.gate, c.gate_scale * fan_in);
    up_.fill(random, c.up, fan_in);
    down_.fill(random, c.down, 1.0 / std::sqrt(static_cast<double>(c.hidden)));
    x_.fill(random, c.x, 1.0);
    for (std::int64_t k = 0; k < c.dim; ++k) {
      norm_.push_back(contract::read_input(c.norm == Kind::normal ? 1.0 + 0.3 * random.normal()
                                                                  : draw(random, c.norm, DType::f32, c.dim)));
    }
  }

  Matrix& gate() { return gate_; }
  Matrix& up() { return up_; }
  Matrix& down() { return down_; }
  Matrix& x() { return x_; }

  void check() {
    predict();
    for (const Isa isa : available_isas()) {
      LayerSource source;
      source.config = {c_.dim, c_.hidden, c_.eps};
      source.gate = view_source("gate", gate_.view());
      source.up = view_source("up", up_.view());
      source.down = view_source("down", down_.view());
      source.norm = norm_;
      Options options;
      options.isa = isa;
      options.compute = c_.compute;
      const FeedForward layer(source, pool(), options);
      for (const bool block : {false, true}) {
        const std::string where = c_.text() + " on " + name_of(isa) + (block ? " block" : " forward");
        const std::vector<Token>& expected = block ? blocks_ : forwards_;
        const LayerTrace trace = layer.trace(x_.view(), block);
        compare(where + " norm", trace.norm, expected, &Token::norm);
        compare(where + " gate", trace.gate, expected, &Token::gate);
        compare(where + " up", trace.up, expected, &Token::up);
        compare(where + " z", trace.z, expected, &Token::z);
        compare(where + " down", trace.down, expected, &Token::down);
        Matrix out(c_.out, c_.tokens, c_.dim, 2);
        block ? layer.block(x_.view(), out.view()) : layer.forward(x_.view(), out.view());
        compare_output(where + " output", out, expected);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }

 private:
  static void append(std::vector<float>& to, const Matrix& from, std::int64_t rows, std::int64_t cols,
                     Compute compute) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) to.push_back(contract::read_weight(from.value(r, c), compute));
    }
  }
  void predict() {
    contract::Layer layer{c_.compute, c_.dim, c_.hidden, static_cast<float>(c_.eps), {}, {}, {}, norm_};
    append(layer.gate, gate_, c_.hidden, c_.dim, c_.compute);
    append(layer.up, up_, c_.hidden, c_.dim, c_.compute);
    append(layer.down, down_, c_.dim, c_.hidden, c_.compute);
    for (std::int64_t t = 0; t < c_.tokens; ++t) {
      std::vector<float> h;
      for (std::int64_t k = 0; k < c_.dim; ++k) h.push_back(contract::read_input(x_.value(t, k)));
      blocks_.push_back(contract::run_token(layer, h, true));
      forwards_.push_back(contract::run_token(layer, h, false));
    }
  }

  static void report(const std::string& where, std::int64_t token, std::int64_t i, std::uint64_t expected,
                     std::uint64_t got) {
    char text[160];
    std::snprintf(text, sizeof text, ": token %lld element %lld: the contract says %llx, got %llx",
                  static_cast<long long>(token), static_cast<long long>(i), static_cast<unsigned long long>(expected),
                  static_cast<unsigned long long>(got));
    ADD_FAILURE() << where << text;
  }
  static void compare(const std::string& where, const std::vector<float>& got, const std::vector<Token>& tokens,
                      std::vector<float> Token::* part) {
    std::size_t i = 0;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const std::vector<float>& expected = tokens[t].*part;
      ASSERT_LE(i + expected.size(), got.size()) << where;
      for (std::size_t k = 0; k < expected.size(); ++k, ++i) {
        const std::uint64_t bits = contract::encode(static_cast<double>(expected[k]), DType::f32);
        if (std::bit_cast<std::uint32_t>(got[i]) != bits) {
          return report(where, static_cast<std::int64_t>(t), static_cast<std::int64_t>(k), bits,
                        std::bit_cast<std::uint32_t>(got[i]));
        }
      }
    }
    EXPECT_EQ(i, got.size()) << where;
  }
  void compare_output(const std::string& where, const Matrix& got, const std::vector<Token>& tokens) const {
    for (std::int64_t t = 0; t < c_.tokens; ++t) {
      for (std::int64_t i = 0; i < c_.dim; ++i) {
        const std::uint64_t bits = contract::encode_output(
            tokens[static_cast<std::size_t>(t)].out[static_cast<std::size_t>(i)], c_.out, c_.compute);
        if (got.bits(t, i) != bits) return report(where, t, i, bits, got.bits(t, i));
      }
    }
  }

  Case c_;
  Matrix gate_, up_, down_, x_;
  std::vector<float> norm_;
  std::vector<Token> blocks_, forwards_;
};

/// Checks the case; false stops a loop of cases at the first that differs.
bool holds(const Case& c) {
  Trial(c).check();
  return !::testing::Test::HasFailure();
}

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr Compute kComputes[] = {Compute::f32, Compute::bf16};

// ---------------------------------------------------------------------------------------------

TEST(Contract, shapes_cross_every_chunk_and_group_border) {
  constexpr std::int64_t kDims[] = {1, 3, 16, 17, 31, 32, 33, 64, 172, 511, 512, 513, 1023, 1024, 1025, 2051};
  constexpr std::int64_t kHiddens[] = {1, 15, 16, 33, 511, 513, 1025};
  std::size_t turn = 0;
  for (const std::int64_t hidden : kHiddens) {
    for (const std::int64_t dim : kDims) {
      for (const Compute compute : kComputes) {
        Case c{.dim = dim, .hidden = hidden, .tokens = dim * hidden > 100000 ? 1 : 3, .compute = compute};
        c.weights(compute == Compute::bf16 ? DType::bf16 : kTypes[turn++ % 4]);
        c.x = turn % 3 == 0 ? Kind::heavy : Kind::normal;
        if (!holds(c)) return;
      }
    }
  }
}

TEST(Contract, long_down_products_split_into_the_same_groups) {
  for (const std::int64_t hidden : {2049, 8191, 10007, 16385, 32771}) {
    for (const std::int64_t dim : {1, 3, 17, 33}) {
      for (const Compute compute : kComputes) {
        Case c{.dim = dim, .hidden = hidden, .tokens = 2, .compute = compute};
        c.weights(compute == Compute::bf16 ? DType::bf16 : kTypes[dim % 4]);
        if (!holds(c)) return;
      }
    }
  }
}

TEST(Contract, token_counts_fill_every_tile_height) {
  for (const std::int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15, 16, 17, 29, 257}) {
    for (const Compute compute : kComputes) {
      Case c{.dim = 67, .hidden = 97, .tokens = tokens, .compute = compute};
      if (!holds(c.weights(compute == Compute::bf16 ? DType::bf16 : kTypes[tokens % 4]))) return;
    }
  }
}

TEST(Contract, every_input_output_and_weight_type) {
  for (const Compute compute : kComputes) {
    for (const DType in : kTypes) {
      for (const DType out : kTypes) {
        for (const DType weights : kTypes) {
          Case c{.dim = 65, .hidden = 530, .tokens = 2, .compute = compute, .in = in, .out = out};
          c.x = in == DType::f64 ? Kind::ties : Kind::normal;
          c.gate = c.up = c.down = weights == DType::f64 ? Kind::ties : Kind::normal;
          if (!holds(c.weights(weights))) return;
        }
      }
    }
  }
}

TEST(Contract, gate_up_and_down_of_different_types) {
  for (const Compute compute : kComputes) {
    for (const DType gate : kTypes) {
      for (const DType up : kTypes) {
        for (const DType down : kTypes) {
          const Case c{.dim = 33,
                       .hidden = 77,
                       .tokens = 2,
                       .compute = compute,
                       .gate_type = gate,
                       .up_type = up,
                       .down_type = down};
          if (!holds(c)) return;
        }
      }
    }
  }
}

/// One matrix at a time leaves the ordinary range, so that something is left to compare behind it.
TEST(Contract, extreme_values_in_each_place) {
  constexpr Kind kKinds[] = {Kind::heavy, Kind::tiny, Kind::small,  Kind::huge,
                             Kind::zeros, Kind::ties, Kind::special};
  std::size_t turn = 0;
  for (const Compute compute : kComputes) {
    for (const DType weights : kTypes) {
      for (const Kind kind : kKinds) {
        for (Kind Case::* place : {&Case::x, &Case::gate, &Case::up, &Case::down, &Case::norm}) {
          for (const std::int64_t dim : {19, 530}) {
            Case c{.dim = dim, .hidden = dim == 19 ? 1061 : 131, .tokens = 4, .compute = compute};
            c.weights(weights);
            c.in = kTypes[turn % 4];
            c.out = kTypes[turn++ / 4 % 4];
            c.*place = kind;
            if (!holds(c)) return;
          }
        }
      }
    }
  }
}

TEST(Contract, extreme_values_in_several_places) {
  constexpr Kind kPairs[][5] = {
      {Kind::small, Kind::small, Kind::normal, Kind::normal, Kind::normal},
      {Kind::small, Kind::small, Kind::huge, Kind::normal, Kind::normal},
      {Kind::tiny, Kind::huge, Kind::huge, Kind::tiny, Kind::huge},
      {Kind::tiny, Kind::huge, Kind::huge, Kind::small, Kind::tiny},
      {Kind::huge, Kind::small, Kind::small, Kind::tiny, Kind::small},
      {Kind::huge, Kind::tiny, Kind::tiny, Kind::huge, Kind::tiny},
      {Kind::zeros, Kind::zeros, Kind::zeros, Kind::zeros, Kind::zeros},
      {Kind::zeros, Kind::special, Kind::zeros, Kind::special, Kind::zeros},
      {Kind::special, Kind::zeros, Kind::special, Kind::zeros, Kind::special},
      {Kind::special, Kind::special, Kind::special, Kind::special, Kind::special},
      {Kind::heavy, Kind::heavy, Kind::heavy, Kind::heavy, Kind::heavy},
      {Kind::ties, Kind::ties, Kind::ties, Kind::ties, Kind::ties},
  };
  std::size_t turn = 0;
  for (const Compute compute : kComputes) {
    for (const DType weights : kTypes) {
      for (const auto& kinds : kPairs) {
        for (const double eps : {1e-5, 1e-30, 1e-42, 0.0}) {
          Case c{.dim = 45, .hidden = 555, .tokens = 3, .compute = compute};
          c.weights(weights);
          c.in = kTypes[turn % 4];
          c.out = kTypes[turn++ / 4 % 4];
          c.x = kinds[0], c.gate = kinds[1], c.up = kinds[2], c.down = kinds[3], c.norm = kinds[4];
          c.eps = eps;
          if (!holds(c)) return;
        }
      }
    }
  }
}

/// Outputs around the ends of f16 and of bf16's denormals: down rows are ordinary numbers times 2^e.
TEST(Contract, outputs_at_the_ends_of_their_type) {
  for (const Compute compute : kComputes) {
    for (const DType out : kTypes) {
      for (const int scale : {-150, -140, -133, -126, -30, -24, -14, 15, 16, 120, 127}) {
        const Case c{.dim = 67, .hidden = 9, .tokens = 6, .compute = compute, .out = out};
        Trial trial(c);
        for (std::int64_t i = 0; i < c.dim; ++i) {
          for (std::int64_t j = 0; j < c.hidden; ++j) {
            trial.down().set(i, j,
                             contract::encode(std::ldexp(trial.down().value(i, j) * (i % 2 == 0 ? 1.0 : 16.0), scale),
                                              DType::f32));
          }
        }
        trial.check();
        if (HasFailure()) return;
      }
    }
  }
}

/// dim 1 and x = 1, so gate is the weight itself: silu over every exponent, dense where it bends.
TEST(Contract, silu_of_any_float) {
  for (const Compute compute : kComputes) {
    const Case c{.dim = 1, .hidden = 60000, .tokens = 2, .compute = compute, .down = Kind::zeros};
    Trial trial(c);
    Random random(7);
    trial.x().set(0, 0, contract::encode(1.0, DType::f32));
    trial.x().set(1, 0, contract::encode(1.0 + 0x1p-7, DType::f32));
    for (std::int64_t j = 0; j < c.hidden; ++j) {
      const std::uint64_t pattern = random.next() >> 32;
      const double near = j % 3 == 0 ? random.between(-160, 160) : random.between(-20, 20);
      trial.gate().set(j, 0, j % 2 == 0 ? pattern : contract::encode(near, DType::f32));
      trial.up().set(j, 0, contract::encode(j % 16 < 12 ? 1.0 : std::exp2(random.between(-40, 40)), DType::f32));
    }
    trial.check();
    if (HasFailure()) return;
  }
}

/// Where gate is about -87 … -104 silu leaves the normal numbers, and z with it.
TEST(Contract, silu_far_out) {
  for (const Compute compute : kComputes) {
    for (const double scale : {10.0, 30.0, 80.0, 1000.0}) {
      for (const Kind up : {Kind::normal, Kind::heavy, Kind::huge}) {
        Case c{.dim = 61, .hidden = 401, .tokens = 3, .compute = compute};
        c.weights(compute == Compute::bf16 ? DType::bf16 : DType::f32);
        c.up = up;
        c.gate_scale = scale;
        if (!holds(c)) return;
      }
    }
  }
}

/// Flushing happens to results that are below 2^-126 after rounding: 2^-126 - 2^-160 is 2^-126.
TEST(Contract, tininess_is_seen_after_rounding) {
  for (const Compute compute : kComputes) {
    const Case c{.dim = 6, .hidden = 48, .tokens = 2, .compute = compute};
    Trial trial(c);
    const double x[] = {0x1p-80, 0x1p-63, 0x1p-63, 0x1p-80, 0x1p-30, 1.0};
    for (std::int64_t k = 0; k < c.dim; ++k) {
      for (std::int64_t t = 0; t < c.tokens; ++t)
        trial.x().set(t, k, contract::encode(x[k] * (t == 0 ? 1 : -1), DType::f32));
    }
    Random random(3);
    for (std::int64_t j = 0; j < c.hidden; ++j) {
      for (std::int64_t k = 0; k < c.dim; ++k) {
        const double chosen[] = {0.0, 0x1p-80, -0x1p-80, 0x1p-63, -0x1p-63, 0x1.8p-63, 0x1p-62, -0x1.02p-96};
        trial.gate().set(j, k, contract::encode(chosen[random.below(8)], DType::f32));
        trial.up().set(j, k, contract::encode(chosen[random.below(8)], DType::f32));
      }
    }
    trial.check();
  }
}

/// Halfway in double, beyond it by less than a float can say: rounding twice would give 1.
TEST(Contract, weights_round_to_bf16_once) {
  Case c{.dim = 1, .hidden = 1, .compute = Compute::bf16};
  Trial trial(c.weights(DType::f64));
  trial.x().set(0, 0, contract::encode(1.0, DType::f32));
  trial.gate().set(0, 0, contract::encode(1.0 + 0x1p-8 + 0x1p-40, DType::f64));
  trial.check();
}

TEST(Contract, automatic_is_bf16_only_when_all_three_are) {
  for (const DType gate : kTypes) {
    for (const DType up : kTypes) {
      for (const DType down : kTypes) {
        Matrix g(gate, 2, 3), u(up, 2, 3), d(down, 3, 2);
        Random random(1);
        g.fill(random, Kind::normal, 1), u.fill(random, Kind::normal, 1), d.fill(random, Kind::normal, 1);
        LayerSource source;
        source.config = {3, 2, 1e-5};
        source.gate = view_source("gate", g.view());
        source.up = view_source("up", u.view());
        source.down = view_source("down", d.view());
        const bool all = gate == DType::bf16 && up == DType::bf16 && down == DType::bf16;
        EXPECT_EQ(FeedForward(source, pool()).info().compute, all ? Compute::bf16 : Compute::f32);
      }
    }
  }
}

}  // namespace
}  // namespace swiglu
