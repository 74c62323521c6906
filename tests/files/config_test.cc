// config.json: families, keys that change the sublayer, and what counts as a number.
#include "support/huggingface.h"

namespace swiglu {
namespace {

using testing::config_text;
using testing::has_note;
using testing::two_layers;

class Config : public testing::HuggingFaceFolder {};

TEST_F(Config, refuses_what_changes_the_sublayer) {
  config_refused({{"hidden_act", "\"gelu_pytorch_tanh\""}}, ErrorCode::unsupported,
                 {"hidden_act", "gelu_pytorch_tanh"});  // I13
  config_refused({{"hidden_act", "\"relu\""}}, ErrorCode::unsupported, {"hidden_act", "relu"});
  config_refused({{"hidden_act", "null"}}, ErrorCode::unsupported, {"hidden_act", "null"});
  config_refused({{"mlp_bias", "true"}}, ErrorCode::unsupported, {"mlp_bias"});  // I14
  config_refused({{"mlp_bias", "1"}}, ErrorCode::format, {"mlp_bias", "the number 1"});
  config_refused({{"quantization_config", R"({"quant_method": "gptq", "bits": 4})"}}, ErrorCode::unsupported,
                 {"quantization_config", "gptq"});  // I17
  config_refused({{"num_local_experts", "8"}}, ErrorCode::unsupported, {"num_local_experts", "8"});
  config_refused({{"n_routed_experts", "64"}}, ErrorCode::unsupported, {"n_routed_experts", "64"});
  config_refused({{"residual_multiplier", "0.22"}}, ErrorCode::unsupported, {"residual_multiplier", "0.22"});
  config_refused({{"scale_depth", "1.4"}}, ErrorCode::unsupported, {"scale_depth", "1.4"});
  write_config({{"mlp_bias", "false"}, {"quantization_config", "null"}, {"hidden_act", "\"swish\""}});
  EXPECT_EQ(open().layers(), 2);
  write_config({{"hidden_act", ""}, {"num_local_experts", "null"}, {"pretraining_tp", "2"}, {"init", "NaN"}});
  EXPECT_EQ(open().layers(), 2);
}

TEST_F(Config, refuses_eps_that_is_no_positive_number) {  // I15
  for (const char* eps : {"", "0", "0.0", "-1e-05", "\"1e-05\"", "NaN", "Infinity", "null", "1e-300", "true"}) {
    config_refused({{"rms_norm_eps", eps}}, ErrorCode::format, {"rms_norm_eps", "--eps"});
  }
  OpenOptions options;
  options.eps = 1e-5;
  EXPECT_EQ(open(options).config().eps, 1e-5);
  EXPECT_TRUE(has_note(open(options), "eps 1e-05 instead of rms_norm_eps, true"));
  options.eps = 0;
  refused(ErrorCode::usage, {"eps", "0"}, options);
}

TEST_F(Config, reads_a_nested_text_model_of_a_known_family) {  // I16
  const std::string text = config_text({{"model_type", "\"mistral\""}});
  write("config.json", R"({"model_type": "mistral3", "vision_config": {}, "text_config": )" + text + "}");
  write("model.safetensors", two_layers("language_model.model."));
  EXPECT_EQ(open().layers(), 2);
  EXPECT_EQ(open().family(), "mistral");
  EXPECT_TRUE(has_note(open(), "text_config"));
  write("config.json", R"({"model_type": "mllama", "text_config": )" + text + "}");
  refused(ErrorCode::unsupported, {"config.json", "mllama", "gate"});
  write("config.json",
        R"({"model_type": "x", "text_config": )" + config_text({{"model_type", "\"gemma3_text\""}}) + "}");
  refused(ErrorCode::unsupported, {"config.json", "gemma3_text"});
  write("config.json",
        R"({"model_type": "x", "quantization_config": {"quant_method": "awq"}, "text_config": )" + text + "}");
  refused(ErrorCode::unsupported, {"quantization_config", "awq"});
}

TEST_F(Config, opens_families_that_compute_the_same_and_refuses_others_by_name) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "smollm3", "internlm2"}) {
    write_config({{"model_type", fmt::format("\"{}\"", type)}});
    EXPECT_EQ(open().family(), type);
  }
  write_config({{"model_type", "\"granite\""}, {"residual_multiplier", "1.0"}});
  EXPECT_EQ(open().family(), "granite");
  for (const auto& [type, reason] :
       std::initializer_list<std::pair<const char*, const char*>>{{"gemma", "GELU"},
                                                                  {"gemma2", "GELU"},
                                                                  {"gemma3", "GELU"},
                                                                  {"olmo", "LayerNorm"},
                                                                  {"olmo2", "output"},
                                                                  {"minicpm", "scale_depth"},
                                                                  {"deepseek_v2", "experts"},
                                                                  {"deepseek_v3", "experts"},
                                                                  {"phi4mm", "adapters"},
                                                                  {"stablelm", "LayerNorm"},
                                                                  {"mllama", "cross-attention"},
                                                                  {"a\\nb", "known: llama, mistral"},
                                                                  {"falcon", "write \"llama\""}}) {
    config_refused({{"model_type", fmt::format("\"{}\"", type)}}, ErrorCode::unsupported,
                   {std::string_view(type) == "a\\nb" ? "a\\nb" : type, reason});
  }
  config_refused({{"model_type", "\"mixtral\""}}, ErrorCode::format, {"num_experts", "nothing"});
  config_refused({{"model_type", "\"mixtral\""}, {"num_local_experts", "8"}}, ErrorCode::shape,
                 {"num_local_experts is 8", "have 0"});
  config_refused({{"model_type", "\"qwen3_moe\""}, {"num_experts", "8"}}, ErrorCode::format,
                 {"moe_intermediate_size", "nothing"});
  config_refused({{"model_type", "7"}}, ErrorCode::format, {"model_type", "the number 7"});
  write_config({{"model_type", ""}});
  EXPECT_EQ(open().family(), "llama");
  write_config({{"model_type", ""}, {"architectures", ""}});
  EXPECT_EQ(open().family(), "");
  EXPECT_TRUE(has_note(open(), "no model_type"));
  config_refused({{"model_type", ""}, {"architectures", "[\"PhiForCausalLM\"]"}}, ErrorCode::unsupported,
                 {"PhiForCausalLM"});
}

TEST_F(Config, refuses_config_files_that_are_too_large_too_deep_or_not_text) {  // I20
  write("config.json", "{\"a\":" + std::string(100'000, '[') + "}");
  refused(ErrorCode::format, {"config.json", "deeper than 64"});
  write("config.json", "{\"a\":\"\xff\xfe\"}");
  refused(ErrorCode::format, {"config.json", "bad JSON"});
  write("config.json", "[1]");
  refused(ErrorCode::format, {"config.json", "an array of 1"});
  std::filesystem::resize_file(folder_ / "config.json", 1'000'000'000);
  refused(ErrorCode::format, {"config.json", "1000000000"});
}

TEST_F(Config, takes_sizes_only_as_positive_integers) {  // I21, I22
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers"}) {
    for (const char* value : {"11008.0", "\"11008\"", "1e4", "0", "-4", "1099511627776", "18446744073709551620", "null",
                              "true", "[4]", "NaN", ""}) {
      config_refused({{key, value}}, ErrorCode::format, {key, "expected an integer from 1"});
    }
  }
}

}  // namespace
}  // namespace swiglu
