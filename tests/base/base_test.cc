// Element conversions against the definition of rounding, escaping, the reducer's tree, ISA choice.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>

#include "base/buffer.h"
#include "base/cpu.h"
#include "base/dtype.h"
#include "base/text.h"

namespace swiglu::testing {
namespace {

// Nearest of two neighbouring representable values, ties to the even pattern: the definition.
template <class Decode>
std::uint16_t nearest(double value, Decode decode) {
  std::uint16_t best = 0;
  double best_distance = HUGE_VAL;
  for (std::uint32_t bits = 0; bits < 0x8000U; ++bits) {
    const auto candidate = static_cast<std::uint16_t>(bits | (std::signbit(value) ? 0x8000U : 0U));
    const double decoded = decode(candidate);
    if (std::isnan(decoded) || std::isinf(decoded)) continue;
    const double distance = std::abs(decoded - value);
    if (distance < best_distance || (distance == best_distance && (candidate & 1U) == 0)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

TEST(Dtype, every_half_survives_a_round_trip) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float f16 = float_from_f16(half);
    const float bf16 = float_from_bf16(half);
    EXPECT_TRUE(std::isnan(f16) || f16_from_float(f16) == half);
    EXPECT_TRUE(std::isnan(bf16) || bf16_from_float(bf16) == half);
    EXPECT_EQ(std::isnan(f16), std::isnan(float_from_f16(f16_from_float(f16))));
    EXPECT_EQ(std::isnan(bf16), std::isnan(float_from_bf16(bf16_from_float(bf16))));
  }
}

TEST(Dtype, doubles_are_rounded_once) {
  std::mt19937_64 engine(1);
  std::uniform_real_distribution<double> exponent(-30, 15);
  for (int i = 0; i < 200; ++i) {
    double value = std::exp2(exponent(engine)) * (engine() % 2 == 0 ? 1 : -1);
    const auto f16 = [](std::uint16_t b) { return static_cast<double>(float_from_f16(b)); };
    const auto bf16 = [](std::uint16_t b) { return static_cast<double>(float_from_bf16(b)); };
    // Exactly half way between two halves, and a hair to either side: where double rounding would show.
    const double tie = (f16(nearest(value, f16)) + f16(static_cast<std::uint16_t>(nearest(value, f16) + 1))) / 2;
    for (const double x : {value, tie, std::nextafter(tie, 1e9), std::nextafter(tie, -1e9)}) {
      if (std::abs(x) > 60000) continue;
      EXPECT_EQ(f16_from_double(x), nearest(x, f16)) << x;
      EXPECT_EQ(bf16_from_double(x), nearest(x, bf16)) << x;
    }
  }
  EXPECT_EQ(f16_from_double(65520.0), 0x7c00);
  EXPECT_EQ(f16_from_double(65519.99), 0x7bff);
  EXPECT_EQ(bf16_from_double(1e300), 0x7f80);
}

TEST(Text, escapes_what_a_terminal_must_not_see) {
  EXPECT_EQ(escaped("a\nb\x1b[31m"), "a\\nb\\x1b[31m");
  EXPECT_EQ(escaped(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(escaped("größe"), "größe");
  EXPECT_EQ(escaped("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(escaped("back\\slash"), "back\\\\slash");
  EXPECT_LT(escaped(std::string(100000, 'x')).size(), 300U);
}

TEST(Text, escapes_what_turns_the_direction_of_text_or_cannot_be_seen) {  // X8
  // Soft hyphen, Arabic letter mark, zero width space to right-to-left mark, line and paragraph separators,
  // embeddings and overrides, word joiner and isolates, byte order mark, a tag.
  for (const char* hidden : {"\u00ad", "\u061c", "\u180e", "\u200b", "\u200e", "\u200f", "\u2028", "\u202a", "\u202e",
                             "\u2060", "\u2066", "\u2069", "\u206f", "\ufe0f", "\ufeff", "\ufff9", "\U000e0041"}) {
    const std::string text = escaped(std::string("a") + hidden + "b");
    EXPECT_TRUE(text.starts_with("a\\x") && text.ends_with("b")) << text;
    for (const char c : text) EXPECT_GT(c, 0x1f) << text;
  }
  EXPECT_EQ(escaped("\u202egpj.exe"), "\\xe2\\x80\\xaegpj.exe");
  for (const char* shown :
       {"\u00a0", "\u00e9", "\u0627", "\u05d0", "\u2026", "\u2070", "\u4e2d", "\ufffd", "\U0001f600"}) {
    EXPECT_EQ(escaped(shown), shown);
  }
}

TEST(Reducer, combines_neighbours_first) {
  // Values whose sum depends on the order: the fixed tree is ((0+1)+(2+3))+…
  std::array<float, 16> value{};
  std::mt19937 engine(2);
  for (auto& v : value) v = std::ldexp(static_cast<float>(engine() % 1000), static_cast<int>(engine() % 40) - 20);
  std::array<float, 16> tree = value;
  for (std::size_t width = 1; width < 16; width *= 2) {
    for (std::size_t i = 0; i < 16; i += 2 * width) tree[i] = tree[i] + tree[i + width];
  }
  std::array<PartialSum, 16> parts{};
  for (int g = 0; g < 16; ++g) parts[static_cast<std::size_t>(g)] = {g, 1, &value[static_cast<std::size_t>(g)]};
  float root = 0;
  const auto add = [](float* d, const float* l, const float* r, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) d[i] = l[i] + r[i];
  };
  const auto reducer = make_local_reducer();
  reducer->start(parts, 1, &root, add);
  reducer->finish();
  EXPECT_EQ(root, tree[0]);
  EXPECT_THROW(reducer->start(std::span(parts).first(3), 1, &root, add), Error);
}

TEST(Cpu, swiglu_isa_forces_a_tier_and_refuses_what_is_missing) {
  setenv("SWIGLU_ISA", "scalar", 1);
  EXPECT_EQ(default_isa(), Isa::scalar);
  setenv("SWIGLU_ISA", "sse9", 1);
  EXPECT_THROW(static_cast<void>(default_isa()), Error);
  unsetenv("SWIGLU_ISA");
  EXPECT_TRUE(cpu_has(default_isa()));
  EXPECT_GE(default_isa(), std::min(available_isas().back(), Isa::avx512)) << "a wider tier is never left out";
  for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512bf16}) {
    if (cpu_has(isa)) {
      EXPECT_EQ(resolve_isa(isa), isa);
    } else {
      EXPECT_THROW(static_cast<void>(resolve_isa(isa)), Error);
    }
  }
}

TEST(Buffer, is_aligned_to_a_huge_page_and_refuses_the_impossible) {
  const Buffer buffer(5'000'000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % (2U << 20), 0U);
  EXPECT_THROW(Buffer(std::int64_t{1} << 55), Error);
  EXPECT_EQ(Buffer(0).size(), 0);
}

}  // namespace
}  // namespace swiglu::testing
