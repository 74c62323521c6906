// What `demo` measures, apart from how it is shown. Knows the front door and checks.h only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "progress.h"
#include "swiglu/machine.hpp"
#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

/// One token count on the packed layer.
struct SpeedRow {
  std::int64_t tokens = 0;
  std::vector<double> samples;   ///< seconds, ascending
  double gflops = 0;             ///< 6 * tokens * dim * hidden operations in the median time
  double gb_per_s = 0;           ///< of packed weights, each byte counted once
  double roofline_ratio = 0;     ///< the time this machine's limits would allow / the median time
  bool bandwidth_bound = false;  ///< which limit that is
  [[nodiscard]] double median() const { return samples[samples.size() / 2]; }
  [[nodiscard]] double spread() const { return (samples.back() - samples.front()) / median(); }
};

struct DemoReport {
  Machine machine;
  FeedForwardInfo layer{};
  int threads = 0;
  double pack_seconds = 0;
  std::int64_t peak_bytes = 0;  ///< of this process when the layer was packed
  Limits limits;
  double peak_gflops = 0;  ///< the one of the limits that this arithmetic runs into
  std::vector<SpeedRow> speed;
  std::vector<std::int64_t> skipped;  ///< token counts that would have taken too long
  std::int64_t checked_tokens = 0, checked_outputs = 0;
  double error = 0, meta_error = 0;  ///< of the sublayer without the residual, relative L2
  std::int64_t bit_runs = 0, bit_runs_equal = 0;
  std::vector<std::string> bit_isas;
  std::vector<int> bit_threads;
  double seconds = 0;

  [[nodiscard]] bool accurate() const { return error <= meta_error; }
  [[nodiscard]] bool same_bits() const { return bit_runs == bit_runs_equal; }
};

/// Makes a Llama-3-8B-sized layer, packs it, and measures. `threads` as for ThreadPool.
[[nodiscard]] DemoReport measure_demo(int threads, Meter& meter);

}  // namespace swiglu::cli
