// Checkpoint tensor names (Hugging Face's and Meta's) mapped to the sublayer: the one place where
// w1, w2, w3, gate_proj and the like occur. Names also tell what a checkpoint is not: a feed-forward
// with biases, experts, fused or packed matrices or further norms is refused here, by name, even in a
// bare file without configuration. Knows names and tables only, no shapes and no configuration.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "files/tensor_table.h"

namespace swiglu::files {

enum class Role : std::uint8_t { gate, up, down, norm };
inline constexpr std::array<Role, 4> kRoles = {Role::gate, Role::up, Role::down, Role::norm};
[[nodiscard]] const char* name_of(Role role) noexcept;

/// Where a tensor belongs. Layer numbers are untrusted: compare them, never size anything by them.
struct TensorPlace {
  std::int64_t layer = 0;
  Role role = Role::gate;
};

/// The place of `layers.N.mlp.gate_proj.weight`, `layers.N.feed_forward.w1.weight` and so on, alone or
/// after one of the known prefixes ("model.", "language_model.model.", …); nullopt for other tensors.
[[nodiscard]] std::optional<TensorPlace> place_of(std::string_view name);

/// Why a checkpoint with a tensor of this name does not compute Llama's feed-forward ("experts: …"),
/// or "" if the name says nothing of the kind.
[[nodiscard]] std::string refusal_of(std::string_view name);

/// The names of one layer's tensors in a table; "" for one that is missing.
struct LayerNames {
  std::array<std::string, 4> names;
  [[nodiscard]] const std::string& operator[](Role role) const { return names[static_cast<std::size_t>(role)]; }
};

/// The feed-forward tensors of a table by layer. Throws unsupported for a name that refusal_of refuses,
/// format if two names claim one place; both name file and tensor.
[[nodiscard]] std::map<std::int64_t, LayerNames> find_layers(const TensorTable& table);

/// Some name in the table that ends like a feed-forward matrix but stands after an unknown prefix, or
/// "": the hint for a table in which find_layers found nothing.
[[nodiscard]] std::string misplaced_name(const TensorTable& table);

}  // namespace swiglu::files
