// AVX-512 (F, BW, DQ, VL) without bf16 dot products: bf16 pairs are widened in registers.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace swiglu::kernels {
namespace {

#include "kernels/avx512.inl"

using V = V512;

#include "kernels/tile.inl"

#include "kernels/probe.inl"

#include "kernels/pack.inl"

#include "kernels/encode.inl"

#include "kernels/rowwise.inl"

}  // namespace

const Table kAvx512 = make_table();

}  // namespace swiglu::kernels
