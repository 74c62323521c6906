// See names.h. Everything under `layers.N.mlp.` or `layers.N.feed_forward.` that Llama's feed-forward
// does not have is refused, known or not: it changes what the sublayer computes.
#include "files/names.h"

#include <charconv>

#include <fmt/format.h>

#include "base/text.h"

namespace swiglu::files {
namespace {

// In transformers, "language_model.model." is the text part of older multimodal checkpoints and
// "model.language_model." that of newer ones.
constexpr std::string_view kPrefixes[] = {"", "model.", "language_model.model.", "model.language_model."};

struct LayerTensor {
  std::int64_t layer = 0;
  std::string_view rest;  // after "layers.N."
};

std::optional<LayerTensor> after_layer(std::string_view name) {
  if (!name.starts_with("layers.")) return std::nullopt;
  name.remove_prefix(7);
  LayerTensor out;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out.layer);
  const auto digits = static_cast<std::size_t>(end - name.data());
  // "-1", "007" and numbers beyond int64 are no layer numbers.
  if (error != std::errc() || name[0] == '-' || (digits > 1 && name[0] == '0')) return std::nullopt;
  if (digits == name.size() || name[digits] != '.') return std::nullopt;
  out.rest = name.substr(digits + 1);
  return out;
}

std::optional<LayerTensor> layer_tensor(std::string_view name) {
  for (const auto prefix : kPrefixes) {
    if (!name.starts_with(prefix)) continue;
    if (const auto found = after_layer(name.substr(prefix.size()))) return found;
  }
  return std::nullopt;
}

std::optional<Role> role_of(std::string_view rest) {
  if (rest == "mlp.gate_proj.weight" || rest == "feed_forward.w1.weight") return Role::gate;
  if (rest == "mlp.up_proj.weight" || rest == "feed_forward.w3.weight") return Role::up;
  if (rest == "mlp.down_proj.weight" || rest == "feed_forward.w2.weight") return Role::down;
  if (rest == "post_attention_layernorm.weight" || rest == "ffn_norm.weight") return Role::norm;
  return std::nullopt;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

const char* name_of(Role role) noexcept {
  constexpr const char* kNames[] = {"gate", "up", "down", "norm"};
  return kNames[static_cast<std::size_t>(role)];
}

std::optional<TensorPlace> place_of(std::string_view name) {
  const auto tensor = layer_tensor(name);
  if (!tensor) return std::nullopt;
  const auto role = role_of(tensor->rest);
  if (!role) return std::nullopt;
  return TensorPlace{tensor->layer, *role};
}

std::string refusal_of(std::string_view name) {
  const auto tensor = layer_tensor(name);
  if (!tensor || role_of(tensor->rest)) return "";
  const std::string_view rest = tensor->rest;
  if (rest.starts_with("block_sparse_moe.")) return "a mixture of experts, which is not supported";
  if (rest.starts_with("pre_feedforward_layernorm.") || rest.starts_with("post_feedforward_layernorm.") ||
      rest.starts_with("post_mlp_layernorm.")) {
    return "a norm after the feed-forward or of its own (Gemma 2, OLMo 2, GLM 4): not Llama's sublayer";
  }
  if (rest.starts_with("cross_attn_mlp_gate")) return "a gated feed-forward (Llama 3.2 Vision), which is not supported";
  if (rest == "post_attention_layernorm.bias" || rest == "ffn_norm.bias") {
    return "a LayerNorm with bias, where Llama has an RMSNorm";
  }
  if (!rest.starts_with("mlp.") && !rest.starts_with("feed_forward.")) return "";
  if (contains(rest, "expert") || contains(rest, "router") || rest.starts_with("mlp.gate.")) {
    return "a mixture of experts, which is not supported";
  }
  if (contains(rest, "gate_up_proj") || contains(rest, "fc1_weight") || contains(rest, "fc2_weight")) {
    return "gate and up fused in one matrix, which is not supported yet";
  }
  if (rest.ends_with("bias")) return "a bias, which Llama's feed-forward does not have";
  if (contains(rest, "lora") || contains(rest, "adaptor") || contains(rest, "adapter")) {
    return "an adapter (LoRA): merge it into the weights first";
  }
  if (contains(rest, "scale") || contains(rest, "zero") || contains(rest, "qweight") || contains(rest, "g_idx") ||
      contains(rest, "packed") || contains(rest, "absmax") || contains(rest, "quant") || rest.ends_with(".SCB")) {
    return "a part of quantised weights, which are not supported";
  }
  return "no part of Llama's feed-forward";
}

std::map<std::int64_t, LayerNames> find_layers(const TensorTable& table) {
  std::map<std::int64_t, LayerNames> layers;
  for (const auto& [name, tensor] : table) {
    if (const std::string reason = refusal_of(name); !reason.empty()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: tensor {} is {}", escaped(tensor.file->name()), escaped(name), reason));
    }
    const auto place = place_of(name);
    if (!place) continue;
    std::string& taken = layers[place->layer].names[static_cast<std::size_t>(place->role)];
    if (!taken.empty()) {
      throw Error(ErrorCode::format,
                  fmt::format("{}: tensors {} and {} both are the {} of layer {}", escaped(tensor.file->name()),
                              escaped(taken), escaped(name), name_of(place->role), place->layer));
    }
    taken = name;
  }
  return layers;
}

std::string misplaced_name(const TensorTable& table) {
  for (const auto& [name, tensor] : table) {
    for (std::size_t at = name.find(".layers."); at != std::string::npos; at = name.find(".layers.", at + 1)) {
      const auto found = after_layer(std::string_view(name).substr(at + 1));
      const auto role = found ? role_of(found->rest) : std::nullopt;
      if (role && *role != Role::norm && !place_of(name)) return name;
    }
  }
  return "";
}

}  // namespace swiglu::files
