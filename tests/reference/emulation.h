// The fast path's arithmetic as docs/design.md ("Numbers") states it, one float operation at a time: the
// thing that the oracle's bounds must hold for. Written from the document, sharing no code with the
// kernels; the flushing mode is emulated, so it needs no particular processor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::testing {

class Emulation {
 public:
  using Floats = std::vector<float>;

  explicit Emulation(Compute compute) : bf16_(compute == Compute::bf16) {}

  Floats norm, gate, up, z, down, out;

  void run(const LayerSource& layer, std::span<const double> h, bool block) {
    const auto dim = static_cast<std::size_t>(layer.config.dim);
    const auto hidden = static_cast<std::size_t>(layer.config.hidden);
    for (std::size_t start = 0; start < h.size(); start += dim) {
      Floats x;
      for (std::size_t k = 0; k < dim; ++k) x.push_back(flushed(static_cast<float>(h[start + k])));
      Floats n = block ? normalise(x, layer) : x;
      for (float& value : n) value = activation(value);
      const Floats g = product(*layer.gate, n, false);
      const Floats u = product(*layer.up, n, false);
      Floats activated;
      for (std::size_t i = 0; i < hidden; ++i) activated.push_back(activation(mul(silu(g[i]), u[i])));
      const Floats d = product(*layer.down, activated, true);
      append(norm, n);
      append(gate, g);
      append(up, u);
      append(z, activated);
      append(down, d);
      for (std::size_t k = 0; k < dim; ++k) out.push_back(block ? add(d[k], x[k]) : d[k]);
    }
  }

  [[nodiscard]] float silu(float x) const {
    const float y = std::max(-std::abs(x), -150.0F);
    const float n = std::rint(mul(y, 1.44269504F));
    float r = fma(n, -0.693359375F, y);
    r = fma(n, 2.12194440e-4F, r);
    float p = 1.9875691500e-4F;
    for (const float c : {1.3981999507e-3F, 8.3334519073e-3F, 4.1665795894e-2F, 1.6666665459e-1F, 5.0000001201e-1F}) {
      p = fma(p, r, c);
    }
    p = add(fma(p, mul(r, r), r), 1.0F);
    const float top = x < 0.0F ? scaled(mul(p, std::max(x, -150.0F)), static_cast<int>(n)) : x;
    return flushed(top / add(1.0F, scaled(p, static_cast<int>(n))));
  }

 private:
  [[nodiscard]] float flushed(float x) const { return bf16_ && std::abs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }
  [[nodiscard]] float add(float a, float b) const { return flushed(flushed(a) + flushed(b)); }
  [[nodiscard]] float mul(float a, float b) const { return flushed(flushed(a) * flushed(b)); }
  [[nodiscard]] float fma(float a, float b, float c) const {
    return flushed(std::fma(flushed(a), flushed(b), flushed(c)));
  }
  [[nodiscard]] float scaled(float x, int n) const {
    return mul(mul(x, std::ldexp(1.0F, n >> 1)), std::ldexp(1.0F, n - (n >> 1)));
  }
  [[nodiscard]] float activation(float x) const { return bf16_ ? float_from_bf16(bf16_from_float(flushed(x))) : x; }
  static void append(Floats& all, const Floats& some) { all.insert(all.end(), some.begin(), some.end()); }

  [[nodiscard]] Floats normalise(const Floats& x, const LayerSource& layer) const {
    float lanes[16] = {};
    for (std::size_t k = 0; k < x.size(); ++k) lanes[k % 16] = fma(x[k], x[k], lanes[k % 16]);
    for (std::size_t step = 8; step > 0; step /= 2) {
      for (std::size_t i = 0; i < step; ++i) lanes[i] = add(lanes[i], lanes[i + step]);
    }
    const float mean = flushed(lanes[0] / static_cast<float>(x.size()));
    const float root = std::sqrt(add(mean, static_cast<float>(layer.config.eps)));
    const float r = flushed(1.0F / root);
    Floats n;
    for (std::size_t k = 0; k < x.size(); ++k) n.push_back(mul(mul(x[k], r), layer.norm[k]));
    return n;
  }

  // One output: k in [begin, end), in chunks.
  [[nodiscard]] float chunked(const Floats& w, const Floats& x, std::size_t begin, std::size_t end) const {
    const std::size_t chunk = bf16_ ? 1024 : 512;
    float running = 0.0F;
    for (std::size_t start = begin; start < end; start += chunk) {
      const std::size_t stop = std::min(end, start + chunk);
      float sum = 0.0F;
      if (bf16_) {
        for (std::size_t k = start; k < stop; k += 2) {
          if (k + 1 < stop) sum = fma(w[k + 1], x[k + 1], sum);
          sum = fma(w[k], x[k], sum);
        }
      } else {
        for (std::size_t k = start; k < stop; ++k) sum = fma(w[k], x[k], sum);
      }
      running = add(running, sum);
    }
    return running;
  }

  [[nodiscard]] Floats product(const TensorSource& matrix, const Floats& x, bool grouped) const {
    const std::size_t cols = x.size();
    std::vector<std::byte> row(cols * static_cast<std::size_t>(size_of(matrix.dtype())));
    Floats w(cols);
    Floats out;
    for (std::int64_t r = 0; r < matrix.rows(); ++r) {
      matrix.read(r, 1, 0, matrix.cols(), row.data());
      for (std::size_t k = 0; k < cols; ++k) {
        const double stored = load_double(row.data(), matrix.dtype(), static_cast<std::int64_t>(k));
        w[k] = bf16_ ? float_from_bf16(bf16_from_double(stored)) : static_cast<float>(stored);
      }
      if (!grouped) {
        out.push_back(chunked(w, x, 0, cols));
        continue;
      }
      float sums[16];
      const std::size_t units = (cols + 31) / 32;
      for (std::size_t g = 0; g < 16; ++g) {
        sums[g] = chunked(w, x, 32 * (g * units / 16), std::min(cols, 32 * ((g + 1) * units / 16)));
      }
      for (std::size_t left = 16; left > 1; left /= 2) {
        for (std::size_t g = 0; g < left / 2; ++g) sums[g] = add(sums[2 * g], sums[2 * g + 1]);
      }
      out.push_back(add(sums[0], 0.0F));
    }
    return out;
  }

  bool bf16_;
};

}  // namespace swiglu::testing
