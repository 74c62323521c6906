// What `verify` and `demo` prove about a layer: errors against the oracle with the bounds it derived,
// and bits against themselves. Knows the front door; shows nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "swiglu/swiglu.hpp"
#include "team.h"

namespace swiglu::cli {

/// One stage of the fast path against the oracle's, both starting from the fast path's intermediate
/// before it. (Every stage within its bound implies the whole within the chained bound, which is wide.)
/// Elements whose right value or bound is not finite (weights or inputs with NaN or Inf) are counted in
/// `skipped` and take no part.
struct StageCheck {
  double error = 0;  ///< ‖fast - right‖ / ‖right‖
  double bound = 0;  ///< ‖bound‖ / ‖right‖
  std::int64_t elements = 0, skipped = 0;
  std::int64_t outside = 0;  ///< elements with |fast - right| > bound
  [[nodiscard]] bool good() const { return outside == 0; }
};
[[nodiscard]] StageCheck check_stage(std::span<const float> fast, std::span<const double> right,
                                     std::span<const double> bound);

/// ‖fast - exact‖ / ‖exact‖ over the elements whose exact value is finite.
[[nodiscard]] double relative_error(std::span<const float> fast, std::span<const double> exact);

/// A runner that hands its tasks to another one, exchangeable between calls: one packed layer can
/// then be run on any number of threads.
class SwitchRunner {
 public:
  void use(Runner runner) { now_ = runner; }
  [[nodiscard]] Runner runner() {
    return {[](void* ctx, std::int64_t n, void (*task)(void*, std::int64_t), void* arg) {
              const Runner now = static_cast<SwitchRunner*>(ctx)->now_;
              now.run(now.ctx, n, task, arg);
            },
            this};
  }

 private:
  Runner now_{};
};

/// Pools of 1, 2 and all threads, without repetitions.
class Pools {
 public:
  explicit Pools(int all);
  [[nodiscard]] ThreadPool& all() { return *pools_.back(); }
  [[nodiscard]] const std::vector<std::unique_ptr<ThreadPool>>& list() const { return pools_; }

 private:
  std::vector<std::unique_ptr<ThreadPool>> pools_;  ///< ascending
};

/// A way to cut a batch.
struct Split {
  const char* name;
  std::vector<std::int64_t> counts;
};
/// All at once; one by one; unevenly.
[[nodiscard]] std::vector<Split> splits_of(std::int64_t tokens);

/// The scalar tier emulates fma where the compiler may not assume it: minutes at published shapes.
[[nodiscard]] bool scalar_takes_long(const FfnConfig& config, std::int64_t tokens);

/// What all ranks gave together for tokens that one process is yet to run.
struct RankRun {
  std::string how;  ///< "avx512, compact bf16, 3 ranks, one by one"
  std::vector<float> out;
};
/// block() on `h` by all ranks, in every combination of tier, storage and split. `source` is the layer as rank 0
/// opened it from `origin`.
[[nodiscard]] std::vector<RankRun> run_on_ranks(Team& team, const LayerOrigin& origin, const LayerSource& source,
                                                Compute compute, std::span<const float> h, std::int64_t tokens,
                                                int threads);

/// How often the same tokens gave the same bits.
struct BitsReport {
  std::int64_t runs = 0, equal = 0;
  std::vector<std::string> different;  ///< "avx2, compact bf16, 2 threads, one by one"
  std::vector<std::string> isas;
  std::vector<std::string> storages;  ///< "plain bf16"; of a packed file first "compact bf16 of the file"
  std::vector<int> threads;
  bool scalar_once = false;  ///< the scalar tier ran once in each storage only, for time
  [[nodiscard]] bool good() const { return runs == equal; }
};

/// Runs block() on `h` ([tokens, dim]) in every combination of tier, storage, thread count and batch split (all
/// at once; one by one; uneven) and compares each with the first bitwise. A layer of a packed file takes part as
/// it is, and packed anew from `unpacked`; other layers are their own `unpacked`. What ranks gave for the same
/// tokens takes part. `step` is called before the packing for each tier with what is about to be done.
[[nodiscard]] BitsReport check_bits(const LayerSource& source, const LayerSource& unpacked, Compute compute,
                                    Pools& pools, std::span<const float> h, std::int64_t tokens,
                                    std::span<const RankRun> ranks,
                                    const std::function<void(const std::string&)>& step);

/// block() on rows [first, first + count) of h and out.
void run_rows(const FeedForward& layer, std::span<const float> h, std::span<float> out, std::int64_t first,
              std::int64_t count);

[[nodiscard]] bool same_bits(std::span<const float> a, std::span<const float> b);

}  // namespace swiglu::cli
