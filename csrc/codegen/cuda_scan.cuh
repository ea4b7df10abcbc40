// Scans over the lanes of one thread on CUDA.
#pragma once

#include "codegen/cuda_fold.cuh"

namespace jf {

// The last lane in the order of the scan, in all lanes.
template <bool kReverse, class T, int W>
JF_FUNCTION Lanes<T, W> last_lane(const Lanes<T, W>& x) {
  return splat(Type<Lanes<T, W>>{}, x.v[kReverse ? 0 : W - 1]);
}

template <class Op, class T>
JF_FUNCTION T fold_two(T a, T b) {
  return Op::of(Lanes<T, 1>{{a}}, Lanes<T, 1>{{b}}).v[0];
}

template <class Op, bool kReverse, class T, int W>
JF_FUNCTION Lanes<T, W> scanned(Lanes<T, W> x) {
#pragma unroll
  for (int i = 1; i < W; ++i) {
    const int at = kReverse ? W - 1 - i : i, before = kReverse ? at + 1 : at - 1;
    x.v[at] = fold_two<Op>(x.v[before], x.v[at]);
  }
  return x;
}

// What stands before each lane in the order of the scan: `carry` before the first one, before the next one f times
// that, and x. `carry` becomes what stands behind the last one, in all lanes.
template <bool kForgets, bool kReverse, class T, int W>
JF_FUNCTION Lanes<T, W> recurred(Lanes<T, W>& carry, const Lanes<T, W>& f, const Lanes<T, W>& x) {
  Lanes<T, W> result;
  T last = carry.v[0];
#pragma unroll
  for (int i = 0; i < W; ++i) {
    const int at = kReverse ? W - 1 - i : i;
    result.v[at] = last;
    last = kForgets && f.v[at] != f.v[at] ? x.v[at] : x.v[at] + f.v[at] * last;
  }
  carry = splat(Type<Lanes<T, W>>{}, last);
  return result;
}

}  // namespace jf

#include "codegen/scan.h"
