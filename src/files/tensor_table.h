// What every container format (safetensors file, .pth file) yields after validation: names with type,
// shape and a place in a file. After this border shapes and offsets are facts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "files/encoding.h"
#include "files/source.h"

namespace swiglu::files {

/// One tensor, validated: all its elements lie inside the file, products do not overflow.
struct StoredTensor {
  std::string dtype_name;      ///< as the file spells it: "BF16", "torch.BFloat16Storage"
  std::optional<DType> dtype;  ///< nullopt: encoded, or recognised but not something we compute with
  /// What is decoded to floats, or null. Rows are whole blocks, one after the other if blocks are longer than 1.
  const Encoding* encoding = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements
  std::uint64_t offset = 0;           ///< bytes from the start of the file to element 0
  std::uint64_t bytes = 0;            ///< of all elements, which lie dense; 0 of a .pth file, where they need not
  std::shared_ptr<const File> file;
};

/// Tensor names of one container file.
using TensorTable = std::map<std::string, StoredTensor, std::less<>>;

/// "[4096, 14336]", for messages; a long shape is cut.
[[nodiscard]] std::string shape_text(const std::vector<std::int64_t>& shape);

/// Reads and validates a safetensors header (all rules of the format, before any data is used).
[[nodiscard]] TensorTable read_safetensors(const std::shared_ptr<const File>& file);

/// The strings of a safetensors file's __metadata__; none if it has no such entry.
[[nodiscard]] std::map<std::string, std::string> read_safetensors_metadata(const std::shared_ptr<const File>& file);

/// Reads the directory and the pickle of a PyTorch checkpoint, a zip archive or the form from before 1.6; nothing in it
/// is executed. Names are as in the state dict, after unwrapping one level of "model", "state_dict", "model_state_dict"
/// or "module" and stripping the prefixes "module.", "_orig_mod."; a tensor that stands alone is called "tensor".
[[nodiscard]] TensorTable read_pth(const std::shared_ptr<const File>& file);

/// Compares the checksum of every storage with its bytes: a read of the whole file. Throws format. The form from before
/// 1.6 has no checksums: nothing is read.
void check_pth_payloads(const std::shared_ptr<const File>& file);

}  // namespace swiglu::files
