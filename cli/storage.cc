// How a layer's weights lie in memory, in words and numbers; see storage.h.
#include "storage.h"

#include <fmt/format.h>

#include <string_view>

#include "report.h"

namespace swiglu::cli {

std::string storage_of(const FeedForwardInfo& layer) {
  const std::string_view gate_up = layer.gate_up.storage, down = layer.down.storage;
  return gate_up == down ? std::string(gate_up) : fmt::format("{} + {}", gate_up, down);
}

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

std::int64_t panels_of(const FeedForwardInfo& layer) { return layer.gate_up.panels + layer.down.panels; }

std::int64_t plain_panels_of(const FeedForwardInfo& layer) {
  return layer.gate_up.plain_panels + layer.down.plain_panels;
}

std::int64_t patches_of(const FeedForwardInfo& layer) { return layer.gate_up.patches + layer.down.patches; }

}  // namespace swiglu::cli
