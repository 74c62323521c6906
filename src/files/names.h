// Checkpoint tensor names (Hugging Face's, Meta's and GGUF's) mapped to the sublayer: the one place where
// w1, w2, w3, gate_proj, ffn_gate and the like occur. Names also tell what a checkpoint is not: a feed-forward
// with biases, adapters, packed matrices or further norms is refused here, by name, even in a bare file
// without configuration. Knows names and tables only, no shapes and no configuration.
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

/// What a tensor is to the sublayer. gate_up: both in one matrix, the gate's rows first. The scales are factors for
/// the rows of 8-bit weights.
enum class Role : std::uint8_t { gate, up, down, norm, gate_up, gate_scale, up_scale, down_scale, gate_up_scale };
inline constexpr std::size_t kRoleCount = 9;
inline constexpr std::array<Role, 4> kRoles = {Role::gate, Role::up, Role::down, Role::norm};
[[nodiscard]] const char* name_of(Role role) noexcept;
/// The scale that belongs to a matrix (gate, up, down or gate_up).
[[nodiscard]] constexpr Role scale_of(Role matrix) noexcept {
  return matrix == Role::gate_up ? Role::gate_up_scale : static_cast<Role>(static_cast<int>(matrix) + 5);
}

/// Where a tensor belongs. Layer and expert numbers are untrusted: compare them, never size anything by them.
struct TensorPlace {
  static constexpr std::int64_t kDense = -1;    ///< of no expert
  static constexpr std::int64_t kStacked = -2;  ///< of all experts, one after the other along the first dimension
  std::int64_t layer = 0;
  Role role = Role::gate;
  std::int64_t expert = kDense;
};

/// The place of `layers.N.mlp.gate_proj.weight`, `layers.N.feed_forward.w1.weight` and so on, alone or
/// after one of the known prefixes ("model.", "language_model.model.", …), and of `blk.N.ffn_gate.weight`;
/// nullopt for other tensors.
[[nodiscard]] std::optional<TensorPlace> place_of(std::string_view name);

/// Why a checkpoint with a tensor of this name does not compute Llama's feed-forward ("a bias, …"),
/// or "" if the name says nothing of the kind.
[[nodiscard]] std::string refusal_of(std::string_view name);

/// The names of one layer's (or expert's) tensors in a table; "" for one that is missing.
struct RoleNames {
  std::array<std::string, kRoleCount> names;
  [[nodiscard]] const std::string& operator[](Role role) const { return names[static_cast<std::size_t>(role)]; }
  [[nodiscard]] std::string& operator[](Role role) { return names[static_cast<std::size_t>(role)]; }
};
struct LayerNames : RoleNames {
  std::map<std::int64_t, RoleNames> experts;
  RoleNames stacked;

  /// Some matrix of an expert, and none that every token goes through.
  [[nodiscard]] bool is_mixture() const;
};

/// The feed-forward tensors of a table by layer. Throws unsupported for a name that refusal_of refuses,
/// format if two names claim one place; both name file and tensor.
[[nodiscard]] std::map<std::int64_t, LayerNames> find_layers(const TensorTable& table);

/// Some name in the table that ends like a feed-forward matrix but stands after an unknown prefix, or
/// "": the hint for a table in which find_layers found nothing.
[[nodiscard]] std::string misplaced_name(const TensorTable& table);

}  // namespace swiglu::files
