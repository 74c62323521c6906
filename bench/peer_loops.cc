// See peer_loops.h. Compiled with -march=native -ffast-math, so that expf is the C library's vector form; no
// standard containers here, because their inline functions would spread those flags.
#include "peer_loops.h"

#include <bit>
#include <cmath>

namespace swiglu::bench {
namespace {

float load(float x) { return x; }
float load(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }
void store(float x, float* to) { *to = x; }
void store(float x, std::uint16_t* to) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  *to = static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

template <class T>
void normalise(const T* h, const float* g, float eps, std::int64_t tokens, std::int64_t dim, T* n, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && tokens > 1)
  for (std::int64_t token = 0; token < tokens; ++token) {
    const T* from = h + token * dim;
    T* to = n + token * dim;
    float sum = 0;
    for (std::int64_t i = 0; i < dim; ++i) sum += load(from[i]) * load(from[i]);
    const float r = 1.0F / std::sqrt(sum / static_cast<float>(dim) + eps);
    for (std::int64_t i = 0; i < dim; ++i) store(load(from[i]) * r * g[i], to + i);
  }
}

}  // namespace

void rms_norm(const float* h, const float* g, float eps, std::int64_t tokens, std::int64_t dim, float* n, int threads) {
  normalise(h, g, eps, tokens, dim, n, threads);
}

void rms_norm(const std::uint16_t* h, const float* g, float eps, std::int64_t tokens, std::int64_t dim,
              std::uint16_t* n, int threads) {
  normalise(h, g, eps, tokens, dim, n, threads);
}

void silu_multiply(float* gate, const float* up, std::int64_t count, int threads) {
  constexpr std::int64_t kWorthThreads = 1 << 16;
#pragma omp parallel for simd num_threads(threads) if (threads > 1 && count > kWorthThreads)
  for (std::int64_t i = 0; i < count; ++i) gate[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

}  // namespace swiglu::bench
