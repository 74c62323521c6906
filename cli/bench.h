// What `bench` measures: the layer it chose, how long that took to load, rows of speed beside limits.
// Apart from how it is shown (bench_report.cc). Knows the front door and measure.h only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "commands.h"
#include "measure.h"
#include "progress.h"
#include "swiglu/machine.hpp"
#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

/// The layer to measure: of a checkpoint, or made up from a seed.
struct BenchLayer {
  LayerSource source;
  std::string name;                          ///< "Llama-3-8B's shape", or the model's path and layer
  bool made_up = false;
  bool held = false;                         ///< made-up weights lie in `memory`; else they are made while read
  std::vector<Memory> memory;
  std::vector<std::filesystem::path> files;  ///< of the checkpoint's layer
  [[nodiscard]] std::int64_t source_bytes() const;
};

/// The time to construct a FeedForward of one storage, alternating with the least that any loader must do.
struct LoadReport {
  FeedForwardInfo layer{};
  bool measured = false;
  bool from_files = false;  ///< beside it pread of as many bytes of the same files; else beside a copy in memory
  std::int64_t source_bytes = 0;
  int threads = 0;
  std::vector<double> seconds;
  std::vector<double> beside_seconds;
  std::vector<double> discard_seconds;  ///< files only: pread without keeping what was read
  std::int64_t peak_bytes = 0;  ///< of this process while packing, without made-up weights held in memory; 0: unknown
  [[nodiscard]] double ratio() const { return median(seconds) / median(beside_seconds); }
};

/// One packed layer on one number of threads.
struct BenchSet {
  int threads = 0;
  FeedForwardInfo layer{};
  Limits limits;  ///< the best of all samples beside the rows
  std::vector<LimitProbe::Pattern> patterns;
  std::int64_t probe_bytes = 0;
  bool probe_beyond_caches = true;
  std::vector<SpeedRow> rows;
  /// For each row, one a round: its median time / that of plain storage in the same round. Empty of plain storage
  /// itself, and where that was not measured beside this one.
  std::vector<std::vector<double>> over_plain;
  std::vector<std::int64_t> skipped;  ///< token counts that would have taken too long
};

/// The time with weights that are all denormal numbers / the time with ordinary ones, alternating.
struct DenormalRow {
  int threads = 0;
  FeedForwardInfo layer{};
  std::int64_t tokens = 0;
  std::vector<double> ratios;
};

struct BenchReport {
  Machine machine;
  std::string name;
  bool made_up = false;
  FfnConfig config;
  const char* dtype = "";  ///< of the weights as stored (gate)
  std::vector<LoadReport> loads;
  std::vector<BenchSet> sets;
  std::vector<DenormalRow> denormals;
  int neighbours = 0;
  double neighbours_gb_per_s = 0;  ///< what they read meanwhile
  std::vector<std::string> notes;  ///< what was left out or is to be known
  double seconds = 0;
};

// bench_layer.cc
/// Chooses what fits into the available memory. Throws usage, no_memory, and what opening throws.
[[nodiscard]] BenchLayer open_bench_layer(const BenchOptions& options, std::vector<std::string>& notes);
/// Bytes of the packed copy, about, and of no storage more; in double, because a made-up layer may have any size.
[[nodiscard]] double packed_bytes(const LayerSource& source, Compute compute);
/// What `packed` bytes of packed weights need with all that measuring them takes, neighbours aside.
[[nodiscard]] double bytes_needed(double packed, const BenchOptions& options, std::int64_t dim);
/// Asked for, or else plain and compact where there is a choice.
[[nodiscard]] std::vector<Storage> storages_of(const BenchOptions& options, const LayerSource& source, Compute compute);
/// The same shapes and types with nothing but denormal numbers in the matrices.
[[nodiscard]] LayerSource denormal_layer(const LayerSource& source);

// bench_load.cc
/// One for each storage that comes out of `storages`.
[[nodiscard]] std::vector<LoadReport> measure_loads(const BenchLayer& layer, ThreadPool& pool, Options options,
                                                    const std::vector<Storage>& storages);

// bench_measure.cc
[[nodiscard]] BenchReport measure_bench(const BenchOptions& options, Meter& meter);

// bench_report.cc
[[nodiscard]] std::string bench_table(const BenchReport& report);
[[nodiscard]] std::string bench_json(const BenchReport& report);
/// "bf16 compute, plain bf16, avx512, 2 threads"
[[nodiscard]] std::string key_of(const FeedForwardInfo& layer, int threads);
/// "; beside 1 neighbour that reads 8.1 GB/s", or nothing: whoever sees the numbers must not miss it.
[[nodiscard]] std::string show_neighbours(const BenchReport& report);

// bench_svg.cc
[[nodiscard]] std::string bench_svg(const BenchReport& report);

}  // namespace swiglu::cli
