// One line on stderr that says how far a long job is, on a terminal only; and a stopwatch.
// The line is redrawn in place at most ten times a second and wiped when the Meter goes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace swiglu::cli {

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Meter {
 public:
  explicit Meter(std::string label);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  /// What is being done now. Not to be called while another thread may call update().
  void label(std::string text);
  /// From any thread; cheap when it is too early to redraw.
  void update(std::int64_t done, std::int64_t total) noexcept;
  /// The same as a callback of the library; `ctx` is the Meter.
  static void callback(void* ctx, std::int64_t done, std::int64_t total) noexcept {
    static_cast<Meter*>(ctx)->update(done, total);
  }

 private:
  const bool shown_;  ///< stderr is a terminal
  std::string label_;
  Stopwatch age_;
  std::atomic<std::int64_t> next_ms_{150};  ///< jobs shorter than this never flicker
  std::atomic<bool> drawn_{false};
};

}  // namespace swiglu::cli
