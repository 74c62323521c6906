// The measured limits: the best of short trials that all threads run together. Best, not median: a limit
// that a disturbance lowered would flatter everything measured against it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "base/buffer.h"
#include "base/cpu.h"
#include "kernels/kernel.h"
#include "swiglu/machine.hpp"

namespace swiglu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Runs work(part) for one part per thread, and returns the seconds it took.
template <class Work>
double timed(ThreadPool& pool, const Work& work) {
  const Runner runner = pool.runner();
  const auto start = Clock::now();
  runner.run(
      runner.ctx, pool.threads(), [](void* arg, std::int64_t part) { (*static_cast<const Work*>(arg))(part); },
      const_cast<Work*>(&work));
  return seconds_since(start);
}

// The best rate (units per second) in trials until `budget` seconds are over, at least three.
template <class Trial>
double best_rate(double budget, double units, const Trial& trial) {
  double best = 0;
  const auto start = Clock::now();
  for (int i = 0; i < 3 || seconds_since(start) < budget; ++i) best = std::max(best, units / trial());
  return best;
}

}  // namespace

Limits measure_limits(ThreadPool& pool, Isa isa, double seconds) {
  const kernels::Table& table = *kernels::find_table(name_of(resolve_isa(isa)));
  const int threads = pool.threads();
  Limits limits;
  std::atomic<float> sink{0};

  // Larger than any layer's share of a cache: 512 MiB in all, at least 64 MiB a thread.
  constexpr std::int64_t kPiece = 1 << 20;
  const std::int64_t per_thread =
      std::max<std::int64_t>((std::int64_t{512} << 20) / threads, std::int64_t{64} << 20) / kPiece * kPiece;
  const Buffer memory(per_thread * threads);
  const auto part = [&](std::int64_t i) { return memory.data() + i * per_thread; };
  timed(pool, [&](std::int64_t i) { std::fill_n(part(i), per_thread, std::byte{1}); });
  limits.read_gb_per_s =
      1e-9 * best_rate(seconds / 2, static_cast<double>(per_thread * threads), [&] {
        return timed(pool, [&](std::int64_t i) { sink.store(table.read_stream(part(i), per_thread)); });
      });

  constexpr std::int64_t kRounds = 1 << 20;
  const auto peak = [&](float (*probe)(std::int64_t), std::int64_t flops_per_round) {
    return 1e-9 * best_rate(seconds / 4, static_cast<double>(kRounds * flops_per_round * threads),
                            [&] { return timed(pool, [&](std::int64_t) { sink.store(probe(kRounds)); }); });
  };
  limits.fma_gflops = peak(table.fma_peak, table.fma_flops_per_round);
  if (table.dot_peak != nullptr) limits.bf16_dot_gflops = peak(table.dot_peak, table.dot_flops_per_round);
  return limits;
}

}  // namespace swiglu
