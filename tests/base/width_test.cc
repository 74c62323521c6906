// The width recipe and the presets. Expected widths are the published ones and what Python gives for
// the expressions of Meta's code, never what this library computed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include "swiglu/swiglu.hpp"

namespace swiglu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMax64 = std::numeric_limits<std::int64_t>::max();

struct Published {
  const char* name;
  std::int64_t dim;
  std::int64_t layers;
  std::int64_t hidden;
  int shards;
  double eps;
};
constexpr Published kPublished[] = {
    {"llama-7b", 4096, 32, 11008, 1, 1e-6},
    {"llama-13b", 5120, 40, 13824, 2, 1e-6},
    {"llama-30b", 6656, 60, 17920, 4, 1e-6},
    {"llama-65b", 8192, 80, 22016, 8, 1e-5},
    {"llama-2-7b", 4096, 32, 11008, 1, 1e-5},
    {"llama-2-13b", 5120, 40, 13824, 2, 1e-5},
    {"llama-2-70b", 8192, 80, 28672, 8, 1e-5},
    {"code-llama-7b", 4096, 32, 11008, 1, 1e-5},
    {"code-llama-13b", 5120, 40, 13824, 2, 1e-5},
    {"code-llama-34b", 8192, 48, 22016, 4, 1e-5},
    {"code-llama-70b", 8192, 80, 28672, 8, 1e-5},
    {"llama-3-8b", 4096, 32, 14336, 1, 1e-5},
    {"llama-3-70b", 8192, 80, 28672, 8, 1e-5},
    {"llama-3.1-8b", 4096, 32, 14336, 1, 1e-5},
    {"llama-3.1-70b", 8192, 80, 28672, 8, 1e-5},
    {"llama-3.1-405b", 16384, 126, 53248, 8, 1e-5},
    {"llama-3.1-405b-mp16", 16384, 126, 53248, 16, 1e-5},
    {"llama-3.2-1b", 2048, 16, 8192, 1, 1e-5},
    {"llama-3.2-3b", 3072, 28, 8192, 1, 1e-5},
    {"llama-3.2-11b-vision", 4096, 32, 14336, 1, 1e-5},
    {"llama-3.2-90b-vision", 8192, 80, 28672, 8, 1e-5},
    {"llama-3.3-70b", 8192, 80, 28672, 8, 1e-5},
    {"llama-guard-7b", 4096, 32, 11008, 1, 1e-5},
    {"llama-guard-2-8b", 4096, 32, 14336, 1, 1e-5},
    {"llama-guard-3-1b", 2048, 16, 8192, 1, 1e-5},
    {"llama-guard-3-8b", 4096, 32, 14336, 1, 1e-5},
    {"llama-guard-3-11b-vision", 4096, 32, 14336, 1, 1e-5},
};

ErrorCode code_of(std::int64_t dim, std::int64_t multiple_of, std::optional<double> multiplier) {
  try {
    const std::int64_t width = ffn_width(dim, multiple_of, multiplier);
    ADD_FAILURE() << "accepted, width " << width;
  } catch (const Error& error) {
    EXPECT_FALSE(error.text().empty());
    return error.code();
  }
  return ErrorCode::internal;
}

TEST(Width, presets_are_the_published_shapes) {
  ASSERT_EQ(presets().size(), std::size(kPublished));
  for (const Published& published : kPublished) {
    SCOPED_TRACE(published.name);
    const Preset& preset = find_preset(published.name);
    EXPECT_EQ(preset.dim, published.dim);
    EXPECT_EQ(preset.layers, published.layers);
    EXPECT_EQ(preset.config().hidden, published.hidden);
    EXPECT_EQ(preset.config().dim, published.dim);
    EXPECT_EQ(preset.config().eps, published.eps);
    EXPECT_EQ(preset.shards, published.shards);
    EXPECT_EQ(published.hidden % preset.shards, 0);
  }
}

TEST(Width, preset_names_are_lower_case_and_unique) {
  std::set<std::string_view> names;
  for (const Preset& preset : presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    for (const char c : preset.name) EXPECT_FALSE(c >= 'A' && c <= 'Z') << preset.name;
  }
}

TEST(Width, finding_a_preset_ignores_case) {
  EXPECT_EQ(find_preset("Llama-3.1-405B").name, "llama-3.1-405b");
  EXPECT_EQ(find_preset("LLAMA-7B").name, "llama-7b");
}

TEST(Width, an_unknown_preset_is_refused_with_the_known_names) {
  for (const char* name : {"", "llama-3-9b", "llama-3-8", "llama-3-8b ", "llama-guard-3-1b-int4"}) {
    try {
      (void)find_preset(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_NE(error.text().find(std::string("\"") + name + "\""), std::string::npos) << error.text();
      EXPECT_NE(error.text().find("llama-3-8b, "), std::string::npos) << error.text();
      EXPECT_NE(error.text().find("llama-guard-3-11b-vision"), std::string::npos) << error.text();
    }
  }
  try {
    (void)find_preset("a\nb");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.text().find('\n'), std::string::npos);
  }
}

TEST(Width, small_models_and_defaults) {
  EXPECT_EQ(ffn_width(64, 4), 172);  // stories260K
  EXPECT_EQ(ffn_width(32), 256);     // 85, rounded up to the default 256
  EXPECT_EQ(ffn_width(1, 1), 2);
  EXPECT_EQ(ffn_width(4096), 11008);
  EXPECT_EQ(ffn_width(4096, 256, 1.0), 11008);
  EXPECT_EQ(ffn_width(2048), 5632);  // what the recipe says of the pruned Guard-3-1B-INT4 (6400)
}

// multiple_of 1 shows the truncated product itself.
TEST(Width, truncates_the_double_product_as_python_does) {
  EXPECT_EQ(ffn_width(4096, 1), 10922);
  EXPECT_EQ(ffn_width(4096, 1, 1.3), 14198);
  EXPECT_EQ(ffn_width(8192, 1, 1.3), 28398);   // 28398.5
  EXPECT_EQ(ffn_width(16384, 1, 1.2), 52428);  // exactly; 52428.002 with a float multiplier
  EXPECT_EQ(ffn_width(2048, 1, 1.5), 8191);    // 8191.5
  EXPECT_EQ(ffn_width(3072, 1), 8192);
  EXPECT_EQ(ffn_width(64, 1, 1.4), 237);       // 237.99999999999997
  EXPECT_EQ(ffn_width(512, 1, 1.4), 1910);     // 1910.9999999999998
  EXPECT_EQ(ffn_width(1024, 1, 2.3), 6278);    // 6278.999999999999
  EXPECT_EQ(ffn_width(2880, 1, 2.05), 15743);  // 15743.999999999998
}

// Each of these differs for a float multiplier, a float product, a missing inner truncation, rounding
// or exact rational arithmetic.
TEST(Width, discriminates_every_wrong_arithmetic) {
  EXPECT_EQ(ffn_width(64, 4, 1.3), 224);
  EXPECT_EQ(ffn_width(64, 2, 2.3), 390);
  EXPECT_EQ(ffn_width(512, 8, 1.8), 2464);
  EXPECT_EQ(ffn_width(512, 2, 1.4), 1910);
  EXPECT_EQ(ffn_width(1024, 4, 1.3), 3552);
  EXPECT_EQ(ffn_width(739, 256, 1.3), 2816);
  EXPECT_EQ(ffn_width(104, 256, 1.85), 512);
  EXPECT_EQ(ffn_width(1336, 4096, 2.3), 8192);
  EXPECT_EQ(ffn_width(1408, 128, 1.33), 4992);
  EXPECT_EQ(ffn_width(64, 2, 1.4), 238);
}

TEST(Width, division_in_double_is_the_integer_quotient) {
  for (std::int64_t dim = 64; dim <= 16384; dim += 64) EXPECT_EQ(ffn_width(dim, 1), 8 * dim / 3);
  for (int bit = 20; bit < 46; ++bit) {
    for (std::int64_t dim = (std::int64_t{1} << bit) - 2; dim <= (std::int64_t{1} << bit) + 2; ++dim) {
      EXPECT_EQ(ffn_width(dim, 1), 8 * dim / 3);
    }
  }
}

TEST(Width, published_metadata_with_errors_gives_what_it_says) {
  EXPECT_EQ(ffn_width(4096, 256, 1.3), 14336);  // Meta's own list on Llama-2-7B; the tensors say 11008
  EXPECT_EQ(ffn_width(5120, 256, 1.3), 17920);  // … 13B; 13824
  EXPECT_EQ(ffn_width(8192, 256, 1.3), 28416);  // … 70B-chat; 28672
}

TEST(Width, refuses_what_cannot_be_a_width) {
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{-4096}, kMax64, -kMax64 - 1}) {
    EXPECT_EQ(code_of(bad, 256, std::nullopt), ErrorCode::usage) << bad;
    EXPECT_EQ(code_of(4096, bad, std::nullopt), ErrorCode::usage) << bad;
  }
  for (const double bad : {0.0, -0.0, -1.0, -1e-300, kInfinity, -kInfinity, std::nan("")}) {
    EXPECT_EQ(code_of(4096, 256, bad), ErrorCode::usage) << bad;
  }
  EXPECT_EQ(code_of(4096, 256, 1e-9), ErrorCode::usage);    // a width of 0
  EXPECT_EQ(code_of(4096, 256, 5e-324), ErrorCode::usage);  // likewise
  EXPECT_EQ(code_of(4096, 256, 1e300), ErrorCode::usage);   // beyond any integer
  EXPECT_EQ(code_of(std::int64_t{1} << 47, 256, 1e308), ErrorCode::usage);
  EXPECT_EQ(code_of((std::int64_t{1} << 48) + 1, 1, std::nullopt), ErrorCode::usage);
  EXPECT_EQ(code_of(std::int64_t{1} << 48, 1, std::nullopt), ErrorCode::usage);  // 8/3 of it
  EXPECT_EQ(code_of(4096, (std::int64_t{1} << 48) + 1, std::nullopt), ErrorCode::usage);
  EXPECT_EQ(ffn_width(4096, std::int64_t{1} << 48), std::int64_t{1} << 48);
}

}  // namespace
}  // namespace swiglu
