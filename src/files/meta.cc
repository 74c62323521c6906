// A Meta folder: params.json and the model-parallel slices consolidated.NN.pth, merged; and a .pth file
// on its own. Gate and up are split by rows, down by columns, the norm is repeated in every file.
// Shapes of tensors decide; params.json is compared with them. 8-bit weights have their factors in further
// files. Knows names and tables, not how bytes lie.
#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/checkpoint.h"
#include "files/json.h"
#include "files/layers.h"
#include "files/meta_shards.h"
#include "files/params.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kMaxParamsBytes = 1'000'000;
constexpr double kDefaultEps = 1e-5;

/// Fills layers and tensors of `contents` from the shards.
class Merger {
 public:
  /// `where` begins texts about the whole; `params` is null for files without one.
  Merger(Contents& contents, const std::vector<Shard>& shards, std::string where, const MetaParams* params,
         std::string params_where, const OpenOptions& options)
      : contents_(contents), shards_(shards), where_(std::move(where)), params_(params),
        params_where_(std::move(params_where)), options_(options) {
    for (const Shard& shard : shards) {
      for (const auto& [layer, names] : shard.layers) numbers_.insert(layer);
    }
  }

  void merge() {
    if (numbers_.empty()) {
      note_empty();
    } else {
      list_tensors();
      settle_dim();
      settle_hidden();
    }
    check_count();
    for (std::int64_t layer = 0; numbers_.contains(layer); ++layer) contents_.layers.push_back(merge_layer(layer));
  }

 private:
  void note_empty() {
    for (const Shard& shard : shards_) {
      const std::string name = misplaced_name(shard.table);
      if (name.empty()) continue;
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: tensor {} is a feed-forward matrix under an unknown prefix; known is layers.N",
                              escaped(shard.file->name()), escaped(name)));
    }
    contents_.notes.push_back(
        fmt::format("{}: no feed-forward among its tensors ({})", where_, shards_.front().table.size()));
  }

  void list_tensors() {
    for (const std::int64_t layer : numbers_) {
      for (const Role role : {Role::gate, Role::up, Role::gate_up, Role::down, Role::norm}) {
        TensorInfo info;
        info.role = name_of(role);
        info.layer = layer;
        for (const Shard& shard : shards_) {
          const std::string* name = shard.find(layer, role);
          if (name == nullptr) continue;
          const StoredTensor& stored = shard.table.at(*name);
          info.files.push_back(shard.file->path().filename().string());
          if (info.name.empty()) {
            info.name = *name;
            info.dtype = stored.dtype_name;
            info.shape = stored.shape;
          } else if (role != Role::norm && stored.shape.size() == 2 && info.shape.size() == 2) {
            std::int64_t& extent = info.shape[role == Role::down ? 1 : 0];
            // What overflows is the sum of matrices without elements, which are refused later.
            if (__builtin_add_overflow(extent, stored.shape[role == Role::down ? 1 : 0], &extent))
              extent = std::numeric_limits<std::int64_t>::max();
          }
        }
        if (!info.name.empty()) contents_.tensors.push_back(std::move(info));
      }
    }
  }

  // What most matrices say; `preferred` if it has as many votes as any.
  std::int64_t majority(std::size_t axis_of_gate, std::int64_t preferred) const {
    Votes votes;
    for (const Shard& shard : shards_) {
      for (const auto& [layer, names] : shard.layers) {
        for (const Role role : {Role::gate, Role::up, Role::down, Role::gate_up}) {
          if (names[role].empty()) continue;
          const std::vector<std::int64_t>& shape = shard.table.at(names[role]).shape;
          if (shape.size() != 2) continue;
          const std::int64_t extent = shape[role == Role::down ? 1 - axis_of_gate : axis_of_gate];
          ++votes[role == Role::gate_up && axis_of_gate == 0 ? extent / 2 : extent];
        }
      }
    }
    return winner(votes, preferred);
  }

  // A fault of the checkpoint as a whole: no layer can be used.
  void fault_all(ErrorCode code, const std::string& text) {
    if (!fault_) fault_ = Error(code, text);
    report(contents_, options_, Error(code, text));
  }

  void settle_dim() {
    const std::int64_t stated = params_ != nullptr ? params_->config.dim : 0;
    const std::int64_t found = majority(1, stated);
    contents_.config.dim = found;
    if (found <= 0) {
      fault_all(ErrorCode::shape,
                fmt::format("{}: expected a positive dim from the tensors' shapes, found {}", where_, found));
    } else if (params_ != nullptr && found != stated) {
      fault_all(ErrorCode::shape,
                fmt::format("{}: dim is {}, but the tensors in {} have {}", params_where_, stated, where_, found));
    }
  }

  // Every shard has an equal share of the width.
  void settle_hidden() {
    const auto count = std::ssize(shards_);
    const std::int64_t stated = params_ != nullptr ? params_->config.hidden : 0;
    share_ = majority(0, stated / count);
    std::int64_t found = 0;
    if (share_ <= 0 || __builtin_mul_overflow(share_, count, &found)) {
      return fault_all(ErrorCode::shape,
                       fmt::format("{}: expected a positive width from the tensors' shapes, found {}", where_, share_));
    }
    contents_.config.hidden = found;
    const std::string files = count == 1 ? "one file" : fmt::format("{} files of {}", count, share_);
    if (options_.hidden && *options_.hidden != found) {
      fault_all(ErrorCode::shape, fmt::format("{}: expected the confirmed width {}, found {} in the tensors ({})",
                                              where_, *options_.hidden, found, files));
    } else if (params_ != nullptr && stated != found && options_.hidden) {
      contents_.notes.push_back(fmt::format("{}: the width is {} by {}, but the tensors have {}, as confirmed",
                                            params_where_, stated, params_->width_origin, found));
    } else if (params_ != nullptr && stated != found) {
      fault_all(ErrorCode::shape,
                fmt::format("{}: expected width {} by {}, found {} in the tensors ({}): is a consolidated.NN.pth "
                            "missing? If not, --hidden {} confirms the tensors",
                            params_where_, stated, params_->width_origin, found, files, found));
    }
  }

  // Layers are numbered from 0 without a gap; the numbers come from files, so nothing is sized by them.
  void check_count() {
    std::int64_t first_missing = 0;
    while (numbers_.contains(first_missing)) ++first_missing;
    const std::int64_t highest = numbers_.empty() ? -1 : *numbers_.rbegin();
    std::string fault;
    if (first_missing < highest) {
      fault = fmt::format("{}: layer {} is missing, though there is layer {}", where_, first_missing, highest);
    } else if (params_ != nullptr && params_->layers.value_or(first_missing) > first_missing) {
      fault = fmt::format("{}: n_layers is {}, but {} has {} layers: layer {} is missing", params_where_,
                          *params_->layers, where_, first_missing, first_missing);
    } else if (params_ != nullptr && params_->layers.value_or(first_missing) < first_missing) {
      contents_.notes.push_back(fmt::format("{}: n_layers is {}, but {} has {} layers", params_where_, *params_->layers,
                                            where_, first_missing));
    }
    if (!fault.empty()) report(contents_, options_, Error(ErrorCode::not_found, fault));
  }

  LayerParts merge_layer(std::int64_t layer) {
    LayerParts parts;
    parts.fault = fault_;
    const auto take = [&](Role role) -> std::shared_ptr<const TensorSource> {
      try {
        return merge_tensor(layer, role);
      } catch (const Error& fault) {
        if (!parts.fault) parts.fault = fault;
        report(contents_, options_, fault);
        return nullptr;
      }
    };
    parts.gate = take(Role::gate);
    parts.up = take(Role::up);
    parts.down = take(Role::down);
    parts.norm = take(Role::norm);
    return parts;
  }

  std::shared_ptr<const TensorSource> merge_tensor(std::int64_t layer, Role role) const {
    std::vector<std::shared_ptr<const TensorSource>> slices;
    for (std::size_t rank = 0; rank < shards_.size(); ++rank) {
      const Shard& shard = shards_[rank];
      const bool fused = (role == Role::gate || role == Role::up) && shard.find(layer, role) == nullptr;
      const std::string* name = shard.find(layer, fused ? Role::gate_up : role);
      const std::string file = escaped(shard.file->name());
      if (name == nullptr) {
        constexpr const char* kUsual[] = {"feed_forward.w1", "feed_forward.w3", "feed_forward.w2", "ffn_norm"};
        throw Error(ErrorCode::not_found,
                    fmt::format("{}: layer {}: expected tensor layers.{}.{}.weight ({}), found none", file, layer,
                                layer, kUsual[static_cast<std::size_t>(role)], name_of(role)));
      }
      slices.push_back(slice(shard, rank, *name, layer, role, fused));
      if (slices.back()->dtype() != slices.front()->dtype()) {
        throw Error(ErrorCode::format, fmt::format("{}: tensor {}: expected type {} as in {}, found {}", file,
                                                   escaped(*name), swiglu::name_of(slices.front()->dtype()),
                                                   shards_.front().name, swiglu::name_of(slices.back()->dtype())));
      }
      if (role == Role::norm && slices.size() > 1) compare_norms(*slices.front(), *slices.back(), file, *name);
    }
    // Where no layer can be used, the sum of the widths may not even be a number.
    if (slices.size() == 1 || role == Role::norm || fault_) return slices.front();
    const std::string name = slices.front()->name();
    return role == Role::down ? join_cols(name, std::move(slices)) : join_rows(name, std::move(slices));
  }

  // What one file holds of a matrix. `fused`: the gate's rows over the up's.
  std::shared_ptr<const TensorSource> slice(const Shard& shard, std::size_t rank, const std::string& name,
                                            std::int64_t layer, Role role, bool fused) const {
    const std::int64_t dim = contents_.config.dim;
    const StoredTensor& stored = shard.table.at(name);
    if (role == Role::norm) return matrix_source(name, stored, 1, dim);
    const std::int64_t rows = role == Role::down ? dim : share_;
    const std::int64_t cols = role == Role::down ? share_ : dim;
    if (fused || (shards_.size() > 1 && (stored.dtype || stored.encoding != nullptr))) {
      check_share(shard, name, stored, {fused ? 2 * rows : rows, cols}, fused);
    }
    const std::int64_t first = fused && role == Role::up ? rows : 0;
    const StoredTensor part = fused ? rows_of(stored, first, rows) : stored;
    const StoredTensor* scale = nullptr;
    if (stored.encoding != nullptr) {
      constexpr const char* kMatrices[] = {"w1", "w3", "w2"};
      const auto found = shard.scales.find(
          fmt::format("{}_feed_forward.{}_{}", layer, kMatrices[static_cast<std::size_t>(role)], rank));
      if (found != shard.scales.end()) scale = &found->second;
    }
    return matrix_source(name, part, rows, cols, scale);
  }

  void check_share(const Shard& shard, const std::string& name, const StoredTensor& stored,
                   const std::vector<std::int64_t>& wanted, bool fused) const {
    if (stored.shape == wanted) return;
    throw Error(ErrorCode::shape,
                fmt::format("{}: tensor {}: expected shape {}{}, an equal share in each of {} files, found {}",
                            escaped(shard.file->name()), escaped(name), shape_text(wanted),
                            fused ? ", gate over up" : "", shards_.size(), shape_text(stored.shape)));
  }

  // The norm is read whole: a few kilobytes, and the only sign of shards that do not belong together.
  void compare_norms(const TensorSource& first, const TensorSource& other, const std::string& file,
                     const std::string& name) const {
    const auto size = static_cast<std::size_t>(first.cols() * size_of(first.dtype()));
    std::vector<std::byte> a(size);
    std::vector<std::byte> b(size);
    first.read(0, 1, 0, first.cols(), a.data());
    other.read(0, 1, 0, other.cols(), b.data());
    if (a == b) return;
    const auto differs = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
    throw Error(
        ErrorCode::format,
        fmt::format("{}: tensor {}: expected the same values as in {}, found element {} to differ: the files do "
                    "not belong together",
                    file, escaped(name), shards_.front().name, differs / size_of(first.dtype())));
  }

  Contents& contents_;
  const std::vector<Shard>& shards_;
  std::string where_;
  const MetaParams* params_;
  std::string params_where_;
  const OpenOptions& options_;
  std::set<std::int64_t> numbers_;  // of layers that any shard has something of
  std::int64_t share_ = 0;          // of the width in each shard
  std::optional<Error> fault_;
};

Contents open_shards(const std::vector<Shard>& shards, const std::string& where, const MetaParams* params,
                     const std::string& params_where, const OpenOptions& options) {
  Contents contents;
  contents.format = "meta";
  contents.family = "llama";
  for (const Shard& shard : shards) {
    contents.size_bytes += shard.file->size();
    contents.archives.push_back(shard.file);
    contents.origin.files.push_back({shard.file->path().filename().string(), shard.file->size()});
  }
  contents.shards = std::ssize(shards);
  if (params != nullptr) {
    contents.config = params->config;
    contents.notes = params->notes;
  } else {
    contents.config.eps = kDefaultEps;
  }
  if (options.eps) contents.config.eps = *options.eps;
  Merger(contents, shards, where, params, params_where, options).merge();
  if (params == nullptr && !options.eps && !contents.layers.empty()) {
    contents.notes.push_back(
        fmt::format("{}: no params.json, so no eps: using {}; --eps overrides", where, kDefaultEps));
  }
  return contents;
}

}  // namespace

Contents open_meta(const std::filesystem::path& folder, const Opening& opening) {
  const std::string where = escaped(folder.string());
  std::error_code ignored;
  const std::filesystem::path params_path = folder / "params.json";
  const std::string params_where = escaped(params_path.string());
  std::optional<MetaParams> params;
  if (std::filesystem::exists(params_path, ignored)) {
    JsonRules rules;
    rules.python_constants = true;  // Python writes NaN; then the value is refused, not the syntax
    params = read_params(read_json(*opening.file(params_path), rules, kMaxParamsBytes), params_where);
  }
  std::vector<Shard> shards;
  for (const auto& path : find_shards(folder)) {
    shards.push_back(read_shard(opening, opening.file(path), shards.size()));
  }
  return open_shards(shards, where, params ? &*params : nullptr, params_where, opening);
}

Contents open_pth(const std::shared_ptr<const File>& file, const Opening& opening) {
  const std::string where = escaped(file->name());
  const bool is_shard = shard_number(file->path().filename().string()).has_value();
  std::vector<Shard> shards;
  shards.push_back(read_shard(opening, file, std::nullopt));
  Contents contents = open_shards(shards, where, nullptr, "", opening);
  if (is_shard)
    contents.notes.push_back(fmt::format("{}: may be one of several shards: open the folder to merge them", where));
  return contents;
}

}  // namespace swiglu::files
