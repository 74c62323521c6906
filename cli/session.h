// The processes that run a command together: one for swiglu, those that mpirun started for swiglu-mpi. Rank 0 runs
// the command; the others follow(), which is to do what rank 0's Team asks. Either session_local.cc or
// session_mpi.cc is linked.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "commands.h"
#include "team.h"

namespace swiglu::cli {

class Session {
 public:
  virtual ~Session() = default;
  [[nodiscard]] virtual const char* program() const = 0;
  [[nodiscard]] virtual bool leads() const = 0;
  /// "rank 1 (node2): " before errors that do not say it; nothing for one process.
  [[nodiscard]] virtual std::string place() const = 0;
  [[nodiscard]] virtual Team* team() = 0;  ///< null for one process without MPI
  /// Throws usage on a rank whose version or command line is not rank 0's.
  virtual void agree(std::span<char* const> arguments) = 0;
  virtual void configure(const RanksOptions& options) = 0;
  /// What ranks other than 0 do, until rank 0 is done.
  virtual void follow() = 0;

  struct Ending {
    int code;
    bool speaks;       ///< this process tells the user of its error, or else of `text`
    bool orderly;      ///< close() when it has spoken, else leave()
    std::string text;  ///< of ranks that gave no answer
  };
  virtual Ending end(int code) = 0;
  virtual void close() = 0;
  [[noreturn]] virtual void leave(int code) = 0;
};

/// `arguments` are looked through for --timeout, which counts from the beginning; they are parsed later.
[[nodiscard]] std::unique_ptr<Session> open_session(std::span<char* const> arguments);

}  // namespace swiglu::cli
