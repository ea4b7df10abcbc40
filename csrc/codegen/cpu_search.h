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
template <class T, int W>
JF_FUNCTION T last_lane(Lanes<T, W> x) {
  if constexpr (W <= JF_PART) {
    return x.v[W - 1];
  } else {
    return last_lane(x.hi);
  }
}

// All lanes get what the first one finds.
template <bool kLeft, int kCount, class T, int W>
JF_FUNCTION Lanes<s32, W> search(const T* table, long offset, Lanes<T, W> number) {
  const int place = count_before<kLeft, kCount>(table + offset, first_lane(number));
  return broadcast_part(Type<Lanes<s32, W>>{}, splat(s32(place)));
}

// The same; `place`: what the search before this one found.
template <bool kLeft, int kCount, class T, int W>
JF_FUNCTION Lanes<s32, W> search(int& place, const T* table, long offset, Lanes<T, W> number) {
  if constexpr (kCount > 0) place = place_near<kLeft, kCount>(table + offset, place, first_lane(number));
  return broadcast_part(Type<Lanes<s32, W>>{}, splat(s32(place)));
}

// Whether the search finds one place for all lanes.
template <bool kLeft, int kCount, class T, int W>
JF_FUNCTION bool all_there(const T* run, int place, Lanes<T, W> number) {
  if constexpr (W > JF_PART) {
    return all_there<kLeft, kCount>(run, place, number.lo) && all_there<kLeft, kCount>(run, place, number.hi);
  } else {
    const Part<T> below = splat(run[place > 0 ? place - 1 : 0]),
                  above = splat(run[place < kCount ? place : kCount - 1]);
    const auto beyond = kLeft ? below < number.v : below <= number.v;
    const auto before = kLeft ? number.v <= above : number.v < above;
    const decltype(beyond) none = beyond ^ beyond;
    const auto there = (beyond | (place == 0 ? ~none : none)) & (before | (place == kCount ? ~none : none));
    bool all = true;
    if constexpr (W == JF_PART && sizeof(there) == sizeof(Part<s32>)) {
      all = !any(bits_as<s32>(~there));
    } else {
      for (int i = 0; i < W; ++i) all &= there[i] != 0;
    }
    return all;
  }
}
// `place` is that of the lane before.
template <bool kLeft, int kCount, class T, int W>
JF_FUNCTION Lanes<s32, W> search_near(const T* run, int place, Lanes<T, W> number) {
  if constexpr (W <= JF_PART) {
    Part<s32> places{};
    for (int i = 0; i < W; ++i) places[i] = place = place_near<kLeft, kCount>(run, place, number.v[i]);
    return {places};
  } else {
    const auto low = search_near<kLeft, kCount>(run, place, number.lo);
    return {low, search_near<kLeft, kCount>(run, last_lane(low), number.hi)};
  }
}
// Each lane in a table of its own.
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
// Each lane has a number of its own, in one table. `place`: what the last lane of the search before this one found.
template <bool kLeft, int kCount, class T, int W, class On = All>
JF_FUNCTION Lanes<s32, W> search_lanes(int& place, const T* table, long offset, Lanes<T, W> number, On = {}) {
  if constexpr (kCount == 0) {
    return broadcast_part(Type<Lanes<s32, W>>{}, splat(s32(0)));
  } else {
    const T* const run = table + offset;
    if (all_there<kLeft, kCount>(run, place, number)) return broadcast_part(Type<Lanes<s32, W>>{}, splat(s32(place)));
    const Lanes<s32, W> places = search_near<kLeft, kCount>(run, place, number);
    place = last_lane(places);
    return places;
  }
}
// Each lane has a number of its own, and where the stride is not 0 a table.
template <bool kLeft, int kCount, class T, int W, class On = All>
JF_FUNCTION Lanes<s32, W> search_lanes(const T* table, long offset, long stride, Lanes<T, W> number, On on = {}) {
  const T* const run = table + offset;
  if constexpr (kCount > 0) {
    if (stride == 0) {
      const int place = count_before<kLeft, kCount>(run, first_lane(number));
      if (all_there<kLeft, kCount>(run, place, number)) {
        return broadcast_part(Type<Lanes<s32, W>>{}, splat(s32(place)));
      }
      return search_near<kLeft, kCount>(run, place, number);
    }
  }
  return search_each<kLeft, kCount>(run, stride, number, on);
}

}  // namespace jf
