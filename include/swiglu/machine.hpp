// What this machine is, and the limits it was measured to have: the yardstick of every speed figure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "swiglu/swiglu.hpp"

namespace swiglu {

struct Machine {
  std::string cpu;  ///< the processor's own name
  int cpus = 0;     ///< that this process may use
  std::vector<Isa> isas;
  std::int64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  ///< 0 when unknown
  std::int64_t memory_bytes = 0;
  std::string compiler;
};
[[nodiscard]] Machine describe_machine();

/// The best of several short trials on the runner's threads together.
struct Limits {
  double read_gb_per_s = 0;    ///< streaming reads of a buffer larger than the caches
  double fma_gflops = 0;       ///< fp32 multiply-add, two operations each
  double bf16_dot_gflops = 0;  ///< bf16 pair dot products; 0 where `isa` has none
};
/// Measures with the instructions of `isa`; takes about `seconds` in all.
[[nodiscard]] Limits measure_limits(ThreadPool& pool, Isa isa, double seconds = 1.5);

}  // namespace swiglu
