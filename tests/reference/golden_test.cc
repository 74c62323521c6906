// The oracle against double-precision results of a real trained model (stories260K), made elsewhere: a
// swap of gate and up, a wrong eps or a missing norm weight shows here. Reads the model file itself, so
// that no reader of ours stands between.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "reference/memory_source.h"
#include "support/data.h"
#include "swiglu/reference.hpp"

namespace swiglu {
namespace {

using testing::layer_of;
using testing::memory_source;

using Doubles = std::vector<double>;

void expect_near(const Doubles& found, const Doubles& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << i;
}

// The elements of a file: after an .npy header, or at an offset.
template <typename T>
std::vector<T> read_elements(const std::filesystem::path& path, std::int64_t offset, std::size_t count) {
  std::ifstream file(path, std::ios::binary);
  std::vector<T> out(count);
  file.seekg(offset);
  file.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(count * sizeof(T)));
  EXPECT_TRUE(file.good()) << path;
  return out;
}
template <typename T>
std::vector<T> read_npy_v1(const std::filesystem::path& path, const std::string& descr, std::size_t count) {
  const auto start = read_elements<unsigned char>(path, 0, 10);  // magic, version 1.0, header length
  const int length = start[8] | start[9] << 8;
  const auto header = read_elements<char>(path, 10, static_cast<std::size_t>(length));
  EXPECT_NE(std::string(header.begin(), header.end()).find(descr), std::string::npos) << path;
  return read_elements<T>(path, 10 + length, count);
}

TEST(Reference, agrees_with_the_goldens_of_a_trained_model) {  // X2: swapped, gate and up would fit too
  SWIGLU_NEEDS_TEST_DATA();
  constexpr std::int64_t kDim = 64, kHidden = 172, kLayers = 5, kTokens = 4;
  constexpr std::size_t kMatrix = kDim * kHidden;
  const auto model = testing::test_data() / "llama2c" / "stories260K.bin";
  const auto folder = testing::test_data() / "derived" / "stories260K";
  const auto x = read_npy_v1<float>(folder / "x.npy", "'<f4'", kTokens * kDim);
  const Doubles h(x.begin(), x.end());
  const auto ffn = read_npy_v1<double>(folder / "y_ffn_only.npy", "'<f8'", kLayers * kTokens * kDim);
  const auto block = read_npy_v1<double>(folder / "y_x_plus_ffn_rmsnorm.npy", "'<f8'", kLayers * kTokens * kDim);

  for (std::int64_t i = 0; i < kLayers; ++i) {
    const auto matrix = [&](const char* name, std::int64_t start, std::int64_t rows) {
      const auto values = read_elements<float>(model, start + i * 44032, kMatrix);
      return memory_source(name, DType::f32, rows, static_cast<std::int64_t>(kMatrix) / rows,
                           Doubles(values.begin(), values.end()));
    };
    const LayerSource layer =
        layer_of(matrix("w1", 379420, kHidden), matrix("w3", 819740, kHidden), matrix("w2", 599580, kDim),
                 read_elements<float>(model, 378140 + i * 256, kDim), 1e-5);
    const auto golden = [&](const Doubles& all) {
      const auto first = all.begin() + i * kTokens * kDim;
      return Doubles(first, first + kTokens * kDim);
    };
    SCOPED_TRACE(i);
    expect_near(reference::run(layer, h, kTokens, {.block = false}).out, golden(ffn), 1e-14);
    expect_near(reference::run(layer, h, kTokens).out, golden(block), 1e-12);
  }
}

}  // namespace
}  // namespace swiglu
