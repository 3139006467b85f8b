// The serial reference of every collective test: one element at a time, by plain arithmetic on exact values, sharing no
// code with the kernels it judges. An element travels as its bits, zero-extended to 64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/types.hpp"

namespace weft::reference {

using Bits = uint64_t;

Bits load(weftDataType_t type, const void* element);
void store(weftDataType_t type, void* element, Bits bits);

// The value; exact for every type but 64-bit integers beyond 2^53.
double decode(weftDataType_t type, Bits bits);
// The nearest value of the type, ties to even, overflow and NaN as in weft.h. Integers: truncated, then wrapped.
Bits encode(weftDataType_t type, double value);
// A float becomes the type with one rounding. For float32 itself only NaN changes, to the canonical one.
Bits narrow(weftDataType_t type, float value);
// fp16, bf16, fp8 and float32 as float32; NaN becomes the canonical one.
float widen(weftDataType_t type, Bits bits);

bool is_nan(weftDataType_t type, Bits bits);
Bits canonical_nan(weftDataType_t type);
// fp16, bf16 and both fp8: the types that are combined in fp32.
bool is_narrow(weftDataType_t type);

// One hop: a op b with one rounding. op is sum, prod, max or min; avg and made ops combine by sum.
Bits combine(weftDataType_t type, weftRedOp_t op, Bits a, Bits b);
// a * scalar, as a pre-multiplied sum does before its first hop.
Bits scale(weftDataType_t type, Bits a, Bits scalar);
// a / divisor: rounded once, or truncated toward zero. divisor >= 1.
Bits divide(weftDataType_t type, Bits a, int divisor);

// The reduction of one element over ranks, folded from the left in the order given: (((x0 op x1) op x2) ...). avg
// divides by inputs.size() at the end. `wide` carries fp32 partial results of the narrow types and rounds once at the
// end (after avg's division). With `scalars` not empty, input i is first scaled by scalars[i] (to the type; in fp32,
// unrounded to the type, when wide).
Bits fold(weftDataType_t type, weftRedOp_t op, std::span<const Bits> inputs, bool wide = false,
          std::span<const Bits> scalars = {});

// The same for whole buffers: element i of the result folds element i of each input. The order of the inputs is the
// order of the hops.
std::vector<std::byte> fold_buffers(weftDataType_t type, weftRedOp_t op, std::span<const void* const> inputs,
                                    size_t count, bool wide = false, std::span<const Bits> scalars = {});

enum class Pattern {
  kBits,    // random bits, a third of them NaNs of all payloads, signed zeros, infinities, denormals, extremes
  kFinite,  // random finite values of moderate size with full mantissas: results depend on the order of the hops
  kExact,  // values whose sum (or product, if op is prod) over any subset of up to 64 ranks is exact in the type: every
           // order of hops, narrow or wide, gives the same bits
};

// Element `index` of rank `rank`: a pure function of its arguments, so a test can recompute any element anywhere.
Bits element(Pattern pattern, weftDataType_t type, weftRedOp_t op, uint64_t seed, int rank, size_t index);
// buffer[i] = element(..., first + i)
void fill(Pattern pattern, weftDataType_t type, weftRedOp_t op, uint64_t seed, int rank, size_t first, void* buffer,
          size_t count);
// For weftRedOpCreatePreMulSum with kExact: a power of two per rank that keeps the sum exact.
Bits exact_scalar(weftDataType_t type, int rank);

// "bfloat16 0x3f80 (1)", for messages.
std::string show(weftDataType_t type, Bits bits);
// "" if equal, else the first: "element 1 of 3: float 0x40000000 (2) instead of float 0x40a00000 (5), 2 differ".
std::string first_difference(weftDataType_t type, const void* actual, const void* expected, size_t count);

}  // namespace weft::reference
