// A pickle read by a machine that executes nothing: it understands the handful of calls that torch.save
// writes for a state dict and refuses every other name. Knows neither zip nor tensor bytes: it yields
// what the pickle claims about tensors, and the caller checks the claims against the storages.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "swiglu/swiglu.hpp"

namespace swiglu::files {

/// An element type as PyTorch names it.
struct TorchType {
  std::string_view name;  ///< "torch.BFloat16Storage", "torch.float8_e4m3fn"
  std::int64_t item_bytes;
  std::optional<DType> dtype;     ///< nullopt: known, but not something we compute with
  std::string_view encoding = {};  ///< what find_encoding (blocks.h) knows it by, or ""
};

/// A storage that is a part of another one, which has the same type and holds all of it.
struct StorageWindow {
  std::size_t root = 0;    ///< index into PickledState::storages; no window itself
  std::int64_t begin = 0;  ///< in elements
  bool operator==(const StorageWindow&) const = default;
};

/// One storage, named by a persistent id. Each key occurs once here.
struct PickledStorage {
  std::string key;                         ///< decimal digits
  const TorchType* type;                   ///< never null; points to static data
  std::int64_t elements = 0;               ///< >= 0, of the type's size
  std::optional<StorageWindow> window{};  ///< in old files only
};

/// A view of a storage. Sizes, strides and offset are as the pickle claims, signs unchecked.
struct PickledTensor {
  std::size_t storage = 0;  ///< index into PickledState::storages
  const TorchType* type;    ///< of the elements; the storage's own unless that is untyped bytes
  std::int64_t offset = 0;  ///< in elements
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

/// The tensors of a state dict. Everything else that stood beside them is ignored.
struct PickledState {
  std::vector<PickledStorage> storages;
  std::map<std::string, PickledTensor, std::less<>> tensors;
};

/// Longer pickles are refused.
inline constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{1} << 26;

/// The name of a tensor that is the root itself.
inline constexpr std::string_view kBareTensor = "tensor";

/// Which container the pickle stands in: it decides what persistent ids look like.
enum class PickleForm : std::uint8_t {
  zip,   ///< data.pkl; ('storage', class, key, location, elements)
  plain  ///< one of several in a row, before PyTorch 1.6; a sixth item names a window of the storage, or is None
};

/// Runs the pickle of a zip (protocols 1 to 5). The root must be a dict or one tensor; if it holds a dict of tensors
/// under "model", "state_dict", "model_state_dict" or "module", that one is taken; the prefixes "module." and
/// "_orig_mod." are stripped from names. `where` begins error texts: the file, escaped. Throws format for
/// what breaks the rules of pickles, unsupported for what is well-formed but refused, by name.
[[nodiscard]] PickledState read_pickle(std::string_view bytes, const std::string& where);

}  // namespace swiglu::files
