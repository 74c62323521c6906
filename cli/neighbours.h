// Threads that read memory without end, so that bandwidth is as scarce for what is measured beside them as it
// is on machines with many cores to a memory channel. Knows Memory of measure.h only.
#pragma once

#include <atomic>
#include <cstdint>
#include <latch>
#include <stop_token>
#include <thread>
#include <vector>

#include "measure.h"
#include "progress.h"

namespace swiglu::cli {

class Neighbours {
 public:
  /// What `count` threads hold together, which no cache of this size can; in double, as whatever is compared with
  /// the memory that there is.
  [[nodiscard]] static double memory_needed(int count, std::int64_t cache_bytes);

  /// Returns when all are reading. Throws bad_alloc, and no_memory where the system gives no more threads.
  Neighbours(int count, std::int64_t cache_bytes);
  ~Neighbours() = default;  // stops them and waits
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  [[nodiscard]] std::int64_t memory_bytes() const;
  /// What all of them have read on average since they began.
  [[nodiscard]] double gb_per_s() const;

 private:
  void read(const std::stop_token& stop, const Memory& memory);

  std::vector<Memory> memory_;
  std::latch reading_;
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<std::uint64_t> sum_{0};  ///< of what was read: nobody wants it, but compilers do not know
  Stopwatch watch_;
  std::vector<std::jthread> threads_;  ///< last, so that they are gone before what they use
};

}  // namespace swiglu::cli
