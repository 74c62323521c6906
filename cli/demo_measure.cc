// The measurements of `swiglu demo`. Weights are made as they are read, so nothing but the packed copy
// is ever held; inputs are bf16 numbers, so that Meta's arithmetic starts from the same values.
// Meant to end within a minute on two cores, and on slow machines by leaving out what takes too long.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

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
  LimitProbe probe(pool, report.layer.isa);

  const std::vector<float> h = bf16_input(kMostTokens * config.dim);
  std::int64_t step = 4;
  for (const std::int64_t tokens : kTokenCounts) {
    meter.label("timing " + std::to_string(tokens) + (tokens == 1 ? " token" : " tokens"));
    meter.update(step++, kSteps);
    if (expected_seconds(report.speed, tokens) > kLongestCall) {
      report.skipped.push_back(tokens);
      continue;
    }
    report.speed.push_back(std::move(measure_rows(std::array{&layer}, probe, h, tokens).front()));
    for (const Limits& limits : report.speed.back().limits) report.limits = best_of(report.limits, limits);
  }
  meter.label("comparing with the double-precision oracle");
  meter.update(step++, kSteps);
  measure_error(report, source, layer, h, pool);
  measure_bits(report, source, layer, h, pool, meter);
  report.seconds = whole.seconds();
  return report;
}

}  // namespace swiglu::cli
