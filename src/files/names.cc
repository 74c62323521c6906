// See names.h. Everything under `layers.N.mlp.` or `layers.N.feed_forward.` that Llama's feed-forward
// does not have is refused, known or not: it changes what the sublayer computes.
#include "files/names.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <iterator>

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

// A number without sign and leading zeros, and the dot after it; both are taken off `name`.
std::optional<std::int64_t> take_number(std::string_view& name) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const auto digits = static_cast<std::size_t>(end - name.data());
  // "-1", "007" and numbers beyond int64 are none.
  if (error != std::errc() || name[0] == '-' || (digits > 1 && name[0] == '0')) return std::nullopt;
  if (digits == name.size() || name[digits] != '.') return std::nullopt;
  name.remove_prefix(digits + 1);
  return number;
}

std::optional<LayerTensor> after_layer(std::string_view name, std::string_view word) {
  if (!name.starts_with(word)) return std::nullopt;
  name.remove_prefix(word.size());
  const auto layer = take_number(name);
  if (!layer) return std::nullopt;
  return LayerTensor{*layer, name};
}

std::optional<LayerTensor> layer_tensor(std::string_view name) {
  if (name.starts_with("blk.")) return after_layer(name, "blk.");
  for (const auto prefix : kPrefixes) {
    if (!name.starts_with(prefix)) continue;
    if (const auto found = after_layer(name.substr(prefix.size()), "layers.")) return found;
  }
  return std::nullopt;
}

struct KnownName {
  std::string_view rest;
  Role role;
};
constexpr KnownName kDenseNames[] = {
    {"mlp.gate_proj.weight", Role::gate},
    {"mlp.up_proj.weight", Role::up},
    {"mlp.down_proj.weight", Role::down},
    {"post_attention_layernorm.weight", Role::norm},
    {"mlp.gate_up_proj.weight", Role::gate_up},
    {"feed_forward.w1.weight", Role::gate},
    {"feed_forward.w3.weight", Role::up},
    {"feed_forward.w2.weight", Role::down},
    {"ffn_norm.weight", Role::norm},
    // Llama 4's training code: w1 over w3, and the norm beside them.
    {"mlp.fc1_weight", Role::gate_up},
    {"mlp.fc2_weight", Role::down},
    {"feed_forward.mlp.fc1_weight", Role::gate_up},
    {"feed_forward.mlp.fc2_weight", Role::down},
    {"feed_forward.mlp.layer_norm_weight", Role::norm},
    {"feed_forward.norm.weight", Role::norm},
    {"ffn_gate.weight", Role::gate},
    {"ffn_up.weight", Role::up},
    {"ffn_down.weight", Role::down},
    {"mlp.gate_proj.weight_scale", Role::gate_scale},
    {"mlp.up_proj.weight_scale", Role::up_scale},
    {"mlp.down_proj.weight_scale", Role::down_scale},
    {"mlp.gate_up_proj.weight_scale", Role::gate_up_scale},
};
// After "block_sparse_moe.experts.E." (Mixtral) or "mlp.experts.E." (Qwen).
constexpr KnownName kExpertNames[] = {
    {"w1.weight", Role::gate},        {"w3.weight", Role::up},      {"w2.weight", Role::down},
    {"gate_proj.weight", Role::gate}, {"up_proj.weight", Role::up}, {"down_proj.weight", Role::down},
};
constexpr KnownName kStackedNames[] = {
    {"ffn_gate_exps.weight", Role::gate},
    {"ffn_up_exps.weight", Role::up},
    {"ffn_down_exps.weight", Role::down},
    {"ffn_gate_up_exps.weight", Role::gate_up},
};
// Older GGUF files of Mixtral: "ffn_gate.E.weight".
constexpr KnownName kNumberedNames[] = {{"ffn_gate.", Role::gate}, {"ffn_up.", Role::up}, {"ffn_down.", Role::down}};
// What stands beside experts and is no part of one: routers, and experts that all tokens share.
constexpr std::string_view kBesideExperts[] = {"block_sparse_moe.gate.weight",
                                               "mlp.gate.weight",
                                               "mlp.shared_expert.",
                                               "mlp.shared_expert_gate.",
                                               "ffn_gate_inp.weight",
                                               "ffn_gate_inp_shexp.",
                                               "ffn_gate_shexp.",
                                               "ffn_up_shexp.",
                                               "ffn_down_shexp."};

template <std::size_t N>
std::optional<Role> look_up(const KnownName (&known)[N], std::string_view rest) {
  const auto* found =
      std::find_if(std::begin(known), std::end(known), [&](const KnownName& k) { return k.rest == rest; });
  if (found == std::end(known)) return std::nullopt;
  return found->role;
}

struct RolePlace {
  Role role;
  std::int64_t expert;
};
std::optional<RolePlace> role_of(std::string_view rest) {
  if (const auto role = look_up(kDenseNames, rest)) return RolePlace{*role, TensorPlace::kDense};
  if (const auto role = look_up(kStackedNames, rest)) return RolePlace{*role, TensorPlace::kStacked};
  for (const std::string_view group : {"block_sparse_moe.experts.", "mlp.experts."}) {
    if (!rest.starts_with(group)) continue;
    std::string_view name = rest.substr(group.size());
    const auto expert = take_number(name);
    const auto role = look_up(kExpertNames, name);
    if (expert && role) return RolePlace{*role, *expert};
  }
  for (const KnownName& numbered : kNumberedNames) {
    if (!rest.starts_with(numbered.rest)) continue;
    std::string_view name = rest.substr(numbered.rest.size());
    const auto expert = take_number(name);
    if (expert && name == "weight") return RolePlace{numbered.role, *expert};
  }
  return std::nullopt;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

const char* name_of(Role role) noexcept {
  constexpr const char* kNames[kRoleCount] = {
      "gate", "up", "down", "norm", "gate and up", "gate scale", "up scale", "down scale", "gate and up scale"};
  return kNames[static_cast<std::size_t>(role)];
}

std::optional<TensorPlace> place_of(std::string_view name) {
  const auto tensor = layer_tensor(name);
  if (!tensor) return std::nullopt;
  const auto place = role_of(tensor->rest);
  if (!place) return std::nullopt;
  return TensorPlace{tensor->layer, place->role, place->expert};
}

std::string refusal_of(std::string_view name) {
  const auto tensor = layer_tensor(name);
  if (!tensor || role_of(tensor->rest)) return "";
  const std::string_view rest = tensor->rest;
  for (const std::string_view beside : kBesideExperts) {
    if (rest.starts_with(beside)) return "";
  }
  if (rest.starts_with("pre_feedforward_layernorm.") || rest.starts_with("post_feedforward_layernorm.") ||
      rest.starts_with("post_mlp_layernorm.") || rest.starts_with("post_ffw_norm.") ||
      rest.starts_with("ffn_post_norm.") || rest.starts_with("post_ffn_norm.")) {
    return "a norm after the feed-forward or of its own (Gemma 2, OLMo 2, GLM 4): not Llama's sublayer";
  }
  if (rest.starts_with("cross_attn_mlp_gate")) return "a gated feed-forward (Llama 3.2 Vision), which is not supported";
  if (rest == "post_attention_layernorm.bias" || rest == "ffn_norm.bias") {
    return "a LayerNorm with bias, where Llama has an RMSNorm";
  }
  if (rest.starts_with("block_sparse_moe.")) return "a part of a mixture of experts that is not known";
  if (!rest.starts_with("mlp.") && !rest.starts_with("feed_forward.") && !rest.starts_with("ffn_")) return "";
  if (rest.ends_with(".input_scale_ub")) return "";  // a limit for 8-bit activations, which this library does not use
  if (rest.ends_with("bias")) return "a bias, which Llama's feed-forward does not have";
  if (contains(rest, "lora") || contains(rest, "adaptor") || contains(rest, "adapter")) {
    return "an adapter (LoRA): merge it into the weights first";
  }
  if (contains(rest, "scale") || contains(rest, "zero") || contains(rest, "qweight") || contains(rest, "g_idx") ||
      contains(rest, "packed") || contains(rest, "absmax") || contains(rest, "quant") || rest.ends_with(".SCB")) {
    return "a part of quantised weights of a kind that is not supported";
  }
  if (contains(rest, "expert") || contains(rest, "exps") || contains(rest, "router")) {
    return "a part of a mixture of experts of a kind that is not supported";
  }
  return "no part of Llama's feed-forward";
}

namespace {

constexpr std::initializer_list<Role> kMatrices = {Role::gate, Role::up, Role::down, Role::gate_up};

// The first of these tensors that is there, or "".
const std::string& first_of(const RoleNames& names, std::initializer_list<Role> roles) {
  static const std::string kNone;
  for (const Role role : roles) {
    if (!names[role].empty()) return names[role];
  }
  return kNone;
}

}  // namespace

bool LayerNames::is_mixture() const {
  return first_of(*this, kMatrices).empty() && (!experts.empty() || !first_of(stacked, kMatrices).empty());
}

namespace {

// A layer that is two things at once, or a mixture without its experts, is not what its tensors' names suggest.
void check_layer(std::int64_t layer, const LayerNames& names, const std::string& beside, const TensorTable& table) {
  const auto refuse = [&](const std::string& name, std::string_view reason) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: tensor {} is {}", escaped(table.find(name)->second.file->name()), escaped(name), reason));
  };
  const auto both = [&](const std::string& one, const std::string& other, std::string_view hold) {
    if (one.empty() || other.empty()) return;
    throw Error(ErrorCode::format,
                fmt::format("{}: tensors {} and {} both hold {} of layer {}",
                            escaped(table.find(one)->second.file->name()), escaped(one), escaped(other), hold, layer));
  };
  for (const RoleNames* owner : {static_cast<const RoleNames*>(&names), &names.stacked}) {
    const std::string& fused = first_of(*owner, {Role::gate_up, Role::gate_up_scale});
    both(fused, first_of(*owner, {Role::gate, Role::up, Role::gate_scale, Role::up_scale}), "a part of gate and up");
  }
  if (!names.experts.empty()) {
    both(first_of(names.experts.begin()->second, kMatrices), first_of(names.stacked, kMatrices), "an expert");
  }
  if (!beside.empty() && !names.is_mixture()) refuse(beside, "of a mixture of experts, whose experts are not here");
  if (names.is_mixture()) {
    const std::string& scale =
        first_of(names, {Role::gate_scale, Role::up_scale, Role::down_scale, Role::gate_up_scale});
    if (!scale.empty()) refuse(scale, "a scale beside experts, which have none here");
    return;
  }
  if (!names.experts.empty()) {
    for (const std::string& name : names.experts.begin()->second.names) {
      if (!name.empty()) refuse(name, "of an expert beside a feed-forward that all tokens share");
    }
  }
  for (const std::string& name : names.stacked.names) {
    if (!name.empty()) refuse(name, "of experts beside a feed-forward that all tokens share");
  }
}

// Far above any model, and below what a header of a few megabytes could name: a layer takes a kilobyte, with a text for
// each fault when those are collected.
constexpr std::size_t kMostLayers = std::size_t{1} << 16;

bool is_beside_experts(std::string_view name) {
  const auto tensor = layer_tensor(name);
  return tensor && std::any_of(std::begin(kBesideExperts), std::end(kBesideExperts),
                               [&](std::string_view beside) { return tensor->rest.starts_with(beside); });
}

}  // namespace

std::map<std::int64_t, LayerNames> find_layers(const TensorTable& table) {
  std::map<std::int64_t, LayerNames> layers;
  std::map<std::int64_t, std::string> beside;
  for (const auto& [name, tensor] : table) {
    if (const std::string reason = refusal_of(name); !reason.empty()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: tensor {} is {}", escaped(tensor.file->name()), escaped(name), reason));
    }
    const auto place = place_of(name);
    if (!place && is_beside_experts(name)) beside.emplace(layer_tensor(name)->layer, name);
    if (!place) continue;
    LayerNames& layer = layers[place->layer];
    if (layers.size() > kMostLayers) {
      throw Error(ErrorCode::unsupported, fmt::format("{}: tensor {}: expected at most {} layers, found more",
                                                      escaped(tensor.file->name()), escaped(name), kMostLayers));
    }
    RoleNames& owner = place->expert == TensorPlace::kDense     ? layer
                       : place->expert == TensorPlace::kStacked ? layer.stacked
                                                                : layer.experts[place->expert];
    std::string& taken = owner[place->role];
    if (!taken.empty()) {
      throw Error(ErrorCode::format,
                  fmt::format("{}: tensors {} and {} both are the {} of layer {}", escaped(tensor.file->name()),
                              escaped(taken), escaped(name), name_of(place->role), place->layer));
    }
    taken = name;
  }
  for (const auto& [layer, name] : beside) layers.try_emplace(layer);
  for (const auto& [layer, names] : layers) {
    const auto found = beside.find(layer);
    check_layer(layer, names, found == beside.end() ? "" : found->second, table);
  }
  return layers;
}

std::string misplaced_name(const TensorTable& table) {
  for (const auto& [name, tensor] : table) {
    for (std::size_t at = name.find(".layers."); at != std::string::npos; at = name.find(".layers.", at + 1)) {
      const auto found = after_layer(std::string_view(name).substr(at + 1), "layers.");
      const auto place = found ? role_of(found->rest) : std::nullopt;
      if (place && place->role != Role::norm && !place_of(name)) return name;
    }
  }
  return "";
}

}  // namespace swiglu::files
