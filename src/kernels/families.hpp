// The families of kernels, one .cpp each so that they compile in parallel; reduce.cpp chooses among them.
#pragma once

#include "kernels/reduce.hpp"

namespace weft {

// op is one of sum, prod, max, min. stream: non-temporal stores at any size.
ReduceFn reduce_integer(weftDataType_t type, weftRedOp_t op, bool stream);
ReduceFn reduce_float(weftDataType_t type, weftRedOp_t op, bool stream);   // float32, float64
ReduceFn reduce_half(weftDataType_t type, weftRedOp_t op, bool stream);    // float16, bfloat16
ReduceFn reduce_float8(weftDataType_t type, weftRedOp_t op, bool stream);  // e4m3, e5m2

}  // namespace weft
