// What a generated CPU kernel includes: lanes, memory, and the ops of ir/ops.def that take more than floats. Those that
// take floats alone are in cpu_math.h.
#pragma once

#include "codegen/cpu_lanes.h"
#include "codegen/cpu_memory.h"
#include "codegen/cpu_stream.h"
#include "codegen/cpu_turn.h"

namespace jf {

// One function of a single expression over parts; T is the lane type.
#define JF_UNARY(name, expression)                                    \
  template <class T, int W>                                           \
  JF_FUNCTION Lanes<T, W> name(Lanes<T, W> a) {                       \
    return map<T>([](Part<T> x) JF_LAMBDA { return expression; }, a); \
  }
#define JF_BINARY(name, expression)                                                 \
  template <class T, int W>                                                         \
  JF_FUNCTION Lanes<T, W> name(Lanes<T, W> a, Lanes<T, W> b) {                      \
    return map<T>([](Part<T> x, Part<T> y) JF_LAMBDA { return expression; }, a, b); \
  }
// The second expression is for preds, which are masks.
#define JF_COMPARE(name, expression, mask_expression)             \
  template <class T, int W>                                       \
  JF_FUNCTION Lanes<pred, W> name(Lanes<T, W> a, Lanes<T, W> b) { \
    return map<pred>(                                             \
        [](Part<T> x, Part<T> y) JF_LAMBDA {                      \
          if constexpr (is_same<T, pred>) {                       \
            return mask_expression;                               \
          } else {                                                \
            return to_pred(expression);                           \
          }                                                       \
        },                                                        \
        a, b);                                                    \
  }

// Integer arithmetic wraps, so it runs on unsigned parts.
template <class T>
JF_FUNCTION auto wrapping(Part<T> x) {
  if constexpr (is_float<T>) {
    return x;
  } else {
    return bits_as<Unsigned<T>>(x);
  }
}
JF_UNARY(neg, (Part<T>)(-wrapping<T>(x)))
JF_UNARY(square, (Part<T>)(wrapping<T>(x) * wrapping<T>(x)))
JF_UNARY(not_, ~x)
JF_BINARY(add, (Part<T>)(wrapping<T>(x) + wrapping<T>(y)))
JF_BINARY(sub, (Part<T>)(wrapping<T>(x) - wrapping<T>(y)))
JF_BINARY(mul, (Part<T>)(wrapping<T>(x) * wrapping<T>(y)))
JF_BINARY(and_, x& y)
JF_BINARY(or_, x | y)
JF_BINARY(xor_, x ^ y)

JF_COMPARE(eq, x == y, ~(x ^ y))
JF_COMPARE(ne, x != y, x ^ y)
JF_COMPARE(lt, x < y, ~x& y)
JF_COMPARE(le, x <= y, ~x | y)
JF_COMPARE(gt, x > y, x & ~y)
JF_COMPARE(ge, x >= y, x | ~y)

template <class T, int W>
JF_FUNCTION Lanes<T, W> select(Lanes<pred, W> where, Lanes<T, W> a, Lanes<T, W> b) {
  return map<T>([](Part<pred> c, Part<T> x, Part<T> y) JF_LAMBDA { return pick<T>(c, x, y); }, where, a, b);
}

template <class T>
JF_FUNCTION Part<T> magnitude(Part<T> x) {
  if constexpr (is_float<T>) {
    return bits_as<T>(bits_as<Unsigned<T>>(x) & Unsigned<T>(kLargest<Signed<T>>));
  } else if constexpr (is_signed<T>) {
    return x < 0 ? (Part<T>)(-wrapping<T>(x)) : x;
  } else {
    return x;
  }
}
JF_UNARY(abs, magnitude<T>(x))

template <class T>
JF_FUNCTION Part<T> sign_of(Part<T> x) {
  if constexpr (is_float<T>) {
    const Part<T> zero{}, one = zero + 1;
    return x > 0 ? one : x < 0 ? -one : x * zero;  // NaN and both zeros stay; XLA's threads take subnormals for zeros
  } else if constexpr (is_signed<T>) {
    return (x < 0) - (x > 0);
  } else {
    return bits_as<T>(x != 0) & 1;
  }
}
JF_UNARY(sign, sign_of<T>(x))

// y where y > x (y < x) or y is NaN, else x: NaN wins, since one in x fails the comparison and stays. Only y is asked
// for NaN, because folds keep their result in x and wait for it. g++ does not know the comparison to be one
// instruction.
template <class V>
JF_FUNCTION V greater_or_nan(const V& x, const V& y) {
  return (y > x) | (y != y) ? y : x;
}
template <class V>
JF_FUNCTION V lesser_or_nan(const V& x, const V& y) {
  return (y < x) | (y != y) ? y : x;
}
#if !defined(__clang__) && defined(__AVX512F__) && JF_PART == 16
JF_FUNCTION Part<f32> greater_or_nan(const Part<f32>& x, const Part<f32>& y) {
  return __builtin_ia32_maxps512_mask(y, x, y, __builtin_ia32_cmpps512_mask(y, y, 7, -1, 4), 4);
}
JF_FUNCTION Part<f32> lesser_or_nan(const Part<f32>& x, const Part<f32>& y) {
  return __builtin_ia32_minps512_mask(y, x, y, __builtin_ia32_cmpps512_mask(y, y, 7, -1, 4), 4);
}
#elif !defined(__clang__) && defined(__AVX__) && JF_PART == 8
JF_FUNCTION Part<f32> greater_or_nan(const Part<f32>& x, const Part<f32>& y) {
  return y != y ? y : __builtin_ia32_maxps256(y, x);
}
JF_FUNCTION Part<f32> lesser_or_nan(const Part<f32>& x, const Part<f32>& y) {
  return y != y ? y : __builtin_ia32_minps256(y, x);
}
#endif
template <class T>
JF_FUNCTION Part<T> larger(Part<T> x, Part<T> y) {
  if constexpr (is_same<T, pred>) {
    return x | y;
  } else {
    return greater_or_nan(x, y);
  }
}
template <class T>
JF_FUNCTION Part<T> smaller(Part<T> x, Part<T> y) {
  if constexpr (is_same<T, pred>) {
    return x & y;
  } else {
    return lesser_or_nan(x, y);
  }
}
JF_BINARY(max, larger<T>(x, y))
JF_BINARY(min, smaller<T>(x, y))

// As `to_e2m1` of _fp4.py, which says why: magnitudes are rounded by what is added to them.
template <int W>
JF_FUNCTION Lanes<u32, W> e2m1(Lanes<f32, W> a) {
  return map<u32>(
      [](Part<f32> x) JF_LAMBDA {
        constexpr u32 kZero = 0x4afffffc, kMost = 7;
        const Part<f32> size = magnitude<f32>(x);
        const Part<u32> below = bits_as<u32>(size + 8388606.0f), above = bits_as<u32>(size * 0.5f + 8388608.0f);
        const Part<u32> most = Part<u32>{} + (kZero + kMost);
        const Part<u32> code = smaller<u32>(smaller<u32>(below, above), most) - kZero;
        return code | (bits_as<u32>(x) >> 28 & 8);
      },
      a);
}

template <class T, int W>
JF_FUNCTION Lanes<T, W> clamp(Lanes<T, W> low, Lanes<T, W> a, Lanes<T, W> high) {
  return min(max(low, a), high);
}

// The divisors that trap are replaced; what they stand for is put in afterwards.
template <class T>
JF_FUNCTION Part<T> safe_divisor(Part<T> x, Part<T> y) {
  const Part<T> one = Part<T>{} + 1;
  if constexpr (is_signed<T>) {
    return ((y == 0) | ((x == kSmallest<T>)&(y == -1))) ? one : y;
  } else {
    return y == 0 ? one : y;
  }
}
template <class T>
JF_FUNCTION Part<T> quotient(Part<T> x, Part<T> y) {
  if constexpr (is_float<T>) {
    return x / y;
  } else {
    return y == 0 ? ~Part<T>{} : x / safe_divisor<T>(x, y);
  }
}
JF_BINARY(div, quotient<T>(x, y))
JF_UNARY(reciprocal, 1 / x)

// The same where a loop divides by one y: its reciprocal is computed once, and what a product with that misses is put
// in, after P. Markstein; not in what is rounded to 16 bits or only summed (M = Loose), which may miss a unit.
template <class M>
JF_FUNCTION Part<f32> quotient_by_same(const Part<f32>& x, const Part<f32>& y) {
#if defined(__FMA__)
  const Part<f32> size = magnitude<f32>(y), reciprocal = 1.0f / y;
  if (__builtin_expect(!any(~((size > 0x1p-100f) & (size < 0x1p100f))), 1)) {
    const Part<f32> q = x * reciprocal, missing = x - q * y;
    if constexpr (is_same<M, Loose>) return q;
    // Minus zero and infinities stay.
#if !defined(__clang__) && defined(__AVX512DQ__) && JF_PART == 16 && __has_builtin(__builtin_ia32_fpclassps512_mask)
    return __builtin_ia32_vfmaddps512_mask3(missing, reciprocal, q, ~__builtin_ia32_fpclassps512_mask(q, 0x1e, -1), 4);
#else
    const Part<f32> large = magnitude<f32>(q);
    return ((large > 0.0f) & (large < f32(kInfinity))) ? q + missing * reciprocal : q;
#endif
  }
#endif
  return x / y;
}
template <class M = f32, int W>
JF_FUNCTION Lanes<f32, W> divide_by_same(Lanes<f32, W> a, Lanes<f32, W> b) {
  return map<f32>([](Part<f32> x, Part<f32> y) JF_LAMBDA { return quotient_by_same<M>(x, y); }, a, b);
}

template <class T, int W>
JF_FUNCTION Lanes<T, W> rem(Lanes<T, W> a, Lanes<T, W> b) {
  if constexpr (is_same<T, f32>) {
    return map_lanes<T>([](T x, T y) JF_LAMBDA { return __builtin_fmodf(x, y); }, a, b);
  } else if constexpr (is_same<T, f64>) {
    return map_lanes<T>([](T x, T y) JF_LAMBDA { return __builtin_fmod(x, y); }, a, b);
  } else {
    return map<T>([](Part<T> x, Part<T> y) JF_LAMBDA { return y == 0 ? x : x % safe_divisor<T>(x, y); }, a, b);
  }
}

template <class T, int W>
JF_FUNCTION Lanes<T, W> population_count(Lanes<T, W> a) {
  return map_lanes<T>([](T x) JF_LAMBDA { return T(__builtin_popcountl(Unsigned<T>(x))); }, a);
}
template <class T, int W>
JF_FUNCTION Lanes<T, W> count_leading_zeros(Lanes<T, W> a) {
  constexpr int kBits = 8 * sizeof(T);
  return map_lanes<T>([](T x) JF_LAMBDA { return T(x == 0 ? kBits : __builtin_clzl(Unsigned<T>(x)) - (64 - kBits)); },
                      a);
}

// Shifts by the width or more, or by less than zero, leave zeros or the sign.
enum class Shift { kLeft, kRightLogical, kRightArithmetic };
template <Shift kShift, class T>
JF_FUNCTION Part<T> shifted(Part<T> x, Part<T> by) {
  constexpr Unsigned<T> kLast = 8 * sizeof(T) - 1;
  const Part<Unsigned<T>> u = bits_as<Unsigned<T>>(x), n = bits_as<Unsigned<T>>(by), kept = n & kLast, zero{};
  if constexpr (kShift == Shift::kLeft) {
    return bits_as<T>(n > kLast ? zero : u << kept);
  } else if constexpr (kShift == Shift::kRightLogical) {
    return bits_as<T>(n > kLast ? zero : u >> kept);
  } else {
    return bits_as<T>(bits_as<Signed<T>>(u) >> bits_as<Signed<T>>(n > kLast ? zero + kLast : n));
  }
}
JF_BINARY(shift_left, (shifted<Shift::kLeft, T>(x, y)))
JF_BINARY(shift_right_logical, (shifted<Shift::kRightLogical, T>(x, y)))
JF_BINARY(shift_right_arithmetic, (shifted<Shift::kRightArithmetic, T>(x, y)))

// The lane type of a dtype.
template <class M>
struct ComputeOf {
  using Type = M;
};
template <>
struct ComputeOf<f16> {
  using Type = f32;
};
template <>
struct ComputeOf<bf16> {
  using Type = f32;
};
template <>
struct ComputeOf<f8e4m3fn> {
  using Type = f32;
};
template <>
struct ComputeOf<f8e5m2> {
  using Type = f32;
};
template <class M>
using Compute = typename ComputeOf<M>::Type;
// Floats that are f32 in lanes.
template <class M>
inline constexpr bool is_short = is_same<M, f16> || is_same<M, bf16> || is_same<M, f8e4m3fn> || is_same<M, f8e5m2>;

// Rounds towards zero; out of range goes to the nearest end, NaN to 0.
template <class To, class From>
JF_FUNCTION Part<To> saturated(Part<From> x) {
  constexpr From kLow = From(kSmallest<To>), kHigh = From(kLargest<To> / 2 + 1) * 2;
  const Part<From> inside = ((x >= kLow) & (x < kHigh)) ? x : Part<From>{};
  Part<To> result;
  if constexpr (sizeof(To) < sizeof(s32)) {
    result = value_as<To>(value_as<s32>(inside));
  } else {
    result = value_as<To>(inside);
  }
  result = pick<To>(to_pred(x >= kHigh), Part<To>{} + kLargest<To>, result);
  return pick<To>(to_pred(x < kLow), Part<To>{} + kSmallest<To>, result);
}
template <class M, class From>
JF_FUNCTION Part<Compute<M>> converted(Part<From> x) {
  using To = Compute<M>;
  if constexpr (is_short<M>) {
    return decode(M{}, encode_exactly(M{}, converted<f32, From>(x)));
  } else if constexpr (is_same<To, From>) {
    return x;
  } else if constexpr (is_same<To, pred>) {
    return to_pred(x != 0);
  } else if constexpr (is_same<From, pred>) {
    return value_as<To>(x & 1);
  } else if constexpr (is_float<From> && !is_float<To>) {
    return saturated<To, From>(x);
  } else if constexpr (is_float<To> && sizeof(From) < sizeof(s32)) {
    return value_as<To>(value_as<s32>(x));
  } else {
    return value_as<To>(x);
  }
}
// To and From are dtypes, short floats among them; the lanes are of their compute types.
template <class To, class From, int W>
JF_FUNCTION Lanes<Compute<To>, W> convert(Lanes<From, W> a) {
  return map<Compute<To>>([](Part<From> x) JF_LAMBDA { return converted<To, From>(x); }, a);
}
template <class To, class From, class T, int W>
JF_FUNCTION Lanes<Compute<To>, W> bitcast(Lanes<T, W> a) {
  static_assert(sizeof(To) == sizeof(From), "a bitcast keeps the size");
  return map<Compute<To>>(
      [](Part<T> x) JF_LAMBDA {
        Part<Stored<From>> bits;
        if constexpr (is_short<From>) {
          bits = encode_exactly(From{}, x);
        } else {
          bits = x;
        }
        return decode(To{}, bits_as<Stored<To>>(bits));
      },
      a);
}

}  // namespace jf
