// The ops of ir/ops.def that take floats alone. f32: polynomials over whole parts for what kernels use most (here),
// libm lane by lane for the rest (cpu_libm.h). f64: libm. NaN, infinities, zeros and subnormal numbers come out as in
// C.
//
// Coefficients without a source are minimax fits of this project; those from Cephes are by S. Moshier.
#pragma once

#include "codegen/cpu_prelude.h"
#include "codegen/short_functions.h"

namespace jf::parts {

using F = Part<f32>;
using I = Part<s32>;
using U = Part<u32>;
using D = Part<f64>;

// Horner's rule; coefficients from the highest power down.
template <class V>
JF_FUNCTION V polynomial(const V&, const V& sum) {
  return sum;
}
template <class V, class E, class... More>
JF_FUNCTION V polynomial(const V& x, const V& sum, E next, More... more) {
  return polynomial<V>(x, sum * x + next, more...);
}

// Bounds that let NaN through: on NaN the instructions give their second operand.
#if !defined(__clang__) && defined(__AVX512F__) && JF_PART == 16
JF_FUNCTION F at_most(f32 bound, F x) { return __builtin_ia32_minps512_mask(splat(bound), x, x, -1, 4); }
JF_FUNCTION F at_least(f32 bound, F x) { return __builtin_ia32_maxps512_mask(splat(bound), x, x, -1, 4); }
#elif !defined(__clang__) && defined(__AVX__) && JF_PART == 8
JF_FUNCTION F at_most(f32 bound, F x) { return __builtin_ia32_minps256(splat(bound), x); }
JF_FUNCTION F at_least(f32 bound, F x) { return __builtin_ia32_maxps256(splat(bound), x); }
#elif !defined(__clang__) && defined(__SSE2__) && JF_PART == 4
JF_FUNCTION F at_most(f32 bound, F x) { return __builtin_ia32_minps(splat(bound), x); }
JF_FUNCTION F at_least(f32 bound, F x) { return __builtin_ia32_maxps(splat(bound), x); }
#else
JF_FUNCTION F at_most(f32 bound, F x) { return bound < x ? splat(bound) : x; }
JF_FUNCTION F at_least(f32 bound, F x) { return bound > x ? splat(bound) : x; }
#endif

#if !defined(__clang__) && defined(__AVX512F__) && JF_PART == 16
JF_FUNCTION F sqrt(F x) { return __builtin_ia32_sqrtps512_mask(x, x, -1, 4); }
#elif !defined(__clang__) && defined(__AVX__) && JF_PART == 8
JF_FUNCTION F sqrt(F x) { return __builtin_ia32_sqrtps256(x); }
#elif !defined(__clang__) && defined(__SSE2__) && JF_PART == 4
JF_FUNCTION F sqrt(F x) { return __builtin_ia32_sqrtps(x); }
#else
JF_FUNCTION F sqrt(F x) {
  F result{};
  for (int i = 0; i < JF_PART; ++i) result[i] = __builtin_sqrtf(x[i]);
  return result;
}
#endif

// 1 / x for finite x from 1 on. AVX-512 divides in five times as long.
#if !defined(__clang__) && defined(__AVX512F__) && JF_PART == 16
JF_FUNCTION F reciprocal(F x) {
  const F r = __builtin_ia32_rcp14ps512_mask(x, F{}, -1);  // to 14 bits
  return r + r * (1.0f - x * r);
}
#else
JF_FUNCTION F reciprocal(F x) { return 1.0f / x; }
#endif

// The nearest whole number, ties to even, for |x| < 2^22.
JF_FUNCTION F nearest(F x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// x * 2^n for a whole n in [-252, 252], rounding once where the machine can.
JF_FUNCTION F scaled(F x, F n) {
#if defined(__AVX512F__) && JF_PART == 16
  return __builtin_ia32_scalefps512_mask(x, n, x, -1, 4);
#else
  const I e = value_as<s32>(n), half = e >> 1;
  return x * bits_as<f32>((half + 127) << 23) * bits_as<f32>((e - half + 127) << 23);
#endif
}

// exp(r) = 1 + r + r^2 p(r) for |r| <= ln(2) / 2. Cephes.
JF_FUNCTION F exp_tail(F r) {
  return polynomial(r, splat(1.9875691500e-4f), 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                    5.0000001201e-1f);
}
// x - n ln(2), exactly enough: the first constant has few bits.
JF_FUNCTION F without_powers(F x, F n) { return x - n * 0.693359375f + n * 2.12194440e-4f; }
constexpr f32 kLog2E = 1.44269504f;

// For x in [-104, 89]; NaN stays NaN.
JF_FUNCTION F exp_in_range(F x) {
  const F n = nearest(x * kLog2E), r = without_powers(x, n);
  return scaled(exp_tail(r) * (r * r) + r + 1.0f, n);
}
JF_FUNCTION F exp(F x) { return exp_in_range(at_least(-104.0f, at_most(89.0f, x))); }

JF_FUNCTION F expm1(F x) {
  const F c = at_least(-20.0f, at_most(89.0f, x));
  const F n = nearest(c * kLog2E), r = without_powers(c, n);
  const F p = exp_tail(r) * (r * r) + r;
  // 2^n p + (2^n - 1), at half its size so that 2^n does not overflow before the sum.
  const F half_power = bits_as<f32>((value_as<s32>(n) + 126) << 23);
  const F result = 2.0f * (half_power * p + (half_power - 0.5f));
  return magnitude<f32>(x) < 0x1p-25f ? x : x != x ? x : result;
}

// 2^r for |r| <= 1/2. Cephes.
JF_FUNCTION F exp2_core(F r) {
  return polynomial(r, splat(1.535336188319500e-4f), 1.339887440266574e-3f, 9.618437357674640e-3f,
                    5.550332471162809e-2f, 2.402264791363012e-1f, 6.931472028550421e-1f, 1.0f);
}
JF_FUNCTION F exp2(F x) {
  x = at_least(-151.0f, at_most(129.0f, x));
  const F n = nearest(x);
  return scaled(exp2_core(x - n), n);
}
// 2^x of an f64 argument, for results that need more digits in the exponent than f32 has.
JF_FUNCTION F exp2(const D& x) {
  const F rough = value_as<f32>(x), n = nearest(at_least(-160.0f, at_most(160.0f, rough)));
  const F result = scaled(exp2_core(value_as<f32>(x - value_as<f64>(n))), n);
  return rough >= 160.0f ? splat(f32(kInfinity)) : rough <= -160.0f ? F{} : result;
}

// x = mantissa * 2^exponent with the mantissa in [sqrt(1/2), sqrt(2)), for positive finite x.
struct Split {
  F mantissa, exponent;
};
JF_FUNCTION Split split(F x) {
  const I tiny = x < 0x1p-126f;
  const I bits = bits_as<s32>(tiny ? x * 0x1p23f : x), e = (bits - 0x3f3504f3) >> 23;
  return {bits_as<f32>(bits - (e << 23)), value_as<f32>(tiny ? e - 23 : e)};
}

// (log(1 + f) - f + f^2 / 2) / f^3 for 1 + f in [sqrt(1/2), sqrt(2)). Cephes.
JF_FUNCTION F log_tail(F f) {
  return polynomial(f, splat(7.0376836292e-2f), -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                    1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f);
}
JF_FUNCTION F log_or_limit(F x, F result) {
  result = x < f32(kInfinity) ? result : x;
  result = x == 0.0f ? splat(f32(-kInfinity)) : result;
  return x < 0.0f ? splat(f32(kNaN)) : result;
}
JF_FUNCTION F log(F x) {
  const auto [m, e] = split(x);
  const F f = m - 1.0f, z = f * f;
  return log_or_limit(x, f * z * log_tail(f) - 2.12194440e-4f * e - 0.5f * z + f + 0.693359375f * e);
}
JF_FUNCTION F log2(F x) {
  const auto [m, e] = split(x);
  const F f = m - 1.0f, z = f * f, rest = f * z * log_tail(f) - 0.5f * z;
  // log2(e) = 1 + 0.4427, so that f itself loses no digits.
  return log_or_limit(x, rest * 0.44269504f + f * 0.44269504f + rest + f + e);
}

JF_FUNCTION F log1p(F x) {
  const F u = 1.0f + x;
  // What the sum lost, to first order.
  const F result = log(u) + (x - (u - 1.0f)) / u;
  const F edge = u == 0.0f ? splat(f32(-kInfinity)) : x;
  return ((magnitude<f32>(x) < 0x1p-25f) | (u == 0.0f) | (x == f32(kInfinity))) ? edge : result;
}

JF_FUNCTION F logistic(F x) {
  // exp of the negative magnitude: the small side keeps its digits down to subnormal numbers.
  const F one = splat(1.0f), e = exp_in_range(at_least(-104.0f, -magnitude<f32>(x)));
  return (x < 0.0f ? e : one) * reciprocal(one + e);
}

JF_FUNCTION F with_sign_of(F sign, F x) { return bits_as<f32>(bits_as<u32>(x) | (bits_as<u32>(sign) & 0x80000000)); }

// x p(x^2) / q(x^2), fitted to 7e-9 of the value up to 9; in floats 5 units in the last place, and 1 from 8.75 on.
JF_FUNCTION F tanh(F x) {
  const F z = at_most(8.75f * 8.75f, x * x);
  const F p = polynomial(z, splat(-8.48868027e-14f), 5.27793503e-11f, -2.0225194e-8f, 1.11542995e-5f, 3.10395542e-3f,
                         1.30840093e-1f, 1.0f);
  const F q = polynomial(z, splat(2.54614395e-4f), 2.44951751e-2f, 4.64173377e-1f, 1.0f);
  return at_least(-1.0f, at_most(1.0f, x * p * reciprocal(q)));
}

// After N. Juffa's erff: x + x p(x^2) near zero, 1 - exp(q(|x|)) further out.
JF_FUNCTION F erf_small(F x) {
  const F p = polynomial(x * x, splat(-5.96761703e-4f), 4.99119423e-3f, -2.67681349e-2f, 1.12819925e-1f,
                         -3.76125336e-1f, 1.28379166e-1f);
  return p * x + x;
}
JF_FUNCTION F erf(F x) {
  const F a = magnitude<f32>(x), t = at_most(4.0f, a);
  const F q = polynomial(t, splat(-1.72853470e-5f), 3.83197126e-4f, -3.88396438e-3f, 2.42546219e-2f, -1.06777877e-1f,
                         -6.34846687e-1f, -1.28717512e-1f);
  return a < 0.927734375f ? erf_small(x) : with_sign_of(x, 1.0f - exp(q * t - t));
}

// exp(-x^2) erfcx(x), where erfcx(x) = u p((x - 2) u) with u = 1 / (x + 2). The square needs all its digits: high^2 is
// exact, and the rest small.
JF_FUNCTION F erfc(F x) {
  const F a = at_most(11.0f, magnitude<f32>(x)), u = reciprocal(a + 2.0f);
  const F p = polynomial((a - 2.0f) * u, splat(6.948054e-5f), 4.693965e-5f, -5.925619e-4f, -8.320633e-4f, 3.0626056e-3f,
                         6.4758793e-3f, -2.1505723e-2f, -3.6441784e-2f, 2.7947178e-1f, -6.871607e-1f, 1.0215827f);
  const F high = bits_as<f32>(bits_as<u32>(a) & 0xfffff000), square = high * high, n = nearest(square * -kLog2E);
  const F r = without_powers(-square, n) - (a - high) * (a + high);
  const F tail = scaled((exp_tail(r) * (r * r) + r + 1.0f) * (u * p), n);
  const F result = x < 0.0f ? 2.0f - tail : tail;
  return magnitude<f32>(x) < 0.5f ? 1.0f - erf_small(x) : result;
}

// Giles, as erf_inv_of in cpu_libm.h, his polynomials for single precision: two units in the last place.
JF_FUNCTION F erf_inv(F x) {
  const F w = -log((1.0f - x) * (1.0f + x)), t = w - 2.5f, r = sqrt(w) - 3.0f;
  const F centre = polynomial(t, splat(2.81022636e-08f), 3.43273939e-07f, -3.5233877e-06f, -4.39150654e-06f,
                              2.1858087e-04f, -1.25372503e-03f, -4.17768164e-03f, 0.246640727f, 1.50140941f);
  const F tail = polynomial(r, splat(-2.00214257e-04f), 1.00950558e-04f, 1.34934322e-03f, -3.67342844e-03f,
                            5.73950773e-03f, -7.6224613e-03f, 9.43887047e-03f, 1.00167406f, 2.83297682f);
  const F end = magnitude<f32>(x) == 1.0f ? splat(f32(kInfinity)) : tail;
  return x * (w < 5.0f ? centre : end);
}

// How many quarter turns x has, and what is left of x without them.
struct Turns {
  F quarters, rest;
};
JF_FUNCTION F quarters_of(F x) { return nearest(x * 0.636619772f); }
// f64 holds so many quarters of 33 bits exactly enough.
constexpr f32 kManyTurns = 0x1p18f;
JF_FUNCTION Turns turns_of_many(F x) {
  const F n = quarters_of(x);
  const D turns = value_as<f64>(n);
  return {n, value_as<f32>(value_as<f64>(x) - turns * 0x1.921fb544p+0 - turns * 0x1.0b4611a626331p-34)};
}
#if defined(__FMA__)
// f32 fewer of 21 bits, where products are not rounded.
constexpr f32 kFewTurns = 0x1p15f;
JF_FUNCTION Turns turns_of(F x) {
  const F n = quarters_of(x);
  return {n, x - n * 0x1.921fb0p+0f - n * 0x1.5110b4p-22f - n * 0x1.846988p-48f};
}
#else
constexpr f32 kFewTurns = kManyTurns;
JF_FUNCTION Turns turns_of(F x) { return turns_of_many(x); }
#endif

template <bool kCosine>
JF_FUNCTION F sine_of(const Turns& turns) {
  const F r = turns.rest, z = r * r;
  // Cephes.
  const F s = polynomial(z, splat(-1.9515295891e-4f), 8.3321608736e-3f, -1.6666654611e-1f) * (z * r) + r;
  const F c = polynomial(z, splat(2.443315711809948e-5f), -1.388731625493765e-3f, 4.166664568298827e-2f) * (z * z) -
              0.5f * z + 1.0f;
  const I quarter = value_as<s32>(turns.quarters) + s32(kCosine);
  const F result = (quarter & 1) != 0 ? c : s;
  return bits_as<f32>(bits_as<u32>(result) ^ bits_as<u32>((quarter & 2) << 30));
}
template <bool kCosine>
__attribute__((noinline, cold)) static void sine_of_large(f32* lanes) {
  F x;
  __builtin_memcpy(&x, lanes, sizeof(x));
  if (any(magnitude<f32>(x) > kManyTurns)) {
    for (int i = 0; i < JF_PART; ++i) lanes[i] = kCosine ? __builtin_cosf(lanes[i]) : __builtin_sinf(lanes[i]);
  } else {
    x = sine_of<kCosine>(turns_of_many(x));
    __builtin_memcpy(lanes, &x, sizeof(x));
  }
}
template <bool kCosine>
JF_FUNCTION F sine(F x) {
  F result = sine_of<kCosine>(turns_of(x));
  if (__builtin_expect(any(magnitude<f32>(x) > kFewTurns), 0)) {
    f32 lanes[JF_PART];
    __builtin_memcpy(lanes, &x, sizeof(x));
    sine_of_large<kCosine>(lanes);
    __builtin_memcpy(&result, lanes, sizeof(x));
  }
  return result;
}
JF_FUNCTION F sin(F x) {
  const F result = sine<false>(x);
  return x == 0.0f ? x : result;
}
JF_FUNCTION F cos(F x) { return sine<true>(x); }

// 2^(y log2|x|) with the logarithm in f64, then C's rules for signs and special values.
JF_FUNCTION F pow(F x, F y) {
  constexpr f32 kInf = f32(kInfinity);
  const F a = magnitude<f32>(x), b = magnitude<f32>(y), one = splat(1.0f);
  const auto [m, exponent] = split(a);
  const F e = a == 0.0f ? splat(-kInf) : a == kInf ? a : exponent;
  const D f = value_as<f64>(m - 1.0f), s = f / (f + 2.0), z = s * s;
  const D p = polynomial(z, D{} + 0.34073839647973836, 0.4116722157188758, 0.5770835945098726, 0.9617966732839056,
                         2.8853900817901432);
  F result = exp2(value_as<f64>(y) * (p * s + value_as<f64>(e)));
  const I whole_bits = value_as<s32>(b < 0x1p24f ? y : F{});
  const I whole = (b >= 0x1p24f) | (value_as<f32>(whole_bits) == y), odd = whole & ((whole_bits & 1) != 0);
  result = (odd & (bits_as<s32>(x) < 0)) ? -result : result;
  result = (~whole & (x < 0.0f) & (a < kInf)) ? splat(f32(kNaN)) : result;
  result = ((x != x) | (y != y)) ? x + y : result;
  return ((x == 1.0f) | (y == 0.0f) | ((a == 1.0f) & (b == kInf))) ? one : result;
}

JF_FUNCTION F rsqrt(F x) { return 1.0f / sqrt(x); }

// What values of the dtype M = bf16, which keeps 8 bits of them, are computed with, and M = Loose: of what is only
// summed, or rounded to 16 bits, |x| / 2 units in the last place average out, or go unseen.
//
// 2^r for r in [0, 1], exact at both ends: to 18 bits, and to 22.
JF_FUNCTION F short_power(bf16, F r) {
  return polynomial(r, splat(1.3555747e-2f), 5.203237e-2f, 2.4137977e-1f, 6.9303215e-1f, 1.0f);
}
JF_FUNCTION F short_power(Loose, F r) {
  return polynomial(r, splat(1.8793186e-3f), 8.9909956e-3f, 5.5818677e-2f, 2.4015927e-1f, 6.931517e-1f, 1.0f);
}
template <class M>
JF_FUNCTION F short_exp2(F x) {
#if !defined(__clang__) && defined(__AVX512DQ__) && JF_PART == 16 && __has_builtin(__builtin_ia32_reduceps512_mask)
  // The rest of a division by 1, which is 0 for infinities; scaling takes the whole below x by itself.
  const F r = __builtin_ia32_reduceps512_mask(x, 1, F{}, -1);
  return __builtin_ia32_scalefps512_mask(short_power(M{}, r), x, F{}, -1, 4);
#else
  x = at_least(-151.0f, at_most(129.0f, x));
  const F n = nearest(x - 0.5f);
  return scaled(short_power(M{}, x - n), n);
#endif
}
template <class M>
JF_FUNCTION F short_exp(F x) {
  return short_exp2<M>(x * kLog2E);
}
template <class M>
JF_FUNCTION F short_logistic(F x) {
  const F sum = 1.0f + short_exp2<M>(x * -kLog2E);
  return sum == f32(kInfinity) ? F{} : reciprocal(sum);
}
JF_FUNCTION F short_tanh(Loose, F x) { return tanh(x); }
// As tanh: to 13 bits, and 1 from 5.2 on.
JF_FUNCTION F short_tanh(bf16, F x) {
  const F z = at_most(5.2f * 5.2f, x * x);
  const F p = polynomial(z, splat(6.508775e-4f), 1.0177166e-1f, 9.999349e-1f);
  const F q = polynomial(z, splat(1.2622987e-2f), 4.3471843e-1f, 1.0f);
  return at_least(-1.0f, at_most(1.0f, x * p * reciprocal(q)));
}
JF_FUNCTION F short_erf(Loose, F x) { return erf(x); }
JF_FUNCTION F short_erfc(Loose, F x) { return erfc(x); }
JF_FUNCTION F short_erfc_of(F a) {
  a = at_most(10.25f, a);
  return short_erfc_tail(bf16{}, a, reciprocal(a + 2.0f), short_exp2<bf16>(a * a * -kLog2E));
}
JF_FUNCTION F short_erf(bf16, F x) {
  const F a = magnitude<f32>(x);
  return a < 0.75f ? short_erf_small(bf16{}, x) : with_sign_of(x, 1.0f - short_erfc_of(a));
}
JF_FUNCTION F short_erfc(bf16, F x) {
  const F r = short_erfc_of(magnitude<f32>(x));
  return x < 0.0f ? 2.0f - r : r;
}

JF_FUNCTION F short_log1p(F x) { return magnitude<f32>(x) < 0.1875f ? short_log1p_small(x) : log(1.0f + x); }

// For every float type: adding 2^(digits) drops the fraction, ties to even.
template <class T>
JF_FUNCTION Part<T> copy_sign(Part<T> sign, Part<T> x) {
  const Unsigned<T> top = Unsigned<T>(kSmallest<Signed<T>>);
  return bits_as<T>((bits_as<Unsigned<T>>(x) & Unsigned<T>(~top)) | (bits_as<Unsigned<T>>(sign) & top));
}
template <class T>
JF_FUNCTION Part<T> round_even(Part<T> x) {
  constexpr T kWhole = sizeof(T) == 4 ? T(0x1p23) : T(0x1p52);
  const Part<T> a = magnitude<T>(x);
  return copy_sign<T>(x, a < kWhole ? (a + kWhole) - kWhole : a);
}
template <class T>
JF_FUNCTION Part<T> floor(Part<T> x) {
  const Part<T> r = round_even<T>(x);
  return copy_sign<T>(x, r > x ? r - 1 : r);
}
template <class T>
JF_FUNCTION Part<T> ceil(Part<T> x) {
  const Part<T> r = round_even<T>(x);
  return copy_sign<T>(x, r < x ? r + 1 : r);
}
template <class T>
JF_FUNCTION Part<T> round_away(Part<T> x) {
  const Part<T> a = magnitude<T>(x), low = floor<T>(a);
  return copy_sign<T>(x, a - low >= T(0.5) ? low + 1 : low);
}

}  // namespace jf::parts

#include "codegen/cpu_libm.h"

#include "codegen/logaddexp.h"
