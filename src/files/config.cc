// See config.h. Keys that change the sublayer are looked for whatever the family says, since a config
// may be edited and families grow options.
#include "files/config.h"

#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/json.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kMaxBytes = 16'000'000;
constexpr std::uint64_t kMaxNumber = std::numeric_limits<std::int32_t>::max();

struct Family {
  std::string_view name;
  std::string_view refusal;              // empty: computes exactly Llama's feed-forward, norm and residual
  std::string_view experts_hidden = {};  // a mixture whose experts do: the key of their width
};
constexpr std::string_view kExperts = "its feed-forward is a mixture of experts of a kind that is not known";
constexpr std::string_view kGemma = "its feed-forward uses GELU and its norm multiplies by 1 + w";
constexpr std::string_view kPostNorm = "it normalises the feed-forward's output";
constexpr std::string_view kGated = "its cross-attention layers gate the feed-forward";
constexpr std::string_view kAdapters = "its feed-forward carries adapters for images and speech";
constexpr std::string_view kLayerNorm = "it uses LayerNorm instead of RMSNorm";
constexpr std::string_view kScaledResidual = "it scales the residual branch (scale_depth)";
constexpr std::string_view kRelu = "its activation is a squared ReLU";
constexpr Family kFamilies[] = {
    {"llama", ""},
    {"mistral", ""},
    {"qwen2", ""},
    {"qwen3", ""},
    {"smollm3", ""},
    {"internlm2", ""},
    {"phi3", ""},  // gate and up in one tensor, as in glm
    {"glm", ""},
    {"granite", ""},  // Llama's sublayer when residual_multiplier is 1, which is checked
    {"gemma", kGemma},
    {"gemma2", kGemma},
    {"gemma3", kGemma},
    {"gemma3_text", kGemma},
    {"gemma3n", kGemma},
    {"olmo", kLayerNorm},
    {"olmo2", kPostNorm},
    {"olmo3", kPostNorm},
    {"glm4", kPostNorm},
    {"mllama", kGated},
    {"mllama_text_model", kGated},
    {"phi4mm", kAdapters},
    {"stablelm", kLayerNorm},
    {"cohere", kLayerNorm},
    {"cohere2", kLayerNorm},
    {"starcoder2", kLayerNorm},
    {"minicpm", kScaledResidual},
    {"minicpm3", kScaledResidual},
    {"arcee", kRelu},
    {"bitnet", kRelu},
    {"nemotron", kRelu},
    {"mixtral", "", "intermediate_size"},
    {"qwen2_moe", "", "moe_intermediate_size"},
    {"qwen3_moe", "", "moe_intermediate_size"},
    {"deepseek", kExperts},
    {"deepseek_v2", kExperts},
    {"deepseek_v3", kExperts},
    {"llama4", kExperts},
    {"llama4_text", kExperts},
    {"granitemoe", kExperts},
    {"phimoe", kExperts},
    {"olmoe", kExperts},
    {"dbrx", kExperts},
    {"gpt_oss", kExperts},
    {"glm4_moe", kExperts},
    {"kimi_k2", kExperts},
};

const Family* find_family(std::string_view name) {
  for (const Family& family : kFamilies) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

std::string supported_families() {
  std::string names;
  for (const Family& family : kFamilies) {
    if (family.refusal.empty()) names += (names.empty() ? "" : ", ") + std::string(family.name);
  }
  return names;
}

bool is_number(const Json& value) { return value.kind == Json::Kind::integer || value.kind == Json::Kind::real; }

class ConfigReader {
 public:
  ConfigReader(const File& file, const OpenOptions& options) : where_(escaped(file.name())), options_(options) {
    JsonRules rules;
    rules.python_constants = true;
    root_ = read_json(file, rules, kMaxBytes);
    if (root_.kind != Json::Kind::object) fail(ErrorCode::format, "expected an object, found " + root_.describe());
  }

  ModelConfig read() {
    // Multimodal models keep the text model's numbers one level down.
    model_ = &root_;
    const Json* text = root_.find("text_config");
    if (text != nullptr && text->kind == Json::Kind::object && root_.find("hidden_size") == nullptr) {
      refuse_family(type_of(root_));
      model_ = text;
      out_.notes.push_back(where_ + ": the numbers are those of its text_config");
    }
    read_family();
    read_quantisation(root_);
    if (model_ != &root_) read_quantisation(*model_);
    read_experts();
    refuse_variants();
    out_.ffn.dim = positive("hidden_size");
    out_.hidden_key = mixture_ ? find_family(out_.family)->experts_hidden : "intermediate_size";
    out_.ffn.hidden = positive(out_.hidden_key);
    out_.layers = positive("num_hidden_layers");
    read_eps();
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& reason) const { throw Error(code, where_ + ": " + reason); }

  static std::string describe(const Json* value) { return value == nullptr ? "nothing" : value->describe(); }

  std::string type_of(const Json& json) const {
    const Json* type = json.find("model_type");
    if (type == nullptr) return "";
    if (type->kind != Json::Kind::string)
      fail(ErrorCode::format, "model_type: expected a string, found " + type->describe());
    return *type->string;
  }

  void refuse_family(const std::string& name) const {
    const Family* family = find_family(name);
    if (family == nullptr || family->refusal.empty()) return;
    fail(ErrorCode::unsupported,
         fmt::format("model_type \"{}\" is not supported: {}, so it is not Llama's sublayer", name, family->refusal));
  }

  void read_family() {
    out_.family = type_of(*model_);
    if (out_.family.empty()) {
      const Json* architectures = model_->find("architectures");
      const bool some = architectures != nullptr && !architectures->array->empty();
      if (some && *architectures->array->front().string != "LlamaForCausalLM") {
        fail(ErrorCode::unsupported, fmt::format("model_type is missing and the architecture is {}: expected one of {}",
                                                 architectures->array->front().describe(), supported_families()));
      }
      if (some) out_.family = "llama";
      if (!some) out_.notes.push_back(where_ + ": no model_type: taken for Llama's feed-forward");
      return;
    }
    refuse_family(out_.family);
    if (find_family(out_.family) == nullptr) {
      fail(ErrorCode::unsupported,
           fmt::format(
               "model_type \"{}\" is not known to compute Llama's feed-forward, norm and residual; known: {}. If "
               "it does, write \"llama\" there",
               escaped(out_.family), supported_families()));
    }
  }

  // Row-wise 8-bit floats are values times factors; what other methods store under the same names is not weights.
  void read_quantisation(const Json& level) {
    const Json* quantised = level.find("quantization_config");
    if (quantised == nullptr || quantised->kind == Json::Kind::null) return;
    const Json* method = quantised->find("quant_method");
    if (method == nullptr || *method->string != "fbgemm_fp8") {
      fail(ErrorCode::unsupported,
           fmt::format("quantization_config: expected the method \"fbgemm_fp8\", found {}: other "
                       "quantised weights are not supported",
                       describe(method)));
    }
    out_.notes.push_back(where_ +
                         ": 8-bit weights: computed as the values they stand for, with activations that are "
                         "not rounded to 8 bits");
  }

  void read_experts() {
    const Family* family = find_family(out_.family);
    mixture_ = family != nullptr && !family->experts_hidden.empty();
    for (const auto* key : {"num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"}) {
      const Json* experts = model_->find(key);
      if (experts == nullptr || experts->kind == Json::Kind::null) continue;
      if (!mixture_ && experts->kind == Json::Kind::integer && experts->magnitude <= 1) continue;
      if (!mixture_) {
        fail(ErrorCode::unsupported,
             fmt::format("{}: a mixture of experts of a kind that is not known, found {}", key, experts->describe()));
      }
      out_.experts = positive(key);
      out_.experts_key = key;
    }
    if (mixture_ && out_.experts == 0)
      fail(ErrorCode::format, "num_experts: expected a number of experts, found nothing");
    if (mixture_) {
      out_.notes.push_back(where_ +
                           ": a mixture of experts: one expert's feed-forward is computed, not the router's sum");
    }
  }

  void refuse_variants() const {
    for (const auto* key : {"hidden_act", "hidden_activation"}) {
      const Json* activation = model_->find(key);
      if (activation == nullptr || *activation->string == "silu" || *activation->string == "swish") continue;
      if (activation->kind == Json::Kind::null && std::string_view(key) == "hidden_activation") continue;
      fail(ErrorCode::unsupported, fmt::format("{}: expected \"silu\", found {}", key, activation->describe()));
    }
    for (const auto* key : {"mlp_bias", "use_parallel_residual"}) {
      const Json* flag = model_->find(key);
      if (flag == nullptr || flag->kind == Json::Kind::null) continue;
      if (flag->kind != Json::Kind::boolean) {
        fail(ErrorCode::format, fmt::format("{}: expected true or false, found {}", key, flag->describe()));
      }
      if (flag->boolean) {
        fail(ErrorCode::unsupported, fmt::format("{} is true: not Llama's feed-forward", key));
      }
    }
    for (const auto* key : {"residual_multiplier", "scale_depth"}) {
      const Json* scale = model_->find(key);
      if (scale == nullptr || scale->kind == Json::Kind::null) continue;
      if (std::string_view(key) == "residual_multiplier" && is_number(*scale) && scale->real == 1) continue;
      fail(ErrorCode::unsupported,
           fmt::format("{}: the residual branch is scaled, which Llama's is not: found {}", key, scale->describe()));
    }
  }

  std::int64_t positive(std::string_view key) const {
    const Json* value = model_->find(key);
    if (value == nullptr || value->kind != Json::Kind::integer || value->negative || value->magnitude == 0 ||
        value->magnitude > kMaxNumber) {
      fail(ErrorCode::format,
           fmt::format("{}: expected an integer from 1 to {}, found {}", key, kMaxNumber, describe(value)));
    }
    return static_cast<std::int64_t>(value->magnitude);
  }

  // No default: Llama's code in transformers has 1e-6, Meta's 1e-5, and a wrong one is never noticed.
  void read_eps() {
    const Json* value = model_->find("rms_norm_eps");
    if (options_.eps) {
      out_.ffn.eps = *options_.eps;
      if (value != nullptr && !(is_number(*value) && value->real == *options_.eps)) {
        out_.notes.push_back(
            fmt::format("{}: eps {} instead of rms_norm_eps, {}", where_, *options_.eps, value->describe()));
      }
      return;
    }
    if (value == nullptr || !is_number(*value) || !std::isfinite(value->real) ||
        !(static_cast<float>(value->real) > 0)) {
      fail(ErrorCode::format,
           fmt::format("rms_norm_eps: expected a positive number, found {} (--eps overrides)", describe(value)));
    }
    out_.ffn.eps = value->real;
  }

  std::string where_;
  const OpenOptions& options_;
  Json root_;
  const Json* model_ = nullptr;
  bool mixture_ = false;
  ModelConfig out_;
};

}  // namespace

ModelConfig read_config(const File& file, const OpenOptions& options) { return ConfigReader(file, options).read(); }

}  // namespace swiglu::files
