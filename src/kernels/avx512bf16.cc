// AVX-512 with vdpbf16ps, which adds the odd product first, then the even one, each with one rounding,
// and flushes denormals whatever MXCSR says.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace swiglu::kernels {
namespace {

#include "kernels/avx512.inl"

using V = Bf16Dot<V512>;

#include "kernels/tile.inl"

#include "kernels/probe.inl"

#include "kernels/pack.inl"

#include "kernels/encode.inl"

#include "kernels/rowwise.inl"

}  // namespace

const Table kAvx512Bf16 = make_table();

}  // namespace swiglu::kernels
