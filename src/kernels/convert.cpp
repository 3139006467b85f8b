#include <cstring>

#include "kernels/reduce.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convert.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/convert-inl.hpp"
#include "kernels/loop-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace weft::HWY_NAMESPACE {

template <class T>
T element(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

template <class T>
struct ScaleFloat {
  using In = hn::ScalableTag<T>;
  using Out = In;
  T scalar;
  HWY_INLINE hn::Vec<Out> apply(hn::Vec<In> a) const { return canonical(Out(), hn::Mul(a, hn::Set(Out(), scalar))); }
};

template <class T>
struct DivideFloat {
  using In = hn::ScalableTag<T>;
  using Out = In;
  T divisor;
  HWY_INLINE hn::Vec<Out> apply(hn::Vec<In> a) const { return canonical(Out(), hn::Div(a, hn::Set(Out(), divisor))); }
};

template <class F>
struct ScaleCode {
  using In = DCode<F>;
  using Out = In;
  float scalar;
  HWY_INLINE hn::Vec<Out> apply(hn::Vec<In> a) const { return pack<F>(hn::Mul(unpack<F>(a), hn::Set(DF32(), scalar))); }
};

template <class F>
struct DivideCode {
  using In = DCode<F>;
  using Out = In;
  float divisor;
  HWY_INLINE hn::Vec<Out> apply(hn::Vec<In> a) const {
    return pack<F>(hn::Div(unpack<F>(a), hn::Set(DF32(), divisor)));
  }
};

template <class F>
struct Widen {
  using In = DCode<F>;
  using Out = DF32;
  HWY_INLINE VF32 apply(hn::Vec<In> a) const { return canonical(DF32(), unpack<F>(a)); }
};

template <class F>
struct Narrow {
  using In = DF32;
  using Out = DCode<F>;
  HWY_INLINE hn::Vec<Out> apply(VF32 a) const { return pack<F>(a); }
};

template <class F>
void scale_code(void* dst, const void* a, const void* scalar, size_t count) {
  const hn::Vec<DCode<F>> code = hn::Set(DCode<F>(), element<typename F::Bits>(scalar));
  map(dst, a, count, ScaleCode<F>{hn::GetLane(unpack<F>(code))});
}

template <class T>
void scale_integer(void* dst, const void* a, const void* scalar, size_t count) {
  using U = hwy::MakeUnsigned<T>;
  const auto factor = uint64_t{element<U>(scalar)};
  auto* to = static_cast<uint8_t*>(dst);
  const auto* from = static_cast<const uint8_t*>(a);
  for (size_t i = 0; i < count; ++i) {
    const auto product = static_cast<U>(element<U>(from + i * sizeof(U)) * factor);
    std::memcpy(to + i * sizeof(U), &product, sizeof(U));
  }
}

template <class T>
void divide_integer(void* dst, const void* a, int divisor, size_t count) {
  auto* to = static_cast<uint8_t*>(dst);
  const auto* from = static_cast<const uint8_t*>(a);
  // At least the width of int, so that the divisor keeps its value.
  using Wide = std::conditional_t<(sizeof(T) < 4), int, T>;
  const auto by = static_cast<Wide>(divisor);
  for (size_t i = 0; i < count; ++i) {
    const auto quotient = static_cast<T>(static_cast<Wide>(element<T>(from + i * sizeof(T))) / by);
    std::memcpy(to + i * sizeof(T), &quotient, sizeof(T));
  }
}

void scale_target(void* dst, const void* a, const void* scalar, size_t count, weftDataType_t type) {
  switch (type) {
    case weftInt8:
    case weftUint8:
      return scale_integer<uint8_t>(dst, a, scalar, count);
    case weftInt32:
    case weftUint32:
      return scale_integer<uint32_t>(dst, a, scalar, count);
    case weftInt64:
    case weftUint64:
      return scale_integer<uint64_t>(dst, a, scalar, count);
    case weftFloat32:
      return map(dst, a, count, ScaleFloat<float>{element<float>(scalar)});
    case weftFloat64:
      return map(dst, a, count, ScaleFloat<double>{element<double>(scalar)});
    case weftFloat16:
      return scale_code<Fp16>(dst, a, scalar, count);
    case weftBfloat16:
      return scale_code<Bf16>(dst, a, scalar, count);
    case weftFloat8e4m3:
      return scale_code<E4m3>(dst, a, scalar, count);
    case weftFloat8e5m2:
      return scale_code<E5m2>(dst, a, scalar, count);
    default:
      return;
  }
}

// Dividing the narrow types in float32 and rounding again is one rounding: float32 has more than twice their digits.
void divide_target(void* dst, const void* a, int divisor, size_t count, weftDataType_t type) {
  const auto by = static_cast<float>(divisor);
  switch (type) {
    case weftInt8:
      return divide_integer<int8_t>(dst, a, divisor, count);
    case weftUint8:
      return divide_integer<uint8_t>(dst, a, divisor, count);
    case weftInt32:
      return divide_integer<int32_t>(dst, a, divisor, count);
    case weftUint32:
      return divide_integer<uint32_t>(dst, a, divisor, count);
    case weftInt64:
      return divide_integer<int64_t>(dst, a, divisor, count);
    case weftUint64:
      return divide_integer<uint64_t>(dst, a, divisor, count);
    case weftFloat32:
      return map(dst, a, count, DivideFloat<float>{by});
    case weftFloat64:
      return map(dst, a, count, DivideFloat<double>{static_cast<double>(divisor)});
    case weftFloat16:
      return map(dst, a, count, DivideCode<Fp16>{by});
    case weftBfloat16:
      return map(dst, a, count, DivideCode<Bf16>{by});
    case weftFloat8e4m3:
      return map(dst, a, count, DivideCode<E4m3>{by});
    case weftFloat8e5m2:
      return map(dst, a, count, DivideCode<E5m2>{by});
    default:
      return;
  }
}

void widen_target(float* dst, const void* a, size_t count, weftDataType_t type) {
  switch (type) {
    case weftFloat16:
      return map(dst, a, count, Widen<Fp16>{});
    case weftBfloat16:
      return map(dst, a, count, Widen<Bf16>{});
    case weftFloat8e4m3:
      return map(dst, a, count, Widen<E4m3>{});
    case weftFloat8e5m2:
      return map(dst, a, count, Widen<E5m2>{});
    default:
      return;
  }
}

void narrow_target(void* dst, const float* a, size_t count, weftDataType_t type) {
  switch (type) {
    case weftFloat16:
      return map(dst, a, count, Narrow<Fp16>{});
    case weftBfloat16:
      return map(dst, a, count, Narrow<Bf16>{});
    case weftFloat8e4m3:
      return map(dst, a, count, Narrow<E4m3>{});
    case weftFloat8e5m2:
      return map(dst, a, count, Narrow<E5m2>{});
    default:
      return;
  }
}

}  // namespace weft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(scale_target);
HWY_EXPORT(divide_target);
HWY_EXPORT(widen_target);
HWY_EXPORT(narrow_target);

void scale(void* dst, const void* a, const void* scalar, size_t count, weftDataType_t type) {
  HWY_DYNAMIC_DISPATCH(scale_target)(dst, a, scalar, count, type);
}
void divide(void* dst, const void* a, int divisor, size_t count, weftDataType_t type) {
  HWY_DYNAMIC_DISPATCH(divide_target)(dst, a, divisor, count, type);
}
void widen(float* dst, const void* a, size_t count, weftDataType_t type) {
  if (type == weftFloat32) return copy(dst, a, count * sizeof(float));
  HWY_DYNAMIC_DISPATCH(widen_target)(dst, a, count, type);
}
void narrow(void* dst, const float* a, size_t count, weftDataType_t type) {
  if (type == weftFloat32) return copy(dst, a, count * sizeof(float));
  HWY_DYNAMIC_DISPATCH(narrow_target)(dst, a, count, type);
}

}  // namespace weft
#endif
