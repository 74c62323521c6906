// A Hugging Face folder with the feed-forward tensors of a Llama model: safetensors files as transformers
// lays them out (header padded to 8, tensors in order of their names), an index when there are several,
// and last config.json, so that a folder with a config.json is a complete one.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "files/output.h"

namespace swiglu::files {
namespace {

std::vector<OutputTensor> all_tensors(const CheckpointRecipe& recipe) {
  const auto [dim, hidden, eps] = recipe.config;
  std::vector<OutputTensor> tensors;
  tensors.reserve(static_cast<std::size_t>(4 * recipe.layers));
  for (std::int64_t i = 0; i < recipe.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    tensors.push_back(
        {.name = layer + "mlp.gate_proj.weight", .layer = i, .role = "gate", .rows = hidden, .cols = dim});
    tensors.push_back({.name = layer + "mlp.up_proj.weight", .layer = i, .role = "up", .rows = hidden, .cols = dim});
    tensors.push_back(
        {.name = layer + "mlp.down_proj.weight", .layer = i, .role = "down", .rows = dim, .cols = hidden});
    tensors.push_back(
        {.name = layer + "post_attention_layernorm.weight", .layer = i, .role = "norm", .rows = 1, .cols = dim});
  }
  return tensors;
}

std::int64_t bytes_of(const OutputTensor& tensor, const CheckpointRecipe& recipe) {
  return tensor.rows * tensor.cols * size_of(recipe.dtype);
}

// Whole tensors in model order, cut so that files are about equally large and none is empty.
std::vector<std::vector<OutputTensor>> distribute(std::vector<OutputTensor> tensors, const CheckpointRecipe& recipe,
                                                  std::int64_t total) {
  const auto shards = static_cast<std::size_t>(recipe.shards);
  std::vector<std::vector<OutputTensor>> files(shards);
  std::size_t shard = 0;
  double before = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto size = static_cast<double>(bytes_of(tensors[i], recipe));
    const double share_end = static_cast<double>(total) * static_cast<double>(shard + 1) / static_cast<double>(shards);
    const bool last = shard + 1 == shards;
    const bool full = before + size / 2 > share_end;
    const bool rest_needed = tensors.size() - i <= shards - 1 - shard;  // one for each file that is still empty
    if (!last && !files[shard].empty() && (full || rest_needed)) ++shard;
    files[shard].push_back(std::move(tensors[i]));
    before += size;
  }
  return files;
}

const char* safetensors_dtype(DType dtype) {
  constexpr const char* kNames[] = {"F32", "BF16", "F16", "F64"};
  return kNames[static_cast<int>(dtype)];
}

const char* torch_dtype(DType dtype) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "float64"};
  return kNames[static_cast<int>(dtype)];
}

// The length and the JSON text in front of the tensors, which follow in the given order.
std::string safetensors_header(const std::vector<OutputTensor>& tensors, const CheckpointRecipe& recipe) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::int64_t begin = 0;
  for (const OutputTensor& tensor : tensors) {
    const std::int64_t end = begin + bytes_of(tensor, recipe);
    const std::string shape =
        tensor.is_vector() ? fmt::format("{}", tensor.cols) : fmt::format("{},{}", tensor.rows, tensor.cols);
    json += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                        safetensors_dtype(recipe.dtype), shape, begin, end);
    begin = end;
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string out(8, '\0');
  for (unsigned i = 0; i < 8; ++i)
    out[i] = static_cast<char>(static_cast<std::uint64_t>(json.size()) >> (8 * i) & 0xffU);
  return out + json;
}

// The keys that readers of a Llama configuration require. Attention and vocabulary are not part of this
// checkpoint; their numbers only have to be plausible.
std::string config_json(const CheckpointRecipe& recipe) {
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
      recipe.config.dim, recipe.config.hidden, recipe.layers, heads, heads % 8 == 0 ? 8 : heads,
      json_number(recipe.config.eps), torch_dtype(recipe.dtype));
}

std::string index_json(const std::map<std::string, std::string>& file_of, std::int64_t total) {
  std::string json = fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total);
  const char* separator = "\n";
  for (const auto& [tensor, file] : file_of) {
    json += fmt::format("{}    \"{}\": \"{}\"", std::exchange(separator, ",\n"), tensor, file);
  }
  return json + "\n  }\n}\n";
}

}  // namespace

void write_huggingface(OutputFolder& folder, const CheckpointRecipe& recipe, const FillTensor& fill) {
  std::vector<OutputTensor> tensors = all_tensors(recipe);
  if (static_cast<std::size_t>(recipe.shards) > tensors.size()) {
    throw Error(ErrorCode::usage, fmt::format("write_checkpoint: {} shards for {} tensors; expected at most one each",
                                              recipe.shards, tensors.size()));
  }
  std::int64_t total = 0;
  for (const auto& tensor : tensors) total += bytes_of(tensor, recipe);
  auto shards = distribute(std::move(tensors), recipe, total);

  TensorStream stream(recipe, fill, total);
  std::map<std::string, std::string> file_of;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::sort(shards[i].begin(), shards[i].end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    folder.add(name, [&](OutputFile& file) {
      file.write(safetensors_header(shards[i], recipe));
      for (const auto& tensor : shards[i]) stream.append(file, tensor);
    });
    for (const auto& tensor : shards[i]) file_of.emplace(tensor.name, name);
  }
  if (shards.size() > 1) {
    folder.add("model.safetensors.index.json", [&](OutputFile& file) { file.write(index_json(file_of, total)); });
  }
  folder.add("config.json", [&](OutputFile& file) { file.write(config_json(recipe)); });
}

}  // namespace swiglu::files
