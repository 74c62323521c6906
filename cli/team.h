// All ranks, as rank 0 sees them while it runs a command: layers of which each rank holds its share, made and run by
// all at once. Knows the front door only; session_mpi.cc has the one implementation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

/// Where a layer's weights come from, so that every rank can get its own share of them.
struct LayerOrigin {
  std::filesystem::path model;  ///< empty: made up
  std::int64_t layer = 0;
  std::optional<std::int64_t> expert;
  OpenOptions open;
  FfnConfig made_up;
  DType dtype = DType::bf16;  ///< of made-up weights, as what follows
  std::uint64_t seed = 0;
};

/// One rank since the last report. Times are medians over its calls.
struct RankReport {
  char host[65] = {};
  int rank = 0;
  int threads = 0;
  int first_group = 0, last_group = 0;  ///< [first, last) of 16
  std::int64_t packed_bytes = 0;        ///< of its share of the layer that was made last
  std::int64_t workspace_bytes = 0;     ///< of that layer's largest call
  std::int64_t bytes_read = 0;          ///< of checkpoints, since the beginning
  std::int64_t peak_bytes = 0;          ///< of memory, since the beginning
  std::int64_t first_bytes = 0;         ///< of memory when MPI had begun and nothing else
  double load_seconds = 0;              ///< of that layer: opening, reading, packing
  std::int64_t calls = 0;
  double compute_seconds = 0;   ///< of a call, without what follows
  double exchange_seconds = 0;  ///< of a call: waiting for other ranks, moving sums and adding them
  std::int64_t bytes_sent = 0;  ///< of a call
};

/// A layer of which every rank holds its share. Gone, all drop it.
class TeamLayer {
 public:
  virtual ~TeamLayer() = default;
  [[nodiscard]] virtual const FeedForwardInfo& info() const = 0;  ///< of rank 0's share
  /// block() or forward() of rows [first, first + out.rows) of the input, by all ranks.
  virtual void run(std::int64_t first, bool block, const MutableTensorView& out) = 0;
};

class Team {
 public:
  virtual ~Team() = default;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual bool one_machine() const = 0;
  /// Threads a rank takes unless told: the CPUs that it may use, shared fairly with other ranks that may use them.
  [[nodiscard]] virtual int default_threads() const = 0;
  /// "f32"; with "bf16" results are not those of one process.
  [[nodiscard]] virtual std::string wire() const = 0;
  /// Rows for the calls that follow, copied to every rank.
  virtual void input(const TensorView& h) = 0;
  /// Opens and packs its share on every rank. Throws what that throws on rank 0; what another rank throws is told by
  /// that rank.
  [[nodiscard]] virtual std::unique_ptr<TeamLayer> make(const LayerOrigin& origin, Compute compute, Storage storage,
                                                        Isa isa, int threads) = 0;
  /// How reductions go on behind the next block's computation: "none", "posted" or "thread". No layer may be there.
  virtual void overlap(const std::string& kind) = 0;
  /// By rank.
  [[nodiscard]] virtual std::vector<RankReport> report() = 0;
  /// The others are done and end well; rank 0 goes on alone for as long as it takes.
  virtual void release() = 0;
};

/// The reports as a table: who holds what, in how much memory, read and timed how.
[[nodiscard]] std::string show_ranks(const std::vector<RankReport>& ranks);

}  // namespace swiglu::cli
