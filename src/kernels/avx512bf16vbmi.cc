// Compact weights with VBMI, whose vpermb looks bytes up without masking their indices first: the rows that
// registry.cc puts into the table of avx512bf16 where the processor has it.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace swiglu::kernels {
namespace {

#include "kernels/avx512.inl"

using V = Vbmi<Bf16Dot<V512>>;

#include "kernels/tile.inl"

}  // namespace

const CompactRows kAvx512Bf16Vbmi = {product_kernels<Product::f32_compact>(), product_kernels<Product::bf16_compact>()};

}  // namespace swiglu::kernels
