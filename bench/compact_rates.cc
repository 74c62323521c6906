// How well compact storage fits: high bytes outside their panel's table and bits a weight, for weights as
// distributions give them and for the layers of a checkpoint. No times: `swiglu bench` has those.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <random>

#include "base/dtype.h"
#include "swiglu/swiglu.hpp"

namespace {

using swiglu::DType;
using Draw = std::function<double(std::mt19937_64&, std::int64_t row)>;

class Drawn final : public swiglu::TensorSource {
 public:
  Drawn(const Draw& draw, std::int64_t rows, std::int64_t cols)
      : TensorSource("drawn", DType::bf16, rows, cols), draw_(draw) {}
  void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    for (std::int64_t r = 0; r < rows; ++r) {
      std::mt19937_64 engine(static_cast<std::uint64_t>((row0 + r) * 1000003 + col0));
      for (std::int64_t c = 0; c < cols; ++c) {
        swiglu::store_double(dst, DType::bf16, r * cols + c, draw_(engine, row0 + r));
      }
    }
  }

 private:
  const Draw& draw_;
};

void show(const std::string& name, const swiglu::PackedInfo& info, double elements) {
  fmt::print("{:<58}{:>11.2e}{:>10.4f}{:>9} of {:<6}{}\n", name, static_cast<double>(info.patches) / elements,
             info.bits_per_weight, info.plain_panels, info.panels, info.storage);
}

void show_layer(const std::string& name, const swiglu::LayerSource& source, swiglu::ThreadPool& pool) {
  swiglu::Options options;
  options.compute = swiglu::Compute::bf16;
  options.storage = swiglu::Storage::compact;
  const swiglu::FeedForwardInfo info = swiglu::FeedForward(source, pool, options).info();
  const double elements = static_cast<double>(source.config.dim) * static_cast<double>(source.config.hidden);
  show(name + ", gate and up", info.gate_up, 2 * elements);
  show(name + ", down", info.down, elements);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    swiglu::ThreadPool pool;
    fmt::print("{:<58}{:>11}{:>10}{:>16}\n", "weights as bf16", "outside", "bits", "plain panels");
    constexpr double kDeviation = 0.02;  // about 1 / sqrt(dim) of real layers; the table follows any scale
    const auto normal = [](auto& engine) { return kDeviation * std::normal_distribution<>()(engine); };
    const std::pair<const char*, Draw> draws[] = {
        {"normal", [&](auto& e, auto) { return normal(e); }},
        {"Laplace",
         [](auto& e, auto) { return (e() % 2 == 0 ? 1 : -1) * kDeviation * std::exponential_distribution<>()(e); }},
        {"Student t, 5 degrees", [](auto& e, auto) { return kDeviation * std::student_t_distribution<>(5)(e); }},
        {"Student t, 3 degrees", [](auto& e, auto) { return kDeviation * std::student_t_distribution<>(3)(e); }},
        {"normal, one in 1000 a hundred times larger",
         [&](auto& e, auto) { return (e() % 1000 == 0 ? 100 : 1) * normal(e); }},
        {"normal, rows of log-normal scale",
         [&](auto& e, auto row) {
           std::mt19937_64 of_row(static_cast<std::uint64_t>(row));
           return std::exp(0.5 * std::normal_distribution<>()(of_row)) * normal(e);
         }},
    };
    constexpr std::int64_t kRows = 1024, kColumns = 4096;
    for (const auto& [name, draw] : draws) {
      swiglu::LayerSource source;
      source.config = {kColumns, kRows, 1e-5};
      source.gate = source.up = std::make_shared<const Drawn>(draw, kRows, kColumns);
      source.down = std::make_shared<const Drawn>(draw, kColumns, kRows);
      show_layer(name, source, pool);
    }
    for (int i = 1; i < argc; ++i) {
      const auto model = swiglu::Checkpoint::open(argv[i]);
      for (const std::int64_t layer : model.layer_numbers()) {
        show_layer(fmt::format("layer {}", layer), model.layer(layer), pool);
      }
    }
    return 0;
  } catch (const swiglu::Error& error) {
    fmt::print(stderr, "swiglu_compact_rates: error: {}\n", error.text());
    return 3;
  }
}
