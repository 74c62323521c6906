// See gguf_config.h. Architectures that are not known to compute Llama's sublayer are refused: a GGUF file does not say
// what its program does with the tensors. Keys that change it are looked for whatever the architecture.
#include "files/gguf_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kMaxName = 64;
constexpr std::uint64_t kMaxWidths = std::uint64_t{1} << 16;
constexpr std::int64_t kMaxNumber = std::numeric_limits<std::int32_t>::max();

enum class Experts : std::uint8_t { none, allowed, always };

struct Architecture {
  std::string_view name;
  std::string_view refusal;  // empty: computes exactly Llama's feed-forward, norm and residual
  Experts experts = Experts::none;
  bool up_holds_both = false;
};
constexpr std::string_view kGelu = "its feed-forward uses GELU";
constexpr std::string_view kPostNorm = "it normalises the feed-forward's output";
constexpr std::string_view kInnerNorm = "it normalises inside the feed-forward";
constexpr std::string_view kLayerNorm = "it uses LayerNorm instead of RMSNorm";
constexpr std::string_view kScaledResidual = "it scales the residual branch";
constexpr std::string_view kRelu = "its activation is a squared ReLU";
constexpr std::string_view kMixture = "its feed-forward is a mixture of experts of a kind that is not known";
constexpr Architecture kArchitectures[] = {
    {"llama", "", Experts::allowed},
    {"mistral3", ""},
    {"qwen2", ""},
    {"qwen3", ""},
    {"smollm3", ""},
    {"internlm2", ""},
    {"granite", ""},  // when granite.residual_scale is 1, which is checked
    {"phi3", "", Experts::none, true},
    {"qwen2moe", "", Experts::always},
    {"qwen3moe", "", Experts::always},
    {"gemma", kGelu},
    {"gemma2", kGelu},
    {"gemma3", kGelu},
    {"gemma3n", kGelu},
    {"gemma-embedding", kGelu},
    {"olmo", kLayerNorm},
    {"olmo2", kPostNorm},
    {"glm4", kPostNorm},
    {"stablelm", kLayerNorm},
    {"command-r", kLayerNorm},
    {"cohere2", kLayerNorm},
    {"starcoder2", kLayerNorm},
    {"phi2", kLayerNorm},
    {"minicpm", kScaledResidual},
    {"minicpm3", kScaledResidual},
    {"bitnet", kInnerNorm},
    {"arcee", kRelu},
    {"nemotron", kRelu},
    {"deepseek", kMixture},
    {"deepseek2", kMixture},
    {"llama4", kMixture},
    {"granitemoe", kMixture},
    {"phimoe", kMixture},
    {"olmoe", kMixture},
    {"dbrx", kMixture},
    {"gpt-oss", kMixture},
    {"glm4moe", kMixture},
    {"clip", "it is a part of a multimodal model without a language model"},
};

std::string supported() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    if (!architecture.refusal.empty()) continue;
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return names;
}

class Reader {
 public:
  Reader(const GgufFile& file, const OpenOptions& options)
      : file_(file), options_(options), where_(escaped(file.file->name())) {}

  GgufConfig read() {
    read_architecture();
    refuse_variants();
    const StatedNumber layers = positive("block_count");
    out_.stated.where = where_;
    out_.stated.dim = positive("embedding_length");
    out_.stated.layers = layers;
    out_.stated.up_holds_both = architecture_->up_holds_both;
    read_experts();
    read_hidden(layers.value);
    read_eps();
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(ErrorCode code, std::string_view key, const std::string& reason) const {
    throw Error(code, fmt::format("{}: {}: {}", where_, escaped(key), reason));
  }
  static std::string describe(const GgufPair* pair) { return pair == nullptr ? "nothing" : pair->describe(); }

  /// A key of the architecture: "llama." and so on are put before `key`.
  const GgufPair* own(std::string_view key) const { return file_.find(full(key)); }
  std::string full(std::string_view key) const { return fmt::format("{}.{}", out_.family, key); }

  void read_architecture() {
    constexpr std::string_view kKey = "general.architecture";
    if (const GgufPair* type = file_.find("general.type"); type != nullptr && type->type == GgufValue::string) {
      const std::string text = file_.text(*type, kMaxName);
      if (text != "model") {
        fail(ErrorCode::unsupported, "general.type", fmt::format("expected \"model\", found \"{}\"", escaped(text)));
      }
    }
    const GgufPair* pair = file_.find(kKey);
    if (pair == nullptr || pair->type != GgufValue::string) {
      fail(ErrorCode::format, kKey, "expected a string, found " + describe(pair));
    }
    out_.family = file_.text(*pair, kMaxName);
    const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                     [&](const Architecture& a) { return a.name == out_.family; });
    if (found == std::end(kArchitectures)) {
      fail(ErrorCode::unsupported, kKey,
           fmt::format("\"{}\" is not known to compute Llama's feed-forward: expected one of {}", escaped(out_.family),
                       supported()));
    }
    if (!found->refusal.empty()) {
      fail(ErrorCode::unsupported, kKey,
           fmt::format("\"{}\" does not compute Llama's feed-forward: {}", out_.family, found->refusal));
    }
    architecture_ = found;
  }

  void refuse_variants() const {
    if (const GgufPair* scale = own("residual_scale"); scale != nullptr && scale->real() != 1.0) {
      fail(ErrorCode::unsupported, scale->key,
           "the residual branch is scaled, which Llama's is not: found " + scale->describe());
    }
    if (const GgufPair* parallel = own("use_parallel_residual");
        parallel != nullptr && !(parallel->type == GgufValue::boolean && parallel->scalar == 0)) {
      fail(ErrorCode::unsupported, parallel->key,
           "attention and feed-forward side by side, which Llama's are not: found " + parallel->describe());
    }
    if (const GgufPair* activation = own("hidden_activation"); activation != nullptr) {
      const std::string name = file_.text(*activation, kMaxName);
      if (name != "silu" && name != "swish") {
        fail(ErrorCode::unsupported, activation->key, fmt::format("expected \"silu\", found \"{}\"", escaped(name)));
      }
    }
  }

  StatedNumber positive(std::string_view key) const {
    const GgufPair* pair = own(key);
    const auto value = pair != nullptr ? pair->integer() : std::nullopt;
    if (!value || *value < 1 || *value > kMaxNumber) {
      fail(ErrorCode::format, full(key),
           fmt::format("expected an integer from 1 to {}, found {}", kMaxNumber, describe(pair)));
    }
    return {full(key), *value};
  }

  void read_experts() {
    const GgufPair* count = own("expert_count");
    const bool none = count == nullptr || count->integer() == 0;
    if (none && architecture_->experts != Experts::always) return;
    out_.stated.experts = positive("expert_count");
    if (architecture_->experts == Experts::none) fail(ErrorCode::unsupported, count->key, std::string(kMixture));
    out_.notes.push_back(where_ +
                         ": a mixture of experts: one expert's feed-forward is computed, not the router's sum");
  }

  void read_hidden(std::int64_t layers) {
    if (architecture_->experts == Experts::always) {  // feed_forward_length is that of no expert there
      if (own("expert_feed_forward_length") != nullptr) out_.stated.hidden = positive("expert_feed_forward_length");
      return;
    }
    constexpr std::string_view kKey = "feed_forward_length";
    const GgufPair* pair = own(kKey);
    if (pair == nullptr || pair->type != GgufValue::array) {
      out_.stated.hidden = positive(kKey);
      return;
    }
    const std::vector<std::int64_t> widths = file_.integers(*pair, kMaxWidths);
    if (std::ssize(widths) != layers) {
      fail(ErrorCode::format, pair->key,
           fmt::format("expected a width for each of {} layers, found {}", layers, pair->describe()));
    }
    const auto [least, most] = std::minmax_element(widths.begin(), widths.end());
    if (*least < 1 || *most > kMaxNumber) {
      fail(ErrorCode::format, pair->key,
           fmt::format("expected integers from 1 to {}, found {} to {}", kMaxNumber, *least, *most));
    }
    if (*least != *most) {
      fail(ErrorCode::unsupported, pair->key,
           fmt::format("layers of different widths, which are not supported: found {} to {}", *least, *most));
    }
    out_.stated.hidden = {pair->key, *least};
  }

  void read_eps() {
    constexpr std::string_view kKey = "attention.layer_norm_rms_epsilon";
    const GgufPair* pair = own(kKey);
    if (options_.eps) {
      out_.eps = *options_.eps;
      const auto said = pair != nullptr ? pair->real() : std::nullopt;
      if (pair != nullptr && !(said && static_cast<float>(*said) == static_cast<float>(*options_.eps))) {
        out_.notes.push_back(
            fmt::format("{}: eps {} instead of {}, {}", where_, *options_.eps, pair->key, pair->describe()));
      }
      return;
    }
    if (pair == nullptr || pair->type != GgufValue::f32 || !std::isfinite(*pair->real()) || !(*pair->real() > 0)) {
      fail(ErrorCode::format, full(kKey),
           fmt::format("expected a positive f32, found {} (--eps overrides)", describe(pair)));
    }
    // The number that was meant, 1e-05 for 9.999999747378752e-06: the shortest that rounds to this float.
    const std::string shortest = fmt::format("{}", static_cast<float>(*pair->real()));
    std::from_chars(shortest.data(), shortest.data() + shortest.size(), out_.eps);
  }

  const GgufFile& file_;
  const OpenOptions& options_;
  std::string where_;
  const Architecture* architecture_ = nullptr;
  GgufConfig out_;
};

}  // namespace

GgufConfig read_gguf_config(const GgufFile& file, const OpenOptions& options) { return Reader(file, options).read(); }

}  // namespace swiglu::files
