// One trial of the contract's test: weights and tokens from a seed, what the contract says about them,
// and the fast path on every ISA compared with it. Where bits differ the text names case, ISA, part,
// token and element. Knows the front door only.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <xmmintrin.h>

#include "layer/contract.h"
#include "layer/contract_data.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::contract {

struct Case {
  std::int64_t dim, hidden, tokens = 1;
  Compute compute = Compute::f32;
  DType gate_type = DType::f32, up_type = DType::f32, down_type = DType::f32, in = DType::f32, out = DType::f32;
  Kind x = Kind::normal, gate = Kind::normal, up = Kind::normal, down = Kind::normal, norm = Kind::normal;
  double gate_scale = 1.0;  ///< of normal and heavy gate rows: how far out silu is asked
  double eps = 1e-5;
  unsigned callers_mode = 0x1F80;  ///< MXCSR around the constructor and the calls

  Case& weights(DType t) {
    gate_type = up_type = down_type = t;
    return *this;
  }
  [[nodiscard]] std::string text() const {
    char numbers[160];
    std::snprintf(numbers, sizeof numbers, "dim %lld hidden %lld tokens %lld gate_scale %g eps %g mode %x compute ",
                  static_cast<long long>(dim), static_cast<long long>(hidden), static_cast<long long>(tokens),
                  gate_scale, eps, callers_mode);
    std::string s = std::string(numbers) + name_of(compute);
    for (const DType t : {gate_type, up_type, down_type, in, out}) s += std::string(" ") + name_of(t);
    for (const Kind k : {x, gate, up, down, norm}) s += std::string(" ") + name_of(k);
    return s;
  }
};

inline ThreadPool& pool() {
  static ThreadPool two(2);
  return two;
}

/// Weights, inputs and what the contract says about them; check() runs the fast path on every ISA.
class Trial {
 public:
  explicit Trial(const Case& c)
      : c_(c), gate_(c.gate_type, c.hidden, c.dim, 1), up_(c.up_type, c.hidden, c.dim),
        down_(c.down_type, c.dim, c.hidden, 3), x_(c.in, c.tokens, c.dim, 5) {
    std::uint64_t seed = 1469598103934665603u;  // FNV-1a of the text: a case is the same in any order and alone
    for (const char letter : c.text()) seed = (seed ^ static_cast<std::uint64_t>(letter)) * 1099511628211u;
    Random random(seed);
    const double fan_in = 1.0 / std::sqrt(static_cast<double>(c.dim));
    gate_.fill(random, c.gate, c.gate_scale * fan_in);
    up_.fill(random, c.up, fan_in);
    down_.fill(random, c.down, 1.0 / std::sqrt(static_cast<double>(c.hidden)));
    x_.fill(random, c.x, 1.0);
    for (std::int64_t k = 0; k < c.dim; ++k) {
      norm_.push_back(
          read_input(c.norm == Kind::normal ? 1.0 + 0.3 * random.normal() : draw(random, c.norm, DType::f32, c.dim)));
    }
  }

  Matrix& gate() { return gate_; }
  Matrix& up() { return up_; }
  Matrix& down() { return down_; }
  Matrix& x() { return x_; }
  std::vector<float>& norm() { return norm_; }

  /// Trace, forward, block, and block in place where the types allow it, on every ISA.
  void check() {
    predict();
    for (const Isa isa : available_isas()) {
      Options options;
      options.isa = isa;
      options.compute = c_.compute;
      std::optional<FeedForward> layer;
      calling([&] { layer.emplace(source(), pool(), options); }, 0x3f);
      for (const bool block : {false, true}) {
        const std::string where = c_.text() + " on " + name_of(isa) + (block ? " block" : " forward");
        LayerTrace trace;
        calling([&] { trace = layer->trace(x_.view(), block); }, 0x3f);
        compare(where + " norm", trace.norm, block, &Token::norm);
        compare(where + " gate", trace.gate, block, &Token::gate);
        compare(where + " up", trace.up, block, &Token::up);
        compare(where + " z", trace.z, block, &Token::z);
        compare(where + " down", trace.down, block, &Token::down);
        Matrix out(c_.out, c_.tokens, c_.dim, 2);
        calling([&] { block ? layer->block(x_.view(), out.view()) : layer->forward(x_.view(), out.view()); });
        compare_output(where + " output", out, block);
        if (block && c_.in == c_.out) {
          Matrix both = x_;
          calling([&] { layer->block(both.view(), both.view()); });
          compare_output(where + " in place", both, block);
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }

  /// The pieces of check(), for tests that make and call layers in their own way.
  void predict() {
    Layer layer{c_.compute, c_.dim, c_.hidden, static_cast<float>(c_.eps), {}, {}, {}, norm_};
    append(layer.gate, gate_, c_.hidden, c_.dim, c_.compute);
    append(layer.up, up_, c_.hidden, c_.dim, c_.compute);
    append(layer.down, down_, c_.dim, c_.hidden, c_.compute);
    for (std::int64_t t = 0; t < c_.tokens; ++t) {
      std::vector<float> h;
      for (std::int64_t k = 0; k < c_.dim; ++k) h.push_back(read_input(x_.value(t, k)));
      blocks_.push_back(run_token(layer, h, true));
      forwards_.push_back(run_token(layer, h, false));
    }
  }
  [[nodiscard]] LayerSource source() {
    return {{c_.dim, c_.hidden, c_.eps},
            view_source("gate", gate_.view()),
            view_source("up", up_.view()),
            view_source("down", down_.view()),
            norm_};
  }
  void compare_output(const std::string& where, const Matrix& got, bool block) const {
    const std::vector<Token>& expected = block ? blocks_ : forwards_;
    for (std::int64_t t = 0; t < c_.tokens; ++t) {
      for (std::int64_t i = 0; i < c_.dim; ++i) {
        const std::uint64_t bits =
            encode_output(expected[static_cast<std::size_t>(t)].out[static_cast<std::size_t>(i)], c_.out, c_.compute);
        if (got.bits(t, i) != bits) return report(where, t, i, bits, got.bits(t, i));
      }
    }
  }

 private:
  static void append(std::vector<float>& to, const Matrix& from, std::int64_t rows, std::int64_t cols,
                     Compute compute) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) to.push_back(read_weight(from.value(r, c), compute));
    }
  }
  /// Runs a call of the library in the caller's mode; it must come back as it was, flags included.
  template <typename Call>
  void calling(const Call& call, unsigned ignored = 0) const {
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(c_.callers_mode);
    call();
    const unsigned left = _mm_getcsr();
    _mm_setcsr(saved);
    EXPECT_EQ(left & ~ignored, c_.callers_mode & ~ignored) << c_.text();
  }

  static void report(const std::string& where, std::int64_t token, std::int64_t i, std::uint64_t expected,
                     std::uint64_t got) {
    char text[160];
    std::snprintf(text, sizeof text, ": token %lld element %lld: the contract says %llx, got %llx",
                  static_cast<long long>(token), static_cast<long long>(i), static_cast<unsigned long long>(expected),
                  static_cast<unsigned long long>(got));
    ADD_FAILURE() << where << text;
  }
  void compare(const std::string& where, const std::vector<float>& got, bool block,
               std::vector<float> Token::* part) const {
    const std::vector<Token>& tokens = block ? blocks_ : forwards_;
    std::size_t i = 0;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const std::vector<float>& expected = tokens[t].*part;
      ASSERT_LE(i + expected.size(), got.size()) << where;
      for (std::size_t k = 0; k < expected.size(); ++k, ++i) {
        const std::uint64_t bits = encode(static_cast<double>(expected[k]), DType::f32);
        if (std::bit_cast<std::uint32_t>(got[i]) != bits) {
          return report(where, static_cast<std::int64_t>(t), static_cast<std::int64_t>(k), bits,
                        std::bit_cast<std::uint32_t>(got[i]));
        }
      }
    }
    EXPECT_EQ(i, got.size()) << where;
  }
  Case c_;
  Matrix gate_, up_, down_, x_;
  std::vector<float> norm_;
  std::vector<Token> blocks_, forwards_;
};

}  // namespace swiglu::contract
