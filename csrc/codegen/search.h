// Binary search in a run of memory, for both languages. The length of the run is known, so there is no loop and no
// branch; whatever the run holds, only its elements are read.
#pragma once

namespace jf {

template <bool kLeft, class T>
JF_FUNCTION bool is_before(T element, T number) {
  return kLeft ? element < number : element <= number;
}

// How many of kCount elements, which `at` others precede, come before a number.
template <bool kLeft, int kCount, class T>
JF_FUNCTION int count_before(const T* run, T number, int at = 0) {
  if constexpr (kCount == 0) {
    return at;
  } else if constexpr (kCount == 1) {
    return at + is_before<kLeft>(run[at], number);
  } else {
    constexpr int kHalf = kCount / 2;
    const bool is_beyond = is_before<kLeft>(run[at + kHalf - 1], number);
    return count_before<kLeft, kCount - kHalf>(run, number, at + (is_beyond ? kHalf : 0));
  }
}

// Whether the search finds this place. Most lanes find what the first one found.
template <bool kLeft, int kCount, class T>
JF_FUNCTION bool is_place(const T* run, int place, T number) {
  const T below = run[place > 0 ? place - 1 : 0], above = run[place < kCount ? place : kCount - 1];
  return (place == 0 || is_before<kLeft>(below, number)) && (place == kCount || !is_before<kLeft>(above, number));
}

// The place of a number that is likely to lie where the one before it does, or in the next place.
template <bool kLeft, int kCount, class T>
JF_FUNCTION int place_near(const T* run, int place, T number) {
  if (is_place<kLeft, kCount>(run, place, number)) return place;
  const int next = place < kCount ? place + 1 : kCount;
  return is_place<kLeft, kCount>(run, next, number) ? next : count_before<kLeft, kCount>(run, number);
}

}  // namespace jf
