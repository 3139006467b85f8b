#include "common/pattern.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace weft::perf {
namespace {

// Tables repeat after this many elements. It is prime, so a chunk that lands in another chunk's place (their distance
// is a multiple of a power of two, or of count/ranks) is not hidden by the repetition; and each repetition is rotated.
// With many ranks a shorter table keeps the work of reducing it in bounds.
size_t period_for(int ranks) { return ranks <= 64 ? 4093 : 251; }

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Format {
  int exponent_bits;
  int mantissa_bits;
};

Format format_of(weftDataType_t type) {
  switch (type) {
    case weftFloat16:
      return {5, 10};
    case weftBfloat16:
      return {8, 7};
    case weftFloat8e4m3:
      return {4, 3};
    case weftFloat8e5m2:
      return {5, 2};
    case weftFloat32:
      return {8, 23};
    default:
      return {11, 52};
  }
}

bool is_float(weftDataType_t type) {
  return type == weftFloat16 || type == weftBfloat16 || type == weftFloat8e4m3 || type == weftFloat8e5m2 ||
         type == weftFloat32 || type == weftFloat64;
}

bool is_signed(weftDataType_t type) { return type == weftInt8 || type == weftInt32 || type == weftInt64; }

int64_t sign_extend(uint64_t bits, size_t bytes) {
  int shift = 64 - 8 * static_cast<int>(bytes);
  return static_cast<int64_t>(bits << shift) >> shift;
}

uint64_t truncate(uint64_t bits, size_t bytes) { return bytes == 8 ? bits : bits & ((uint64_t{1} << (8 * bytes)) - 1); }

int64_t scalar_value(int rank) { return 1 + rank % 2; }

bool less(const TypeInfo& type, uint64_t a, uint64_t b) {
  if (is_float(type.type)) return decode(type.type, a) < decode(type.type, b);
  if (is_signed(type.type)) return sign_extend(a, type.bytes) < sign_extend(b, type.bytes);
  return a < b;
}

}  // namespace

uint64_t encode(weftDataType_t type, double value) {
  Format format = format_of(type);
  int bias = (1 << (format.exponent_bits - 1)) - 1;
  uint64_t sign = uint64_t{std::signbit(value)} << (format.exponent_bits + format.mantissa_bits);
  if (value == 0) return sign;
  int exponent = std::max(std::ilogb(value), 1 - bias);
  auto digits = static_cast<uint64_t>(std::nearbyint(std::ldexp(std::fabs(value), format.mantissa_bits - exponent)));
  // A normal number's digits include the leading one, which is worth one exponent step; so is a carry out of rounding.
  return sign | (digits + (static_cast<uint64_t>(exponent + bias - 1) << format.mantissa_bits));
}

double decode(weftDataType_t type, uint64_t bits) {
  Format format = format_of(type);
  int bias = (1 << (format.exponent_bits - 1)) - 1;
  uint64_t mantissa = bits & ((uint64_t{1} << format.mantissa_bits) - 1);
  int exponent = static_cast<int>((bits >> format.mantissa_bits) & ((uint64_t{1} << format.exponent_bits) - 1));
  bool negative = (bits >> (format.mantissa_bits + format.exponent_bits)) & 1;
  if (exponent > 0) mantissa |= uint64_t{1} << format.mantissa_bits;
  double value = std::ldexp(static_cast<double>(mantissa), std::max(exponent, 1) - bias - format.mantissa_bits);
  return negative ? -value : value;
}

Pattern::Pattern(const TypeInfo& type, Reduction reduction, int ranks, uint64_t seed, size_t limit)
    : type_(type),
      reduction_(reduction),
      ranks_(ranks),
      seed_(mix(seed)),
      period_(period_for(ranks)),
      length_(std::min(period_, limit)) {}

uint64_t Pattern::scalar(const TypeInfo& type, int rank) {
  if (is_float(type.type)) return encode(type.type, static_cast<double>(scalar_value(rank)));
  return static_cast<uint64_t>(scalar_value(rank));
}

// An integer whose sum over any set of ranks stays in [-capacity, capacity]: at most capacity / ranks in size. With
// more ranks than capacity only `capacity` of them, other ones for each element, give 1 or -1.
int64_t Pattern::small_integer(int rank, size_t j, int64_t capacity) const {
  uint64_t own = mix(seed_ ^ mix(j * 131 + static_cast<uint64_t>(rank) * 0x10001));
  int64_t bound = capacity / ranks_;
  if (bound > 0) {
    auto span = static_cast<uint64_t>(bound) * 2 + 1;
    return static_cast<int64_t>(own % span) - bound;
  }
  uint64_t place = (static_cast<uint64_t>(rank) + mix(seed_ + j)) % static_cast<uint64_t>(ranks_);
  if (place >= static_cast<uint64_t>(capacity)) return 0;
  return own & 1 ? 1 : -1;
}

double Pattern::float_input(int rank, size_t j) const {
  uint64_t shared = mix(seed_ + 7 * j);
  if (reduction_ == Reduction::kProd) {
    // Four ranks give a factor of 2 or 1/2, the others a sign: no partial product leaves 2^-4 .. 2^4.
    uint64_t own = mix(seed_ ^ mix(j * 257 + static_cast<uint64_t>(rank)));
    bool scales = (static_cast<uint64_t>(rank) + shared) % static_cast<uint64_t>(ranks_) < 4;
    double value = scales ? (own & 2 ? 2.0 : 0.5) : 1.0;
    return own & 1 ? -value : value;
  }
  // Sums of integers below 2^(digits of the type) are exact; a power of two common to all ranks keeps them so.
  int digits = format_of(type_.type).mantissa_bits + 1;
  int64_t capacity = int64_t{1} << (reduction_ == Reduction::kMulSum ? digits - 1 : digits);
  int scale = static_cast<int>(shared % 3);
  return std::ldexp(static_cast<double>(small_integer(rank, j, capacity)), scale);
}

uint64_t Pattern::input_bits(int rank, size_t j) const {
  uint64_t own = mix(seed_ ^ mix(j * 8191 + static_cast<uint64_t>(rank)));
  bool any_value = reduction_ == Reduction::kNone || reduction_ == Reduction::kMax || reduction_ == Reduction::kMin;
  if (is_float(type_.type)) {
    if (!any_value) return encode(type_.type, float_input(rank, j));
    // Any bits, but finite (the top exponent bit is 0) and not a zero (the lowest bit is 1).
    Format format = format_of(type_.type);
    uint64_t top = uint64_t{1} << (format.mantissa_bits + format.exponent_bits - 1);
    return truncate((own & ~top) | 1, type_.bytes);
  }
  if (reduction_ != Reduction::kAvg) return truncate(own, type_.bytes);
  uint64_t all = truncate(~uint64_t{0}, type_.bytes) >> 1;
  int64_t value = small_integer(rank, j, static_cast<int64_t>(all));
  return truncate(static_cast<uint64_t>(is_signed(type_.type) ? value : std::abs(value)), type_.bytes);
}

uint64_t Pattern::reduce_integers(size_t j) const {
  uint64_t result = reduction_ == Reduction::kProd ? 1 : 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    uint64_t x = input_bits(rank, j);
    if (reduction_ == Reduction::kProd)
      result *= x;
    else if (reduction_ == Reduction::kMulSum)
      result += x * static_cast<uint64_t>(scalar_value(rank));
    else
      result += is_signed(type_.type) ? static_cast<uint64_t>(sign_extend(x, type_.bytes)) : x;
  }
  if (reduction_ == Reduction::kAvg) {
    if (is_signed(type_.type))
      return truncate(static_cast<uint64_t>(static_cast<int64_t>(result) / ranks_), type_.bytes);
    return result / static_cast<uint64_t>(ranks_);
  }
  return truncate(result, type_.bytes);
}

uint64_t Pattern::reduce_floats(size_t j) const {
  double result = reduction_ == Reduction::kProd ? 1 : 0;
  for (int rank = 0; rank < ranks_; ++rank) {
    double x = float_input(rank, j);
    if (reduction_ == Reduction::kProd)
      result *= x;
    else
      result += reduction_ == Reduction::kMulSum ? x * static_cast<double>(scalar_value(rank)) : x;
  }
  if (reduction_ == Reduction::kAvg) result /= ranks_;
  return encode(type_.type, result);
}

uint64_t Pattern::reduced_bits(size_t j) const {
  if (reduction_ != Reduction::kMax && reduction_ != Reduction::kMin)
    return is_float(type_.type) ? reduce_floats(j) : reduce_integers(j);
  uint64_t result = input_bits(0, j);
  for (int rank = 1; rank < ranks_; ++rank) {
    uint64_t x = input_bits(rank, j);
    bool take = reduction_ == Reduction::kMax ? less(type_, result, x) : less(type_, x, result);
    if (take) result = x;
  }
  return result;
}

const std::vector<unsigned char>& Pattern::table(int source) {
  std::vector<unsigned char>& bytes = tables_[source];
  if (!bytes.empty() || length_ == 0) return bytes;
  bytes.resize(length_ * type_.bytes);
  for (size_t j = 0; j < length_; ++j) {
    uint64_t bits = source == kReduced ? reduced_bits(j) : input_bits(source, j);
    std::memcpy(bytes.data() + j * type_.bytes, &bits, type_.bytes);  // little-endian, as every host we run on
  }
  return bytes;
}

// Calls visit(element offset into the range, table index, length) for each stretch that is contiguous in the table.
template <typename Visit>
void Pattern::each_run(size_t from, size_t count, Visit visit) const {
  for (size_t done = 0; done < count;) {
    size_t block = (from + done) / period_;
    size_t offset = (from + done) % period_;
    size_t rotation = block == 0 ? 0 : mix(block) % period_;
    size_t index = (offset + rotation) % period_;
    size_t run = std::min({count - done, period_ - offset, period_ - index});
    visit(done, index, run);
    done += run;
  }
}

void Pattern::fill(void* to, int rank, size_t from, size_t count) {
  const auto& bytes = table(rank);
  auto* out = static_cast<unsigned char*>(to);
  each_run(from, count, [&](size_t done, size_t index, size_t run) {
    std::memcpy(out + done * type_.bytes, bytes.data() + index * type_.bytes, run * type_.bytes);
  });
}

size_t Pattern::count_wrong(const void* data, int source, size_t from, size_t count) {
  const auto& bytes = table(source);
  const auto* in = static_cast<const unsigned char*>(data);
  size_t wrong = 0;
  each_run(from, count, [&](size_t done, size_t index, size_t run) {
    const unsigned char* got = in + done * type_.bytes;
    const unsigned char* want = bytes.data() + index * type_.bytes;
    if (std::memcmp(got, want, run * type_.bytes) == 0) return;
    for (size_t i = 0; i < run * type_.bytes; i += type_.bytes)
      wrong += std::memcmp(got + i, want + i, type_.bytes) != 0;
  });
  return wrong;
}

size_t count_touched(const void* data, size_t bytes, size_t element) {
  const auto* in = static_cast<const unsigned char*>(data);
  if (bytes == 0 || (in[0] == kSentinel && std::memcmp(in, in + 1, bytes - 1) == 0)) return 0;
  size_t touched = 0;
  for (size_t i = 0; i < bytes; i += element) {
    size_t end = std::min(i + element, bytes);
    touched += std::any_of(in + i, in + end, [](unsigned char c) { return c != kSentinel; });
  }
  return touched;
}

}  // namespace weft::perf
