// Which floats go where, and which are added, so that every rank has the root of the fixed tree. Plain data and
// pointers: no MPI, so that a test can play all ranks in one process.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "swiglu/swiglu.hpp"

namespace swiglu::mpi {

/// Floats that go to or come from `peer`.
struct Message {
  int peer;
  float* floats;
  std::int64_t count;
};

/// dst = left + right.
struct Sum {
  float* dst;
  const float* left;
  const float* right;
  std::int64_t count;
};

/// Sums that a wire narrower than fp32 rounds before they are sent or meet what was sent.
struct Roundable {
  float* floats;
  std::int64_t count;
};

/// Everything in `rounded`, then messages both ways at once, then `sums` in order. Two ranks that exchange messages
/// in a step do so in the step of the same number.
struct Step {
  std::vector<Roundable> rounded;
  std::vector<Message> sends, receives;
  std::vector<Sum> sums;
};

/// One reduction as one rank sees it.
struct Reduction {
  int rank = 0;
  int ranks = 1;
  std::span<const PartialSum> parts;  ///< of this rank, each `count` floats
  std::int64_t count = 0;
  float* root = nullptr;
};

/// Floats of memory that schedule() needs beside the parts and the root.
[[nodiscard]] std::int64_t extra_floats(int rank, int ranks, std::int64_t count);

/// - Powers of two up to 16 ranks: halving (of what is summed, the distance doubles: neighbours first, as the tree
///   wants it), then doubling the same way back. Up to 64 KiB: whole vectors, half as many messages.
/// - Other numbers: every rank sums one slice of the floats from all subtrees, then gives it to all.
/// After the last step the root is complete. (One rank: it is complete on return, and there are no steps.)
[[nodiscard]] std::vector<Step> schedule(const Reduction& reduction, float* extra);

}  // namespace swiglu::mpi
