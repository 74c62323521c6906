// The fast path against the numeric contract written a second time (contract.h), bit by bit: every
// ISA of this machine, both compute types, every storage type, shapes on both sides of every chunk
// and group border, and data that reaches denormals, overflow, Inf, NaN and zeros of both signs.
// Knows the front door only. One differing bit, even a zero's sign, is a failure.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "layer/contract.h"
#include "layer/contract_data.h"
#include "layer/contract_trial.h"
#include "support/sanitized.h"
#include "swiglu/swiglu.hpp"

namespace swiglu {
namespace {

using contract::Case;
using contract::Kind;
using contract::Matrix;
using contract::Random;
using contract::Trial;

/// Checks the case; false stops a loop of cases at the first that differs.
bool holds(const Case& c) {
  Trial(c).check();
  return !::testing::Test::HasFailure();
}

/// The tasks one after another, backwards, on the calling thread.
Runner serial_runner() {
  return {[](void*, std::int64_t n, void (*task)(void*, std::int64_t), void* arg) {
            while (--n >= 0) task(arg, n);
          },
          nullptr};
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
        Case c{.dim = dim, .hidden = hidden, .tokens = dim * hidden > 100000 ? 1 : 2, .compute = compute};
        c.weights(compute == Compute::bf16 ? DType::bf16 : kTypes[turn / 2 % 4]);
        c.x = ++turn % 3 == 0 ? Kind::heavy : Kind::normal;
        if (testing::kSanitized && turn / 2 % 3 != 0) continue;  // every width still meets both arithmetics
        if (!holds(c)) return;
      }
    }
  }
}

TEST(Contract, long_down_products_split_into_the_same_groups) {
  constexpr std::int64_t kShapes[][2] = {{33, 2049}, {3, 8193}, {1, 10007}, {17, 10007}, {2, 16385}, {3, 32771}};
  for (const auto& [dim, hidden] : kShapes) {
    for (const Compute compute : kComputes) {
      Case c{.dim = dim, .hidden = hidden, .tokens = 2, .compute = compute};
      if (!holds(c.weights(compute == Compute::bf16 ? DType::bf16 : kTypes[dim % 4]))) return;
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
  constexpr Kind kKinds[] = {Kind::heavy, Kind::tiny, Kind::small, Kind::huge, Kind::zeros, Kind::ties, Kind::special};
  std::size_t turn = 0;
  for (const Compute compute : kComputes) {
    for (const DType weights : kTypes) {
      for (const Kind kind : kKinds) {
        for (Kind Case::* place : {&Case::x, &Case::gate, &Case::up, &Case::down, &Case::norm}) {
          for (const std::int64_t dim : {19, 530}) {
            Case c{.dim = dim, .hidden = dim == 19 ? 301 : 37, .tokens = 3, .compute = compute};
            c.weights(weights);
            c.in = kTypes[turn % 4];
            c.out = kTypes[turn++ / 4 % 4];
            if (testing::kSanitized && turn % 3 != 0) continue;  // every kind still comes in every place
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
          Case c{.dim = 45, .hidden = 131, .tokens = 3, .compute = compute};
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
            trial.down().set(
                i, j,
                contract::encode(std::ldexp(trial.down().value(i, j) * (i % 2 == 0 ? 1.0 : 16.0), scale), DType::f32));
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
      // Where x · log2(e) lies halfway between integers, rint takes the even one.
      const double halfway = (std::rint(near) + 0.5) / static_cast<double>(1.44269504f);
      trial.gate().set(j, 0, j % 2 == 0 ? pattern : contract::encode(j % 8 == 1 ? halfway : near, DType::f32));
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

/// Flushing happens to results that are below 2^-126 after rounding: 2^-126 - 2^-160 is 2^-126. The
/// columns lie in two chunks, whose sums meet at the edge of underflow once more.
TEST(Contract, tininess_is_seen_after_rounding) {
  for (const Compute compute : kComputes) {
    const Case c{.dim = 1030, .hidden = 48, .tokens = 2, .compute = compute};
    Trial trial(c);
    const double x[] = {0x1p-80, 0x1p-63, 0x1p-63, 0x1p-80, 0x1p-30, 1.0};
    const double weights[] = {0.0, 0x1p-80, -0x1p-80, 0x1p-63, -0x1p-63, 0x1.8p-63, 0x1p-62, -0x1.02p-96};
    Random random(3);
    for (std::int64_t k = 0; k < c.dim; ++k) {
      const bool used = k < 6 || k >= 1024;
      trial.x().set(0, k, contract::encode(used ? x[k % 1024] : 0.0, DType::f32));
      trial.x().set(1, k, contract::encode(used ? -x[k % 1024] : 0.0, DType::f32));
      for (std::int64_t j = 0; j < c.hidden; ++j) {
        trial.gate().set(j, k, contract::encode(used ? weights[random.below(8)] : 0.0, DType::f32));
        trial.up().set(j, k, contract::encode(used ? weights[random.below(8)] : 0.0, DType::f32));
      }
    }
    trial.check();
  }
}

/// h and the down sums are a few times 2^-126 of both signs: their sum is a denormal, or flushed.
TEST(Contract, residual_meets_its_opposite) {
  for (const Compute compute : kComputes) {
    Case c{.dim = 67, .hidden = 33, .tokens = 6, .compute = compute};
    c.eps = 1e-37;
    Trial trial(c);
    Random random(5);
    for (std::int64_t i = 0; i < c.dim; ++i) {
      trial.norm()[static_cast<std::size_t>(i)] = 0x1p65f;
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        trial.x().set(t, i, contract::encode(random.sign() * random.between(0x1p-126, 0x1p-124), DType::f32));
      }
      for (std::int64_t j = 0; j < c.hidden; ++j) {
        trial.down().set(i, j, contract::encode(trial.down().value(i, j) * 0x1p-123, DType::f32));
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

/// The direction of rounding and the flushing of the caller neither matter nor change, nor do his flags.
TEST(Contract, the_callers_mode_is_left_alone) {
  for (const Compute compute : kComputes) {
    for (const unsigned mode : {0x7F80u, 0xFFC0u, 0x3F80u, 0x5F80u, 0x9FC0u}) {
      for (const DType type : kTypes) {
        for (const Kind kind : {Kind::normal, Kind::tiny}) {
          Case c{.dim = 45, .hidden = 131, .tokens = 3, .compute = compute, .in = type, .out = type};
          c.weights(type);
          c.x = c.gate = c.down = kind;
          c.eps = kind == Kind::tiny ? 1e-42 : 1e-5;
          c.callers_mode = mode;
          if (!holds(c)) return;
        }
      }
    }
  }
}

/// Ranks as threads that look into each other's parts: every rank adds the leaves in the fixed tree.
class SharedReducer : public Reducer {
 public:
  struct Board {
    explicit Board(int size) : parts(static_cast<std::size_t>(size)), barrier(size) {}
    std::vector<std::vector<PartialSum>> parts;
    std::barrier<> barrier;
  };
  SharedReducer(Board& board, int rank) : board_(board), rank_(rank) {}
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return static_cast<int>(board_.parts.size()); }
  void start(std::span<const PartialSum> parts, std::int64_t n, float* root, AddFloats add) override {
    EXPECT_LE(parts.size(), 3U);
    board_.parts[static_cast<std::size_t>(rank_)].assign(parts.begin(), parts.end());
    n_ = n, root_ = root, add_ = add;
  }
  void finish() override {
    board_.barrier.arrive_and_wait();
    const std::vector<float> sum = subtree(0, 16);
    std::copy(sum.begin(), sum.end(), root_);
    board_.barrier.arrive_and_wait();
  }

 private:
  [[nodiscard]] std::vector<float> subtree(int first, int groups) const {
    for (const auto& parts : board_.parts) {
      for (const PartialSum& part : parts) {
        if (part.first_group == first && part.groups == groups) return {part.floats, part.floats + n_};
      }
    }
    EXPECT_GT(groups, 1) << "no rank has group " << first;
    std::vector<float> left = subtree(first, groups / 2);
    const std::vector<float> right = subtree(first + groups / 2, groups / 2);
    add_(left.data(), left.data(), right.data(), n_);
    return left;
  }
  Board& board_;
  int rank_;
  std::int64_t n_ = 0;
  float* root_ = nullptr;
  AddFloats add_ = nullptr;
};

TEST(Contract, ranks_give_the_bits_of_one) {
  for (const Compute compute : kComputes) {
    for (const int ranks : {1, 2, 3, 5, 7, 12, 16, 17}) {
      for (const std::int64_t hidden : {1, 33, 530, 8300}) {
        Case c{.dim = 5, .hidden = hidden, .tokens = 3, .compute = compute};
        c.down = hidden == 530 ? Kind::tiny : Kind::normal;
        Trial trial(c);
        trial.predict();
        SharedReducer::Board board(ranks);
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks; ++rank) {
          threads.emplace_back([&, rank] {
            SharedReducer reducer(board, rank);
            const std::vector<Isa> isas = available_isas();
            Options options;
            options.compute = compute;
            options.isa = isas[static_cast<std::size_t>(rank) % isas.size()];
            options.reducer = &reducer;
            const FeedForward layer(trial.source(), serial_runner(), options);
            for (const bool block : {false, true}) {
              Matrix out(c.out, c.tokens, c.dim);
              block ? layer.block(trial.x().view(), out.view()) : layer.forward(trial.x().view(), out.view());
              trial.compare_output(c.text() + " rank " + std::to_string(rank) + " of " + std::to_string(ranks), out,
                                   block);
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
        if (HasFailure()) return;
      }
    }
  }
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
        EXPECT_EQ(FeedForward(source, contract::pool()).info().compute, all ? Compute::bf16 : Compute::f32);
      }
    }
  }
}

}  // namespace
}  // namespace swiglu
