// The measurements of `swiglu bench`: packed copies for each arithmetic and instruction set, one in each storage,
// run in turns on each number of threads beside limits of those threads.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "bench.h"
#include "checks.h"
#include "neighbours.h"
#include "report.h"
#include "storage.h"

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

/// A layer as it was asked for.
struct Packed {
  Storage storage;
  FeedForward layer;
};

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
    report_.dtype = name_of(dtypes_of(layer.source).front());
    h_ = activations(*std::max_element(options_.tokens.begin(), options_.tokens.end()), report_.config.dim);
    const std::optional<Neighbours> neighbours = start_neighbours();
    {
      ThreadPool pool(most_threads_);
      meter_.label("packing");
      const Compute first = options_.computes.front();
      report_.loads =
          measure_loads(layer, pool, packing(first, options_.isas.front()), storages_of(options_, layer.source, first));
      for (LoadReport& load : report_.loads) {
        if (neighbours && load.peak_bytes > 0) load.peak_bytes -= neighbours->memory_bytes();
      }
    }
    rows_ = static_cast<std::int64_t>(options_.computes.size() * options_.isas.size() * threads_.size() *
                                      options_.tokens.size());
    for (const Compute compute : options_.computes) {
      for (const Isa isa : options_.isas) measure(layer.source, packing(compute, isa));
    }
    if (neighbours) report_.neighbours_gb_per_s = neighbours->gb_per_s();
    note_caches();
  }

 private:
  void note(std::string text) {
    const auto& notes = report_.notes;
    if (std::find(notes.begin(), notes.end(), text) == notes.end()) report_.notes.push_back(std::move(text));
  }

  [[nodiscard]] Options packing(Compute compute, Isa isa) {
    Options options;
    options.compute = compute;
    options.isa = isa;
    options.progress = Meter::callback;
    options.progress_ctx = &meter_;
    return options;
  }

  /// They read from now on, as long as what is returned lives.
  std::optional<Neighbours> start_neighbours() {
    report_.neighbours = options_.neighbours;
    if (options_.neighbours == 0) return {};
    if (most_threads_ + options_.neighbours > report_.machine.cpus) {
      note(fmt::format("{} and {} share {}: the neighbours take more than bandwidth away",
                       plural(most_threads_, "thread"), plural(options_.neighbours, "neighbour"),
                       plural(report_.machine.cpus, "CPU")));
    }
    meter_.label("starting neighbours");
    return std::optional<Neighbours>(std::in_place, options_.neighbours, report_.machine.l3_bytes);
  }

  [[nodiscard]] bool fits(const LayerSource& source, Compute compute) const {
    const auto available = static_cast<double>(available_memory());
    return available <= 0 || bytes_needed(packed_bytes(source, compute), options_, source.config.dim) <= available;
  }

  /// Storages that differ are held at once and take turns; where memory is too short, one after another.
  void measure(const LayerSource& source, Options options) {
    SwitchRunner runner;
    ThreadPool all(most_threads_);
    std::vector<Packed> layers;
    const Compute compute = options.compute;
    for (const Storage storage : storages_of(options_, source, compute)) {
      if (!layers.empty() && !fits(source, compute)) {
        note("too little memory for two packed copies at once: storages were measured one after another");
        measure_layers(layers, source, options, runner);
        layers.clear();
      }
      options.storage = storage;
      runner.use(all.runner());
      meter_.label("packing");
      FeedForward layer(source, runner.runner(), options);
      if (std::string text = packed_anew(source, layer.info()); !text.empty()) note(std::move(text));
      if (is_new(layer.info(), layers)) layers.push_back({storage, std::move(layer)});
    }
    measure_layers(layers, source, options, runner);
  }

  /// Not measured yet, nor about to be: automatic may have been one of the others.
  [[nodiscard]] bool is_new(const FeedForwardInfo& info, const std::vector<Packed>& layers) const {
    const auto same = [&info](const FeedForwardInfo& other) {
      return other.compute == info.compute && other.isa == info.isa && storage_of(other) == storage_of(info);
    };
    return std::none_of(layers.begin(), layers.end(), [&](const Packed& p) { return same(p.layer.info()); }) &&
           std::none_of(report_.sets.begin(), report_.sets.end(), [&](const BenchSet& set) { return same(set.layer); });
  }

  void measure_layers(const std::vector<Packed>& layers, const LayerSource& source, Options options,
                      SwitchRunner& runner) {
    if (layers.empty()) return;
    for (const int threads : threads_) {
      ThreadPool pool(threads);
      runner.use(pool.runner());
      measure_sets(layers, pool);
    }
    ThreadPool all(most_threads_);
    runner.use(all.runner());
    for (const Packed& packed : layers) {
      options.compute = packed.layer.info().compute;
      const bool compact = !is_plain(packed.layer.info()) && all_bf16(source, options.compute);
      options.storage = compact ? Storage::compact : packed.storage;  // a packed file's own is automatic too
      measure_denormals(packed.layer, source, options, runner.runner());
    }
  }

  /// A set for each layer, on the threads of `pool`.
  void measure_sets(const std::vector<Packed>& layers, ThreadPool& pool) {
    constexpr double kLongestCall = 4;  // seconds
    std::vector<BenchSet> sets(layers.size());
    std::vector<const FeedForward*> turns;
    std::int64_t largest = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      turns.push_back(&layers[i].layer);
      sets[i].threads = pool.threads();
      sets[i].layer = layers[i].layer.info();
      largest = std::max(largest, sets[i].layer.packed_bytes);
    }
    meter_.label(fmt::format("measuring the limits of {}", plural(pool.threads(), "thread")));
    meter_.update(row_, rows_);
    // The caches may hold a small layer whatever the probe reads: no need to read much.
    const bool small = largest <= report_.machine.l3_bytes;
    LimitProbe probe(pool, sets.front().layer.isa, small ? largest : INT64_MAX);
    for (const std::int64_t tokens : options_.tokens) {
      meter_.label(fmt::format("timing {} on {}", plural(tokens, "token"), plural(pool.threads(), "thread")));
      meter_.update(row_++, rows_);
      const bool long_calls = std::any_of(sets.begin(), sets.end(), [&](const BenchSet& set) {
        return expected_seconds(set.rows, tokens) > kLongestCall;
      });
      if (long_calls) {
        for (BenchSet& set : sets) set.skipped.push_back(tokens);
        continue;
      }
      std::vector<SpeedRow> rows = measure_rows(turns, probe, h_, tokens);
      for (std::size_t i = 0; i < sets.size(); ++i) {
        for (const Limits& limits : rows[i].limits) sets[i].limits = best_of(sets[i].limits, limits);
        sets[i].rows.push_back(std::move(rows[i]));
      }
    }
    compare_with_plain(sets);
    for (BenchSet& set : sets) {
      set.probe_bytes = probe.memory_bytes();
      set.probe_beyond_caches = small || probe.beyond_caches();
      set.patterns.assign(probe.patterns().begin(), probe.patterns().end());
      report_.sets.push_back(std::move(set));
    }
  }

  static void compare_with_plain(std::vector<BenchSet>& sets) {
    const auto plain = std::find_if(sets.begin(), sets.end(), [](const BenchSet& set) { return is_plain(set.layer); });
    for (auto set = sets.begin(); set != sets.end(); ++set) {
      set->over_plain.resize(set->rows.size());
      if (plain == sets.end() || set == plain) continue;
      for (std::size_t i = 0; i < set->rows.size(); ++i) {
        const auto& times = set->rows[i].round_times;
        const auto& beside = plain->rows[i].round_times;
        std::transform(times.begin(), times.end(), beside.begin(), std::back_inserter(set->over_plain[i]),
                       [](double time, double of_plain) { return time / of_plain; });
      }
    }
  }

  void measure_denormals(const FeedForward& ordinary, const LayerSource& source, const Options& options,
                         Runner runner) {
    constexpr std::int64_t kTokens[] = {1, 16};
    constexpr double kSeconds = 1.5, kLongest = 10;
    constexpr std::size_t kFewest = 3, kMost = 31;
    const double needed = 1.1 * packed_bytes(source, ordinary.info().compute);
    if (const auto free = static_cast<double>(available_memory()); free > 0 && needed > free) {
      note("too little memory for another packed copy: denormal weights left out");
      return;
    }
    meter_.label("timing denormal weights");
    const FeedForward denormal(denormal_layer(source), runner, options);
    const std::int64_t dim = source.config.dim;
    double expected = 0;
    for (const std::int64_t tokens : kTokens) {
      if (expected * static_cast<double>(tokens) > kLongest) {
        note(fmt::format("denormal weights at {} left out: they would take too long", plural(tokens, "token")));
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
    const auto l3 = static_cast<double>(report_.machine.l3_bytes);
    for (const BenchSet& set : report_.sets) {
      if (set.probe_beyond_caches) continue;
      note(fmt::format("little memory: read bandwidth was measured on {}, which the {} cache may hold",
                       format_bytes(static_cast<double>(set.probe_bytes)), format_bytes(l3)));
      break;
    }
    for (const BenchSet& set : report_.sets) {
      if (set.layer.packed_bytes > report_.machine.l3_bytes) continue;
      note(fmt::format("the {} cache may hold some of the {} of {} weights: ratios can exceed 100 %", format_bytes(l3),
                       format_bytes(static_cast<double>(set.layer.packed_bytes)), storage_of(set.layer)));
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
