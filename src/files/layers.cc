// From tensors to layers; see layers.h. Layer and expert numbers come from files: nothing is sized by them.
#include "files/layers.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"

namespace swiglu::files {
namespace {

// Expert matrices of a model, far above any that exists (61 layers of 384).
constexpr std::int64_t kMostExperts = std::int64_t{1} << 18;

// Of a matrix that holds anything: a larger dimension stands beside a zero. Twice this fits.
constexpr std::int64_t kMostExtent = std::int64_t{1} << 48;

/// Fills layers and tensors of `contents` from the weights.
class LayerBuilder {
 public:
  LayerBuilder(Contents& contents, const Weights& weights, std::map<std::int64_t, LayerNames> layers,
               const Statement* stated, const OpenOptions& options)
      : contents_(contents), weights_(weights), stated_(stated), options_(options), layers_(std::move(layers)) {
    if (stated == nullptr || !stated->up_holds_both) return;
    for (auto& [number, names] : layers_) {
      if (names[Role::gate].empty() && names[Role::gate_up].empty()) names[Role::gate_up].swap(names[Role::up]);
    }
  }

  void build() {
    if (layers_.empty()) {
      note_empty();
      return;
    }
    list_tensors();
    settle_dim();
    settle_hidden();
    settle_experts();
    check_count();
    for (std::int64_t i = 0; layers_.contains(i); ++i) contents_.layers.push_back(build_layer(i, layers_.at(i)));
  }

 private:
  const StoredTensor* tensor(const RoleNames& names, Role role) const {
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
        fmt::format("{}: no feed-forward among its tensors ({})", weights_.where, weights_.table.size()));
  }

  void list_tensors() {
    for (const auto& [layer, names] : layers_) {
      list(layer, names, TensorPlace::kDense);
      list(layer, names.stacked, TensorPlace::kDense);
      for (const auto& [expert, parts] : names.experts) list(layer, parts, expert);
    }
  }

  void list(std::int64_t layer, const RoleNames& names, std::int64_t expert) {
    for (const Role role : {Role::gate, Role::up, Role::gate_up, Role::down, Role::norm}) {
      const StoredTensor* stored = tensor(names, role);
      if (stored == nullptr) continue;
      contents_.tensors.push_back({names[role],
                                   name_of(role),
                                   layer,
                                   stored->dtype_name,
                                   stored->shape,
                                   {stored->file->path().filename().string()},
                                   expert});
    }
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
      if (norm != nullptr && norm->shape.size() == 1) vote(votes, norm->shape[0]);
    }
    if (votes.empty()) count_matrices(votes, 1);
    const std::int64_t said = stated_ != nullptr ? stated_->dim.value : 0;
    const std::int64_t found = winner(votes, said);
    contents_.config.dim = found;
    if (said != 0 && found != said) {
      fault_all(Error(ErrorCode::shape, fmt::format("{}: {} is {}, but the tensors in {} have {}", stated_->where,
                                                    stated_->dim.key, said, weights_.where, found)));
    }
    if (!votes.empty()) refuse_zero("dim", found);
  }

  void settle_hidden() {
    Votes votes;
    count_matrices(votes, 0);
    const std::int64_t said = stated_ != nullptr ? stated_->hidden.value : 0;
    const std::int64_t found = winner(votes, said);
    contents_.config.hidden = found;
    if (options_.hidden && *options_.hidden != found) {
      fault_all(Error(ErrorCode::shape, fmt::format("--hidden is {}, but the tensors in {} have {}", *options_.hidden,
                                                    weights_.where, found)));
    } else if (said != 0 && found != said && options_.hidden) {
      contents_.notes.push_back(fmt::format("{}: {} is {}, but the tensors have {}, as --hidden confirms",
                                            stated_->where, stated_->hidden.key, said, found));
    } else if (said != 0 && found != said) {
      fault_all(Error(ErrorCode::shape,
                      fmt::format("{}: {} is {}, but the tensors in {} have {} (--hidden {} confirms it)",
                                  stated_->where, stated_->hidden.key, said, weights_.where, found, found)));
    }
    if (!votes.empty()) refuse_zero("hidden", found);
  }

  // gate and up are [hidden, dim], both in one [2 hidden, dim], down is [dim, hidden]; stacked ones have one
  // dimension more before these.
  void count_matrices(Votes& votes, std::size_t axis) const {
    for (const auto& [layer, names] : layers_) {
      count(votes, axis, names, 2);
      count(votes, axis, names.stacked, 3);
      for (const auto& [expert, parts] : names.experts) count(votes, axis, parts, 2);
    }
  }
  void count(Votes& votes, std::size_t axis, const RoleNames& names, std::size_t rank) const {
    for (const Role role : {Role::gate, Role::up, Role::down, Role::gate_up}) {
      const StoredTensor* stored = tensor(names, role);
      if (stored == nullptr || stored->shape.size() != rank) continue;
      const std::int64_t extent = stored->shape[rank - 2 + (role == Role::down ? 1 - axis : axis)];
      vote(votes, role == Role::gate_up && axis == 0 ? extent / 2 : extent);
    }
  }
  static void vote(Votes& votes, std::int64_t extent) { ++votes[extent <= kMostExtent ? extent : 0]; }

  void refuse_zero(const char* what, std::int64_t value) {
    if (value > 0) return;
    fault_all(
        Error(ErrorCode::shape, fmt::format("{}: {}: expected a positive number from the tensors' shapes, found {}",
                                            weights_.where, what, value)));
  }

  // Every layer has as many experts; a model of dense and mixed layers would have two widths.
  void settle_experts() {
    std::int64_t most = 0;
    for (const auto& [layer, names] : layers_) {
      if (!names.is_mixture()) continue;
      most = std::max(most, std::ssize(names.experts));
      for (const std::string& name : names.stacked.names) {
        if (!name.empty()) most = std::max(most, first_extent(weights_.table.at(name)));
      }
    }
    const std::int64_t said = stated_ != nullptr ? stated_->experts.value : 0;
    if (stated_ != nullptr && said == 0 && most > 0) {
      fault_all(Error(ErrorCode::shape,
                      fmt::format("{}: expected a number of experts, as the tensors in {} have {}, found none",
                                  stated_->where, weights_.where, most)));
    }
    if (said > 0 && most != said) {
      fault_all(Error(ErrorCode::shape, fmt::format("{}: {} is {}, but the tensors in {} have {}", stated_->where,
                                                    stated_->experts.key, said, weights_.where, most)));
    }
    if (most > kMostExperts / std::ssize(layers_)) {
      throw Error(ErrorCode::unsupported, fmt::format("{}: expected at most {} experts in all layers, found {} in each",
                                                      weights_.where, kMostExperts, most));
    }
    contents_.experts = most;
  }
  static std::int64_t first_extent(const StoredTensor& stack) {
    return stack.shape.size() == 3 ? stack.shape.front() : 0;
  }

  // Layers are numbered from 0 without a gap.
  void check_count() {
    std::int64_t first_missing = 0;
    while (layers_.contains(first_missing)) ++first_missing;
    const std::int64_t highest = layers_.rbegin()->first;
    if (first_missing < highest) {
      report(
          contents_, options_,
          Error(ErrorCode::not_found,
                fmt::format("{}: layer {} is missing, though there is layer {}{}", weights_.where, first_missing,
                            highest, stated_ == nullptr ? " (if this is one shard of several, open the folder)" : "")));
    }
    if (stated_ == nullptr || stated_->layers.value == 0 || first_missing < highest) return;
    const auto& [key, said] = stated_->layers;
    if (said > first_missing) {
      report(contents_, options_,
             Error(ErrorCode::not_found,
                   fmt::format("{}: {} is {}, but {} has {} layers: layer {} is missing", stated_->where, key, said,
                               weights_.where, first_missing, first_missing)));
    } else if (said < first_missing) {
      contents_.notes.push_back(
          fmt::format("{}: {} is {}, but {} has {} layers", stated_->where, key, said, weights_.where, first_missing));
    }
  }

  Error missing(std::int64_t layer, std::int64_t expert, Role role) const {
    if (const auto known = weights_.absent.find({layer, role}); known != weights_.absent.end()) {
      return Error(ErrorCode::not_found, fmt::format("{}: layer {}: {}", weights_.where, layer, known->second));
    }
    constexpr const char* kUsual[] = {"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
                                      "post_attention_layernorm.weight"};
    const std::string usual = fmt::format(" (layers.{}.{})", layer, kUsual[static_cast<std::size_t>(role)]);
    return Error(ErrorCode::not_found,
                 fmt::format("{}: layer {}: the {} tensor {}is missing{}", weights_.where, layer, name_of(role),
                             expert < 0 ? "" : fmt::format("of expert {} ", expert), expert < 0 ? usual : ""));
  }

  // One role's matrix (or the norm) of one layer or expert. `index`: where a stack is cut.
  std::shared_ptr<const TensorSource> source(const RoleNames& names, Role role, std::int64_t layer, std::int64_t expert,
                                             std::int64_t index) const {
    const auto [dim, hidden, eps] = contents_.config;
    const std::int64_t rows = role == Role::norm ? 1 : role == Role::down ? dim : hidden;
    const std::int64_t cols = role == Role::down ? hidden : dim;
    const bool fused = (role == Role::gate || role == Role::up) && names[role].empty();
    const Role owner = fused ? Role::gate_up : role;
    const StoredTensor* stored = tensor(names, owner);
    if (stored == nullptr) throw missing(layer, expert, role);
    StoredTensor found = *stored;
    const std::size_t rank = index >= 0 ? 3 : 2;
    if (role != Role::norm && found.shape.size() != rank) {
      throw Error(
          ErrorCode::shape,
          fmt::format("{}: tensor {}: expected {}, found shape {}", escaped(found.file->name()), escaped(names[owner]),
                      rank == 3 ? "a matrix for each expert" : "a matrix", shape_text(found.shape)));
    }
    if (index >= 0) {
      if (found.shape.front() != contents_.experts) {
        throw Error(ErrorCode::shape,
                    fmt::format("{}: tensor {}: expected {} experts as in other layers, found shape {}",
                                escaped(found.file->name()), escaped(names[owner]), contents_.experts,
                                shape_text(found.shape)));
      }
      found = matrix_of(found, index);
    }
    const StoredTensor* scale = role == Role::norm ? nullptr : tensor(names, scale_of(owner));
    if (!fused) return matrix_source(names[owner], found, rows, cols, scale);
    if (found.shape != std::vector{2 * rows, cols}) {
      throw Error(ErrorCode::shape,
                  fmt::format("{}: tensor {}: expected shape {}, gate over up, found {}", escaped(found.file->name()),
                              escaped(names[owner]), shape_text({2 * rows, cols}), shape_text(found.shape)));
    }
    const std::int64_t first = role == Role::up ? rows : 0;
    if (scale == nullptr) return matrix_source(names[owner], rows_of(found, first, rows), rows, cols);
    if (scale->shape.empty() || scale->shape.front() != 2 * rows) {
      throw Error(ErrorCode::shape, fmt::format("{}: tensor {}: expected a scale for each of {} rows, found shape {}",
                                                escaped(scale->file->name()), escaped(names[scale_of(owner)]), 2 * rows,
                                                shape_text(scale->shape)));
    }
    const StoredTensor half = rows_of(*scale, first, rows);
    return matrix_source(names[owner], rows_of(found, first, rows), rows, cols, &half);
  }

  LayerParts build_layer(std::int64_t layer, const LayerNames& names) {
    LayerParts parts;
    parts.fault = fault_;
    const auto take = [&](const RoleNames& from, Role role, std::int64_t expert,
                          std::int64_t index) -> std::shared_ptr<const TensorSource> {
      try {
        return source(from, role, layer, expert, index);
      } catch (const Error& fault) {
        if (!parts.fault) parts.fault = fault;
        report(contents_, options_, fault);
        return nullptr;
      }
    };
    const auto matrices = [&](const RoleNames& from, std::int64_t expert, std::int64_t index) {
      return Matrices{take(from, Role::gate, expert, index), take(from, Role::up, expert, index),
                      take(from, Role::down, expert, index)};
    };
    if (contents_.experts == 0 || !names.is_mixture()) {
      static_cast<Matrices&>(parts) = matrices(names, TensorPlace::kDense, -1);
      if (contents_.experts > 0) {
        parts.fault = Error(ErrorCode::unsupported, fmt::format("{}: layer {} is no mixture of experts, but others are",
                                                                weights_.where, layer));
        report(contents_, options_, *parts.fault);
      }
    }
    static const RoleNames kNone;
    for (std::int64_t e = 0; names.is_mixture() && e < contents_.experts && !(e > 0 && parts.fault); ++e) {
      const auto own = names.experts.find(e);
      const bool stacked = names.experts.empty();
      parts.experts.push_back(stacked ? matrices(names.stacked, e, e)
                                      : matrices(own == names.experts.end() ? kNone : own->second, e, -1));
    }
    parts.norm = take(names, Role::norm, TensorPlace::kDense, -1);
    return parts;
  }

  Contents& contents_;
  const Weights& weights_;
  const Statement* stated_;
  const OpenOptions& options_;
  std::map<std::int64_t, LayerNames> layers_;
  std::optional<Error> fault_;  // of the checkpoint as a whole: no layer can be used
};

}  // namespace

std::int64_t winner(const Votes& votes, std::int64_t preferred) {
  std::int64_t best = preferred;
  for (const auto& [value, count] : votes) {
    const auto rival = votes.find(best);
    if (rival == votes.end() || count > rival->second) best = value;
  }
  return best;
}

void build_layers(Contents& contents, const Weights& weights, std::map<std::int64_t, LayerNames> layers,
                  const Statement* stated, const OpenOptions& options) {
  LayerBuilder(contents, weights, std::move(layers), stated, options).build();
}

}  // namespace swiglu::files
