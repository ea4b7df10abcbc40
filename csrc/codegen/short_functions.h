// Functions for values of bf16, which keeps 8 bits of what these give: erf and erfc 13, and 22 for M = Loose; log1p 22.
// For both languages.
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
  const V high = ((v * -4.5918944e-4f - 7.5340807e-4f) * v + 2.9750315e-3f) * v + 6.4347764e-3f;
  const V low = ((high * v - 2.1481892e-2f) * v - 3.6433998e-2f) * v + 2.7946949e-1f;
  return power * u * ((low * v - 6.8716115e-1f) * v + 1.0215827f);
}
// For |x| < 3/4.
template <class V>
JF_FUNCTION V short_erf_small(bf16, V x) {
  const V square = x * x;
  return x * ((square * 9.261594e-2f - 3.7197122e-1f) * square + 1.1282476f);
}
template <class V>
JF_FUNCTION V short_erf_small(Loose, V x) {
  const V square = x * x, high = (square * 4.152787e-3f - 2.6355958e-2f) * square + 1.1273697e-1f;
  return x * ((high * square - 3.7611941e-1f) * square + 1.1283791f);
}

// log(1 + x) for |x| < 3/16.
template <class V>
JF_FUNCTION V short_log1p_small(V x) {
  const V high = (x * -1.7538731e-1f + 2.0775691e-1f) * x - 2.4982537e-1f;
  return x * (((high * x + 3.3323073e-1f) * x - 5.0000083e-1f) * x + 1.0f);
}

}  // namespace jf
