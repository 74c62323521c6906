// Storage and memory of the layers of a packed file; see packed_layers.h.
#include "packed_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "storage.h"

namespace swiglu::cli {

namespace {

void put_matrix(Json& json, std::string_view name, const PackedInfo& matrix) {
  json.key(name).object().field("storage", matrix.storage).field("bytes", matrix.bytes);
  json.field("bits_per_weight", matrix.bits_per_weight).field("panels", matrix.panels);
  json.field("plain_panels", matrix.plain_panels).field("patches", matrix.patches).end();
}

}  // namespace

void add_problem(std::vector<std::string>& problems, const std::string& text) {
  if (std::find(problems.begin(), problems.end(), text) == problems.end()) problems.push_back(text);
}

std::vector<PackedLayer> packed_layers(const InspectOptions& options, const Checkpoint& model,
                                       std::vector<std::string>& problems) {
  std::vector<PackedLayer> layers;
  if (model.format() != "packed") return layers;
  const Checkpoint mapped = Checkpoint::open(options.model, {.eps = {}, .hidden = {}, .map = true});
  ThreadPool pool(1);
  for (const std::int64_t number : mapped.layer_numbers()) {
    try {
      layers.push_back({number, FeedForward(mapped.layer(number), pool).info()});
    } catch (const Error& fault) {
      if (fault.code() != ErrorCode::format) throw;
      add_problem(problems, fault.text());
    }
  }
  return layers;
}

std::string show_packed(const std::vector<PackedLayer>& layers) {
  std::set<std::string> kinds;
  std::int64_t most = 0;
  double bytes = 0, weights = 0;
  for (const auto& [number, info] : layers) {
    kinds.insert(fmt::format("{} compute, {}", name_of(info.compute), storage_of(info)));
    most = std::max(most, info.packed_bytes);
    bytes += static_cast<double>(info.packed_bytes);
    weights += 3 * static_cast<double>(info.config.dim) * static_cast<double>(info.config.hidden);
  }
  return fmt::format("{}, {:.4g} bits a weight: {} a layer, {} in all", fmt::join(kinds, " and "), 8 * bytes / weights,
                     format_bytes(static_cast<double>(most)), format_bytes(bytes));
}

std::string show_panels(const std::vector<PackedLayer>& layers) {
  std::int64_t panels = 0, plain = 0, patches = 0;
  for (const auto& [number, info] : layers) {
    for (const PackedInfo* matrix : {&info.gate_up, &info.down}) {
      if (std::string_view(matrix->storage).starts_with("compact")) panels += matrix->panels;
    }
    plain += plain_panels_of(info);
    patches += patches_of(info);
  }
  if (panels == 0) return "";
  return fmt::format("{} of {} panels stayed plain, {} weights are patched", plain, panels, patches);
}

void put_packed(Json& json, std::string_view name, const std::vector<PackedLayer>& layers) {
  json.key(name).array();
  for (const auto& [number, info] : layers) {
    json.object().field("layer", number).field("compute", name_of(info.compute));
    json.field("packed_bytes", info.packed_bytes).field("bits_per_weight", info.bits_per_weight);
    put_matrix(json, "gate_up", info.gate_up);
    put_matrix(json, "down", info.down);
    json.end();
  }
  json.end();
}

}  // namespace swiglu::cli
