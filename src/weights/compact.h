// From plain bf16 panels to compact ones: which high bytes get a code, and what has to be patched. Knows the
// layout of kernels/kernel.h; the encoding itself is a row of the kernel table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/weights.h"

namespace swiglu::weights {

/// Sets the table of `panel` to the 16 commonest high bytes of `steps` plain steps. False if so many others are
/// left, more than one in a thousand, that patching them would cost more time than the saved bytes give.
[[nodiscard]] bool choose_table(Panel& panel, const std::byte* plain, std::int64_t steps);

/// Encodes a plain panel into `blocks`, which has room for a compact one of `matrix`, and makes the list of
/// patches. The table has been chosen.
void encode_panel(Panel& panel, const PackedMatrix& matrix, const kernels::Table& table, const std::byte* plain,
                  std::byte* blocks);

}  // namespace swiglu::weights
