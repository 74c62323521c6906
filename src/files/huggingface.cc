// A Hugging Face folder (config.json with model.safetensors or pytorch_model.bin, or an index and its shards), and
// a single safetensors file without configuration: which files hold the weights. What the tensors make up is
// layers.cc's. Knows no tensor names and not how the bytes lie.
#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/checkpoint.h"
#include "files/config.h"
#include "files/json.h"
#include "files/layers.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kMaxIndexBytes = 100'000'000;

/// Where transformers looks for weights, in its order.
struct Place {
  const char* single;
  const char* index;
};
constexpr Place kPlaces[] = {{"model.safetensors", "model.safetensors.index.json"},
                             {"pytorch_model.bin", "pytorch_model.bin.index.json"}};

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

void add_file(Contents& contents, const File& file) {
  ++contents.shards;
  contents.size_bytes += file.size();
  contents.origin.files.push_back({file.path().filename().string(), file.size()});
}

// A shard is a plain file name in the index's own folder.
bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name.find("..") == std::string_view::npos &&
         std::none_of(name.begin(), name.end(), [](char c) {
           return c == '/' || c == '\\' || c == ':' || (static_cast<unsigned char>(c) < 0x20) || c == 0x7f;
         });
}

// Shard names with the tensors the index says are in them. Its metadata (total_size) is often wrong and
// needed for nothing.
std::map<std::string, std::vector<std::string>> read_index(const File& file) {
  const std::string where = escaped(file.name());
  const auto fail = [&](const std::string& reason) { throw Error(ErrorCode::format, where + ": " + reason); };
  JsonRules rules;
  rules.python_constants = true;
  const Json index = read_json(file, rules, kMaxIndexBytes);
  const Json* weights = index.find("weight_map");
  if (weights == nullptr || weights->kind != Json::Kind::object) {
    fail("weight_map: expected an object, found " + (weights == nullptr ? "nothing" : weights->describe()));
  }
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, shard] : *weights->object) {
    if (shard.kind != Json::Kind::string || !is_file_name(*shard.string)) {
      fail(fmt::format("weight_map: tensor {}: expected the name of a file in this folder, found {}", escaped(tensor),
                       shard.describe()));
    }
    shards[*shard.string].push_back(tensor);
  }
  return shards;
}

// A weight file of either kind; its bytes decide which, as everywhere.
TensorTable read_tensors(const std::shared_ptr<const File>& file, Contents& contents) {
  add_file(contents, *file);
  const std::string kind = describe_contents(*file);
  if (!kind.starts_with("a zip") && !kind.starts_with("a bare pickle")) return read_safetensors(file);
  contents.archives.push_back(file);
  return read_pth(file);
}

Weights read_shards(const std::filesystem::path& folder, const char* index_name, Contents& contents,
                    const Opening& opening) {
  Weights out;
  const auto index = opening.file(folder / index_name);
  out.where = escaped(index->name());
  for (auto& [shard, tensors] : read_index(*index)) {
    std::string lost;
    TensorTable table;
    if (is_there(folder / shard)) {
      table = read_tensors(opening.file(folder / shard), contents);
    } else {
      lost = fmt::format("the shard {} is missing", escaped(shard));
      report(contents, opening, Error(ErrorCode::not_found, out.where + ": " + lost));
    }
    for (std::string& name : tensors) {
      auto found = table.find(name);
      if (found != table.end()) {
        out.table.insert(table.extract(found));
        continue;
      }
      std::string reason = lost;
      if (reason.empty()) {
        reason = fmt::format("tensor {} is not in {}, where the index puts it", escaped(name), escaped(shard));
        report(contents, opening, Error(ErrorCode::not_found, out.where + ": " + reason));
      }
      if (const auto place = place_of(name))
        out.absent.emplace(std::pair(place->layer, place->role), std::move(reason));
    }
  }
  return out;
}

Weights read_single(const std::shared_ptr<const File>& file, Contents& contents) {
  return {read_tensors(file, contents), {}, escaped(file->name())};
}

Weights read_weights(const std::filesystem::path& folder, Contents& contents, const Opening& opening) {
  for (const auto& [single, index] : kPlaces) {
    if (is_there(folder / single)) {
      if (is_there(folder / index)) {
        contents.notes.push_back(
            fmt::format("{}: {} is read, {} beside it is ignored", escaped(folder.string()), single, index));
      }
      return read_single(opening.file(folder / single), contents);
    }
    if (is_there(folder / index)) return read_shards(folder, index, contents, opening);
  }
  throw Error(ErrorCode::not_found,
              fmt::format("{}: expected model.safetensors, pytorch_model.bin or the .index.json of either beside "
                          "config.json, found none of them",
                          escaped(folder.string())));
}

}  // namespace

Contents open_huggingface(const std::filesystem::path& folder, const Opening& opening) {
  if (!is_there(folder / "config.json")) {
    throw Error(ErrorCode::not_found, fmt::format("{}: expected config.json beside the weights, found none (a single "
                                                  ".safetensors file can be opened by its own path)",
                                                  escaped(folder.string())));
  }
  const auto file = opening.file(folder / "config.json");
  const ModelConfig config = read_config(*file, opening);
  Contents contents;
  contents.format = "huggingface";
  contents.family = config.family;
  contents.config = config.ffn;
  contents.notes = config.notes;
  const Weights weights = read_weights(folder, contents, opening);
  const Statement stated{.where = escaped(file->name()),
                         .dim = {"hidden_size", config.ffn.dim},
                         .hidden = {config.hidden_key, config.ffn.hidden},
                         .layers = {"num_hidden_layers", config.layers},
                         .experts = {config.experts_key, config.experts}};
  build_layers(contents, weights, find_layers(weights.table), &stated, opening);
  return contents;
}

Contents open_safetensors(const std::shared_ptr<const File>& file, const OpenOptions& options) {
  Contents contents;
  contents.format = "safetensors";
  const Weights weights = read_single(file, contents);
  contents.config.eps = options.eps.value_or(1e-5);
  build_layers(contents, weights, find_layers(weights.table), nullptr, options);
  if (!options.eps && !contents.layers.empty()) {
    contents.notes.push_back(escaped(file->name()) + ": no eps in a bare file: using 1e-05; --eps overrides");
  }
  return contents;
}

}  // namespace swiglu::files
