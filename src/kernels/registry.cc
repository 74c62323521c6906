// Finds an ISA's kernels by name; how a stream of weights is fetched.
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

Ahead stream_ahead(const void* start, std::int64_t offset, std::int64_t size, std::int64_t step_bytes, std::int64_t far,
                   int pages_log2, std::int64_t near_by) noexcept {
  constexpr std::int64_t kPairBytes = 128;
  Ahead ahead;
  ahead.near_by = near_by;
  if (far == 0) return ahead;
  ahead.at = start;
  ahead.bytes = size + 2 * far;  // past the end as well: the next matrix may lie there
  ahead.done = (offset + far) / kPairBytes;
  ahead.every = step_bytes < kPairBytes ? kPairBytes / step_bytes : 1;
  ahead.pages_log2 = pages_log2;
  return ahead;
}

}  // namespace swiglu::kernels
