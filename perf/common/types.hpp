// Names and sizes of what the perf programs can measure, as their options and reports spell them.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "weft/weft.h"

namespace weft::perf {

struct TypeInfo {
  weftDataType_t type;
  const char* name;
  size_t bytes;
};

// In the order of `-d all`.
inline constexpr std::array<TypeInfo, 12> kTypes{{{weftInt8, "int8", 1},
                                                  {weftUint8, "uint8", 1},
                                                  {weftInt32, "int32", 4},
                                                  {weftUint32, "uint32", 4},
                                                  {weftInt64, "int64", 8},
                                                  {weftUint64, "uint64", 8},
                                                  {weftFloat16, "half", 2},
                                                  {weftFloat32, "float", 4},
                                                  {weftFloat64, "double", 8},
                                                  {weftBfloat16, "bfloat16", 2},
                                                  {weftFloat8e4m3, "f8e4m3", 1},
                                                  {weftFloat8e5m2, "f8e5m2", 1}}};

// kNone: the collective moves data and reduces nothing.
enum class Reduction { kSum, kProd, kMax, kMin, kAvg, kMulSum, kNone };

struct ReductionInfo {
  Reduction reduction;
  const char* name;
  weftRedOp_t op;  // weftNumOps for mulsum, whose handle is made per communicator
};

// In the order of `-o all`.
inline constexpr std::array<ReductionInfo, 6> kReductions{{{Reduction::kSum, "sum", weftSum},
                                                           {Reduction::kProd, "prod", weftProd},
                                                           {Reduction::kMax, "max", weftMax},
                                                           {Reduction::kMin, "min", weftMin},
                                                           {Reduction::kAvg, "avg", weftAvg},
                                                           {Reduction::kMulSum, "mulsum", weftNumOps}}};
inline constexpr ReductionInfo kNoReduction{Reduction::kNone, "none", weftSum};

}  // namespace weft::perf
