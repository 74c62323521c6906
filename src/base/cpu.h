// What the processor can do, and the floating-point mode of a task.
#pragma once

#include <cstdint>

#include "swiglu/swiglu.hpp"

namespace swiglu {

[[nodiscard]] bool cpu_has(Isa isa) noexcept;

/// SWIGLU_ISA if set, else the fastest one. Throws usage for an unknown name or one the machine lacks.
[[nodiscard]] Isa default_isa();
/// `isa` itself (or default_isa() for automatic), checked against the machine.
[[nodiscard]] Isa resolve_isa(Isa isa);

/// CPUs this process may use: affinity mask and cgroup quota (rounded up).
[[nodiscard]] int usable_cpus() noexcept;

/// How weights are to be fetched ahead of a matmul that streams them through `rows` tokens. A fixed table by
/// processor, measured; it changes no result.
struct PrefetchPolicy {
  std::int64_t far;      ///< bytes ahead into L2; 0: not at all
  int pages_log2;        ///< in runs of so many pages in turn (kernels::Ahead)
  std::int64_t near_by;  ///< bytes ahead into L1; 0: not at all
};
[[nodiscard]] PrefetchPolicy weights_prefetch(int rows) noexcept;

/// Sets MXCSR for a scope and restores the caller's, flags included. Arithmetic must not stand in the
/// same function: the compiler moves it across the change. Call kernels through pointers inside it.
class FloatMode {
 public:
  static constexpr std::uint32_t kExact = 0x1F80;  ///< round to nearest, denormals kept
  static constexpr std::uint32_t kFlush = 0x9FC0;  ///< and FTZ, DAZ
  explicit FloatMode(std::uint32_t mode) noexcept;
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  std::uint32_t saved_;
};

}  // namespace swiglu
