// The ranks of a layer one after another in this process, and what each of them owns.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "layer/groups.h"
#include "layer/layers.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::testing {

/// Each rank leaves its partial sums, the last combines all.
struct Meeting {
  std::vector<PartialSum> parts;
  std::vector<std::vector<float>> memory;
};
class MeetingReducer final : public Reducer {
 public:
  MeetingReducer(int rank, int size, Meeting& meeting) : rank_(rank), size_(size), meeting_(meeting) {}
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return size_; }
  void start(std::span<const PartialSum> parts, std::int64_t n, float* root, AddFloats add) override {
    EXPECT_LE(parts.size(), 3U);
    for (const PartialSum& part : parts) {
      meeting_.memory.emplace_back(part.floats, part.floats + n);
      meeting_.parts.push_back({part.first_group, part.groups, meeting_.memory.back().data()});
    }
    if (rank_ + 1 == size_) make_local_reducer()->start(meeting_.parts, n, root, add);
  }
  void finish() override {}

 private:
  int rank_;
  int size_;
  Meeting& meeting_;
};

/// block(h) or forward(h) on so many ranks.
inline Matrix run_on_ranks(const LayerSource& source, ThreadPool& pool, int ranks, const Matrix& h,
                           const Options& options = {}, bool block = true) {
  Meeting meeting;
  meeting.memory.reserve(64);
  Matrix last(DType::f32, h.rows, h.cols);
  for (int rank = 0; rank < ranks; ++rank) {
    MeetingReducer reducer(rank, ranks, meeting);
    Options own = options;
    own.reducer = &reducer;
    last = run(FeedForward(source, pool, own), h, block);
  }
  return last;
}

/// Hidden units [first, last): rows of gate and up, columns of down.
struct OwnedUnits {
  std::int64_t first, last;
  [[nodiscard]] std::int64_t count() const { return last - first; }
};
inline OwnedUnits owned_units(std::int64_t hidden, int rank, int ranks) {
  const auto borders = layer::group_borders(hidden);
  const layer::GroupRange groups = layer::owned_groups(rank, ranks);
  return {borders[static_cast<std::size_t>(groups.first)], borders[static_cast<std::size_t>(groups.last)]};
}

}  // namespace swiglu::testing
