#include "kernels/families.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_float8.cpp"
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

#if WEFT_HAVE_F16C
// Both fp8 formats sit inside fp16: e5m2 is its upper byte, and e4m3, shifted into fp16's exponent and mantissa, is the
// fp16 of 2^-8 its value, denormals included. So the CPU's own conversions do most of the work, on sums and products in
// float32 as everywhere. The result passes through fp16 on its way: two roundings, which equal one because fp16 has
// more than twice the digits of fp8 and two to spare (and the tests try all pairs). This does not hold for any float32,
// so the general conversions do not do this.
using DF16 = hn::Rebind<hwy::float16_t, DF32>;
using DHalf = hn::Rebind<uint16_t, DF32>;
using D16 = hn::Twice<DHalf>;
using V16 = hn::Vec<D16>;
using DI16 = hn::RebindToSigned<D16>;

template <class F>
HWY_INLINE V16 to_fp16(V16 code) {
  const D16 d;
  if constexpr (F::kInf) {
    return hn::ShiftLeft<8>(code);
  } else {
    const auto magnitude = hn::And(code, hn::Set(d, 0x7f));
    const auto sign = hn::ShiftLeft<8>(hn::And(code, hn::Set(d, 0x80)));
    const auto nan =
        hn::BitCast(d, hn::VecFromMask(DI16(), hn::Eq(hn::BitCast(DI16(), magnitude), hn::Set(DI16(), 0x7f))));
    return hn::Or(hn::Or(hn::ShiftLeft<7>(magnitude), sign), hn::And(nan, hn::Set(d, 0x7e00)));
  }
}

template <class F>
HWY_INLINE V16 from_fp16(V16 half) {
  const D16 d;
  const DI16 di;
  constexpr int kDrop = F::kInf ? 8 : 7;
  const auto magnitude = hn::And(half, hn::Set(d, 0x7fff));
  const auto odd = hn::And(hn::ShiftRight<kDrop>(magnitude), hn::Set(d, 1));
  const auto rounded = hn::Add(magnitude, hn::Add(odd, hn::Set(d, (1 << (kDrop - 1)) - 1)));
  const auto sign = hn::And(hn::ShiftRight<8>(half), hn::Set(d, 0x80));
  const auto code = hn::Min(hn::ShiftRight<kDrop>(rounded), hn::Set(d, 0x7f));
  if constexpr (F::kInf) {
    const auto nan = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7c00));
    return hn::BitCast(d, hn::IfThenElse(nan, hn::Set(di, F::kNan), hn::BitCast(di, hn::Or(code, sign))));
  } else {
    const auto nan = hn::Eq(hn::BitCast(di, code), hn::Set(di, 0x7f));
    return hn::Or(code, hn::AndNot(hn::BitCast(d, hn::VecFromMask(di, nan)), sign));
  }
}

HWY_INLINE VF32 lower(V16 v) { return hn::PromoteTo(DF32(), hn::BitCast(DF16(), hn::LowerHalf(DHalf(), v))); }
HWY_INLINE VF32 upper(V16 v) { return hn::PromoteTo(DF32(), hn::BitCast(DF16(), hn::UpperHalf(DHalf(), v))); }
HWY_INLINE hn::Vec<DHalf> demote(VF32 v) { return hn::BitCast(DHalf(), hn::DemoteTo(DF16(), v)); }

template <class F, class Op>
struct Combine {
  using D = hn::Rebind<uint8_t, D16>;
  using V = hn::Vec<D>;
  static HWY_INLINE VF32 combine(VF32 a, VF32 b) {
    // A product of two values scaled by 2^-8 lacks one of the two factors.
    const auto result = Op::apply(a, b);
    if constexpr (!F::kInf && std::is_same_v<Op, Prod>) return hn::Mul(result, hn::Set(DF32(), 256.0f));
    return result;
  }
  static HWY_INLINE V apply(V a, V b) {
    const auto a16 = to_fp16<F>(hn::PromoteTo(D16(), a));
    const auto b16 = to_fp16<F>(hn::PromoteTo(D16(), b));
    const auto low = demote(combine(lower(a16), lower(b16)));
    const auto high = demote(combine(upper(a16), upper(b16)));
    return hn::TruncateTo(D(), from_fp16<F>(hn::Combine(D16(), high, low)));
  }
};
#else
template <class F, class Op>
struct Combine {
  using D = DCode<F>;
  using V = hn::Vec<D>;
  static HWY_INLINE V apply(V a, V b) { return pack<F>(Op::apply(unpack<F>(a), unpack<F>(b))); }
};
#endif

template <class F>
ReduceFn choose(weftRedOp_t op) {
  switch (op) {
    case weftProd:
      return reduce<Combine<F, Prod>>;
    case weftMax:
      return reduce<CodeExtremum<F, true>>;
    case weftMin:
      return reduce<CodeExtremum<F, false>>;
    default:
      return reduce<Combine<F, Sum>>;
  }
}

ReduceFn float8(weftDataType_t type, weftRedOp_t op) {
  return type == weftFloat8e5m2 ? choose<E5m2>(op) : choose<E4m3>(op);
}

}  // namespace weft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
HWY_EXPORT(float8);
ReduceFn reduce_float8(weftDataType_t type, weftRedOp_t op) { return HWY_DYNAMIC_DISPATCH(float8)(type, op); }
}  // namespace weft
#endif
