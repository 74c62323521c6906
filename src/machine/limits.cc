// The measured limits: best of short trials that all threads run together. Best, not median: a limit
// that a disturbance lowered would flatter everything measured against it. Knows the kernel tables, whose
// probes and single-token products it times, and no layer.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/buffer.h"
#include "base/cpu.h"
#include "kernels/kernel.h"
#include "swiglu/machine.hpp"

namespace swiglu {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::PeakProbe;
using kernels::Product;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Runs work(part) for one part per thread, and returns the seconds it took. Sleeping workers are woken first.
double timed(ThreadPool& pool, const std::function<void(std::int64_t)>& work) {
  const Runner runner = pool.runner();
  runner.run(runner.ctx, pool.threads(), [](void*, std::int64_t) {}, nullptr);
  const auto start = Clock::now();
  runner.run(
      runner.ctx, pool.threads(),
      [](void* arg, std::int64_t part) { (*static_cast<const std::function<void(std::int64_t)>*>(arg))(part); },
      const_cast<std::function<void(std::int64_t)>*>(&work));
  return seconds_since(start);
}

// Random bf16 numbers of ordinary size (0.008 to 0.12, either sign); pairs of them are ordinary floats.
void fill(std::byte* at, std::int64_t bytes, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  for (std::int64_t i = 0; i < bytes; i += 8) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t mixed = state ^ (state >> 29);
    const std::uint64_t values = (mixed & 0x81ff81ff81ff81ffU) | 0x3c003c003c003c00U;
    std::memcpy(at + i, &values, 8);
  }
}

// A single token's products over [at, at + bytes), as the layer calls them: the kernels' own access pattern.
void multiply_token(const kernels::Table& table, Product product, const std::byte* activations, const std::byte* at,
                    std::int64_t bytes) {
  constexpr std::int64_t kStepBytes = 128;
  constexpr std::int64_t kSteps = 2048;  // a gate/up piece of Llama 3 8B
  const PrefetchPolicy fetch = weights_prefetch(1);
  alignas(64) float sum[kernels::kPanel];
  const kernels::Matmul matmul = table.product[static_cast<int>(product)].matmul[1];
  const FloatMode mode(FloatMode::kFlush);
  for (std::int64_t done = 0; done < bytes; done += kSteps * kStepBytes) {
    const std::byte* piece = at + done;
    matmul({activations, piece, sum, kSteps, false,
            kernels::stream_ahead(at, done, bytes, kStepBytes, fetch.far, fetch.pages_log2, fetch.near_by)});
  }
}
constexpr std::int64_t kActivationBytes = std::int64_t{2048} * 2 * 4;  // a piece's, as floats, two k a step

std::int64_t memory_wanted(int threads, std::int64_t at_most) {
  const std::int64_t l3 = describe_machine().l3_bytes;
  std::int64_t bytes = std::max(512 * kMiB, 2 * l3);
  if (const std::int64_t available = available_memory(); available > 0) bytes = std::min(bytes, available / 4);
  bytes = std::max(std::min(bytes, at_most), 64 * kMiB);
  return std::max(bytes / threads / kMiB, std::int64_t{1}) * kMiB * threads;  // whole MiB for each thread
}

// One peak, in trials of a few milliseconds.
class Peak {
 public:
  Peak() = default;
  explicit Peak(const PeakProbe& probe) : probe_(probe) {
    if (probe.run == nullptr) return;
    constexpr std::int64_t kFirst = 1 << 12;
    constexpr double kTrialSeconds = 4e-3;
    probe.run(kFirst);
    const auto start = Clock::now();
    probe.run(kFirst);
    rounds_ =
        std::max(static_cast<std::int64_t>(kFirst * kTrialSeconds / std::max(seconds_since(start), 1e-7)), kFirst);
  }
  // In units of 1e9 operations a second.
  [[nodiscard]] double measure(ThreadPool& pool) const {
    if (probe_.run == nullptr) return 0;
    std::atomic<float> sink{0};
    double best = 0;
    for (int trial = 0; trial < 2; ++trial) {
      const double seconds = timed(pool, [&](std::int64_t) { sink.store(probe_.run(rounds_)); });
      const auto operations = static_cast<double>(rounds_ * probe_.operations_per_round * pool.threads());
      best = std::max(best, 1e-9 * operations / seconds);
    }
    return best;
  }

 private:
  PeakProbe probe_{nullptr, 0};
  std::int64_t rounds_ = 0;
};

}  // namespace

struct LimitProbe::Impl {
  // The lists are filled together: how pattern i reads, and what it is called and reached.
  ThreadPool& pool;
  const kernels::Table& table;
  std::int64_t part_bytes;
  Buffer memory;
  Buffer activations{kActivationBytes};
  std::vector<std::function<void(const std::byte* at, std::int64_t bytes)>> readers;
  std::vector<Pattern> patterns;
  std::size_t next = 0;  // the pattern whose turn it is
  Peak fma, bf16_dot, int8_dot, int8_vnni;

  Impl(ThreadPool& pool_in, Isa isa, std::int64_t at_most)
      : pool(pool_in), table(*kernels::find_table(name_of(isa))),
        part_bytes(memory_wanted(pool.threads(), at_most) / pool.threads()), memory(part_bytes * pool.threads()),
        fma(table.probes.fma), bf16_dot(dot_table(isa).probes.bf16_dot), int8_dot(table.probes.int8_dot) {
    if (__builtin_cpu_supports("avx512vnni") != 0) int8_vnni = Peak(table.probes.int8_vnni);
    timed(pool, [&](std::int64_t i) { fill(part(i), part_bytes, static_cast<std::uint64_t>(i) + 1); });
    fill(activations.data(), activations.size(), 0);
    for (const kernels::ReadProbe& probe : table.probes.read) {
      add(probe.name,
          [run = probe.run](const std::byte* at, std::int64_t bytes) { static_cast<void>(run(at, bytes)); });
    }
    add("one token's f32 products", [this](const std::byte* at, std::int64_t bytes) {
      multiply_token(table, Product::f32_f32, activations.data(), at, bytes);
    });
    add("one token's bf16 products", [this](const std::byte* at, std::int64_t bytes) {
      multiply_token(table, Product::bf16_bf16, activations.data(), at, bytes);
    });
    for (int time = 0; time < 2; ++time) {
      for (std::size_t i = 0; i < patterns.size(); ++i) read(i);
    }
  }

  static const kernels::Table& dot_table(Isa isa) {
    const bool same_vectors = isa == Isa::avx512 && cpu_has(Isa::avx512bf16);
    return *kernels::find_table(name_of(same_vectors ? Isa::avx512bf16 : isa));
  }
  void add(const char* name, std::function<void(const std::byte*, std::int64_t)> reader) {
    readers.push_back(std::move(reader));
    patterns.push_back({name, 0, 0});
  }
  [[nodiscard]] std::byte* part(std::int64_t i) const { return memory.data() + i * part_bytes; }

  double read(std::size_t pattern) {
    const double seconds = timed(pool, [&](std::int64_t i) { readers[pattern](part(i), part_bytes); });
    Pattern& here = patterns[pattern];
    here.latest_gb_per_s = 1e-9 * static_cast<double>(memory.size()) / seconds;
    here.best_gb_per_s = std::max(here.best_gb_per_s, here.latest_gb_per_s);
    return here.latest_gb_per_s;
  }

  // The two that were best lately, and one more in turn, so that a change of order is noticed. What reached
  // less than half of the best (the scalar tier's products do) waits for something else than memory.
  void read_best(Limits& limits) {
    std::vector<std::size_t> order(patterns.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::partial_sort(order.begin(), order.begin() + 2, order.end(), [&](std::size_t a, std::size_t b) {
      return patterns[a].latest_gb_per_s > patterns[b].latest_gb_per_s;
    });
    const double enough = patterns[order[0]].latest_gb_per_s / 2;
    for (std::size_t tried = 0; tried < patterns.size(); ++tried, next = (next + 1) % patterns.size()) {
      if (next != order[0] && next != order[1] && patterns[next].best_gb_per_s >= enough) break;
    }
    for (const std::size_t pattern : {order[0], order[1], next}) {
      const double rate = read(pattern);
      if (rate <= limits.read_gb_per_s) continue;
      limits.read_gb_per_s = rate;
      limits.read_pattern = patterns[pattern].name;
    }
    next = (next + 1) % patterns.size();
  }
};

LimitProbe::LimitProbe(ThreadPool& pool, Isa isa, std::int64_t at_most)
    : impl_(std::make_unique<Impl>(pool, resolve_isa(isa), at_most)) {}
LimitProbe::LimitProbe(LimitProbe&&) noexcept = default;
LimitProbe& LimitProbe::operator=(LimitProbe&&) noexcept = default;
LimitProbe::~LimitProbe() = default;

Limits LimitProbe::sample() {
  Limits limits;
  impl_->read_best(limits);
  limits.fma_gflops = impl_->fma.measure(impl_->pool);
  limits.bf16_dot_gflops = impl_->bf16_dot.measure(impl_->pool);
  limits.int8_dot_gops = std::max(impl_->int8_dot.measure(impl_->pool), impl_->int8_vnni.measure(impl_->pool));
  return limits;
}

std::span<const LimitProbe::Pattern> LimitProbe::patterns() const noexcept { return impl_->patterns; }
std::int64_t LimitProbe::memory_bytes() const noexcept { return impl_->memory.size(); }
bool LimitProbe::beyond_caches() const noexcept { return impl_->memory.size() > describe_machine().l3_bytes; }

Limits best_of(const Limits& a, const Limits& b) {
  Limits best = a.read_gb_per_s >= b.read_gb_per_s ? a : b;
  best.fma_gflops = std::max(a.fma_gflops, b.fma_gflops);
  best.bf16_dot_gflops = std::max(a.bf16_dot_gflops, b.bf16_dot_gflops);
  best.int8_dot_gops = std::max(a.int8_dot_gops, b.int8_dot_gops);
  return best;
}

Limits measure_limits(ThreadPool& pool, Isa isa, double seconds) {
  const auto start = Clock::now();
  LimitProbe probe(pool, isa);
  Limits best = probe.sample();
  while (seconds_since(start) < seconds) best = best_of(best, probe.sample());
  return best;
}

}  // namespace swiglu
