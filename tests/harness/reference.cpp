#include "reference.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace weft::reference {
namespace {

// A binary format by its parameters. e4m3 has no infinity: its top exponent is an ordinary one whose last code is NaN.
struct Layout {
  int exponent_bits;
  int mantissa_bits;
  bool infinity;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int sign_bit() const { return exponent_bits + mantissa_bits; }
  Bits top_exponent() const { return (Bits{1} << exponent_bits) - 1; }
  Bits infinity_code() const { return top_exponent() << mantissa_bits; }
  Bits nan_code() const {
    return infinity ? infinity_code() | Bits{1} << (mantissa_bits - 1) : (Bits{1} << sign_bit()) - 1;
  }
};

Layout layout(weftDataType_t type) {
  switch (type) {
    case weftFloat16:
      return {5, 10, true};
    case weftBfloat16:
      return {8, 7, true};
    case weftFloat8e4m3:
      return {4, 3, false};
    case weftFloat8e5m2:
      return {5, 2, true};
    case weftFloat64:
      return {11, 52, true};
    default:
      return {8, 23, true};
  }
}

bool is_signed(weftDataType_t type) { return type == weftInt8 || type == weftInt32 || type == weftInt64; }

Bits wrap(weftDataType_t type, Bits bits) {
  const int width = 8 * static_cast<int>(type_bytes(type));
  return width == 64 ? bits : bits & ((Bits{1} << width) - 1);
}

int64_t extend(weftDataType_t type, Bits bits) {
  const int shift = 64 - 8 * static_cast<int>(type_bytes(type));
  return static_cast<int64_t>(bits << shift) >> shift;
}

// The value is significand * 2^(exponent - bias - mantissa_bits), with the hidden bit unless denormal.
double decode_float(Layout format, Bits bits) {
  const bool negative = bits >> format.sign_bit() & 1;
  const Bits magnitude = bits & ((Bits{1} << format.sign_bit()) - 1);
  const Bits exponent = magnitude >> format.mantissa_bits;
  const Bits mantissa = magnitude & ((Bits{1} << format.mantissa_bits) - 1);
  double value;
  if (!format.infinity && magnitude == format.nan_code()) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (format.infinity && exponent == format.top_exponent()) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else {
    const bool denormal = exponent == 0;
    const Bits significand = denormal ? mantissa : mantissa | Bits{1} << format.mantissa_bits;
    const int power = (denormal ? 1 : static_cast<int>(exponent)) - format.bias() - format.mantissa_bits;
    value = std::ldexp(static_cast<double>(significand), power);
  }
  return negative ? -value : value;
}

// Scale so that the last place of the result is 1, round the integer, scale back: nearbyint breaks ties to even. The
// codes of a format follow each other as its values do, so a carry into the next binade, or into infinity, is right.
Bits encode_float(Layout format, double value) {
  if (std::isnan(value)) return format.nan_code();
  const Bits sign = std::signbit(value) ? Bits{1} << format.sign_bit() : 0;
  const double magnitude = std::fabs(value);
  const Bits overflow = format.infinity ? sign | format.infinity_code() : format.nan_code();
  if (std::isinf(magnitude)) return overflow;
  if (magnitude == 0) return sign;
  const int min_exponent = 1 - format.bias();
  const int exponent = std::max(std::ilogb(magnitude), min_exponent);
  const auto places = static_cast<Bits>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent)));
  const Bits code = places + (static_cast<Bits>(exponent - min_exponent) << format.mantissa_bits);
  if (code >= (format.infinity ? format.infinity_code() : format.nan_code())) return overflow;
  return sign | code;
}

// -0 below +0; NaN is dealt with by the caller.
bool less(double a, double b) { return a < b || (a == b && std::signbit(a) && !std::signbit(b)); }

template <class T>
T combine_float(weftRedOp_t op, T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
  switch (op) {
    case weftProd:
      return a * b;
    case weftMax:
      return less(a, b) ? b : a;
    case weftMin:
      return less(b, a) ? b : a;
    default:
      return a + b;
  }
}

Bits combine_integer(weftDataType_t type, weftRedOp_t op, Bits a, Bits b) {
  const bool below = is_signed(type) ? extend(type, a) < extend(type, b) : a < b;
  switch (op) {
    case weftProd:
      return wrap(type, a * b);
    case weftMax:
      return below ? b : a;
    case weftMin:
      return below ? a : b;
    default:
      return wrap(type, a + b);
  }
}

// splitmix64's finaliser over the arguments.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

uint64_t random_bits(uint64_t seed, int rank, size_t index) {
  return mix(mix(mix(seed) + static_cast<uint64_t>(rank)) + index);
}

// A third of all elements: the corners of the format, and NaNs of every sign and payload.
Bits special_float(Layout format, uint64_t random) {
  const Bits sign = (random >> 8 & 1) << format.sign_bit();
  const Bits mantissa_mask = (Bits{1} << format.mantissa_bits) - 1;
  const Bits payload = random >> 12 & mantissa_mask;
  const Bits top = format.infinity ? format.infinity_code() : format.nan_code();
  switch (random % 8) {
    case 0:
      return sign;
    case 1:
      return sign | top;
    case 2:
      return sign | (format.infinity ? top | std::max<Bits>(payload, 1) : top);
    case 3:
      return sign | payload;  // denormal
    case 4:
      return sign | (top - 1);  // largest
    case 5:
      return sign | Bits{1} << format.mantissa_bits;  // smallest normal
    case 6:
      return sign | 1;  // smallest denormal
    default:
      return sign | static_cast<Bits>(format.bias()) << format.mantissa_bits;  // 1
  }
}

Bits special_integer(weftDataType_t type, uint64_t random) {
  const Bits top = Bits{1} << (8 * type_bytes(type) - 1);
  const Bits corners[] = {0, 1, wrap(type, ~Bits{0}), top, top - 1};
  return corners[random % 5];
}

// Integers 1, 2 or 4 of either sign in a product, small ones in a sum, wherever the range allows; the rest is neutral.
Bits exact_integer(weftDataType_t type, weftRedOp_t op, uint64_t random) {
  const auto small = static_cast<int64_t>(random >> 3 & 7);
  const int64_t value = op == weftProd ? 1 + small % 3 : is_signed(type) ? small - 3 : small;
  return wrap(type, static_cast<Bits>(value));
}

// With p mantissa bits every integer up to 2^(p+1) is exact. A sum over 64 ranks stays within it if few of them, spread
// over the ranks, add integers of the size that remains: 16 ranks add +-1 in e4m3, 8 in e5m2; from bf16 on all add up
// to 2^(p-5). Each index has a scale, common to all ranks, so that neighbours differ. A product over 64 ranks is exact
// if at most 6 of them have a factor other than 1, and these are powers of two.
Bits exact_float(weftDataType_t type, weftRedOp_t op, uint64_t seed, int rank, size_t index) {
  const Layout format = layout(type);
  const uint64_t random = random_bits(seed, rank, index);
  const uint64_t turn = static_cast<uint64_t>(rank) + index;
  if (op == weftProd) {
    const double factor = turn % 12 == 0 ? (random & 2 ? 2.0 : 0.5) : 1.0;
    return encode_float(format, random & 1 ? factor : -factor);
  }
  const double scale = std::ldexp(1.0, static_cast<int>(mix(seed + index) % 4) - 2);
  double value;
  if (format.mantissa_bits < 6) {
    value = turn % (format.mantissa_bits == 3 ? 4 : 8) == 0 ? 1.0 : 0.0;
  } else {
    const int bits = std::min(format.mantissa_bits - 5, 12);
    value = static_cast<double>(1 + (random >> 3) % (uint64_t{1} << bits));
  }
  return encode_float(format, (random & 1 ? value : -value) * scale);
}

Bits finite_float(weftDataType_t type, weftRedOp_t op, uint64_t random) {
  const double fraction = static_cast<double>(random >> 11) * 0x1p-53;
  const int power = op == weftProd ? 0 : static_cast<int>(random >> 1 & 7) - 4;
  const double value = std::ldexp(op == weftProd ? 0.75 + fraction / 2 : 1.0 + fraction, power);
  return encode_float(layout(type), random & 1 ? value : -value);
}

}  // namespace

Bits load(weftDataType_t type, const void* element) {
  Bits bits = 0;  // little-endian, as all of Weft
  std::memcpy(&bits, element, type_bytes(type));
  return bits;
}

void store(weftDataType_t type, void* element, Bits bits) { std::memcpy(element, &bits, type_bytes(type)); }

double decode(weftDataType_t type, Bits bits) {
  if (kTypes[type].floating) return decode_float(layout(type), bits);
  return is_signed(type) ? static_cast<double>(extend(type, bits)) : static_cast<double>(bits);
}

Bits encode(weftDataType_t type, double value) {
  if (kTypes[type].floating) return encode_float(layout(type), value);
  const double whole = std::trunc(value);
  return wrap(type, whole < 0 ? Bits{0} - static_cast<Bits>(-whole) : static_cast<Bits>(whole));
}

Bits narrow(weftDataType_t type, float value) { return encode_float(layout(type), static_cast<double>(value)); }
float widen(weftDataType_t type, Bits bits) {
  return std::bit_cast<float>(
      static_cast<uint32_t>(encode_float(layout(weftFloat32), decode_float(layout(type), bits))));
}

bool is_nan(weftDataType_t type, Bits bits) { return kTypes[type].floating && std::isnan(decode(type, bits)); }
Bits canonical_nan(weftDataType_t type) { return layout(type).nan_code(); }
bool is_narrow(weftDataType_t type) { return kTypes[type].floating && type_bytes(type) < 4; }

Bits combine(weftDataType_t type, weftRedOp_t op, Bits a, Bits b) {
  if (!kTypes[type].floating) return combine_integer(type, op, a, b);
  if (type == weftFloat64) return encode(type, combine_float(op, decode(type, a), decode(type, b)));
  return narrow(type, combine_float(op, widen(type, a), widen(type, b)));
}

Bits scale(weftDataType_t type, Bits a, Bits scalar) { return combine(type, weftProd, a, scalar); }

Bits divide(weftDataType_t type, Bits a, int divisor) {
  if (type == weftFloat64) return encode(type, decode(type, a) / divisor);
  if (kTypes[type].floating) return narrow(type, widen(type, a) / static_cast<float>(divisor));
  if (is_signed(type)) return wrap(type, static_cast<Bits>(extend(type, a) / divisor));
  return a / static_cast<Bits>(divisor);
}

Bits fold(weftDataType_t type, weftRedOp_t op, std::span<const Bits> inputs, bool wide, std::span<const Bits> scalars) {
  if (inputs.empty()) return 0;
  // Wide is the same fold on the float32 images.
  if (wide && is_narrow(type)) {
    std::vector<Bits> inputs32, scalars32;
    for (const Bits input : inputs) inputs32.push_back(std::bit_cast<uint32_t>(widen(type, input)));
    for (const Bits scalar : scalars) scalars32.push_back(std::bit_cast<uint32_t>(widen(type, scalar)));
    const Bits result = fold(weftFloat32, op, inputs32, false, scalars32);
    return narrow(type, std::bit_cast<float>(static_cast<uint32_t>(result)));
  }
  const auto input = [&](size_t i) { return scalars.empty() ? inputs[i] : scale(type, inputs[i], scalars[i]); };
  Bits result = input(0);
  for (size_t i = 1; i < inputs.size(); ++i) result = combine(type, op, result, input(i));
  return op == weftAvg ? divide(type, result, static_cast<int>(inputs.size())) : result;
}

std::vector<std::byte> fold_buffers(weftDataType_t type, weftRedOp_t op, std::span<const void* const> inputs,
                                    size_t count, bool wide, std::span<const Bits> scalars) {
  const size_t bytes = type_bytes(type);
  std::vector<std::byte> result(count * bytes);
  std::vector<Bits> column(inputs.size());
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < inputs.size(); ++j) {
      column[j] = load(type, static_cast<const std::byte*>(inputs[j]) + i * bytes);
    }
    store(type, result.data() + i * bytes, fold(type, op, column, wide, scalars));
  }
  return result;
}

Bits element(Pattern pattern, weftDataType_t type, weftRedOp_t op, uint64_t seed, int rank, size_t index) {
  const uint64_t random = random_bits(seed, rank, index);
  const bool floating = kTypes[type].floating;
  switch (pattern) {
    case Pattern::kBits:
      if (mix(random) % 3 == 0) return floating ? special_float(layout(type), random) : special_integer(type, random);
      return wrap(type, random);
    case Pattern::kFinite:
      return floating ? finite_float(type, op, random) : wrap(type, random);
    default:
      return floating ? exact_float(type, op, seed, rank, index) : exact_integer(type, op, random);
  }
}

void fill(Pattern pattern, weftDataType_t type, weftRedOp_t op, uint64_t seed, int rank, size_t first, void* buffer,
          size_t count) {
  auto* to = static_cast<std::byte*>(buffer);
  for (size_t i = 0; i < count; ++i) {
    store(type, to + i * type_bytes(type), element(pattern, type, op, seed, rank, first + i));
  }
}

// One power for all ranks of narrow types, whose few digits hold no mixture of them.
Bits exact_scalar(weftDataType_t type, int rank) {
  const double power = is_narrow(type) ? 1.0 : rank % 3;
  return encode(type, std::ldexp(1.0, static_cast<int>(power)));
}

std::string show(weftDataType_t type, Bits bits) {
  const size_t digits = 2 * type_bytes(type);
  if (!kTypes[type].floating) {
    return is_signed(type) ? fmt::format("{} {}", kTypes[type].name, extend(type, bits))
                           : fmt::format("{} {}", kTypes[type].name, bits);
  }
  return fmt::format("{} 0x{:0{}x} ({})", kTypes[type].name, bits, digits, decode(type, bits));
}

std::string first_difference(weftDataType_t type, const void* actual, const void* expected, size_t count) {
  const size_t bytes = type_bytes(type);
  if (count == 0 || std::memcmp(actual, expected, count * bytes) == 0) return "";
  std::string message;
  size_t differing = 0;
  for (size_t i = 0; i < count; ++i) {
    const Bits is = load(type, static_cast<const std::byte*>(actual) + i * bytes);
    const Bits should_be = load(type, static_cast<const std::byte*>(expected) + i * bytes);
    if (is == should_be) continue;
    if (differing++ == 0) {
      message = fmt::format("element {} of {}: {} instead of {}", i, count, show(type, is), show(type, should_be));
    }
  }
  return fmt::format("{}, {} differ", message, differing);
}

}  // namespace weft::reference
