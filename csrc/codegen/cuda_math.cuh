// The ops of ir/ops.def that take floats alone, by CUDA's own precise functions.
#pragma once

#include "codegen/cuda_prelude.cuh"

namespace jf::scalar {

JF_FUNCTION f64 floor(f64 x) { return ::floor(x); }
JF_FUNCTION f64 log(f64 x) { return ::log(x); }
JF_FUNCTION f64 tan(f64 x) { return ::tan(x); }
JF_FUNCTION f32 log2(f32 x) { return ::log2f(x); }
// CUDA's own is not exact at every power of two.
JF_FUNCTION f64 log2(f64 x) {
  int exponent;
  const f64 part = ::frexp(x, &exponent);
  const bool low = part < 0.70710678118654752;
  return ::log2(low ? 2 * part : part) + (low ? exponent - 1 : exponent);
}

}  // namespace jf::scalar

#include "codegen/digamma.h"
#include "codegen/short_functions.h"

namespace jf {

#define JF_MATH(name, function)                                 \
  template <int W>                                              \
  JF_FUNCTION Lanes<f32, W> name(const Lanes<f32, W>& a) {      \
    return map<f32>([](f32 x) { return ::function##f(x); }, a); \
  }                                                             \
  template <int W>                                              \
  JF_FUNCTION Lanes<f64, W> name(const Lanes<f64, W>& a) {      \
    return map<f64>([](f64 x) { return ::function(x); }, a);    \
  }
#define JF_MATH2(name, function)                                                   \
  template <int W>                                                                 \
  JF_FUNCTION Lanes<f32, W> name(const Lanes<f32, W>& a, const Lanes<f32, W>& b) { \
    return map<f32>([](f32 x, f32 y) { return ::function##f(x, y); }, a, b);       \
  }                                                                                \
  template <int W>                                                                 \
  JF_FUNCTION Lanes<f64, W> name(const Lanes<f64, W>& a, const Lanes<f64, W>& b) { \
    return map<f64>([](f64 x, f64 y) { return ::function(x, y); }, a, b);          \
  }

JF_MATH(floor, floor)
JF_MATH(ceil, ceil)
JF_MATH(round_even, rint)
JF_MATH(round_away, round)
JF_MATH(exp, exp)
JF_MATH(exp2, exp2)
JF_MATH(expm1, expm1)
JF_MATH(log, log)
JF_MATH(log1p, log1p)
JF_MATH(sqrt, sqrt)
JF_MATH(rsqrt, rsqrt)
JF_MATH(cbrt, cbrt)
JF_MATH(sin, sin)
JF_MATH(cos, cos)
JF_MATH(tan, tan)
JF_MATH(asin, asin)
JF_MATH(acos, acos)
JF_MATH(atan, atan)
JF_MATH(sinh, sinh)
JF_MATH(cosh, cosh)
JF_MATH(tanh, tanh)
JF_MATH(asinh, asinh)
JF_MATH(acosh, acosh)
JF_MATH(atanh, atanh)
JF_MATH(erf, erf)
JF_MATH(erfc, erfc)
JF_MATH(erf_inv, erfinv)
JF_MATH(lgamma, lgamma)
JF_MATH2(pow, pow)
JF_MATH2(atan2, atan2)

template <class T, int W>
JF_FUNCTION Lanes<T, W> log2(const Lanes<T, W>& a) {
  return map<T>([](T x) { return scalar::log2(x); }, a);
}

JF_UNARY(digamma, digamma_of(x))

template <class T, int W>
JF_FUNCTION Lanes<T, W> logistic(const Lanes<T, W>& a) {
  // exp of the negative magnitude: the small side keeps its digits down to subnormal numbers.
  const Lanes<T, W> e = exp(neg(abs(a)));
  return map<T>([](T x, T y) { return quotient(x < 0 ? y : T(1), 1 + y); }, a, e);
}

// For values of the dtype M = bf16, which keeps 8 bits of what these give: 11 for tanh, 13 for erf and erfc, 20 for the
// others. For M = Loose, |x| / 2 units in the last place average out in a sum, or go unseen in what is rounded to 16
// bits; x^2 units for erfc.
template <class M, int W>
JF_FUNCTION Lanes<f32, W> exp(const Lanes<f32, W>& a) {
  return map<f32>([](f32 x) { return ptx::exp2_approx(x * 1.44269504f); }, a);
}
JF_FUNCTION f32 short_tanh(bf16, f32 x) { return ptx::tanh_approx(x); }
// To 2^-21, and 2^-18 of its value.
JF_FUNCTION f32 short_tanh(Loose, f32 x) {
  const f32 square = x * x, large = 1 - 2 * ptx::reciprocal_approx(1 + ptx::exp2_approx(x * 2.88539008f));
  return magnitude(x) < 0.15f ? x * (1 + square * (square * 0.133333333f - 0.333333333f)) : large;
}
template <class M, int W>
JF_FUNCTION Lanes<f32, W> tanh(const Lanes<f32, W>& a) {
  return map<f32>([](f32 x) { return short_tanh(M{}, x); }, a);
}
template <class M, int W>
JF_FUNCTION Lanes<f32, W> logistic(const Lanes<f32, W>& a) {
  return map<f32>([](f32 x) { return ptx::reciprocal_approx(1 + ptx::exp2_approx(x * -1.44269504f)); }, a);
}
template <class M>
JF_FUNCTION f32 short_erfc_of(f32 size) {
  const f32 a = smaller(size, 10.25f);
  return short_erfc_tail(M{}, a, ptx::reciprocal_approx(a + 2), ptx::exp2_approx(a * a * -1.44269504f));
}
template <class M>
JF_FUNCTION f32 short_erf(f32 x) {
  const f32 a = magnitude(x);
  return a < 0.75f ? short_erf_small(M{}, x) : ::copysignf(1 - short_erfc_of<M>(a), x);
}
template <class M>
JF_FUNCTION f32 short_erfc(f32 x) {
  const f32 r = short_erfc_of<M>(magnitude(x));
  return x < 0 ? 2 - r : r;
}
template <class M, int W>
JF_FUNCTION Lanes<f32, W> erf(const Lanes<f32, W>& a) {
  return map<f32>([](f32 x) { return short_erf<M>(x); }, a);
}
template <class M, int W>
JF_FUNCTION Lanes<f32, W> erfc(const Lanes<f32, W>& a) {
  return map<f32>([](f32 x) { return short_erfc<M>(x); }, a);
}
template <class M, int W>
JF_FUNCTION Lanes<f32, W> log1p(const Lanes<f32, W>& a) {
  return map<f32>(
      [](f32 x) {
        const f32 large = ptx::log2_approx(1 + x) * 0.693147181f;
        return magnitude(x) < 0.1875f ? short_log1p_small(x) : large;
      },
      a);
}

template <class T, int W>
JF_FUNCTION Lanes<pred, W> is_finite(const Lanes<T, W>& a) {
  return map<pred>([](T x) { return magnitude(x) < T(kInfinity); }, a);
}

// One step of the dtype M from x towards y, over the dtype's bits.
template <class M, class T>
JF_FUNCTION T next_after(T x, T y) {
  using Bits = Unsigned<Stored<M>>;
  x = converted<M>(x), y = converted<M>(y);
  if (x != x || y != y) return x + y;
  if (x == y) return y;
  Bits bits = bits_as<Bits>(encode(M{}, x));
  if (x == 0) {
    bits = (bits_as<Bits>(encode(M{}, y)) & Bits(kSmallest<Signed<Bits>>)) | Bits(1);
  } else {
    bits = (x < y) != (x < 0) ? bits + 1 : bits - 1;
  }
  return decode(M{}, bits_as<Stored<M>>(bits));
}
template <class M, class T, int W>
JF_FUNCTION Lanes<T, W> nextafter(const Lanes<T, W>& a, const Lanes<T, W>& b) {
  return map<T>([](T x, T y) { return next_after<M>(x, y); }, a, b);
}

}  // namespace jf

#include "codegen/logaddexp.h"
