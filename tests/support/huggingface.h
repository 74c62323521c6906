// A small Llama's Hugging Face folder, whole or sharded, that a test can spoil in one place.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "support/data.h"
#include "support/safetensors.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::testing {

inline constexpr std::int64_t kDim = 4;
inline constexpr std::int64_t kHidden = 6;
inline constexpr const char* kGate = "model.layers.0.mlp.gate_proj.weight";

/// A small Llama's config.json; `changes` replaces values (JSON text) or, where empty, removes keys.
inline std::string config_text(const std::map<std::string, std::string>& changes = {}) {
  std::map<std::string, std::string> keys = {{"model_type", "\"llama\""}, {"architectures", "[\"LlamaForCausalLM\"]"},
                                             {"hidden_size", "4"},        {"intermediate_size", "6"},
                                             {"num_hidden_layers", "2"},  {"rms_norm_eps", "1e-06"},
                                             {"hidden_act", "\"silu\""},  {"torch_dtype", "\"float32\""}};
  for (const auto& [key, value] : changes) keys[key] = value;
  std::string text;
  for (const auto& [key, value] : keys) {
    if (!value.empty()) text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", key, value);
  }
  return "{" + text + "}";
}

inline std::string two_layers(std::string_view prefix = "model.") {
  return SafetensorsBuilder().add_layer(0, kDim, kHidden, prefix).add_layer(1, kDim, kHidden, prefix).bytes();
}

class HuggingFaceFolder : public ::testing::Test {
 protected:
  HuggingFaceFolder() {
    write_config();
    write("model.safetensors", two_layers());
  }
  void write(const std::string& name, std::string_view bytes) const { write_file(folder_ / name, bytes); }
  void write_config(const std::map<std::string, std::string>& changes = {}) const {
    write("config.json", config_text(changes));
  }
  /// The two layers in shards a and b, with layer 1's down in b: `map` changes entries of the index.
  void write_shards(const std::map<std::string, std::string>& map = {}) const {
    std::filesystem::remove(folder_ / "model.safetensors");
    const std::string down = "model.layers.1.mlp.down_proj.weight";
    SafetensorsBuilder a;
    a.add_layer(0, kDim, kHidden);
    a.add("model.layers.1.mlp.gate_proj.weight", "F32", {kHidden, kDim}, 4);
    a.add("model.layers.1.mlp.up_proj.weight", "F32", {kHidden, kDim}, 4);
    a.add("model.layers.1.post_attention_layernorm.weight", "F32", {kDim}, 4);
    write("a.safetensors", a.bytes());
    write("b.safetensors", SafetensorsBuilder().add(down, "F32", {kDim, kHidden}, 4).bytes());
    std::map<std::string, std::string> entries = {{down, "\"b.safetensors\""}};
    for (const char* rest : {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"}) {
      for (const int layer : {0, 1}) {
        entries.emplace(fmt::format("model.layers.{}.{}.weight", layer, rest), "\"a.safetensors\"");
      }
    }
    for (const auto& [name, shard] : map) entries[name] = shard;
    std::string text;
    for (const auto& [name, shard] : entries) {
      if (!shard.empty()) text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", name, shard);
    }
    write("model.safetensors.index.json", "{\"weight_map\":{" + text + "}}");
  }
  [[nodiscard]] Checkpoint open(const OpenOptions& options = {}) const {
    return Checkpoint::open(folder_.path(), options);
  }
  void refused(ErrorCode code, std::initializer_list<std::string_view> parts, const OpenOptions& options = {}) const {
    expect_error(code, parts, [&] { (void)open(options); });
  }
  void config_refused(const std::map<std::string, std::string>& changes, ErrorCode code,
                      std::initializer_list<std::string_view> parts) const {
    SCOPED_TRACE(config_text(changes));
    write_config(changes);
    refused(code, parts);
    refused(code, {"config.json"});
  }
  /// A bare file of these bytes.
  void bare_refused(const std::string& bytes, ErrorCode code, std::initializer_list<std::string_view> parts) const {
    write("bare.safetensors", bytes);
    expect_error(code, parts, [&] { (void)Checkpoint::open(folder_ / "bare.safetensors"); });
    expect_error(code, {"bare.safetensors"}, [&] { (void)Checkpoint::open(folder_ / "bare.safetensors"); });
  }

  TemporaryFolder folder_;
};

inline bool has_note(const Checkpoint& model, std::string_view part) {
  for (const auto& note : model.notes()) {
    if (note.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace swiglu::testing
