// .npy files that other programs wrote.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "support/data.h"
#include "swiglu/files.hpp"

namespace swiglu {
namespace {

namespace fs = std::filesystem;

std::string get(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<double> doubles(const Array& array) {
  std::vector<double> out(array.bytes.size() / static_cast<std::size_t>(size_of(array.dtype)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = load_double(array.bytes.data(), array.dtype, static_cast<std::int64_t>(i));
  }
  return out;
}

std::string refusal(const fs::path& path, ErrorCode code = ErrorCode::format) {
  try {
    (void)read_npy(path);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.text();
    return e.text();
  }
  ADD_FAILURE() << "accepted " << path;
  return "";
}

TEST(NpyFiles, reads_the_same_input_from_five_encodings) {  // N14, N18, N34, N46
  SWIGLU_NEEDS_TEST_DATA();
  const fs::path data = testing::test_data() / "derived" / "stories260K";
  const Array x = read_npy(data / "x.npy");
  ASSERT_EQ(x.dtype, DType::f32);
  ASSERT_EQ(x.shape, (std::vector<std::int64_t>{4, 64}));
  const auto expected = doubles(x);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_EQ(doubles(read_npy(data / "x_fortran_v2.npy")), expected);
  const Array big = read_npy(data / "x_bigendian_f8.npy");
  EXPECT_EQ(big.dtype, DType::f64);
  EXPECT_EQ(doubles(big), expected);
  for (const Array& bf16 : {read_npy(data / "x_bf16_as_V2.npy"), read_npy(data / "x_bf16_as_u2.npy", true)}) {
    ASSERT_EQ(bf16.dtype, DType::bf16);
    ASSERT_EQ(bf16.shape, x.shape);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bf16.bytes.data() + 2 * i, 2);
      ASSERT_EQ(bits, bf16_from_double(expected[i])) << i;
    }
  }
  const Array y = read_npy(data / "y_ffn_only.npy");
  EXPECT_EQ(y.dtype, DType::f64);
  EXPECT_EQ(y.shape, (std::vector<std::int64_t>{5, 4, 64}));
}

TEST(NpyFiles, reads_numpys_own_files_and_writes_their_bytes) {
  SWIGLU_NEEDS_TEST_DATA();
  const testing::TemporaryFolder folder;
  const fs::path data = testing::test_data() / "npy";
  for (const char* name : {"tch/linear_in.npy", "tch/linear_ws.npy", "tch/linear_bs.npy", "tch/linear_out.npy",
                           "iree/single.npy", "../derived/stories260K/x.npy", "../derived/stories260K/y_ffn_only.npy",
                           "../derived/stories260K/x_bf16_as_V2.npy"}) {
    const Array array = read_npy(data / name);
    write_npy(folder / "copy.npy", array.dtype, array.shape, array.bytes);
    EXPECT_TRUE(get(folder / "copy.npy") == get(data / name)) << name;
  }
  // linear_out = linear_in * linear_ws^T + linear_bs
  const auto in = doubles(read_npy(data / "tch/linear_in.npy"));
  const auto ws = doubles(read_npy(data / "tch/linear_ws.npy"));
  const auto bs = doubles(read_npy(data / "tch/linear_bs.npy"));
  const auto out = doubles(read_npy(data / "tch/linear_out.npy"));
  for (std::size_t r = 0; r < 2; ++r) {
    for (std::size_t c = 0; c < 4; ++c) {
      double sum = bs[c];
      for (std::size_t k = 0; k < 257; ++k) sum += in[r * 257 + k] * ws[c * 257 + k];
      EXPECT_NEAR(out[r * 4 + c], sum, 1e-5);
    }
  }
}

TEST(NpyFiles, refuses_pickled_objects) {  // N16
  SWIGLU_NEEDS_TEST_DATA();
  for (const char* name : {"py2-np0-objarr.npy", "py2-objarr.npy", "py3-objarr.npy"}) {
    EXPECT_NE(refusal(testing::test_data() / "npy/numpy" / name, ErrorCode::unsupported).find("pickled"),
              std::string::npos);
  }
}

TEST(NpyFiles, refuses_several_arrays_in_one_file_and_other_types_of_real_files) {  // N27
  SWIGLU_NEEDS_TEST_DATA();
  const fs::path data = testing::test_data() / "npy";
  EXPECT_NE(refusal(data / "iree/multiple.npy").find("more than one array"), std::string::npos);
  (void)refusal(data / "iree/array_shapes.npy", ErrorCode::unsupported);
  (void)refusal(data / "iree/array_types.npy", ErrorCode::unsupported);
  EXPECT_NE(refusal(data / "iree/empty.npy").find("an empty file"), std::string::npos);
  EXPECT_NE(refusal(data / "candle/test.npy", ErrorCode::unsupported).find("signed integers ('<i8')"),
            std::string::npos);
  (void)refusal(data / "../derived/stories260K/x_bf16_as_u2.npy", ErrorCode::unsupported);  // N46
}

}  // namespace
}  // namespace swiglu
