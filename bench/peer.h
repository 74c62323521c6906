// What swiglu_peers compares: one problem, and programs that solve it, all behind one small interface.
// Weights, activations and time are the same for all of them; how each is computed is its own business.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::bench {

/// The layer as a checkpoint holds it (row-major) and the tokens. Everything but the norm is of type `dtype`,
/// input and output too: bf16 for bf16 compute, f32 for f32 compute. On huge pages.
struct Problem {
  FfnConfig config;
  DType dtype = DType::bf16;
  int threads = 1;
  std::int64_t most_tokens = 0;
  Buffer gate, up, down;
  std::vector<float> norm;
  Buffer h;  ///< [most_tokens, dim]
};
[[nodiscard]] Problem make_problem(const FfnConfig& config, DType dtype, int threads, std::int64_t most_tokens);

/// One program that computes out = h + FFN(norm(h)) for the first tokens of the problem.
class Peer {
 public:
  virtual ~Peer() = default;
  [[nodiscard]] virtual std::string name() const = 0;   ///< with its version: the head of its column
  [[nodiscard]] virtual std::string about() const = 0;  ///< instruction set, threads: whatever a claim must name
  /// Everything that is done once, ahead of time: packing, primitives, the choice between settings.
  virtual void prepare(std::int64_t tokens) = 0;
  /// How the prepared number of tokens is computed; "" if there is nothing to say.
  [[nodiscard]] virtual std::string setting() const { return ""; }
  /// Computes the prepared tokens once; the seconds that it took.
  virtual double run() = 0;
  /// [tokens, dim] of the problem's type, from the last run.
  [[nodiscard]] virtual const std::byte* output() const = 0;
};

[[nodiscard]] std::unique_ptr<Peer> make_swiglu(const Problem& problem);
[[nodiscard]] std::unique_ptr<Peer> make_onednn(const Problem& problem, const std::string& setting);
[[nodiscard]] std::unique_ptr<Peer> make_openblas(const Problem& problem);
/// Debian's OpenBLAS takes processors younger than itself for the oldest one ("Prescott"), several times slower than
/// it can be. Where that happens, this starts the program anew with the core named that fits `best`.
void help_openblas(char** argv, Isa best);
/// Null, and `why` says why, if this Python has no usable torch.
[[nodiscard]] std::unique_ptr<Peer> make_torch(const Problem& problem, const std::string& python,
                                               const std::string& script, std::string& why);

template <class Body>
[[nodiscard]] double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace swiglu::bench
