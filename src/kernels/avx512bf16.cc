// AVX-512 with vdpbf16ps, which adds the odd product first, then the even one, each with one rounding,
// and flushes denormals whatever MXCSR says.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace swiglu::kernels {
namespace {

#include "kernels/avx512.inl"

struct V : V512 {
  static constexpr bool kHasDot = true;
  static F dot_bf16(F acc, F a, F b) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

#include "kernels/tile.inl"

#include "kernels/probe.inl"

#include "kernels/pack.inl"

#include "kernels/encode.inl"

#include "kernels/rowwise.inl"

}  // namespace

const Table kAvx512Bf16 = make_table();

}  // namespace swiglu::kernels
