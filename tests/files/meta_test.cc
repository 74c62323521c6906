// Meta folders: params.json, shards merged, and what is said when they do not belong together.
#include <cmath>
#include <functional>
#include <map>
#include <span>

#include <fmt/format.h>

#include "base/dtype.h"
#include "files/checkpoint.h"
#include "files/json.h"
#include "files/params.h"
#include "files/torch_file.h"

namespace swiglu::testing {
namespace {

namespace p = pickled;
using files::Contents;

// ---- params.json

files::MetaParams params(const std::string& text) {
  files::JsonRules rules;
  rules.python_constants = true;
  return files::read_params(files::parse_json(text, rules, "params.json"), "params.json");
}
void refuses_params(const std::string& text, const std::vector<std::string>& pieces,
                    ErrorCode code = ErrorCode::format) {
  std::vector<std::string> all = pieces;
  all.push_back("params.json");
  expect_error(code, all, [&] { (void)params(text); });
}

TEST(Params, reads_published_files) {
  auto meta = params(R"({"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256,
    "ffn_dim_multiplier": 1.3, "multiple_of": 1024, "norm_eps": 1e-05, "rope_theta": 500000.0, "use_scaled_rope": true})");
  EXPECT_EQ(meta.config.dim, 4096);
  EXPECT_EQ(meta.config.hidden, 14336);
  EXPECT_EQ(meta.config.eps, 1e-5);
  EXPECT_EQ(meta.layers, 32);
  EXPECT_TRUE(meta.notes.empty());
  EXPECT_EQ(meta.width_origin, "dim 4096, multiple_of 1024, ffn_dim_multiplier 1.3");
  meta = params(
      R"({"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-06, "vocab_size": -1})");
  EXPECT_EQ(meta.config.hidden, 11008);
  EXPECT_EQ(meta.config.eps, 1e-6);
  EXPECT_EQ(params(R"({"dim": 3072, "ffn_dim_multiplier": 1.0, "multiple_of": 256})").config.hidden, 8192);
}

TEST(Params, has_the_defaults_of_metas_code) {  // M11: absent is 256
  const auto meta = params(R"({"dim": 4096})");
  EXPECT_EQ(meta.config.hidden, 11008);
  EXPECT_EQ(meta.config.eps, 1e-5);
  EXPECT_EQ(meta.layers, std::nullopt);
  ASSERT_EQ(meta.notes.size(), 1U);
  EXPECT_NE(meta.notes[0].find("norm_eps"), std::string::npos);
}

TEST(Params, a_null_or_absent_multiplier_is_none) {  // M08
  EXPECT_EQ(params(R"({"dim": 4096, "ffn_dim_multiplier": null})").config.hidden, 11008);
  EXPECT_EQ(params(R"({"dim": 4096, "ffn_dim_multiplier": null, "multiple_of": null, "quantization_args": null})")
                .config.hidden,
            11008);
}

TEST(Params, an_integer_multiplier_is_a_number) {  // M10
  EXPECT_EQ(params(R"({"dim": 4096, "ffn_dim_multiplier": 1})").config.hidden, 11008);
}

TEST(Params, refuses_multipliers_that_are_no_positive_number) {  // M09
  for (const char* value : {"\"1.3\"", "true", "[1.3]", "{}", "NaN", "Infinity", "-Infinity", "0", "0.0", "-1", "-1.3",
                            "1e308", "1e-9", "1e999"}) {
    refuses_params(fmt::format(R"({{"dim": 64, "multiple_of": 1, "ffn_dim_multiplier": {}}})", value), {});
  }
  refuses_params(R"({"dim": 64, "ffn_dim_multiplier": "1.3"})", {"ffn_dim_multiplier", "\"1.3\""});
}

TEST(Params, refuses_widths_that_are_no_positive_integer) {  // M11, M12
  for (const char* key : {"multiple_of", "hidden_dim", "intermediate_size", "n_layers"}) {
    for (const char* value :
         {"0", "-256", "256.0", "\"256\"", "true", "1099511627776", "18446744073709551616", "[256]", "NaN"}) {
      refuses_params(fmt::format(R"({{"dim": 64, "{}": {}}})", key, value), {});
    }
  }
  for (const char* value : {"0", "-1", "1099511627776", "4096.0", "\"64\"", "null"}) {
    refuses_params(fmt::format(R"({{"dim": {}}})", value), {"dim"});
  }
  refuses_params("{}", {"dim"});
  refuses_params("[]", {"an object"});
  refuses_params(R"({"dim": 64, "dim": 32})", {"dim"});
}

TEST(Params, refuses_an_eps_that_is_no_small_number) {
  for (const char* value : {"0", "-1e-5", "1", "NaN", "Infinity", "\"1e-5\"", "1e-60", "false"}) {
    refuses_params(fmt::format(R"({{"dim": 64, "norm_eps": {}}})", value), {"norm_eps"});
  }
}

TEST(Params, an_explicit_width_wins_over_the_recipe) {  // M13
  EXPECT_EQ(params(R"({"dim": 2048, "hidden_dim": 6400})").config.hidden, 6400);
  EXPECT_EQ(params(R"({"dim": 2048, "intermediate_size": 6400, "multiple_of": 256})").width_origin,
            "intermediate_size");
  EXPECT_EQ(params(R"({"dim": 2048, "intermediate_size": 6400, "hidden_dim": 6400})").config.hidden, 6400);
  refuses_params(R"({"dim": 2048, "intermediate_size": 6400, "hidden_dim": 6401})", {"6400", "6401"});
}

TEST(Params, refuses_what_is_not_computed_by_name) {  // M15
  for (const char* key : {"quantization_args", "lora_args", "moe_args", "ffn_exp", "moe"}) {
    refuses_params(fmt::format(R"({{"dim": 64, "{}": {{"group_size": 32}}}})", key), {key}, ErrorCode::unsupported);
  }
}

// ---- folders

constexpr std::int64_t kDim = 6;
constexpr std::int64_t kShare = 4;  // rows of gate in one shard

float value(std::int64_t layer, int role, std::int64_t row, std::int64_t col) {
  return static_cast<float>(((layer * 4 + role) * 64 + row) * 64 + col);
}

FloatTensor slice(const std::string& name, std::int64_t layer, int role, std::int64_t row0, std::int64_t rows,
                  std::int64_t col0, std::int64_t cols) {
  FloatTensor t{name, {rows, cols}, {}};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) t.values.push_back(value(layer, role, row0 + r, col0 + c));
  }
  if (role == 3) t.shape = {cols};
  return t;
}

// What rank `rank` holds of a layer.
std::vector<FloatTensor> layer_tensors(std::int64_t layer, std::int64_t rank, std::int64_t share = kShare) {
  const std::string at = fmt::format("layers.{}.", layer);
  return {slice(at + "feed_forward.w1.weight", layer, 0, rank * share, share, 0, kDim),
          slice(at + "feed_forward.w2.weight", layer, 2, 0, kDim, rank * share, share),
          slice(at + "feed_forward.w3.weight", layer, 1, rank * share, share, 0, kDim),
          slice(at + "ffn_norm.weight", layer, 3, 0, 1, 0, kDim)};
}

std::vector<FloatTensor> shard_tensors(std::int64_t layers, std::int64_t rank) {
  std::vector<FloatTensor> all{{"tok_embeddings.weight", {1, 2}, {0, 0}}};
  for (std::int64_t i = 0; i < layers; ++i) {
    for (auto& t : layer_tensors(i, rank)) all.push_back(std::move(t));
  }
  return all;
}

struct Folder {
  TemporaryFolder folder;

  Folder& params(const std::string& text) {
    write_file(folder / "params.json", text);
    return *this;
  }
  Folder& shard(const std::string& name, const std::vector<FloatTensor>& tensors) {
    write_file(folder / name, torch_bytes(tensors));
    return *this;
  }
  // `shards` sound files of two layers and their params.json.
  Folder& sound(std::int64_t shards) {
    params(fmt::format(R"({{"dim": {}, "n_layers": 2, "hidden_dim": {}, "norm_eps": 1e-6}})", kDim, kShare * shards));
    for (std::int64_t i = 0; i < shards; ++i) shard(fmt::format("consolidated.{:02}.pth", i), shard_tensors(2, i));
    return *this;
  }
  [[nodiscard]] Contents open(const OpenOptions& options = {}) const {
    return files::open_meta(folder.path(), options);
  }

  void refuses(ErrorCode code, const std::vector<std::string>& pieces) const {
    expect_error(code, pieces, [&] { (void)open(); });
  }
  // The same fault is collected, and layer() of layer 0 throws it.
  void refuses_layer(ErrorCode code, const std::vector<std::string>& pieces, std::size_t layer = 0) const {
    refuses(code, pieces);
    OpenOptions collect;
    collect.collect_problems = true;
    const Contents contents = open(collect);
    ASSERT_GT(contents.layers.size(), layer);
    ASSERT_TRUE(contents.layers[layer].fault.has_value());
    EXPECT_EQ(contents.layers[layer].fault->code(), code);
    ASSERT_FALSE(contents.problems.empty());
    expect_error(code, pieces, [&] { throw *contents.layers[layer].fault; });
  }
};

std::vector<float> read_all(const TensorSource& source) {
  std::vector<float> values(static_cast<std::size_t>(source.rows() * source.cols()));
  source.read(0, source.rows(), 0, source.cols(), values.data());
  return values;
}

// Every element and a few blocks against value().
void expect_values(const TensorSource& source, std::int64_t layer, int role) {
  ASSERT_EQ(source.dtype(), DType::f32);
  const auto all = read_all(source);
  for (std::int64_t r = 0; r < source.rows(); ++r) {
    for (std::int64_t c = 0; c < source.cols(); ++c) {
      ASSERT_EQ(all[static_cast<std::size_t>(r * source.cols() + c)], value(layer, role, r, c))
          << source.name() << r << ' ' << c;
    }
  }
  for (std::int64_t r = 0; r < source.rows(); ++r) {
    const std::int64_t rows = (source.rows() - r + 1) / 2;
    std::vector<float> block(static_cast<std::size_t>(rows * (source.cols() - 2)));
    source.read(r, rows, 1, source.cols() - 2, block.data());
    for (std::int64_t i = 0; i < std::ssize(block); ++i) {
      const std::int64_t cols = source.cols() - 2;
      ASSERT_EQ(block[static_cast<std::size_t>(i)], value(layer, role, r + i / cols, 1 + i % cols));
    }
  }
}

TEST(Meta, merges_any_number_of_shards) {
  for (const std::int64_t shards : {1, 2, 3, 11}) {
    Folder folder;
    const Contents contents = folder.sound(shards).open();
    EXPECT_EQ(contents.format, "meta");
    EXPECT_EQ(contents.family, "llama");
    EXPECT_EQ(contents.shards, shards);
    EXPECT_EQ(contents.config.dim, kDim);
    EXPECT_EQ(contents.config.hidden, kShare * shards);
    EXPECT_EQ(contents.config.eps, 1e-6);
    EXPECT_TRUE(contents.notes.empty());
    EXPECT_TRUE(contents.problems.empty());
    ASSERT_EQ(contents.layers.size(), 2U);
    for (std::int64_t i = 0; i < 2; ++i) {
      const auto& layer = contents.layers[static_cast<std::size_t>(i)];
      EXPECT_EQ(layer.gate->rows(), kShare * shards);
      EXPECT_EQ(layer.down->cols(), kShare * shards);
      expect_values(*layer.gate, i, 0);
      expect_values(*layer.up, i, 1);
      expect_values(*layer.down, i, 2);
      expect_values(*layer.norm, i, 3);
    }
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.folder.path())) {
      if (entry.path().extension() == ".pth") bytes += entry.file_size();
    }
    EXPECT_EQ(contents.size_bytes, bytes);
  }
}

TEST(Meta, lists_tensors_merged) {
  Folder folder;
  const Contents contents = folder.sound(2).open();
  ASSERT_EQ(contents.tensors.size(), 8U);
  const TensorInfo& gate = contents.tensors[0];
  EXPECT_EQ(gate.name, "layers.0.feed_forward.w1.weight");
  EXPECT_EQ(gate.role, "gate");
  EXPECT_EQ(gate.dtype, "torch.FloatStorage");
  EXPECT_EQ(gate.shape, (std::vector<std::int64_t>{2 * kShare, kDim}));
  EXPECT_EQ(gate.files, (std::vector<std::string>{"consolidated.00.pth", "consolidated.01.pth"}));
  EXPECT_EQ(contents.tensors[2].role, "down");
  EXPECT_EQ(contents.tensors[2].shape, (std::vector<std::int64_t>{kDim, 2 * kShare}));
  EXPECT_EQ(contents.tensors[7].role, "norm");
  EXPECT_EQ(contents.tensors[7].shape, (std::vector<std::int64_t>{kDim}));
}

TEST(Meta, sorts_shards_by_number) {  // M03
  Folder folder;
  folder.params(fmt::format(R"({{"dim": {}, "n_layers": 2, "hidden_dim": {}}})", kDim, kShare * 11));
  for (std::int64_t i = 0; i < 11; ++i) folder.shard(fmt::format("consolidated.{}.pth", i), shard_tensors(2, i));
  expect_values(*folder.open().layers[1].down, 1, 2);
}

TEST(Meta, only_consolidated_files_are_shards) {
  Folder folder;
  folder.sound(2);
  for (const char* name : {"consolidated.pth", "consolidated.0x.pth", "consolidated.02.pth.bak", "consolidated.-1.pth",
                           "fp8_scales_0.pt"}) {
    write_file(folder.folder / name, "not a checkpoint");
  }
  EXPECT_EQ(folder.open().shards, 2);
}

TEST(Meta, names_a_missing_shard) {  // M02
  Folder folder;
  folder.sound(4);
  std::filesystem::remove(folder.folder / "consolidated.02.pth");
  folder.refuses(ErrorCode::not_found, {"consolidated.02.pth", "missing", "consolidated.03.pth"});
  std::filesystem::rename(folder.folder / "consolidated.00.pth", folder.folder / "consolidated.02.pth");
  folder.refuses(ErrorCode::not_found, {"consolidated.00.pth", "missing"});
  Folder twice;
  twice.sound(1).shard("consolidated.0.pth", shard_tensors(2, 0));
  twice.refuses(ErrorCode::format, {"consolidated.0.pth", "consolidated.00.pth"});
  Folder none;
  none.params(R"({"dim": 6})");
  none.refuses(ErrorCode::not_found, {"consolidated.00.pth"});
}

TEST(Meta, a_missing_last_shard_shows_in_the_width) {  // M01
  Folder folder;
  folder.sound(2);
  std::filesystem::remove(folder.folder / "consolidated.01.pth");
  folder.refuses_layer(ErrorCode::shape, {"params.json", "width 8", "hidden_dim", "found 4", "missing", "--hidden 4"});
  OpenOptions confirmed;
  confirmed.hidden = 4;
  const Contents contents = folder.open(confirmed);
  EXPECT_EQ(contents.config.hidden, 4);
  ASSERT_EQ(contents.notes.size(), 1U);
  EXPECT_NE(contents.notes[0].find("confirmed"), std::string::npos);
  confirmed.hidden = 8;  // what params.json says, but the tensors do not
  expect_error(ErrorCode::shape, {"8", "4"}, [&] { (void)folder.open(confirmed); });
}

TEST(Meta, names_both_widths_when_the_recipe_is_wrong) {  // M14
  Folder folder;
  folder.sound(1).params(R"({"dim": 6, "n_layers": 2, "multiple_of": 4, "ffn_dim_multiplier": 1.3})");
  folder.refuses(ErrorCode::shape, {"params.json", "width 20", "ffn_dim_multiplier 1.3", "found 4"});
}

TEST(Meta, names_both_dims) {
  Folder folder;
  folder.sound(1).params(R"({"dim": 8, "n_layers": 2, "hidden_dim": 4})");
  folder.refuses_layer(ErrorCode::shape, {"params.json", "dim is 8", "have 6"});
}

TEST(Meta, refuses_unequal_shares) {  // M04
  Folder folder;
  auto tensors = shard_tensors(1, 1);
  for (auto& t : layer_tensors(1, 1, kShare - 1)) tensors.push_back(t);
  folder.sound(2).shard("consolidated.01.pth", tensors);
  folder.refuses_layer(ErrorCode::shape,
                       {"consolidated.01.pth", "layers.1.feed_forward.w1.weight", "[4, 6]", "[3, 6]", "equal share"},
                       1);
  OpenOptions collect;
  collect.collect_problems = true;
  EXPECT_FALSE(folder.open(collect).layers[0].fault.has_value());  // the other layer is sound
}

TEST(Meta, refuses_shapes_that_contradict_each_other) {  // M05
  const auto with = [](std::size_t tensor, std::vector<std::int64_t> shape) {
    auto tensors = shard_tensors(2, 0);
    FloatTensor& t = tensors[1 + tensor];
    t.shape = std::move(shape);
    std::int64_t count = 1;
    for (const auto n : t.shape) count *= n;
    t.values.resize(static_cast<std::size_t>(count));
    return tensors;
  };
  Folder folder;
  folder.sound(1).shard("consolidated.00.pth", with(0, {3, 6}));
  folder.refuses_layer(ErrorCode::shape,
                       {"consolidated.00.pth", "layers.0.feed_forward.w1.weight", "[4, 6]", "[3, 6]"});
  folder.shard("consolidated.00.pth", with(2, {5, 6}));
  folder.refuses_layer(ErrorCode::shape,
                       {"consolidated.00.pth", "layers.0.feed_forward.w3.weight", "[4, 6]", "[5, 6]"});
  folder.shard("consolidated.00.pth", with(1, {6, 5}));
  folder.refuses_layer(ErrorCode::shape, {"layers.0.feed_forward.w2.weight", "[6, 4]", "[6, 5]"});
  folder.shard("consolidated.00.pth", with(1, {4, 6}));
  folder.refuses_layer(ErrorCode::shape, {"layers.0.feed_forward.w2.weight", "[6, 4]", "[4, 6]"});
  folder.shard("consolidated.00.pth", with(3, {5}));
  folder.refuses_layer(ErrorCode::shape, {"layers.0.ffn_norm.weight", "[6]", "[5]"});
  folder.shard("consolidated.00.pth", with(0, {4, 6, 1}));
  folder.refuses_layer(ErrorCode::shape, {"layers.0.feed_forward.w1.weight", "[4, 6]", "[4, 6, 1]"});
}

TEST(Meta, refuses_norms_that_differ_between_shards) {  // M06
  Folder folder;
  auto tensors = shard_tensors(2, 1);
  tensors[4].values[2] = std::nextafter(tensors[4].values[2], 1e9F);
  folder.sound(2).shard("consolidated.01.pth", tensors);
  folder.refuses_layer(ErrorCode::format,
                       {"consolidated.01.pth", "layers.0.ffn_norm.weight", "consolidated.00.pth", "element 2"});
}

TEST(Meta, names_what_one_shard_lacks) {  // M07
  Folder folder;
  folder.sound(2).shard("consolidated.01.pth", shard_tensors(1, 1));
  folder.refuses_layer(ErrorCode::not_found, {"consolidated.01.pth", "layer 1", "layers.1.feed_forward.w1.weight"}, 1);
  for (const auto& [index, name] : std::map<int, std::string>{
           {1, "feed_forward.w1"}, {2, "feed_forward.w2"}, {3, "feed_forward.w3"}, {4, "ffn_norm"}}) {
    auto tensors = shard_tensors(2, 1);
    tensors.erase(tensors.begin() + index);
    folder.shard("consolidated.01.pth", tensors);
    folder.refuses_layer(ErrorCode::not_found, {"consolidated.01.pth", "layers.0." + name + ".weight"});
  }
}

// The same weights with another storage class of the same item size where values do not matter.
std::string shard_of_type(const std::string& type, std::int64_t item) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<std::string> storages;
  for (const auto& t : layer_tensors(0, 0)) {
    const auto count = std::ssize(t.values);
    const std::vector<std::int64_t> strides =
        t.shape.size() == 1 ? std::vector<std::int64_t>{1} : std::vector{t.shape[1], std::int64_t{1}};
    pairs.emplace_back(t.name,
                       p::tensor(p::storage(std::to_string(storages.size()), count, type), 0, t.shape, strides));
    storages.push_back(std::string(static_cast<std::size_t>(count * item), '\0'));
  }
  return zip_bytes(torch_parts(p::whole(p::dict({{"model", p::dict(pairs)}})), storages));
}

TEST(Meta, refuses_types_that_differ_between_shards) {  // M17, M18
  Folder folder;
  folder.params(R"({"dim": 6, "n_layers": 1, "hidden_dim": 8})");
  write_file(folder.folder / "consolidated.00.pth", shard_of_type("BFloat16Storage", 2));
  write_file(folder.folder / "consolidated.01.pth", shard_of_type("HalfStorage", 2));
  folder.refuses_layer(ErrorCode::format, {"consolidated.01.pth", "layers.0.feed_forward.w1.weight", "bf16", "f16"});
  write_file(folder.folder / "consolidated.01.pth", shard_of_type("BFloat16Storage", 2));
  EXPECT_EQ(folder.open().layers[0].gate->dtype(), DType::bf16);  // and tensors under "model" are found
}

TEST(Meta, refuses_types_that_are_not_computed_with) {
  Folder folder;
  folder.params(R"({"dim": 6, "n_layers": 1, "hidden_dim": 4})");
  write_file(folder.folder / "consolidated.00.pth", shard_of_type("CharStorage", 1));
  folder.refuses_layer(ErrorCode::unsupported,
                       {"consolidated.00.pth", "layers.0.feed_forward.w1.weight", "torch.CharStorage"});
}

TEST(Meta, refuses_experts_and_biases_by_name) {
  for (const char* name : {"layers.0.feed_forward.experts.moe_w_in_eD_F", "layers.0.feed_forward.w1.bias"}) {
    Folder folder;
    auto tensors = shard_tensors(2, 0);
    tensors.push_back({name, {2, 2}, {1, 2, 3, 4}});
    folder.sound(1).shard("consolidated.00.pth", tensors);
    folder.refuses(ErrorCode::unsupported, {"consolidated.00.pth", name});
  }
}

TEST(Meta, compares_the_number_of_layers) {  // M20
  Folder folder;
  folder.sound(1).params(R"({"dim": 6, "n_layers": 3, "hidden_dim": 4})");
  folder.refuses(ErrorCode::not_found, {"params.json", "n_layers is 3", "2 layers", "layer 2 is missing"});
  OpenOptions collect;
  collect.collect_problems = true;
  const Contents damaged = folder.open(collect);
  EXPECT_EQ(damaged.problems.size(), 1U);
  EXPECT_EQ(damaged.layers.size(), 2U);
  EXPECT_FALSE(damaged.layers[0].fault.has_value());
  folder.params(R"({"dim": 6, "n_layers": 1, "hidden_dim": 4, "norm_eps": 1e-5})");
  const Contents contents = folder.open();
  EXPECT_EQ(contents.layers.size(), 2U);
  ASSERT_EQ(contents.notes.size(), 1U);
  EXPECT_NE(contents.notes[0].find("n_layers is 1"), std::string::npos);
}

TEST(Meta, refuses_a_gap_in_the_layers) {
  Folder folder;
  auto tensors = shard_tensors(1, 0);
  for (auto& t : layer_tensors(2, 0)) tensors.push_back(t);
  for (auto& t : layer_tensors(1000000000000, 0)) tensors.push_back(t);
  folder.sound(1).shard("consolidated.00.pth", tensors);
  folder.refuses(ErrorCode::not_found, {"layer 1 is missing", "layer 1000000000000"});
}

TEST(Meta, a_folder_without_params_has_the_width_of_its_tensors) {
  Folder folder;
  folder.sound(2);
  std::filesystem::remove(folder.folder / "params.json");
  const Contents contents = folder.open();
  EXPECT_EQ(contents.config.dim, kDim);
  EXPECT_EQ(contents.config.hidden, 2 * kShare);
  EXPECT_EQ(contents.config.eps, 1e-5);
  ASSERT_EQ(contents.notes.size(), 1U);
  EXPECT_NE(contents.notes[0].find("eps"), std::string::npos);
  OpenOptions options;
  options.eps = 1e-6;
  EXPECT_EQ(folder.open(options).config.eps, 1e-6);
  EXPECT_TRUE(folder.open(options).notes.empty());
}

TEST(Meta, opens_a_file_of_its_own) {
  const BytesFile file(torch_bytes(shard_tensors(2, 0)));
  const Contents contents = files::open_pth(*file, {});
  EXPECT_EQ(contents.format, "meta");
  EXPECT_EQ(contents.shards, 1);
  EXPECT_EQ(contents.config.hidden, kShare);
  EXPECT_EQ(contents.config.eps, 1e-5);
  EXPECT_EQ(contents.notes.size(), 1U);
  expect_values(*contents.layers[1].down, 1, 2);
  OpenOptions options;
  options.hidden = 5;
  expect_error(ErrorCode::shape, {"x.pth", "5", "4"}, [&] { (void)files::open_pth(*file, options); });
  const BytesFile shard(torch_bytes(shard_tensors(2, 0)), "consolidated.00.pth");
  EXPECT_EQ(files::open_pth(*shard, {}).notes.size(), 2U);
}

TEST(Meta, a_file_without_feed_forward_is_a_note) {
  const BytesFile file(torch_bytes({{"bert.encoder.weight", {2}, {1, 2}}}));
  const Contents contents = files::open_pth(*file, {});
  EXPECT_TRUE(contents.layers.empty());
  ASSERT_EQ(contents.notes.size(), 1U);
  EXPECT_NE(contents.notes[0].find("no feed-forward"), std::string::npos);
  const BytesFile other(torch_bytes({slice("text_model.layers.0.feed_forward.w1.weight", 0, 0, 0, 4, 0, 6)}));
  expect_error(ErrorCode::unsupported, {"x.pth", "text_model.layers.0"}, [&] { (void)files::open_pth(*other, {}); });
}

TEST(Meta, refuses_empty_matrices) {
  const BytesFile file(torch_bytes({{"layers.0.feed_forward.w1.weight", {0, 6}, {}}}));
  expect_error(ErrorCode::shape, {"x.pth", "width", "found 0"}, [&] { (void)files::open_pth(*file, {}); });
  const BytesFile other(torch_bytes({{"layers.0.feed_forward.w1.weight", {6, 0}, {}}}));
  expect_error(ErrorCode::shape, {"x.pth", "dim", "found 0"}, [&] { (void)files::open_pth(*other, {}); });
}

TEST(Meta, a_width_that_overflows_is_refused) {
  constexpr std::int64_t kRows = (std::int64_t{1} << 60) - 1;
  Folder folder;
  for (int i = 0; i < 10; ++i) {
    folder.shard(fmt::format("consolidated.{:02}.pth", i), {{"layers.0.feed_forward.w1.weight", {kRows, 0}, {}}});
  }
  folder.refuses(ErrorCode::shape, {"dim", "found 0"});
  OpenOptions collect;
  collect.collect_problems = true;
  const Contents contents = folder.open(collect);
  ASSERT_EQ(contents.tensors.size(), 1U);
  EXPECT_GT(contents.tensors[0].shape[0], kRows);
}

TEST(Meta, an_expanded_matrix_is_refused_by_its_shape) {  // P59
  const std::string huge = p::tensor(p::storage("0", 1), 0, {std::int64_t{1} << 40, std::int64_t{1} << 19}, {0, 0});
  const BytesFile file(
      zip_bytes(torch_parts(p::whole(p::dict({{"layers.0.feed_forward.w1.weight", huge}})), {"abcd"})));
  expect_error(ErrorCode::not_found, {"x.pth", "w3"}, [&] { (void)files::open_pth(*file, {}); });
}

// ---- the real model

struct Stories {
  std::string bytes = file_bytes(test_data() / "llama2c/stories260K.bin");
  static constexpr std::int64_t kStoriesDim = 64, kHidden = 172;

  [[nodiscard]] std::vector<float> matrix(std::int64_t layer, int role) const {
    constexpr std::size_t kStart[] = {379420, 819740, 599580, 378140};  // w1, w3, w2, norm
    const std::size_t count = role == 3 ? kStoriesDim : kStoriesDim * kHidden;
    std::vector<float> out(count);
    std::memcpy(out.data(), bytes.data() + kStart[role] + static_cast<std::size_t>(layer) * count * 4, count * 4);
    return out;
  }
};

// Whole, by rows, by columns and in uneven blocks: what arrives is `expected`, rounded to the type.
void expect_matrix(const TensorSource& source, const std::vector<float>& expected) {
  const std::int64_t rows = source.rows();
  const std::int64_t cols = source.cols();
  ASSERT_EQ(rows * cols, std::ssize(expected));
  const std::int64_t steps[][2] = {{rows, cols}, {1, cols}, {rows, 1}, {7, 5}, {50, 33}};
  for (const auto& [row_step, col_step] : steps) {
    for (std::int64_t r = 0; r < rows; r += row_step) {
      for (std::int64_t c = 0; c < cols; c += col_step) {
        const std::int64_t height = std::min(row_step, rows - r);
        const std::int64_t width = std::min(col_step, cols - c);
        std::vector<std::byte> block(static_cast<std::size_t>(height * width * size_of(source.dtype())));
        source.read(r, height, c, width, block.data());
        for (std::int64_t i = 0; i < height * width; ++i) {
          float wanted = expected[static_cast<std::size_t>((r + i / width) * cols + c + i % width)];
          if (source.dtype() == DType::bf16) wanted = float_from_bf16(bf16_from_float(wanted));
          ASSERT_EQ(load_double(block.data(), source.dtype(), i), static_cast<double>(wanted))
              << source.name() << " [" << r + i / width << ", " << c + i % width << "]";
        }
      }
    }
  }
}

void expect_stories(const std::string& folder, std::int64_t shards, std::int64_t layers, DType dtype) {
  const Stories stories;
  const Contents contents = files::open_meta(test_data() / "derived/stories260K" / folder, {});
  EXPECT_EQ(contents.shards, shards);
  EXPECT_EQ(contents.config.dim, 64);
  EXPECT_EQ(contents.config.hidden, 172);
  EXPECT_EQ(contents.config.eps, 1e-5);
  EXPECT_TRUE(contents.notes.empty());
  ASSERT_EQ(std::ssize(contents.layers), layers);
  for (std::int64_t i = 0; i < layers; ++i) {
    const auto& layer = contents.layers[static_cast<std::size_t>(i)];
    EXPECT_EQ(layer.gate->dtype(), dtype);
    EXPECT_EQ(layer.gate->rows(), 172);
    EXPECT_EQ(layer.down->rows(), 64);
    expect_matrix(*layer.gate, stories.matrix(i, 0));
    expect_matrix(*layer.up, stories.matrix(i, 1));
    expect_matrix(*layer.down, stories.matrix(i, 2));
    expect_matrix(*layer.norm, stories.matrix(i, 3));
  }
}

TEST(Meta, reads_the_real_model_bit_for_bit) {  // X1
  SWIGLU_NEEDS_TEST_DATA();
  expect_stories("meta_mp1_f32", 1, 5, DType::f32);
}

TEST(Meta, merges_the_real_models_shards_with_shared_storages) {
  SWIGLU_NEEDS_TEST_DATA();
  expect_stories("meta_mp2_bf16_shared", 2, 5, DType::bf16);
}

TEST(Meta, reads_the_real_models_strided_views) {
  SWIGLU_NEEDS_TEST_DATA();
  expect_stories("meta_strided_f32", 1, 1, DType::f32);
}

TEST(Meta, opens_real_bare_files) {
  SWIGLU_NEEDS_TEST_DATA();
  const auto open = [](const char* name) {
    return files::open_pth(std::make_shared<const files::File>(test_data() / "pth" / name), {});
  };
  const Contents tiny = open("tiny_fair_checkpoint.pt");
  EXPECT_EQ(tiny.config.dim, 32);
  EXPECT_EQ(tiny.config.hidden, 256);
  ASSERT_EQ(tiny.layers.size(), 2U);
  for (const float v : read_all(*tiny.layers[1].down)) ASSERT_EQ(v, 0.2F);
  const Contents demo = open("demo_rand_params.pth");
  EXPECT_EQ(demo.config.dim, 64);
  EXPECT_EQ(demo.config.hidden, 172);
  ASSERT_EQ(demo.layers.size(), 5U);
  EXPECT_NEAR(read_all(*demo.layers[0].gate)[0], -0.00567087531, 1e-11);
  for (const float v : read_all(*demo.layers[4].norm)) ASSERT_EQ(v, 1.0F);
}

TEST(Meta, the_front_door_finds_it_by_content) {
  SWIGLU_NEEDS_TEST_DATA();
  const auto model = Checkpoint::open(test_data() / "derived/stories260K/meta_mp2_bf16_shared");
  EXPECT_EQ(model.format(), "meta");
  EXPECT_EQ(model.layers(), 5);
  EXPECT_EQ(model.layer(4).norm.size(), 64U);
  EXPECT_EQ(Checkpoint::open(test_data() / "pth/demo_rand_params.pth").layers(), 5);
  for (const char* legacy : {"pth/burn/simple_legacy.pt", "pth/gopickle/tensor_float32_proto1.pt",
                             "pth/gopickle/tensor_float32_proto4.pt"}) {
    EXPECT_EQ(Checkpoint::open(test_data() / legacy).layers(), 0);
  }
}

}  // namespace
}  // namespace swiglu::testing
