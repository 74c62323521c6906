// Layers and inputs for tests: owned weights of any type and any kind of data, and calls on them.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::testing {

enum class Data { normal, heavy, denormal, wild };

/// A value generator: N(0,1); Student-t with 3 degrees of freedom; tiny values around the denormals;
/// normal with infinities, NaN, huge, tiny and signed zeros sprinkled in.
class Values {
 public:
  Values(Data kind, std::uint64_t seed) : kind_(kind), engine_(seed) {}
  double next() {
    switch (kind_) {
      case Data::heavy:
        return heavy_(engine_);
      case Data::denormal:
        return std::ldexp(normal_(engine_), -120 - static_cast<int>(engine_() % 28));
      case Data::normal:
        return normal_(engine_);
      case Data::wild:
        break;
    }
    constexpr double kInf = std::numeric_limits<double>::infinity();
    switch (engine_() % 5000) {  // rare: one Inf or NaN in a row of weights hides all else in that output
      case 0:
        return kInf;
      case 1:
        return -kInf;
      case 2:
        return std::numeric_limits<double>::quiet_NaN();
      case 3:
        return 3e38;
      default:
        break;
    }
    switch (engine_() % 50) {
      case 0:
        return 1e-40;
      case 1:
        return -1e-40;
      case 2:
        return -0.0;
      case 3:
        return 0.0;
      case 4:
        return 1.2e-38;
      default:
        return normal_(engine_);
    }
  }

 private:
  Data kind_;
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
  std::student_t_distribution<double> heavy_{3.0};
};

/// A dense matrix that owns its elements.
struct Matrix {
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::byte> bytes;

  Matrix(DType t, std::int64_t r, std::int64_t c)
      : dtype(t), rows(r), cols(c), bytes(static_cast<std::size_t>(r * c * size_of(t))) {}
  static Matrix filled(DType t, std::int64_t r, std::int64_t c, Values values, double scale) {
    Matrix m(t, r, c);
    for (std::int64_t i = 0; i < r * c; ++i) store_double(m.bytes.data(), t, i, values.next() * scale);
    return m;
  }
  [[nodiscard]] TensorView view() const { return {bytes.data(), dtype, rows, cols, cols}; }
  [[nodiscard]] MutableTensorView view() { return {bytes.data(), dtype, rows, cols, cols}; }
  [[nodiscard]] std::vector<double> doubles() const {
    std::vector<double> all(static_cast<std::size_t>(rows * cols));
    for (std::int64_t i = 0; i < rows * cols; ++i)
      all[static_cast<std::size_t>(i)] = load_double(bytes.data(), dtype, i);
    return all;
  }
};

/// A LayerSource with its memory.
struct Layer {
  Matrix gate, up, down;
  LayerSource source;

  Layer(std::int64_t dim, std::int64_t hidden, DType t, Data kind, std::uint64_t seed)
      : Layer(dim, hidden, {t, t, t}, kind, seed) {}
  struct Types {
    DType gate, up, down;
  };
  Layer(std::int64_t dim, std::int64_t hidden, Types t, Data kind, std::uint64_t seed)
      : gate(Matrix::filled(t.gate, hidden, dim, Values(kind, seed * 4), 1 / std::sqrt(static_cast<double>(dim)))),
        up(Matrix::filled(t.up, hidden, dim, Values(kind, seed * 4 + 1), 1 / std::sqrt(static_cast<double>(dim)))),
        down(Matrix::filled(t.down, dim, hidden, Values(kind, seed * 4 + 2),
                            1 / std::sqrt(static_cast<double>(hidden)))) {
    source.config = {dim, hidden, 1e-5};
    source.gate = view_source("gate", std::as_const(gate).view());
    source.up = view_source("up", std::as_const(up).view());
    source.down = view_source("down", std::as_const(down).view());
    Values g(Data::normal, seed * 4 + 3);
    for (std::int64_t i = 0; i < dim; ++i) source.norm.push_back(static_cast<float>(1 + 0.1 * g.next()));
  }
};

/// out = block(h) or forward(h) in a fresh matrix of type `out_type`.
inline Matrix run(const FeedForward& layer, const Matrix& h, bool block = true, DType out_type = DType::f32) {
  Matrix out(out_type, h.rows, h.cols);
  block ? layer.block(h.view(), out.view()) : layer.forward(h.view(), out.view());
  return out;
}

/// ‖a − b‖ / ‖b‖.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace swiglu::testing
