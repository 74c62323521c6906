// Layers by their numbers; see layers.h.
#include "layers.h"

#include <fmt/format.h>

#include <algorithm>

#include "report.h"

namespace swiglu::cli {

std::vector<std::int64_t> choose_layers(const std::filesystem::path& path, const Checkpoint& model,
                                        std::span<const std::pair<std::int64_t, std::int64_t>> ranges) {
  const std::vector<std::int64_t>& present = model.layer_numbers();
  if (present.empty()) {
    throw Error(ErrorCode::not_found, fmt::format("{}: no feed-forward layer", printable(path.string())));
  }
  if (ranges.empty()) return present;
  std::vector<std::int64_t> chosen;
  for (const auto& [first, last] : ranges) {
    for (std::int64_t i = first; i <= last; ++i) {
      // Throws, and says which there are.
      if (!std::binary_search(present.begin(), present.end(), i)) static_cast<void>(model.layer(i));
      chosen.push_back(i);
    }
  }
  return chosen;
}

}  // namespace swiglu::cli
