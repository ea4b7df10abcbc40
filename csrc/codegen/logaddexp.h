// log(exp(a) + exp(b)) without overflow, for both preludes, and as a fold.
#pragma once

namespace jf {

template <class T, int W>
JF_FUNCTION Lanes<T, W> logaddexp(const Lanes<T, W>& a, const Lanes<T, W>& b) {
  // Equal infinities have no difference.
  const Lanes<T, W> twice = add(a, constant<Lanes<T, W>>(T(0.6931471805599453)));
  return select(eq(a, b), twice, add(max(a, b), log1p(exp(neg(abs(sub(a, b)))))));
}

namespace fold {
struct logaddexp {
  template <class T>
  JF_FUNCTION T identity() {
    return T(-kInfinity);
  }
  template <class L>
  JF_FUNCTION L of(const L& a, const L& b) {
    return jf::logaddexp(a, b);
  }
};
}  // namespace fold

}  // namespace jf
