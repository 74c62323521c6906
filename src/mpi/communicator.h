// MPI as this room needs it: messages that are posted and tested, never waited for. communicator.cc is the one file
// that sees mpi.h. Every fault that MPI reports is an Error(communication) that names both ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace swiglu::mpi {

/// MPI_Init_thread with MPI_THREAD_SERIALIZED unless MPI runs already; true if this call began it.
bool begin_mpi();
/// MPI_Finalize.
void end_mpi() noexcept;
/// MPI_Abort of everything.
void abort_mpi(int code) noexcept;

/// A communicator of our own, duplicated from the caller's (collective).
class Communicator {
 public:
  /// `parent` is a Fortran handle, or nothing for the world.
  explicit Communicator(std::optional<int> parent);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Whether a thread other than the one that began MPI may call it, one at a time.
  [[nodiscard]] bool serialised() const;
  /// Ranks that share this machine's memory, ascending (collective).
  [[nodiscard]] std::vector<int> ranks_here() const;

 private:
  friend class Batch;
  struct Handle;
  std::unique_ptr<Handle> handle_;
  int rank_ = 0;
  int size_ = 1;
};

/// Messages under way, tested together. Memory that was handed over must stay until done() is true; what a Batch
/// still waits for when it goes is cancelled as far as MPI can.
class Batch {
 public:
  explicit Batch(const Communicator& communicator);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  /// Of any size; large ones go in several messages.
  void send(int peer, int tag, const void* data, std::int64_t bytes);
  void receive(int peer, int tag, void* data, std::int64_t bytes);
  /// Whether all have gone and come; then the Batch is empty. Throws communication, also when a message that came
  /// is shorter or longer than what was expected.
  [[nodiscard]] bool done();
  /// Peers of what is still under way, ascending.
  [[nodiscard]] std::vector<int> awaited() const;

 private:
  struct Requests;
  const Communicator& communicator_;
  std::unique_ptr<Requests> requests_;
};

}  // namespace swiglu::mpi
