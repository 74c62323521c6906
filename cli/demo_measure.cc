// The measurements of `swiglu demo`. Weights are made as they are read, so nothing but the packed copy
// is ever held; inputs are bf16 numbers, so that Meta's arithmetic starts from the same values.
// Meant to end within a minute on two cores, and on slow machines by leaving out what takes too long.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "checks.h"
#include "demo.h"
#include "elements.h"
#include "inputs.h"
#include "swiglu/files.hpp"
#include "swiglu/reference.hpp"

namespace swiglu::cli {

namespace {

constexpr std::uint64_t kSeed = 8;
constexpr std::int64_t kTokenCounts[] = {1, 16, 128, 512};
constexpr std::int64_t kMostTokens = 512;

std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

/// Aligned as a workspace must be.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes)
      : bytes_((bytes + 63) / 64 * 64), data_(static_cast<std::byte*>(std::aligned_alloc(64, bytes_))) {
    if (data_ == nullptr && bytes_ > 0) throw std::bad_alloc();
  }
  ~Workspace() { std::free(data_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

std::vector<float> bf16_input(std::int64_t count) {
  const std::vector<float> normal = normal_input(count, kSeed);
  const std::vector<double> doubles(normal.begin(), normal.end());
  const auto rounded = to_doubles(DType::bf16, from_doubles(DType::bf16, doubles));
  return {rounded.begin(), rounded.end()};
}

SpeedRow measure_speed(const FeedForward& layer, std::span<const float> h, std::int64_t tokens) {
  constexpr double kSecondsPerRow = 2.5;
  constexpr std::size_t kFewest = 3, kMost = 25;
  const std::int64_t dim = layer.info().config.dim;
  std::vector<float> out(static_cast<std::size_t>(tokens * dim));
  const Workspace workspace(layer.workspace_bytes(tokens));
  const auto once = [&] {
    const Stopwatch watch;
    layer.block(view_f32(h.data(), tokens, dim), view_f32(out.data(), tokens, dim), workspace.span());
    return watch.seconds();
  };
  SpeedRow row;
  row.tokens = tokens;
  const double first = once();  // warms caches and workers; a second of them is warmth enough
  if (first > 1) row.samples.push_back(first);
  const Stopwatch whole;
  while (row.samples.size() < kFewest || (whole.seconds() < kSecondsPerRow && row.samples.size() < kMost)) {
    row.samples.push_back(once());
  }
  std::sort(row.samples.begin(), row.samples.end());
  return row;
}

/// Neighbours on a shared machine come and go, so limits are taken between the rows too, and the best
/// counts: one that was measured in a bad moment would flatter the layer.
void measure_limits_again(DemoReport& report, ThreadPool& pool) {
  constexpr double kSeconds = 0.6;
  const Limits now = measure_limits(pool, report.layer.isa, kSeconds);
  report.limits.read_gb_per_s = std::max(report.limits.read_gb_per_s, now.read_gb_per_s);
  report.limits.fma_gflops = std::max(report.limits.fma_gflops, now.fma_gflops);
  report.limits.bf16_dot_gflops = std::max(report.limits.bf16_dot_gflops, now.bf16_dot_gflops);
}

void compare_with_limits(DemoReport& report) {
  const bool pair_dots = report.layer.compute == Compute::bf16 && report.limits.bf16_dot_gflops > 0;
  report.peak_gflops = pair_dots ? report.limits.bf16_dot_gflops : report.limits.fma_gflops;
  const auto bytes = static_cast<double>(report.layer.packed_bytes);
  const FfnConfig& config = report.layer.config;
  for (SpeedRow& row : report.speed) {
    const double flops =
        6.0 * static_cast<double>(row.tokens) * static_cast<double>(config.dim) * static_cast<double>(config.hidden);
    const double arithmetic = flops / (report.peak_gflops * 1e9);
    const double memory = bytes / (report.limits.read_gb_per_s * 1e9);
    row.gflops = flops / row.median() * 1e-9;
    row.gb_per_s = bytes / row.median() * 1e-9;
    row.bandwidth_bound = memory > arithmetic;
    row.roofline_ratio = std::max(memory, arithmetic) / row.median();
  }
}

/// Sampled outputs of a few tokens against the oracle, and Meta's arithmetic on the same.
void measure_error(DemoReport& report, const LayerSource& source, const FeedForward& layer, std::span<const float> h,
                   ThreadPool& pool) {
  report.checked_tokens = 2;
  report.checked_outputs = 256;
  const std::int64_t dim = source.config.dim;
  std::vector<std::int64_t> outputs;
  outputs.reserve(static_cast<std::size_t>(report.checked_outputs));
  for (std::int64_t i = 0; i < report.checked_outputs; ++i) {
    outputs.push_back(i * dim / report.checked_outputs + i % 13);  // every residue of a panel, ascending
  }
  const Runner runner = pool.runner();
  reference::Request request;
  request.outputs = outputs;
  request.runner = &runner;
  const auto count = static_cast<std::size_t>(report.checked_tokens * dim);
  const std::vector<double> input(h.begin(), h.begin() + static_cast<std::ptrdiff_t>(count));
  const auto exact = reference::run(source, input, report.checked_tokens, request);
  request.numerics = reference::Numerics::meta;
  const auto meta = reference::run(source, input, report.checked_tokens, request);
  std::vector<float> out(count);
  run_rows(layer, h, out, 0, report.checked_tokens);
  double values = 0, errors = 0, meta_errors = 0;
  for (std::int64_t token = 0; token < report.checked_tokens; ++token) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto at = static_cast<std::size_t>(token) * outputs.size() + i;
      const double fast = static_cast<double>(out[static_cast<std::size_t>(token * dim + outputs[i])]);
      values += exact.down[at] * exact.down[at];
      errors += (fast - exact.out[at]) * (fast - exact.out[at]);
      meta_errors += (meta.out[at] - exact.out[at]) * (meta.out[at] - exact.out[at]);
    }
  }
  report.error = std::sqrt(errors / values);
  report.meta_error = std::sqrt(meta_errors / values);
}

/// The first tokens alone, together and inside larger batches, on one thread and on all, on every
/// tier but the scalar one (which takes seconds per token at this size).
void measure_bits(DemoReport& report, const LayerSource& source, const FeedForward& layer, std::span<const float> h,
                  ThreadPool& pool, Meter& meter) {
  constexpr std::int64_t kTokens = 4;
  const auto dim = source.config.dim;
  std::vector<float> expected(static_cast<std::size_t>(kTokens * dim));
  run_rows(layer, h, expected, 0, kTokens);
  ThreadPool one(1);
  report.bit_threads = {1};
  if (pool.threads() > 1) report.bit_threads.push_back(pool.threads());
  const auto check = [&](const FeedForward& other, std::int64_t batch, bool one_by_one) {
    std::vector<float> out(static_cast<std::size_t>(batch * dim));
    if (one_by_one) {
      for (std::int64_t row = 0; row < batch; ++row) run_rows(other, h, out, row, 1);
    } else {
      run_rows(other, h, out, 0, batch);
    }
    ++report.bit_runs;
    if (same_bits(expected, std::span(out).first(expected.size()))) ++report.bit_runs_equal;
  };
  const auto& skipped = report.skipped;
  for (const std::int64_t batch : kTokenCounts) {
    if (batch > kTokens && std::find(skipped.begin(), skipped.end(), batch) == skipped.end())
      check(layer, batch, false);
  }
  check(layer, kTokens, true);
  std::vector<Isa> isas = available_isas();
  for (const Isa isa : isas) {
    if (isa == Isa::scalar && layer.info().isa != Isa::scalar) continue;
    report.bit_isas.emplace_back(name_of(isa));
    meter.label(std::string("comparing bits on ") + name_of(isa));
    SwitchRunner runner;
    runner.use(pool.runner());
    Options options;
    options.isa = isa;
    options.progress = Meter::callback;
    options.progress_ctx = &meter;
    const FeedForward other(source, runner.runner(), options);
    check(other, kTokens, false);
    if (pool.threads() == 1) continue;
    runner.use(one.runner());
    check(other, kTokens, false);
  }
}

}  // namespace

DemoReport measure_demo(int threads, Meter& meter) {
  constexpr double kLongestCall = 5;  // seconds
  const Stopwatch whole;
  DemoReport report;
  report.machine = describe_machine();
  ThreadPool pool(threads);
  report.threads = pool.threads();
  const FfnConfig config = find_preset("llama-3-8b").config();
  const LayerSource source = random_layer(config, DType::bf16, kSeed);

  Options options;
  options.progress = Meter::callback;
  options.progress_ctx = &meter;
  meter.label("making and packing a Llama-3-8B layer");
  const Stopwatch packing;
  const FeedForward layer(source, pool, options);
  report.pack_seconds = packing.seconds();
  report.peak_bytes = peak_memory();
  report.layer = layer.info();

  constexpr std::int64_t kSteps = 20;
  meter.label("measuring this machine's limits");
  meter.update(1, kSteps);
  measure_limits_again(report, pool);

  const std::vector<float> h = bf16_input(kMostTokens * config.dim);
  std::int64_t step = 4;
  for (const std::int64_t tokens : kTokenCounts) {
    meter.label("timing " + std::to_string(tokens) + (tokens == 1 ? " token" : " tokens"));
    meter.update(step++, kSteps);
    // What the row before took says what this one will take at most.
    const double expected = report.speed.empty() ? 0
                                                 : report.speed.back().median() * static_cast<double>(tokens) /
                                                       static_cast<double>(report.speed.back().tokens);
    const bool after_one = !report.speed.empty() && report.speed.back().tokens == 1;  // bandwidth said little
    if (expected > kLongestCall * (after_one ? 8 : 1)) {
      report.skipped.push_back(tokens);
      continue;
    }
    report.speed.push_back(measure_speed(layer, h, tokens));
    measure_limits_again(report, pool);
  }
  compare_with_limits(report);
  meter.label("comparing with the double-precision oracle");
  meter.update(step++, kSteps);
  measure_error(report, source, layer, h, pool);
  measure_bits(report, source, layer, h, pool, meter);
  report.seconds = whole.seconds();
  return report;
}

}  // namespace swiglu::cli
