#include "kernels/reduce.hpp"

#include <cstring>

#include "kernels/families.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/loop-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace weft::HWY_NAMESPACE {

struct Same {
  using In = hn::ScalableTag<uint8_t>;
  using Out = In;
  HWY_INLINE hn::Vec<Out> apply(hn::Vec<In> a) const { return a; }
};

void stream_copy(void* dst, const void* src, size_t bytes) {
  drive(Unary<Same>{static_cast<const uint8_t*>(src), {}}, dst, bytes, true);
}

int64_t current_target() { return HWY_TARGET; }

}  // namespace weft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(stream_copy);
HWY_EXPORT(current_target);

ReduceFn reduce_function(weftDataType_t type, weftRedOp_t op, bool stream) {
  if (!valid_type(type)) return nullptr;
  if (!kTypes[type].floating) return reduce_integer(type, op, stream);
  switch (type_bytes(type)) {
    case 1:
      return reduce_float8(type, op, stream);
    case 2:
      return reduce_half(type, op, stream);
    default:
      return reduce_float(type, op, stream);
  }
}

void copy(void* dst, const void* src, size_t bytes, bool stream) {
  if (bytes >= (stream ? kStreamTileBytes : kStreamCopyBytes)) {
    HWY_DYNAMIC_DISPATCH(stream_copy)(dst, src, bytes);
  } else if (bytes != 0) {
    std::memcpy(dst, src, bytes);
  }
}

const char* kernel_target() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(current_target)()); }

std::vector<const char*> kernel_targets() {
  std::vector<const char*> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) names.push_back(hwy::TargetName(target));
  return names;
}

bool set_kernel_target(std::string_view name) {
  hwy::SetSupportedTargetsForTest(0);
  if (name.empty()) return true;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    return true;
  }
  return false;
}

}  // namespace weft
#endif
