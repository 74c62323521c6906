// Readers of memory beside a measurement; see neighbours.h. One load for each cache line, in order: the
// processor's own prefetchers make that as fast as one thread reads.
#include "neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <system_error>

namespace swiglu::cli {

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kSlice = std::size_t{1} << 18;  // between two looks at whether to stop
constexpr std::size_t kLeast = std::size_t{64} << 20;

/// Whole slices of a thread's share of twice the cache.
std::size_t bytes_each(int count, std::int64_t cache_bytes) {
  const std::size_t share = 2 * static_cast<std::size_t>(cache_bytes) / static_cast<std::size_t>(std::max(count, 1));
  return (std::max(share, kLeast) + kSlice - 1) / kSlice * kSlice;
}

std::uint64_t sum_of(const std::byte* slice) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < kSlice; at += kLine) {
    std::uint64_t word = 0;
    std::memcpy(&word, slice + at, sizeof word);
    sum += word;
  }
  return sum;
}

}  // namespace

double Neighbours::memory_needed(int count, std::int64_t cache_bytes) {
  return static_cast<double>(count) * static_cast<double>(bytes_each(count, cache_bytes));
}

Neighbours::Neighbours(int count, std::int64_t cache_bytes) : reading_(count) {
  for (int i = 0; i < count; ++i) memory_.emplace_back(bytes_each(count, cache_bytes));
  try {
    for (const Memory& memory : memory_) {
      threads_.emplace_back([this, &memory](const std::stop_token& stop) { read(stop, memory); });
    }
  } catch (const std::system_error& fault) {
    throw Error(ErrorCode::no_memory, fmt::format("bench: no thread number {} of --neighbours {}: {}",
                                                  threads_.size() + 1, count, fault.what()));
  }
  reading_.wait();
  bytes_ = 0;
  watch_ = {};
}

std::int64_t Neighbours::memory_bytes() const {
  std::size_t bytes = 0;
  for (const Memory& memory : memory_) bytes += memory.span().size();
  return static_cast<std::int64_t>(bytes);
}

double Neighbours::gb_per_s() const { return 1e-9 * static_cast<double>(bytes_.load()) / watch_.seconds(); }

void Neighbours::read(const std::stop_token& stop, const Memory& memory) {
  const std::span<std::byte> all = memory.span();
  std::memset(all.data(), 1, all.size());  // real pages, not many of the one page of zeros
  reading_.count_down();
  for (std::size_t at = 0; !stop.stop_requested(); at = at + kSlice < all.size() ? at + kSlice : 0) {
    sum_.fetch_add(sum_of(all.data() + at), std::memory_order_relaxed);
    bytes_.fetch_add(static_cast<std::int64_t>(kSlice), std::memory_order_relaxed);
  }
}

}  // namespace swiglu::cli
