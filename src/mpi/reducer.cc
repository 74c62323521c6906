// See reducer.h. The additions are the layer's, so they run in its floating-point mode, whatever thread they run on.
#include "mpi/reducer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace swiglu::mpi {
namespace {

constexpr int kTag = 1;

// To nearest even in integers; NaN stays one.
std::uint16_t bf16_from(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}
float float_from(std::uint16_t half) { return std::bit_cast<float>(std::uint32_t{half} << 16); }

class Deadline final : public Watch {
 public:
  Deadline(double seconds, std::size_t ranks_here) : limit_(seconds) { set_ranks_here(ranks_here); }
  void look(const char* what, double seconds, const std::vector<int>& awaited) override {
    if (seconds < limit_) return;
    throw Error(ErrorCode::communication,
                fmt::format("{}: no message for {} s from rank {}", what, limit_, fmt::join(awaited, ", ")));
  }

 private:
  double limit_;
};

// A reducer with a watch of its own.
class WatchedReducer final : public RankReducer {
 public:
  explicit WatchedReducer(const Options& options)
      : communicator_(options.communicator), deadline_(options.timeout_seconds, communicator_.ranks_here().size()),
        reducer_(options, communicator_, deadline_) {}
  [[nodiscard]] int rank() const noexcept override { return reducer_.rank(); }
  [[nodiscard]] int size() const noexcept override { return reducer_.size(); }
  void start(std::span<const PartialSum> parts, std::int64_t n, float* root, AddFloats add) override {
    reducer_.start(parts, n, root, add);
  }
  void finish() override { reducer_.finish(); }
  [[nodiscard]] Traffic traffic() const noexcept override { return reducer_.traffic(); }

 private:
  Communicator communicator_;
  Deadline deadline_;
  MpiReducer reducer_;
};

template <class Enum, std::size_t N>
Enum parse(const char* what, std::string_view name, const std::array<const char*, N>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<Enum>(found - names.begin());
  throw Error(ErrorCode::usage, fmt::format("unknown {} '{}': expected {}", what, name, fmt::join(names, ", ")));
}
constexpr std::array kWires = {"f32", "bf16"};
constexpr std::array kOverlaps = {"none", "posted", "thread"};

}  // namespace

const char* name_of(Wire wire) noexcept { return kWires[static_cast<std::size_t>(wire)]; }
Wire parse_wire(std::string_view name) { return parse<Wire>("wire", name, kWires); }
const char* name_of(Overlap overlap) noexcept { return kOverlaps[static_cast<std::size_t>(overlap)]; }
Overlap parse_overlap(std::string_view name) { return parse<Overlap>("overlap", name, kOverlaps); }

std::unique_ptr<RankReducer> make_reducer(const Options& options) { return std::make_unique<WatchedReducer>(options); }

MpiReducer::MpiReducer(const Options& options, const Communicator& communicator, Watch& watch)
    : options_(options), watch_(watch), communicator_(communicator), batch_(communicator_) {
  if (options_.overlap != Overlap::thread) return;
  if (!communicator_.serialised()) {
    throw Error(ErrorCode::unsupported, "overlap by a thread needs MPI_THREAD_SERIALIZED, which this MPI run lacks");
  }
  thread_ = std::thread([this] { work(); });
}

MpiReducer::~MpiReducer() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  // MPI may still write there, and the process is about to end.
  if (under_way_) static_cast<void>(memory_.release());
}

void MpiReducer::start(std::span<const PartialSum> parts, std::int64_t n, float* root, AddFloats add) {
  const Clock::time_point begin = Clock::now();
  const std::unique_lock lock(mutex_);
  if (under_way_) throw Error(ErrorCode::usage, "a reduction was started before the last one was finished");
  if (size() == 1 && parts.size() != 1) {
    throw Error(ErrorCode::usage, fmt::format("one rank owns one subtree of all groups, found {}", parts.size()));
  }
  const auto owned = owned_subtrees(rank(), size());
  const bool same = std::equal(
      owned.begin(), owned.end(), parts.begin(), parts.end(),
      [](const Subtree& a, const PartialSum& b) { return a.first_group == b.first_group && a.groups == b.groups; });
  if (!same) throw Error(ErrorCode::usage, fmt::format("rank {} of {} does not own these groups", rank(), size()));
  const auto extra = static_cast<std::size_t>(extra_floats(rank(), size(), n));
  if (memory_->extra.size() < extra) memory_->extra.resize(extra);
  steps_ = schedule({rank(), size(), parts, n, root}, memory_->extra.data());
  add_ = add;
  step_ = 0;
  posted_ = false;
  under_way_ = true;
  ++traffic_.reductions;
  if (options_.overlap == Overlap::none) {
    wait_until("reduction", watch_, [this] { return advance(); }, [this] { return batch_.awaited(); });
  } else {
    moving_ = !advance();
    if (moving_ && thread_.joinable()) wake_.notify_one();
  }
  traffic_.seconds += seconds_since(begin);
}

void MpiReducer::finish() {
  const Clock::time_point begin = Clock::now();
  const std::unique_lock lock(mutex_);
  if (!under_way_) throw Error(ErrorCode::usage, "a reduction was finished that had not been started");
  moving_ = false;  // from here on this thread moves it
  if (fault_) std::rethrow_exception(fault_);
  wait_until("reduction", watch_, [this] { return advance(); }, [this] { return batch_.awaited(); });
  under_way_ = false;
  traffic_.seconds += seconds_since(begin);
}

bool MpiReducer::advance() {
  for (; step_ < steps_.size(); ++step_, posted_ = false) {
    if (!posted_) post(steps_[step_]);
    posted_ = true;
    if (!batch_.done()) return false;
    complete(steps_[step_]);
  }
  return true;
}

void MpiReducer::post(const Step& step) {
  const bool narrow = options_.wire == Wire::bf16;
  std::int64_t count = 0;
  if (narrow) {
    for (const Roundable& r : step.rounded) {
      for (std::int64_t i = 0; i < r.count; ++i) r.floats[i] = float_from(bf16_from(r.floats[i]));
    }
    for (const auto* messages : {&step.receives, &step.sends}) {
      for (const Message& m : *messages) count += m.count;
    }
    if (std::ssize(memory_->narrow) < count) memory_->narrow.resize(static_cast<std::size_t>(count));
  }
  std::uint16_t* at = memory_->narrow.data();
  const std::int64_t each = narrow ? 2 : 4;
  for (const Message& m : step.receives) {
    if (m.count == 0) continue;
    batch_.receive(m.peer, kTag, narrow ? static_cast<void*>(at) : m.floats, m.count * each);
    if (narrow) at += m.count;
    traffic_.bytes_received += m.count * each;
  }
  for (const Message& m : step.sends) {
    if (m.count == 0) continue;
    if (narrow) std::transform(m.floats, m.floats + m.count, at, bf16_from);
    batch_.send(m.peer, kTag, narrow ? static_cast<void*>(at) : m.floats, m.count * each);
    if (narrow) at += m.count;
    traffic_.bytes_sent += m.count * each;
  }
}

void MpiReducer::complete(const Step& step) {
  if (options_.wire == Wire::bf16) {
    const std::uint16_t* at = memory_->narrow.data();
    for (const Message& m : step.receives) {
      std::transform(at, at + m.count, m.floats, float_from);
      at += m.count;
    }
  }
  for (const Sum& sum : step.sums) add_(sum.dst, sum.left, sum.right, sum.count);
}

void MpiReducer::work() {
  constexpr auto kNap = std::chrono::microseconds(50);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return moving_ || ending_; });
    if (ending_) return;
    try {
      moving_ = !advance();
    } catch (...) {
      fault_ = std::current_exception();
      moving_ = false;
    }
    lock.unlock();
    std::this_thread::sleep_for(kNap);
    lock.lock();
  }
}

}  // namespace swiglu::mpi
