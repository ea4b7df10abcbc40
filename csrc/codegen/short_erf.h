// erf and erfc for values of bf16, which keeps 8 bits of what these give: 13; and for M = Loose: 18. For both
// languages.
#pragma once

namespace jf {

// exp(-a^2) erfcx(a) for a in [0, 9.8], and 0 for more, given u = 1 / (a + 2) and the power.
template <class V>
JF_FUNCTION V short_erfc_tail(bf16, V a, V u, V power) {
  const V v = (a - 2.0f) * u;
  return power * u * ((((v * -2.1142857e-2f - 3.2343458e-2f) * v + 2.796438e-1f) * v - 6.8773699e-1f) * v + 1.0215863f);
}
template <class V>
JF_FUNCTION V short_erfc_tail(Loose, V a, V u, V power) {
  const V v = (a - 2.0f) * u;
  const V high = ((v * 2.7679424e-3f + 5.7697799e-3f) * v - 2.1487573e-2f) * v - 3.6257334e-2f;
  return power * u * (((high * v + 2.7947348e-1f) * v - 6.8717325e-1f) * v + 1.0215828f);
}
// For |x| < 3/4.
template <class V>
JF_FUNCTION V short_erf_small(bf16, V x) {
  const V square = x * x;
  return x * ((square * 9.261594e-2f - 3.7197122e-1f) * square + 1.1282476f);
}
template <class V>
JF_FUNCTION V short_erf_small(Loose, V x) {
  const V square = x * x;
  return x * (((square * -2.1642921e-2f + 1.1105961e-1f) * square - 3.7592724e-1f) * square + 1.1283756f);
}

}  // namespace jf
