// Values of GGUF's keys: where they lie, and what they are when asked for.
#include <bit>

#include "files/gguf.h"
#include "support/data.h"
#include "support/gguf.h"
#include "support/safetensors.h"

namespace swiglu::files {
namespace {

using swiglu::testing::expect_error;
using swiglu::testing::gguf_array;
using swiglu::testing::gguf_f32;
using swiglu::testing::gguf_i32;
using swiglu::testing::gguf_pair;
using swiglu::testing::gguf_string;
using swiglu::testing::gguf_text;
using swiglu::testing::gguf_u32;
using swiglu::testing::GgufParts;
using swiglu::testing::le;

class GgufValues : public ::testing::Test {
 protected:
  GgufFile read(const GgufParts& parts) {
    testing::write_file(path_, parts.bytes());
    return read_gguf(std::make_shared<const File>(path_));
  }
  testing::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "w.gguf";
};

TEST_F(GgufValues, lie_where_they_may_be_copied) {
  GgufParts parts;
  parts.pairs = {gguf_text("general.architecture", "llama"), gguf_u32("llama.block_count", 1),
                 gguf_array("tokens", 8, 2, gguf_string("a") + gguf_string("bc"))};
  const std::string bytes = parts.bytes();
  const GgufFile file = read(parts);
  for (std::size_t i = 0; i < parts.pairs.size(); ++i) {
    EXPECT_EQ(bytes.substr(file.pairs[i].offset, file.pairs[i].size), parts.pairs[i]);
  }
}

TEST_F(GgufValues, of_every_type_are_decoded) {
  const GgufFile file = read(GgufParts()
                                 .add_pair(gguf_pair("u8", 0, "\xff"))
                                 .add_pair(gguf_pair("i8", 1, "\xff"))
                                 .add_pair(gguf_pair("u16", 2, "\xff\xff"))
                                 .add_pair(gguf_pair("i16", 3, "\xfe\xff"))
                                 .add_pair(gguf_u32("u32", 0xffffffffU))
                                 .add_pair(gguf_i32("i32", -7))
                                 .add_pair(gguf_f32("f32", 0.25F))
                                 .add_pair(gguf_pair("bool", 7, le(1, 1)))
                                 .add_pair(gguf_text("string", "x"))
                                 .add_pair(gguf_pair("u64", 10, le(1ULL << 62, 8)))
                                 .add_pair(gguf_pair("big", 10, le(1ULL << 63, 8)))
                                 .add_pair(gguf_pair("i64", 11, le(~0ULL, 8)))
                                 .add_pair(gguf_pair("f64", 12, le(std::bit_cast<std::uint64_t>(-0.5), 8)))
                                 .add_pair(gguf_array("bytes", 1, 3, "\x01\x80\xff"))
                                 .add_pair(gguf_array("words", 4, 2, le(5, 4) + le(0xffffffff, 4)))
                                 .add_pair(gguf_array("longs", 10, 1, le(~0ULL, 8)))
                                 .add_pair(gguf_array("floats", 6, 1, le(0, 4)))
                                 .add_pair(gguf_array("none", 5, 0, "")));
  const std::vector<std::pair<const char*, std::int64_t>> integers = {
      {"u8", 255},           {"i8", -1},  {"u16", 65535},     {"i16", -2},
      {"u32", 0xffffffffLL}, {"i32", -7}, {"u64", 1LL << 62}, {"i64", -1}};
  for (const auto& [key, value] : integers) {
    EXPECT_EQ(file.find(key)->integer(), value) << key;
    EXPECT_EQ(file.find(key)->real(), std::nullopt) << key;
  }
  for (const char* key : {"f32", "bool", "string", "big", "f64", "bytes"}) {
    EXPECT_EQ(file.find(key)->integer(), std::nullopt) << key;
  }
  EXPECT_EQ(file.find("f32")->real(), 0.25);
  EXPECT_EQ(file.find("f64")->real(), -0.5);
  EXPECT_EQ(file.find("big")->describe(), "the u64 9223372036854775808");
  EXPECT_EQ(file.find("bool")->describe(), "the bool true");
  EXPECT_EQ(file.find("words")->describe(), "an array of 2 u32");
  EXPECT_EQ(file.integers(*file.find("bytes"), 3), (std::vector<std::int64_t>{1, -128, -1}));
  EXPECT_EQ(file.integers(*file.find("words"), 3), (std::vector<std::int64_t>{5, 0xffffffffLL}));
  EXPECT_TRUE(file.integers(*file.find("none"), 3).empty());
  for (const char* key : {"longs", "floats", "u32"}) {
    expect_error(ErrorCode::format, {"w.gguf", key, "integers"}, [&] { (void)file.integers(*file.find(key), 3); });
  }
  expect_error(ErrorCode::format, {"bytes", "at most 2"}, [&] { (void)file.integers(*file.find("bytes"), 2); });
  expect_error(ErrorCode::format, {"u32", "a string", "4294967295"}, [&] { (void)file.text(*file.find("u32"), 9); });
  expect_error(ErrorCode::format, {"string", "at most 0 bytes"}, [&] { (void)file.text(*file.find("string"), 0); });
}

}  // namespace
}  // namespace swiglu::files
