// The machine's description and its limits. How fast a machine is cannot be asserted; that the figures are
// there, and named, can.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/cpu.h"
#include "support/sanitized.h"
#include "swiglu/machine.hpp"

namespace swiglu::testing {
namespace {

TEST(Machine, is_described) {
  const Machine machine = describe_machine();
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_FALSE(machine.compiler.empty());
  EXPECT_GE(machine.cpus, 1);
  EXPECT_FALSE(machine.isas.empty());
  EXPECT_GT(machine.memory_bytes, 0);
}

TEST(Machine, has_less_memory_available_than_there_is) {
  const std::int64_t available = available_memory();
  EXPECT_GT(available, 0);
  EXPECT_LE(available, describe_machine().memory_bytes);
}

TEST(LimitProbe, samples_every_limit_of_every_isa_but_the_scalar_one) {
  for (const Isa isa : available_isas()) {
    if (isa == Isa::scalar && available_isas().size() > 1) continue;  // seconds of waiting for one lane
    ThreadPool pool(isa == Isa::avx2 ? 2 : 1);
    LimitProbe probe(pool, isa);
    EXPECT_GE(probe.memory_bytes(), std::int64_t{64} << 20);
    for (int time = 0; time < (kSanitized ? 1 : 2); ++time) {
      const Limits limits = probe.sample();
      EXPECT_GT(limits.read_gb_per_s, 0) << name_of(isa);
      EXPECT_GT(limits.fma_gflops, 0) << name_of(isa);
      EXPECT_EQ(limits.int8_dot_gops > 0, isa != Isa::scalar) << name_of(isa);
      EXPECT_EQ(limits.bf16_dot_gflops > 0, isa >= Isa::avx512 && cpu_has(Isa::avx512bf16)) << name_of(isa);
      const auto patterns = probe.patterns();
      EXPECT_TRUE(std::any_of(patterns.begin(), patterns.end(), [&](const LimitProbe::Pattern& pattern) {
        return pattern.name == limits.read_pattern && pattern.best_gb_per_s >= limits.read_gb_per_s;
      })) << limits.read_pattern;
    }
    std::set<std::string> names;
    for (const LimitProbe::Pattern& pattern : probe.patterns()) {
      EXPECT_GT(pattern.latest_gb_per_s, 0) << pattern.name;
      EXPECT_TRUE(names.insert(pattern.name).second) << pattern.name << " is there twice";
    }
    EXPECT_TRUE(names.contains("one token's f32 products"));
    EXPECT_TRUE(names.contains("one token's bf16 products"));
  }
}

TEST(LimitProbe, refuses_an_isa_this_machine_lacks) {
  ThreadPool pool(1);
  for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512bf16}) {
    if (!cpu_has(isa)) {
      EXPECT_THROW(LimitProbe(pool, isa), Error);
    }
  }
}

TEST(LimitProbe, measure_limits_is_the_best_of_samples) {
  ThreadPool pool(1);
  const Limits limits = measure_limits(pool, Isa::automatic, 0.1);
  EXPECT_GT(limits.read_gb_per_s, 0);
  EXPECT_FALSE(limits.read_pattern.empty());
  EXPECT_GT(limits.fma_gflops, 0);
}

}  // namespace
}  // namespace swiglu::testing
