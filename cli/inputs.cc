// Activations from a .npy file or from a seed. The generator is written out (SplitMix64, Box-Muller):
// the distributions of <random> differ from one standard library to the next.
#include "inputs.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "elements.h"
#include "report.h"

namespace swiglu::cli {

namespace {

class Normal {
 public:
  explicit Normal(std::uint64_t seed) : state_(seed) {}
  double next() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  /// In (0, 1].
  double uniform() {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    x ^= x >> 31;
    return (static_cast<double>(x >> 11) + 1) * 0x1p-53;
  }
  std::uint64_t state_;
};

}  // namespace

std::int64_t tokens_of(const Array& x, const std::filesystem::path& path, std::int64_t dim,
                       const std::filesystem::path& model) {
  if (x.shape.empty() || x.shape.size() > 3) {
    throw Error(ErrorCode::shape, fmt::format("{}: expected [tokens, dim] or [batch, tokens, dim], found shape {}",
                                              printable(path.string()), format_shape(x.shape)));
  }
  if (x.shape.back() != dim) {
    throw Error(ErrorCode::shape,
                fmt::format("{}: the last axis is {}, but dim is {} in {} (shape {})", printable(path.string()),
                            x.shape.back(), dim, printable(model.string()), format_shape(x.shape)));
  }
  std::int64_t tokens = 1;
  for (std::size_t axis = 0; axis + 1 < x.shape.size(); ++axis) tokens *= x.shape[axis];
  return tokens;
}

std::vector<float> normal_input(std::int64_t count, std::uint64_t seed) {
  Normal normal(seed);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = static_cast<float>(normal.next());
  return out;
}

std::vector<float> heavy_tailed_input(std::int64_t count, std::uint64_t seed) {
  Normal normal(seed);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) {
    const double a = normal.next(), b = normal.next(), c = normal.next();
    x = static_cast<float>(normal.next() / std::sqrt((a * a + b * b + c * c) / 3));
  }
  return out;
}

std::vector<Input> make_inputs(const std::optional<std::filesystem::path>& file, std::int64_t dim,
                               const std::filesystem::path& model) {
  constexpr std::int64_t kTokens = 4;
  if (!file) {
    return {{"normal", normal_input(kTokens * dim, kInputSeed), kTokens},
            {"heavy-tailed", heavy_tailed_input(kTokens * dim, kInputSeed + 1), kTokens}};
  }
  const Array x = read_npy(*file);
  const std::int64_t tokens = tokens_of(x, *file, dim, model);
  if (tokens == 0) {
    throw Error(ErrorCode::usage, fmt::format("{}: 0 tokens: nothing to run", printable(file->string())));
  }
  std::vector<float> h;  // the layer reads f32; what f64 loses on the way is not its error
  for (const double value : to_doubles(x.dtype, x.bytes)) h.push_back(static_cast<float>(value));
  return {{printable(file->filename().string()), std::move(h), tokens}};
}

}  // namespace swiglu::cli
