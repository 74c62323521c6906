// What `demo` measures, apart from how it is shown; and the demo on ranks. Knows the front door and checks.h only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "commands.h"
#include "measure.h"
#include "progress.h"
#include "swiglu/machine.hpp"
#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

struct DemoReport {
  Machine machine;
  FeedForwardInfo layer{};
  int threads = 0;
  double pack_seconds = 0;
  std::int64_t peak_bytes = 0;  ///< of this process when the layer was packed
  Limits limits;  ///< the best of all samples beside the rows
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

int demo_on_ranks(const DemoOptions& options, Team& team);

}  // namespace swiglu::cli
