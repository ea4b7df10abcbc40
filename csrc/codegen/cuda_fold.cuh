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
template <class On, class T, int W>
JF_FUNCTION Lanes<T, W> first_lanes(On on, const Lanes<T, W>& a, const Lanes<T, W>& b) {
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

namespace jf {

// The largest and smallest of what was loaded as bf16, in pairs.
JF_FUNCTION u32 fold_pair(fold::max, u32 a, u32 b) { return ptx::max_nan_bf16x2(a, b); }
JF_FUNCTION u32 fold_pair(fold::min, u32 a, u32 b) { return ptx::min_nan_bf16x2(a, b); }
template <int W>
JF_FUNCTION Packed<W> magnitudes(Packed<W> x) {
#pragma unroll
  for (int i = 0; i < W / 2; ++i) x.v[i] &= 0x7fff7fffu;
  return x;
}
template <class Op, int W>
JF_FUNCTION void fill(Packed<W>& x) {
  x = pack(constant<Lanes<f32, W>>(Op::template identity<f32>()));
}
template <class Op, int W>
JF_FUNCTION void accumulate(Packed<W>& element, const Packed<W>& value, All = {}) {
#pragma unroll
  for (int i = 0; i < W / 2; ++i) element.v[i] = fold_pair(Op{}, element.v[i], value.v[i]);
}
template <class Op, int W, class On>
JF_FUNCTION void accumulate(Packed<W>& element, Packed<W> value, On on) {
  constexpr u32 kLow = 0xffff;
  const u32 other = encode_pair(bf16{}, Op::template identity<f32>(), Op::template identity<f32>());
#pragma unroll
  for (int i = 0; i < W / 2; ++i) {
    const u32 there = (is_active(on, 2 * i) ? kLow : 0) | (is_active(on, 2 * i + 1) ? ~kLow : 0);
    value.v[i] = (value.v[i] & there) | (other & ~there);
  }
  accumulate<Op>(element, value);
}
template <class Op, int W, class On = All>
JF_FUNCTION void accumulate(Packed<W>& element, const Lanes<f32, W>& value, On on = {}) {
  accumulate<Op>(element, pack(value), on);
}

}  // namespace jf
