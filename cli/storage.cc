// How a layer's weights lie in memory, in words and numbers; see storage.h.
#include "storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "report.h"
#include "swiglu/packed.hpp"

namespace swiglu::cli {

namespace {

std::string both(std::string_view gate_up, std::string_view down) {
  return gate_up == down ? std::string(gate_up) : fmt::format("{} + {}", gate_up, down);
}

/// As storage_of.
std::string stored(const PackedSource& packed) {
  const auto words = [&packed](PackedSource::Part part) {
    const PackedSource::Matrix matrix = packed.matrix(part);
    return fmt::format("{} {}", name_of(matrix.storage), name_of(matrix.dtype));
  };
  return both(words(PackedSource::Part::gate_up), words(PackedSource::Part::down));
}

}  // namespace

std::string storage_of(const FeedForwardInfo& layer) { return both(layer.gate_up.storage, layer.down.storage); }

std::string show_bits(const FeedForwardInfo& layer) {
  return fmt::format("{:.4g} bits a weight, {}", layer.bits_per_weight,
                     format_bytes(static_cast<double>(layer.packed_bytes)));
}

bool is_plain(const FeedForwardInfo& layer) {
  const auto plain = [](const PackedInfo& matrix) { return std::string_view(matrix.storage).starts_with("plain"); };
  return plain(layer.gate_up) && plain(layer.down);
}

std::array<DType, 3> dtypes_of(const LayerSource& source) {
  if (source.packed == nullptr) return {source.gate->dtype(), source.up->dtype(), source.down->dtype()};
  const DType gate_up = source.packed->matrix(PackedSource::Part::gate_up).dtype;
  return {gate_up, gate_up, source.packed->matrix(PackedSource::Part::down).dtype};
}

bool has_bf16(const LayerSource& source, Compute compute) {
  const auto [gate, up, down] = dtypes_of(source);
  return compute == Compute::bf16 || (gate == DType::bf16 && up == DType::bf16) || down == DType::bf16;
}

bool all_bf16(const LayerSource& source, Compute compute) {
  const auto types = dtypes_of(source);
  return compute == Compute::bf16 || std::all_of(types.begin(), types.end(), [](DType t) { return t == DType::bf16; });
}

bool as_packed(const LayerSource& source, const FeedForwardInfo& layer) {
  return source.packed != nullptr && stored(*source.packed) == storage_of(layer);
}

std::string packed_anew(const LayerSource& source, const FeedForwardInfo& layer) {
  if (source.packed == nullptr || as_packed(source, layer)) return "";
  return fmt::format("the file holds {}: packed anew as {}", stored(*source.packed), storage_of(layer));
}

std::int64_t panels_of(const FeedForwardInfo& layer) { return layer.gate_up.panels + layer.down.panels; }

std::int64_t plain_panels_of(const FeedForwardInfo& layer) {
  return layer.gate_up.plain_panels + layer.down.plain_panels;
}

std::int64_t patches_of(const FeedForwardInfo& layer) { return layer.gate_up.patches + layer.down.patches; }

}  // namespace swiglu::cli
