// One layer of two checkpoints; see compare_layer.h. Each is read once to compare and once to run; evidence for causes
// is gathered step by step, the dear kinds only for matrices that the cheap ones leave unexplained.
#include "compare_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

#include "checks.h"
#include "storage.h"
#include "swiglu/packed.hpp"

namespace swiglu::cli {

namespace {

/// The norm as a matrix of one row; it reads `layer`, which must stay.
std::shared_ptr<const TensorSource> source_of(const LayerSource& layer, Role role) {
  if (role == Role::gate) return layer.gate;
  if (role == Role::up) return layer.up;
  if (role == Role::down) return layer.down;
  const auto dim = static_cast<std::int64_t>(layer.norm.size());
  return view_source("norm", view_f32(layer.norm.data(), 1, dim));
}

/// What the file calls the type of a matrix. An expert's tensor, or that of gate and up together, counts for each.
std::string stored_type(const Checkpoint& model, std::int64_t layer, Role role) {
  for (const TensorInfo& tensor : model.tensors()) {
    if (tensor.layer != layer) continue;
    const bool both = tensor.role == "gate and up" && (role == Role::gate || role == Role::up);
    if (both || tensor.role == name_of(role)) return tensor.dtype;
  }
  return "";
}

/// The type that holds the least of the two: what both have to be rounded to before hashes can agree.
DType narrower(DType a, DType b) {
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    if (a == type || b == type) return type;
  }
  return DType::f64;
}

DType common_type(const Comparison& matrix) { return narrower(matrix.relations.a_fits, matrix.relations.b_fits); }

OutputDifference difference_of(const std::string& input, const std::vector<float>& a, const std::vector<float>& b) {
  OutputDifference out{input, same_bits(a, b), 0};
  if (out.same_bits) return out;
  double largest = 0, squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    if (std::isfinite(x)) squares += x * x;
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double difference = std::fabs(y - x);
    largest = std::max(largest, std::isfinite(difference) ? difference : HUGE_VAL);
  }
  out.largest = largest == 0 ? 0 : largest / std::sqrt(squares / static_cast<double>(a.size()));
  return out;
}

}  // namespace

Match LayerComparison::match() const {
  Match weakest = Match::bits;
  for (const Role role : kRoles) weakest = std::max(weakest, matrices[role].match);
  return weakest;
}

LayerComparison ModelPair::compare_layer(std::int64_t number, const std::vector<Input>& inputs, std::int64_t done,
                                         std::int64_t layers) {
  LayerComparison result;
  result.layer = number;
  const auto label = [&](const char* what) { meter_.label(fmt::format("layer {}: {}", number, what)); };
  label("reading");
  {
    const LayerSource a = unpack(layer_of(a_, number), pool_.runner()),
                      b = unpack(layer_of(b_, number), pool_.runner());
    result.compute = all_bf16(a, Compute::automatic) && all_bf16(b, Compute::automatic) ? Compute::bf16 : Compute::f32;
    label("comparing");
    const std::int64_t elements = a.config.dim * (3 * a.config.hidden + 1);
    std::atomic<std::int64_t> read{0};
    const auto progress = [&](std::int64_t more) {
      meter_.update(done * elements + (read += more), layers * elements);
    };
    for (const Role role : kRoles) {
      const auto left = source_of(a, role), right = source_of(b, role);
      Comparison& matrix = result.matrices[role];
      if (left->rows() == right->rows() && left->cols() == right->cols()) {
        matrix = compare_values(*left, *right, pool_, progress);
      } else {
        matrix.a = matrix.relations.a_fits = left->dtype();
        matrix.b = matrix.relations.b_fits = right->dtype();
      }
    }
    Comparison& norm = result.matrices[Role::norm];
    norm.a = a.stored_norm->dtype();  // what was compared are floats
    norm.b = b.stored_norm->dtype();
    if (norm.match == Match::bits && norm.a != norm.b) norm.match = Match::values;
    if (result.match() >= Match::different && a.config.dim == b.config.dim) {
      label("looking for the cause");
      diagnose(result, a, b);
    }
  }
  label("running");
  const auto left = run(a_, result, inputs), right = run(b_, result, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    result.outputs.push_back(difference_of(inputs[i].name, left[i], right[i]));
  }
  return result;
}

/// Alone, so that one packed layer is in memory at a time.
std::vector<std::vector<float>> ModelPair::run(const Checkpoint& model, const LayerComparison& result,
                                               const std::vector<Input>& inputs) {
  std::vector<std::vector<float>> outputs;
  if (inputs.empty()) return outputs;
  Options options;
  options.compute = result.compute;
  const FeedForward layer(layer_of(model, result.layer), pool_, options);
  for (const Input& input : inputs) {
    outputs.emplace_back(input.h.size());
    run_rows(layer, input.h, outputs.back(), 0, input.tokens);
  }
  return outputs;
}

void ModelPair::diagnose(LayerComparison& result, const LayerSource& a, const LayerSource& b) {
  Evidence evidence;
  evidence.layer = result.layer;
  evidence.hidden_a = a.config.hidden;
  evidence.hidden_b = b.config.hidden;
  evidence.norm_a = a.norm;
  evidence.norm_b = b.norm;
  for (const Role role : kRoles) {
    evidence.type_a[role] = stored_type(a_, result.layer, role);
    evidence.type_b[role] = stored_type(b_, result.layer, role);
  }
  evidence.matrices = result.matrices;
  DType weights = DType::f64;
  for (const Role role : {Role::gate, Role::up, Role::down}) {
    weights = narrower(weights, common_type(result.matrices[role]));
  }
  const Types types{weights, common_type(result.matrices[Role::norm])};
  for (const Role role : kRoles) {
    const DType type = role == Role::norm ? types.second : types.first;
    evidence.a[role] = hash_matrix(*source_of(a, role), type, pool_);
    evidence.b[role] = hash_matrix(*source_of(b, role), type, pool_);
  }
  result.causes = explain(evidence);
  for (const Role role : unexplained(result.causes)) {
    const Comparison& matrix = result.matrices[role];
    if (matrix.match != Match::different) continue;
    evidence.factors[role] = find_factors(*source_of(a, role), *source_of(b, role), matrix.relations, pool_);
  }
  result.causes = explain(evidence);
  const auto left = unexplained(result.causes);
  if (left.empty() || evidence.hidden_a != evidence.hidden_b) return;
  for (const Role role : left) {
    evidence.layer_in_a[role] = find_layer(a_, evidence.layer, role, *source_of(b, role), evidence.b[role], types);
    if (evidence.layer_in_a[role]) continue;
    evidence.layer_in_b[role] = find_layer(b_, evidence.layer, role, *source_of(a, role), evidence.a[role], types);
  }
  result.causes = explain(evidence);
}

std::optional<std::int64_t> ModelPair::find_layer(const Checkpoint& model, std::int64_t layer, Role role,
                                                  const TensorSource& matrix, const Hashes& hashes, Types types) {
  const DType type = role == Role::norm ? types.second : types.first;
  const auto sample = hash_some_rows(matrix, type);
  for (const SomeRows& other : rows_of(model, types)) {
    if (other.layer == layer || other.hashes[role] != sample) continue;
    const LayerSource source = unpack(layer_of(model, other.layer), pool_.runner());
    if (hash_matrix(*source_of(source, role), type, pool_) == hashes) return other.layer;
  }
  return std::nullopt;
}

const std::vector<ModelPair::SomeRows>& ModelPair::rows_of(const Checkpoint& model, Types types) {
  std::vector<SomeRows>& layers = rows_of_[{&model, types}];
  if (!layers.empty()) return layers;
  for (const std::int64_t number : model.layer_numbers()) {
    const LayerSource layer = unpack(layer_of(model, number), pool_.runner());
    layers.push_back({number, {}});
    for (const Role role : kRoles) {
      const DType type = role == Role::norm ? types.second : types.first;
      layers.back().hashes[role] = hash_some_rows(*source_of(layer, role), type);
    }
  }
  return layers;
}

}  // namespace swiglu::cli
