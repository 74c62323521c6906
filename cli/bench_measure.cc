// The measurements of `swiglu bench`: one packed copy for each arithmetic and instruction set, run on each
// number of threads beside limits of those threads.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "bench.h"
#include "checks.h"
#include "report.h"

namespace swiglu::cli {

namespace {

/// `tokens` rows of seeded activations; beyond the first few hundred they repeat.
std::vector<float> activations(std::int64_t tokens, std::int64_t dim) {
  constexpr std::int64_t kDifferent = 512;
  std::vector<float> h = bf16_input(std::min(tokens, kDifferent) * dim);
  h.reserve(static_cast<std::size_t>(tokens * dim));
  for (std::size_t i = 0; h.size() < static_cast<std::size_t>(tokens * dim); ++i) h.push_back(h[i]);
  return h;
}

std::vector<int> thread_counts(const BenchOptions& options) {
  if (!options.threads.empty()) return options.threads;
  const int all = ThreadPool().threads();
  return all == 1 ? std::vector<int>{1} : std::vector<int>{1, all};
}

void check_isas(const BenchOptions& options) {
  const std::vector<Isa> here = available_isas();
  for (const Isa isa : options.isas) {
    if (isa == Isa::automatic || std::find(here.begin(), here.end(), isa) != here.end()) continue;
    throw Error(ErrorCode::usage, fmt::format("this machine lacks the ISA '{}'; the best it has is '{}'", name_of(isa),
                                              name_of(here.back())));
  }
}

class Bench {
 public:
  Bench(const BenchOptions& options, Meter& meter, BenchReport& report)
      : options_(options), meter_(meter), report_(report), threads_(thread_counts(options)),
        most_threads_(*std::max_element(threads_.begin(), threads_.end())) {}

  void run() {
    check_isas(options_);
    meter_.label("making weights");
    meter_.update(0, 1);
    const BenchLayer layer = open_bench_layer(options_, report_.notes);
    report_.name = layer.name;
    report_.made_up = layer.made_up;
    report_.config = layer.source.config;
    report_.dtype = name_of(layer.source.gate->dtype());
    {
      ThreadPool pool(most_threads_);
      meter_.label("packing");
      report_.load = measure_load(layer, pool, packing(options_.computes.front(), options_.isas.front()));
    }
    h_ = activations(*std::max_element(options_.tokens.begin(), options_.tokens.end()), report_.config.dim);
    rows_ = static_cast<std::int64_t>(options_.computes.size() * options_.isas.size() * threads_.size() *
                                      options_.tokens.size());
    for (const Compute compute : options_.computes) {
      for (const Isa isa : options_.isas) measure(layer.source, packing(compute, isa));
    }
    note_caches();
  }

 private:
  [[nodiscard]] Options packing(Compute compute, Isa isa) {
    Options options;
    options.compute = compute;
    options.isa = isa;
    options.progress = Meter::callback;
    options.progress_ctx = &meter_;
    return options;
  }

  void measure(const LayerSource& source, const Options& options) {
    SwitchRunner runner;
    ThreadPool all(most_threads_);
    runner.use(all.runner());
    meter_.label("packing");
    const FeedForward layer(source, runner.runner(), options);
    for (const BenchSet& set : report_.sets) {  // automatic may have been one of the others
      if (set.layer.compute == layer.info().compute && set.layer.isa == layer.info().isa) return;
    }
    for (const int threads : threads_) {
      ThreadPool pool(threads);
      runner.use(pool.runner());
      report_.sets.push_back(measure_set(layer, pool));
    }
    runner.use(all.runner());
    measure_denormals(layer, source, options, runner.runner());
  }

  [[nodiscard]] BenchSet measure_set(const FeedForward& layer, ThreadPool& pool) {
    constexpr double kLongestCall = 4;  // seconds
    BenchSet set;
    set.threads = pool.threads();
    set.layer = layer.info();
    meter_.label(fmt::format("measuring the limits of {}", plural(set.threads, "thread")));
    meter_.update(row_, rows_);
    // The caches may hold a small layer whatever the probe reads: no need to read much.
    const bool small = set.layer.packed_bytes <= report_.machine.l3_bytes;
    LimitProbe probe(pool, set.layer.isa, small ? set.layer.packed_bytes : INT64_MAX);
    set.probe_bytes = probe.memory_bytes();
    set.probe_beyond_caches = small || probe.beyond_caches();
    for (const std::int64_t tokens : options_.tokens) {
      meter_.label(fmt::format("timing {} on {}", plural(tokens, "token"), plural(set.threads, "thread")));
      meter_.update(row_++, rows_);
      if (expected_seconds(set.rows, tokens) > kLongestCall) {
        set.skipped.push_back(tokens);
        continue;
      }
      set.rows.push_back(measure_row(layer, probe, h_, tokens));
      for (const Limits& limits : set.rows.back().limits) set.limits = best_of(set.limits, limits);
    }
    set.patterns.assign(probe.patterns().begin(), probe.patterns().end());
    return set;
  }

  void measure_denormals(const FeedForward& ordinary, const LayerSource& source, const Options& options,
                         Runner runner) {
    constexpr std::int64_t kTokens[] = {1, 16};
    constexpr double kSeconds = 1.5, kLongest = 10;
    constexpr std::size_t kFewest = 3, kMost = 31;
    const double needed = 1.1 * packed_bytes(source, ordinary.info().compute);
    if (const auto free = static_cast<double>(available_memory()); free > 0 && needed > free) {
      report_.notes.emplace_back("too little memory for a second packed copy: denormal weights left out");
      return;
    }
    meter_.label("timing denormal weights");
    const FeedForward denormal(denormal_layer(source), runner, options);
    const std::int64_t dim = source.config.dim;
    double expected = 0;
    for (const std::int64_t tokens : kTokens) {
      if (expected * static_cast<double>(tokens) > kLongest) {
        report_.notes.push_back(
            fmt::format("denormal weights at {} left out: they would take too long", plural(tokens, "token")));
        continue;
      }
      const std::vector<float> h = activations(tokens, dim);
      std::vector<float> out(h.size());
      const Memory workspace(ordinary.workspace_bytes(tokens));
      const auto once = [&](const FeedForward& layer) {
        const Stopwatch watch;
        layer.block(view_f32(h.data(), tokens, dim), view_f32(out.data(), tokens, dim), workspace.span());
        return watch.seconds();
      };
      DenormalRow row{most_threads_, ordinary.info(), tokens, {}};
      once(ordinary);
      expected = once(denormal) / static_cast<double>(tokens);
      const Stopwatch whole;
      while (row.ratios.size() < kFewest || (row.ratios.size() < kMost && whole.seconds() < kSeconds)) {
        const double usual = once(ordinary);
        row.ratios.push_back(once(denormal) / usual);
      }
      report_.denormals.push_back(std::move(row));
    }
  }

  void note_caches() {
    for (const BenchSet& set : report_.sets) {
      if (!set.probe_beyond_caches) {
        report_.notes.push_back(
            fmt::format("little memory: read bandwidth was measured on {}, which the {} cache may hold",
                        format_bytes(static_cast<double>(set.probe_bytes)),
                        format_bytes(static_cast<double>(report_.machine.l3_bytes))));
        break;
      }
    }
    for (const BenchSet& set : report_.sets) {
      if (set.layer.packed_bytes > report_.machine.l3_bytes) continue;
      report_.notes.push_back(fmt::format("the {} cache may hold some of these weights: ratios can exceed 100 %",
                                          format_bytes(static_cast<double>(report_.machine.l3_bytes))));
      break;
    }
  }

  const BenchOptions& options_;
  Meter& meter_;
  BenchReport& report_;
  const std::vector<int> threads_;
  const int most_threads_;
  std::vector<float> h_;
  std::int64_t row_ = 0, rows_ = 0;
};

}  // namespace

BenchReport measure_bench(const BenchOptions& options, Meter& meter) {
  const Stopwatch whole;
  BenchReport report;
  report.machine = describe_machine();
  Bench(options, meter, report).run();
  report.seconds = whole.seconds();
  return report;
}

}  // namespace swiglu::cli
