// Timing a layer beside the machine's limits: what `bench` and `demo` share. Knows the front door only;
// shows nothing. Bandwidth and clocks of a shared machine change from second to second, so limits are
// sampled before, between and after the calls that are compared with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "swiglu/machine.hpp"
#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

/// Uninitialised memory, aligned as a workspace must be; large ones ask for huge pages.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory(Memory&& other) noexcept;
  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

/// Seeded normal activations rounded to bf16, so that every arithmetic starts from the same values.
[[nodiscard]] std::vector<float> bf16_input(std::int64_t count);

[[nodiscard]] double median(std::vector<double> samples);
/// Half the distance between the quartiles, relative to the median.
[[nodiscard]] double spread(std::vector<double> samples);

/// The limit that this arithmetic runs into: bf16 products may be computed by dot products or, widened,
/// by fma, whichever is faster.
[[nodiscard]] double peak_gflops(const Limits& limits, Compute compute);

/// What one call costs, whatever the machine.
struct Work {
  double flops = 0;
  double bytes = 0;  ///< of packed weights, each read once
};
[[nodiscard]] Work work_of(const FeedForwardInfo& layer, std::int64_t tokens);

/// One token count on one packed layer.
struct SpeedRow {
  std::int64_t tokens = 0;
  std::vector<double> samples;      ///< seconds a call, in the order measured
  std::vector<Limits> limits;       ///< before the first round, between rounds, after the last
  std::vector<double> round_times;  ///< one a round: its median time, in seconds
  std::vector<double> ratios;       ///< one a round: the time its limits would allow / its median time
  std::vector<double> bound_times;  ///< one a round: the time its limits would allow, in seconds
  Work work;
  bool bandwidth_bound = false;
  [[nodiscard]] double time() const { return median(samples); }
  [[nodiscard]] double gflops() const { return 1e-9 * work.flops / time(); }
  [[nodiscard]] double gb_per_s() const { return 1e-9 * work.bytes / time(); }
  [[nodiscard]] double roofline_ratio() const { return median(ratios); }
};

struct RowBudget {
  double seconds = 2.5;
  std::size_t rounds = 5;  ///< at least
};
/// Rounds of a few calls with limits sampled on both sides; warmed up first. `h` holds the tokens. Several
/// layers of one shape take turns within each round, which one first changes from round to round: what is said
/// of one beside another holds for the same seconds. A row for each; they share the budget and the limits.
[[nodiscard]] std::vector<SpeedRow> measure_rows(std::span<const FeedForward* const> layers, LimitProbe& probe,
                                                 std::span<const float> h, std::int64_t tokens,
                                                 const RowBudget& budget = {});

/// What a call of so many tokens will take at most, going by the rows before it; 0 if there are none.
[[nodiscard]] double expected_seconds(std::span<const SpeedRow> rows, std::int64_t tokens);

/// The largest resident size of this process so far, or since it was made to forget; it does not on systems
/// that will not have it (false).
[[nodiscard]] std::int64_t peak_memory();
[[nodiscard]] bool forget_peak_memory();

}  // namespace swiglu::cli
