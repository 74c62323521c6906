// Meta's 8-bit releases as .pth files: matrices of 8-bit floats over untyped bytes, and the files of row scales beside
// them, which are ordinary state dicts with names of their own.
#include <fmt/format.h>

#include "files/encoding.h"
#include "files/tensor_table.h"
#include "files/torch_file.h"

namespace swiglu::testing {
namespace {

using files::read_pth;
using files::StoredTensor;
using files::TensorTable;
namespace p = pickled;

std::string untyped_storage(const std::string& key, std::int64_t bytes, const std::string& name = "UntypedStorage") {
  return p::tuple(
             {p::text("storage"), p::global("torch.storage", name), p::text(key), p::text("cpu"), p::number(bytes)}) +
         "Q";
}
std::string tensor_v3(const std::string& storage, std::int64_t offset, const std::vector<std::int64_t>& sizes,
                      const std::vector<std::int64_t>& strides, const std::string& dtype) {
  return p::call(p::global("torch._utils", "_rebuild_tensor_v3"),
                 p::tuple({storage, p::number(offset), p::numbers(sizes), p::numbers(strides), "\x89",
                           p::ordered_dict(), p::global("torch", dtype)}));
}
std::string file_of(const std::string& tensor, const std::string& storage) {
  return zip_bytes(torch_parts(p::whole(p::dict({{"w", tensor}})), {storage}));
}

TEST(PthFloat8, types_name_their_encoding) {
  struct Type {
    const char* dtype;
    const char* encoding;
  };
  for (const auto& [dtype, encoding] : {Type{"float8_e4m3fn", "F8_E4M3"},
                                        {"float8_e5m2", "F8_E5M2"},
                                        {"float8_e4m3fnuz", ""},
                                        {"float8_e5m2fnuz", ""},
                                        {"float8_e8m0fnu", ""},
                                        {"int8", ""}}) {
    SCOPED_TRACE(dtype);
    for (const char* name : {"UntypedStorage", "_UntypedStorage"}) {
      const BytesFile file(file_of(tensor_v3(untyped_storage("0", 6, name), 0, {2, 3}, {3, 1}, dtype), "abcdef"));
      const StoredTensor w = read_pth(*file).at("w");
      EXPECT_EQ(w.dtype, std::nullopt);
      EXPECT_EQ(w.dtype_name, std::string("torch.") + dtype);
      EXPECT_EQ(w.encoding == nullptr ? "" : w.encoding->name, encoding);
    }
  }
  const BytesFile file(file_of(p::tensor(p::storage("0", 6, "CharStorage"), 0, {6}, {1}), "abcdef"));
  EXPECT_EQ(read_pth(*file).at("w").encoding, nullptr);
}

TEST(PthFloat8, offsets_and_bounds_count_elements_of_the_tensors_type) {
  const std::string storage(10, 'x');
  const auto wide = [&](std::int64_t offset, std::int64_t size) {
    return file_of(tensor_v3(untyped_storage("0", 10), offset, {size}, {1}, "float32"), storage);
  };
  const BytesFile file(wide(1, 1));
  const StoredTensor w = read_pth(*file).at("w");
  EXPECT_EQ(w.dtype, DType::f32);
  const BytesFile narrow(file_of(tensor_v3(untyped_storage("0", 10), 1, {1}, {1}, "float8_e4m3fn"), storage));
  EXPECT_EQ(w.offset - read_pth(*narrow).at("w").offset, 3U);
  // 10 bytes hold two floats, not three.
  expect_error(ErrorCode::format, {"tensor w", "storage of 2", "element 2"},
               [&] { (void)read_pth(*BytesFile(wide(0, 3))); });
  expect_error(ErrorCode::format, {"tensor w", "element 2"}, [&] { (void)read_pth(*BytesFile(wide(1, 2))); });
}

TEST(PthFloat8, two_types_may_view_one_untyped_storage) {
  const std::string bytes =
      zip_bytes(torch_parts(p::whole(p::dict({{"a", tensor_v3(untyped_storage("0", 8), 0, {4}, {1}, "float8_e4m3fn")},
                                              {"b", tensor_v3(untyped_storage("0", 8), 1, {1}, {1}, "float32")}})),
                            {"abcdefgh"}));
  const BytesFile file(bytes);
  const TensorTable table = read_pth(*file);
  EXPECT_EQ(table.at("b").offset - table.at("a").offset, 4U);
}

TEST(PthFloat8, parameters_may_carry_state) {
  const std::string parameter =
      p::call(p::global("torch._utils", "_rebuild_parameter_with_state"),
              p::tuple({tensor_v3(untyped_storage("0", 6), 0, {2, 3}, {1, 2}, "float8_e4m3fn"), "\x89",
                        p::ordered_dict(), "}"}));
  const BytesFile file(file_of(parameter, "abcdef"));
  EXPECT_EQ(read_pth(*file).at("w").strides, (std::vector<std::int64_t>{1, 2}));
}

// fp8_scales_NN.pt: keys "<layer>_feed_forward.<w>_<rank>", a float for each row.
TEST(PthFloat8, files_of_row_scales_are_state_dicts) {
  const std::string data = little(0x3f800000, 4) + little(0x40000000, 4) + little(0x40400000, 4);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const char* w : {"w1", "w2", "w3"}) {
    pairs.emplace_back(fmt::format("3_feed_forward.{}_0", w), p::tensor(p::storage("0", 3), 0, {3, 1}, {1, 1}));
    pairs.emplace_back(fmt::format("4_feed_forward.{}_0", w), p::tensor(p::storage("0", 3), 0, {3}, {1}));
  }
  const std::string pickle = p::whole(p::dict(pairs));
  const BytesFile zip(zip_bytes(torch_parts(pickle, {data}, "fp8_scales_0")), "fp8_scales_0.pt");
  const TensorTable table = read_pth(*zip);
  ASSERT_EQ(table.size(), 6U);
  const StoredTensor& column = table.at("3_feed_forward.w1_0");
  EXPECT_EQ(column.dtype, DType::f32);
  EXPECT_EQ(column.shape, (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(table.at("4_feed_forward.w3_0").shape, (std::vector<std::int64_t>{3}));
  float last = 0;
  column.file->read(column.offset + static_cast<std::uint64_t>(2 * column.strides[0]) * 4,
                    std::as_writable_bytes(std::span(&last, 1)));
  EXPECT_EQ(last, 3.0F);
}

}  // namespace
}  // namespace swiglu::testing
