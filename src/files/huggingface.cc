// A Hugging Face folder (config.json with model.safetensors, or an index and its shards), and a single
// safetensors file without configuration. Shapes of tensors decide; a configuration that contradicts
// them is a fault that names both numbers. Knows the names and the table, not how the bytes lie.
#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/checkpoint.h"
#include "files/config.h"
#include "files/json.h"
#include "files/names.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kMaxIndexBytes = 100'000'000;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// Tensors of all weight files, and why some that the index promises cannot be had.
struct Weights {
  TensorTable table;
  std::map<std::pair<std::int64_t, Role>, std::string> absent;
  std::string where;  ///< the file that lists the tensors, escaped
};

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
  for (const auto& [tensor, shard] : weights->object) {
    if (shard.kind != Json::Kind::string || !is_file_name(shard.string)) {
      fail(fmt::format("weight_map: tensor {}: expected the name of a file in this folder, found {}", escaped(tensor),
                       shard.describe()));
    }
    shards[shard.string].push_back(tensor);
  }
  return shards;
}

Weights read_shards(const std::filesystem::path& folder, Contents& contents, const OpenOptions& options) {
  Weights out;
  const File index(folder / kIndex);
  out.where = escaped(index.name());
  for (auto& [shard, tensors] : read_index(index)) {
    std::string lost;
    TensorTable table;
    if (is_there(folder / shard)) {
      const auto file = std::make_shared<const File>(folder / shard);
      add_file(contents, *file);
      table = read_safetensors(file);
    } else {
      lost = fmt::format("the shard {} is missing", escaped(shard));
      report(contents, options, Error(ErrorCode::not_found, out.where + ": " + lost));
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
        report(contents, options, Error(ErrorCode::not_found, out.where + ": " + reason));
      }
      if (const auto place = place_of(name))
        out.absent.emplace(std::pair(place->layer, place->role), std::move(reason));
    }
  }
  return out;
}

Weights read_single(const std::shared_ptr<const File>& file, Contents& contents) {
  add_file(contents, *file);
  return {read_safetensors(file), {}, escaped(file->name())};
}

Weights read_weights(const std::filesystem::path& folder, Contents& contents, const OpenOptions& options) {
  if (is_there(folder / kSingle)) {
    if (is_there(folder / kIndex)) {
      contents.notes.push_back(
          fmt::format("{}: {} is read, {} beside it is ignored", escaped(folder.string()), kSingle, kIndex));
    }
    return read_single(std::make_shared<const File>(folder / kSingle), contents);
  }
  if (is_there(folder / kIndex)) return read_shards(folder, contents, options);
  if (is_there(folder / "pytorch_model.bin") || is_there(folder / "pytorch_model.bin.index.json")) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: expected safetensors, found pytorch_model.bin only, which is not supported: convert it "
                    "to safetensors first",
                    escaped(folder.string())));
  }
  throw Error(ErrorCode::not_found, fmt::format("{}: expected {} or {} beside config.json, found neither",
                                                escaped(folder.string()), kSingle, kIndex));
}

/// Fills layers and tensors of `contents` from the weights.
class LayerBuilder {
 public:
  LayerBuilder(Contents& contents, const Weights& weights, const ModelConfig* config, std::string config_where,
               const OpenOptions& options)
      : contents_(contents), weights_(weights), config_(config), config_where_(std::move(config_where)),
        options_(options), layers_(find_layers(weights.table)) {}

  void build() {
    if (layers_.empty()) {
      note_empty();
      return;
    }
    list_tensors();
    settle_dim();
    settle_hidden();
    check_count();
    for (std::int64_t i = 0; layers_.contains(i); ++i) contents_.layers.push_back(build_layer(i, layers_.at(i)));
  }

 private:
  // How many tensors speak for each value of a dimension.
  using Votes = std::map<std::int64_t, int>;

  const StoredTensor* tensor(const LayerNames& names, Role role) const {
    return names[role].empty() ? nullptr : &weights_.table.at(names[role]);
  }

  void note_empty() {
    if (const std::string name = misplaced_name(weights_.table); !name.empty()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: tensor {} is a feed-forward matrix under an unknown prefix; known are layers.N, "
                              "model.layers.N, language_model.model.layers.N and model.language_model.layers.N",
                              weights_.where, escaped(name)));
    }
    contents_.notes.push_back(
        fmt::format("{}: no feed-forward among {} tensors", weights_.where, weights_.table.size()));
  }

  void list_tensors() {
    for (const auto& [layer, names] : layers_) {
      for (const Role role : kRoles) {
        const StoredTensor* stored = tensor(names, role);
        if (stored == nullptr) continue;
        contents_.tensors.push_back({names[role],
                                     name_of(role),
                                     layer,
                                     stored->dtype_name,
                                     stored->shape,
                                     {stored->file->path().filename().string()}});
      }
    }
  }

  static std::int64_t winner(const Votes& votes, std::int64_t preferred) {
    std::int64_t best = preferred;
    for (const auto& [value, count] : votes) {
      const auto rival = votes.find(best);
      if (rival == votes.end() || count > rival->second) best = value;
    }
    return best;
  }

  void fault_all(Error fault) {
    if (!fault_) fault_ = fault;
    report(contents_, options_, std::move(fault));
  }

  // The norms tell dim, unless there are none: a transposed matrix then stands out.
  void settle_dim() {
    Votes votes;
    for (const auto& [layer, names] : layers_) {
      const StoredTensor* norm = tensor(names, Role::norm);
      if (norm != nullptr && norm->shape.size() == 1) ++votes[norm->shape[0]];
    }
    if (votes.empty()) count_matrices(votes, 1);
    const std::int64_t stated = config_ != nullptr ? config_->ffn.dim : 0;
    const std::int64_t found = winner(votes, stated);
    contents_.config.dim = found;
    if (stated != 0 && found != stated) {
      fault_all(Error(ErrorCode::shape, fmt::format("{}: hidden_size is {}, but the tensors in {} have {}",
                                                    config_where_, stated, weights_.where, found)));
    }
    if (!votes.empty()) refuse_zero("dim", found);
  }

  void settle_hidden() {
    Votes votes;
    count_matrices(votes, 0);
    const std::int64_t stated = config_ != nullptr ? config_->ffn.hidden : 0;
    const std::int64_t found = winner(votes, stated);
    contents_.config.hidden = found;
    if (options_.hidden && *options_.hidden != found) {
      fault_all(Error(ErrorCode::shape, fmt::format("--hidden is {}, but the tensors in {} have {}", *options_.hidden,
                                                    weights_.where, found)));
    } else if (stated != 0 && found != stated && options_.hidden) {
      contents_.notes.push_back(fmt::format(
          "{}: intermediate_size is {}, but the tensors have {}, as --hidden confirms", config_where_, stated, found));
    } else if (stated != 0 && found != stated) {
      fault_all(
          Error(ErrorCode::shape,
                fmt::format("{}: intermediate_size is {}, but the tensors in {} have {} (--hidden {} confirms it)",
                            config_where_, stated, weights_.where, found, found)));
    }
    if (!votes.empty()) refuse_zero("hidden", found);
  }

  // gate and up are [hidden, dim], down is [dim, hidden].
  void count_matrices(Votes& votes, std::size_t axis) const {
    for (const auto& [layer, names] : layers_) {
      for (const Role role : {Role::gate, Role::up, Role::down}) {
        const StoredTensor* stored = tensor(names, role);
        if (stored != nullptr && stored->shape.size() == 2)
          ++votes[stored->shape[role == Role::down ? 1 - axis : axis]];
      }
    }
  }

  void refuse_zero(const char* what, std::int64_t value) {
    if (value > 0) return;
    fault_all(
        Error(ErrorCode::shape, fmt::format("{}: {}: expected a positive number from the tensors' shapes, found {}",
                                            weights_.where, what, value)));
  }

  // Layers are numbered from 0 without a gap; numbers come from the file, so nothing is sized by them.
  void check_count() {
    std::int64_t first_missing = 0;
    while (layers_.contains(first_missing)) ++first_missing;
    const std::int64_t highest = layers_.rbegin()->first;
    if (first_missing < highest) {
      report(
          contents_, options_,
          Error(ErrorCode::not_found,
                fmt::format("{}: layer {} is missing, though there is layer {}{}", weights_.where, first_missing,
                            highest, config_ == nullptr ? " (if this is one shard of several, open the folder)" : "")));
    }
    if (config_ == nullptr || first_missing < highest) return;
    if (config_->layers > first_missing) {
      report(contents_, options_,
             Error(ErrorCode::not_found,
                   fmt::format("{}: num_hidden_layers is {}, but {} has {} layers: layer {} is missing", config_where_,
                               config_->layers, weights_.where, first_missing, first_missing)));
    } else if (config_->layers < first_missing) {
      contents_.notes.push_back(fmt::format("{}: num_hidden_layers is {}, but {} has {} layers", config_where_,
                                            config_->layers, weights_.where, first_missing));
    }
  }

  Error missing(std::int64_t layer, Role role) const {
    if (const auto known = weights_.absent.find({layer, role}); known != weights_.absent.end()) {
      return Error(ErrorCode::not_found, fmt::format("{}: layer {}: {}", weights_.where, layer, known->second));
    }
    constexpr const char* kUsual[] = {"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
                                      "post_attention_layernorm.weight"};
    return Error(ErrorCode::not_found,
                 fmt::format("{}: layer {}: the {} tensor is missing (layers.{}.{})", weights_.where, layer,
                             name_of(role), layer, kUsual[static_cast<std::size_t>(role)]));
  }

  LayerParts build_layer(std::int64_t layer, const LayerNames& names) {
    LayerParts parts;
    parts.fault = fault_;
    const std::int64_t dim = contents_.config.dim;
    const std::int64_t hidden = contents_.config.hidden;
    const auto take = [&](Role role, std::int64_t rows, std::int64_t cols) -> std::shared_ptr<const TensorSource> {
      try {
        const StoredTensor* stored = tensor(names, role);
        if (stored == nullptr) throw missing(layer, role);
        if (role != Role::norm && stored->shape.size() != 2) {
          throw Error(ErrorCode::shape,
                      fmt::format("{}: tensor {}: expected a matrix, found shape {}", escaped(stored->file->name()),
                                  escaped(names[role]), shape_text(stored->shape)));
        }
        return matrix_source(names[role], *stored, rows, cols);
      } catch (const Error& fault) {
        if (!parts.fault) parts.fault = fault;
        report(contents_, options_, fault);
        return nullptr;
      }
    };
    parts.gate = take(Role::gate, hidden, dim);
    parts.up = take(Role::up, hidden, dim);
    parts.down = take(Role::down, dim, hidden);
    parts.norm = take(Role::norm, 1, dim);
    return parts;
  }

  Contents& contents_;
  const Weights& weights_;
  const ModelConfig* config_;
  std::string config_where_;
  const OpenOptions& options_;
  std::map<std::int64_t, LayerNames> layers_;
  std::optional<Error> fault_;  // of the checkpoint as a whole: no layer can be used
};

}  // namespace

Contents open_huggingface(const std::filesystem::path& folder, const OpenOptions& options) {
  if (!is_there(folder / "config.json")) {
    throw Error(ErrorCode::not_found, fmt::format("{}: expected config.json beside the weights, found none (a single "
                                                  ".safetensors file can be opened by its own path)",
                                                  escaped(folder.string())));
  }
  const File file(folder / "config.json");
  const ModelConfig config = read_config(file, options);
  Contents contents;
  contents.format = "huggingface";
  contents.family = config.family;
  contents.config = config.ffn;
  contents.notes = config.notes;
  const Weights weights = read_weights(folder, contents, options);
  LayerBuilder(contents, weights, &config, escaped(file.name()), options).build();
  return contents;
}

Contents open_safetensors(const std::shared_ptr<const File>& file, const OpenOptions& options) {
  Contents contents;
  contents.format = "safetensors";
  const Weights weights = read_single(file, contents);
  contents.config.eps = options.eps.value_or(1e-5);
  LayerBuilder(contents, weights, nullptr, "", options).build();
  if (!options.eps && !contents.layers.empty()) {
    contents.notes.push_back(escaped(file->name()) + ": no eps in a bare file: using 1e-05; --eps overrides");
  }
  return contents;
}

}  // namespace swiglu::files
