// Searches in sorted tables on CUDA, by all lanes together or by each of them.
#pragma once

#include "codegen/cuda_memory.cuh"
#include "codegen/search.h"

namespace jf {

// All lanes get what the first one finds.
template <bool kLeft, int kCount, class T, int W>
JF_FUNCTION Lanes<s32, W> search(const T* table, long offset, const Lanes<T, W>& number) {
  return splat(Type<Lanes<s32, W>>{}, s32(count_before<kLeft, kCount>(table + offset, number.v[0])));
}

// Each lane has a number of its own, and where the stride is not 0 a table.
template <bool kLeft, int kCount, class T, int W, class On = All>
JF_FUNCTION Lanes<s32, W> search_lanes(const T* table, long offset, long stride, const Lanes<T, W>& number,
                                       On on = {}) {
  const T* const run = table + offset;
  Lanes<s32, W> places;
  if constexpr (kCount > 0) {
    if (stride == 0) {
      int place = places.v[0] = count_before<kLeft, kCount>(run, number.v[0]);
#pragma unroll
      for (int i = 1; i < W; ++i) place = places.v[i] = place_near<kLeft, kCount>(run, place, number.v[i]);
      return places;
    }
  }
#pragma unroll
  for (int i = 0; i < W; ++i) {
    places.v[i] = is_active(on, i) ? count_before<kLeft, kCount>(run + i * stride, number.v[i]) : 0;
  }
  return places;
}

}  // namespace jf
