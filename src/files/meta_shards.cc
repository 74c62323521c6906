// Slices of a Meta checkpoint; see meta_shards.h.
#include "files/meta_shards.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include <fmt/format.h>

#include "base/text.h"
#include "files/checkpoint.h"

namespace swiglu::files {

Shard read_shard(const Opening& opening, const std::shared_ptr<const File>& file, std::optional<std::size_t> rank) {
  Shard shard{.file = file,
              .name = escaped(file->path().filename().string()),
              .table = read_pth(file),
              .layers = {},
              .scales = {}};
  shard.layers = find_layers(shard.table);
  for (const auto& [layer, names] : shard.layers) {
    if (!names.is_mixture()) continue;
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: layer {} is a mixture of experts, which is read from safetensors and GGUF files",
                            escaped(file->name()), layer));
  }
  // Meta's 8-bit releases keep the rows' factors of each slice in a file of their own.
  std::error_code ignored;
  const bool encoded = std::any_of(shard.table.begin(), shard.table.end(),
                                   [](const auto& entry) { return entry.second.encoding != nullptr; });
  const auto scales = file->path().parent_path() / fmt::format("fp8_scales_{}.pt", rank.value_or(0));
  if (rank && encoded && std::filesystem::exists(scales, ignored)) shard.scales = read_pth(opening.file(scales));
  return shard;
}

std::optional<std::uint32_t> shard_number(std::string_view name) {
  constexpr std::string_view kHead = "consolidated.";
  constexpr std::string_view kTail = ".pth";
  if (!name.starts_with(kHead) || !name.ends_with(kTail) || name.size() <= kHead.size() + kTail.size()) return {};
  const std::string_view digits = name.substr(kHead.size(), name.size() - kHead.size() - kTail.size());
  if (digits.size() > 6 || digits.find_first_not_of("0123456789") != digits.npos) return {};
  std::uint32_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

std::vector<std::filesystem::path> find_shards(const std::filesystem::path& folder) {
  std::map<std::uint32_t, std::filesystem::path> found;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::filesystem::path& path = entries->path();
    const auto number = shard_number(path.filename().string());
    if (!number || found.try_emplace(*number, path).second) continue;
    throw Error(ErrorCode::format,
                fmt::format("{}: expected one shard {}, found {} and {}", escaped(folder.string()), *number,
                            escaped(found[*number].filename().string()), escaped(path.filename().string())));
  }
  if (error) {
    throw Error(ErrorCode::io,
                fmt::format("{}: cannot list the folder: {}", escaped(folder.string()), error.message()));
  }
  if (found.empty()) {
    throw Error(ErrorCode::not_found, fmt::format("{}: expected consolidated.00.pth beside params.json, found no file "
                                                  "named consolidated.NN.pth",
                                                  escaped(folder.string())));
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& [number, path] : found) {
    if (number != paths.size()) {
      throw Error(ErrorCode::not_found,
                  fmt::format("{}: the shard consolidated.{:02}.pth is missing, though there is {}",
                              escaped(folder.string()), paths.size(), escaped(path.filename().string())));
    }
    paths.push_back(path);
  }
  return paths;
}

}  // namespace swiglu::files
