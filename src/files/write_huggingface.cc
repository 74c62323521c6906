// A Hugging Face folder with the feed-forward tensors of a Llama model: safetensors files as transformers
// lays them out (header padded to 8, tensors in order of their names), an index when there are several,
// and last config.json, so that a folder with a config.json is a complete one.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "files/tensor_stream.h"

namespace swiglu::files {
namespace {

const char* safetensors_dtype(TensorType type) {
  constexpr const char* kNames[] = {"F32", "BF16", "F16", "F64"};
  return kNames[static_cast<int>(type)];
}

const char* torch_dtype(TensorType type) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "float64"};
  return kNames[static_cast<int>(type)];
}

// What stands in front of the tensors, which follow in the given order.
std::string header(const std::vector<OutputTensor>& tensors) {
  std::string json = fmt::format(R"({{"__metadata__":{{"format":"pt","swiglu.tensors":"{}"}})", kOnlyFeedForward);
  std::int64_t begin = 0;
  for (const OutputTensor& tensor : tensors) {
    const std::int64_t end = begin + tensor.bytes();
    const std::string shape =
        tensor.is_vector() ? fmt::format("{}", tensor.cols) : fmt::format("{},{}", tensor.rows, tensor.cols);
    json += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                        safetensors_dtype(tensor.stored), shape, begin, end);
    begin = end;
  }
  return safetensors_header(json + '}');
}

// The keys that readers of a Llama configuration require. Attention and vocabulary are not part of this
// checkpoint; their numbers only have to be plausible.
std::string config_json(const CheckpointRecipe& recipe, TensorType type) {
  const std::int64_t heads = plausible_heads(recipe.config.dim);
  return fmt::format(
      R"({{
  "architectures": [
    "LlamaForCausalLM"
  ],
  "model_type": "llama",
  "hidden_size": {},
  "intermediate_size": {},
  "num_hidden_layers": {},
  "num_attention_heads": {},
  "num_key_value_heads": {},
  "vocab_size": 128256,
  "max_position_embeddings": 8192,
  "rms_norm_eps": {},
  "rope_theta": 500000.0,
  "hidden_act": "silu",
  "attention_bias": false,
  "mlp_bias": false,
  "tie_word_embeddings": false,
  "torch_dtype": "{}"
}}
)",
      recipe.config.dim, recipe.config.hidden, recipe.layers, heads, plausible_kv_heads(heads),
      json_number(recipe.config.eps), torch_dtype(type));
}

std::string index_json(const std::map<std::string, std::string>& file_of, std::int64_t total) {
  std::string json = fmt::format(
      "{{\n  \"metadata\": {{\n    \"swiglu.tensors\": \"{}\",\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{",
      kOnlyFeedForward, total);
  const char* separator = "\n";
  for (const auto& [tensor, file] : file_of) {
    json += fmt::format("{}    \"{}\": \"{}\"", std::exchange(separator, ",\n"), tensor, file);
  }
  return json + "\n  }\n}\n";
}

}  // namespace

WrittenCheckpoint write_huggingface(OutputFolder& folder, const CheckpointRecipe& recipe, const FillTensor& fill) {
  std::vector<OutputTensor> tensors =
      whole_tensors(recipe, {"model.layers.", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
                             "post_attention_layernorm.weight"});
  const std::string config = recipe.description ? *recipe.description : config_json(recipe, tensors.front().stored);
  const std::int64_t total = total_bytes(tensors);
  auto shards = distribute(std::move(tensors), recipe);

  TensorStream stream(recipe, fill, total);
  std::map<std::string, std::string> file_of;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = weight_file_name("model", i, shards.size(), "safetensors");
    std::sort(shards[i].begin(), shards[i].end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    folder.add(name, [&](OutputFile& file) {
      file.write(header(shards[i]));
      for (const auto& tensor : shards[i]) stream.append(file, tensor);
    });
    for (const auto& tensor : shards[i]) file_of.emplace(tensor.name, name);
  }
  if (shards.size() > 1) {
    folder.add("model.safetensors.index.json", [&](OutputFile& file) { file.write(index_json(file_of, total)); });
  }
  folder.add("config.json", [&](OutputFile& file) { file.write(config); });
  return stream.written();
}

}  // namespace swiglu::files
