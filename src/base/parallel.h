// Tasks that may throw, on a Runner whose tasks may not: the first exception is kept and rethrown to the
// caller; tasks that have not begun by then are skipped.
#pragma once

#include <atomic>
#include <exception>

#include "swiglu/swiglu.hpp"

namespace swiglu {

template <class Function>
void parallel_for(const Runner& runner, std::int64_t n, const Function& function) {
  struct Shared {
    const Function& function;
    std::atomic<bool> failed{false};
    std::exception_ptr first{};
  } shared{function};
  const auto task = [](void* arg, std::int64_t i) {
    auto& s = *static_cast<Shared*>(arg);
    if (s.failed.load(std::memory_order_relaxed)) return;
    try {
      s.function(i);
    } catch (...) {
      if (!s.failed.exchange(true)) s.first = std::current_exception();
    }
  };
  runner.run(runner.ctx, n, task, &shared);
  if (shared.failed.load()) std::rethrow_exception(shared.first);
}

}  // namespace swiglu
