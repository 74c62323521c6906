// The model-parallel slices of a Meta checkpoint, consolidated.NN.pth: which files they are, and what each holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/names.h"
#include "files/tensor_table.h"

namespace swiglu::files {

struct Opening;  // checkpoint.h

struct Shard {
  std::shared_ptr<const File> file;
  std::string name;  ///< of the file without folder, escaped
  TensorTable table;
  std::map<std::int64_t, LayerNames> layers;
  TensorTable scales;  ///< of 8-bit weights: those of fp8_scales_N.pt beside it, or nothing

  /// Null when it is missing here.
  [[nodiscard]] const std::string* find(std::int64_t layer, Role role) const {
    const auto found = layers.find(layer);
    return found == layers.end() || found->second[role].empty() ? nullptr : &found->second[role];
  }
};

/// `file` was opened by `opening`. `rank`: whose scales to look for beside the file; nullopt for a file on its own.
/// Refuses mixtures of experts.
[[nodiscard]] Shard read_shard(const Opening& opening, const std::shared_ptr<const File>& file,
                               std::optional<std::size_t> rank);

/// The number in "consolidated.NN.pth"; no other name is a shard's.
[[nodiscard]] std::optional<std::uint32_t> shard_number(std::string_view name);

/// The shards of a folder in the order of their numbers. Throws not_found for a gap (a slice that is missing would
/// shift all that follow), format for a number that occurs twice.
[[nodiscard]] std::vector<std::filesystem::path> find_shards(const std::filesystem::path& folder);

}  // namespace swiglu::files
