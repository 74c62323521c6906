// Random weights from a counter: no state, so any slice of any tensor is made alone, in any order and on
// any thread, and every format and shard count holds the same weights. Reads no files. The value of an
// element is a float first and then rounded to the type asked for, so every type is the rounding of the
// same number. Integer hashing and one multiplication: the same bits on every machine.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "base/dtype.h"
#include "base/text.h"
#include "swiglu/files.hpp"

namespace swiglu {
namespace {

// The finaliser of splitmix64: every output bit depends on every input bit.
constexpr std::uint64_t mixed(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}
constexpr std::uint64_t joined(std::uint64_t key, std::uint64_t next) noexcept {
  return mixed(key + 0x9e3779b97f4a7c15U + mixed(next + 0xd1b54a32d192ed03U));
}

constexpr std::array<std::string_view, 4> kRoles = {"gate", "up", "down", "norm"};

// How the elements of one tensor are distributed, and the hash that its rows start from.
struct Stream {
  std::uint64_t key;
  float mean;
  float scale;
};

Stream make_stream(const FfnConfig& config, std::uint64_t seed, std::int64_t layer, std::string_view role) {
  const auto found = std::find(kRoles.begin(), kRoles.end(), role);
  if (found == kRoles.end()) {
    throw Error(ErrorCode::usage, fmt::format("unknown role '{}': expected gate, up, down or norm", escaped(role)));
  }
  const double deviation = role == "norm"   ? 0.1
                           : role == "down" ? 1 / std::sqrt(static_cast<double>(config.hidden))
                                            : 1 / std::sqrt(static_cast<double>(config.dim));
  // The sum of four uniform 16-bit numbers has the variance 4 * (2^32 - 1) / 12.
  const double unit = std::sqrt(3.0 / 4294967295.0);
  const auto index = static_cast<std::uint64_t>(found - kRoles.begin());
  return {.key = joined(joined(seed, static_cast<std::uint64_t>(layer)), index),
          .mean = role == "norm" ? 1.0F : 0.0F,
          .scale = static_cast<float>(deviation * unit)};
}

// Columns [col0, col0 + n) of a row. Approximately normal, from one hash per element: the centred sum of
// its four 16-bit quarters (Irwin-Hall; kurtosis 2.7, nothing beyond 3.47 deviations). A row has its own
// step as well as its own start, so no two rows share a stretch of hashes.
void make_floats(const Stream& stream, std::int64_t row, std::int64_t col0, std::int64_t n, float* dst) noexcept {
  const std::uint64_t start = joined(stream.key, static_cast<std::uint64_t>(row));
  const std::uint64_t step = mixed(start) | 1U;
  const float mean = stream.mean;
  const float scale = stream.scale;
  std::uint64_t counter = start + static_cast<std::uint64_t>(col0) * step;
  for (std::int64_t i = 0; i < n; ++i, counter += step) {
    const std::uint64_t hash = mixed(counter);
    const std::uint64_t pairs = (hash & 0x0000ffff0000ffffU) + ((hash >> 16) & 0x0000ffff0000ffffU);
    const auto sum =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(pairs) + static_cast<std::uint32_t>(pairs >> 32));
    dst[i] = mean + static_cast<float>(sum - 131070) * scale;
  }
}

void round_floats(const float* src, std::int64_t n, DType dtype, std::byte* dst) noexcept {
  const auto put = [&](auto convert) {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto value = convert(src[i]);
      std::memcpy(dst + static_cast<std::size_t>(i) * sizeof value, &value, sizeof value);
    }
  };
  switch (dtype) {
    case DType::f32:
      std::memcpy(dst, src, static_cast<std::size_t>(n) * sizeof(float));
      break;
    case DType::bf16:
      put([](float x) { return bf16_from_float(x); });
      break;
    case DType::f16:
      put([](float x) { return f16_from_float(x); });
      break;
    case DType::f64:
      put([](float x) { return static_cast<double>(x); });
      break;
  }
}

void fill(const Stream& stream, DType dtype, std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols,
          void* dst) noexcept {
  constexpr std::int64_t kBlock = 512;  // stays in the first-level cache between the two passes
  std::array<float, kBlock> floats;
  auto* out = static_cast<std::byte*>(dst);
  for (std::int64_t row = row0; row < row0 + rows; ++row) {
    for (std::int64_t done = 0; done < cols; done += kBlock) {
      const std::int64_t n = std::min(kBlock, cols - done);
      make_floats(stream, row, col0 + done, n, floats.data());
      round_floats(floats.data(), n, dtype, out);
      out += n * size_of(dtype);
    }
  }
}

class RandomSource final : public TensorSource {
 public:
  RandomSource(std::string name, DType dtype, std::int64_t rows, std::int64_t cols, Stream stream)
      : TensorSource(std::move(name), dtype, rows, cols), stream_(stream) {}
  void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    fill(stream_, dtype(), row0, rows, col0, cols, dst);
  }

 private:
  Stream stream_;
};

void check(const FfnConfig& config, DType dtype) {
  if (config.dim <= 0 || config.hidden <= 0) {
    throw Error(ErrorCode::usage, fmt::format("random weights: expected positive sizes, found dim {} and hidden {}",
                                              config.dim, config.hidden));
  }
  if (static_cast<int>(dtype) > static_cast<int>(DType::f64)) {
    throw Error(ErrorCode::usage, fmt::format("random weights: unknown element type {}", static_cast<int>(dtype)));
  }
}

}  // namespace

FillTensor random_weights(const FfnConfig& config, DType dtype, std::uint64_t seed) {
  check(config, dtype);
  return [config, dtype, seed](std::int64_t layer, const std::string& role, std::int64_t row0, std::int64_t rows,
                               std::int64_t col0, std::int64_t cols, void* dst) {
    fill(make_stream(config, seed, layer, role), dtype, row0, rows, col0, cols, dst);
  };
}

LayerSource random_layer(const FfnConfig& config, DType dtype, std::uint64_t seed, std::int64_t layer) {
  check(config, dtype);
  const auto source = [&](const char* role, std::int64_t rows, std::int64_t cols) {
    return std::make_shared<RandomSource>(fmt::format("random layer {} {}", layer, role), dtype, rows, cols,
                                          make_stream(config, seed, layer, role));
  };
  LayerSource out{.config = config,
                  .gate = source("gate", config.hidden, config.dim),
                  .up = source("up", config.hidden, config.dim),
                  .down = source("down", config.dim, config.hidden),
                  .norm = std::vector<float>(static_cast<std::size_t>(config.dim))};
  std::vector<std::byte> stored(out.norm.size() * static_cast<std::size_t>(size_of(dtype)));
  fill(make_stream(config, seed, layer, "norm"), dtype, 0, 1, 0, config.dim, stored.data());
  for (std::int64_t i = 0; i < config.dim; ++i) {
    out.norm[static_cast<std::size_t>(i)] = static_cast<float>(load_double(stored.data(), dtype, i));
  }
  return out;
}

}  // namespace swiglu
