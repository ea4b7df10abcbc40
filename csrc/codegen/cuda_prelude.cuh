// What a generated CUDA kernel includes: lanes, memory, and the ops of ir/ops.def that take more than floats. Those
// that take floats alone are in cuda_math.cuh. Needs no header of CUDA's.
#pragma once

#include "codegen/cuda_four_bits.cuh"
#include "codegen/cuda_lanes.cuh"
#include "codegen/cuda_memory.cuh"

namespace jf {

// One function of a single expression over lanes; T is the lane type.
#define JF_UNARY(name, expression)                            \
  template <class T, int W>                                   \
  JF_FUNCTION Lanes<T, W> name(const Lanes<T, W>& a) {        \
    return map<T>([](T x) -> T { return T(expression); }, a); \
  }
#define JF_BINARY(name, expression)                                          \
  template <class T, int W>                                                  \
  JF_FUNCTION Lanes<T, W> name(const Lanes<T, W>& a, const Lanes<T, W>& b) { \
    return map<T>([](T x, T y) -> T { return T(expression); }, a, b);        \
  }
#define JF_COMPARE(name, expression)                                            \
  template <class T, int W>                                                     \
  JF_FUNCTION Lanes<pred, W> name(const Lanes<T, W>& a, const Lanes<T, W>& b) { \
    return map<pred>([](T x, T y) -> pred { return expression; }, a, b);        \
  }

// Integer arithmetic wraps: it runs on unsigned numbers of at least 32 bits.
template <class T>
JF_FUNCTION auto wrapping(T x) {
  if constexpr (is_float<T>) {
    return x;
  } else if constexpr (sizeof(T) < sizeof(u32)) {
    return u32(x);
  } else {
    return Unsigned<T>(x);
  }
}
template <class T>
JF_FUNCTION T inverted(T x) {
  if constexpr (is_same<T, pred>) {
    return !x;
  } else {
    return T(~x);
  }
}
JF_UNARY(neg, -wrapping(x))
JF_UNARY(square, wrapping(x) * wrapping(x))
JF_UNARY(not_, inverted(x))
JF_BINARY(add, wrapping(x) + wrapping(y))
JF_BINARY(sub, wrapping(x) - wrapping(y))
JF_BINARY(mul, wrapping(x) * wrapping(y))
JF_BINARY(and_, x& y)
JF_BINARY(or_, x | y)
JF_BINARY(xor_, x ^ y)

JF_COMPARE(eq, x == y)
JF_COMPARE(ne, x != y)
JF_COMPARE(lt, x < y)
JF_COMPARE(le, x <= y)
JF_COMPARE(gt, x > y)
JF_COMPARE(ge, x >= y)

template <class T, int W>
JF_FUNCTION Lanes<T, W> select(const Lanes<pred, W>& where, const Lanes<T, W>& a, const Lanes<T, W>& b) {
  return map<T>([](pred c, T x, T y) { return c ? x : y; }, where, a, b);
}

template <class T>
JF_FUNCTION T magnitude(T x) {
  if constexpr (is_float<T>) {
    return bits_as<T>(Unsigned<T>(bits_as<Unsigned<T>>(x) & kLargest<Signed<T>>));
  } else if constexpr (is_signed<T>) {
    return x < 0 ? T(-wrapping(x)) : x;
  } else {
    return x;
  }
}
JF_UNARY(abs, magnitude(x))
// NaN and both zeros are their own sign.
JF_UNARY(sign, x > 0 ? T(1) : x < 0 ? T(-1) : x)

// NaN wins.
template <class T>
JF_FUNCTION T larger(T x, T y) {
  return x >= y || x != x ? x : y;
}
template <class T>
JF_FUNCTION T smaller(T x, T y) {
  return x <= y || x != x ? x : y;
}
JF_FUNCTION f32 larger(f32 x, f32 y) { return ptx::max_nan(x, y); }
JF_FUNCTION f32 smaller(f32 x, f32 y) { return ptx::min_nan(x, y); }
JF_BINARY(max, larger(x, y))
JF_BINARY(min, smaller(x, y))

template <class T, int W>
JF_FUNCTION Lanes<T, W> clamp(const Lanes<T, W>& low, const Lanes<T, W>& a, const Lanes<T, W>& high) {
  return map<T>([](T l, T x, T h) { return smaller(larger(l, x), h); }, low, a, high);
}

template <class T>
JF_FUNCTION T quotient(T x, T y) {
  if constexpr (is_same<T, f32>) {
    return ptx::quotient(x, y);
  } else if constexpr (is_float<T>) {
    return x / y;
  } else {
    if (y == 0) return T(~T(0));
    if constexpr (is_signed<T>) {
      if (y == -1) return T(-wrapping(x));
    }
    return x / y;
  }
}
// A step of Newton's method, rounded to nearest where both are normal numbers (each fraction was tried on an H200).
// rcp.rn is a branch and a call, which what is around it waits for.
JF_FUNCTION f32 nearest_reciprocal(f32 x) {
  const f32 rough = ptx::reciprocal_approx(x), rest = fmaf(-x, rough, 1);
  return fabsf(rest) < 1 ? fmaf(rough, rest, rough) : rough;
}
JF_FUNCTION f64 nearest_reciprocal(f64 x) { return 1 / x; }
template <class T>
JF_FUNCTION T remainder_of(T x, T y) {
  if constexpr (is_same<T, f32>) {
    return fmodf(x, y);
  } else if constexpr (is_same<T, f64>) {
    return fmod(x, y);
  } else {
    if (y == 0) return x;
    if constexpr (is_signed<T>) {
      if (y == -1) return 0;
    }
    return x % y;
  }
}
JF_BINARY(div, quotient(x, y))
JF_UNARY(reciprocal, nearest_reciprocal(x))
JF_BINARY(rem, remainder_of(x, y))

JF_UNARY(population_count, __popcll(Unsigned<T>(x)))
JF_UNARY(count_leading_zeros, __clzll(Unsigned<T>(x)) - (64 - 8 * int(sizeof(T))))

// Shifts by the width or more, or by less than zero, leave zeros or the sign.
template <class T>
JF_FUNCTION bool shifts_out(T by) {
  return Unsigned<T>(by) >= 8 * sizeof(T);
}
JF_BINARY(shift_left, shifts_out(y) ? 0 : Unsigned<T>(x) << y)
JF_BINARY(shift_right_logical, shifts_out(y) ? 0 : Unsigned<T>(x) >> y)
JF_BINARY(shift_right_arithmetic, Signed<T>(x) >> (shifts_out(y) ? T(8 * sizeof(T) - 1) : y))

// Rounds towards zero; out of range goes to the nearest end, NaN to 0.
template <class To, class From>
JF_FUNCTION To saturated(From x) {
  constexpr From kLow = From(kSmallest<To>), kHigh = From(kLargest<To> / 2 + 1) * 2;
  return x >= kHigh ? kLargest<To> : x < kLow ? kSmallest<To> : x == x ? To(x) : To(0);
}
template <class M, class From>
JF_FUNCTION Compute<M> converted(From x) {
  using To = Compute<M>;
  if constexpr (is_short<M>) {
    return decode(M{}, encode(M{}, f32(x)));
  } else if constexpr (is_same<To, pred>) {
    return x != From(0);
  } else if constexpr (is_float<From> && !is_float<To>) {
    return saturated<To>(x);
  } else {
    return To(x);
  }
}
// To and From are dtypes, short floats among them; the lanes are of their compute types.
template <class To, class From, int W>
JF_FUNCTION Lanes<Compute<To>, W> convert(const Lanes<From, W>& a) {
  if constexpr (is_short<To> && W > 1) {
    Lanes<f32, W> x;
#pragma unroll
    for (int i = 0; i < W; i += 2) {
      const Pair<To> pair = encode_pair(To{}, f32(a.v[i]), f32(a.v[i + 1]));
      x.v[i] = decode_low(To{}, pair), x.v[i + 1] = decode_high(To{}, pair);
    }
    return x;
  } else {
    return map<Compute<To>>([](From x) { return converted<To>(x); }, a);
  }
}
// What is the same in all lanes, computed once.
template <class T, int W>
JF_FUNCTION Lanes<T, 1> lane_zero(const Lanes<T, W>& x) {
  return {x.v[0]};
}
template <int W, class T>
JF_FUNCTION Lanes<T, W> all_lanes(const Lanes<T, 1>& x) {
  Lanes<T, W> result;
#pragma unroll
  for (int i = 0; i < W; ++i) result.v[i] = x.v[0];
  return result;
}
template <class To, class From, class T, int W>
JF_FUNCTION Lanes<Compute<To>, W> bitcast(const Lanes<T, W>& a) {
  return map<Compute<To>>([](T x) { return decode(To{}, bits_as<Stored<To>>(encode(From{}, x))); }, a);
}

}  // namespace jf
