// Ends the process if a call that MPI itself blocks in does not return: initialising, duplicating a communicator,
// finalising. Nothing else can, as the thread that called is stuck, perhaps because a rank was never started.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace swiglu::mpi {

class Watchdog {
 public:
  /// Waits for `seconds`, and a little longer on higher ranks, so that one speaks: then `tell`, then the end. Without
  /// `tell` it does nothing.
  Watchdog(const char* what, double seconds, std::function<void(std::string_view)> tell);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool returned_ = false;
  std::thread thread_;
};

/// After five seconds ends the launcher that started this process, if it is still there.
void guard_against_a_launcher_that_hangs() noexcept;

}  // namespace swiglu::mpi
