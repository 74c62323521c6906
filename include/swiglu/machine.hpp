// What this machine is, and the limits it was measured to have: the yardstick of every speed figure.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "swiglu/swiglu.hpp"

#pragma GCC visibility push(default)
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

/// Memory that this process can still get: what the system calls available, less where its cgroup or its
/// own limits (RLIMIT_AS) leave less. 0 when unknown.
[[nodiscard]] std::int64_t available_memory();

/// What the pool's threads reach together.
struct Limits {
  double read_gb_per_s = 0;    ///< streaming reads of memory larger than the caches, by the best of several patterns
  std::string read_pattern;    ///< which one that was
  double fma_gflops = 0;       ///< fp32 multiply-add, two operations each
  double bf16_dot_gflops = 0;  ///< bf16 pair dot products; 0 without the instruction
  double int8_dot_gops = 0;    ///< dot products of bytes; 0 without such instructions
};

/// Holds the memory and measures again whenever asked, so that limits can be taken beside each figure that
/// is compared with them: on a shared machine they change from second to second. Patterns are plain loads,
/// prefetches at several distances, several streams, and the kernels' own way through weights at one token.
/// Measures with the instructions of `isa`; bf16 dot products also where `isa` is the same vectors without.
class LimitProbe {
 public:
  /// One way to read memory, its latest rate and its best.
  struct Pattern {
    std::string name;
    double latest_gb_per_s;
    double best_gb_per_s;
  };

  /// Takes twice the last-level cache and at least 512 MiB, but no more than a quarter of the available
  /// memory, or than `at_most`, and at least 64 MiB; and tries every pattern twice: one to two seconds. The
  /// pool must outlive it.
  explicit LimitProbe(ThreadPool& pool, Isa isa = Isa::automatic, std::int64_t at_most = INT64_MAX);
  LimitProbe(LimitProbe&&) noexcept;
  LimitProbe& operator=(LimitProbe&&) noexcept;
  ~LimitProbe();

  /// Fresh limits: the patterns that were best lately and one more in turn, a few milliseconds of each
  /// peak; 0.1 to 0.3 seconds.
  [[nodiscard]] Limits sample();
  [[nodiscard]] std::span<const Pattern> patterns() const noexcept;
  [[nodiscard]] std::int64_t memory_bytes() const noexcept;
  /// The memory is larger than the last-level cache; false where there was too little.
  [[nodiscard]] bool beyond_caches() const noexcept;

 private:
  struct [[gnu::visibility("hidden")]] Impl;
  std::unique_ptr<Impl> impl_;
};

/// Each limit the larger of the two.
[[nodiscard]] Limits best_of(const Limits& a, const Limits& b);

/// The best of samples for about `seconds`, all from one LimitProbe.
[[nodiscard]] Limits measure_limits(ThreadPool& pool, Isa isa, double seconds = 1.5);

}  // namespace swiglu
#pragma GCC visibility pop
