// GGUF files as checkpoints: what keys, names and shapes may say, which refusal they meet, and that real files give the
// weights they were made from, bit by bit.
#include <bit>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "files/blocks.h"
#include "files/gguf.h"
#include "support/data.h"
#include "support/gguf.h"
#include "support/safetensors.h"

namespace swiglu {
namespace {

using testing::expect_error;
using testing::gguf_array;
using testing::gguf_f32;
using testing::gguf_pair;
using testing::gguf_text;
using testing::gguf_u32;
using testing::GgufParts;
using testing::le;
using testing::test_data;
using testing::write_file;

constexpr std::uint64_t kDim = 4;
constexpr std::uint64_t kHidden = 6;

std::vector<float> values(const TensorSource& source) {
  std::vector<std::byte> stored(static_cast<std::size_t>(source.rows() * source.cols() * size_of(source.dtype())));
  source.read(0, source.rows(), 0, source.cols(), stored.data());
  std::vector<float> out;
  for (std::int64_t i = 0; i < source.rows() * source.cols(); ++i) {
    out.push_back(static_cast<float>(load_double(stored.data(), source.dtype(), i)));
  }
  return out;
}

/// The keys of a small model; `changes` replaces whole pairs or, where empty, leaves them out. Further ones are added.
std::vector<std::string> keys(const std::string& family, const std::map<std::string, std::string>& changes = {}) {
  std::map<std::string, std::string> pairs = {
      {"general.architecture", gguf_text("general.architecture", family)},
      {family + ".block_count", gguf_u32(family + ".block_count", 2)},
      {family + ".embedding_length", gguf_u32(family + ".embedding_length", kDim)},
      {family + ".feed_forward_length", gguf_u32(family + ".feed_forward_length", kHidden)},
      {family + ".attention.layer_norm_rms_epsilon", gguf_f32(family + ".attention.layer_norm_rms_epsilon", 1e-5F)}};
  for (const auto& [key, pair] : changes) pairs[key] = pair;
  std::vector<std::string> out;
  for (auto& [key, pair] : pairs) {
    if (!pair.empty()) out.push_back(pair);
  }
  return out;
}

void add_layer(GgufParts& parts, int layer) {
  parts.add_f32(fmt::format("blk.{}.ffn_norm.weight", layer), {kDim});
  parts.add_f32(fmt::format("blk.{}.ffn_gate.weight", layer), {kDim, kHidden});
  parts.add_f32(fmt::format("blk.{}.ffn_up.weight", layer), {kDim, kHidden});
  parts.add_f32(fmt::format("blk.{}.ffn_down.weight", layer), {kHidden, kDim});
}

GgufParts two_layers(std::vector<std::string> pairs = keys("llama")) {
  GgufParts parts;
  parts.pairs = std::move(pairs);
  add_layer(parts, 0);
  add_layer(parts, 1);
  return parts;
}

class GgufModel : public ::testing::Test {
 protected:
  Checkpoint open(const GgufParts& parts, const OpenOptions& options = {}) {
    write_file(path_, parts.bytes());
    return Checkpoint::open(path_, options);
  }
  void refused(const GgufParts& parts, ErrorCode code, std::initializer_list<std::string_view> words) {
    write_file(path_, parts.bytes());
    expect_error(code, words, [&] { (void)Checkpoint::open(path_); });
    expect_error(code, {"w.gguf"}, [&] { (void)Checkpoint::open(path_); });
  }
  /// The model of two layers with other keys.
  void keys_refused(const std::map<std::string, std::string>& changes, ErrorCode code,
                    std::initializer_list<std::string_view> words) {
    refused(two_layers(keys("llama", changes)), code, words);
  }
  testing::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "w.gguf";
};

TEST_F(GgufModel, opens_a_file) {
  const Checkpoint model = open(two_layers());
  EXPECT_EQ(model.format(), "gguf");
  EXPECT_EQ(model.family(), "llama");
  EXPECT_EQ(model.layers(), 2);
  EXPECT_EQ(model.config().dim, 4);
  EXPECT_EQ(model.config().hidden, 6);
  EXPECT_EQ(model.config().eps, 1e-5);  // what was meant, not the float
  EXPECT_EQ(model.shards(), 1);
  EXPECT_EQ(model.size_bytes(), std::filesystem::file_size(path_));
  ASSERT_EQ(model.tensors().size(), 8U);
  EXPECT_TRUE(model.notes().empty());
  const LayerSource layer = model.layer(1);
  EXPECT_EQ(layer.gate->rows(), 6);
  EXPECT_EQ(layer.gate->cols(), 4);
  EXPECT_EQ(layer.down->rows(), 4);
  EXPECT_EQ(layer.norm, (std::vector<float>{4, 5, 6, 7}));  // the fifth tensor of the file
  EXPECT_EQ(values(*layer.gate)[5], 10.0F);  // the sixth
  EXPECT_EQ(values(*layer.up)[5], 11.0F);
  EXPECT_EQ(values(*layer.down)[5], 12.0F);
  // A folder with one GGUF file is that file.
  EXPECT_EQ(Checkpoint::open(folder_.path()).layers(), 2);
}

TEST_F(GgufModel, needs_an_architecture_that_is_known) {  // G53
  keys_refused({{"general.architecture", ""}}, ErrorCode::format, {"general.architecture", "nothing"});
  keys_refused({{"general.architecture", gguf_u32("general.architecture", 1)}}, ErrorCode::format,
               {"general.architecture", "a string", "u32 1"});
  refused(two_layers(keys("bert")), ErrorCode::unsupported, {"general.architecture", "\"bert\"", "llama, mistral3"});
  refused(two_layers(keys("a\x1b[31m")), ErrorCode::unsupported, {R"(a\x1b[31m)"});
  refused(two_layers(keys(std::string(100, 'a'))), ErrorCode::format, {"general.architecture", "64"});
  for (const auto& [family, reason] :
       std::initializer_list<std::pair<const char*, const char*>>{{"gemma2", "GELU"},
                                                                  {"gemma3", "GELU"},
                                                                  {"olmo2", "output"},
                                                                  {"minicpm", "residual"},
                                                                  {"stablelm", "LayerNorm"},
                                                                  {"deepseek2", "experts"},
                                                                  {"bitnet", "normalises"}}) {
    refused(two_layers(keys(family)), ErrorCode::unsupported, {family, reason});
  }
  for (const char* family : {"mistral3", "qwen2", "qwen3", "smollm3", "internlm2", "granite"}) {
    EXPECT_EQ(open(two_layers(keys(family))).family(), family);
  }
  keys_refused({{"general.type", gguf_text("general.type", "adapter")}}, ErrorCode::unsupported,
               {"general.type", "adapter"});
  EXPECT_EQ(open(two_layers(keys("llama", {{"general.type", gguf_text("general.type", "model")}}))).layers(), 2);
}

TEST_F(GgufModel, refuses_keys_that_change_the_sublayer) {
  const auto scaled = [](float scale) {
    return two_layers(keys("granite", {{"residual", gguf_f32("granite.residual_scale", scale)}}));
  };
  EXPECT_EQ(open(scaled(1)).layers(), 2);
  refused(scaled(0.22F), ErrorCode::unsupported, {"granite.residual_scale", "0.22"});
  keys_refused({{"parallel", gguf_pair("llama.use_parallel_residual", 7, le(1, 1))}}, ErrorCode::unsupported,
               {"use_parallel_residual"});
  keys_refused({{"activation", gguf_text("llama.hidden_activation", "gelu")}}, ErrorCode::unsupported,
               {"hidden_activation", "gelu"});
}

TEST_F(GgufModel, needs_the_numbers_of_its_layers) {  // G54, G59
  for (const std::string key : {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length"}) {
    keys_refused({{key, ""}}, ErrorCode::format, {key, "nothing"});
    keys_refused({{key, gguf_text(key, "4")}}, ErrorCode::format, {key, "a string"});
    keys_refused({{key, gguf_f32(key, 4)}}, ErrorCode::format, {key, "f32 4"});
    keys_refused({{key, gguf_u32(key, 0)}}, ErrorCode::format, {key, "u32 0"});
    keys_refused({{key, gguf_u32(key, 0xffffffffU)}}, ErrorCode::format, {key, "4294967295"});
  }
  keys_refused({{"llama.block_count", gguf_u32("llama.block_count", 0x7fffffff)}}, ErrorCode::not_found,
               {"llama.block_count is 2147483647", "layer 2 is missing"});
  keys_refused({{"llama.block_count", gguf_u32("llama.block_count", 3)}}, ErrorCode::not_found, {"layer 2 is missing"});
  EXPECT_EQ(open(two_layers(keys("llama", {{"llama.block_count", gguf_u32("llama.block_count", 1)}}))).notes().size(),
            1U);
  EXPECT_EQ(
      open(two_layers(keys("llama", {{"llama.block_count", gguf_pair("llama.block_count", 11, le(2, 8))}}))).layers(),
      2);
}

TEST_F(GgufModel, takes_a_width_for_each_layer_when_they_agree) {  // G54, G55
  const std::string key = "llama.feed_forward_length";
  const auto widths = [&](std::initializer_list<std::uint32_t> list, std::uint32_t type = 4) {
    std::string elements;
    for (const auto width : list) elements += le(width, 4);
    return std::map<std::string, std::string>{{key, gguf_array(key, type, list.size(), elements)}};
  };
  EXPECT_EQ(open(two_layers(keys("llama", widths({6, 6})))).config().hidden, 6);
  EXPECT_EQ(open(two_layers(keys("llama", widths({6, 6}, 5)))).config().hidden, 6);
  keys_refused(widths({6}), ErrorCode::format, {key, "2 layers", "array of 1"});
  keys_refused(widths({}), ErrorCode::format, {key, "2 layers", "array of 0"});
  keys_refused(widths({6, 0}), ErrorCode::format, {key, "0 to 6"});
  keys_refused(widths({6, 0xffffffffU}, 5), ErrorCode::format, {key, "-1 to 6"});
  keys_refused(widths({6, 8}), ErrorCode::unsupported, {key, "different widths", "6 to 8"});
  keys_refused(widths({6, 6}, 6), ErrorCode::format, {key, "integers", "2 f32"});
}

TEST_F(GgufModel, refuses_numbers_that_tensors_contradict) {  // G56, G57
  keys_refused({{"llama.embedding_length", gguf_u32("llama.embedding_length", 8)}}, ErrorCode::shape,
               {"llama.embedding_length is 8", "4"});
  keys_refused({{"llama.feed_forward_length", gguf_u32("llama.feed_forward_length", 7)}}, ErrorCode::shape,
               {"llama.feed_forward_length is 7", "6"});
  OpenOptions options;
  options.hidden = 6;
  EXPECT_EQ(open(two_layers(keys("llama", {{"llama.feed_forward_length", gguf_u32("llama.feed_forward_length", 7)}})),
                 options)
                .config()
                .hidden,
            6);
  GgufParts transposed;
  transposed.pairs = keys("llama", {{"llama.block_count", gguf_u32("llama.block_count", 1)}});
  transposed.add_f32("blk.0.ffn_norm.weight", {kDim}).add_f32("blk.0.ffn_gate.weight", {kHidden, kDim});
  transposed.add_f32("blk.0.ffn_up.weight", {kDim, kHidden}).add_f32("blk.0.ffn_down.weight", {kHidden, kDim});
  refused(transposed, ErrorCode::shape, {"blk.0.ffn_gate.weight", "transposed"});
  GgufParts biased = two_layers();
  biased.add_f32("blk.1.ffn_up.bias", {kHidden});
  refused(biased, ErrorCode::unsupported, {"blk.1.ffn_up.bias", "bias"});
}

TEST_F(GgufModel, needs_an_eps) {  // G58
  const std::string key = "llama.attention.layer_norm_rms_epsilon";
  keys_refused({{key, ""}}, ErrorCode::format, {key, "nothing", "--eps"});
  for (const float eps : {0.0F, -1e-5F, std::nanf(""), HUGE_VALF}) {
    keys_refused({{key, gguf_f32(key, eps)}}, ErrorCode::format, {key, "positive f32"});
  }
  keys_refused({{key, gguf_pair(key, 12, le(std::bit_cast<std::uint64_t>(1e-5), 8))}}, ErrorCode::format, {key, "f64"});
  OpenOptions options;
  options.eps = 1e-5;
  EXPECT_TRUE(open(two_layers(), options).notes().empty());
  options.eps = 1e-6;
  const Checkpoint model = open(two_layers(), options);
  EXPECT_EQ(model.config().eps, 1e-6);
  ASSERT_EQ(model.notes().size(), 1U);
  EXPECT_NE(model.notes()[0].find(key), std::string::npos);
}

TEST_F(GgufModel, says_when_there_is_no_feed_forward) {  // G33, G70
  GgufParts parts;
  parts.pairs = keys("llama");
  const Checkpoint model = open(parts);
  EXPECT_EQ(model.layers(), 0);
  ASSERT_EQ(model.notes().size(), 1U);
  EXPECT_NE(model.notes()[0].find("no feed-forward"), std::string::npos);
  EXPECT_EQ(open(GgufParts()).layers(), 0);
  GgufParts bare;
  bare.add_f32("blk.0.ffn_norm.weight", {kDim});
  refused(bare, ErrorCode::format, {"general.architecture"});
  GgufParts empty;
  empty.pairs = keys("llama");
  empty.add_f32("blk.0.ffn_norm.weight", {0}).add_f32("blk.0.ffn_gate.weight", {0, kHidden});
  refused(empty, ErrorCode::shape, {"embedding_length"});
}

TEST_F(GgufModel, of_phi3_finds_the_gate_above_up) {
  GgufParts parts;
  parts.pairs = keys("phi3", {{"phi3.block_count", gguf_u32("phi3.block_count", 1)}});
  parts.add_f32("blk.0.ffn_norm.weight", {kDim}).add_f32("blk.0.ffn_up.weight", {kDim, 2 * kHidden});
  parts.add_f32("blk.0.ffn_down.weight", {kHidden, kDim});
  const LayerSource layer = open(parts).layer(0);
  EXPECT_EQ(values(*layer.gate).front(), 1.0F);
  EXPECT_EQ(values(*layer.up).front(), 1.0F + static_cast<float>(kDim * kHidden));
  parts.pairs = keys("llama", {{"llama.block_count", gguf_u32("llama.block_count", 1)}});
  write_file(path_, parts.bytes());
  EXPECT_THROW((void)Checkpoint::open(path_), Error);
}

TEST_F(GgufModel, layers_are_no_more_than_any_model_has) {  // X6
  GgufParts parts;
  parts.pairs = keys("llama");
  for (int layer = 0; layer <= 1 << 16; ++layer) parts.add(fmt::format("blk.{}.ffn_norm.weight", layer), {0}, 0, "");
  OpenOptions options;
  options.collect_problems = true;
  write_file(path_, parts.bytes());
  expect_error(ErrorCode::unsupported, {"w.gguf", "blk.", "at most 65536 layers"},
               [&] { (void)Checkpoint::open(path_, options); });
}

TEST_F(GgufModel, experts_that_no_key_counts_are_refused) {
  GgufParts parts;
  parts.pairs = keys("llama", {{"llama.block_count", gguf_u32("llama.block_count", 1)}});
  parts.add_f32("blk.0.ffn_norm.weight", {kDim});
  parts.add_f32("blk.0.ffn_gate_exps.weight", {kDim, kHidden, 2});
  parts.add_f32("blk.0.ffn_up_exps.weight", {kDim, kHidden, 2});
  parts.add_f32("blk.0.ffn_down_exps.weight", {kHidden, kDim, 2});
  refused(parts, ErrorCode::shape, {"number of experts", "have 2", "none"});
}

TEST_F(GgufModel, dimensions_beside_a_zero_are_no_widths) {
  // Twice the largest width overflows, where a matrix of gate and up is compared with it.
  GgufParts parts;
  parts.pairs = keys("llama");
  parts.add_f32("blk.0.ffn_norm.weight", {kDim}).add_f32("layers.0.mlp.gate_up_proj.weight", {kDim, 2 * kHidden});
  for (int layer = 0; layer < 2; ++layer)
    parts.add(fmt::format("blk.{}.ffn_down.weight", layer), {INT64_MAX, 0}, 24, "");
  refused(parts, ErrorCode::shape, {"feed_forward_length is 6"});
  OpenOptions options;
  options.collect_problems = true;
  const Checkpoint model = open(parts, options);
  EXPECT_LT(model.config().hidden, 1LL << 50);
  for (const std::string& problem : model.problems()) EXPECT_EQ(problem.find("[-"), std::string::npos) << problem;
}

TEST_F(GgufModel, gives_each_expert_of_a_mixture) {  // G60
  GgufParts parts;
  parts.pairs = keys("qwen3moe", {{"qwen3moe.block_count", gguf_u32("qwen3moe.block_count", 1)},
                                  {"qwen3moe.feed_forward_length", gguf_u32("qwen3moe.feed_forward_length", 99)},
                                  {"width", gguf_u32("qwen3moe.expert_feed_forward_length", kHidden)},
                                  {"experts", gguf_u32("qwen3moe.expert_count", 3)}});
  parts.add_f32("blk.0.ffn_norm.weight", {kDim}).add_f32("blk.0.ffn_gate_inp.weight", {kDim, 3});
  parts.add_f32("blk.0.ffn_gate_exps.weight", {kDim, kHidden, 3});
  parts.add_f32("blk.0.ffn_up_exps.weight", {kDim, kHidden, 3});
  parts.add_f32("blk.0.ffn_down_exps.weight", {kHidden, kDim, 3});
  const Checkpoint model = open(parts);
  EXPECT_EQ(model.experts(), 3);
  EXPECT_EQ(model.config().hidden, 6);
  EXPECT_EQ(values(*model.layer(0, 2).gate).front(), 2.0F + 2 * kDim * kHidden);
  EXPECT_EQ(values(*model.layer(0, 1).down).front(), 4.0F + kDim * kHidden);
  ASSERT_EQ(model.notes().size(), 1U);
  EXPECT_NE(model.notes()[0].find("mixture of experts"), std::string::npos);
  expect_error(ErrorCode::usage, {"expert", "0 to 2"}, [&] { (void)model.layer(0); });
  parts.pairs[0] = gguf_u32("qwen3moe.expert_count", 4);
  parts.pairs = keys("qwen3moe", {{"experts", gguf_u32("qwen3moe.expert_count", 4)}});
  refused(parts, ErrorCode::shape, {"qwen3moe.expert_count is 4", "3"});
  parts.pairs = keys("qwen3moe");
  refused(parts, ErrorCode::format, {"qwen3moe.expert_count", "nothing"});
  keys_refused({{"experts", gguf_text("llama.expert_count", "8")}}, ErrorCode::format, {"expert_count", "a string"});
  refused(two_layers(keys("qwen2", {{"experts", gguf_u32("qwen2.expert_count", 8)}})), ErrorCode::unsupported,
          {"qwen2.expert_count", "experts"});
}

// --------------------------------------------------------------------------------------------- real files

Checkpoint stories(const std::string& name) {
  return Checkpoint::open(test_data() / "derived/stories260K/gguf" / name);
}

std::vector<std::shared_ptr<const TensorSource>> matrices(const LayerSource& layer) {
  return {layer.gate, layer.up, layer.down};
}

TEST(GgufModelFiles, hold_the_weights_that_they_were_made_from) {  // X1
  SWIGLU_NEEDS_TEST_DATA();
  const Checkpoint original = Checkpoint::open(test_data() / "derived/stories260K/hf_f32");
  for (const auto& [name, narrow] : std::initializer_list<std::pair<const char*, float (*)(float)>>{
           {"ffn.f32.gguf", [](float v) { return v; }},
           {"ffn.f32.v2.align64.gguf", [](float v) { return v; }},
           {"ffn.f16.gguf", [](float v) { return float_from_f16(f16_from_float(v)); }},
           {"ffn.bf16.gguf", [](float v) { return float_from_bf16(bf16_from_float(v)); }}}) {
    const Checkpoint model = stories(name);
    ASSERT_EQ(model.layers(), 5) << name;
    EXPECT_EQ(model.config().hidden, 172);
    EXPECT_EQ(static_cast<float>(model.config().eps), 1e-5F);
    for (std::int64_t layer = 0; layer < 5; ++layer) {
      const LayerSource expected = original.layer(layer);
      const LayerSource found = model.layer(layer);
      EXPECT_EQ(found.norm, expected.norm) << name;
      for (std::size_t m = 0; m < 3; ++m) {
        const auto a = values(*matrices(expected)[m]);
        const auto b = values(*matrices(found)[m]);
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(narrow(a[i])), std::bit_cast<std::uint32_t>(b[i]))
              << name << ", layer " << layer << ", matrix " << m << ", element " << i;
        }
      }
    }
  }
}

TEST(GgufModelFiles, of_blocks_decode_to_values_near_the_original) {
  SWIGLU_NEEDS_TEST_DATA();
  const Checkpoint original = Checkpoint::open(test_data() / "derived/stories260K/hf_f32");
  const std::string name = "ffn.mixed_q8_0_q4_0_q4_1_q5_0_q5_1.gguf";
  const Checkpoint model = stories(name);
  const auto file =
      files::read_gguf(std::make_shared<const files::File>(test_data() / "derived/stories260K/gguf" / name));
  const std::string bytes = testing::read_file(test_data() / "derived/stories260K/gguf" / name);
  // Published relative errors of the types on such a matrix, rounded up.
  const std::pair<const char*, double> types[] = {
      {"Q8_0", 0.006}, {"Q4_0", 0.10}, {"Q4_1", 0.09}, {"Q5_0", 0.05}, {"Q5_1", 0.045}};
  for (std::int64_t layer = 0; layer < 5; ++layer) {
    const auto& [type, bound] = types[layer];
    const std::pair<std::string, std::size_t> roles[] = {{"gate", 0}, {"up", 1}};
    for (const auto& [role, m] : roles) {
      const auto& stored = file.tensors.at(fmt::format("blk.{}.ffn_{}.weight", layer, role));
      EXPECT_EQ(stored.dtype_name, type);
      const auto found = values(*matrices(model.layer(layer))[m]);
      const auto expected = values(*matrices(original.layer(layer))[m]);
      std::vector<float> decoded(found.size());
      const files::Encoding* encoding = files::find_encoding(type);
      encoding->decode(reinterpret_cast<const std::byte*>(bytes.data()) + stored.offset,
                       std::ssize(found) / encoding->block, decoded.data());
      double error = 0;
      double norm = 0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(found[i]), std::bit_cast<std::uint32_t>(decoded[i])) << type << i;
        error += std::pow(static_cast<double>(found[i]) - static_cast<double>(expected[i]), 2);
        norm += std::pow(static_cast<double>(expected[i]), 2);
      }
      EXPECT_LT(std::sqrt(error / norm), bound) << type;
      EXPECT_GT(std::sqrt(error / norm), bound / 2) << type;
    }
  }
}

TEST(GgufModelFiles, without_usable_weights_are_refused) {
  SWIGLU_NEEDS_TEST_DATA();
  expect_error(ErrorCode::unsupported, {"bigendian", "big-endian"},  // G06
               [] { (void)stories("ffn.f32.bigendian.gguf"); });
  for (const char* name : {"v3-empty.gguf", "valid-small.gguf", "vocab-spm.gguf", "weight_inspect_no_tensors.gguf"}) {
    EXPECT_EQ(Checkpoint::open(test_data() / "gguf/misc" / name).layers(), 0) << name;
  }
  const auto zero = test_data() / "malformed/gguf/hdr-zero-first-dim.gguf";  // G33
  EXPECT_THROW((void)Checkpoint::open(zero), Error);
}

}  // namespace
}  // namespace swiglu
