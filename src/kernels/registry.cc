// Finds an ISA's kernels by name.
#include <cstring>

#include "kernels/kernel.h"

namespace swiglu::kernels {

const Table* find_table(const char* isa) noexcept {
  struct Row {
    const char* isa;
    const Table* table;
  };
  static constexpr Row kRows[] = {
      {"scalar", &kScalar}, {"avx2", &kAvx2}, {"avx512", &kAvx512}, {"avx512bf16", &kAvx512Bf16}};
  for (const Row& row : kRows) {
    if (std::strcmp(row.isa, isa) == 0) return row.table;
  }
  return nullptr;
}

}  // namespace swiglu::kernels
