// The narrow floating-point formats as vectors: decode to float32, encode with one rounding, compare as integers.
// Compiled once per SIMD target, like loop-inl.hpp.
#if defined(WEFT_KERNELS_CONVERT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_CONVERT_INL
#undef WEFT_KERNELS_CONVERT_INL
#else
#define WEFT_KERNELS_CONVERT_INL
#endif

#include "hwy/highway.h"

// F16C: vcvtph2ps and vcvtps2ph exist, round to nearest even, and know denormals.
#undef WEFT_HAVE_F16C
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define WEFT_HAVE_F16C 1
#else
#define WEFT_HAVE_F16C 0
#endif

HWY_BEFORE_NAMESPACE();
namespace weft::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF32 = hn::ScalableTag<float>;
using DU32 = hn::RebindToUnsigned<DF32>;
using DI32 = hn::RebindToSigned<DF32>;
using VF32 = hn::Vec<DF32>;
using VU32 = hn::Vec<DU32>;

template <class D>
HWY_INLINE hn::Vec<D> canonical(D d, hn::Vec<D> v) {
  using T = hn::TFromD<D>;
  const hn::RebindToUnsigned<D> du;
  constexpr auto kQuiet = sizeof(T) == 8 ? uint64_t{0x7ff8} << 48 : uint64_t{0x7fc00000};
  const auto nan = hn::BitCast(d, hn::Set(du, static_cast<hn::TFromD<decltype(du)>>(kQuiet)));
  return hn::IfThenElse(hn::IsNaN(v), nan, v);
}

// Sign, exponent, mantissa. kTop is the code of infinity, or of NaN in a format without infinity (e4m3).
template <class T, int mant, int bias, uint32_t top, uint32_t nan, bool inf>
struct Format {
  using Bits = T;
  static constexpr int kMant = mant;
  static constexpr uint32_t kTop = top;
  static constexpr uint32_t kNan = nan;
  static constexpr bool kInf = inf;
  static constexpr int kShift = 23 - mant;
  static constexpr int kSignBit = 8 * sizeof(T) - 1;
  static constexpr uint32_t kMagnitude = (1u << kSignBit) - 1;
  // float32's exponent field, in place, at the smallest normal number and at the first power of two beyond the range.
  static constexpr uint32_t kMinExponent = (127u - bias + 1) << 23;
  static constexpr uint32_t kOverflow = inf ? (127u + bias + 1) << 23 : (127u + bias + 2) << 23;
};
using E4m3 = Format<uint8_t, 3, 7, 0x7f, 0x7f, false>;
using E5m2 = Format<uint8_t, 2, 15, 0x7c, 0x7e, true>;
using Fp16 = Format<uint16_t, 10, 15, 0x7c00, 0x7e00, true>;
struct Bf16 {
  using Bits = uint16_t;
  static constexpr uint32_t kTop = 0x7f80;
  static constexpr uint32_t kNan = 0x7fc0;
  static constexpr bool kInf = true;
};

// Exact. The code's exponent and mantissa, shifted, are those of a float32 but for the bias. A denormal code is read as
// 2^min * (1 + m) instead, minus 2^min: no denormal float32 ever appears, which would be slow. NaNs stay some NaN.
template <class F>
HWY_INLINE VF32 decode(VU32 code) {
  const DU32 du;
  const DF32 df;
  const auto magnitude = hn::ShiftLeft<F::kShift>(hn::And(code, hn::Set(du, F::kMagnitude)));
  const auto sign = hn::ShiftLeft<31 - F::kSignBit>(hn::And(code, hn::Set(du, 1u << F::kSignBit)));
  const auto unit = hn::Set(du, 1u << 23);
  const auto denormal = hn::Lt(hn::BitCast(DI32(), magnitude), hn::BitCast(DI32(), unit));
  const auto is_denormal = hn::BitCast(du, hn::VecFromMask(DI32(), denormal));
  auto bits = hn::Add(magnitude, hn::Set(du, F::kMinExponent - (1u << 23)));
  bits = hn::Add(bits, hn::And(is_denormal, unit));
  const auto value =
      hn::Sub(hn::BitCast(df, bits), hn::BitCast(df, hn::And(is_denormal, hn::Set(du, F::kMinExponent))));
  bits = hn::BitCast(du, value);
  const auto special =
      hn::Gt(hn::BitCast(DI32(), magnitude), hn::BitCast(DI32(), hn::Set(du, (F::kTop << F::kShift) - 1)));
  const auto is_special = hn::BitCast(du, hn::VecFromMask(DI32(), special));
  // Up to exponent 255; e4m3's only special code is NaN, made quiet in any case.
  bits = hn::Or(bits, hn::And(is_special, hn::Set(du, F::kInf ? 0x7f800000u : 0x7fc00000u)));
  return hn::BitCast(df, hn::Or(bits, sign));
}

// One rounding to nearest even. Adding 2^23 units in the last place of the result's binade (or of the denormals) rounds
// |f| in the float adder, and what stays in the sum's mantissa is the result's, with its leading bit; so code = that +
// (exponent - min) << mant, for normal and denormal numbers alike. Everything from the first power of two beyond the
// range on is cut to that power, whose code the last min makes infinity, or NaN in e4m3.
template <class F>
HWY_INLINE VU32 encode(VF32 f) {
  const DU32 du;
  const DI32 di;
  const DF32 df;
  const auto bits = hn::BitCast(du, f);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto cut = hn::Min(hn::BitCast(di, magnitude), hn::BitCast(di, hn::Set(du, F::kOverflow)));
  const auto min_exponent = hn::BitCast(di, hn::Set(du, F::kMinExponent));
  const auto exponent = hn::Max(hn::And(cut, hn::BitCast(di, hn::Set(du, 0x7f800000u))), min_exponent);
  const auto magic = hn::Add(exponent, hn::BitCast(di, hn::Set(du, uint32_t{F::kShift} << 23)));
  const auto sum = hn::BitCast(di, hn::Add(hn::BitCast(df, cut), hn::BitCast(df, magic)));
  auto code = hn::Add(hn::Sub(sum, magic), hn::ShiftRight<F::kShift>(hn::Sub(exponent, min_exponent)));
  const auto top = hn::BitCast(di, hn::Set(du, F::kTop));
  code = hn::Min(code, top);
  const auto sign = hn::And(hn::ShiftRight<31 - F::kSignBit>(bits), hn::Set(du, 1u << F::kSignBit));
  if constexpr (F::kInf) {
    const auto nan = hn::BitCast(du, hn::VecFromMask(df, hn::IsNaN(f)));
    return hn::IfVecThenElse(nan, hn::Set(du, F::kNan), hn::Or(hn::BitCast(du, code), sign));
  } else {
    const auto nan = hn::BitCast(du, hn::VecFromMask(di, hn::Eq(code, top)));
    return hn::Or(hn::BitCast(du, code), hn::AndNot(nan, sign));
  }
}

// Codes as stored, one vector of float32 lanes' worth (a half or a quarter of a full vector): to float32 and back. pack
// makes any NaN the canonical one, unpack leaves it some NaN.
template <class F>
using DCode = hn::Rebind<typename F::Bits, DF32>;

template <class F>
HWY_INLINE VF32 unpack(hn::Vec<DCode<F>> code) {
  if constexpr (std::is_same_v<F, Bf16>) {
    return hn::BitCast(DF32(), hn::ShiftLeft<16>(hn::PromoteTo(DU32(), code)));
  } else {
#if WEFT_HAVE_F16C
    if constexpr (std::is_same_v<F, Fp16>) {
      return hn::PromoteTo(DF32(), hn::BitCast(hn::Rebind<hwy::float16_t, DF32>(), code));
    }
#endif
    return decode<F>(hn::PromoteTo(DU32(), code));
  }
}

// Rounds a float32, not NaN or the canonical NaN, to bf16 in its upper half; the lower half is garbage.
HWY_INLINE VU32 round_bf16(VF32 f) {
  const DU32 du;
  const auto bits = hn::BitCast(du, f);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
}

template <class F>
HWY_INLINE hn::Vec<DCode<F>> pack(VF32 f) {
  if constexpr (std::is_same_v<F, Bf16>) {
    return hn::TruncateTo(DCode<F>(), hn::ShiftRight<16>(round_bf16(canonical(DF32(), f))));
  } else {
#if WEFT_HAVE_F16C
    if constexpr (std::is_same_v<F, Fp16>) {
      return hn::BitCast(DCode<F>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF32>(), canonical(DF32(), f)));
    }
#endif
    return hn::TruncateTo(DCode<F>(), encode<F>(f));
  }
}

}  // namespace weft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // WEFT_KERNELS_CONVERT_INL
