// The two containers of PyTorch's checkpoints share one pickle machine and one kind of tensor; this is what passes
// between them. Outside, read_pth (tensor_table.h) is all there is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "files/pickle.h"
#include "files/tensor_table.h"

namespace swiglu::files {

/// The tensors of `state`, whose storages begin at these byte offsets of the file and lie inside it. Throws format for
/// a tensor that leaves its storage.
[[nodiscard]] TensorTable place_tensors(const PickledState& state, const std::vector<std::uint64_t>& offsets,
                                        const std::shared_ptr<const File>& file);

/// PyTorch's format before 1.6: pickles in a row, then the storages.
[[nodiscard]] TensorTable read_legacy_pth(const std::shared_ptr<const File>& file);

}  // namespace swiglu::files
