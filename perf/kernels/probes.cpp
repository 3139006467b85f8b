#include "probes.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::perf {
namespace {

// Left to the compiler: baseline instructions, whatever it makes of them.
void plain(float* dst, const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; ++i) dst[i] = a[i] + b[i];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void avx2(float* dst, const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; i += 32) {
    for (size_t j = i; j < i + 32; j += 8) _mm256_store_ps(dst + j, _mm256_load_ps(a + j) + _mm256_load_ps(b + j));
  }
}

__attribute__((target("avx2"))) void avx2_stream(float* dst, const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; i += 32) {
    for (size_t j = i; j < i + 32; j += 8) _mm256_stream_ps(dst + j, _mm256_load_ps(a + j) + _mm256_load_ps(b + j));
  }
  _mm_sfence();
}

__attribute__((target("avx512f"))) void avx512(float* dst, const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; i += 64) {
    for (size_t j = i; j < i + 64; j += 16) _mm512_store_ps(dst + j, _mm512_load_ps(a + j) + _mm512_load_ps(b + j));
  }
}

__attribute__((target("avx512f"))) void avx512_stream(float* dst, const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; i += 64) {
    for (size_t j = i; j < i + 64; j += 16) _mm512_stream_ps(dst + j, _mm512_load_ps(a + j) + _mm512_load_ps(b + j));
  }
  _mm_sfence();
}

// With the sources fetched ahead of the CPU's own prefetcher, which stops at pages.
__attribute__((target("avx512f"))) void avx512_prefetch(float* dst, const float* a, const float* b, size_t count) {
  constexpr size_t kAhead = 512;  // elements: 2 KiB
  for (size_t i = 0; i < count; i += 16) {
    _mm_prefetch(reinterpret_cast<const char*>(a + i + kAhead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(b + i + kAhead), _MM_HINT_T0);
    _mm512_store_ps(dst + i, _mm512_load_ps(a + i) + _mm512_load_ps(b + i));
  }
}

__attribute__((target("avx512f"))) void avx512_prefetch_stream(float* dst, const float* a, const float* b,
                                                               size_t count) {
  constexpr size_t kAhead = 512;
  for (size_t i = 0; i < count; i += 16) {
    _mm_prefetch(reinterpret_cast<const char*>(a + i + kAhead), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(b + i + kAhead), _MM_HINT_T0);
    _mm512_stream_ps(dst + i, _mm512_load_ps(a + i) + _mm512_load_ps(b + i));
  }
  _mm_sfence();
}
#endif

}  // namespace

std::vector<Probe> probes() {
  std::vector<Probe> all = {{"plain", plain}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    all.push_back({"avx2", avx2});
    all.push_back({"avx2-stream", avx2_stream});
  }
  if (__builtin_cpu_supports("avx512f")) {
    all.push_back({"avx512", avx512});
    all.push_back({"avx512-stream", avx512_stream});
    all.push_back({"avx512-prefetch", avx512_prefetch});
    all.push_back({"avx512-prefetch-stream", avx512_prefetch_stream});
  }
#endif
  return all;
}

}  // namespace weft::perf
