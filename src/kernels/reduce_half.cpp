#include "kernels/families.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_half.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/convert-inl.hpp"
#include "kernels/extremum-inl.hpp"
#include "kernels/loop-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace weft::HWY_NAMESPACE {

struct Sum {
  static HWY_INLINE VF32 apply(VF32 a, VF32 b) { return hn::Add(a, b); }
};
struct Prod {
  static HWY_INLINE VF32 apply(VF32 a, VF32 b) { return hn::Mul(a, b); }
};

template <class F, class Op>
struct Combine {
  using D = DCode<F>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) { return pack<F>(Op::apply(unpack<F>(a), unpack<F>(b))); }
};

#if HWY_TARGET != HWY_SCALAR
// A bf16 is the upper half of a float32: the odd and the even ones are treated apart, without moving any across lanes.
template <class Op>
struct Combine<Bf16, Op> {
  using D = hn::ScalableTag<uint16_t>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) {
    const DU32 du;
    const DF32 df;
    const auto upper = hn::Set(du, 0xffff0000u);
    const auto a32 = hn::BitCast(du, a);
    const auto b32 = hn::BitCast(du, b);
    const auto even = Op::apply(hn::BitCast(df, hn::ShiftLeft<16>(a32)), hn::BitCast(df, hn::ShiftLeft<16>(b32)));
    const auto odd = Op::apply(hn::BitCast(df, hn::And(a32, upper)), hn::BitCast(df, hn::And(b32, upper)));
    const auto low = hn::ShiftRight<16>(round_bf16(canonical(df, even)));
    const auto high = hn::And(round_bf16(canonical(df, odd)), upper);
    return hn::BitCast(D(), hn::Or(low, high));
  }
};
#endif

template <class F>
ReduceFn choose(weftRedOp_t op, bool stream) {
  switch (op) {
    case weftProd:
      return reduction<Combine<F, Prod>>(stream);
    case weftMax:
      return reduction<CodeExtremum<F, true>>(stream);
    case weftMin:
      return reduction<CodeExtremum<F, false>>(stream);
    default:
      return reduction<Combine<F, Sum>>(stream);
  }
}

ReduceFn half(weftDataType_t type, weftRedOp_t op, bool stream) {
  return type == weftBfloat16 ? choose<Bf16>(op, stream) : choose<Fp16>(op, stream);
}

}  // namespace weft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
HWY_EXPORT(half);
ReduceFn reduce_half(weftDataType_t type, weftRedOp_t op, bool stream) {
  return HWY_DYNAMIC_DISPATCH(half)(type, op, stream);
}
}  // namespace weft
#endif
