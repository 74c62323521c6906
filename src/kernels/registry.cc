// Finds an ISA's kernels by name; how a stream of weights is fetched.
#include <cstring>

#include "kernels/kernel.h"

namespace swiglu::kernels {
namespace {

// Not on Intel: vpermb takes three cycles there and vpshufb one, which outweighs its two instructions (model 207:
// 0 to 3 % slower at 8 tokens). On Zen 4 both take their turn at a port that fma leaves free.
Table with_vbmi(Table table, const CompactRows& rows) noexcept {
  if (__builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_is("intel") == 0) {
    table.product[static_cast<int>(Product::f32_compact)] = rows.f32_compact;
    table.product[static_cast<int>(Product::bf16_compact)] = rows.bf16_compact;
  }
  return table;
}

}  // namespace

const Table* find_table(const char* isa) noexcept {
  static const Table kBestAvx512 = with_vbmi(kAvx512, kAvx512Vbmi);
  static const Table kBestAvx512Bf16 = with_vbmi(kAvx512Bf16, kAvx512Bf16Vbmi);
  struct Row {
    const char* isa;
    const Table* table;
  };
  static const Row kRows[] = {
      {"scalar", &kScalar}, {"avx2", &kAvx2}, {"avx512", &kBestAvx512}, {"avx512bf16", &kBestAvx512Bf16}};
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
