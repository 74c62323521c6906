// The fork-join pool. One job at a time: its state is one word {epoch, open, workers inside}, so that a
// worker which wakes late finds the job closed and never delays the caller.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <emmintrin.h>
#include <fmt/format.h>

#include "base/cpu.h"
#include "base/text.h"
#include "swiglu/swiglu.hpp"

namespace swiglu {
namespace {

int default_threads() {
  const char* set = std::getenv("SWIGLU_THREADS");
  if (set == nullptr || *set == '\0') return usable_cpus();
  int threads = 0;
  const char* end = set + std::strlen(set);
  const auto parsed = std::from_chars(set, end, threads);
  if (parsed.ec != std::errc() || parsed.ptr != end || threads < 1 || threads > 4096) {
    throw Error(ErrorCode::usage,
                fmt::format("SWIGLU_THREADS: expected a number from 1 to 4096, found '{}'", escaped(set)));
  }
  return threads;
}

// The workers and the job they share. Abandoned, never destroyed, in a forked child.
class Crew {
 public:
  explicit Crew(int workers) {
    threads_.reserve(static_cast<std::size_t>(workers));
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Crew() {
    {
      const std::lock_guard lock(sleep_);
      quit_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void run(std::int64_t n, void (*task)(void*, std::int64_t), void* arg) {
    if (busy_.exchange(true, std::memory_order_acquire)) {  // a second caller works inline
      for (std::int64_t i = 0; i < n; ++i) task(arg, i);
      return;
    }
    task_ = task;
    arg_ = arg;
    count_ = n;
    next_.store(0, std::memory_order_relaxed);
    {
      // Under the lock, so that no worker falls asleep between its look at the state and its wait.
      const std::lock_guard lock(sleep_);
      state_.store(((state_.load(std::memory_order_relaxed) >> kEpochShift) + 1) << kEpochShift | kOpen,
                   std::memory_order_release);
    }
    wake_.notify_all();
    take_tasks();
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int spins = 0; (state_.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
      spins < kSpins ? _mm_pause() : std::this_thread::yield();
    }
    busy_.store(false, std::memory_order_release);
  }

 private:
  static constexpr std::uint64_t kInside = 0xffffU;  // workers in the job
  static constexpr std::uint64_t kOpen = 0x10000U;
  static constexpr int kEpochShift = 17;
  static constexpr int kSpins = 2000;  // about 50 µs: longer than the gap between phases, too short to matter

  // Guided: neighbours by the run, long runs first, single tasks last. A run keeps its thread's stream of
  // weights going; the short ones at the end even out what each thread has left.
  void take_tasks() {
    const auto shares = 2 * (static_cast<std::int64_t>(threads_.size()) + 1);
    for (std::int64_t i = next_.load(std::memory_order_relaxed); i < count_;) {
      const std::int64_t end = i + std::max<std::int64_t>(1, (count_ - i) / shares);
      if (!next_.compare_exchange_weak(i, end, std::memory_order_relaxed)) continue;
      for (; i < end; ++i) task_(arg_, i);
      i = next_.load(std::memory_order_relaxed);
    }
  }

  // Enters the job of a new epoch if it is still open.
  bool enter(std::uint64_t& seen) {
    std::uint64_t state = state_.load(std::memory_order_acquire);
    while (state >> kEpochShift != seen && (state & kOpen) != 0) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
        seen = state >> kEpochShift;
        return true;
      }
    }
    return false;
  }

  void work() {
    std::uint64_t seen = 0;
    while (true) {
      bool inside = enter(seen);
      for (int spins = 0; !inside && spins < kSpins; ++spins) {
        _mm_pause();
        inside = enter(seen);
      }
      if (!inside) {
        std::unique_lock lock(sleep_);
        wake_.wait(lock, [&] { return quit_ || (inside = enter(seen)); });
        if (!inside) return;
      }
      take_tasks();
      state_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  std::vector<std::thread> threads_;
  std::atomic<std::uint64_t> state_{0};
  std::atomic<std::int64_t> next_{0};
  std::atomic<bool> busy_{false};
  void (*task_)(void*, std::int64_t) = nullptr;
  void* arg_ = nullptr;
  std::int64_t count_ = 0;
  std::mutex sleep_;
  std::condition_variable wake_;
  bool quit_ = false;
};

}  // namespace

struct ThreadPool::Impl {
  int threads = 1;
  pid_t owner = 0;
  std::unique_ptr<Crew> crew;
  std::mutex starting;

  // In a forked child the parent's workers do not exist: leave their crew alone and hire a new one.
  Crew& hired() {
    const pid_t self = getpid();
    const std::lock_guard lock(starting);
    if (owner != self) {
      static_cast<void>(crew.release());
      crew = std::make_unique<Crew>(threads - 1);
      owner = self;
    }
    return *crew;
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  if (threads < 0 || threads > 4096) {
    throw Error(ErrorCode::usage, fmt::format("threads: expected 0 (automatic) to 4096, found {}", threads));
  }
  impl_->threads = threads == 0 ? default_threads() : threads;
  impl_->owner = getpid();
  impl_->crew = std::make_unique<Crew>(impl_->threads - 1);
}

ThreadPool::~ThreadPool() {
  if (impl_->owner != getpid()) static_cast<void>(impl_->crew.release());
}

int ThreadPool::threads() const noexcept { return impl_->threads; }

Runner ThreadPool::runner() noexcept {
  return {[](void* ctx, std::int64_t n, void (*task)(void*, std::int64_t), void* arg) {
            if (n == 1) return task(arg, 0);
            if (n > 1) static_cast<Impl*>(ctx)->hired().run(n, task, arg);
          },
          impl_.get()};
}

}  // namespace swiglu
