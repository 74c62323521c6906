// Rows of weights to the type they are packed in, exactly as one load_double and one store_double per element
// would give them, in loops that compilers vectorise. Knows element types only.
#pragma once

#include <cstdint>

#include "swiglu/swiglu.hpp"

namespace swiglu::weights {

/// `n` elements of type `type`, at any address. Exact but for f64, which is narrowed once. A NaN becomes quiet,
/// except where the type is f32 already.
void convert_to_f32(float* dst, const void* source, DType type, std::int64_t n) noexcept;
/// Rounded once, to nearest even, denormals kept. A NaN becomes quiet, except where the type is bf16 already.
void convert_to_bf16(std::uint16_t* dst, const void* source, DType type, std::int64_t n) noexcept;

}  // namespace swiglu::weights
