// The same feed-forward under other names and in other shapes: gate and up in one tensor, experts apart and stacked,
// 8-bit floats with row scales. What is read must be the numbers that were put in, element by element.
#include <array>
#include <cstring>
#include <functional>
#include <optional>

#include "support/huggingface.h"

namespace swiglu::testing {
namespace {

class Variants : public HuggingFaceFolder {
 protected:
  // Element (row, col) of a matrix of expert `e`; every one differs.
  static float value(int role, std::int64_t e, std::int64_t row, std::int64_t col) {
    return static_cast<float>(((role * 16 + e) * 32 + row) * 32 + col) / 16;
  }
  static std::string rows(int role, std::int64_t e, std::int64_t rows, std::int64_t cols) {
    std::string bytes;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const float x = value(role, e, r, c);
        bytes.append(reinterpret_cast<const char*>(&x), sizeof x);
      }
    }
    return bytes;
  }
  static std::string gate(std::int64_t e) { return rows(0, e, kHidden, kDim); }
  static std::string up(std::int64_t e) { return rows(1, e, kHidden, kDim); }
  static std::string down(std::int64_t e) { return rows(2, e, kDim, kHidden); }
  static std::string norm() { return rows(3, 0, 1, kDim); }

  static void expect_matrix(const TensorSource& source, int role, std::int64_t e) {
    ASSERT_EQ(source.dtype(), DType::f32);
    ASSERT_EQ(source.rows(), role == 2 ? kDim : kHidden);
    ASSERT_EQ(source.cols(), role == 2 ? kHidden : kDim);
    std::vector<float> block(static_cast<std::size_t>(source.rows() * source.cols()));
    for (std::int64_t r = 0; r < source.rows(); ++r) {
      for (std::int64_t c = 0; c < source.cols(); ++c) {  // every part that begins here
        source.read(r, source.rows() - r, c, source.cols() - c, block.data());
        std::size_t i = 0;
        for (std::int64_t y = r; y < source.rows(); ++y) {
          for (std::int64_t x = c; x < source.cols(); ++x) ASSERT_EQ(block[i++], value(role, e, y, x)) << source.name();
        }
      }
    }
  }
  static void expect_layer(const LayerSource& layer, std::int64_t e) {
    expect_matrix(*layer.gate, 0, e);
    expect_matrix(*layer.up, 1, e);
    expect_matrix(*layer.down, 2, e);
    for (std::int64_t k = 0; k < kDim; ++k) EXPECT_EQ(layer.norm[static_cast<std::size_t>(k)], value(3, 0, 0, k));
  }
  static SafetensorsBuilder with_norm(const std::string& layer = "model.layers.0.") {
    return SafetensorsBuilder().add(layer + "post_attention_layernorm.weight", "F32", {kDim}, norm());
  }
};

TEST_F(Variants, gate_and_up_in_one_tensor_are_gate_first) {  // I18
  for (const char* type : {"phi3", "glm"}) {
    write_config({{"model_type", fmt::format("\"{}\"", type)}, {"num_hidden_layers", "1"}});
    const auto both = [&](const std::vector<std::int64_t>& shape) {
      auto file = with_norm();
      file.add("model.layers.0.mlp.gate_up_proj.weight", "F32", shape, gate(0) + up(0));
      return file.add("model.layers.0.mlp.down_proj.weight", "F32", {kDim, kHidden}, down(0)).bytes();
    };
    write("model.safetensors", both({2 * kHidden, kDim}));
    const Checkpoint model = open();
    EXPECT_EQ(model.config().hidden, kHidden);
    ASSERT_EQ(model.tensors().size(), 3U);
    EXPECT_EQ(model.tensors()[0].role, "gate and up");
    expect_layer(model.layer(0), 0);
    write("model.safetensors", both({kDim, 2 * kHidden}));
    refused(ErrorCode::shape, {"gate_up_proj", "[12, 4]", "[4, 12]"});
  }
}

TEST_F(Variants, a_matrix_that_is_there_twice_is_refused) {
  auto file = with_norm();
  file.add("model.layers.0.mlp.gate_up_proj.weight", "F32", {2 * kHidden, kDim}, gate(0) + up(0));
  file.add("model.layers.0.mlp.gate_proj.weight", "F32", {kHidden, kDim}, gate(0));
  bare_refused(file.bytes(), ErrorCode::format, {"gate_up_proj", "gate_proj", "layer 0"});
}

TEST_F(Variants, a_matrix_that_two_tensors_could_be_is_refused) {
  const auto stacked = [] {
    return SafetensorsBuilder()
        .add("blk.0.ffn_norm.weight", "F32", {kDim}, norm())
        .add("blk.0.ffn_up_exps.weight", "F32", {1, kHidden, kDim}, up(0))
        .add("blk.0.ffn_down_exps.weight", "F32", {1, kDim, kHidden}, down(0));
  };
  // Up could be a matrix of its own or the half of another.
  bare_refused(stacked().add("blk.0.ffn_gate_up_exps.weight", "F32", {1, 2 * kHidden, kDim}, gate(0) + up(1)).bytes(),
               ErrorCode::format, {"ffn_gate_up_exps", "ffn_up_exps", "layer 0"});
  // Experts apart and stacked: complete each, and different.
  auto twice = stacked().add("blk.0.ffn_gate_exps.weight", "F32", {1, kHidden, kDim}, gate(0));
  twice.add("blk.0.ffn_gate.0.weight", "F32", {kHidden, kDim}, gate(1));
  twice.add("blk.0.ffn_up.0.weight", "F32", {kHidden, kDim}, up(1));
  twice.add("blk.0.ffn_down.0.weight", "F32", {kDim, kHidden}, down(1));
  bare_refused(twice.bytes(), ErrorCode::format, {"ffn_gate.0.weight", "ffn_gate_exps", "an expert", "layer 0"});
}

TEST_F(Variants, a_scale_that_would_be_ignored_is_refused) {
  const std::string layer = "model.layers.0.mlp.";
  bare_refused(SafetensorsBuilder()
                   .add_layer(0, kDim, kHidden)
                   .add(layer + "gate_up_proj.weight_scale", "F32", {2 * kHidden}, 4)
                   .bytes(),
               ErrorCode::format, {"gate_up_proj.weight_scale", "gate_proj.weight", "layer 0"});
  bare_refused(with_norm()
                   .add(layer + "gate_up_proj.weight", "F32", {2 * kHidden, kDim}, gate(0) + up(0))
                   .add(layer + "down_proj.weight", "F32", {kDim, kHidden}, down(0))
                   .add(layer + "up_proj.weight_scale", "F32", {kHidden}, 4)
                   .bytes(),
               ErrorCode::format, {"gate_up_proj.weight", "up_proj.weight_scale", "layer 0"});
  bare_refused(with_norm()
                   .add(layer + "experts.0.gate_proj.weight", "F32", {kHidden, kDim}, gate(0))
                   .add(layer + "experts.0.up_proj.weight", "F32", {kHidden, kDim}, up(0))
                   .add(layer + "experts.0.down_proj.weight", "F32", {kDim, kHidden}, down(0))
                   .add(layer + "down_proj.weight_scale", "F32", {kDim}, 4)
                   .bytes(),
               ErrorCode::unsupported, {"mlp.down_proj.weight_scale", "beside experts"});
}

TEST_F(Variants, experts_are_read_by_number) {
  struct Kind {
    const char* type;
    const char* count;
    const char* width;
    const char* group;
    std::array<const char*, 3> names;
    const char* router;
  };
  for (const Kind& kind : {Kind{"mixtral",
                                "num_local_experts",
                                "intermediate_size",
                                "block_sparse_moe",
                                {"w1", "w3", "w2"},
                                "block_sparse_moe.gate.weight"},
                           Kind{"qwen3_moe",
                                "num_experts",
                                "moe_intermediate_size",
                                "mlp",
                                {"gate_proj", "up_proj", "down_proj"},
                                "mlp.gate.weight"}}) {
    SCOPED_TRACE(kind.type);
    const auto config = [&](const char* count) {
      std::map<std::string, std::string> keys = {{"model_type", fmt::format("\"{}\"", kind.type)},
                                                 {"num_hidden_layers", "1"},
                                                 {kind.count, count},
                                                 {"intermediate_size", "99"}};
      keys[kind.width] = "6";
      write_config(keys);
    };
    const auto model = [&](std::int64_t experts, std::int64_t without = -1) {
      auto file = with_norm();
      for (std::int64_t e = 0; e < experts; ++e) {
        if (e == without) continue;
        const auto name = [&](int i) {
          return fmt::format("model.layers.0.{}.experts.{}.{}.weight", kind.group, e,
                             kind.names[static_cast<std::size_t>(i)]);
        };
        file.add(name(0), "F32", {kHidden, kDim}, gate(e)).add(name(1), "F32", {kHidden, kDim}, up(e));
        file.add(name(2), "F32", {kDim, kHidden}, down(e));
      }
      return file.add(std::string("model.layers.0.") + kind.router, "F32", {experts, kDim}, 4).bytes();
    };
    config("12");
    write("model.safetensors", model(12));
    const Checkpoint found = open();
    EXPECT_EQ(found.experts(), 12);
    EXPECT_TRUE(has_note(found, "a mixture of experts"));
    for (std::int64_t e = 0; e < 12; ++e) expect_layer(found.layer(0, e), e);
    expect_error(ErrorCode::usage, {"expert", "0 to 11", "found none"}, [&] { (void)found.layer(0); });
    expect_error(ErrorCode::usage, {"expert", "0 to 11", "found 12"}, [&] { (void)found.layer(0, 12); });
    expect_error(ErrorCode::usage, {"expert", "found -1"}, [&] { (void)found.layer(0, -1); });
    write("model.safetensors", model(12, 5));
    refused(ErrorCode::shape, {"is 12", "have 11"});
    config("11");
    refused(ErrorCode::not_found, {"layer 0", "gate", "expert 5 is missing"});
  }
}

TEST_F(Variants, stacked_experts_are_cut_apart) {
  auto file = with_norm("blk.0.");
  file = SafetensorsBuilder();
  file.add("blk.0.ffn_norm.weight", "F32", {kDim}, norm());
  std::string gates, ups, downs;
  for (std::int64_t e = 0; e < 3; ++e) {
    gates += gate(e);
    ups += up(e);
    downs += down(e);
  }
  file.add("blk.0.ffn_gate_exps.weight", "F32", {3, kHidden, kDim}, gates);
  file.add("blk.0.ffn_up_exps.weight", "F32", {3, kHidden, kDim}, ups);
  file.add("blk.0.ffn_down_exps.weight", "F32", {3, kDim, kHidden}, downs);
  write("bare.safetensors", file.bytes());
  const Checkpoint model = Checkpoint::open(folder_ / "bare.safetensors");
  EXPECT_EQ(model.experts(), 3);
  EXPECT_EQ(model.config().hidden, kHidden);
  for (std::int64_t e = 0; e < 3; ++e) expect_layer(model.layer(0, e), e);
}

TEST_F(Variants, parts_of_a_mixture_without_its_experts_are_refused) {
  for (const char* name :
       {"model.layers.0.block_sparse_moe.gate.weight", "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.shared_expert.up_proj.weight", "model.layers.0.mlp.experts.3.up_proj.weight",
        "blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_exps.weight"}) {
    bare_refused(SafetensorsBuilder().add_layer(0, kDim, kHidden).add(name, "F32", {1}, 4).bytes(),
                 ErrorCode::unsupported, {name, "expert"});
  }
}

TEST_F(Variants, no_mixture_has_more_experts_than_any_model) {
  // A stack of matrices without elements takes no bytes, whatever number it claims.
  auto file = SafetensorsBuilder().add("blk.0.ffn_norm.weight", "F32", {kDim}, 4);
  for (const char* name : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
    file.add(fmt::format("blk.0.{}.weight", name), "F32", {std::int64_t{1} << 40, 0, kDim}, "");
  }
  bare_refused(file.bytes(), ErrorCode::shape, {"hidden", "positive"});
  write("bare.safetensors", file.bytes());
  OpenOptions collect;
  collect.collect_problems = true;
  expect_error(ErrorCode::unsupported, {"at most", "experts", "1099511627776"},
               [&] { (void)Checkpoint::open(folder_ / "bare.safetensors", collect); });
}

TEST_F(Variants, eight_bit_floats_are_their_values_times_the_rows_scales) {
  write_config({{"num_hidden_layers", "1"}, {"quantization_config", R"({"quant_method": "fbgemm_fp8"})"}});
  const auto codes = [](std::int64_t count, int seed) {
    std::string bytes;
    for (std::int64_t i = 0; i < count; ++i) bytes += static_cast<char>((i * 11 + seed) % 0x7f);  // finite, >= 0
    return bytes;
  };
  // e4m3fn and e5m2 as their definitions say, for codes without sign, infinity and NaN.
  const auto e4m3 = [](int c) { return c < 8 ? std::ldexp(c, -9) : std::ldexp(8 + c % 8, c / 8 - 10); };
  const auto e5m2 = [](int c) { return c < 4 ? std::ldexp(c, -16) : std::ldexp(4 + c % 4, c / 4 - 17); };
  for (const char* type : {"F8_E4M3", "F8_E5M2"}) {
    const bool four = std::string_view(type) == "F8_E4M3";
    const auto scales = [](std::int64_t rows) {
      std::string bytes;
      for (std::int64_t r = 0; r < rows; ++r) {
        const float s = 0.1F * static_cast<float>(r + 1);
        bytes.append(reinterpret_cast<const char*>(&s), sizeof s);
      }
      return bytes;
    };
    const auto model = [&](bool with_scales, std::vector<std::int64_t> shape = {kHidden, 1}) {
      auto file = with_norm();
      const std::string at = "model.layers.0.mlp.";
      file.add(at + "gate_proj.weight", type, {kHidden, kDim}, codes(kHidden * kDim, 1));
      file.add(at + "up_proj.weight", type, {kHidden, kDim}, codes(kHidden * kDim, 50));
      file.add(at + "down_proj.weight", type, {kDim, kHidden}, codes(kHidden * kDim, 90));
      if (with_scales) {
        file.add(at + "gate_proj.weight_scale", "F32", shape, scales(kHidden));
        file.add(at + "up_proj.weight_scale", "F32", {kHidden}, scales(kHidden));
        file.add(at + "down_proj.weight_scale", "F32", {kDim, 1}, scales(kDim));
        file.add(at + "down_proj.input_scale_ub", "F32", {1}, 4);
      }
      return file.bytes();
    };
    write("model.safetensors", model(true));
    const Checkpoint opened = open();
    EXPECT_TRUE(has_note(opened, "8-bit"));
    const LayerSource layer = opened.layer(0);
    const auto check = [&](const TensorSource& source, int seed) {
      std::vector<float> values(static_cast<std::size_t>(source.rows() * source.cols()));
      source.read(0, source.rows(), 0, source.cols(), values.data());
      for (std::int64_t i = 0; i < std::ssize(values); ++i) {
        const int code = static_cast<int>((i * 11 + seed) % 0x7f);
        if (!four && code >= 0x7c) continue;  // infinity and NaN
        const double exact = four ? e4m3(code) : e5m2(code);
        const float scale = 0.1F * static_cast<float>(i / source.cols() + 1);
        EXPECT_EQ(values[static_cast<std::size_t>(i)], static_cast<float>(exact * static_cast<double>(scale))) << code;
      }
    };
    check(*layer.gate, 1);
    check(*layer.up, 50);
    check(*layer.down, 90);
    write("model.safetensors", model(false));  // S60
    refused(ErrorCode::unsupported, {"gate_proj.weight", "a scale for each row", "none"});
    write("model.safetensors", model(true, {1, kHidden}));
    refused(ErrorCode::shape, {"gate_proj.weight", "[6, 1]", "[1, 6]"});
  }
  write("model.safetensors", SafetensorsBuilder()
                                 .add_layer(0, kDim, kHidden)
                                 .add("model.layers.0.mlp.gate_proj.weight_scale", "F32", {kHidden, 1}, 4)
                                 .bytes());
  refused(ErrorCode::unsupported, {"gate_proj.weight", "8-bit floats", "F32"});
}

TEST_F(Variants, other_quantisations_are_refused_by_name) {  // I17
  for (const char* method : {"fp8", "gptq", "awq", "bitsandbytes", "compressed-tensors"}) {
    config_refused({{"quantization_config", fmt::format(R"({{"quant_method": "{}"}})", method)}},
                   ErrorCode::unsupported, {"quantization_config", method, "fbgemm_fp8"});
  }
  config_refused({{"quantization_config", "{}"}}, ErrorCode::unsupported, {"quantization_config", "nothing"});
}

}  // namespace
}  // namespace swiglu::testing
