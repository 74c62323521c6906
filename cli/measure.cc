// Timing a layer beside the machine's limits; see measure.h.
#include "measure.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "elements.h"
#include "inputs.h"
#include "progress.h"

namespace swiglu::cli {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// The value at `part` (0 … 1) of the way through the sorted samples.
double quantile(std::vector<double>& samples, double part) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const double at = part * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (at - static_cast<double>(below)) * (samples[above] - samples[below]);
}

}  // namespace

Memory::Memory(std::size_t bytes) : bytes_(bytes), data_(nullptr) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (data_ == nullptr && bytes > 0) throw std::bad_alloc();
  if (alignment == kHugePage) madvise(data_, rounded, MADV_HUGEPAGE);
}
Memory::~Memory() { std::free(data_); }
Memory::Memory(Memory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, 0)), data_(std::exchange(other.data_, nullptr)) {}

std::vector<float> bf16_input(std::int64_t count) {
  constexpr std::uint64_t kSeed = 8;
  const std::vector<float> normal = normal_input(count, kSeed);
  const std::vector<double> doubles(normal.begin(), normal.end());
  const auto rounded = to_doubles(DType::bf16, from_doubles(DType::bf16, doubles));
  return {rounded.begin(), rounded.end()};
}

double median(std::vector<double> samples) { return quantile(samples, 0.5); }

double spread(std::vector<double> samples) {
  const double upper = quantile(samples, 0.75), lower = quantile(samples, 0.25), middle = quantile(samples, 0.5);
  return middle > 0 ? (upper - lower) / 2 / middle : 0;
}

double peak_gflops(const Limits& limits, Compute compute) {
  return compute == Compute::bf16 ? std::max(limits.fma_gflops, limits.bf16_dot_gflops) : limits.fma_gflops;
}

Work work_of(const FeedForwardInfo& layer, std::int64_t tokens) {
  return {6.0 * static_cast<double>(tokens) * static_cast<double>(layer.config.dim) *
              static_cast<double>(layer.config.hidden),
          static_cast<double>(layer.packed_bytes)};
}

SpeedRow measure_row(const FeedForward& layer, LimitProbe& probe, std::span<const float> h, std::int64_t tokens,
                     const RowBudget& budget) {
  constexpr double kRoundSeconds = 0.12;  // about what a sample of the limits takes
  constexpr std::size_t kMostCalls = 50;  // a round
  constexpr double kWarmSeconds = 0.05;
  const std::int64_t dim = layer.info().config.dim;
  std::vector<float> out(static_cast<std::size_t>(tokens * dim));
  const Memory workspace(layer.workspace_bytes(tokens));
  const auto once = [&] {
    const Stopwatch watch;
    layer.block(view_f32(h.data(), tokens, dim), view_f32(out.data(), tokens, dim), workspace.span());
    return watch.seconds();
  };
  SpeedRow row;
  row.tokens = tokens;
  row.work = work_of(layer.info(), tokens);
  const double first = once();  // warms caches, pages and workers
  for (const Stopwatch warming; warming.seconds() < kWarmSeconds;) once();
  const auto calls =
      static_cast<std::size_t>(std::clamp(kRoundSeconds / std::max(first, 1e-6), 1.0, static_cast<double>(kMostCalls)));
  const std::size_t rounds = std::min<std::size_t>(budget.rounds, first > 5 ? 1 : first > 1 ? 3 : budget.rounds);
  const Stopwatch whole;
  row.limits.push_back(probe.sample());
  double bandwidth_rounds = 0;
  while (row.ratios.size() < rounds || whole.seconds() < budget.seconds) {
    if (row.limits.size() > 1 && first < kRoundSeconds) once();  // the probe has emptied the caches
    std::vector<double> round(calls);
    for (double& sample : round) sample = once();
    row.samples.insert(row.samples.end(), round.begin(), round.end());
    row.limits.push_back(probe.sample());
    const Limits beside = best_of(row.limits[row.limits.size() - 2], row.limits.back());
    const double memory = row.work.bytes / (beside.read_gb_per_s * 1e9);
    const double arithmetic = row.work.flops / (peak_gflops(beside, layer.info().compute) * 1e9);
    row.bound_times.push_back(std::max(memory, arithmetic));
    row.ratios.push_back(row.bound_times.back() / median(round));
    bandwidth_rounds += memory > arithmetic ? 1 : 0;
  }
  row.bandwidth_bound = 2 * bandwidth_rounds > static_cast<double>(row.ratios.size());
  return row;
}

double expected_seconds(std::span<const SpeedRow> rows, std::int64_t tokens) {
  if (rows.empty()) return 0;
  const SpeedRow& last = rows.back();
  // Where the memory was the limit, the arithmetic of more tokens may still be hidden behind it.
  const double hidden = last.bandwidth_bound ? last.roofline_ratio() * 8 : 1;
  const double more = static_cast<double>(tokens) / static_cast<double>(last.tokens);
  return last.time() * std::max(more / std::max(hidden, 1.0), 1.0);
}

std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace swiglu::cli
