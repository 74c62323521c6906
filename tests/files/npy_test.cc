// Reading .npy: what is accepted and how it is read, and every fault of a list collected from the bugs of
// other readers (its numbers, N01 … N50, stand above the groups).
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/dtype.h"
#include "support/data.h"
#include "swiglu/files.hpp"

namespace swiglu {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;

void put(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

// A file with this header and data; the header is padded with blanks only if `padded`.
std::string npy(std::string header, const std::string& data, int major = 1, int minor = 0, bool padded = true) {
  const std::size_t prefix = major == 1 ? 10 : 12;
  if (padded) {
    header += std::string(63 - (prefix + header.size()) % 64, ' ') + "\n";
  }
  std::string out = "\x93NUMPY";
  out += static_cast<char>(major);
  out += static_cast<char>(minor);
  for (std::size_t i = 0; i < prefix - 8; ++i) out += static_cast<char>(header.size() >> (8 * i) & 0xffU);
  return out + header + data;
}
std::string dict(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return fmt::format("{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}", descr, fortran, shape);
}

struct Npy : ::testing::Test {
  TemporaryFolder folder;
  Array read(const std::string& bytes, bool u2_is_bf16 = false) {
    fs::remove(folder / "in.npy");  // much faster than cutting the old one
    put(folder / "in.npy", bytes);
    return read_npy(folder / "in.npy", u2_is_bf16);
  }
  // The error's text, or what went wrong with the test itself.
  std::string refusal(const std::string& bytes, ErrorCode code = ErrorCode::format, bool u2_is_bf16 = false) {
    try {
      (void)read(bytes, u2_is_bf16);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.text();
      EXPECT_NE(e.text().find("in.npy"), std::string::npos) << e.text();
      EXPECT_EQ(e.text().find('\n'), std::string::npos) << e.text();
      return e.text();
    }
    ADD_FAILURE() << "accepted";
    return "";
  }
  // Refuses a header of shape (4,) floats with 16 bytes of data unless told otherwise.
  std::string refused_header(const std::string& header, ErrorCode code = ErrorCode::format) {
    return refusal(npy(header, std::string(16, '\0')), code);
  }
};

std::vector<double> doubles(const Array& array) {
  std::vector<double> out(array.bytes.size() / static_cast<std::size_t>(size_of(array.dtype)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = load_double(array.bytes.data(), array.dtype, static_cast<std::int64_t>(i));
  }
  return out;
}

const std::string kFour(16, '\0');

// ----------------------------------------------------------------------------------------------
// The container (N01 … N07, N26, N37, N40, N41, N47, N48)

TEST_F(Npy, refuses_a_file_cut_at_every_byte) {  // N01, N25, N26, X3
  for (const int major : {1, 2, 3}) {
    const std::string whole = npy(dict("'<f4'", "(2, 3)"), std::string(24, 'x'), major);
    EXPECT_EQ(read(whole).bytes.size(), 24U);
    for (std::size_t n = 0; n < whole.size(); ++n) (void)refusal(whole.substr(0, n));
    (void)refusal(whole + "x");
    EXPECT_NE(refusal(whole + whole).find("more than one array"), std::string::npos);  // N27
  }
}

TEST_F(Npy, refuses_a_wrong_magic_and_says_what_the_file_is) {  // N02, N41, N47
  const std::string good = npy(dict("'<f4'", "(4,)"), kFour);
  for (std::size_t i = 0; i < 6; ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    (void)refusal(bad);
  }
  EXPECT_NE(refusal("PK\x03\x04 and so on").find(".npz"), std::string::npos);
  EXPECT_NE(refusal("<!DOCTYPE html><html>").find("HTML"), std::string::npos);
  EXPECT_NE(refusal("version https://git-lfs.github.com/spec/v1\noid").find("Git-LFS"), std::string::npos);
  (void)refusal("1.0,2.0\n3.0,4.0\n");
  (void)refusal("\x80\x03]q");
  (void)refusal("MATLAB 5.0 MAT-file");
}

TEST_F(Npy, refuses_unknown_versions) {  // N03
  for (const auto& [major, minor] : {std::pair{0, 0}, {4, 0}, {1, 1}, {2, 1}, {255, 255}}) {
    std::string bad = npy(dict("'<f4'", "(4,)"), kFour);
    bad[6] = static_cast<char>(major);
    bad[7] = static_cast<char>(minor);
    (void)refusal(bad, ErrorCode::unsupported);
  }
}

TEST_F(Npy, compares_header_lengths_with_the_file_before_anything) {  // N04, N05, N06, N07, N40, N48
  std::string v1 = npy(dict("'<f4'", "(4,)"), kFour);
  v1[8] = v1[9] = '\xff';
  (void)refusal(v1);
  for (const unsigned length : {0xFFFFFFF0U, 0xFFFFFFFFU, 0x80000000U}) {  // 12 bytes more wrap in 32 bits
    std::string v2("\x93NUMPY\x02\x00", 8);
    for (unsigned i = 0; i < 4; ++i) v2 += static_cast<char>(length >> (8 * i));
    (void)refusal(v2);
  }
  // 0x8000 and more is not negative: the file is long enough, so the cap is what refuses it.
  EXPECT_NE(refusal(npy(dict("'<f4'", "(4,)") + std::string(40000, ' '), kFour)).find("at most 10000"),
            std::string::npos);
  EXPECT_NE(refusal(npy(dict("'<f4'", "(4,)") + std::string(70000, ' '), kFour, 2)).find("at most 10000"),
            std::string::npos);
  EXPECT_EQ(read(npy(dict("'<f4'", "(4,)") + std::string(9800, ' '), kFour)).bytes.size(), 16U);
  // A version 1 file with version 2's length field.
  std::string mixed = npy(dict("'<f4'", "(4,)"), kFour, 2);
  mixed[6] = 1;
  (void)refusal(mixed);
}

TEST_F(Npy, accepts_any_alignment_of_the_data) {  // N37
  for (const bool newline : {false, true}) {
    const std::string header = dict("'<f4'", "(4,)") + (newline ? "\n" : "");
    EXPECT_EQ(read(npy(header, kFour, 1, 0, false)).shape, (std::vector<std::int64_t>{4}));
    EXPECT_EQ(read(npy(header, kFour, 3, 0, false)).shape, (std::vector<std::int64_t>{4}));
  }
}

// ----------------------------------------------------------------------------------------------
// The dict (N08 … N12, N35, N38, N39, N49)

TEST_F(Npy, accepts_other_orders_quotes_and_blanks) {  // N12
  for (const char* header : {"{'shape': (4,), 'fortran_order': False, 'descr': '<f4'}",
                             "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (4,)}",
                             " \t{ 'descr' :'<f4' ,\n'fortran_order':False,'shape':( 4 , ) }  \n ",
                             "{'descr':'<f4','fortran_order':True,'shape':(4L,),}"}) {
    EXPECT_EQ(read(npy(header, kFour)).shape, (std::vector<std::int64_t>{4})) << header;
  }
}

TEST_F(Npy, refuses_headers_that_are_not_a_dict_of_the_three_keys) {  // N08, N09, N10, N11, N38, N39, N49
  for (const std::string& header : split(R"(
[1, 2]
3
__import__('os').system('true')
'descr'
{
{}
{'descr'
{'descr':
{'descr': '<f4'
{'descr: '<f4', 'fortran_order': False, 'shape': (4,), }
{'descr': '<f4', 'shape': (4,), }
{'descr': '<f4', 'fortran_order': False, }
{'fortran_order': False, 'shape': (4,), }
{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'extra': 1}
{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'shape': (4,)}
{'descr': '<f8', 'descr': '<f4', 'fortran_order': False, 'shape': (4,)}
{'descr': '<f4', 'fortran_order': False, 'shape': (4,), } + 1
{'descr': '<f4', 'fortran_order': False, 'shape': (4,), } # comment
{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }}
{'descr': '<f4', 'fortran_order': False, 'shape': (4,),, }
{,'descr': '<f4', 'fortran_order': False, 'shape': (4,)}
{'descr': '<f4' 'fortran_order': False, 'shape': (4,)}
{'descr': '<\x66\x34', 'fortran_order': False, 'shape': (4,)}
{b'descr': '<f4', 'fortran_order': False, 'shape': (4,)}
{'descr': None, 'fortran_order': False, 'shape': (4,)})",
                                         '\n')) {
    SCOPED_TRACE(header);
    (void)refused_header(header);
  }
  (void)refused_header(std::string(9000, '('));
  (void)refused_header(dict("'<f4'", std::string(9000, '(')));
  (void)refused_header(dict("'<f4'", "(4,)") + std::string(1, '\0'));
  (void)refused_header(std::string(1, '\0') + dict("'<f4'", "(4,)"));
  (void)refused_header(dict(std::string("'<f4\0'", 6), "(4,)"));
  (void)refusal(npy(dict("'<f4\xc3\x28'", "(4,)"), kFour, 3));
  (void)refused_header("{'descr': '<f4', 'fortran_order': False, 'sha\xff\xfepe': (4,)}");
}

TEST_F(Npy, refuses_an_order_that_is_not_true_or_false) {  // N35
  for (const char* order : {"1", "'False'", "None", "true", "Truex", "", "0"}) {
    (void)refused_header(dict("'<f4'", "(4,)", order));
  }
}

// ----------------------------------------------------------------------------------------------
// Types (N13 … N20)

TEST_F(Npy, reads_every_float_type_in_either_byte_order) {  // N14, N42
  const std::vector<double> expected = {1.5, -2.25, 0.0, 65504.0};
  for (const DType dtype : {DType::f16, DType::f32, DType::f64}) {
    const auto item = static_cast<std::size_t>(size_of(dtype));
    std::string little(4 * item, '\0');
    for (int i = 0; i < 4; ++i) store_double(little.data(), dtype, i, expected[static_cast<std::size_t>(i)]);
    std::string big = little;
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t k = 0; k < item; ++k) big[i * item + k] = little[i * item + item - 1 - k];
    }
    const std::string type = fmt::format("f{}'", item);
    for (const Array& array :
         {read(npy(dict("'<" + type, "(4,)"), little)), read(npy(dict("'>" + type, "(4,)"), big))}) {
      EXPECT_EQ(array.dtype, dtype);
      EXPECT_EQ(doubles(array), expected);
    }
  }
}

TEST_F(Npy, takes_V2_for_bf16_and_u2_only_when_asked) {  // N18, N46
  const std::string bits = {'\xc0', '\x3f', '\x10', '\xc0'};  // 1.5, -2.25
  const std::vector<double> expected = {1.5, -2.25};
  for (const char* descr : {"'<V2'", "'|V2'"}) {
    const Array array = read(npy(dict(descr, "(2,)"), bits));
    EXPECT_EQ(array.dtype, DType::bf16);
    EXPECT_EQ(doubles(array), expected);
  }
  EXPECT_EQ(doubles(read(npy(dict("'<u2'", "(2,)"), bits), true)), expected);
  EXPECT_EQ(doubles(read(npy(dict("'>u2'", "(2,)"), {'\x3f', '\xc0', '\xc0', '\x10'}), true)), expected);
  EXPECT_NE(refusal(npy(dict("'<u2'", "(2,)"), bits), ErrorCode::unsupported).find("asked for"), std::string::npos);
  EXPECT_EQ(read(npy(dict("'<f4'", "(4,)"), kFour), true).dtype, DType::f32);
}

TEST_F(Npy, refuses_other_types_by_name) {  // N13, N15, N16, N17, N19, N20
  for (const std::string& type :
       split("|b1;<i1;|u1;<i4;<i8;<u4;<c8;<c16;<f1;<f3;<f16;<g2;|V1;<V4;>V2;<U4;|S3;<M8[ns];<m8[s];|O;O;|O8;=f4;f4;|f4;"
             "V2;bfloat16",
             ';')) {
    const std::string shown = fmt::format("'{}'", type);
    const std::string text = refused_header(dict(shown, "(4,)"), ErrorCode::unsupported);
    EXPECT_NE(text.find(shown), std::string::npos) << text;
  }
  for (const std::string& type : split(";<;<f;<ixy;<f16x;<f4 ;<F4x;4;<<f4;hello;<f-4", ';')) {
    SCOPED_TRACE(type);
    (void)refused_header(dict(fmt::format("'{}'", type), "(4,)"));
  }
  (void)refused_header(dict("[('a', '<f4')]", "(4,)"), ErrorCode::unsupported);
  (void)refused_header(dict("('<f4', (2,))", "(4,)"), ErrorCode::unsupported);
  EXPECT_NE(refused_header(dict("'<i4\x1b[31m'", "(4,)")).find("\\x1b"), std::string::npos);
}

// ----------------------------------------------------------------------------------------------
// Shapes (N21 … N36, N50)

TEST_F(Npy, reads_shapes_of_any_rank_as_they_are) {  // N28, N30, N36
  EXPECT_TRUE(read(npy(dict("'<f4'", "()"), "abcd")).shape.empty());
  EXPECT_TRUE(read(npy(dict("'<f4'", "()", "True"), "abcd")).shape.empty());
  EXPECT_EQ(read(npy(dict("'<f4'", "(4,)"), kFour)).shape, (std::vector<std::int64_t>{4}));
  EXPECT_EQ(read(npy(dict("'<f4'", "(1, 2, 1, 2)"), kFour)).shape, (std::vector<std::int64_t>{1, 2, 1, 2}));
  EXPECT_EQ(read(npy(dict("'<f4'", "(4L, 1L)"), kFour)).shape, (std::vector<std::int64_t>{4, 1}));
  EXPECT_EQ(read(npy(dict("'<f4'", "(0, 64)"), "")).shape, (std::vector<std::int64_t>{0, 64}));
  EXPECT_EQ(read(npy(dict("'<f4'", "(64, 0)", "True"), "")).shape, (std::vector<std::int64_t>{64, 0}));
}

TEST_F(Npy, refuses_shapes_that_are_not_tuples_of_sizes) {  // N21, N23, N29, N31, N50
  for (const std::string& shape : split("(5);[5];5;(,);(4,,);(4 4);(-1, 4);(4.0, "
                                        "1);('4',);(None,);(True,);(0x4,);(1_000,);(4e0,);(04,);(+4,);(4l,);"
                                        "(LL,);(4LL,);(4,;(4;((4,),);;(99999999999999999999,);(9223372036854775808,)",
                                        ';')) {
    SCOPED_TRACE(shape);
    (void)refused_header(dict("'<f4'", shape));
  }
}

TEST_F(Npy, refuses_sizes_that_overflow_or_do_not_match_the_data) {  // N22, N24, N25, N26, N32, N33
  // Products that wrap, to 0 too and beside a 0; bytes that do; too many, too few; a locale's digit grouping.
  for (const std::string& shape :
       split("(9223372036854775807, 2);(4294967296, 4294967296);(0, 4294967296, 4294967296);(4611686018427387904,);"
             "(2305843009213693952,);(9223372036854775807, 9223372036854775807, 4);(1000000000, 1000000000);"
             "(5,);(3,);();(0,);(2,621, 401)",
             ';')) {
    SCOPED_TRACE(shape);
    (void)refused_header(dict("'<f4'", shape));
  }
  // More dimensions than numpy has, also so many that only the header's length stops them.
  std::string ones;
  for (int i = 0; i < 32; ++i) ones += "1, ";
  EXPECT_EQ(read(npy(dict("'<f4'", fmt::format("({})", ones)), "abcd")).shape.size(), 32U);
  EXPECT_NE(refusal(npy(dict("'<f4'", fmt::format("({}1)", ones)), "abcd")).find("dimensions"), std::string::npos);
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += "1,";
  (void)refusal(npy(dict("'<f4'", fmt::format("({})", many)), "abcd", 2));
}

TEST_F(Npy, survives_any_damage) {  // X4
  const std::string good = npy(dict("'<f4'", "(2, 2)"), kFour);
  std::uint64_t state = 1;
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (int k = 0; k <= i % 3; ++k) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      bad[(state >> 33) % bad.size()] = "0123456789(),'{}<>|L \n\xff"[(state >> 20) % 24];  // 24: and NUL
    }
    try {
      accepted += read(bad).bytes.size() <= 64 ? 1 : 0;
    } catch (const Error&) {
      continue;
    }
  }
  EXPECT_GT(accepted, 100);  // blanks over blanks
  EXPECT_LT(accepted, 2900);
}

TEST_F(Npy, transposes_fortran_order_of_any_rank) {  // N34
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{5}, {2, 3}, {3, 1}, {1, 7}, {2, 3, 5}, {3, 1, 4, 2}, {2, 2, 2, 2, 3}}) {
    std::size_t count = 1;
    std::string text = "(";
    for (const auto dim : shape) {
      count *= static_cast<std::size_t>(dim);
      text += fmt::format("{},", dim);
    }
    // Element i in C order has the value i; its place in Fortran order follows from its indices.
    std::vector<float> stored(count);
    std::vector<double> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t rest = i;
      std::size_t place = 0;
      for (std::size_t d = shape.size(); d-- > 0;) {
        std::size_t stride = 1;
        for (std::size_t e = 0; e < d; ++e) stride *= static_cast<std::size_t>(shape[e]);
        place += rest % static_cast<std::size_t>(shape[d]) * stride;
        rest /= static_cast<std::size_t>(shape[d]);
      }
      stored[place] = static_cast<float>(i);
      expected[i] = static_cast<double>(i);
    }
    const std::string data(reinterpret_cast<const char*>(stored.data()), count * sizeof(float));
    EXPECT_EQ(doubles(read(npy(dict("'<f4'", text + ")", "True"), data))), expected) << text;
  }
}

TEST_F(Npy, passes_nan_and_infinity_through) {  // N43
  const std::string data("\x00\x00\xc0\x7f\x00\x00\x80\xff\x01\x00\xa0\x7f\x00\x00\x00\x80", 16);
  const Array array = read(npy(dict("'<f4'", "(4,)"), data));
  EXPECT_EQ(std::memcmp(array.bytes.data(), data.data(), 16), 0);
}

}  // namespace
}  // namespace swiglu
