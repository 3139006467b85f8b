// The data types and reductions of weft.h as internal values: sizes and names in one place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "weft/weft.h"

namespace weft {

struct TypeInfo {
  std::string_view name;  // as nccl-tests prints it: "float", "half", "f8e4m3"
  uint8_t bytes;
  bool floating;
};

inline constexpr TypeInfo kTypes[weftNumTypes] = {
    {"int8", 1, false},  {"uint8", 1, false},   {"int32", 4, false}, {"uint32", 4, false},
    {"int64", 8, false}, {"uint64", 8, false},  {"half", 2, true},   {"float", 4, true},
    {"double", 8, true}, {"bfloat16", 2, true}, {"f8e4m3", 1, true}, {"f8e5m2", 1, true},
};

inline constexpr std::string_view kOps[weftNumOps] = {"sum", "prod", "max", "min", "avg"};

inline constexpr bool valid_type(weftDataType_t type) { return type >= 0 && type < weftNumTypes; }
inline constexpr size_t type_bytes(weftDataType_t type) { return kTypes[type].bytes; }

}  // namespace weft
