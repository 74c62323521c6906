// The data of the contract's test: seeded values of many kinds, and matrices of any storage type whose
// rows lie apart and unaligned. Rounding to the storage types is contract.h's.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "layer/contract.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::contract {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u) {}
  std::uint64_t next() {  // splitmix64
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double between(double low, double high) { return low + (high - low) * uniform(); }
  double sign() { return (next() & 1) != 0 ? 1.0 : -1.0; }
  double normal() {  // four uniforms of 16 bits
    std::int64_t sum = -131070;
    for (std::uint64_t x = next(), i = 0; i < 4; ++i, x >>= 16) sum += static_cast<std::int64_t>(x & 0xffff);
    return static_cast<double>(sum) * (0x1.bb67aep-16);
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t state_;
};

enum class Kind {
  normal,
  heavy,    // magnitudes over 2^±20
  tiny,     // denormals of the type and what lies a little above them
  small,    // about 2^-64: products of two are at the edge of underflow
  huge,     // up to the type's largest finite number
  zeros,    // mostly ±0, with ±1 and ± the smallest denormal
  ties,     // halfway between bf16 neighbours, or off it by less than fp32 sees
  special,  // normal, and about one Inf, NaN, ±0, denormal or largest number for two rows
};
inline const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"normal", "heavy", "tiny", "small", "huge", "zeros", "ties", "special"};
  return kNames[static_cast<int>(kind)];
}

inline double smallest(DType t) { return t == DType::f16 ? 0x1p-24 : t == DType::bf16 ? 0x1p-133 : 0x1p-149; }
inline double largest(DType t) {  // a double is narrowed: what matters lies around the largest float
  return t == DType::f16 ? 65504.0 : t == DType::bf16 ? 0x1.fep127 : t == DType::f32 ? 0x1.fffffep127 : 0x1.fffffefp127;
}

inline double draw(Random& random, Kind kind, DType t, std::int64_t cols) {
  const double any = random.sign() * random.between(1.0, 2.0);
  switch (kind) {
    case Kind::normal:
      return random.normal();
    case Kind::heavy:
      return random.sign() * std::exp2(6.0 * random.normal());
    case Kind::tiny:
      return any * smallest(t) * std::exp2(std::floor(random.between(-2, t == DType::f16 ? 14 : 40)));
    case Kind::small:
      return any * std::exp2(std::floor(t == DType::f16 ? random.between(-16, -8) : random.between(-72, -56)));
    case Kind::huge:
      return any * largest(t) * std::exp2(std::floor(random.between(t == DType::f16 ? -10 : -60, 0)));
    case Kind::zeros: {
      const std::int64_t which = random.below(16);
      return random.sign() * (which == 0 ? 1.0 : which == 1 ? smallest(t) : 0.0);
    }
    case Kind::ties: {
      const double half = 1.0 + static_cast<double>(2 * random.below(128) + 1) * 0x1p-8;
      return random.sign() * (half + static_cast<double>(random.below(3) - 1) * 0x1p-40) *
             std::exp2(random.below(9) - 4);
    }
    case Kind::special: {
      if (random.below(2 * cols) != 0) return random.normal();
      const double values[] = {std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN(),
                               0.0,
                               smallest(t),
                               100 * smallest(t),
                               largest(t)};
      return random.sign() * values[random.below(6)];
    }
  }
  return 0;
}

/// A matrix in some storage type, with rows apart and not aligned.
class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t gap = 0)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + gap),
        bytes_(static_cast<std::size_t>(rows * (cols + gap) * size_of(dtype)), std::byte{0xa5}) {}

  void set(std::int64_t r, std::int64_t c, std::uint64_t bits) { std::memcpy(at(r, c), &bits, element()); }
  [[nodiscard]] std::uint64_t bits(std::int64_t r, std::int64_t c) const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes_.data() + (r * stride_ + c) * size_of(dtype_), element());
    return bits;
  }
  [[nodiscard]] double value(std::int64_t r, std::int64_t c) const { return decode(bits(r, c), dtype_); }
  [[nodiscard]] MutableTensorView view() { return {bytes_.data(), dtype_, rows_, cols_, stride_}; }

  /// Values rounded to the type; NaN gets one of many patterns, signalling ones among them.
  void fill(Random& random, Kind kind, double scale) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < cols_; ++c) {
        const double v = draw(random, kind, dtype_, cols_);
        std::uint64_t bits = encode(kind == Kind::normal || kind == Kind::heavy ? v * scale : v, dtype_);
        if (std::isnan(v)) {
          constexpr int kMantissa[] = {23, 7, 10, 52};
          const int mantissa = kMantissa[static_cast<int>(dtype_)];
          const std::uint64_t payloads[] = {1, std::uint64_t{1} << (mantissa - 1), (std::uint64_t{1} << mantissa) - 1};
          bits = (bits >> mantissa << mantissa) | payloads[random.below(3)] |
                 std::uint64_t{random.next() & 1} << (8 * size_of(dtype_) - 1);
        }
        set(r, c, bits);
      }
    }
  }

 private:
  [[nodiscard]] std::size_t element() const { return static_cast<std::size_t>(size_of(dtype_)); }
  std::byte* at(std::int64_t r, std::int64_t c) { return bytes_.data() + (r * stride_ + c) * size_of(dtype_); }
  DType dtype_;
  std::int64_t rows_, cols_, stride_;
  std::vector<std::byte> bytes_;
};

}  // namespace swiglu::contract
