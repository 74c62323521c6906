// The problem, made from a seed, and swiglu itself as one of the programs that solve it.
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "peer.h"
#include "swiglu/files.hpp"

namespace swiglu::bench {
namespace {

constexpr std::uint64_t kSeed = 8;

Buffer read_all(const TensorSource& source) {
  Buffer buffer(source.rows() * source.cols() * size_of(source.dtype()));
  source.read(0, source.rows(), 0, source.cols(), buffer.data());
  return buffer;
}

TensorView view(const Buffer& buffer, DType dtype, std::int64_t rows, std::int64_t cols) {
  return {buffer.data(), dtype, rows, cols, cols};
}

class Swiglu final : public Peer {
 public:
  explicit Swiglu(const Problem& problem)
      : problem_(problem), pool_(problem.threads), layer_(source_of(problem), pool_), out_(problem.h.size()),
        workspace_(static_cast<std::int64_t>(layer_.workspace_bytes(problem.most_tokens))) {}

  [[nodiscard]] std::string name() const override { return fmt::format("swiglu {}", version()); }
  [[nodiscard]] std::string about() const override {
    return fmt::format("{} compute on {}, {:.0f} MB of {} packed once for all numbers of tokens",
                       name_of(layer_.info().compute), name_of(layer_.info().isa),
                       static_cast<double>(layer_.info().packed_bytes) * 1e-6, layer_.info().gate_up.storage);
  }
  void prepare(std::int64_t tokens) override { tokens_ = tokens; }
  double run() override {
    const std::int64_t dim = problem_.config.dim;
    const TensorView h = view(problem_.h, problem_.dtype, tokens_, dim);
    const MutableTensorView out{out_.data(), problem_.dtype, tokens_, dim, dim};
    const std::span<std::byte> workspace(workspace_.data(), static_cast<std::size_t>(workspace_.size()));
    return seconds_of([&] { layer_.block(h, out, workspace); });
  }
  [[nodiscard]] const std::byte* output() const override { return out_.data(); }

 private:
  static LayerSource source_of(const Problem& p) {
    const auto [dim, hidden, eps] = p.config;
    return {.config = p.config,
            .gate = view_source("gate", view(p.gate, p.dtype, hidden, dim)),
            .up = view_source("up", view(p.up, p.dtype, hidden, dim)),
            .down = view_source("down", view(p.down, p.dtype, dim, hidden)),
            .norm = p.norm};
  }

  const Problem& problem_;
  ThreadPool pool_;
  FeedForward layer_;
  Buffer out_;
  Buffer workspace_;
  std::int64_t tokens_ = 0;
};

}  // namespace

Problem make_problem(const FfnConfig& config, DType dtype, int threads, std::int64_t most_tokens) {
  const LayerSource layer = random_layer(config, dtype, kSeed);
  Problem problem{.config = config,
                  .dtype = dtype,
                  .threads = threads,
                  .most_tokens = most_tokens,
                  .gate = read_all(*layer.gate),
                  .up = read_all(*layer.up),
                  .down = read_all(*layer.down),
                  .norm = layer.norm,
                  .h = Buffer(most_tokens * config.dim * size_of(dtype))};
  // Activations of deviation about 1: the same generator's gate of another layer, widened.
  const FfnConfig narrow{.dim = 1, .hidden = most_tokens * config.dim, .eps = config.eps};
  random_layer(narrow, dtype, kSeed, 1).gate->read(0, narrow.hidden, 0, 1, problem.h.data());
  return problem;
}

std::unique_ptr<Peer> make_swiglu(const Problem& problem) { return std::make_unique<Swiglu>(problem); }

}  // namespace swiglu::bench
