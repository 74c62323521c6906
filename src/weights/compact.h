// From plain bf16 panels to compact ones: which high bytes get a code, and what has to be patched. Knows the
// layout of kernels/kernel.h; the encoding itself is a row of the kernel table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/weights.h"

namespace swiglu::weights {

/// Sets the table of `panel` to the 16 commonest high bytes of `steps` plain steps. Returns how many others are
/// left: they need patches.
[[nodiscard]] std::int64_t choose_table(Panel& panel, const std::byte* plain, std::int64_t steps);

/// Not more than one weight in a thousand: patching more would cost more time than the saved bytes give.
[[nodiscard]] bool few_enough(std::int64_t patches, std::int64_t steps) noexcept;

/// Encodes a plain panel into `blocks`, which has room for a compact one of `matrix`, and makes the list of
/// patches, of which choose_table has counted `patches`.
void encode_panel(Panel& panel, const PackedMatrix& matrix, const kernels::Table& table, const std::byte* plain,
                  std::int64_t patches, std::byte* blocks);

}  // namespace swiglu::weights
