// The arithmetic of Weft: element-wise reduction, conversion and copying, by SIMD chosen at run time.
// Rules are those at the top of weft.h. No pointer needs any alignment beyond the byte.
#pragma once

#include <cstddef>

#include "kernels/types.hpp"

namespace weft {

// dst[i] = a[i] op b[i] for `count` elements. dst may be a or b, else the ranges do not overlap. Commutative: the bits
// do not depend on which of a and b comes first.
using ReduceFn = void (*)(void* dst, const void* a, const void* b, size_t count);
// op is weftSum, weftProd, weftMax or weftMin (avg and pre-multiplied sums reduce by sum).
ReduceFn reduce_function(weftDataType_t type, weftRedOp_t op);

// dst[i] = a[i] * *scalar; scalar is one element of `type`. dst may be a. Integers wrap.
void scale(void* dst, const void* a, const void* scalar, size_t count, weftDataType_t type);
// dst[i] = a[i] / divisor: rounded once for floating types, truncated toward zero for integers. dst may be a.
void divide(void* dst, const void* a, int divisor, size_t count, weftDataType_t type);
// fp16, bf16, fp8 <-> float32, for wide accumulation. Round to nearest even; a NaN becomes the canonical one.
void widen(float* dst, const void* a, size_t count, weftDataType_t type);
void narrow(void* dst, const float* a, size_t count, weftDataType_t type);

// memcpy that streams past the caches from the size where that pays.
void copy(void* dst, const void* src, size_t bytes);

}  // namespace weft
