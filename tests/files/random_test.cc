// Random weights: the distribution, independence, and that a slice is the same however it is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "swiglu/files.hpp"

namespace swiglu {
namespace {

constexpr FfnConfig kConfig{.dim = 96, .hidden = 1100, .eps = 1e-5};

std::vector<double> values(const FillTensor& fill, DType dtype, const char* role, std::int64_t row0, std::int64_t rows,
                           std::int64_t col0, std::int64_t cols, std::int64_t layer = 0) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * cols * size_of(dtype)));
  fill(layer, role, row0, rows, col0, cols, bytes.data());
  std::vector<double> out(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = load_double(bytes.data(), dtype, static_cast<std::int64_t>(i));
  return out;
}

struct Moments {
  double mean = 0, deviation = 0, kurtosis = 0;
};
Moments moments(const std::vector<double>& x) {
  const auto n = static_cast<double>(x.size());
  Moments m;
  for (const double v : x) m.mean += v / n;
  double second = 0;
  double fourth = 0;
  for (const double v : x) {
    const double d = (v - m.mean) * (v - m.mean);
    second += d / n;
    fourth += d * d / n;
  }
  m.deviation = std::sqrt(second);
  m.kurtosis = fourth / (second * second);
  return m;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const Moments ma = moments(a);
  const Moments mb = moments(b);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - ma.mean) * (b[i] - mb.mean);
  return sum / static_cast<double>(a.size()) / (ma.deviation * mb.deviation);
}

TEST(Random, weights_have_the_variance_of_a_trained_layer) {
  const auto fill = random_weights(kConfig, DType::f32, 7);
  for (const char* role : {"gate", "up", "down"}) {
    const bool down = std::string(role) == "down";
    const auto x = values(fill, DType::f32, role, 0, down ? 96 : 1100, 0, down ? 1100 : 96);
    const double expected = 1 / std::sqrt(down ? 1100.0 : 96.0);
    const Moments m = moments(x);
    EXPECT_NEAR(m.mean / expected, 0, 0.015) << role;  // 105,600 values: five deviations of the mean
    EXPECT_NEAR(m.deviation / expected, 1, 0.01) << role;
    EXPECT_NEAR(m.kurtosis, 2.7, 0.05) << role;
  }
  const FfnConfig wide{.dim = 100000, .hidden = 1, .eps = 1e-5};
  const Moments norm = moments(values(random_weights(wide, DType::f32, 7), DType::f32, "norm", 0, 1, 0, wide.dim));
  EXPECT_NEAR(norm.mean, 1, 0.002);
  EXPECT_NEAR(norm.deviation, 0.1, 0.001);
}

TEST(Random, roles_layers_rows_columns_and_seeds_are_independent) {
  const auto fill = random_weights(kConfig, DType::f32, 1);
  const auto base = values(fill, DType::f32, "gate", 0, 1000, 0, 90);
  const double limit = 5 / std::sqrt(90000.0);
  EXPECT_LT(std::abs(correlation(base, values(fill, DType::f32, "up", 0, 1000, 0, 90))), limit);
  EXPECT_LT(std::abs(correlation(base, values(fill, DType::f32, "gate", 0, 1000, 0, 90, 1))), limit);
  EXPECT_LT(std::abs(correlation(base, values(fill, DType::f32, "gate", 1, 1000, 0, 90))), limit);
  EXPECT_LT(std::abs(correlation(base, values(fill, DType::f32, "gate", 0, 1000, 1, 90))), limit);
  const auto other = random_weights(kConfig, DType::f32, 2);
  EXPECT_LT(std::abs(correlation(base, values(other, DType::f32, "gate", 0, 1000, 0, 90))), limit);
}

TEST(Random, any_slice_is_the_same_as_in_the_whole) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const auto fill = random_weights(kConfig, dtype, 3);
    const auto whole = values(fill, dtype, "down", 0, 96, 0, 1100, 4);
    for (const std::int64_t col0 : {0, 1, 511, 512, 513, 1099}) {
      const std::int64_t cols = std::min<std::int64_t>(600, 1100 - col0);
      const auto slice = values(fill, dtype, "down", 17, 5, col0, cols, 4);
      for (std::int64_t r = 0; r < 5; ++r) {
        for (std::int64_t c = 0; c < cols; ++c) {
          ASSERT_EQ(slice[static_cast<std::size_t>(r * cols + c)],
                    whole[static_cast<std::size_t>((17 + r) * 1100 + col0 + c)])
              << name_of(dtype) << " " << r << " " << c;
        }
      }
    }
  }
}

TEST(Random, every_type_is_the_rounding_of_the_same_float) {
  const auto exact = values(random_weights(kConfig, DType::f32, 5), DType::f32, "up", 0, 50, 0, 96);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) {
    const auto rounded = values(random_weights(kConfig, dtype, 5), dtype, "up", 0, 50, 0, 96);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      double stored = 0;
      store_double(&stored, dtype, 0, exact[i]);
      ASSERT_EQ(rounded[i], load_double(&stored, dtype, 0)) << name_of(dtype) << " " << i;
    }
  }
}

TEST(Random, values_never_change_between_versions) {
  // Results published with a seed must stay reproducible.
  const auto fill = random_weights(FfnConfig{.dim = 4096, .hidden = 14336, .eps = 1e-5}, DType::f32, 0);
  EXPECT_EQ(static_cast<float>(values(fill, DType::f32, "gate", 0, 1, 0, 1)[0]), -0.0187831707F);
  EXPECT_EQ(static_cast<float>(values(fill, DType::f32, "down", 4095, 1, 14335, 1, 31)[0]), -0.00689878035F);
  EXPECT_EQ(static_cast<float>(values(fill, DType::f32, "norm", 0, 1, 100, 1, 2)[0]), 0.878897071F);
}

TEST(Random, layer_has_the_weights_that_a_checkpoint_would_get) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const LayerSource layer = random_layer(kConfig, dtype, 11, 2);
    const auto fill = random_weights(kConfig, dtype, 11);
    EXPECT_EQ(layer.gate->rows(), 1100);
    EXPECT_EQ(layer.gate->cols(), 96);
    EXPECT_EQ(layer.down->rows(), 96);
    EXPECT_EQ(layer.down->cols(), 1100);
    EXPECT_EQ(layer.up->dtype(), dtype);
    const auto expected = values(fill, dtype, "down", 3, 90, 7, 1000, 2);
    std::vector<std::byte> bytes(static_cast<std::size_t>(90 * 1000 * size_of(dtype)));
    layer.down->read(3, 90, 7, 1000, bytes.data());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(load_double(bytes.data(), dtype, static_cast<std::int64_t>(i)), expected[i]);
    }
    const auto norm = values(fill, dtype, "norm", 0, 1, 0, 96, 2);
    ASSERT_EQ(layer.norm.size(), 96U);
    for (std::size_t i = 0; i < norm.size(); ++i) ASSERT_EQ(static_cast<double>(layer.norm[i]), norm[i]);
  }
}

TEST(Random, refuses_sizes_and_roles_that_do_not_exist) {
  EXPECT_THROW((void)random_weights(FfnConfig{.dim = 0, .hidden = 4, .eps = 1e-5}, DType::f32, 0), Error);
  EXPECT_THROW((void)random_layer(FfnConfig{.dim = 4, .hidden = -1, .eps = 1e-5}, DType::f32, 0), Error);
  float value = 0;
  try {
    random_weights(kConfig, DType::f32, 0)(0, "w1\n", 0, 1, 0, 1, &value);
    FAIL() << "an unknown role was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_NE(e.text().find("'w1\\n'"), std::string::npos) << e.text();
  }
}

}  // namespace
}  // namespace swiglu
