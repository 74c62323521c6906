// silu on every ISA: special values, agreement bit for bit, and the error over all 2^32 floats (slow).
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "base/cpu.h"
#include "kernels/kernel.h"

namespace swiglu::testing {
namespace {

float silu_on(Isa isa, float x) {
  float y = 0;
  kernels::find_table(name_of(isa))->silu(&y, &x, 1);
  return y;
}

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// Error in units of the last place of the exact result's float (the spacing of denormals below those).
double ulp_error(float got, double exact) {
  const double magnitude = std::abs(exact);
  const int exponent = magnitude == 0 ? -126 : std::max(std::ilogb(magnitude), -126);
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 23);
}

double exact_silu(double x) { return x < 0 ? x * std::exp(x) / (1 + std::exp(x)) : x / (1 + std::exp(-x)); }

TEST(Silu, special_values_on_every_isa) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Isa isa : available_isas()) {
    EXPECT_EQ(bits(silu_on(isa, -kInf)), 0x80000000U) << name_of(isa) << ": silu(-inf) is -0";
    EXPECT_EQ(silu_on(isa, kInf), kInf) << name_of(isa);
    EXPECT_TRUE(std::isnan(silu_on(isa, std::numeric_limits<float>::quiet_NaN()))) << name_of(isa);
    EXPECT_TRUE(std::isnan(silu_on(isa, -std::numeric_limits<float>::quiet_NaN()))) << name_of(isa);
    EXPECT_EQ(bits(silu_on(isa, 0.0F)), 0U) << name_of(isa);
    EXPECT_EQ(bits(silu_on(isa, -0.0F)), 0x80000000U) << name_of(isa);
    EXPECT_EQ(silu_on(isa, 3e38F), 3e38F) << name_of(isa);
    EXPECT_EQ(silu_on(isa, -1e4F), 0.0F) << name_of(isa);
    EXPECT_EQ(silu_on(isa, -3e38F), 0.0F) << name_of(isa);
    for (const float x :
         {-104.0F, -100.0F, -90.0F, -87.5F, -87.0F, -20.0F, -1.2784645F, -1e-3F, 1e-30F, 1.0F, 20.0F, 88.0F}) {
      EXPECT_LE(ulp_error(silu_on(isa, x), exact_silu(static_cast<double>(x))), 3.5) << name_of(isa) << " " << x;
    }
  }
}

// Checks the floats of [begin, end) by bit pattern: all tiers equal, and error at most 3.5 ulp.
struct Sweep {
  std::atomic<std::uint64_t> unequal{0};
  std::atomic<double> worst{0};

  void run(std::uint64_t begin, std::uint64_t end, std::uint64_t step) {
    constexpr std::int64_t kChunk = 4096;
    std::vector<float> x(kChunk);
    std::vector<float> scalar(kChunk);
    std::vector<float> fast(kChunk);
    double local_worst = 0;
    for (std::uint64_t at = begin; at < end; at += kChunk * step) {
      const auto n = static_cast<std::int64_t>(std::min<std::uint64_t>(kChunk, (end - at + step - 1) / step));
      for (std::int64_t i = 0; i < n; ++i) {
        x[static_cast<std::size_t>(i)] =
            std::bit_cast<float>(static_cast<std::uint32_t>(at + static_cast<std::uint64_t>(i) * step));
      }
      kernels::kScalar.silu(scalar.data(), x.data(), n);
      for (const Isa isa : available_isas()) {
        if (isa == Isa::scalar) continue;
        kernels::find_table(name_of(isa))->silu(fast.data(), x.data(), n);
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
          const bool both_nan = std::isnan(fast[i]) && std::isnan(scalar[i]);
          if (bits(fast[i]) != bits(scalar[i]) && !both_nan) ++unequal;
        }
      }
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        if (std::isnan(x[i]) || std::isinf(x[i])) continue;
        const double error = ulp_error(scalar[i], exact_silu(static_cast<double>(x[i])));
        if (!(error <= local_worst)) local_worst = error;  // a NaN error sticks
      }
    }
    double seen = worst;
    while (!(local_worst <= seen) && !worst.compare_exchange_weak(seen, local_worst)) {
    }
  }
};

TEST(Silu, a_sample_of_all_floats_is_accurate_and_equal_on_every_isa) {
  Sweep sweep;
  sweep.run(0, std::uint64_t{1} << 32, 7919);
  EXPECT_EQ(sweep.unequal, 0U);
  EXPECT_LE(sweep.worst, 3.5);
  EXPECT_GT(sweep.worst, 1.0) << "the sweep measures nothing";
}

TEST(Silu, Slow_all_floats_are_accurate_and_equal_on_every_isa) {
  Sweep sweep;
  const auto threads = static_cast<std::uint64_t>(usable_cpus());
  std::vector<std::thread> workers;
  for (std::uint64_t t = 0; t < threads; ++t) {
    workers.emplace_back([&sweep, t, threads] {
      sweep.run((std::uint64_t{1} << 32) * t / threads, (std::uint64_t{1} << 32) * (t + 1) / threads, 1);
    });
  }
  for (auto& worker : workers) worker.join();
  EXPECT_EQ(sweep.unequal, 0U);
  EXPECT_LE(sweep.worst, 3.5);
  RecordProperty("worst_ulp", std::to_string(sweep.worst));
}

// In flush mode (bf16 compute) the tiers must agree too: 2^n is applied by multiplications, which flush.
TEST(Silu, tiers_agree_in_flush_mode) {
  std::vector<float> x;
  for (std::uint64_t b = 0; b < (std::uint64_t{1} << 32); b += 104729)
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(b)));
  for (std::uint32_t b = 0xc2a00000U; b < 0xc2e00000U; b += 997) x.push_back(std::bit_cast<float>(b));  // -80 … -112
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<float> scalar(x.size());
  std::vector<float> fast(x.size());
  const FloatMode flush(FloatMode::kFlush);
  kernels::kScalar.silu(scalar.data(), x.data(), n);
  for (const Isa isa : available_isas()) {
    kernels::find_table(name_of(isa))->silu(fast.data(), x.data(), n);
    std::size_t unequal = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool nan = (bits(fast[i]) & 0x7fffffffU) > 0x7f800000U && (bits(scalar[i]) & 0x7fffffffU) > 0x7f800000U;
      unequal += bits(fast[i]) != bits(scalar[i]) && !nan ? 1U : 0U;
    }
    EXPECT_EQ(unequal, 0U) << name_of(isa);
  }
}

}  // namespace
}  // namespace swiglu::testing
