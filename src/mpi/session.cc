// The Session of mpi.hpp. Its heart is the roll call: whoever ends, for whatever reason, tells all others how, and
// listens for a while to how they end. So a rank that waits learns of failures at once, the one that failed first
// by itself is the one that speaks, and who did not answer is known by name.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "mpi/communicator.h"
#include "mpi/reducer.h"
#include "mpi/wait.h"
#include "mpi/watchdog.h"
#include "swiglu/mpi.hpp"

namespace swiglu::mpi {
namespace {

constexpr int kRollTag = 2;
constexpr int kBytesTag = 3;
constexpr double kGrace = 2;  // seconds for others to answer after this rank failed

enum class State : std::int32_t { done, failed, gave_up, followed };

/// What a rank says at its end.
struct Answer {
  State state = State::done;
  std::int32_t code = 0;
  std::int32_t under_way = 0;  ///< a reduction
};

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

struct Session::Impl final : Watch {
  explicit Impl(const Options& options_in)
      : options(options_in), starting(std::in_place, "MPI_Init", options.timeout_seconds, options.stuck),
        began(begin_mpi()), control(std::in_place, options.communicator), rank(control->rank()), size(control->size()),
        here(control->ranks_here()) {
    set_ranks_here(here.size());
    const auto count = static_cast<std::size_t>(size);
    answers.resize(count);
    heard.assign(count, false);
    heard[static_cast<std::size_t>(rank)] = true;
    for (int peer = 0; peer < size; ++peer) {
      listening.push_back(std::make_unique<Batch>(*control));
      if (peer == rank) continue;
      listening.back()->receive(peer, kRollTag, &answers[static_cast<std::size_t>(peer)], sizeof(Answer));
    }
    sums.emplace(options.communicator);
    make_reducer();
    starting.reset();
  }

  void make_reducer() {
    reducer.reset();
    reducer = std::make_unique<MpiReducer>(options, *sums, *this);
  }

  /// Answers that have come; true if all have. A connection that MPI says is broken gives none.
  bool listen() noexcept {
    bool all = true;
    for (std::size_t peer = 0; peer < listening.size(); ++peer) {
      if (!heard[peer]) heard[peer] = is_done(*listening[peer]);
      all = all && heard[peer];
    }
    return all;
  }
  static bool is_done(Batch& batch) noexcept {
    try {
      return batch.done();
    } catch (const Error&) {
      return false;
    }
  }
  [[nodiscard]] bool another_failed() const {
    for (std::size_t peer = 0; peer < heard.size(); ++peer) {
      if (heard[peer] && answers[peer].state != State::done && std::cmp_not_equal(peer, rank)) return true;
    }
    return false;
  }

  void call_roll(State state, int code) {
    if (called) return;
    called = true;
    Answer& own = answers[static_cast<std::size_t>(rank)];
    own = {state, code, reducer != nullptr && reducer->under_way() ? 1 : 0};
    sending.emplace(*control);
    try {
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) sending->send(peer, kRollTag, &own, sizeof own);
      }
    } catch (const Error&) {  // then they will miss it, as if this rank were gone
    }
    RunningTime time;
    double limit = state == State::done ? options.timeout_seconds : kGrace, waited = 0;
    while (!listen() || !is_done(*sending)) {
      if (state == State::done && another_failed()) limit = std::min(limit, waited + kGrace), state = State::followed;
      if (waited > limit) break;
      std::this_thread::sleep_for(std::chrono::microseconds(waited < 0.01 ? 20 : 500));
      waited = time.seconds();
    }
  }

  /// What to say of a wait that ended, or of silence at the end.
  [[nodiscard]] std::string describe(const char* what, const std::vector<int>& awaited) const {
    std::vector<int> silent;
    for (int peer = 0; peer < size; ++peer) {
      if (!heard[static_cast<std::size_t>(peer)]) silent.push_back(peer);
    }
    if (!silent.empty()) {
      return fmt::format(
          "rank {}: {} gave no answer for {} s ({}): dead, stuck, cut off or slow; --timeout says how "
          "long to wait",
          rank, ranks_text(silent), options.timeout_seconds, what);
    }
    return fmt::format(
        "rank {}: {} sent nothing for {} s ({}), but {} alive: slow, or in another call; --timeout "
        "says how long to wait",
        rank, ranks_text(awaited), options.timeout_seconds, what, awaited.size() == 1 ? "is" : "are");
  }

  /// Of every wait, also the reducer's: buffers that messages are under way to or from are still alive here.
  void look(const char* what, double seconds, const std::vector<int>& awaited) override {
    if (!called) {
      listen();
      if (another_failed()) {
        call_roll(State::followed, 4);
      } else if (seconds >= options.timeout_seconds) {
        call_roll(State::gave_up, 4);
      } else {
        return;
      }
    }
    throw Error(ErrorCode::communication, describe(what, awaited));
  }

  void wait(const char* what, Batch& batch) {
    wait_until(what, *this, [&] { return batch.done(); }, [&] { return batch.awaited(); });
  }

  Options options;
  std::optional<Watchdog> starting;
  bool began;
  std::optional<Communicator> control, sums;
  int rank;
  int size;
  std::vector<int> here;
  std::vector<Answer> answers;
  std::vector<bool> heard;
  std::vector<std::unique_ptr<Batch>> listening;
  std::optional<Batch> sending;
  bool called = false;
  bool speaks = true;
  std::unique_ptr<MpiReducer> reducer;
};

Session::Session(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Session::~Session() = default;

int Session::rank() const noexcept { return impl_->rank; }
int Session::size() const noexcept { return impl_->size; }
const std::vector<int>& Session::ranks_here() const noexcept { return impl_->here; }
void Session::set_timeout(double seconds) { impl_->options.timeout_seconds = seconds; }
RankReducer& Session::reducer() const noexcept { return *impl_->reducer; }
void Session::remake_reducer(Wire wire, Overlap overlap) {
  impl_->options.wire = wire;
  impl_->options.overlap = overlap;
  impl_->make_reducer();
}

void Session::broadcast(std::vector<std::byte>& bytes) {
  Batch batch(*impl_->control);
  auto size = static_cast<std::int64_t>(bytes.size());
  if (rank() == 0) {
    for (int peer = 1; peer < this->size(); ++peer) {
      batch.send(peer, kBytesTag, &size, sizeof size);
      if (size > 0) batch.send(peer, kBytesTag, bytes.data(), size);
    }
    return impl_->wait("broadcast", batch);
  }
  batch.receive(0, kBytesTag, &size, sizeof size);
  impl_->wait("broadcast", batch);
  bytes.resize(static_cast<std::size_t>(size));
  if (size == 0) return;
  batch.receive(0, kBytesTag, bytes.data(), size);
  impl_->wait("broadcast", batch);
}

std::vector<std::vector<std::byte>> Session::gather(std::span<const std::byte> bytes) {
  Batch batch(*impl_->control);
  const auto own = static_cast<std::int64_t>(bytes.size());
  if (rank() != 0) {
    batch.send(0, kBytesTag, &own, sizeof own);
    if (own > 0) batch.send(0, kBytesTag, bytes.data(), own);
    impl_->wait("gathering", batch);
    return {};
  }
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(size()), own);
  for (int peer = 1; peer < size(); ++peer) {
    batch.receive(peer, kBytesTag, &sizes[static_cast<std::size_t>(peer)], sizeof own);
  }
  impl_->wait("gathering", batch);
  std::vector<std::vector<std::byte>> all(sizes.size());
  all[0].assign(bytes.begin(), bytes.end());
  for (std::size_t peer = 1; peer < all.size(); ++peer) {
    all[peer].resize(static_cast<std::size_t>(sizes[peer]));
    if (sizes[peer] > 0) batch.receive(static_cast<int>(peer), kBytesTag, all[peer].data(), sizes[peer]);
  }
  impl_->wait("gathering", batch);
  return all;
}

void Session::agree(std::string_view what, std::string_view text) {
  const auto own = std::as_bytes(std::span(text));
  std::vector<std::byte> bytes(own.begin(), own.end());
  broadcast(bytes);
  const std::string_view first(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (first == text) return;
  throw Error(ErrorCode::usage,
              fmt::format("rank {}: {}: expected what rank 0 has, '{}', found '{}'", rank(), what, first, text));
}

Session::Ending Session::end(int code) {
  Impl& impl = *impl_;
  impl.call_roll(code == 0 || code == 1 ? State::done : State::failed, code);
  Ending ending{code, true, true, ""};
  int first_failed = -1, first_waiting = -1, first_heard = -1;
  bool waited_in_vain = false;
  for (int peer = size() - 1; peer >= 0; --peer) {
    const auto i = static_cast<std::size_t>(peer);
    if (!impl.heard[i]) {
      ending.orderly = false;
      waited_in_vain = true;
      continue;
    }
    first_heard = peer;
    if (impl.answers[i].state == State::failed) first_failed = peer;
    if (impl.answers[i].state == State::gave_up) first_waiting = peer;
    if (impl.answers[i].under_way != 0) ending.orderly = false;
  }
  if (first_failed >= 0) {
    ending.code = impl.answers[static_cast<std::size_t>(first_failed)].code;
    ending.speaks = rank() == first_failed;
  } else if (waited_in_vain || first_waiting >= 0) {
    ending.code = 4;
    // Not one that was silent itself and woke up when it was too late.
    ending.speaks = rank() == (first_waiting >= 0 ? first_waiting : first_heard);
    ending.text = impl.describe("end", {});
  }
  impl.speaks = ending.speaks;
  return ending;
}

void Session::close() noexcept {
  impl_->reducer.reset();
  impl_->sending.reset();
  impl_->listening.clear();
  const Watchdog watchdog("MPI_Finalize", impl_->options.timeout_seconds, impl_->options.stuck);
  impl_->sums.reset();
  impl_->control.reset();
  if (impl_->began) end_mpi();
}

void Session::leave(int code) noexcept {
  // Whoever speaks has spoken; its words travel, and the others give it time.
  std::this_thread::sleep_for(std::chrono::milliseconds(impl_->speaks ? 200 : 1500));
  guard_against_a_launcher_that_hangs();
  static constexpr unsigned kSeconds = 3;
  try {
    std::thread([code] {
      std::this_thread::sleep_for(std::chrono::seconds(kSeconds));
      _exit(code);
    }).detach();
  } catch (const std::system_error&) {
    alarm(kSeconds);
  }
  abort_mpi(code);
  _exit(code);
}

}  // namespace swiglu::mpi
