// One benchmark per entry of the kernel tables: a panel's matmul streaming through weights that no cache
// holds, on one thread. Compare rows of one run with each other and with the probes of the same table;
// times of different runs mean nothing on a shared machine.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/cpu.h"
#include "kernels/kernel.h"

namespace {

using swiglu::kernels::kPanel;
using swiglu::kernels::Product;

constexpr const char* kProductNames[] = {"f32_f32",   "f32_bf16",    "f32_f16",     "bf16_bf16",
                                         "bf16_wide", "f32_compact", "bf16_compact"};
constexpr std::int64_t kWeightBytes = std::int64_t{512} << 20;

// Zeros would do for the arithmetic, but not for the memory: untouched pages are all one page.
std::byte* weights() {
  static const swiglu::Buffer kMemory(kWeightBytes);
  static const bool kTouched = [] {
    std::uint64_t state = 1;
    for (std::int64_t i = 0; i < kWeightBytes; i += 2) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      // bf16 and half numbers of ordinary size, of either sign
      kMemory.data()[i] = static_cast<std::byte>(state >> 33);
      kMemory.data()[i + 1] = static_cast<std::byte>((state >> 56 & 0x81U) | 0x3cU);
    }
    return true;
  }();
  static_cast<void>(kTouched);
  return kMemory.data();
}

void bench_matmul(benchmark::State& state, swiglu::Isa isa, int product, int rows) {
  const auto& kernels = swiglu::kernels::find_table(swiglu::name_of(isa))->product[product];
  const std::int64_t step_bytes = swiglu::kernels::step_bytes(static_cast<Product>(product));
  const std::int64_t k_per_step = swiglu::kernels::k_per_step(static_cast<Product>(product));
  constexpr std::int64_t kSteps = 2048;
  const std::vector<float> activations(static_cast<std::size_t>(kSteps * 2 * rows), 0.5F);
  std::vector<float> sum(static_cast<std::size_t>(rows * kPanel));
  // Any codes: these weights are the same whatever they are.
  const unsigned char table[16] = {};
  const swiglu::kernels::Codes codes{table, &swiglu::kernels::kNoPatch, 0};
  const swiglu::PrefetchPolicy fetch = swiglu::weights_prefetch(rows);
  const std::int64_t piece = kSteps * step_bytes;
  std::int64_t at = 0;
  for (auto _ : state) {
    const std::byte* here = weights() + at;
    kernels.matmul[rows]({activations.data(), here, sum.data(), kSteps, false,
                          swiglu::kernels::stream_ahead(weights(), at, kWeightBytes,
                                                        swiglu::kernels::counted_bytes(static_cast<Product>(product)),
                                                        fetch.far, fetch.pages_log2, fetch.near_by),
                          nullptr, codes});
    benchmark::DoNotOptimize(sum.data());
    at = at + 2 * piece > kWeightBytes ? 0 : at + piece;
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(1e-9 * calls * static_cast<double>(piece), benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(
      1e-9 * calls * 2.0 * static_cast<double>(kSteps * k_per_step * rows * kPanel), benchmark::Counter::kIsRate);
}

void bench_read(benchmark::State& state, const swiglu::kernels::ReadProbe& probe) {
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  std::int64_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(probe.run(weights() + at, kBytes));
    at = (at + kBytes) % kWeightBytes;
  }
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(state.iterations()) * static_cast<double>(kBytes), benchmark::Counter::kIsRate);
}

void bench_peak(benchmark::State& state, const swiglu::kernels::PeakProbe& probe) {
  constexpr std::int64_t kRounds = 1 << 16;
  for (auto _ : state) benchmark::DoNotOptimize(probe.run(kRounds));
  state.counters["GFLOP/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(state.iterations()) * static_cast<double>(kRounds * probe.operations_per_round),
      benchmark::Counter::kIsRate);
}

}  // namespace

int main(int argc, char** argv) {
  for (const swiglu::Isa isa : swiglu::available_isas()) {
    const auto& table = *swiglu::kernels::find_table(swiglu::name_of(isa));
    const auto& probes = table.probes;
    for (const auto& probe : probes.read) {
      benchmark::RegisterBenchmark(fmt::format("{}/limit_read: {}", swiglu::name_of(isa), probe.name).c_str(),
                                   [&probe](benchmark::State& s) { bench_read(s, probe); });
    }
    const std::pair<const char*, const swiglu::kernels::PeakProbe*> peaks[] = {
        {"fma", &probes.fma}, {"bf16_dot", &probes.bf16_dot}, {"int8_dot", &probes.int8_dot}};
    for (const auto& [name, probe] : peaks) {
      if (probe->run == nullptr) continue;
      benchmark::RegisterBenchmark(fmt::format("{}/limit_{}", swiglu::name_of(isa), name).c_str(),
                                   [peak = probe](benchmark::State& s) { bench_peak(s, *peak); });
    }
    for (int p = 0; p < swiglu::kernels::kProducts; ++p) {
      const int most = table.product[p].max_rows;
      for (int rows = 1; rows <= most; rows = rows == most ? most + 1 : std::min(2 * rows, most)) {
        const std::string name = fmt::format("{}/{}_{}x{}x{}", swiglu::name_of(isa), kProductNames[p], rows, kPanel,
                                             swiglu::kernels::k_per_step(static_cast<Product>(p)));
        benchmark::RegisterBenchmark(name.c_str(),
                                     [isa, p, rows](benchmark::State& s) { bench_matmul(s, isa, p, rows); });
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  weights();  // made before anything is timed
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
