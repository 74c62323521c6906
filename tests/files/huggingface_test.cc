// Hugging Face folders and bare safetensors files: what the index and the tensors' names and shapes may
// say, and which number or name the refusal tells when they contradict each other.
#include <vector>

#include "base/dtype.h"
#include "support/huggingface.h"

namespace swiglu {
namespace {

using testing::container;
using testing::expect_error;
using testing::has_note;
using testing::kDim;
using testing::kGate;
using testing::kHidden;
using testing::read_file;
using testing::SafetensorsBuilder;
using testing::test_data;
using testing::two_layers;
using testing::write_file;

class HuggingFace : public testing::HuggingFaceFolder {};

TEST_F(HuggingFace, opens_a_folder) {
  const Checkpoint model = open();
  EXPECT_EQ(model.format(), "huggingface");
  EXPECT_EQ(model.family(), "llama");
  EXPECT_EQ(model.layers(), 2);
  EXPECT_EQ(model.config().dim, kDim);
  EXPECT_EQ(model.config().hidden, kHidden);
  EXPECT_EQ(model.config().eps, 1e-06);
  EXPECT_EQ(model.shards(), 1);
  EXPECT_EQ(model.size_bytes(), std::filesystem::file_size(folder_ / "model.safetensors"));
  ASSERT_EQ(model.tensors().size(), 8U);
  EXPECT_EQ(model.tensors()[0].name, kGate);
  EXPECT_EQ(model.tensors()[0].role, "gate");
  EXPECT_EQ(model.tensors()[0].dtype, "F32");
  EXPECT_EQ(model.tensors()[0].shape, (std::vector<std::int64_t>{kHidden, kDim}));
  EXPECT_EQ(model.tensors()[0].files, std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(model.tensors()[7].role, "norm");
  EXPECT_TRUE(model.notes().empty());
  EXPECT_TRUE(model.problems().empty());
}

TEST_F(HuggingFace, checks_that_the_index_tells_the_truth) {
  write_shards();
  EXPECT_EQ(open().layers(), 2);  // I09
  EXPECT_EQ(open().shards(), 2);
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  write_shards({{up, "\"b.safetensors\""}});  // I01
  refused(ErrorCode::not_found, {"index.json", up, "not in b.safetensors"});
  write_shards({{"lm_head.weight", "\"c.safetensors\""}});  // I02
  refused(ErrorCode::not_found, {"index.json", "shard c.safetensors is missing"});
  write_shards({{up, ""}});
  refused(ErrorCode::not_found, {"index.json", "layer 1", "up"});
}

TEST_F(HuggingFace, ignores_shards_that_the_index_does_not_name) {
  write_shards();
  write("stray.safetensors", "not even a safetensors file");  // I03
  EXPECT_EQ(open().shards(), 2);
}

TEST_F(HuggingFace, takes_a_tensor_from_the_shard_the_index_names) {  // I08
  write_shards();
  const std::string down = "model.layers.1.mlp.down_proj.weight";
  write("b.safetensors", SafetensorsBuilder()
                             .add(down, "F32", {kDim, kHidden}, std::string(96, 'b'))
                             .add("model.layers.0.post_attention_layernorm.weight", "F32", {kDim}, std::string(16, 'b'))
                             .bytes());
  const Checkpoint model = open();
  std::string first(4, '\0');
  model.layer(1).down->read(0, 1, 0, 1, first.data());
  EXPECT_EQ(first, "bbbb");
  float b = 0;
  std::memcpy(&b, "bbbb", 4);
  EXPECT_NE(model.layer(0).norm[0], b);
}

TEST_F(HuggingFace, prefers_the_single_file_to_an_index_beside_it) {  // I04
  write("model.safetensors.index.json", "{}");
  const Checkpoint model = open();
  EXPECT_EQ(model.layers(), 2);
  EXPECT_TRUE(has_note(model, "model.safetensors.index.json beside it is ignored"));
}

TEST_F(HuggingFace, refuses_shard_names_that_are_paths) {  // I05
  for (const char* shard :
       {"../../etc/passwd", "/abs/x", "a/b", "C:\\\\x", "", "a\\u0000b", "..", ".", "C:x", "a\\\\b"}) {
    SCOPED_TRACE(shard);
    write_shards({{kGate, fmt::format("\"{}\"", shard)}});
    refused(ErrorCode::format, {"index.json", kGate, "name of a file"});
  }
}

TEST_F(HuggingFace, refuses_an_index_without_a_weight_map) {  // I06
  write_shards({{kGate, "7"}});
  refused(ErrorCode::format, {"index.json", kGate, "the number 7"});
  for (const char* text : {"{}", "[]", R"({"weight_map": []})", R"({"weight_map": null})"}) {
    write("model.safetensors.index.json", text);
    refused(ErrorCode::format, {"index.json", "weight_map"});
  }
}

TEST_F(HuggingFace, ignores_total_size) {  // I07
  write_shards();
  const std::string index = read_file(folder_ / "model.safetensors.index.json");
  for (const char* size : {"1", "-5", "1.5", "1e30", "\"x\""}) {
    write("model.safetensors.index.json", fmt::format(R"({{"metadata":{{"total_size":{}}},{})", size, index.substr(1)));
    EXPECT_EQ(open().layers(), 2) << size;
  }
}

TEST_F(HuggingFace, names_the_layer_that_is_missing) {
  write("model.safetensors",
        SafetensorsBuilder().add_layer(0, 4, 6).add_layer(1, 4, 6).add_layer(3, 4, 6).bytes());  // I10
  refused(ErrorCode::not_found, {"model.safetensors", "layer 2 is missing", "layer 3"});
  write("model.safetensors", SafetensorsBuilder().add_layer(0, 4, 6).add_layer(9'000'000'000, 4, 6).bytes());
  refused(ErrorCode::not_found, {"layer 1 is missing", "layer 9000000000"});
  write("model.safetensors", two_layers());
  write_config({{"num_hidden_layers", "2000000000"}});  // I11
  refused(ErrorCode::not_found, {"num_hidden_layers is 2000000000", "2 layers", "layer 2 is missing"});
  write_config({{"num_hidden_layers", "1"}});
  EXPECT_EQ(open().layers(), 2);
  EXPECT_TRUE(has_note(open(), "num_hidden_layers is 1"));
}

TEST_F(HuggingFace, names_both_widths_of_a_contradiction) {  // I12
  write_config({{"intermediate_size", "12"}});
  refused(ErrorCode::shape, {"config.json", "intermediate_size is 12", "have 6", "--hidden 6"});
  OpenOptions options;
  options.hidden = 6;
  EXPECT_EQ(open(options).config().hidden, 6);
  EXPECT_TRUE(has_note(open(options), "intermediate_size is 12"));
  options.hidden = 12;
  refused(ErrorCode::shape, {"--hidden is 12", "have 6"}, options);
  write_config({{"hidden_size", "8"}});
  refused(ErrorCode::shape, {"config.json", "hidden_size is 8", "have 4"});
}

TEST_F(HuggingFace, refuses_tensors_that_no_llama_has) {  // I14, I17
  for (const auto& [name, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {"model.layers.0.mlp.down_proj.bias", "bias"},
           {"layers.0.feed_forward.w1.bias", "bias"},
           {"model.layers.0.post_attention_layernorm.bias", "LayerNorm"},
           {"model.layers.0.mlp.experts.3.up_proj.weight", "experts"},
           {"model.layers.0.block_sparse_moe.gate.weight", "experts"},
           {"model.layers.0.mlp.gate.weight", "experts"},
           {"model.layers.0.pre_feedforward_layernorm.weight", "norm"},
           {"model.layers.0.post_feedforward_layernorm.weight", "norm"},
           {"language_model.model.layers.3.cross_attn_mlp_gate", "gated"},
           {"model.layers.0.mlp.gate_proj.weight_scale_inv", "quantised"},
           {"model.layers.0.mlp.gate_proj.qweight", "quantised"},
           {"layers.0.feed_forward.w1.scales", "quantised"},
           {"layers.0.feed_forward.w1.lora_A.weight", "LoRA"},
           {"model.layers.0.mlp.ffn_sub_norm.weight", "no part of"}}) {
    SCOPED_TRACE(name);
    const std::string bytes = SafetensorsBuilder().add_layer(0, kDim, kHidden).add(name, "F32", {1}, 4).bytes();
    bare_refused(bytes, ErrorCode::unsupported, {name, reason});
    write("model.safetensors", bytes);
    refused(ErrorCode::unsupported, {"model.safetensors", name, reason});
    OpenOptions options;
    options.collect_problems = true;
    refused(ErrorCode::unsupported, {name, reason}, options);
  }
}

TEST_F(HuggingFace, knows_the_usual_prefixes_and_names_an_unknown_one) {  // I19
  for (const char* prefix : {"", "model.", "language_model.model.", "model.language_model."}) {
    write("bare.safetensors", two_layers(prefix));
    EXPECT_EQ(Checkpoint::open(folder_ / "bare.safetensors").layers(), 2) << prefix;
  }
  bare_refused(two_layers("transformer.h."), ErrorCode::unsupported,
               {"transformer.h.layers.0.mlp.down_proj.weight", "unknown prefix"});
  bare_refused(SafetensorsBuilder().add_layer(0, 4, 6, "").add_layer(0, 4, 6, "model.").bytes(), ErrorCode::format,
               {"both are the", "layer 0"});
  write("bare.safetensors", SafetensorsBuilder()
                                .add_layer(0, 4, 6)
                                .add("layers.01.ffn_norm.weight", "F32", {4}, 4)
                                .add("layers.-1.ffn_norm.weight", "F32", {4}, 4)
                                .add("layers.99999999999999999999.ffn_norm.weight", "F32", {4}, 4)
                                .bytes());
  EXPECT_EQ(Checkpoint::open(folder_ / "bare.safetensors").layers(), 1);
}

TEST_F(HuggingFace, accepts_mixed_types_in_one_layer) {  // I23
  write("bare.safetensors", SafetensorsBuilder()
                                .add("layers.0.feed_forward.w1.weight", "BF16", {6, 4}, 2)
                                .add("layers.0.feed_forward.w3.weight", "F32", {6, 4}, 4)
                                .add("layers.0.feed_forward.w2.weight", "F16", {4, 6}, 2)
                                .add("layers.0.ffn_norm.weight", "F64", {4}, 8)
                                .bytes());
  const LayerSource layer = Checkpoint::open(folder_ / "bare.safetensors").layer(0);
  EXPECT_EQ(layer.gate->dtype(), DType::bf16);
  EXPECT_EQ(layer.up->dtype(), DType::f32);
  EXPECT_EQ(layer.down->dtype(), DType::f16);
  EXPECT_EQ(layer.norm.size(), 4U);
}

TEST_F(HuggingFace, refuses_types_and_shapes_that_do_not_fit) {
  const auto layer_with = [](std::string_view role, std::string_view dtype, const std::vector<std::int64_t>& shape,
                             std::int64_t item) {
    SafetensorsBuilder out;
    for (const std::string_view other : {"gate", "up", "down"}) {
      const auto usual = other == "down" ? std::vector<std::int64_t>{4, 6} : std::vector<std::int64_t>{6, 4};
      const std::string name = fmt::format("model.layers.0.mlp.{}_proj.weight", other);
      other == role ? out.add(name, dtype, shape, item) : out.add(name, "F32", usual, 4);
    }
    const std::string norm = "model.layers.0.post_attention_layernorm.weight";
    return (role == "norm" ? out.add(norm, dtype, shape, item) : out.add(norm, "F32", {4}, 4)).bytes();
  };
  write_config({{"num_hidden_layers", "1"}});
  const auto both_refused = [&](const std::string& bytes, ErrorCode code,
                                std::initializer_list<std::string_view> parts) {
    bare_refused(bytes, code, parts);
    write("model.safetensors", bytes);
    refused(code, parts);
  };
  both_refused(layer_with("gate", "I32", {6, 4}, 4), ErrorCode::unsupported,
               {kGate, "F32, F16, BF16 or F64", "I32"});  // S60
  both_refused(layer_with("up", "BOOL", {6, 4}, 1), ErrorCode::unsupported, {"up_proj", "BOOL"});
  both_refused(layer_with("down", "F8_E4M3", {4, 6}, 1), ErrorCode::unsupported, {"down_proj", "F8_E4M3"});
  both_refused(layer_with("norm", "U8", {4}, 1), ErrorCode::unsupported, {"post_attention_layernorm", "U8"});
  both_refused(layer_with("gate", "F32", {4, 6}, 4), ErrorCode::shape, {kGate, "[6, 4]", "[4, 6], transposed"});  // S61
  both_refused(layer_with("gate", "F32", {24}, 4), ErrorCode::shape, {kGate, "[24]"});  // S62
  both_refused(layer_with("gate", "F32", {1, 6, 4}, 4), ErrorCode::shape, {kGate, "[1, 6, 4]"});
  both_refused(layer_with("gate", "F32", {}, 4), ErrorCode::shape, {kGate, "[]"});
  both_refused(layer_with("down", "F32", {4, 5}, 4), ErrorCode::shape, {"down_proj", "[4, 6]", "[4, 5]"});
  both_refused(layer_with("norm", "F32", {5}, 4), ErrorCode::shape, {"5", "4"});
}

TEST_F(HuggingFace, refuses_bare_files_of_empty_or_incomplete_layers) {
  bare_refused(SafetensorsBuilder().add_layer(0, 4, 0).bytes(), ErrorCode::shape, {"hidden", "found 0"});
  bare_refused(SafetensorsBuilder().add_layer(0, 0, 6).bytes(), ErrorCode::shape, {"dim", "found 0"});
  bare_refused(SafetensorsBuilder().add("layers.0.ffn_norm.weight", "F32", {4}, 4).bytes(), ErrorCode::not_found,
               {"layer 0", "gate"});
  bare_refused(SafetensorsBuilder().add_layer(3, 4, 6).bytes(), ErrorCode::not_found,
               {"layer 0 is missing", "layer 3", "open the folder"});
}

TEST_F(HuggingFace, opens_files_without_feed_forward_as_having_no_layers) {
  write("bare.safetensors", SafetensorsBuilder().add("embed", "I64", {3}, 8).bytes());
  const Checkpoint bare = Checkpoint::open(folder_ / "bare.safetensors");
  EXPECT_EQ(bare.layers(), 0);
  EXPECT_TRUE(has_note(bare, "no feed-forward among 1 tensors"));
  write("model.safetensors", container("{}"));
  EXPECT_EQ(open().layers(), 0);
  EXPECT_TRUE(has_note(open(), "no feed-forward among 0 tensors"));
}

TEST_F(HuggingFace, a_bare_file_says_which_eps_it_takes) {
  const auto path = folder_ / "model.safetensors";
  const Checkpoint bare = Checkpoint::open(path);
  EXPECT_EQ(bare.format(), "safetensors");
  EXPECT_EQ(bare.config().eps, 1e-5);
  EXPECT_TRUE(has_note(bare, "using 1e-05; --eps overrides"));
  OpenOptions options;
  options.eps = 1e-6;
  EXPECT_EQ(Checkpoint::open(path, options).config().eps, 1e-6);
  EXPECT_TRUE(Checkpoint::open(path, options).notes().empty());
}

TEST_F(HuggingFace, collects_problems_for_inspection) {
  write_shards({{"model.layers.1.mlp.up_proj.weight", "\"c.safetensors\""}});
  write_config({{"num_hidden_layers", "3"}});
  OpenOptions options;
  options.collect_problems = true;
  const Checkpoint model = open(options);
  EXPECT_EQ(model.layers(), 2);
  ASSERT_EQ(model.problems().size(), 3U) << fmt::format("{}", fmt::join(model.problems(), "\n"));
  EXPECT_NE(model.problems()[0].find("shard c.safetensors is missing"), std::string::npos);
  EXPECT_NE(model.problems()[1].find("layer 2 is missing"), std::string::npos);
  EXPECT_NE(model.problems()[2].find("layer 1: the shard c.safetensors is missing"), std::string::npos);
  EXPECT_EQ(model.layer(0).norm.size(), 4U);
  expect_error(ErrorCode::not_found, {"layer 1", "c.safetensors"}, [&] { (void)model.layer(1); });

  write_shards();
  write_config({{"intermediate_size", "12"}});
  const Checkpoint wide = open(options);
  ASSERT_EQ(wide.problems().size(), 1U);
  EXPECT_EQ(wide.config().hidden, 6);
  expect_error(ErrorCode::shape, {"12", "6"}, [&] { (void)wide.layer(0); });
  write_config({{"model_type", "\"gemma\""}});
  refused(ErrorCode::unsupported, {"gemma"}, options);
  write_config();
  write("b.safetensors", "not safetensors at all");
  refused(ErrorCode::format, {"b.safetensors"}, options);
}

// The trained five-layer model, compared with the file it was made from.
void expect_stories(const Checkpoint& model, bool bf16) {
  const std::string original = read_file(test_data() / "llama2c/stories260K.bin");
  constexpr std::size_t kNorms = 378140, kGates = 379420, kDowns = 599580, kUps = 819740, kMatrix = 44032;
  const auto expected = [&](std::size_t offset, std::size_t count) {
    std::vector<float> values(count);
    std::memcpy(values.data(), original.data() + offset, 4 * count);
    for (float& value : values) value = bf16 ? float_from_bf16(bf16_from_float(value)) : value;
    return values;
  };
  const auto stored = [](const TensorSource& source, std::int64_t rows, std::int64_t cols) {
    EXPECT_EQ(source.rows(), rows);
    EXPECT_EQ(source.cols(), cols);
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows * cols * size_of(source.dtype())));
    source.read(0, rows, 0, cols, bytes.data());
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(load_double(bytes.data(), source.dtype(), static_cast<std::int64_t>(i)));
    }
    return values;
  };
  ASSERT_EQ(model.layers(), 5);
  EXPECT_EQ(model.config().dim, 64);
  EXPECT_EQ(model.config().hidden, 172);
  EXPECT_EQ(model.config().eps, 1e-5);
  for (std::size_t i = 0; i < 5; ++i) {
    const LayerSource layer = model.layer(static_cast<std::int64_t>(i));
    EXPECT_EQ(layer.norm, expected(kNorms + i * 256, 64));
    EXPECT_EQ(stored(*layer.gate, 172, 64), expected(kGates + i * kMatrix, kMatrix / 4));
    EXPECT_EQ(stored(*layer.up, 172, 64), expected(kUps + i * kMatrix, kMatrix / 4));
    EXPECT_EQ(stored(*layer.down, 64, 172), expected(kDowns + i * kMatrix, kMatrix / 4));
  }
}

TEST(HuggingFaceFiles, of_a_trained_model_hold_its_values) {  // X1
  SWIGLU_NEEDS_TEST_DATA();
  const auto folder = test_data() / "derived/stories260K";
  expect_stories(Checkpoint::open(folder / "hf_f32"), false);
  expect_stories(Checkpoint::open(folder / "full_hf_f32"), false);
  expect_stories(Checkpoint::open(folder / "hf_f32/model.safetensors"), false);
  const Checkpoint sharded = Checkpoint::open(folder / "hf_bf16_sharded");
  expect_stories(sharded, true);
  EXPECT_EQ(sharded.shards(), 2);
  EXPECT_EQ(sharded.tensors()[8].files.front(), "model-00001-of-00002.safetensors");
  EXPECT_EQ(sharded.tensors()[10].files.front(), "model-00002-of-00002.safetensors");
}

}  // namespace
}  // namespace swiglu
