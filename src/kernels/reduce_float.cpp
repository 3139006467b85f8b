#include "kernels/families.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_float.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/convert-inl.hpp"
#include "kernels/loop-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace weft::HWY_NAMESPACE {

template <class T>
struct Sum {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) { return canonical(D(), hn::Add(a, b)); }
};

template <class T>
struct Prod {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) { return canonical(D(), hn::Mul(a, b)); }
};

// Equal values with different bits are the two zeros only: of those `and` takes the positive one, `or` the negative. A
// NaN in either becomes the canonical one; which operand the CPU's own max would return then does not matter.
template <class T, bool kMax>
struct Extremum {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) {
    const D d;
    const auto picked = kMax ? hn::IfThenElse(hn::Gt(a, b), a, b) : hn::IfThenElse(hn::Lt(a, b), a, b);
    const auto same = kMax ? hn::And(a, b) : hn::Or(a, b);
    const auto ordered = hn::IfThenElse(hn::Eq(a, b), same, picked);
    // Where a is NaN the comparisons are false and b was picked.
    return canonical(d, hn::IfThenElse(hn::IsNaN(a), a, ordered));
  }
};

template <class T>
ReduceFn choose(weftRedOp_t op, bool stream) {
  switch (op) {
    case weftProd:
      return reduction<Prod<T>>(stream);
    case weftMax:
      return reduction<Extremum<T, true>>(stream);
    case weftMin:
      return reduction<Extremum<T, false>>(stream);
    default:
      return reduction<Sum<T>>(stream);
  }
}

ReduceFn floating(weftDataType_t type, weftRedOp_t op, bool stream) {
  return type == weftFloat64 ? choose<double>(op, stream) : choose<float>(op, stream);
}

}  // namespace weft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
HWY_EXPORT(floating);
ReduceFn reduce_float(weftDataType_t type, weftRedOp_t op, bool stream) {
  return HWY_DYNAMIC_DISPATCH(floating)(type, op, stream);
}
}  // namespace weft
#endif
