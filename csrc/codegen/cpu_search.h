// Searches in sorted tables on the CPU, by all lanes together or by each of them.
#pragma once

#include "codegen/cpu_memory.h"
#include "codegen/search.h"

namespace jf {

template <class T, int W>
JF_FUNCTION T first_lane(Lanes<T, W> x) {
  if constexpr (W <= JF_PART) {
    return x.v[0];
  } else {
    return first_lane(x.lo);
  }
}

// All lanes get what the first one finds.
template <bool kLeft, int kCount, class T, int W>
JF_FUNCTION Lanes<s32, W> search(const T* table, long offset, Lanes<T, W> number) {
  const int place = count_before<kLeft, kCount>(table + offset, first_lane(number));
  return broadcast_part(Type<Lanes<s32, W>>{}, splat(s32(place)));
}

template <bool kLeft, int kCount, class T, int W>
JF_FUNCTION bool all_there(const T* run, int place, Lanes<T, W> number) {
  if constexpr (W <= JF_PART) {
    bool there = true;
    for (int i = 0; i < W; ++i) there &= is_place<kLeft, kCount>(run, place, number.v[i]);
    return there;
  } else {
    return all_there<kLeft, kCount>(run, place, number.lo) && all_there<kLeft, kCount>(run, place, number.hi);
  }
}
template <bool kLeft, int kCount, class T, int W, class On>
JF_FUNCTION Lanes<s32, W> search_each(const T* run, long stride, Lanes<T, W> number, On on) {
  if constexpr (W <= JF_PART) {
    const int count = active<W>(on);
    Part<s32> places{};
    for (int i = 0; i < W; ++i) {
      places[i] = i < count ? count_before<kLeft, kCount>(run + i * stride, number.v[i]) : 0;
    }
    return {places};
  } else {
    constexpr int kHalf = W / 2;
    return {search_each<kLeft, kCount>(run, stride, number.lo, on),
            search_each<kLeft, kCount>(run + kHalf * stride, stride, number.hi, rest(on, kHalf))};
  }
}
// Each lane has a number of its own, and where the stride is not 0 a table.
template <bool kLeft, int kCount, class T, int W, class On = All>
JF_FUNCTION Lanes<s32, W> search_lanes(const T* table, long offset, long stride, Lanes<T, W> number, On on = {}) {
  if constexpr (kCount > 0) {
    if (stride == 0) {
      const int place = count_before<kLeft, kCount>(table + offset, first_lane(number));
      if (all_there<kLeft, kCount>(table + offset, place, number)) {
        return broadcast_part(Type<Lanes<s32, W>>{}, splat(s32(place)));
      }
    }
  }
  return search_each<kLeft, kCount>(table + offset, stride, number, on);
}

}  // namespace jf
