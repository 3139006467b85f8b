#include "kernels/families.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_integer.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/loop-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace weft::HWY_NAMESPACE {

template <class T>
struct Sum {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) { return hn::Add(a, b); }
};

template <class T>
struct Prod {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) { return hn::Mul(a, b); }
};

// No CPU multiplies bytes: the even and the odd ones as 16-bit lanes, of which only the low byte counts.
template <>
struct Prod<uint8_t> {
  using D = hn::ScalableTag<uint8_t>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(D(), static_cast<uint8_t>(hn::GetLane(a) * hn::GetLane(b)));
#else
    const hn::Repartition<uint16_t, D> d16;
    const auto a16 = hn::BitCast(d16, a);
    const auto b16 = hn::BitCast(d16, b);
    const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0xff));
    const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
    return hn::BitCast(D(), hn::Or(even, odd));
#endif
  }
};

template <class T>
struct Maximum {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) { return hn::Max(a, b); }
};

template <class T>
struct Minimum {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) { return hn::Min(a, b); }
};

// Sums and products are taken modulo 2^bits, on unsigned lanes.
template <class T>
ReduceFn choose(weftRedOp_t op, bool stream) {
  using U = hwy::MakeUnsigned<T>;
  switch (op) {
    case weftProd:
      return reduction<Prod<U>>(stream);
    case weftMax:
      return reduction<Maximum<T>>(stream);
    case weftMin:
      return reduction<Minimum<T>>(stream);
    default:
      return reduction<Sum<U>>(stream);
  }
}

ReduceFn integer(weftDataType_t type, weftRedOp_t op, bool stream) {
  switch (type) {
    case weftInt8:
      return choose<int8_t>(op, stream);
    case weftUint8:
      return choose<uint8_t>(op, stream);
    case weftInt32:
      return choose<int32_t>(op, stream);
    case weftUint32:
      return choose<uint32_t>(op, stream);
    case weftInt64:
      return choose<int64_t>(op, stream);
    default:
      return choose<uint64_t>(op, stream);
  }
}

}  // namespace weft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
HWY_EXPORT(integer);
ReduceFn reduce_integer(weftDataType_t type, weftRedOp_t op, bool stream) {
  return HWY_DYNAMIC_DISPATCH(integer)(type, op, stream);
}
}  // namespace weft
#endif
