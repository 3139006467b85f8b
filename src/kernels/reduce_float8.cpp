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
//
// The even and the odd bytes are treated apart, as 16-bit lanes, without moving any across lanes.
using D8 = hn::ScalableTag<uint8_t>;
using D16 = hn::Repartition<uint16_t, D8>;
using DHalf = hn::Half<D16>;
using DF16 = hn::Rebind<hwy::float16_t, DHalf>;
using V8 = hn::Vec<D8>;
using V16 = hn::Vec<D16>;

// A code in the upper byte becomes an fp16. An arithmetic shift keeps the sign and repeats it in the exponent's top
// bit, which no e4m3 has. NaN of e4m3 becomes a number here.
template <class F>
HWY_INLINE V16 to_fp16(V16 code) {
  if constexpr (F::kInf) return code;
  const hn::RebindToSigned<D16> signed16;
  return hn::And(hn::BitCast(D16(), hn::ShiftRight<1>(hn::BitCast(signed16, code))), hn::Set(D16(), 0xbf80));
}

HWY_INLINE VF32 lower(V16 v) { return hn::PromoteTo(DF32(), hn::BitCast(DF16(), hn::LowerHalf(DHalf(), v))); }
HWY_INLINE VF32 upper(V16 v) { return hn::PromoteTo(DF32(), hn::BitCast(DF16(), hn::UpperHalf(DHalf(), v))); }
HWY_INLINE hn::Vec<DHalf> demote(VF32 v) { return hn::BitCast(DHalf(), hn::DemoteTo(DF16(), v)); }

// The magnitude of an fp16 rounded to the format's, in the lower byte; at most 0x7f for e4m3, more than 0x7c exactly
// for NaN in e5m2.
template <class F>
HWY_INLINE V16 round_fp16(V16 half) {
  const D16 d;
  constexpr int kDrop = F::kInf ? 8 : 7;
  const auto odd = hn::And(hn::ShiftRight<kDrop>(half), hn::Set(d, 1));
  const auto magnitude = hn::And(half, hn::Set(d, 0x7fff));
  const auto code = hn::ShiftRight<kDrop>(hn::Add(magnitude, hn::Add(odd, hn::Set(d, (1 << (kDrop - 1)) - 1))));
  return F::kInf ? code : hn::Min(code, hn::Set(d, 0x7f));
}

template <class F, class Op>
struct Combine {
  using D = D8;
  using V = V8;
  static HWY_INLINE VF32 combine(VF32 a, VF32 b) {
    // A product of two values scaled by 2^-8 lacks one of the two factors.
    const auto result = Op::apply(a, b);
    if constexpr (!F::kInf && std::is_same_v<Op, Prod>) return hn::Mul(result, hn::Set(DF32(), 256.0f));
    return result;
  }
  static HWY_INLINE V16 combine_fp16(V16 a, V16 b) {
    const auto low = demote(combine(lower(a), lower(b)));
    const auto high = demote(combine(upper(a), upper(b)));
    return hn::Combine(D16(), high, low);
  }
  static HWY_INLINE V apply(V a, V b) {
    const D8 d8;
    const D16 d16;
    const auto upper_byte = hn::Set(d16, 0xff00);
    const auto a16 = hn::BitCast(d16, a);
    const auto b16 = hn::BitCast(d16, b);
    const auto even = combine_fp16(to_fp16<F>(hn::ShiftLeft<8>(a16)), to_fp16<F>(hn::ShiftLeft<8>(b16)));
    const auto odd = combine_fp16(to_fp16<F>(hn::And(a16, upper_byte)), to_fp16<F>(hn::And(b16, upper_byte)));
    const auto code = hn::Or(round_fp16<F>(even), hn::ShiftLeft<8>(round_fp16<F>(odd)));
    const auto sign = hn::And(hn::Or(hn::ShiftRight<8>(even), hn::And(odd, upper_byte)), hn::Set(d16, 0x8080));
    const auto result = hn::BitCast(d8, hn::Or(code, sign));
    const auto nan = hn::Set(d8, F::kNan);
    if constexpr (F::kInf) {
      // Both sides are at most 0x80; what a NaN's rounding carries into the sign is cut.
      const auto largest = hn::Set(d8, static_cast<uint8_t>(F::kTop));
      const auto magnitude = hn::And(hn::BitCast(d8, code), hn::Set(d8, 0x7f));
      return hn::IfThenElse(hn::Eq(hn::Max(magnitude, largest), largest), result, nan);
    } else {
      const auto magnitude = hn::Set(d8, 0x7f);
      const auto operands = hn::Max(hn::And(a, magnitude), hn::And(b, magnitude));
      return hn::IfThenElse(hn::Eq(hn::Max(operands, hn::BitCast(d8, code)), magnitude), nan, result);
    }
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

ReduceFn float8(weftDataType_t type, weftRedOp_t op, bool stream) {
  return type == weftFloat8e5m2 ? choose<E5m2>(op, stream) : choose<E4m3>(op, stream);
}

}  // namespace weft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
HWY_EXPORT(float8);
ReduceFn reduce_float8(weftDataType_t type, weftRedOp_t op, bool stream) {
  return HWY_DYNAMIC_DISPATCH(float8)(type, op, stream);
}
}  // namespace weft
#endif
