// Stores past the caches: a large result that nobody reads soon then costs no read of the lines that it overwrites.
// Whoever reads it on another thread waits for a locked instruction of this one, which ends such stores.
#pragma once

#include "codegen/cpu_memory.h"

namespace jf {

// Vectors of 16, 32 and 64 bytes, aligned to their size. Machines without the instruction store as always.
typedef long long TwoWords __attribute__((vector_size(16)));
typedef long long FourWords __attribute__((vector_size(32)));
typedef long long EightWords __attribute__((vector_size(64)));
template <class V>
JF_FUNCTION void write_past_caches(void* p, V x) {
#if defined(__clang__)
  __builtin_nontemporal_store(x, (V*)p);
#else
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) return __builtin_ia32_movntdq512((EightWords*)p, (EightWords)x);
#endif
#if defined(__AVX__)
  if constexpr (sizeof(V) == 32) return __builtin_ia32_movntdq256((FourWords*)p, (FourWords)x);
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(V) == 16) return __builtin_ia32_movntdq((TwoWords*)p, (TwoWords)x);
#endif
  __builtin_memcpy(p, &x, sizeof(V));
#endif
}

// As store; the offset is a multiple of W and the caller asks for it only where p is aligned to a cache line.
template <class M, class T, int W>
JF_FUNCTION void stream(bool past_caches, M* p, long offset, Lanes<T, W> x, All on = {}) {
  if constexpr (W == 2 * JF_PART && encodes_two<M>) {
    if (past_caches) {
      write_past_caches(p + offset, encode_two(M{}, x.lo.v, x.hi.v));
    } else {
      store(p, offset, x, on);
    }
  } else if constexpr (W > JF_PART) {
    stream(past_caches, p, offset, x.lo);
    stream(past_caches, p, offset + W / 2, x.hi);
  } else if constexpr (W == JF_PART && W * sizeof(M) >= 16 && W * sizeof(M) <= 64) {
    if (past_caches) {
      write_past_caches(p + offset, encode(M{}, x.v));
    } else {
      store(p, offset, x, on);
    }
  } else {
    store(p, offset, x, on);
  }
}
template <class M, class T, int W>
JF_FUNCTION void stream(bool, M* p, long offset, Lanes<T, W> x, First on) {
  store(p, offset, x, on);
}

// Brings the lines of W elements to the second-level cache.
template <int W, class M>
JF_FUNCTION void prefetch(const M* p, long offset) {
  constexpr int kLine = 64 / sizeof(M);
  for (int i = 0; i < W; i += kLine) __builtin_prefetch(p + offset + i, 0, 2);
}

}  // namespace jf
