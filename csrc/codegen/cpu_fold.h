// Folds over lanes on the CPU.
#pragma once

#include "codegen/cpu_prelude.h"

namespace jf {

template <class T, int... i>
JF_FUNCTION Part<T> first_of(int count, Part<T> a, Part<T> b, Numbers<i...>) {
  using N = LaneNumber<T>;
  return Part<N>{N(i)...} < splat(N(count)) ? a : b;
}
// The active lanes of a, the others of b.
template <class T, int W>
JF_FUNCTION Lanes<T, W> first_lanes(All, const Lanes<T, W>& a, const Lanes<T, W>&) {
  return a;
}
template <class T, int W>
JF_FUNCTION Lanes<T, W> first_lanes(First on, const Lanes<T, W>& a, const Lanes<T, W>& b) {
  if constexpr (W <= JF_PART) {
    return {first_of<T>(active<W>(on), a.v, b.v, typename NumbersBelow<JF_PART>::Type{})};
  } else {
    return {first_lanes(on, a.lo, b.lo), first_lanes(rest(on, W / 2), a.hi, b.hi)};
  }
}

// Lane i gets what lane i ^ kDistance holds.
template <int kDistance, class T, int... i>
JF_FUNCTION Part<T> exchanged(Part<T> x, Numbers<i...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, x, (i ^ kDistance)...);
#else
  using N = LaneNumber<T>;
  return __builtin_shuffle(x, Part<N>{N(i ^ kDistance)...});
#endif
}
template <class Op, int kDistance, class T, int W>
JF_FUNCTION Lanes<T, W> folded_part(const Lanes<T, W>& x) {
  if constexpr (kDistance == 0) {
    return x;
  } else {
    const Lanes<T, W> y{exchanged<kDistance, T>(x.v, typename NumbersBelow<JF_PART>::Type{})};
    return folded_part<Op, kDistance / 2>(Op::of(x, y));
  }
}
// The fold of all lanes, in all lanes: halves first.
template <class Op, class T, int W>
JF_FUNCTION Lanes<T, W> folded(const Lanes<T, W>& x) {
  if constexpr (W <= JF_PART) {
    return folded_part<Op, W / 2>(x);
  } else {
    const Lanes<T, W / 2> half = folded<Op>(Op::of(x.lo, x.hi));
    return {half, half};
  }
}

}  // namespace jf

#include "codegen/fold.h"
