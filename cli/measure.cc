// Timing a layer beside the machine's limits; see measure.h.
#include "measure.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
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

constexpr double kRoundSeconds = 0.12;  // of one layer's calls: about what a sample of the limits takes

/// The calls of one layer, and what they told so far.
struct Runs {
  Runs(const FeedForward& of, std::span<const float> input, std::span<float> output, std::span<std::byte> space,
       std::int64_t tokens)
      : layer(of), h(input), out(output), workspace(space) {
    constexpr double kMostCalls = 50;  // a round
    constexpr double kWarmSeconds = 0.05;
    row.tokens = tokens;
    row.work = work_of(layer.info(), tokens);
    first = once();  // warms caches, pages and workers
    for (const Stopwatch warming; warming.seconds() < kWarmSeconds;) once();
    calls = static_cast<std::size_t>(std::clamp(kRoundSeconds / std::max(first, 1e-6), 1.0, kMostCalls));
  }

  double once() {
    const std::int64_t dim = layer.info().config.dim;
    const Stopwatch watch;
    layer.block(view_f32(h.data(), row.tokens, dim), view_f32(out.data(), row.tokens, dim), workspace);
    return watch.seconds();
  }

  /// `cold`: the probe or another layer has emptied the caches since.
  void round(bool cold) {
    if (cold && first < kRoundSeconds) once();
    std::vector<double> times(calls);
    for (double& time : times) time = once();
    row.samples.insert(row.samples.end(), times.begin(), times.end());
    row.round_times.push_back(median(std::move(times)));
  }

  /// The latest round with the limits beside it.
  void compare(const Limits& beside) {
    const double memory = row.work.bytes / (beside.read_gb_per_s * 1e9);
    const double arithmetic = row.work.flops / (peak_gflops(beside, layer.info().compute) * 1e9);
    row.bound_times.push_back(std::max(memory, arithmetic));
    row.ratios.push_back(row.bound_times.back() / row.round_times.back());
    bandwidth_rounds += memory > arithmetic ? 1 : 0;
  }

  const FeedForward& layer;
  std::span<const float> h;
  std::span<float> out;
  std::span<std::byte> workspace;
  SpeedRow row;
  double first = 0;  ///< seconds of the first call
  std::size_t calls = 1, bandwidth_rounds = 0;
};

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

std::vector<SpeedRow> measure_rows(std::span<const FeedForward* const> layers, LimitProbe& probe,
                                   std::span<const float> h, std::int64_t tokens, const RowBudget& budget) {
  std::size_t space = 0;
  for (const FeedForward* layer : layers) space = std::max(space, layer->workspace_bytes(tokens));
  const Memory workspace(space);
  std::vector<float> out(static_cast<std::size_t>(tokens * layers.front()->info().config.dim));
  std::vector<Runs> runs;
  runs.reserve(layers.size());
  double longest = 0;
  for (const FeedForward* layer : layers) {
    longest = std::max(longest, runs.emplace_back(*layer, h, out, workspace.span(), tokens).first);
  }
  const std::size_t rounds = std::min<std::size_t>(budget.rounds, longest > 5 ? 1 : longest > 1 ? 3 : budget.rounds);
  const Stopwatch whole;
  std::vector<Limits> limits = {probe.sample()};
  for (std::size_t done = 0; done < rounds || whole.seconds() < budget.seconds; ++done) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      runs[done % 2 == 0 ? i : runs.size() - 1 - i].round(limits.size() > 1 || runs.size() > 1);
    }
    limits.push_back(probe.sample());
    for (Runs& run : runs) run.compare(best_of(limits[limits.size() - 2], limits.back()));
  }
  std::vector<SpeedRow> rows;
  rows.reserve(runs.size());
  for (Runs& run : runs) {
    run.row.limits = limits;
    run.row.bandwidth_bound = 2 * run.bandwidth_rounds > run.row.ratios.size();
    rows.push_back(std::move(run.row));
  }
  return rows;
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

bool forget_peak_memory() {
  std::ofstream file("/proc/self/clear_refs");
  return static_cast<bool>(file << "5" << std::flush);
}

}  // namespace swiglu::cli
