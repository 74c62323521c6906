// Encoded blocks: every type against ggml's own results bit by bit, and against values worked out by hand and in
// double precision, which need no files.
#include "files/blocks.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "support/data.h"
#include "support/safetensors.h"

namespace swiglu::files {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::vector<float> decode(std::string_view name, const std::string& stored) {
  const Encoding* encoding = find_encoding(name);
  if (encoding == nullptr) {
    ADD_FAILURE() << name << " is unknown";
    return {};
  }
  const auto bytes = static_cast<std::size_t>(encoding->bytes);
  EXPECT_EQ(stored.size() % bytes, 0U) << name;
  const std::size_t blocks = stored.size() / bytes;
  std::vector<float> values(blocks * static_cast<std::size_t>(encoding->block));
  encoding->decode(reinterpret_cast<const std::byte*>(stored.data()), static_cast<std::int64_t>(blocks), values.data());
  return values;
}

std::vector<float> decode(std::string_view name, const Bytes& block) {
  return decode(name, std::string(block.begin(), block.end()));
}

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

void put_half(Bytes& block, std::size_t at, double value) {
  const std::uint16_t half = f16_from_double(value);
  block.at(at) = static_cast<std::uint8_t>(half & 0xff);
  block.at(at + 1) = static_cast<std::uint8_t>(half >> 8);
}

// The values of consecutive elements from `at`.
void expect_values(const std::vector<float>& values, std::size_t at, std::initializer_list<float> expected) {
  for (const float e : expected) {
    ASSERT_LT(at, values.size());
    EXPECT_EQ(bits(values[at]), bits(e)) << "element " << at << ": " << values[at] << ", expected " << e;
    ++at;
  }
}

void expect_golden(std::string_view name, const std::string& file) {
  const auto folder = testing::test_data() / "ggml_golden/random_blocks";
  const std::string stored = testing::read_file(folder / (file + ".blocks.bin"));
  const std::string golden = testing::read_file(folder / (file + ".f32.bin"));
  const auto values = decode(name, stored);
  ASSERT_FALSE(values.empty());
  ASSERT_EQ(values.size() * sizeof(float), golden.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t expected = 0;
    std::memcpy(&expected, golden.data() + 4 * i, 4);
    ASSERT_EQ(bits(values[i]), expected) << name << ", element " << i;
  }
}

TEST(Blocks, decode_to_the_bits_of_ggml) {  // G66, G67
  SWIGLU_NEEDS_TEST_DATA();
  for (const auto& [name, file] : std::initializer_list<std::pair<const char*, const char*>>{{"Q8_0", "q8_0"},
                                                                                             {"Q4_0", "q4_0"},
                                                                                             {"Q4_1", "q4_1"},
                                                                                             {"Q5_0", "q5_0"},
                                                                                             {"Q5_1", "q5_1"},
                                                                                             {"Q2_K", "q2_K"},
                                                                                             {"Q3_K", "q3_K"},
                                                                                             {"Q4_K", "q4_K"},
                                                                                             {"Q5_K", "q5_K"},
                                                                                             {"Q6_K", "q6_K"},
                                                                                             {"IQ4_NL", "iq4_nl"},
                                                                                             {"MXFP4", "mxfp4"},
                                                                                             {"IQ4_XS", "iq4_xs"},
                                                                                             {"NVFP4", "nvfp4"}}) {
    SCOPED_TRACE(name);
    expect_golden(name, file);
  }
}

TEST(Blocks, scales_of_mxfp4_are_those_of_ggml) {  // G68
  SWIGLU_NEEDS_TEST_DATA();
  const auto folder = testing::test_data() / "ggml_golden/random_blocks";
  const std::string golden = testing::read_file(folder / "e8m0_half.f32.bin");
  ASSERT_EQ(golden.size(), 1024U);
  for (std::size_t e = 0; e < 256; ++e) {
    Bytes block(17, 0x11);  // all codes 1
    block[0] = static_cast<std::uint8_t>(e);
    std::uint32_t expected = 0;
    std::memcpy(&expected, golden.data() + 4 * e, 4);
    EXPECT_EQ(bits(decode("MXFP4", block)[0]), expected) << e;
  }
}

TEST(Blocks, scales_in_half_precision_are_those_of_ggml) {  // G66, G69
  SWIGLU_NEEDS_TEST_DATA();
  const std::string golden = testing::read_file(testing::test_data() / "ggml_golden/random_blocks/f16_all.f32.bin");
  ASSERT_EQ(golden.size(), 65536U * 4);
  for (std::uint32_t half = 0; half < 65536; ++half) {
    Bytes block(34, 1);  // all codes 1
    block[0] = static_cast<std::uint8_t>(half & 0xff);
    block[1] = static_cast<std::uint8_t>(half >> 8);
    std::uint32_t expected = 0;
    std::memcpy(&expected, golden.data() + 4 * half, 4);
    ASSERT_EQ(bits(decode("Q8_0", block)[5]), expected) << half;
  }
}

TEST(Blocks, of_32_keep_element_i_and_i_plus_16_in_one_byte) {
  Bytes q4(18, 0x88);
  put_half(q4, 0, 0.5);
  q4[2] = 0xf0;
  q4[17] = 0x3a;
  expect_values(decode("Q4_0", q4), 0, {-4, 0});
  expect_values(decode("Q4_0", q4), 15, {1, 3.5F});
  expect_values(decode("Q4_0", q4), 31, {-2.5F});
  expect_values(decode("IQ4_NL", q4), 0, {-63.5F, 0.5F});
  expect_values(decode("IQ4_NL", q4), 15, {12.5F, 56.5F});
  expect_values(decode("IQ4_NL", q4), 31, {-32.5F});

  Bytes q41(20, 0);
  put_half(q41, 0, 0.25);
  put_half(q41, 2, -1);
  q41[4] = 0xf1;
  expect_values(decode("Q4_1", q41), 0, {-0.75F, -1});
  expect_values(decode("Q4_1", q41), 16, {2.75F, -1});

  Bytes q50(22, 0);  // the fifth bits: elements 0, 9 and 31
  put_half(q50, 0, 2);
  q50[2] = 0x01;
  q50[3] = 0x02;
  q50[5] = 0x80;
  q50[6] = 0x5f;
  expect_values(decode("Q5_0", q50), 0, {30, -32});
  expect_values(decode("Q5_0", q50), 9, {0});
  expect_values(decode("Q5_0", q50), 16, {-22});
  expect_values(decode("Q5_0", q50), 31, {0});

  Bytes q51(24, 0);
  put_half(q51, 0, 2);
  put_half(q51, 2, 100);
  q51[5] = 0x01;  // element 8
  q51[8 + 8] = 0x07;
  expect_values(decode("Q5_1", q51), 7, {100, 146, 100});

  Bytes q8(34, 0);
  put_half(q8, 0, -0.125);
  q8[2] = 0x80;
  q8[33] = 0x7f;
  expect_values(decode("Q8_0", q8), 0, {16, -0.0F});
  expect_values(decode("Q8_0", q8), 31, {-15.875F});

  Bytes mx(17, 0);
  mx[0] = 128;
  mx[1] = 0xf7;  // 12 and -12, doubled levels: 6 and -6 times 2
  mx[2] = 0x91;
  expect_values(decode("MXFP4", mx), 0, {12, 1});
  expect_values(decode("MXFP4", mx), 16, {-12, -1});

  Bytes nv(36, 0);
  nv[1] = 0x38;  // 1, halved
  nv[2] = 0x7f;  // 0
  nv[4 + 8] = 0xf7;
  nv[4 + 16] = 0x77;
  expect_values(decode("NVFP4", nv), 15, {0, 6, 0});
  expect_values(decode("NVFP4", nv), 24, {-6});
  expect_values(decode("NVFP4", nv), 32, {0});
}

TEST(Blocks, of_256_find_scales_and_bits_of_every_part) {
  Bytes q2(84, 0);
  put_half(q2, 80, 0.5);
  put_half(q2, 82, 0.25);
  q2[9] = 0x73;                                                      // elements 144 to 159: scale 3, min 7
  q2[16 + 32 + 16] = 0x08;                                           // element 144 + 32: 2, in part 11
  q2[11] = 0x01;
  q2[16 + 32 + 17] = 0x03;                                           // element 145
  expect_values(decode("Q2_K", q2), 144, {-1.75F, 2.75F, -1.75F});   // 1.5 * 3 - 1.75
  expect_values(decode("Q2_K", q2), 176, {1, 0});

  Bytes q3(110, 0);
  put_half(q3, 108, 0.5);
  for (std::size_t i = 96; i < 104; ++i) q3[i] = 0x21;  // parts 0 to 7: 1, parts 8 to 15: 2 …
  for (std::size_t i = 104; i < 108; ++i) q3[i] = 0xaa;  // … plus 32
  q3[0] = 0x01;                                          // element 0 not less by 4
  q3[32] = 0x02;
  q3[32 + 32 + 5] = 0xc0;                                // element 229: 3 - 4
  const auto v3 = decode("Q3_K", q3);
  expect_values(v3, 0, {1, -2});
  expect_values(v3, 127, {-2, -4});
  expect_values(v3, 228, {-4, -1, -4});

  for (const bool five : {false, true}) {
    Bytes block(five ? 176 : 144, 0);
    put_half(block, 0, 0.5);
    put_half(block, 2, 2);
    block[4 + 1] = 0xc5;      // part 1: scale 5; the upper bits of part 5's scale
    block[4 + 5] = 0x83;      // part 1: min 3; the upper bits of part 5's min
    block[4 + 9] = 0xe7;      // part 5: scale 7 + 48, min 14 + 32
    const std::size_t low = five ? 48 : 16;
    block[low + 2] = 0x90;        // element 34: 9
    block[low + 64 + 31] = 0xf0;  // element 191: 15
    if (five) block[16 + 31] = 0x20;
    const auto values = decode(five ? "Q5_K" : "Q4_K", block);
    expect_values(values, 31, {0, -6, -6, 16.5F, -6});
    expect_values(values, 190, {-92, five ? 760.5F : 320.5F, 0});
  }

  Bytes q6(210, 0);
  put_half(q6, 208, 0.5);
  q6[192 + 11] = 0x80;            // elements 176 to 191: -128
  q6[192 + 15] = 3;
  q6[64 + 32 + 16] = 0x05;        // element 176: 5 …
  q6[128 + 32 + 16] = 0x0c;       // … + 48
  q6[64 + 32 + 31] = 0xf0;        // element 255: 15
  const auto v6 = decode("Q6_K", q6);
  expect_values(v6, 175, {-0.0F, -1344, 2048});
  expect_values(v6, 254, {-48, -25.5F});

  Bytes iq(136, 0);
  put_half(iq, 0, 2);
  iq[3] = 0xc0;        // part 7: + 48
  iq[4 + 3] = 0x10;    // part 7: 1
  iq[8 + 112 + 3] = 0xf8;
  const auto vi = decode("IQ4_XS", iq);
  expect_values(vi, 223, {8128, -4318});  // -64 * -127, then 34 * -127
  expect_values(vi, 227, {34});
  expect_values(vi, 243, {3842});
}

TEST(Blocks, of_one_and_two_bits) {
  Bytes tq(66, 0);
  put_half(tq, 64, 3);
  tq[32] = 0x80;  // element 128 + 96
  tq[1] = 0x01;
  const auto vt = decode("TQ2_0", tq);
  expect_values(vt, 0, {-3, 0, -3});
  expect_values(vt, 223, {-3, 3, -3});
  Bytes q1(18, 0);
  put_half(q1, 0, 3);
  q1[3] = 0x02;
  expect_values(decode("Q1_0", q1), 8, {-3, 3, -3});
  Bytes q2(18, 0);
  put_half(q2, 0, 3);
  q2[17] = 0xe4;
  expect_values(decode("Q2_0", q2), 59, {-3, -3, 0, 3, 6});
}

// 11 bits of d, 6 of a scale and 4 of a code: the products are exact in floats, and only the difference is rounded,
// once. So is a difference of doubles that is then narrowed.
TEST(Blocks, round_once_where_a_min_is_subtracted) {
  std::mt19937 random(7);
  for (int n = 0; n < 200; ++n) {
    Bytes block(144);
    for (auto& byte : block) byte = static_cast<std::uint8_t>(random());
    const double d = std::ldexp(1024 + static_cast<double>(random() % 1024), -14);
    const double dmin = std::ldexp(1024 + static_cast<double>(random() % 1024), -7);
    put_half(block, 0, d);
    put_half(block, 2, dmin);
    const auto values = decode("Q4_K", block);
    for (std::size_t i = 0; i < 256; ++i) {
      const std::size_t j = i / 32;
      const unsigned s[3] = {block[4 + j % 4], block[8 + j % 4], block[12 + j % 4]};
      const unsigned scale = j < 4 ? s[0] % 64 : s[2] % 16 + 16 * (s[0] / 64);
      const unsigned min = j < 4 ? s[1] % 64 : s[2] / 16 + 16 * (s[1] / 64);
      const unsigned pair = block[16 + 32 * (i / 64) + i % 32];
      const unsigned q = i % 64 < 32 ? pair % 16 : pair / 16;
      ASSERT_EQ(bits(values[i]), bits(static_cast<float>(d * scale * q - dmin * min))) << i;
    }
  }
}

TEST(Blocks, eight_bit_floats_are_exact) {
  std::string all(256, '\0');
  for (std::size_t i = 0; i < 256; ++i) all[i] = static_cast<char>(i);
  const auto e4m3 = decode("F8_E4M3", all);
  const auto e5m2 = decode("F8_E5M2", all);
  for (int code = 0; code < 128; ++code) {
    const auto i = static_cast<std::size_t>(code);
    const double four = code / 8 == 0 ? std::ldexp(code % 8, -9) : std::ldexp(8 + code % 8, code / 8 - 10);
    EXPECT_EQ(bits(e4m3[i + 128]), bits(e4m3[i]) | 0x80000000U) << code;
    EXPECT_EQ(bits(e5m2[i + 128]), bits(e5m2[i]) | 0x80000000U) << code;
    EXPECT_EQ(bits(e4m3[i]), code == 127 ? 0x7fc00000U : bits(static_cast<float>(four))) << code;
    // e5m2 is the upper byte of a half.
    const float five = float_from_f16(static_cast<std::uint16_t>(code << 8));
    EXPECT_EQ(bits(e5m2[i]), std::isnan(five) ? 0x7fc00000U : bits(five)) << code;
  }
  EXPECT_EQ(e4m3[0x7e], 448.0F);
  EXPECT_EQ(e5m2[0x7b], 57344.0F);
  EXPECT_EQ(e5m2[0x7c], std::numeric_limits<float>::infinity());
}

TEST(Blocks, with_scales_that_are_not_finite_follow_ieee) {  // G66
  Bytes q4(18, 0x98);
  q4[0] = 0x00;
  q4[1] = 0x7c;  // infinity times 0, and times 1
  const auto infinite = decode("Q4_0", q4);
  EXPECT_TRUE(std::isnan(infinite[0]));
  EXPECT_EQ(infinite[16], std::numeric_limits<float>::infinity());
  q4[1] = 0x7e;
  for (const float value : decode("Q4_0", q4)) EXPECT_TRUE(std::isnan(value));
  Bytes mx(17, 0x77);
  mx[0] = 255;
  EXPECT_EQ(decode("MXFP4", mx)[0], std::numeric_limits<float>::infinity());  // G68
}

TEST(Blocks, decode_at_any_alignment_and_many_at_once) {
  std::mt19937 random(11);
  for (const char* name : {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
                           "IQ4_XS", "MXFP4", "NVFP4", "TQ2_0", "Q1_0", "Q2_0", "F8_E4M3", "F8_E5M2"}) {
    const Encoding* encoding = find_encoding(name);
    ASSERT_NE(encoding, nullptr) << name;
    const auto size = static_cast<std::size_t>(encoding->bytes);
    std::string one(size, '\0');
    for (auto& byte : one) byte = static_cast<char>(random());
    const auto expected = decode(name, one);
    std::string stored = "x" + one + one + one;
    std::vector<float> values(expected.size() * 3);
    encoding->decode(reinterpret_cast<const std::byte*>(stored.data()) + 1, 3, values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(bits(values[i]), bits(expected[i % expected.size()])) << name << ", element " << i;
    }
  }
  EXPECT_EQ(find_encoding("Q8_1"), nullptr);
  EXPECT_EQ(find_encoding(""), nullptr);
}

TEST(GgufTypes, have_the_sizes_of_the_format) {
  struct Row {
    std::uint32_t id;
    const char* name;
    std::int64_t block, bytes;
  };
  const Row rows[] = {
      {0, "F32", 1, 4},         {1, "F16", 1, 2},        {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},     {8, "Q8_0", 32, 34},      {10, "Q2_K", 256, 84},
      {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},  {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
      {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
      {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110}, {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136},
      {24, "I8", 1, 1},         {25, "I16", 1, 2},       {26, "I32", 1, 4},        {27, "I64", 1, 8},
      {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},  {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
      {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},   {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
      {42, "Q2_0", 64, 18}};
  std::uint32_t next = 0;
  for (const Row& row : rows) {
    for (; next < row.id; ++next) EXPECT_EQ(gguf_type(next), nullptr) << next;  // G40
    ++next;
    const GgufType* type = gguf_type(row.id);
    ASSERT_NE(type, nullptr) << row.name;
    EXPECT_EQ(type->id, row.id);
    EXPECT_EQ(type->name, row.name);
    EXPECT_EQ(type->block, row.block) << row.name;
    EXPECT_EQ(type->bytes, row.bytes) << row.name;
    EXPECT_EQ(type->encoding, find_encoding(row.name));
    EXPECT_EQ(type->dtype.has_value() && type->encoding != nullptr, false);
  }
  for (const std::uint32_t id : {43U, 255U, 0xffffffffU}) EXPECT_EQ(gguf_type(id), nullptr);  // G41, G74
  EXPECT_EQ(gguf_type(0)->dtype, DType::f32);
  EXPECT_EQ(gguf_type(1)->dtype, DType::f16);
  EXPECT_EQ(gguf_type(28)->dtype, DType::f64);
  EXPECT_EQ(gguf_type(30)->dtype, DType::bf16);
  EXPECT_NE(gguf_type_refusal(4).find("removed"), std::string_view::npos);
  EXPECT_NE(gguf_type_refusal(15).find("Q8_K"), std::string_view::npos);
}

}  // namespace
}  // namespace swiglu::files
