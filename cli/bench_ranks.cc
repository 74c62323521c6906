// The measurements of bench_ranks.h. While one process runs alone, the other ranks nap.
#include "bench_ranks.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "bench.h"
#include "outputs.h"
#include "storage.h"
#include "swiglu/files.hpp"

namespace swiglu::cli {
namespace {

template <class Value>
std::pair<double, double> least_and_most(const std::vector<RankReport>& reports, const Value& value) {
  double least = 1e300, most = 0;
  for (const RankReport& report : reports) {
    least = std::min(least, value(report));
    most = std::max(most, value(report));
  }
  return {reports.empty() ? 0 : least, most};
}

/// Threads that are made while it lives may run on every CPU that the system lets this process have, though mpirun
/// may have bound it to fewer.
class AllCpus {
 public:
  AllCpus() {
    CPU_ZERO(&before_);
    bound_ = sched_getaffinity(0, sizeof before_, &before_) == 0;
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &all);
    sched_setaffinity(0, sizeof all, &all);  // without those that are not there
  }
  ~AllCpus() {
    if (bound_) sched_setaffinity(0, sizeof before_, &before_);
  }
  AllCpus(const AllCpus&) = delete;
  AllCpus& operator=(const AllCpus&) = delete;

 private:
  cpu_set_t before_{};
  bool bound_ = false;
};

}  // namespace

double RankRow::computing() const {
  return least_and_most(reports, [](const RankReport& r) { return r.compute_seconds; }).second;
}
double RankRow::unevenness() const {
  const auto [least, most] = least_and_most(reports, [](const RankReport& r) { return r.compute_seconds; });
  return most - least;
}
double RankRow::exchanging() const {
  return least_and_most(reports, [](const RankReport& r) { return r.exchange_seconds; }).first;
}

OneProcess::OneProcess(const LayerSource& source, const Options& options, int threads) {
  const AllCpus all;
  pool_ = std::make_unique<ThreadPool>(threads);
  layer_.emplace(source, *pool_, options);
}

RankRow measure_ranks(Team& team, TeamLayer& layer, const FeedForward* alone, std::span<const float> h,
                      std::int64_t tokens, double seconds) {
  constexpr double kRound = 0.15, kMostCalls = 50;
  constexpr std::size_t kFewestRounds = 6, kMostRounds = 40;
  RankRow row;
  row.tokens = tokens;
  row.work = work_of(layer.info(), tokens);
  const std::int64_t dim = layer.info().config.dim;
  std::vector<float> out(static_cast<std::size_t>(tokens * dim));
  const Memory workspace(alone == nullptr ? 0 : alone->workspace_bytes(tokens));
  const auto together = [&] {
    const Stopwatch watch;
    layer.run(0, true, view_f32(out.data(), tokens, dim));
    return watch.seconds();
  };
  const auto by_itself = [&] {
    // The calling thread works too, so it needs the freedom that its pool has.
    const AllCpus all;
    const Stopwatch watch;
    alone->block(view_f32(h.data(), tokens, dim), view_f32(out.data(), tokens, dim), workspace.span());
    return watch.seconds();
  };
  together();
  const double first = together();
  if (alone != nullptr) by_itself();
  static_cast<void>(team.report());  // forgets these calls
  const auto calls = static_cast<std::size_t>(std::clamp(kRound / std::max(first, 1e-6), 1.0, kMostCalls));
  const Stopwatch whole;
  for (std::size_t round = 0; round < kMostRounds && (round < kFewestRounds || whole.seconds() < seconds); ++round) {
    std::vector<double> shared, own;
    const auto turn = [&](bool all_ranks) {
      auto& times = all_ranks ? shared : own;
      all_ranks ? together() : by_itself();  // wakes who napped, and fills the caches
      for (std::size_t i = 0; i < calls; ++i) times.push_back(all_ranks ? together() : by_itself());
    };
    const bool ranks_first = round % 2 == 0;
    if (ranks_first) turn(true);
    if (alone != nullptr) turn(false);
    if (!ranks_first) turn(true);
    if (alone != nullptr) row.speeds.push_back(median(own) / median(shared));
    row.samples.insert(row.samples.end(), shared.begin(), shared.end());
    row.alone.insert(row.alone.end(), own.begin(), own.end());
  }
  row.reports = team.report();
  return row;
}

namespace {

LayerOrigin origin_of(const BenchOptions& options) {
  LayerOrigin origin;
  if (options.model) {
    if (options.preset || options.dim || options.dtype) {
      throw Error(ErrorCode::usage, "bench: a MODEL has its own shape and type: leave out --preset, --dim and --dtype");
    }
    origin.model = *options.model;
    origin.open.eps = options.eps;
    origin.open.hidden = options.hidden;
    origin.open.map = options.map;
    const Checkpoint model = Checkpoint::open(origin.model, origin.open);
    if (!options.layer && model.layers() == 0) static_cast<void>(model.layer(0));  // throws
    origin.layer = options.layer.value_or(model.layer_numbers().front());
    origin.expert = options.expert;
    return origin;
  }
  if (options.layer || options.eps || options.map) {
    throw Error(ErrorCode::usage, "bench: --layer, --eps and --map need a MODEL");
  }
  if (options.dim.has_value() != options.hidden.has_value()) {
    throw Error(ErrorCode::usage, "bench: --dim and --hidden go together");
  }
  if (options.dim && options.preset) {
    throw Error(ErrorCode::usage, "bench: a preset has its own dim and hidden: give --preset, or --dim and --hidden");
  }
  origin.made_up = options.dim ? FfnConfig{*options.dim, *options.hidden, 1e-5}
                               : find_preset(options.preset.value_or("llama-3-8b")).config();
  origin.dtype = options.dtype.value_or(DType::bf16);
  origin.seed = 8;
  return origin;
}

LayerSource source_of(const LayerOrigin& origin) {
  if (origin.model.empty()) return random_layer(origin.made_up, origin.dtype, origin.seed);
  return Checkpoint::open(origin.model, origin.open).layer(origin.layer, origin.expert);
}

class Bench {
 public:
  Bench(const BenchOptions& options, Team& team)
      : options_(options), team_(team), origin_(origin_of(options)), source_(source_of(origin_)) {
    const std::int64_t most = *std::max_element(options.tokens.begin(), options.tokens.end());
    h_ = bf16_input(most * source_.config.dim);
    team_.input(view_f32(h_.data(), most, source_.config.dim));
  }

  std::vector<RankSet> run(Meter& meter) {
    std::vector<int> threads = options_.threads;
    if (threads.empty()) threads = {team_.default_threads()};
    for (const Compute compute : options_.computes) {
      for (const Isa isa : options_.isas) {
        for (const Storage storage : storages_of(options_, source_, compute)) {
          for (const int each : threads) measure(compute, storage, isa, each, meter);
        }
      }
    }
    compare_overlap(threads.front(), meter);
    return std::move(sets_);
  }

 private:
  static constexpr double kRowSeconds = 3;

  void measure(Compute compute, Storage storage, Isa isa, int threads, Meter& meter) {
    RankSet set;
    set.threads = threads;
    set.overlap = "posted";
    meter.label("packing");
    const auto layer = team_.make(origin_, compute, storage, isa, threads);
    set.layer = layer->info();
    std::optional<OneProcess> alone;
    if (team_.one_machine()) {
      Options options;
      options.compute = compute;
      options.storage = storage;
      options.isa = isa;
      alone.emplace(source_, options, threads * team_.size());
      set.alone_threads = alone->threads();
    }
    for (const std::int64_t tokens : options_.tokens) {
      meter.label(fmt::format("timing {}", plural(tokens, "token")));
      meter.update(std::ssize(set.rows), std::ssize(options_.tokens));
      set.rows.push_back(measure_ranks(team_, *layer, alone ? &alone->layer() : nullptr, h_, tokens, kRowSeconds));
    }
    sets_.push_back(std::move(set));
  }

  /// A call of several blocks of rows with the next one computed while the last is reduced, and without.
  void compare_overlap(int threads, Meter& meter) {
    const std::int64_t most = *std::max_element(options_.tokens.begin(), options_.tokens.end());
    if (most <= 256) return;
    for (const char* kind : {"none", "posted", "thread"}) {
      meter.label(fmt::format("overlap {}", kind));
      team_.overlap(kind);
      RankSet set;
      set.threads = threads;
      set.overlap = kind;
      const auto layer =
          team_.make(origin_, options_.computes.front(), Storage::automatic, options_.isas.front(), threads);
      set.layer = layer->info();
      set.rows.push_back(measure_ranks(team_, *layer, nullptr, h_, most, kRowSeconds));
      sets_.push_back(std::move(set));
    }
  }

  const BenchOptions& options_;
  Team& team_;
  LayerOrigin origin_;
  LayerSource source_;
  std::vector<float> h_;
  std::vector<RankSet> sets_;
};

}  // namespace

int bench_on_ranks(const BenchOptions& options, Team& team) {
  std::vector<RankSet> sets;
  if (options.json && !options.json->empty()) check_replaceable("--json", *options.json, "{");
  {
    Meter meter("bench");
    Bench bench(options, team);
    sets = bench.run(meter);
  }
  return show_bench_on_ranks(options, team, sets);
}

}  // namespace swiglu::cli
