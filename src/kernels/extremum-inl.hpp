// max and min of the narrow floating-point formats, on their codes. Compiled once per SIMD target, like loop-inl.hpp.
#if defined(WEFT_KERNELS_EXTREMUM_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_EXTREMUM_INL
#undef WEFT_KERNELS_EXTREMUM_INL
#else
#define WEFT_KERNELS_EXTREMUM_INL
#endif

#include "kernels/convert-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace weft::HWY_NAMESPACE {

// Sign and magnitude become two's complement if the magnitude's bits of negative codes are flipped, -0 just below +0;
// the same flip leads back.
template <class F, bool kMax>
struct CodeExtremum {
  using T = hwy::MakeSigned<typename F::Bits>;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static constexpr T kMagnitude = static_cast<T>((1u << (8 * sizeof(T) - 1)) - 1);
  static constexpr T kLargest = static_cast<T>(F::kInf ? F::kTop : F::kTop - 1);

  static HWY_INLINE V flip(V v) { return hn::Xor(v, hn::And(hn::BroadcastSignBit(v), hn::Set(D(), kMagnitude))); }
  static HWY_INLINE V apply(V a, V b) {
    const D d;
    const auto magnitude = hn::Set(d, kMagnitude);
    const auto extremum = flip(kMax ? hn::Max(flip(a), flip(b)) : hn::Min(flip(a), flip(b)));
    const auto largest = hn::Max(hn::And(a, magnitude), hn::And(b, magnitude));
    return hn::IfThenElse(hn::Gt(largest, hn::Set(d, kLargest)), hn::Set(d, static_cast<T>(F::kNan)), extremum);
  }
};

}  // namespace weft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // WEFT_KERNELS_EXTREMUM_INL
