// The GGUF container: every rule of the format broken once, the odd but valid files accepted.
#include "files/gguf.h"

#include <chrono>
#include <fstream>

#include "support/data.h"
#include "support/gguf.h"
#include "support/safetensors.h"

namespace swiglu::files {
namespace {

using swiglu::testing::expect_error;
using swiglu::testing::gguf_array;
using swiglu::testing::gguf_i32;
using swiglu::testing::gguf_info;
using swiglu::testing::gguf_pair;
using swiglu::testing::gguf_string;
using swiglu::testing::gguf_text;
using swiglu::testing::gguf_u32;
using swiglu::testing::GgufParts;
using swiglu::testing::le;
using swiglu::testing::write_file;

constexpr std::uint64_t kHuge[] = {1ULL << 61, (1ULL << 63) - 1, 1ULL << 63, ~0ULL - 7, ~0ULL};

GgufFile open_path(const std::filesystem::path& path) { return read_gguf(std::make_shared<const File>(path)); }

// Each test has a folder and one file in it, written anew for every case.
class Gguf : public ::testing::Test {
 protected:
  GgufFile read(std::string_view bytes) {
    write_file(path_, bytes);
    return open_path(path_);
  }
  GgufFile read(const GgufParts& parts) { return read(parts.bytes()); }
  void refused(std::string_view bytes, std::initializer_list<std::string_view> parts,
               ErrorCode code = ErrorCode::format) {
    write_file(path_, bytes);
    expect_error(code, parts, [&] { (void)open_path(path_); });
    expect_error(code, {"w.gguf"}, [&] { (void)open_path(path_); });
  }
  void pair_refused(std::string pair, std::initializer_list<std::string_view> parts) {
    refused(GgufParts().add_pair(std::move(pair)).bytes(), parts);
  }
  /// One tensor info and `data` bytes of data.
  void info_refused(std::string info, std::size_t data, std::initializer_list<std::string_view> parts) {
    GgufParts file;
    file.infos.push_back(std::move(info));
    file.data.assign(data, 'x');
    refused(file.bytes(), parts);
  }

  testing::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "w.gguf";
};

GgufParts small() {
  return GgufParts()
      .add_pair(gguf_text("general.architecture", "llama"))
      .add_pair(gguf_u32("llama.block_count", 1))
      .add_pair(gguf_array("tokens", 8, 2, gguf_string("a") + gguf_string("bc")))
      .add_f32("a", {3, 2})
      .add("b", {32, 2}, 8, std::string(68, 'q'));
}

TEST_F(Gguf, reads_pairs_and_tensors_of_both_versions) {
  for (const std::uint32_t version : {2U, 3U}) {
    GgufParts parts = small();
    parts.version = version;
    const GgufFile file = read(parts);
    EXPECT_EQ(file.version, version);
    EXPECT_EQ(file.alignment, 32U);
    ASSERT_EQ(file.pairs.size(), 3U);
    EXPECT_EQ(file.text(*file.find("general.architecture"), 64), "llama");
    EXPECT_EQ(file.find("llama.block_count")->integer(), 1);
    EXPECT_EQ(file.find("nothing"), nullptr);
    ASSERT_EQ(file.tensors.size(), 2U);
    const StoredTensor& a = file.tensors.at("a");
    EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(a.strides, (std::vector<std::int64_t>{3, 1}));
    EXPECT_EQ(a.dtype, DType::f32);
    EXPECT_EQ(a.offset, file.data_offset);
    EXPECT_EQ(a.offset % 32, 0U);
    const StoredTensor& b = file.tensors.at("b");
    EXPECT_EQ(b.dtype_name, "Q8_0");
    EXPECT_FALSE(b.dtype);
    ASSERT_NE(b.encoding, nullptr);
    EXPECT_EQ(b.encoding->name, "Q8_0");
    EXPECT_EQ(b.shape, (std::vector<std::int64_t>{2, 32}));
    EXPECT_EQ(b.strides, (std::vector<std::int64_t>{32, 1}));
    EXPECT_EQ(b.offset + 68, file.file->size());  // G50: nothing after the last tensor
  }
}

TEST_F(Gguf, refuses_what_is_no_gguf_file) {
  refused("", {"0 bytes"});                                                                                  // G01
  refused("GGU", {"3 bytes"});                                                                               // G01
  refused("GGUF", {"a version"});                                                                            // G01
  refused("FUGG" + std::string(40, '\0'), {"FUGG"});                                                         // G02
  for (const char* old : {"ggml", "lmgg", "tjgg", "fmgg", "ggla"}) {                                         // G02
    refused(old + std::string(40, '\0'), {"older format gg"}, ErrorCode::unsupported);
  }
  refused("PK\x03\x04" + std::string(40, '\0'), {"zip archive"});
  refused("version https://git-lfs.github.com/spec/v1\noid", {"Git-LFS"});
}

TEST_F(Gguf, refuses_other_versions_and_byte_orders) {
  for (const std::uint32_t version : {0U, 1U, 4U, 1U << 31U | 3U, 0xffffffffU}) {  // G03, G04, G05
    GgufParts parts;
    parts.version = version;
    refused(parts.bytes(), {"version 2 or 3", fmt::format("found {}", version)}, ErrorCode::unsupported);
  }
  for (const std::uint32_t version : {0x02000000U, 0x03000000U}) {  // G06
    GgufParts parts;
    parts.version = version;
    refused(parts.bytes(), {"big-endian"}, ErrorCode::unsupported);
  }
}

TEST_F(Gguf, refuses_counts_beyond_the_file) {
  const auto counts = [](std::uint64_t tensors, std::uint64_t pairs) {
    return "GGUF" + le(3, 4) + le(tensors, 8) + le(pairs, 8) + std::string(76, '\0');
  };
  for (const std::uint64_t count : kHuge) {
    refused(counts(count, 0), {"number of tensors", fmt::format("{}", count)});  // G07
    refused(counts(0, count), {"number of keys", fmt::format("{}", count)});     // G08
  }
  refused(counts(1'000'000'000, 0), {"number of tensors", "at most 3"});  // G09
  refused(counts(0, 6), {"number of keys", "at most 5"});
}

TEST_F(Gguf, refuses_keys_that_are_none) {
  for (const std::uint64_t length : kHuge) {  // G10, G73
    pair_refused(le(length, 8) + "abc" + std::string(40, '\0'), {"a key", fmt::format("{}", length)});
  }
  pair_refused(le(60, 8) + std::string(50, 'k'), {"a key of 60 bytes", "only 50"});                      // G11
  pair_refused(gguf_u32("", 1), {"empty key"});                                                          // G12
  pair_refused(gguf_u32("a\xff\xfe", 1), {R"(key a\xff\xfe)", "UTF-8"});                                 // G13
  pair_refused(gguf_u32("a\xc0\x80", 1), {"UTF-8"});                                                     // G13
  pair_refused(gguf_u32("a\xed\xa0\x80", 1), {"UTF-8"});                                                 // G13
  pair_refused(gguf_u32(std::string_view("a\0b", 3), 1), {R"(a\x00b)", "NUL"});                          // G13
  pair_refused(gguf_u32(std::string(65536, 'k'), 1), {"at most 65535", "65536"});                        // G13
  EXPECT_EQ(read(GgufParts().add_pair(gguf_u32(std::string(65535, 'k'), 1))).pairs.size(), 1U);
  EXPECT_EQ(read(GgufParts().add_pair(gguf_u32("größe", 1))).pairs.size(), 1U);
  refused(GgufParts().add_pair(gguf_u32("a.b", 1)).add_pair(gguf_u32("c", 1)).add_pair(gguf_u32("a.b", 2)).bytes(),
          {"key a.b", "twice"});  // G14
}

TEST_F(Gguf, refuses_values_that_are_none) {
  for (const std::uint32_t type : {13U, 255U, 0xffffffffU}) {
    pair_refused(gguf_pair("k", type, std::string(16, '\0')), {"key k", fmt::format("found {}", type)});  // G15
    pair_refused(gguf_array("k", type, 0, ""), {"key k", fmt::format("found {}", type)});                 // G20
  }
  for (const std::uint64_t length : kHuge) {
    pair_refused(gguf_pair("k", 8, le(length, 8) + "abc"), {"key k", fmt::format("{}", length)});  // G16, G73
    for (const std::uint32_t type : {0U, 4U, 8U, 12U}) {
      pair_refused(gguf_array("k", type, length, std::string(64, '\0')),
                   {"key k", fmt::format("array of {} elements", length)});  // G17, G73
    }
    pair_refused(gguf_array("k", 8, 2, gguf_string("a") + le(length, 8) + "b"), {"key k", fmt::format("{}", length)});
  }
  pair_refused(gguf_pair("k", 8, le(4, 8) + "abc"), {"key k", "4 bytes", "3 are left"});                  // G16
  pair_refused(gguf_array("k", 4, 3, std::string(11, '\0')), {"key k", "3 elements", "11 bytes"});        // G18
  pair_refused(gguf_array("k", 9, 1, le(4, 4) + le(1, 8) + le(1, 4)), {"key k", "array of arrays"});      // G19
  pair_refused(gguf_pair("k", 7, le(2, 1)), {"key k", "bool", "2"});                                      // G21
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += le(9, 4) + le(1, 8);
  pair_refused(gguf_pair("k", 9, deep), {"array of arrays"});  // G19
}

TEST_F(Gguf, refuses_alignments_that_are_none) {
  for (const std::uint32_t alignment : {0U, 13U, 0xffffffffU}) {  // G23, G24, G26
    pair_refused(gguf_u32("general.alignment", alignment), {"general.alignment", fmt::format("{}", alignment)});
  }
  pair_refused(gguf_i32("general.alignment", 32), {"general.alignment", "i32"});                  // G25
  pair_refused(gguf_pair("general.alignment", 10, le(32, 8)), {"general.alignment", "u64"});      // G25
  pair_refused(gguf_text("general.alignment", "32"), {"general.alignment", "a string"});          // G25
  GgufParts far = GgufParts().add_pair(gguf_u32("general.alignment", 1U << 31U)).add_f32("a", {4});
  refused(far.bytes(), {"tensor a", "0 bytes of data"});  // G26
}

TEST_F(Gguf, takes_any_power_of_two_as_alignment) {  // G27
  for (const std::uint32_t alignment : {1U, 2U, 4U, 8U, 64U, 4096U}) {
    GgufParts parts;
    parts.alignment = alignment;
    parts.add_pair(gguf_u32("general.alignment", alignment)).add_f32("a", {3}).add_f32("b", {1});
    const GgufFile file = read(parts);
    EXPECT_EQ(file.alignment, alignment);
    EXPECT_EQ(file.data_offset % alignment, 0U);
    EXPECT_EQ(file.tensors.at("b").offset + 4, file.file->size()) << alignment;
  }
  // Written with other offsets than the key says.
  GgufParts parts = GgufParts().add_pair(gguf_u32("general.alignment", 64)).add_f32("a", {3}).add_f32("b", {1});
  refused(parts.bytes(), {"tensor b", "multiple of 64", "32"});  // G48
}

TEST_F(Gguf, refuses_names_of_tensors_that_are_none) {
  EXPECT_EQ(read(GgufParts().add_f32(std::string(63, 'n'), {2})).tensors.size(), 1U);
  refused(GgufParts().add_f32(std::string(64, 'n'), {2}).bytes(), {"tensor number 0", "63", "64"});  // G28
  refused(GgufParts().add_f32("a", {2}).add_f32("b", {2}).add_f32("a", {2}).bytes(), {"tensor a", "twice"});  // G29
  for (const std::uint64_t length : kHuge) {
    info_refused(le(length, 8) + std::string(64, '\0'), 0, {"tensor number 0", fmt::format("{}", length)});
  }
  info_refused(gguf_info("a\n\x1b[31m", {3}, 99, 0), 16, {R"(tensor a\n\x1b[31m)"});
}

TEST_F(Gguf, refuses_shapes_that_are_none) {
  for (const std::uint32_t dimensions : {5U, 8U, 0xffffffffU}) {  // G30
    info_refused(gguf_string("t") + le(dimensions, 4) + std::string(100, '\0'), 0,
                 {"tensor t", "4 dimensions", fmt::format("{}", dimensions)});
  }
  info_refused(gguf_info("t", {4, ~0ULL}, 0, 0), 64, {"tensor t", "dimension 1"});                           // G32
  info_refused(gguf_info("t", {4, 1ULL << 63}, 0, 0), 64, {"tensor t", "dimension 1"});                      // G32
  const std::uint64_t m = (1ULL << 31) - 1;
  info_refused(gguf_info("t", {m, m, m, m}, 0, 0), 64, {"tensor t", "overflows"});                           // G34
  info_refused(gguf_info("t", {1ULL << 61}, 27, 0), 64, {"tensor t", "I64", "overflows"});                   // G35
  info_refused(gguf_info("t", {1ULL << 32, 1ULL << 32}, 0, 0), 64, {"tensor t", "overflows"});               // G36
  info_refused(gguf_info("t", {4, (1ULL << 30) - 1, (1ULL << 30) + 1}, 0, 0), 64, {"tensor t", "overflows"});  // G37
  info_refused(gguf_info("t", {1ULL << 32, 1ULL << 31, 2}, 8, 0), 64, {"tensor t", "overflows"});  // G38
  info_refused(gguf_info("t", {1ULL << 32, 1ULL << 20}, 8, 0), 64, {"tensor t", "64 bytes of data"});
  info_refused(gguf_info("t", {0, 1ULL << 62, 4}, 0, 0), 64, {"tensor t", "overflows"});
  info_refused(gguf_info("t", {172, 4}, 8, 0), 4096, {"tensor t", "32", "Q8_0", "172"});  // G42
  info_refused(gguf_info("t", {896}, 12, 0), 4096, {"tensor t", "256", "Q4_K", "896"});  // G42
  info_refused(gguf_info("t", {}, 8, 0), 4096, {"tensor t", "Q8_0"});
}

TEST_F(Gguf, takes_scalars_and_empty_tensors) {  // G31, G33
  const GgufFile file = read(GgufParts().add_f32("scalar", {}).add_f32("empty", {4, 0}).add_f32("row", {0, 4}));
  EXPECT_TRUE(file.tensors.at("scalar").shape.empty());
  EXPECT_EQ(file.tensors.at("empty").shape, (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(file.tensors.at("row").shape, (std::vector<std::int64_t>{4, 0}));
}

TEST_F(Gguf, refuses_types_that_are_none) {
  for (const std::uint32_t type : {4U, 5U, 31U, 32U, 33U, 36U, 37U, 38U}) {  // G40
    info_refused(gguf_info("t", {256}, type, 0), 4096, {"tensor t", fmt::format("type {}", type), "removed"});
  }
  for (const std::uint32_t type : {43U, 255U, 0xffffffffU}) {  // G41, G74
    info_refused(gguf_info("t", {256}, type, 0), 4096, {"tensor t", fmt::format("type {}", type), "unknown"});
  }
  info_refused(gguf_info("t", {256}, 15, 0), 4096, {"tensor t", "Q8_K"});
  const GgufFile file = read(GgufParts().add("t", {256}, 16, std::string(66, 'x')));  // known, but not decoded
  EXPECT_EQ(file.tensors.at("t").dtype_name, "IQ2_XXS");
  EXPECT_EQ(file.tensors.at("t").encoding, nullptr);
  EXPECT_FALSE(file.tensors.at("t").dtype);
}

TEST_F(Gguf, refuses_places_that_are_none) {
  for (const std::uint64_t offset : {~0ULL, ~0ULL - 15, ~0ULL - 31}) {  // G43
    info_refused(gguf_info("t", {4}, 0, offset), 64, {"tensor t", fmt::format("{}", offset)});
  }
  info_refused(gguf_info("t", {32}, 0, ~0ULL - 31), 128, {"tensor t", "overflow"});  // the end wraps into the file
  info_refused(gguf_info("t", {4}, 0, 1ULL << 63), 64, {"tensor t", "64 bytes of data"});
  info_refused(gguf_info("t", {4}, 0, 16), 64, {"tensor t", "multiple of 32", "16"});  // G44
  info_refused(gguf_info("t", {9}, 0, 32), 64, {"tensor t", "36 bytes at offset 32", "64 bytes"});  // G45
  info_refused(gguf_info("t", {4}, 0, 0), 0, {"tensor t", "0 bytes of data"});  // G49
  const std::uint64_t half = 0x7fffffffffffffc0ULL;  // G39
  GgufParts wrap;
  wrap.infos = {gguf_info("a", {half}, 24, 0), gguf_info("b", {half}, 24, half), gguf_info("c", {64}, 24, 2 * half)};
  wrap.data.assign(64, 'x');
  refused(wrap.bytes(), {"tensor ", "64 bytes of data"});
  GgufParts shared;
  shared.infos = {gguf_info("a", {8}, 0, 32), gguf_info("b", {8}, 0, 32)};
  shared.data.assign(64, 'x');
  refused(shared.bytes(), {"tensor ", "overlap"});  // G46
  shared.infos = {gguf_info("a", {9}, 0, 0), gguf_info("b", {8}, 0, 32)};
  refused(shared.bytes(), {"tensor b", "inside tensor a", "overlap"});  // G46, G52
}

TEST_F(Gguf, takes_holes_any_order_and_bytes_after_the_end) {  // G47, G51
  GgufParts parts;
  parts.infos = {gguf_info("last", {8}, 0, 128), gguf_info("first", {8}, 0, 32), gguf_info("empty", {0}, 0, 32)};
  parts.data.assign(300, 'x');
  const GgufFile file = read(parts);
  EXPECT_EQ(file.tensors.at("last").offset, file.data_offset + 128);
  EXPECT_EQ(file.tensors.at("first").offset, file.data_offset + 32);
}

TEST_F(Gguf, takes_files_without_tensors) {  // G70
  const GgufFile file = read(GgufParts());
  EXPECT_TRUE(file.pairs.empty());
  EXPECT_TRUE(file.tensors.empty());
  EXPECT_EQ(file.file->size(), 24U);
  EXPECT_EQ(read(GgufParts().add_pair(gguf_u32("general.alignment", 1U << 31U))).alignment, 1U << 31U);
}

TEST_F(Gguf, refuses_line_ends_translated) {  // G72
  const std::string bytes = GgufParts().add_pair(gguf_text("general.name", "a\nb")).add_f32("0123456789", {10}).bytes();
  EXPECT_EQ(read(bytes).tensors.size(), 1U);
  std::string translated;
  for (const char c : bytes) translated += c == '\n' ? std::string("\r\n") : std::string(1, c);
  refused(translated, {"expected"});
}

TEST_F(Gguf, steps_over_long_strings_and_refuses_longer_ones) {  // G71
  for (const std::uint64_t length : {1ULL << 30, (1ULL << 30) + 1}) {
    const std::string head = "GGUF" + le(3, 4) + le(0, 8) + le(1, 8) + gguf_string("k") + le(8, 4) + le(length, 8);
    write_file(path_, head);
    std::filesystem::resize_file(path_, head.size() + length);  // sparse
    if (length == 1ULL << 30) {
      EXPECT_EQ(open_path(path_).find("k")->count, length);
    } else {
      expect_error(ErrorCode::format, {"key k", "at most", "1073741825"}, [&] { (void)open_path(path_); });
    }
  }
}

// X7: what a file of names costs grows with its length only.
TEST_F(Gguf, reads_many_tensors_in_linear_time) {
  std::string infos;
  constexpr std::uint64_t kCount = 200'000;
  for (std::uint64_t i = 0; i < kCount; ++i) infos += gguf_info(fmt::format("{:063}", i), {0}, 0, 0);
  const auto start = std::chrono::steady_clock::now();
  write_file(path_, "GGUF" + le(3, 4) + le(kCount, 8) + le(0, 8) + infos);
  EXPECT_EQ(open_path(path_).tensors.size(), kCount);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(300));
}

TEST_F(Gguf, refuses_every_truncation) {  // G22, X3
  const std::string whole = small().bytes();
  EXPECT_EQ(read(whole).tensors.size(), 2U);
  for (std::size_t n = whole.size(); n-- > 0;) {
    std::filesystem::resize_file(path_, n);
    expect_error(ErrorCode::format, {"w.gguf"}, [&] { (void)open_path(path_); });
  }
}

TEST_F(Gguf, survives_every_flipped_byte_of_a_header) {  // X4
  const std::string whole = small().bytes();
  write_file(path_, whole);
  for (std::size_t at = 0; at < whole.size() - 132; ++at) {
    for (const int change : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      testing::change_byte(path_, at, static_cast<char>(whole[at] ^ change));
      try {
        for (const auto& [name, tensor] : open_path(path_).tensors) {
          ASSERT_LE(tensor.offset, whole.size()) << at << " ^ " << change;
          ASSERT_EQ(tensor.shape.size(), tensor.strides.size());
        }
      } catch (const Error& error) {
        ASSERT_TRUE(error.code() == ErrorCode::format || error.code() == ErrorCode::unsupported) << error.text();
      }
    }
    testing::change_byte(path_, at, whole[at]);
  }
}

TEST_F(Gguf, survives_extreme_numbers_everywhere_in_a_header) {  // X5
  const std::string whole = small().bytes();
  write_file(path_, whole);
  std::fstream out(path_, std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::size_t at, const std::string& bytes) {
    out.seekp(static_cast<std::streamoff>(at));
    out << bytes << std::flush;
  };
  for (std::size_t at = 4; at + 8 <= whole.size() - 132; ++at) {
    for (const std::uint64_t value :
         {0ULL, 1ULL, (1ULL << 31) - 1, 1ULL << 31, (1ULL << 32) - 1, (1ULL << 63) - 1, 1ULL << 63, ~0ULL}) {
      put(at, le(value, 8));
      try {
        (void)open_path(path_);
      } catch (const Error& error) {
        ASSERT_TRUE(error.code() == ErrorCode::format || error.code() == ErrorCode::unsupported) << error.text();
      }
    }
    put(at, whole.substr(at, 8));
  }
  EXPECT_EQ(open_path(path_).tensors.size(), 2U);
}

}  // namespace
}  // namespace swiglu::files
