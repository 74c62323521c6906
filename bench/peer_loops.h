// The element-wise parts of the sublayer for peers whose library has matrix products only. Plain loops that
// the compiler vectorises for the processor it runs on; row-major, dense, spread over OpenMP's threads.
#pragma once

#include <cstdint>

namespace swiglu::bench {

/// n = h / sqrt(mean(h²) + eps) ⊙ g
void rms_norm(const float* h, const float* g, float eps, std::int64_t tokens, std::int64_t dim, float* n, int threads);
/// The same on bf16 numbers, as their bit patterns, rounded to nearest even.
void rms_norm(const std::uint16_t* h, const float* g, float eps, std::int64_t tokens, std::int64_t dim,
              std::uint16_t* n, int threads);
/// gate = silu(gate) ⊙ up
void silu_multiply(float* gate, const float* up, std::int64_t count, int threads);

}  // namespace swiglu::bench
