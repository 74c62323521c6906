// What bench and demo measure on ranks: the time of a call beside that of one process with as many threads, in turns,
// and where the difference goes. Knows the front door, team.h and measure.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "commands.h"
#include "measure.h"
#include "progress.h"
#include "report.h"
#include "team.h"

namespace swiglu::cli {

/// One token count. Times in seconds.
struct RankRow {
  std::int64_t tokens = 0;
  std::vector<double> samples;      ///< of a call by all ranks
  std::vector<double> alone;        ///< of a call by one process; empty if not measured
  std::vector<double> speeds;       ///< one a round: median time alone / by all ranks
  std::vector<RankReport> reports;  ///< of these calls, by rank
  Work work;
  /// Of the median call: the longest computation of a rank, how much longer that is than the shortest, and what the
  /// rank that waits least spends on the exchange.
  [[nodiscard]] double computing() const;
  [[nodiscard]] double unevenness() const;
  [[nodiscard]] double exchanging() const;
};

/// One packed layer on all ranks.
struct RankSet {
  FeedForwardInfo layer{};  ///< of rank 0's share
  int threads = 0;          ///< of each rank
  int alone_threads = 0;    ///< of the one process
  std::string overlap;
  std::vector<RankRow> rows;
};

/// A process of as many threads as all ranks have, on the CPUs that all ranks have together.
class OneProcess {
 public:
  OneProcess(const LayerSource& source, const Options& options, int threads);
  [[nodiscard]] int threads() const { return pool_->threads(); }
  [[nodiscard]] const FeedForward& layer() const { return *layer_; }

 private:
  std::unique_ptr<ThreadPool> pool_;
  std::optional<FeedForward> layer_;
};

/// The team's input must hold `h`. `alone` may be null.
[[nodiscard]] RankRow measure_ranks(Team& team, TeamLayer& layer, const FeedForward* alone, std::span<const float> h,
                                    std::int64_t tokens, double seconds);

[[nodiscard]] std::string show_rows(const RankSet& set);
void put_rows(Json& json, const RankSet& set);  ///< into an open array

int show_bench_on_ranks(const BenchOptions& options, Team& team, const std::vector<RankSet>& sets);

int bench_on_ranks(const BenchOptions& options, Team& team);

}  // namespace swiglu::cli
