// How this room waits: a spin for the case that the answer is almost there, then naps, so that ranks which share
// cores let each other work. Whoever waits brings a Watch, which ends a wait that has become hopeless.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace swiglu::mpi {

using Clock = std::chrono::steady_clock;
[[nodiscard]] inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds in which this process really ran: one that was stopped and goes on must not blame the others.
class RunningTime {
 public:
  [[nodiscard]] double seconds() {
    constexpr double kSlice = 0.1;  // the most that counts between two questions
    const Clock::time_point now = Clock::now();
    seconds_ += std::min(std::chrono::duration<double>(now - last_).count(), kSlice);
    last_ = now;
    return seconds_;
  }

 private:
  Clock::time_point last_ = Clock::now();
  double seconds_ = 0;
};

class Watch {
 public:
  virtual ~Watch() = default;
  /// Called now and then: what has been waited for, for how many seconds, and which ranks have not delivered. Throws
  /// communication to end the wait.
  virtual void look(const char* what, double seconds, const std::vector<int>& awaited) = 0;
  /// How long to wait without giving way: answers come within microseconds where every rank has a core, and whoever
  /// gets a core that was given away keeps it for milliseconds. 0 where ranks share cores.
  [[nodiscard]] double spin_seconds() const noexcept { return spin_seconds_; }

 protected:
  void set_ranks_here(std::size_t ranks) noexcept {
    spin_seconds_ = ranks <= std::thread::hardware_concurrency() ? 1e-3 : 0;
  }

 private:
  double spin_seconds_ = 0;
};

/// Calls done() until it is true.
template <class Done, class Awaited>
void wait_until(const char* what, Watch& watch, const Done& done, const Awaited& awaited) {
  constexpr double kYield = 2e-3, kShortest = 30e-6, kLongest = 1e-3;  // seconds
  const double spin = watch.spin_seconds();
  RunningTime time;
  double waited = 0;
  for (int i = 1; !done(); ++i) {
    if (waited < kYield) {
      waited < spin ? __builtin_ia32_pause() : std::this_thread::yield();
      if (i % 32 != 0) continue;
    } else {
      // Late by a small part of the wait, and hardly a burden to whoever computes meanwhile.
      std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(0.03 * waited, kShortest, kLongest)));
    }
    waited = time.seconds();
    watch.look(what, waited, awaited());
  }
}

}  // namespace swiglu::mpi
