// Scans over lanes on the CPU: each step takes in lanes twice as far away.
#pragma once

#include "codegen/cpu_fold.h"

namespace jf {

// Lane i gets what lane i - kDistance holds, or with kReverse lane i + kDistance; of `nothing` where there is none.
template <int kDistance, int kLanes, bool kReverse, class T, int... i>
JF_FUNCTION Part<T> moved(Part<T> x, Part<T> nothing, Numbers<i...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, nothing,
                                 (kReverse ? (i + kDistance < kLanes ? i + kDistance : JF_PART + i)
                                           : (i >= kDistance ? i - kDistance : JF_PART + i))...);
#else
  using N = LaneNumber<T>;
  return __builtin_shuffle(x, nothing,
                           Part<N>{N(kReverse ? (i + kDistance < kLanes ? i + kDistance : JF_PART + i)
                                              : (i >= kDistance ? i - kDistance : JF_PART + i))...});
#endif
}
template <int kFrom, class T, int... i>
JF_FUNCTION Part<T> repeated(Part<T> x, Numbers<i...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, x, (i, kFrom)...);
#else
  using N = LaneNumber<T>;
  return __builtin_shuffle(x, Part<N>{(i, N(kFrom))...});
#endif
}

// The last lane in the order of the scan, in all lanes.
template <bool kReverse, class T, int W>
JF_FUNCTION Lanes<T, W> last_lane(const Lanes<T, W>& x) {
  if constexpr (W <= JF_PART) {
    return {repeated<kReverse ? 0 : W - 1, T>(x.v, typename NumbersBelow<JF_PART>::Type{})};
  } else {
    const Lanes<T, W / 2> half = last_lane<kReverse>(kReverse ? x.lo : x.hi);
    return {half, half};
  }
}

template <class Op, bool kReverse, int kDistance, class T, int W>
JF_FUNCTION Lanes<T, W> scanned_part(const Lanes<T, W>& x) {
  if constexpr (kDistance >= W) {
    return x;
  } else {
    Lanes<T, W> nothing;
    fill<Op>(nothing);
    const Lanes<T, W> y{moved<kDistance, W, kReverse, T>(x.v, nothing.v, typename NumbersBelow<JF_PART>::Type{})};
    return scanned_part<Op, kReverse, 2 * kDistance>(Op::of(y, x));
  }
}
template <class Op, bool kReverse, class T, int W>
JF_FUNCTION Lanes<T, W> scanned(const Lanes<T, W>& x) {
  if constexpr (W <= JF_PART) {
    return scanned_part<Op, kReverse, 1>(x);
  } else {
    const Lanes<T, W / 2> lo = scanned<Op, kReverse>(x.lo), hi = scanned<Op, kReverse>(x.hi);
    if constexpr (kReverse) return {Op::of(last_lane<true>(hi), lo), hi};
    return {lo, Op::of(last_lane<false>(lo), hi)};
  }
}

// What stands before each lane in the order of the scan, one after the other, as a loop would: `carry` before the first
// one, before the next one f times that, and x. `carry` becomes what stands behind the last one, in all lanes.
template <bool kForgets, bool kReverse, class T, int W>
JF_FUNCTION Lanes<T, W> recurred(Lanes<T, W>& carry, const Lanes<T, W>& f, const Lanes<T, W>& x) {
  if constexpr (W <= JF_PART) {
    Lanes<T, W> result = x;
    auto last = carry.v[0];
    for (int i = 0; i < W; ++i) {
      const int at = kReverse ? W - 1 - i : i;
      result.v[at] = last;
      last = kForgets && f.v[at] != f.v[at] ? x.v[at] : x.v[at] + f.v[at] * last;
    }
    carry = {splat(last)};
    return result;
  } else {
    Lanes<T, W / 2> half = carry.lo;
    Lanes<T, W> result;
    if constexpr (kReverse) result.hi = recurred<kForgets, true>(half, f.hi, x.hi);
    result.lo = recurred<kForgets, kReverse>(half, f.lo, x.lo);
    if constexpr (!kReverse) result.hi = recurred<kForgets, false>(half, f.hi, x.hi);
    carry = {half, half};
    return result;
  }
}

}  // namespace jf

#include "codegen/scan.h"
