// The sublayer on several processes, by MPI: libswiglu_mpi. Each rank holds a share of the weights, all get
// the whole output, and its bits are those of one process, whatever the number of ranks.
//
//     swiglu::mpi::Session session;                                     // MPI_Init, unless the program has
//     auto model = swiglu::Checkpoint::open("Meta-Llama-3-70B");        // on every rank
//     swiglu::ThreadPool pool;
//     swiglu::FeedForward layer(model.layer(0), pool, {.reducer = &session.reducer()});
//     layer.block(h, out, workspace);                                   // on every rank, the same h
//
// Link with swiglu::mpi (CMake) or -lswiglu_mpi -lswiglu and the MPI that it was built with. The header needs
// neither mpi.h nor an MPI compiler: a communicator is given by its Fortran handle, MPI_Comm_c2f(comm).
// docs/mpi.md says what it costs, when it pays, and what happens when a rank fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "swiglu/swiglu.hpp"

#pragma GCC visibility push(default)
namespace swiglu::mpi {

/// What partial sums travel as. f32: the bits of one process. bf16: half the bytes; every sum is rounded to bf16
/// before it is sent or meets one that was, so results differ from one process, and with the number of ranks, though
/// still not with the batch.
enum class Wire : std::uint8_t { f32 = 0, bf16 = 1 };
[[nodiscard]] const char* name_of(Wire wire) noexcept;
/// Throws usage for an unknown name.
[[nodiscard]] Wire parse_wire(std::string_view name);

/// How a reduction goes on while the next block of rows is computed (calls of more than 256 tokens). none: not at
/// all, start() does everything. posted: start() posts the first messages, finish() does the rest. thread: a thread
/// of the reducer's own moves it on, which needs a core to spare and MPI_THREAD_SERIALIZED.
enum class Overlap : std::uint8_t { none = 0, posted = 1, thread = 2 };
[[nodiscard]] const char* name_of(Overlap overlap) noexcept;
[[nodiscard]] Overlap parse_overlap(std::string_view name);

struct Options {
  std::optional<int> communicator = std::nullopt;  ///< MPI_Comm_c2f(comm), duplicated here; nothing: MPI_COMM_WORLD
  Wire wire = Wire::f32;
  Overlap overlap = Overlap::posted;
  double timeout_seconds = 120;  ///< how long to wait for another rank before giving up
  /// Of a Session. Called on a thread of its own if beginning or ending MPI has not returned within the timeout, which
  /// only MPI decides: tells the user, then the process ends with 4. Without it those calls wait as MPI does.
  std::function<void(std::string_view)> stuck = nullptr;
};

/// What a reducer has done so far on this rank.
struct Traffic {
  std::int64_t reductions = 0;
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  double seconds = 0;  ///< that callers spent in start() and finish(): waiting for others, moving, adding
};

/// A Reducer over MPI. With R ranks, a power of two, each sends and receives 2 · (R - 1) / R times the sums of a
/// call (tokens · dim floats), or log2(R) times while these are small (64 KiB, fewer messages); with other R, whose
/// ranks own up to 3 subtrees, up to 4 times. Its memory grows to half to twice the sums of the largest call.
/// finish() throws communication when a rank is not heard of for the timeout, when MPI reports a fault, or when the
/// ranks' calls differ; messages may then still be under way, so the process should end. One call at a time.
class RankReducer : public Reducer {
 public:
  [[nodiscard]] virtual Traffic traffic() const noexcept = 0;
};

/// For programs that use MPI themselves: MPI must be initialised. Collective over the communicator.
[[nodiscard]] std::unique_ptr<RankReducer> make_reducer(const Options& options = {});

/// The processes that were started together, from beginning to end: what swiglu-mpi is made of. MPI is initialised
/// unless it is, and then ended with close(). All ranks must make the same calls in the same order, from one thread.
/// A call that waits ends within the timeout, also if another rank has failed or is silent: every rank then learns
/// which ones, and throws communication.
class Session {
 public:
  explicit Session(const Options& options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  /// The ranks of this machine, this one among them, ascending.
  [[nodiscard]] const std::vector<int>& ranks_here() const noexcept;
  void set_timeout(double seconds);

  /// As the options said at first, and made anew with others by remake_reducer(), on all ranks; the layers that were
  /// made with the old one must be gone.
  [[nodiscard]] RankReducer& reducer() const noexcept;
  void remake_reducer(Wire wire, Overlap overlap);

  /// From rank 0 to all; resized there.
  void broadcast(std::vector<std::byte>& bytes);
  /// On rank 0 what every rank gave, by rank; elsewhere nothing.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes);
  /// Throws usage on the ranks whose text is not rank 0's. `what` names it: "the command line".
  void agree(std::string_view what, std::string_view text);

  /// How it ended, for all ranks together.
  struct Ending {
    int code = 0;  ///< the same on all that could talk: 0, or that of the lowest rank that failed by itself
    bool speaks = true;  ///< this rank tells the user; others stay silent, so that there is one message
    bool orderly = true;  ///< every rank answered and nothing is under way
    std::string text;  ///< of ranks that gave no answer, for a speaker that has no error of its own
  };
  /// Collective, once, also on ranks that failed: `code` is this rank's own, 0 or 1 for success. Waits for the others
  /// for the timeout, or briefly if this rank failed. Say what there is to say, then close() or leave(): launchers
  /// kill all ranks when the first one exits with another code than 0.
  [[nodiscard]] Ending end(int code);
  /// After an orderly ending. Ends MPI if the Session began it, which waits for all ranks.
  void close() noexcept;
  /// Ends all processes at once, this one certainly (MPI_Abort, and _exit if that does not return), and after five
  /// seconds also mpirun, which may wait for a machine that is cut off.
  [[noreturn]] void leave(int code) noexcept;

 private:
  struct [[gnu::visibility("hidden")]] Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace swiglu::mpi
#pragma GCC visibility pop
