// How this room waits: a spin for the case that the answer is almost there, then naps, so that ranks which share
// cores let each other work. Whoever waits brings a Watch, which ends a wait that has become hopeless.
#pragma once

#include <chrono>
#include <thread>
#include <vector>

namespace swiglu::mpi {

using Clock = std::chrono::steady_clock;
[[nodiscard]] inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Watch {
 public:
  virtual ~Watch() = default;
  /// Called now and then: what has been waited for, for how long, and which ranks have not delivered. Throws
  /// communication to end the wait.
  virtual void look(const char* what, double seconds, const std::vector<int>& awaited) = 0;
};

/// Calls done() until it is true.
template <class Done, class Awaited>
void wait_until(const char* what, Watch& watch, const Done& done, const Awaited& awaited) {
  constexpr double kSpin = 2e-3, kBrief = 0.1;  // seconds
  const Clock::time_point start = Clock::now();
  double waited = 0;
  for (int i = 1; !done(); ++i) {
    if (waited < kSpin) {
      std::this_thread::yield();
      if (i % 32 != 0) continue;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(waited < kBrief ? 30 : 500));
    }
    waited = seconds_since(start);
    watch.look(what, waited, awaited());
  }
}

}  // namespace swiglu::mpi
