// The float ops over lanes: which of them run over whole parts, and libm for the others.
#pragma once

#include "codegen/cpu_math.h"

// These have no builtin name in every compiler. The plain lgamma writes a global variable.
extern "C" {
double lgamma_r(double, int*) noexcept;
float lgammaf_r(float, int*) noexcept;
}

namespace jf::scalar {

JF_FUNCTION f64 floor(f64 x) { return __builtin_floor(x); }
JF_FUNCTION f64 log(f64 x) { return __builtin_log(x); }
JF_FUNCTION f64 tan(f64 x) { return __builtin_tan(x); }

}  // namespace jf::scalar

#include "codegen/digamma.h"

namespace jf {

// f32 by parts::name, f64 lane by lane.
#define JF_PARTS_OR_LIBM(name, f64_expression)                                         \
  template <class T, int W>                                                            \
  JF_FUNCTION Lanes<T, W> name(Lanes<T, W> a) {                                        \
    if constexpr (is_same<T, f32>) {                                                   \
      return map<f32>([](Part<f32> x) JF_LAMBDA { return parts::name(x); }, a);        \
    } else {                                                                           \
      return map_lanes<f64>([](f64 x) JF_LAMBDA -> f64 { return f64_expression; }, a); \
    }                                                                                  \
  }
#define JF_LIBM(name)                                                                          \
  template <class T, int W>                                                                    \
  JF_FUNCTION Lanes<T, W> name(Lanes<T, W> a) {                                                \
    if constexpr (is_same<T, f32>) {                                                           \
      return map_lanes<f32>([](f32 x) JF_LAMBDA -> f32 { return __builtin_##name##f(x); }, a); \
    } else {                                                                                   \
      return map_lanes<f64>([](f64 x) JF_LAMBDA -> f64 { return __builtin_##name(x); }, a);    \
    }                                                                                          \
  }
#define JF_ROUNDING(name)                                                    \
  template <class T, int W>                                                  \
  JF_FUNCTION Lanes<T, W> name(Lanes<T, W> a) {                              \
    return map<T>([](Part<T> x) JF_LAMBDA { return parts::name<T>(x); }, a); \
  }

JF_PARTS_OR_LIBM(exp, __builtin_exp(x))
JF_PARTS_OR_LIBM(exp2, __builtin_exp2(x))
JF_PARTS_OR_LIBM(expm1, __builtin_expm1(x))
JF_PARTS_OR_LIBM(log, __builtin_log(x))
JF_PARTS_OR_LIBM(log2, __builtin_log2(x))
JF_PARTS_OR_LIBM(log1p, __builtin_log1p(x))
JF_PARTS_OR_LIBM(logistic, 1 / (1 + __builtin_exp(-x)))
JF_PARTS_OR_LIBM(sqrt, __builtin_sqrt(x))
JF_PARTS_OR_LIBM(rsqrt, 1 / __builtin_sqrt(x))
JF_PARTS_OR_LIBM(sin, __builtin_sin(x))
JF_PARTS_OR_LIBM(cos, __builtin_cos(x))
JF_PARTS_OR_LIBM(tanh, __builtin_tanh(x))
JF_PARTS_OR_LIBM(erf, __builtin_erf(x))
JF_PARTS_OR_LIBM(erfc, __builtin_erfc(x))
// With fewer digits, for values of the dtype M: see cpu_math.h.
#define JF_SHORT(name, expression)                                               \
  template <class M, int W>                                                      \
  JF_FUNCTION Lanes<f32, W> name(Lanes<f32, W> a) {                              \
    return map<f32>([](Part<f32> x) JF_LAMBDA { return parts::expression; }, a); \
  }
JF_SHORT(exp, short_exp<M>(x))
JF_SHORT(logistic, short_logistic<M>(x))
JF_SHORT(tanh, short_tanh(M{}, x))
JF_SHORT(erf, short_erf(M{}, x))
JF_SHORT(erfc, short_erfc(M{}, x))
JF_SHORT(log1p, short_log1p(x))
JF_LIBM(cbrt)
JF_LIBM(tan)
JF_LIBM(asin)
JF_LIBM(acos)
JF_LIBM(atan)
JF_LIBM(sinh)
JF_LIBM(cosh)
JF_LIBM(asinh)
JF_LIBM(acosh)
JF_LIBM(atanh)
JF_ROUNDING(floor)
JF_ROUNDING(ceil)
JF_ROUNDING(round_even)
JF_ROUNDING(round_away)

template <class T, int W>
JF_FUNCTION Lanes<pred, W> is_finite(Lanes<T, W> a) {
  return map<pred>([](Part<T> x) JF_LAMBDA { return to_pred(magnitude<T>(x) < T(kInfinity)); }, a);
}

template <class T, int W>
JF_FUNCTION Lanes<T, W> pow(Lanes<T, W> a, Lanes<T, W> b) {
  if constexpr (is_same<T, f32>) {
    return map<f32>([](Part<f32> x, Part<f32> y) JF_LAMBDA { return parts::pow(x, y); }, a, b);
  } else {
    return map_lanes<f64>([](f64 x, f64 y) JF_LAMBDA { return __builtin_pow(x, y); }, a, b);
  }
}
template <class T, int W>
JF_FUNCTION Lanes<T, W> atan2(Lanes<T, W> a, Lanes<T, W> b) {
  if constexpr (is_same<T, f32>) {
    return map_lanes<f32>([](f32 x, f32 y) JF_LAMBDA { return __builtin_atan2f(x, y); }, a, b);
  } else {
    return map_lanes<f64>([](f64 x, f64 y) JF_LAMBDA { return __builtin_atan2(x, y); }, a, b);
  }
}

template <class T, int W>
JF_FUNCTION Lanes<T, W> lgamma(Lanes<T, W> a) {
  return map_lanes<T>(
      [](T x) JF_LAMBDA {
        int sign;
        if constexpr (is_same<T, f32>) {
          return lgammaf_r(x, &sign);
        } else {
          return lgamma_r(x, &sign);
        }
      },
      a);
}
template <class T, int W>
JF_FUNCTION Lanes<T, W> digamma(Lanes<T, W> a) {
  return map_lanes<T>([](T x) JF_LAMBDA { return T(digamma_of(x)); }, a);
}

template <int kCount>
JF_FUNCTION f64 polynomial_of(f64 x, const f64 (&coefficients)[kCount]) {
  f64 sum = coefficients[0];
  for (int i = 1; i < kCount; ++i) sum = sum * x + coefficients[i];
  return sum;
}
// M. Giles, "Approximating the erfinv function", GPU Computing Gems 2 (2012): three polynomials in w = -log(1 - x^2).
JF_FUNCTION f64 erf_inv_of(f64 x) {
  static constexpr f64 kCentre[] = {
      -3.6444120640178196996e-21, -1.685059138182016589e-19,  1.2858480715256400167e-18,  1.115787767802518096e-17,
      -1.333171662854620906e-16,  2.0972767875968561637e-17,  6.6376381343583238325e-15,  -4.0545662729752068639e-14,
      -8.1519341976054721522e-14, 2.6335093153082322977e-12,  -1.2975133253453532498e-11, -5.4154120542946279317e-11,
      1.051212273321532285e-09,   -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
      -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352,   -0.00074070253416626697512,
      -0.0060336708714301490533,  0.24015818242558961693,     1.6536545626831027356};
  static constexpr f64 kMiddle[] = {
      2.2137376921775787049e-09,  9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
      1.5027403968909827627e-06,  -4.013867526981545969e-06, 2.9234449089955446044e-06,  1.2475304481671778723e-05,
      -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05,  -0.0003550375203628474796,
      0.00095328937973738049703,  -0.0016882755560235047313, 0.0024914420961078508066,   -0.0037512085075692412107,
      0.005370914553590063617,    1.0052589676941592334,     3.0838856104922207635};
  static constexpr f64 kTail[] = {-2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09,
                                  -3.7894654401267369937e-09, 7.6157012080783393804e-09,  -1.4960026627149240478e-08,
                                  2.9147953450901080826e-08,  -6.7711997758452339498e-08, 2.2900482228026654717e-07,
                                  -9.9298272942317002539e-07, 4.5260625972231537039e-06,  -1.9681778105531670567e-05,
                                  7.5995277030017761139e-05,  -0.00021503011930044477347, -0.00013871931833623122026,
                                  1.0103004648645343977,      4.8499064014085844221};
  const f64 w = -(x * x < 0.25 ? __builtin_log1p(-x * x) : __builtin_log((1 - x) * (1 + x)));
  const f64 root = __builtin_sqrt(w);
  const f64 factor = w < 6.25 ? polynomial_of(w - 3.125, kCentre)
                     : w < 16 ? polynomial_of(root - 3.25, kMiddle)
                              : polynomial_of(root - 5, kTail);
  const f64 end = __builtin_fabs(x) == 1 ? kInfinity : factor;
  return x * end;
}
JF_PARTS_OR_LIBM(erf_inv, erf_inv_of(x))

// One step of the dtype M from a towards b, over the dtype's bits.
template <class M, class T, int W>
JF_FUNCTION Lanes<T, W> nextafter(Lanes<T, W> a, Lanes<T, W> b) {
  using Bits = Unsigned<Stored<M>>;
  return map<T>(
      [](Part<T> x, Part<T> y) JF_LAMBDA {
        x = converted<M, T>(x), y = converted<M, T>(y);
        Part<Bits> bits;
        if constexpr (is_short<M>) {
          bits = encode_exactly(M{}, x);
        } else {
          bits = bits_as<Bits>(x);
        }
        const Part<pred> grows = to_pred((x < y) ^ (x < 0)), from_zero = to_pred(x == 0);
        const Bits top = Bits(kSmallest<Signed<Bits>>);
        bits = pick<Bits>(grows, bits + Bits(1), bits - Bits(1));
        Part<T> result;
        if constexpr (is_short<M>) {
          const Part<Bits> least = (encode_exactly(M{}, y) & top) | Bits(1);
          result = decode(M{}, pick<Bits>(from_zero, least, bits));
        } else {
          const Part<Bits> least = (bits_as<Bits>(y) & top) | Bits(1);
          result = bits_as<T>(pick<Bits>(from_zero, least, bits));
        }
        result = x == y ? y : result;
        return ((x != x) | (y != y)) ? x + y : result;
      },
      a, b);
}

}  // namespace jf
