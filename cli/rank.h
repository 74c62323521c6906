// What one rank does of what a Team is asked for: its share of layers, its copy of the input, its times.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "measure.h"
#include "swiglu/mpi.hpp"
#include "team.h"

namespace swiglu::cli {

class Rank {
 public:
  explicit Rank(mpi::Session& session);
  void input(DType dtype, std::int64_t rows, std::int64_t dim, std::span<const std::byte> bytes);
  /// Collective: the ranks agree that it is the same layer everywhere.
  void make(int id, const LayerOrigin& origin, Compute compute, Storage storage, Isa isa, int threads);
  void drop(int id) { layers_.erase(id); }
  [[nodiscard]] const FeedForwardInfo& info(int id) const { return layers_.at(id).layer.info(); }
  void run(int id, std::int64_t first, bool block, const MutableTensorView& out);
  /// The same with an output of its own that nobody looks at.
  void run(int id, std::int64_t first, bool block, DType dtype, std::int64_t rows);
  [[nodiscard]] RankReport report();

 private:
  struct Held {
    FeedForward layer;
    std::unique_ptr<Memory> workspace;  ///< of the largest call so far
    std::size_t workspace_bytes = 0;
  };
  mpi::Session& session_;
  std::map<int, std::unique_ptr<ThreadPool>> pools_;  ///< by their threads
  std::map<int, Held> layers_;
  std::vector<std::byte> input_, output_;
  DType dtype_ = DType::f32;
  std::int64_t rows_ = 0, dim_ = 0;
  std::int64_t first_bytes_ = 0, bytes_read_ = 0;
  int threads_ = 0;  ///< of the layer that was made last, as what follows
  std::int64_t packed_bytes_ = 0, workspace_bytes_ = 0;
  double load_seconds_ = 0;
  std::vector<double> compute_, exchange_;
  std::int64_t sent_ = 0;
};

}  // namespace swiglu::cli
