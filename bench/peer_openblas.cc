// OpenBLAS's sgemm (sgemv for one token), fp32 only: it reads the weights as the checkpoint has them, row-major,
// and packs them anew in every call, because it has no prepacked form. What is not a matrix product is a plain
// loop. The only home of cblas.h.
#include <cblas.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "peer.h"
#include "peer_loops.h"

namespace swiglu::bench {
namespace {

constexpr const char* kCoreType = "OPENBLAS_CORETYPE";

class OpenBlas final : public Peer {
 public:
  explicit OpenBlas(const Problem& problem)
      : problem_(problem), norm_(floats(problem.config.dim)), gate_(floats(problem.config.hidden)),
        up_(floats(problem.config.hidden)), out_(floats(problem.config.dim)) {
    openblas_set_num_threads(problem.threads);
  }

  [[nodiscard]] std::string name() const override {
    const std::string config = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE …"
    return config.substr(0, config.find(' ', config.find(' ') + 1));
  }
  [[nodiscard]] std::string about() const override {
    const int parallel = openblas_get_parallel();
    return fmt::format("core {}{}, threads by {}, weights row-major (it has no prepacked form)",
                       openblas_get_corename(), std::getenv(kCoreType) != nullptr ? " by OPENBLAS_CORETYPE" : "",
                       parallel == OPENBLAS_THREAD   ? "its own pool"
                       : parallel == OPENBLAS_OPENMP ? "OpenMP"
                                                     : "none");
  }
  [[nodiscard]] std::string setting() const override { return tokens_ == 1 ? "sgemv" : "sgemm"; }
  void prepare(std::int64_t tokens) override { tokens_ = tokens; }

  double run() override {
    const auto [dim, hidden, eps] = problem_.config;
    const auto* h = reinterpret_cast<const float*>(problem_.h.data());
    return seconds_of([&] {
      rms_norm(h, problem_.norm.data(), static_cast<float>(eps), tokens_, dim, at(norm_), problem_.threads);
      multiply(at(norm_), problem_.gate, hidden, dim, 0, at(gate_));
      multiply(at(norm_), problem_.up, hidden, dim, 0, at(up_));
      silu_multiply(at(gate_), at(up_), tokens_ * hidden, problem_.threads);
      std::memcpy(at(out_), h, static_cast<std::size_t>(tokens_ * dim) * sizeof(float));
      multiply(at(gate_), problem_.down, dim, hidden, 1, at(out_));  // onto the residual
    });
  }
  [[nodiscard]] const std::byte* output() const override { return out_.data(); }

 private:
  [[nodiscard]] Buffer floats(std::int64_t width) const {
    return Buffer(problem_.most_tokens * width * static_cast<std::int64_t>(sizeof(float)));
  }
  static float* at(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

  /// out = in · weightsᵀ + keep · out
  void multiply(const float* in, const Buffer& weights, std::int64_t outputs, std::int64_t inputs, float keep,
                float* out) const {
    const auto m = static_cast<blasint>(tokens_);
    const auto n = static_cast<blasint>(outputs);
    const auto k = static_cast<blasint>(inputs);
    if (m == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, n, k, 1, at(weights), k, in, 1, keep, out, 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, in, k, at(weights), k, keep, out, n);
    }
  }

  const Problem& problem_;
  Buffer norm_, gate_, up_, out_;
  std::int64_t tokens_ = 0;
};

}  // namespace

void help_openblas(char** argv, Isa best) {
  if (std::getenv(kCoreType) != nullptr || std::strcmp(openblas_get_corename(), "Prescott") != 0) return;
  if (best < Isa::avx2) return;
  setenv(kCoreType, best >= Isa::avx512 ? "SkylakeX" : "Haswell", 1);  // NOLINT(concurrency-mt-unsafe)
  execv("/proc/self/exe", argv);  // it reads the variable when it is loaded; if this fails we go on without
}

std::unique_ptr<Peer> make_openblas(const Problem& problem) { return std::make_unique<OpenBlas>(problem); }

}  // namespace swiglu::bench
