// All ranks of a reduction in one process: messages are copies, and every rank must end with the root that one
// process computes, bit for bit, whatever the number of ranks and floats.
#include "mpi/schedule.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

namespace swiglu::mpi {
namespace {

void add(float* dst, const float* left, const float* right, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) dst[i] = left[i] + right[i];
}

/// Sums of 16 groups whose addition in any other order would show: magnitudes differ by up to 2^40.
std::vector<std::vector<float>> group_sums(std::int64_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-20, 20);
  std::vector<std::vector<float>> sums(16, std::vector<float>(static_cast<std::size_t>(count)));
  for (auto& group : sums) {
    for (float& value : group) value = std::ldexp(normal(random), exponent(random));
  }
  return sums;
}

std::vector<float> tree(const std::vector<std::vector<float>>& groups, int first, int count) {
  if (count == 1) return groups[static_cast<std::size_t>(first)];
  std::vector<float> left = tree(groups, first, count / 2);
  const std::vector<float> right = tree(groups, first + count / 2, count / 2);
  add(left.data(), left.data(), right.data(), std::ssize(left));
  return left;
}

struct Rank {
  std::vector<std::vector<float>> sums;
  std::vector<PartialSum> parts;
  std::vector<float> extra, root;
  std::vector<Step> steps;
};

std::vector<Rank> ranks_of(int ranks, const std::vector<std::vector<float>>& groups, std::int64_t count) {
  std::vector<Rank> all(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    Rank& rank = all[static_cast<std::size_t>(r)];
    const auto trees = owned_subtrees(r, ranks);
    for (const Subtree& t : trees) rank.sums.push_back(tree(groups, t.first_group, t.groups));
    for (std::size_t i = 0; i < trees.size(); ++i) {
      rank.parts.push_back({trees[i].first_group, trees[i].groups, rank.sums[i].data()});
    }
    rank.extra.resize(static_cast<std::size_t>(extra_floats(r, ranks, count)));
    rank.root.assign(static_cast<std::size_t>(count), NAN);
    rank.steps = schedule({r, ranks, rank.parts, count, rank.root.data()}, rank.extra.data());
  }
  return all;
}

/// Carries out one step of all ranks: what is sent is taken before anything is received or added.
void exchange(std::vector<Rank>& all, std::size_t step) {
  std::map<std::pair<int, int>, std::vector<std::vector<float>>> mail;
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (const Message& m : all[r].steps[step].sends) {
      mail[{static_cast<int>(r), m.peer}].emplace_back(m.floats, m.floats + m.count);
    }
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (const Message& m : all[r].steps[step].receives) {
      auto& box = mail[{m.peer, static_cast<int>(r)}];
      ASSERT_FALSE(box.empty()) << "rank " << r << " waits for rank " << m.peer << " in step " << step;
      ASSERT_EQ(std::ssize(box.front()), m.count);
      std::copy(box.front().begin(), box.front().end(), m.floats);
      box.erase(box.begin());
    }
    for (const Sum& sum : all[r].steps[step].sums) add(sum.dst, sum.left, sum.right, sum.count);
  }
  for (const auto& [who, box] : mail) EXPECT_TRUE(box.empty()) << who.first << " to " << who.second;
}

TEST(Schedule, gives_every_rank_the_root_of_one_process) {
  for (const std::int64_t count : {1, 7, 33, 16384, 16385, 40001}) {
    const auto groups = group_sums(count);
    const std::vector<float> expected = tree(groups, 0, 16);
    for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 33}) {
      std::vector<Rank> all = ranks_of(ranks, groups, count);
      for (std::size_t step = 0; step < all[0].steps.size(); ++step) exchange(all, step);
      for (std::size_t r = 0; r < all.size(); ++r) {
        ASSERT_EQ(all[r].steps.size(), all[0].steps.size());
        ASSERT_EQ(0, std::memcmp(all[r].root.data(), expected.data(), expected.size() * sizeof(float)))
            << "rank " << r << " of " << ranks << ", " << count << " floats";
      }
    }
  }
}

TEST(Schedule, sends_what_the_header_says) {
  constexpr std::int64_t kCount = 16 * 4096;
  const auto groups = group_sums(kCount);
  for (const int ranks : {2, 3, 4, 6, 8, 16}) {
    for (const Rank& rank : ranks_of(ranks, groups, kCount)) {
      std::int64_t sent = 0;
      for (const Step& step : rank.steps) {
        for (const Message& m : step.sends) sent += m.count;
      }
      const double share = static_cast<double>(sent) / kCount, least = 2.0 * (ranks - 1) / ranks;
      if (std::has_single_bit(static_cast<unsigned>(ranks))) {
        EXPECT_NEAR(share, least, 1e-4) << ranks;
      } else {
        EXPECT_LE(share, 4) << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace swiglu::mpi
