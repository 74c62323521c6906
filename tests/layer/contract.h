// The numeric contract, written a second time from docs/design.md ("Numbers") alone: plain scalar
// code, one token and one output at a time, no blocking, no packing, no intrinsics but the control
// register. It shares no line with src/, so that both can only agree by following the same text.
// Knows the front door's enums; the test that compares bits is contract_test.cc.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <xmmintrin.h>

#include "swiglu/swiglu.hpp"

namespace swiglu::contract {

// ---------------------------------------------------------------------------------------------
// Storage types. All of this must run in the default floating-point mode.

/// v rounded to nearest even in a binary format of `digits` significand bits and exponents emin … emax.
inline double round_to_format(double v, int digits, int emin, int emax) {
  if (v == 0 || !std::isfinite(v)) return v;
  const auto power = [](int e) { return std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52); };
  const int exponent = static_cast<int>(std::bit_cast<std::uint64_t>(v) >> 52 & 2047) - 1023;
  const int quantum = std::max(exponent, emin) - (digits - 1);
  const double rounded = std::fabs(std::rint(v * power(-quantum)) * power(quantum));
  return std::copysign(rounded >= power(emax + 1) ? std::numeric_limits<double>::infinity() : rounded, v);
}
inline double round_to(double v, DType t) {
  switch (t) {
    case DType::f32:
      return round_to_format(v, 24, -126, 127);
    case DType::bf16:
      return round_to_format(v, 8, -126, 127);
    case DType::f16:
      return round_to_format(v, 11, -14, 15);
    case DType::f64:
      return v;
  }
  return v;
}

/// The bits of v in format t, in the low bits; every NaN becomes the positive canonical one.
inline std::uint64_t encode(double v, DType t) {
  constexpr std::uint64_t kNaN[] = {0x7fc00000, 0x7fc0, 0x7e00, 0x7ff8000000000000};
  if (std::isnan(v)) return kNaN[static_cast<int>(t)];
  v = round_to(v, t);
  if (t == DType::f64) return std::bit_cast<std::uint64_t>(v);
  if (t != DType::f16) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(v));  // exact
    return t == DType::f32 ? bits : bits >> 16;
  }
  const std::uint64_t sign = std::signbit(v) ? 0x8000 : 0;
  const double magnitude = std::fabs(v);
  if (std::isinf(v)) return sign | 0x7c00;
  if (magnitude < std::ldexp(1.0, -14)) return sign | static_cast<std::uint64_t>(std::ldexp(magnitude, 24));
  const int e = std::ilogb(magnitude);
  return sign | static_cast<std::uint64_t>((e + 15) * 1024 + static_cast<int>(std::ldexp(magnitude, 10 - e)) - 1024);
}

/// The value of bits in format t, exactly.
inline double decode(std::uint64_t bits, DType t) {
  if (t == DType::f64) return std::bit_cast<double>(bits);
  if (t != DType::f16) {
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(t == DType::f32 ? bits : bits << 16)));
  }
  const int e = static_cast<int>(bits >> 10 & 31);
  const int fraction = static_cast<int>(bits & 1023);
  double magnitude = std::ldexp(e == 0 ? fraction : fraction + 1024, std::max(e, 1) - 25);
  if (e == 31) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// What the arithmetic reads for an input element: f64 narrows, the other types are exact.
inline float read_input(double v) { return static_cast<float>(round_to(v, DType::f32)); }

/// What the arithmetic reads for a weight: narrowed once, straight from its own type; denormals stay.
inline float read_weight(double v, Compute compute) {
  return static_cast<float>(round_to(v, compute == Compute::bf16 ? DType::bf16 : DType::f32));
}

// ---------------------------------------------------------------------------------------------
// The arithmetic. Runs in the mode of the compute type, see in_mode().

struct Layer {
  Compute compute;
  std::int64_t dim;
  std::int64_t hidden;
  float eps;
  std::vector<float> gate, up, down;  ///< as read_weight() gives them
  std::vector<float> norm;
};
struct Token {
  std::vector<float> norm, gate, up, z, down;
  std::vector<float> out;  ///< fp32, before it is stored in the caller's type
};

/// What vcvtneps2bf16 does, in integers: a denormal becomes signed zero, the rest rounds to nearest even.
inline float round_activation(float v) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t exponent = bits >> 23 & 255;
  if (exponent == 0) return std::bit_cast<float>(bits & 0x80000000u);
  if (exponent == 255) return v;
  const std::uint32_t below = bits & 0xffff;
  bits -= below;
  if (below > 0x8000 || (below == 0x8000 && (bits & 0x10000) != 0)) bits += 0x10000;
  return std::bit_cast<float>(bits);
}

/// Σ a[k]·b[k] over [begin, end): chunks that restart at `begin`, each added to a running sum.
inline float dot(const float* a, const float* b, std::int64_t begin, std::int64_t end, Compute compute) {
  const std::int64_t chunk = compute == Compute::bf16 ? 1024 : 512;
  float sum = 0.0f;
  for (std::int64_t first = begin; first < end; first += chunk) {
    const std::int64_t last = std::min(first + chunk, end);
    float acc = 0.0f;
    if (compute == Compute::bf16) {
      for (std::int64_t k = first; k < last; k += 2) {
        const bool pair = k + 1 < last;
        acc = std::fma(pair ? a[k + 1] : 0.0f, pair ? b[k + 1] : 0.0f, acc);
        acc = std::fma(a[k], b[k], acc);
      }
    } else {
      for (std::int64_t k = first; k < last; ++k) acc = std::fma(a[k], b[k], acc);
    }
    sum = sum + acc;
  }
  return sum;
}

/// The down projection's dot product: 16 groups of granule 32, added pairwise, neighbours first.
inline float grouped_dot(const float* a, const float* b, std::int64_t hidden, Compute compute) {
  const std::int64_t granules = (hidden + 31) / 32;
  std::array<float, 16> sums{};
  for (std::int64_t g = 0; g < 16; ++g) {
    const std::int64_t begin = 32 * (g * granules / 16);
    const std::int64_t end = std::min(hidden, 32 * ((g + 1) * granules / 16));
    if (begin < end) sums[static_cast<std::size_t>(g)] = dot(a, b, begin, end, compute);
  }
  for (std::size_t width = 1; width < 16; width *= 2) {
    for (std::size_t g = 0; g < 16; g += 2 * width) sums[g] = sums[g] + sums[g + width];
  }
  return sums[0] + 0.0f;
}

inline float times_power_of_two(float v, int n) {
  const int half = n >> 1;
  const float low = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const float high = std::bit_cast<float>(static_cast<std::uint32_t>(n - half + 127) << 23);
  return (v * low) * high;
}

inline float silu(float x) {
  if (std::isnan(x)) return x;
  const float y = std::max(-std::fabs(x), -150.0f);
  const float n = std::rint(y * 1.44269504f);
  float r = std::fma(n, -0.693359375f, y);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r) + 1.0f;
  const int exponent = static_cast<int>(n);
  const float t = times_power_of_two(p, exponent);
  const float num = x < 0.0f ? times_power_of_two(p * std::max(x, -150.0f), exponent) : x;
  return num / (1.0f + t);
}

inline std::vector<float> rms_norm(const Layer& layer, const std::vector<float>& h) {
  std::array<float, 16> lanes{};
  for (std::size_t k = 0; k < h.size(); ++k) lanes[k % 16] = std::fma(h[k], h[k], lanes[k % 16]);
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) lanes[i] = lanes[i] + lanes[i + width];
  }
  const float r = 1.0f / std::sqrt(lanes[0] / static_cast<float>(layer.dim) + layer.eps);
  std::vector<float> n(h.size());
  for (std::size_t k = 0; k < h.size(); ++k) n[k] = (h[k] * r) * layer.norm[k];
  return n;
}

struct Work {
  const Layer* layer;
  const std::vector<float>* h;
  bool block;
  Token* token;
};

[[gnu::noinline]] inline void compute_token(const Work* work) {
  const Layer& layer = *work->layer;
  Token& token = *work->token;
  const bool bf16 = layer.compute == Compute::bf16;
  token.norm = work->block ? rms_norm(layer, *work->h) : *work->h;
  if (bf16) std::transform(token.norm.begin(), token.norm.end(), token.norm.begin(), round_activation);
  for (std::int64_t j = 0; j < layer.hidden; ++j) {
    const float gate = dot(token.norm.data(), layer.gate.data() + j * layer.dim, 0, layer.dim, layer.compute);
    const float up = dot(token.norm.data(), layer.up.data() + j * layer.dim, 0, layer.dim, layer.compute);
    const float z = silu(gate) * up;
    token.gate.push_back(gate);
    token.up.push_back(up);
    token.z.push_back(bf16 ? round_activation(z) : z);
  }
  for (std::int64_t i = 0; i < layer.dim; ++i) {
    const float down = grouped_dot(token.z.data(), layer.down.data() + i * layer.hidden, layer.hidden, layer.compute);
    token.down.push_back(down);
    token.out.push_back(work->block ? (*work->h)[static_cast<std::size_t>(i)] + down : down);
  }
}

/// Calls the task through a pointer that the compiler cannot see through: no arithmetic of the task
/// can move across the writes to the control register.
[[gnu::noinline]] inline void in_mode(unsigned mxcsr, void (*task)(const Work*), const Work* work) {
  void (*volatile opaque)(const Work*) = task;
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(mxcsr);
  opaque(work);
  _mm_setcsr(saved);
}

/// Everything the contract says about one token; `block` false: without norm and residual.
inline Token run_token(const Layer& layer, const std::vector<float>& h, bool block) {
  Token token;
  const Work work{&layer, &h, block, &token};
  in_mode(layer.compute == Compute::bf16 ? 0x9FC0u : 0x1F80u, compute_token, &work);
  return token;
}

/// The bits that are stored for an fp32 result. In bf16 compute a bf16 output loses denormals first.
inline std::uint64_t encode_output(float v, DType t, Compute compute) {
  if (t == DType::bf16 && compute == Compute::bf16) v = round_activation(v);
  return encode(static_cast<double>(v), t);
}

}  // namespace swiglu::contract
