// See watchdog.h.
#include "mpi/watchdog.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace swiglu::mpi {
namespace {

/// As the launcher says, for MPI may not have begun; 0 if it does not.
int rank_in_environment() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (const char* text = std::getenv(name)) return std::atoi(text);
  }
  return 0;
}

bool is_launcher(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  constexpr std::array<std::string_view, 6> kNames = {"mpirun", "orterun", "mpiexec", "orted", "prterun", "prted"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() || name.starts_with("hydra_");
}

}  // namespace

/// OpenMPI's launcher waits for the daemon of a machine that it cannot reach until TCP gives that up, a quarter of an
/// hour. A child of ours gives it five seconds to end, then ends it.
void guard_against_a_launcher_that_hangs() noexcept {
  constexpr int kPatience = 5000;  // ms
  const pid_t launcher = getppid();
  if (launcher <= 1 || !is_launcher(launcher)) return;
  const int watched = static_cast<int>(syscall(SYS_pidfd_open, launcher, 0));
  if (watched < 0) return;
  if (fork() != 0) {
    close(watched);
    return;
  }
  // In the child: nothing but system calls. Its standard streams would keep the launcher's pipes open.
  setsid();
  for (int fd = 0; fd < 1024; ++fd) {
    if (fd != watched) close(fd);
  }
  pollfd ended{watched, POLLIN, 0};
  if (poll(&ended, 1, kPatience) == 0) syscall(SYS_pidfd_send_signal, watched, SIGKILL, nullptr, 0);
  _exit(0);
}

Watchdog::Watchdog(const char* what, double seconds, std::function<void(std::string_view)> tell) {
  if (!tell) return;
  constexpr double kLongest = 1e6, kApart = 0.3, kMostApart = 3;  // seconds
  const int rank = rank_in_environment();
  const double limit = std::min(seconds, kLongest) + std::min(kApart * rank, kMostApart);
  try {
    thread_ = std::thread([this, what, seconds, limit, rank, tell = std::move(tell)] {
      std::unique_lock lock(mutex_);
      // Slices that this process lives through, not time: one that was stopped must not bark when it wakes.
      constexpr double kSlice = 0.1;
      for (double waited = 0; waited < limit; waited += kSlice) {
        if (wake_.wait_for(lock, std::chrono::duration<double>(kSlice), [this] { return returned_; })) return;
      }
      tell(
          fmt::format("rank {}: {} did not return for {} s: another rank was not started, is stuck or cut off; "
                      "--timeout says how long to wait",
                      rank, what, seconds));
      guard_against_a_launcher_that_hangs();
      _exit(4);
    });
  } catch (const std::system_error&) {  // no thread to be had: then MPI waits for as long as it likes
  }
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    returned_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

}  // namespace swiglu::mpi
