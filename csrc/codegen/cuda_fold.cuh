// Folds over the lanes of one thread on CUDA.
#pragma once

#include "codegen/cuda_prelude.cuh"

#define JF_UNROLL _Pragma("unroll")

namespace jf {

// The active lanes of a, the others of b.
template <class T, int W>
JF_FUNCTION Lanes<T, W> first_lanes(All, const Lanes<T, W>& a, const Lanes<T, W>&) {
  return a;
}
template <class T, int W>
JF_FUNCTION Lanes<T, W> first_lanes(Some on, const Lanes<T, W>& a, const Lanes<T, W>& b) {
  Lanes<T, W> x;
#pragma unroll
  for (int i = 0; i < W; ++i) x.v[i] = is_active(on, i) ? a.v[i] : b.v[i];
  return x;
}
template <class T, int W>
JF_FUNCTION Lanes<T, W> first_lanes(First on, const Lanes<T, W>& a, const Lanes<T, W>& b) {
  Lanes<T, W> x;
#pragma unroll
  for (int i = 0; i < W; ++i) x.v[i] = is_active(on, i) ? a.v[i] : b.v[i];
  return x;
}

// The fold of all lanes, in all lanes: halves first.
template <class Op, class T, int W>
JF_FUNCTION Lanes<T, W> folded(const Lanes<T, W>& x) {
  if constexpr (W == 1) {
    return x;
  } else {
    Lanes<T, W / 2> low, high;
#pragma unroll
    for (int i = 0; i < W / 2; ++i) low.v[i] = x.v[i], high.v[i] = x.v[i + W / 2];
    return splat(Type<Lanes<T, W>>{}, folded<Op>(Op::of(low, high)).v[0]);
  }
}

}  // namespace jf

#include "codegen/fold.h"
