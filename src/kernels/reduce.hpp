// The arithmetic of Weft: element-wise reduction, conversion and copying, by SIMD chosen at run time.
// Rules are those at the top of weft.h. No pointer needs any alignment beyond the byte, and no byte outside the given
// ranges is touched.
//
// Every function gives the same bits on every CPU and for every SIMD target. The canonical NaNs are the positive quiet
// ones: 0x7e00 (fp16), 0x7fc0 (bf16), 0x7fc00000, 0x7ff8000000000000, 0x7f (e4m3) and 0x7e (e5m2); infinity minus
// infinity, zero times infinity and an e4m3 overflow of either sign give them as well. The caller's floating-point
// environment is taken to be the default one (round to nearest, denormals kept).
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/types.hpp"

namespace weft {

// dst[i] = a[i] op b[i] for `count` elements. dst may be a or b, else the ranges do not overlap. Commutative: the bits
// do not depend on which of a and b comes first.
using ReduceFn = void (*)(void* dst, const void* a, const void* b, size_t count);
// op is weftSum, weftProd, weftMax or weftMin; weftAvg and the ops made by weftRedOpCreatePreMulSum reduce by sum. The
// pointer leads straight to the code of this CPU's SIMD target: fetch it once, call it often. nullptr if the type is
// none of weft.h.
//
// A result that is not in place is stored past the caches when one call writes 1 MiB or more. `stream` is for the
// caller who cuts a much larger buffer into smaller tiles and knows that the caches will not hold it: then every call
// of 4 KiB or more does so (a third less time where memory is the limit).
ReduceFn reduce_function(weftDataType_t type, weftRedOp_t op, bool stream = false);

// dst[i] = a[i] * *scalar; scalar is one element of `type`. dst may be a. Integers wrap.
void scale(void* dst, const void* a, const void* scalar, size_t count, weftDataType_t type);
// dst[i] = a[i] / divisor: rounded once for floating types, truncated toward zero for integers. dst may be a.
// 1 <= divisor < 2^24.
void divide(void* dst, const void* a, int divisor, size_t count, weftDataType_t type);
// fp16, bf16, fp8 <-> float32, for wide accumulation. Round to nearest even; a NaN becomes the canonical one. float32
// itself is copied. The ranges do not overlap. No other type is legal: nothing is written.
void widen(float* dst, const void* a, size_t count, weftDataType_t type);
void narrow(void* dst, const float* a, size_t count, weftDataType_t type);

// memcpy that streams past the caches from the size where that pays; `stream` as above.
void copy(void* dst, const void* src, size_t bytes, bool stream = false);

// The SIMD target in use, for logs: "AVX3" (AVX-512), "AVX2", "SSE4", "SCALAR", ...
const char* kernel_target();
// All targets that this CPU can run, best first. set_kernel_target makes one of them the target of every later call,
// until the empty string restores the best; false if the name is not among them. For tests and for tracking down a
// fault: not to be called while another thread uses a kernel.
std::vector<const char*> kernel_targets();
bool set_kernel_target(std::string_view name);

}  // namespace weft
