// The digamma function of one lane, for both preludes: asymptotic series after the recurrence, reflection below zero,
// as psi in Moshier's Cephes library. In f64 also for f32, whose own arithmetic loses the digits around the root.
#pragma once

namespace jf {

JF_FUNCTION f64 digamma_of(f64 x) {
  constexpr f64 kPi = 3.14159265358979323846;
  f64 reflected = 0;
  if (x <= 0) {
    // tan(pi x) has the period 1: the distance to the nearest whole number keeps the digits.
    if (x == scalar::floor(x)) return kNaN;
    const f64 distance = x - scalar::floor(x + 0.5);
    reflected = kPi / scalar::tan(kPi * distance);
    x = 1 - x;
  }
  f64 shifted = 0;
  for (; x < 10; x += 1) shifted += 1 / x;
  const f64 z = 1 / (x * x);
  f64 series = 8.33333333333333333333e-2;
  series = series * z - 2.10927960927960927961e-2;
  series = series * z + 7.57575757575757575758e-3;
  series = series * z - 4.16666666666666666667e-3;
  series = series * z + 3.96825396825396825397e-3;
  series = series * z - 8.33333333333333333333e-3;
  series = series * z + 8.33333333333333333333e-2;
  return scalar::log(x) - 0.5 / x - series * z - shifted - reflected;
}

}  // namespace jf
