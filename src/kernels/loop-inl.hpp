// The one loop under all kernels, compiled once per SIMD target. No include guard of the usual kind: Highway includes
// this again for each target.
//
// A kernel is a small value with
//   using D        the tag of its output vectors
//   at(i)          the output vector of elements [i, i + Lanes)
//   prefetch(i, b) fetches ahead what at(i) reads, for the line b bytes into its output
//   partial(n)     the same for the first n < Lanes elements, reading no byte beyond them
// and drive() stores what it computes.
#include <cstdint>
#include <cstring>

#if defined(WEFT_KERNELS_LOOP_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_LOOP_INL
#undef WEFT_KERNELS_LOOP_INL
#else
#define WEFT_KERNELS_LOOP_INL
#endif

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/reduce.hpp"
#include "kernels/stream.hpp"

HWY_BEFORE_NAMESPACE();
namespace weft::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The CPU's own prefetchers stop at pages; this far ahead of the loads a hint gains up to a tenth in memory and costs
// nothing, but in the first-level cache. It may reach beyond the buffers: a hint does not fault.
constexpr size_t kPrefetchBytes = 2048;
constexpr size_t kPrefetchFrom = 16384;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const void* p) {
  return hn::LoadU(d, static_cast<const hn::TFromD<D>*>(p));
}

template <class D>
HWY_INLINE void store(hn::Vec<D> v, D d, void* p) {
  hn::StoreU(v, d, static_cast<hn::TFromD<D>*>(p));
}

template <class Unit>
HWY_INLINE void copy_ends(uint8_t* to, const uint8_t* from, size_t bytes) {
  Unit first, last;
  std::memcpy(&first, from, sizeof(Unit));
  std::memcpy(&last, from + bytes - sizeof(Unit), sizeof(Unit));
  std::memcpy(to, &first, sizeof(Unit));
  std::memcpy(to + bytes - sizeof(Unit), &last, sizeof(Unit));
}

struct Block16 {
  uint64_t words[2];
};
struct Block32 {
  uint64_t words[4];
};

// Copies 0 < bytes < 64 without a call: two overlapping moves of the largest power of two that fits.
HWY_INLINE void copy_few(void* dst, const void* src, size_t bytes) {
  auto* to = static_cast<uint8_t*>(dst);
  const auto* from = static_cast<const uint8_t*>(src);
  if (bytes >= 32) return copy_ends<Block32>(to, from, bytes);
  if (bytes >= 16) return copy_ends<Block16>(to, from, bytes);
  if (bytes >= 8) return copy_ends<uint64_t>(to, from, bytes);
  if (bytes >= 4) return copy_ends<uint32_t>(to, from, bytes);
  if (bytes >= 2) return copy_ends<uint16_t>(to, from, bytes);
  *to = *from;
}

// The first n < Lanes elements; the rest of the vector is zero. Where masked loads cannot fault they are used, else the
// elements pass through the stack.
template <class D>
HWY_INLINE hn::Vec<D> load_first(D d, const void* p, size_t n) {
  using T = hn::TFromD<D>;
#if HWY_MEM_OPS_MIGHT_FAULT
  alignas(64) T few[hn::MaxLanes(D())] = {};
  copy_few(few, p, n * sizeof(T));
  return hn::Load(d, few);
#else
  return hn::MaskedLoad(hn::FirstN(d, n), d, static_cast<const T*>(p));
#endif
}

template <class D>
HWY_INLINE void store_first(hn::Vec<D> v, D d, void* p, size_t n) {
  using T = hn::TFromD<D>;
#if HWY_MEM_OPS_MIGHT_FAULT
  alignas(64) T few[hn::MaxLanes(D())];
  hn::Store(v, d, few);
  copy_few(p, few, n * sizeof(T));
#else
  hn::BlendedStore(v, hn::FirstN(d, n), d, static_cast<T*>(p));
#endif
}

template <bool kStream, class D>
HWY_INLINE void put(hn::Vec<D> v, D d, uint8_t* p) {
  if constexpr (kStream) {
    hn::Stream(v, d, reinterpret_cast<hn::TFromD<D>*>(p));
  } else {
    store(v, d, p);
  }
}

template <bool kStream, class Kernel>
HWY_INLINE void body(const Kernel kernel, uint8_t* dst, size_t i, size_t n) {
  using D = typename Kernel::D;
  constexpr size_t kBytes = sizeof(hn::TFromD<D>);
  const D d;
  const size_t lanes = hn::Lanes(d);
  const bool ahead = n * kBytes >= kPrefetchFrom;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    if (ahead) {
      for (size_t line = 0; line < 4 * lanes * kBytes; line += 64) kernel.prefetch(i, line);
    }
    const auto v0 = kernel.at(i);
    const auto v1 = kernel.at(i + lanes);
    const auto v2 = kernel.at(i + 2 * lanes);
    const auto v3 = kernel.at(i + 3 * lanes);
    put<kStream>(v0, d, dst + i * kBytes);
    put<kStream>(v1, d, dst + (i + lanes) * kBytes);
    put<kStream>(v2, d, dst + (i + 2 * lanes) * kBytes);
    put<kStream>(v3, d, dst + (i + 3 * lanes) * kBytes);
  }
  for (; i + lanes <= n; i += lanes) put<kStream>(kernel.at(i), d, dst + i * kBytes);
}

// Every store but the first and the last is aligned, and there is no scalar remainder: the first and the last vector
// are computed before anything is stored and stored after everything else, overlapping their neighbours with equal
// bits. So it works in place as well, where a late load of an overlapping vector would read what is already reduced.
template <class Kernel>
HWY_INLINE void drive(const Kernel kernel, void* to, size_t n, bool stream) {
  using D = typename Kernel::D;
  using T = hn::TFromD<D>;
  const D d;
  const size_t lanes = hn::Lanes(d);
  auto* dst = static_cast<uint8_t*>(to);
  if (n < lanes) {
    if (n != 0) store_first(kernel.partial(n), d, dst, n);
    return;
  }
  const auto first = kernel.at(0);
  if (n == lanes) return store(first, d, dst);
  const auto last = kernel.at(n - lanes);
  const size_t bytes_to_line = (0 - reinterpret_cast<uintptr_t>(dst)) % (lanes * sizeof(T));
  const bool can_align = bytes_to_line % sizeof(T) == 0;
  const size_t start = can_align ? bytes_to_line / sizeof(T) : 0;
  // A non-temporal store of less than 16 bytes does not exist: Highway would write 16.
  constexpr bool kCanStream = hn::MaxLanes(D()) * sizeof(T) >= 16;
  if (kCanStream && stream && can_align) {
    body<kCanStream>(kernel, dst, start, n);
    hwy::FlushStream();
  } else {
    body<false>(kernel, dst, start, n);
  }
  store(first, d, dst);
  store(last, d, dst + (n - lanes) * sizeof(T));
}

// Two inputs and an output of one type; Op has `using D` and a static `Vec apply(Vec a, Vec b)`.
template <class Op>
struct Binary {
  using D = typename Op::D;
  static constexpr size_t kBytes = sizeof(hn::TFromD<D>);
  const uint8_t* a;
  const uint8_t* b;

  HWY_INLINE void prefetch(size_t i, size_t line) const {
    hwy::Prefetch(a + i * kBytes + line + kPrefetchBytes);
    hwy::Prefetch(b + i * kBytes + line + kPrefetchBytes);
  }
  HWY_INLINE hn::Vec<D> at(size_t i) const { return Op::apply(load(D(), a + i * kBytes), load(D(), b + i * kBytes)); }
  HWY_INLINE hn::Vec<D> partial(size_t n) const { return Op::apply(load_first(D(), a, n), load_first(D(), b, n)); }
};

template <class Op>
HWY_NOINLINE void reduce(void* dst, const void* a, const void* b, size_t count, size_t stream_from) {
  // In place the line is in the cache already and a non-temporal store would only drive it out.
  const bool stream = dst != a && dst != b && count * Binary<Op>::kBytes >= stream_from;
  drive(Binary<Op>{static_cast<const uint8_t*>(a), static_cast<const uint8_t*>(b)}, dst, count, stream);
}

template <class Op, size_t kStreamFrom>
void reduce_from(void* dst, const void* a, const void* b, size_t count) {
  reduce<Op>(dst, a, b, count, kStreamFrom);
}

template <class Op>
ReduceFn reduction(bool stream) {
  return stream ? reduce_from<Op, kStreamTileBytes> : reduce_from<Op, kStreamReduceBytes>;
}

// One input; Op is a value with `using In`, `using Out` (tags of as many lanes) and `Vec<Out> apply(Vec<In> a) const`.
template <class Op>
struct Unary {
  using D = typename Op::Out;
  using In = typename Op::In;
  static constexpr size_t kBytes = sizeof(hn::TFromD<In>);
  const uint8_t* a;
  Op op;

  HWY_INLINE void prefetch(size_t, size_t) const {}
  HWY_INLINE hn::Vec<D> at(size_t i) const { return op.apply(load(In(), a + i * kBytes)); }
  HWY_INLINE hn::Vec<D> partial(size_t n) const { return op.apply(load_first(In(), a, n)); }
};

template <class Op>
void map(void* dst, const void* a, size_t count, const Op op) {
  drive(Unary<Op>{static_cast<const uint8_t*>(a), op}, dst, count, false);
}

}  // namespace weft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // WEFT_KERNELS_LOOP_INL
