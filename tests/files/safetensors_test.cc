// The safetensors container: every rule of the format broken once, the odd but valid files accepted.
#include <chrono>
#include <vector>

#include "files/tensor_table.h"
#include "support/data.h"
#include "support/safetensors.h"

namespace swiglu::files {
namespace {

using swiglu::testing::container;
using swiglu::testing::expect_error;
using swiglu::testing::little_endian;
using swiglu::testing::SafetensorsBuilder;
using swiglu::testing::test_data;
using swiglu::testing::write_file;

TensorTable open_path(const std::filesystem::path& path) {
  return read_safetensors(std::make_shared<const File>(path));
}

// Each test has a folder and one file in it, written anew for every case.
class Safetensors : public ::testing::Test {
 protected:
  TensorTable read(std::string_view bytes) {
    write_file(path_, bytes);
    return open_path(path_);
  }
  void refused(std::string_view bytes, std::initializer_list<std::string_view> parts,
               ErrorCode code = ErrorCode::format) {
    SCOPED_TRACE(std::string(bytes.substr(0, 200)));
    write_file(path_, bytes);
    expect_error(code, parts, [&] { (void)open_path(path_); });
    expect_error(code, {"w.safetensors"}, [&] { (void)open_path(path_); });
  }
  /// A file of one tensor "t" whose entry is `entry`, with `data` bytes of data.
  void entry_refused(std::string_view entry, std::size_t data, std::initializer_list<std::string_view> parts) {
    refused(container(fmt::format("{{\"t\":{}}}", entry), std::string(data, 'x')), parts);
  }
  void shape_refused(std::string_view shape, std::string_view dtype, std::initializer_list<std::string_view> parts) {
    entry_refused(fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":[0,0]}})", dtype, shape), 0, parts);
  }
  /// Two or more F32 tensors at the given places in 16 bytes of data.
  static std::string placed(std::initializer_list<std::pair<int, int>> places, std::size_t data) {
    std::string header;
    for (const auto& [begin, end] : places) {
      header += fmt::format(R"({}"t{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                            header.empty() ? "" : ",", header.size(), (end - begin) / 4, begin, end);
    }
    return container("{" + header + "}", std::string(data, 'x'));
  }

  testing::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "w.safetensors";
};

TEST_F(Safetensors, reads_types_shapes_and_places) {
  const auto table = read(SafetensorsBuilder().add("a", "BF16", {2, 3}, 2).add("b", "F64", {}, 8).bytes());
  ASSERT_EQ(table.size(), 2U);
  const StoredTensor& a = table.at("a");
  EXPECT_EQ(a.dtype_name, "BF16");
  EXPECT_EQ(a.dtype, DType::bf16);
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(a.strides, (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(table.at("b").offset, a.offset + 12);
  EXPECT_EQ(table.at("b").dtype, DType::f64);
  EXPECT_EQ(table.at("b").offset + 8, a.file->size());
}

TEST_F(Safetensors, recognises_every_type_of_the_format) {
  for (const auto& [name, bits] : std::initializer_list<std::pair<const char*, std::int64_t>>{
           {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"U8", 8},      {"I8", 8},
           {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"U16", 16},
           {"I16", 16},    {"F16", 16},    {"BF16", 16},       {"U32", 32},        {"I32", 32},    {"F32", 32},
           {"U64", 64},    {"I64", 64},    {"F64", 64},        {"C64", 64}}) {
    const auto size = static_cast<std::size_t>(4 * bits / 8);
    const auto table = read(SafetensorsBuilder().add("t", name, {4}, std::string(size, 'x')).bytes());
    const std::string_view text = name;
    const bool computable = text == "F32" || text == "F16" || text == "BF16" || text == "F64";
    EXPECT_EQ(table.at("t").dtype_name, name);
    EXPECT_EQ(table.at("t").dtype.has_value(), computable) << name;
    refused(SafetensorsBuilder().add("t", name, {4}, std::string(size + 1, 'x')).bytes(), {"tensor t", name});
  }
}

TEST_F(Safetensors, refuses_files_without_a_whole_header) {
  refused("", {"found 0 bytes"});                                                                        // S01
  for (std::size_t n = 1; n < 8; ++n) refused(std::string(n, 'a'), {fmt::format("found {} bytes", n)});  // S02
  refused(container(""), {"header of 0 bytes"});                                                         // S03
  refused(little_endian(1000) + std::string(80, ' '), {"1000", "80"});                                   // S06
  refused(little_endian(13) + R"({"a":"bcde"})", {"13", "12"});                                          // S08
  refused("<\0\0\0\0\xff\xff\xff{\"a\":\"bcde\"}", {"not a safetensors file"});
  refused(std::string("<\0\0\0\0\xff\xff\xff{\"a\":\"bcde\"}", 20), {"100000000", "18446742974197923900"});  // S05
}

TEST_F(Safetensors, refuses_header_lengths_before_allocating) {
  for (std::uint64_t back = 1; back <= 8; ++back) {  // S07: 8 + length would wrap
    refused(little_endian(0 - back) + "{}", {fmt::format("{}", 0 - back)});
  }
  for (const std::uint64_t length : {0x7fffffffULL, 0x80000000ULL, 0xffffffffULL, 0x7fffffffffffffffULL, 1ULL << 63}) {
    refused(little_endian(length) + "{}", {fmt::format("{}", length)});
  }
  write_file(path_, little_endian(100'000'001) + "{}");  // S04, sparse
  std::filesystem::resize_file(path_, 100'000'100);
  expect_error(ErrorCode::format, {"w.safetensors", "100000001"}, [&] { (void)open_path(path_); });
}

TEST_F(Safetensors, refuses_headers_that_are_not_one_json_object) {
  refused(container("\xff\xfe{}"), {"bad JSON"});  // S09
  refused(container("{\"\xff\":1}"), {"bad JSON"});
  for (const char* text : {"{", "garbage", "{}{}", "{} x", "{},\"__metadata__\":{}"}) {  // S10, S16
    refused(container(text), {"bad JSON"});
  }
  refused(container("[]"), {"object", "array of 0"});  // S11
  refused(container("\"a\""), {"object", "the string \"a\""});
  refused(container("1"), {"object", "the number 1"});
  refused(container("null"), {"object", "null"});
  refused(container(std::string_view("{}\0\0\0\0", 6)), {"NUL"});                              // S12
  for (const char* text : {" {}", "\t{}", "\n{}"}) refused(container(text), {"white space"});  // S13
  refused(container("\xef\xbb\xbf{}"), {"byte order mark"});                                   // S15
  refused(container(std::string(5'000'000, '[')), {"deeper than 8"});                          // S17
  for (const char* number : {"04", "+4", "0x10", "NaN"}) {                                     // S63
    refused(container(fmt::format(R"({{"t":{{"dtype":"F32","shape":[{}],"data_offsets":[0,16]}}}})", number),
                      std::string(16, 'x')),
            {"bad JSON"});
  }
}

TEST_F(Safetensors, accepts_trailing_space_and_files_without_tensors) {
  EXPECT_TRUE(read(container("{}")).empty());                      // S50
  EXPECT_TRUE(read(container("{} \t\r\n   ")).empty());            // S14
  EXPECT_TRUE(read(container(R"({"__metadata__":{}})")).empty());  // S23
  const auto table = read(container(
      R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":{"format":"pt"}})", "x"));  // S24
  EXPECT_EQ(table.size(), 1U);
}

TEST_F(Safetensors, rejects_duplicate_names) {
  const std::string first = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)";
  refused(container(first + R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", "12345678"),  // S18
          {"\"a\" occurs twice"});
  refused(container(first + R"("\u0061":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", "12345678"),  // S19
          {"\"a\" occurs twice"});
  entry_refused(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", 4,
                {"\"dtype\" occurs twice"});                                                          // S20
  refused(container(R"({"__metadata__":{},"__metadata__":{}})"), {"\"__metadata__\" occurs twice"});  // S21
}

TEST_F(Safetensors, refuses_metadata_that_is_not_strings) {
  refused(container(R"({"__metadata__":{"step":3}})"), {"__metadata__", "step", "the number 3"});  // S22
  refused(container(R"({"__metadata__":{"a":{}}})"), {"__metadata__", "an object"});
  refused(container(R"({"__metadata__":7})"), {"__metadata__", "the number 7"});
  refused(container(R"({"__metadata__":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"),  // S25
          {"__metadata__", "shape"});
}

TEST_F(Safetensors, refuses_unknown_types) {  // S26
  entry_refused(R"({"dtype":"FLOAT32","shape":[1],"data_offsets":[0,4]})", 4, {"tensor t", "FLOAT32"});
  entry_refused(R"({"dtype":"f32","shape":[1],"data_offsets":[0,4]})", 4, {"tensor t", "f32"});
  entry_refused(R"({"dtype":123,"shape":[1],"data_offsets":[0,4]})", 4, {"tensor t", "dtype", "the number 123"});
}

TEST_F(Safetensors, refuses_entries_with_missing_or_wrong_fields) {
  entry_refused(R"({"shape":[1],"data_offsets":[0,4]})", 4, {"tensor t", "dtype is missing"});  // S27
  entry_refused(R"({"dtype":"F32","data_offsets":[0,4]})", 4, {"tensor t", "shape is missing"});
  entry_refused(R"({"dtype":"F32","shape":[1]})", 4, {"tensor t", "data_offsets is missing"});
  entry_refused("[]", 0, {"tensor t", "an object", "an array"});
  shape_refused("4", "F32", {"tensor t", "shape", "the number 4"});  // S28
  shape_refused("[\"4\"]", "F32", {"tensor t", "shape", "the string \"4\""});
  shape_refused("[null]", "F32", {"shape", "null"});
  shape_refused("[true]", "F32", {"shape", "true"});
  shape_refused("[4.0]", "F32", {"shape", "the number 4.0"});  // S29
  shape_refused("[4e0]", "F32", {"shape", "the number 4.0"});
  shape_refused("[1e300]", "F32", {"shape", "the number 1e+300"});
  shape_refused("[-1]", "F32", {"shape", "the number -1"});           // S30
  shape_refused("[18446744073709551616]", "F32", {"shape", "e+19"});  // S31
  shape_refused("[9223372036854775808]", "U8", {"shape", "9223372036854775808"});
}

TEST_F(Safetensors, refuses_shapes_that_overflow) {
  shape_refused("[2,18446744073709551614]", "U8", {"tensor t", "18446744073709551614"});                  // S32
  shape_refused("[2,9223372036854775807]", "F32", {"tensor t", "overflow", "[2, 9223372036854775807]"});  // S33
  shape_refused("[4294967296,4294967296]", "F32", {"tensor t", "overflow"});         // S34: wraps to 0
  shape_refused("[4294967296,1073741824]", "F32", {"tensor t", "overflow"});         // the bits wrap to 0
  shape_refused("[0,4611686018427387904,4611686018427387904]", "U8", {"overflow"});  // S35
  shape_refused("[4611686018427387904,4611686018427387904,0]", "U8", {"overflow"});
  std::string many = "1";
  for (int i = 0; i < 100'000; ++i) many += ",2";
  shape_refused("[" + many + "]", "U8", {"overflow", "100001 dimensions"});
}

TEST_F(Safetensors, accepts_empty_tensors_and_scalars) {
  const auto table = read(SafetensorsBuilder()
                              .add("first", "F32", {0, 4}, "")
                              .add("scalar", "F32", {}, "1234")
                              .add("middle", "F32", {7, 0}, "")
                              .add("one", "U8", {1}, "1")
                              .add("last", "F64", {0}, "")
                              .bytes());  // S36, S37
  EXPECT_EQ(table.size(), 5U);
  EXPECT_TRUE(table.at("scalar").shape.empty());
  EXPECT_EQ(table.at("middle").shape, (std::vector<std::int64_t>{7, 0}));
}

TEST_F(Safetensors, refuses_offsets_that_are_no_range_in_the_data) {
  entry_refused(R"({"dtype":"F32","shape":[1],"data_offsets":[4]})", 4, {"data_offsets", "found 1"});  // S38
  entry_refused(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", 4, {"data_offsets", "found 3"});
  entry_refused(R"({"dtype":"F32","shape":[1],"data_offsets":[8,4]})", 8, {"tensor t", "8 to 4"});     // S39
  entry_refused(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})", 15, {"15 bytes", "0 to 16"});  // S40
  entry_refused(R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})", 4, {"data_offsets", "-4"});
  entry_refused(R"({"dtype":"F32","shape":[1],"data_offsets":[0.0,4]})", 4, {"data_offsets", "0.0"});
  entry_refused(R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,0]})", 4, {"18446744073709551612"});
  entry_refused(R"({"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]})", 4,
                {"tensor t", "expected 4000000 bytes", "found 4 "});  // S41
  entry_refused(R"({"dtype":"F64","shape":[4],"data_offsets":[0,16]})", 16, {"expected 32 bytes", "found 16 "});  // S42
  entry_refused(R"({"dtype":"F4","shape":[3],"data_offsets":[0,2]})", 2, {"F4", "12 bits"});  // S48
}

TEST_F(Safetensors, refuses_overlaps_holes_and_other_bytes) {
  refused(placed({{0, 16}, {0, 16}}, 16), {"overlap", "16"});  // S43
  refused(placed({{0, 8}, {4, 12}}, 12), {"overlap", "begins at 4", "ends at 8"});
  refused(placed({{0, 4}, {8, 12}}, 12), {"hole", "begins at 8", "expected 4"});  // S44
  refused(placed({{4, 8}}, 8), {"hole", "begins at 4", "expected 0"});  // S45
  refused(placed({{0, 8}}, 13), {"at 8", "5 bytes after"});  // S46
  refused(container("{}", "abc"), {"3 bytes after"});  // S49
}

TEST_F(Safetensors, finds_an_overlap_among_many_tensors_quickly) {  // S43
  std::string header;
  for (int i = 0; i < 100'000; ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})", i == 0 ? "{" : ",", i);
  }
  const auto start = std::chrono::steady_clock::now();
  refused(container(header + "}", std::string(16, 'x')), {"overlap"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(300));
}

TEST_F(Safetensors, bounds_the_number_of_tensors) {  // S59
  for (const int count : {100'000, 1'000'000}) {
    std::string header;
    for (int i = 0; i < count; ++i) {
      header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i == 0 ? "{" : ",", i);
    }
    header += "}";
    if (count == 100'000) {
      EXPECT_EQ(read(container(header)).size(), 100'000U);
    } else {
      refused(container(header), {"more than 1000000"});
    }
  }
}

TEST_F(Safetensors, accepts_any_alignment_and_any_order) {
  const auto table = read(container(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"  // S51, S52, S53
                                    R"("a":{"shape":[1],"data_offsets":[0,1],"dtype":"U8","extra":[{}]}})",
                                    "x1234"));
  EXPECT_EQ(table.at("b").offset + 4, table.at("b").file->size());
  std::string four(4, '\0');
  table.at("b").file->read(table.at("b").offset, std::as_writable_bytes(std::span(four)));
  EXPECT_EQ(four, "1234");
}

TEST_F(Safetensors, accepts_odd_names_and_escapes_them_in_messages) {  // S54, S55, S56
  const std::string entry = R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const auto with_name = [&](const std::string& name, const char* data) {
    return container("{\"" + name + entry, data);
  };
  EXPECT_TRUE(read(with_name("", "x")).contains(""));
  EXPECT_TRUE(read(with_name(R"(a\n\u001b[31m)", "x")).contains("a\n\x1b[31m"));
  EXPECT_TRUE(read(with_name(std::string(1'000'000, 'n'), "x")).contains(std::string(1'000'000, 'n')));
  const auto nul = read(with_name(R"(ab\u0000c)", "x"));
  EXPECT_FALSE(nul.contains("ab"));
  EXPECT_TRUE(nul.contains(std::string("ab\0c", 4)));
  refused(with_name("", ""), {"tensor \"\""});
  refused(with_name(R"(a\n\u001b[31m)", ""), {R"(a\n\x1b[31m)"});
  refused(with_name(std::string(1'000'000, 'n'), ""), {"nnnn"});
  refused(with_name(R"(a\ud800)", "x"), {"bad JSON"});
}

TEST_F(Safetensors, names_what_the_file_is_instead) {  // S57, S58
  refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32\nsize 12\n",
          {"Git-LFS pointer", "git lfs pull"});
  refused("<!DOCTYPE html>\n<html><body>404</body></html>", {"HTML page"});
  refused("PK\x03\x04 and so on, a zip archive", {"zip archive"});
  refused(std::string("GGUF\x03\0\0\0\0\0\0\0\0\0\0\0", 16), {"GGUF"});
  refused("{\"weight_map\": {}}", {"JSON text"});
}

TEST_F(Safetensors, refuses_every_truncation) {  // S47, X3
  const std::string whole = SafetensorsBuilder().add("a", "F32", {2, 3}, 4).add("b", "BF16", {3}, 2).bytes();
  EXPECT_EQ(read(whole).size(), 2U);
  for (std::size_t n = whole.size(); n-- > 0;) {
    std::filesystem::resize_file(path_, n);
    expect_error(ErrorCode::format, {"w.safetensors"}, [&] { (void)open_path(path_); });
  }
}

TEST_F(Safetensors, survives_every_flipped_byte_of_a_header) {  // X4
  const std::string whole = SafetensorsBuilder().add("a", "F32", {2, 3}, 4).add("b", "BF16", {3}, 2).bytes();
  write_file(path_, whole);
  for (std::size_t at = 0; at < whole.size() - 30; ++at) {
    for (const int change : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      testing::change_byte(path_, at, static_cast<char>(whole[at] ^ change));
      try {
        for (const auto& [name, tensor] : open_path(path_)) {
          ASSERT_LE(tensor.offset, whole.size()) << at << " ^ " << change;
          ASSERT_EQ(tensor.shape.size(), tensor.strides.size());
        }
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::format) << error.text();
      }
    }
    testing::change_byte(path_, at, whole[at]);
  }
}

TEST_F(Safetensors, survives_extreme_numbers_in_every_field) {  // X5
  for (const std::uint64_t value :
       {0ULL, 1ULL, (1ULL << 31) - 1, 1ULL << 31, (1ULL << 32) - 1, (1ULL << 63) - 1, 1ULL << 63, ~0ULL}) {
    for (int field = 0; field < 3; ++field) {
      std::uint64_t numbers[3] = {4, 0, 16};
      if (numbers[field] == value) continue;
      numbers[field] = value;
      entry_refused(
          fmt::format(R"({{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})", numbers[0], numbers[1], numbers[2]),
          16, {"t"});
    }
  }
}

TEST(SafetensorsFiles, of_other_writers_open) {
  SWIGLU_NEEDS_TEST_DATA();
  int files = 0;
  std::size_t tensors = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(test_data() / "safetensors")) {
    if (!entry.is_regular_file()) continue;
    ++files;
    tensors += open_path(entry.path()).size();
  }
  EXPECT_EQ(files, 16);
  EXPECT_GT(tensors, 16U);
  EXPECT_TRUE(open_path(test_data() / "safetensors/iree/empty.safetensors").empty());
  // 60 bytes of header: the data begins at 68 and is not aligned.
  EXPECT_EQ(open_path(test_data() / "safetensors/misc/swift_data.safetensors").begin()->second.offset, 68U);
}

TEST(SafetensorsFiles, that_are_malformed_are_refused) {
  SWIGLU_NEEDS_TEST_DATA();
  expect_error(ErrorCode::format, {"abuse_attempt_1.safetensors", "1000"},
               [] { (void)open_path(test_data() / "malformed/safetensors/abuse_attempt_1.safetensors"); });
  expect_error(ErrorCode::format, {"weight_inspect_tiny_trailing5.safetensors", "5 bytes after"}, [] {
    (void)open_path(test_data() / "malformed/safetensors/weight_inspect_tiny_trailing5.safetensors");
  });
}

}  // namespace
}  // namespace swiglu::files
