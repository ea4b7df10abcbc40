// Folds of register arrays: what the arrays start as, and how values come in. For both languages; cpu_fold.h and
// cuda_fold.cuh include it after what differs between them.
#pragma once

namespace jf {

template <class T>
JF_FUNCTION T lowest() {
  if constexpr (is_float<T>) {
    return T(-kInfinity);
  } else if constexpr (is_same<T, pred>) {
    return false;
  } else {
    return kSmallest<T>;
  }
}
template <class T>
JF_FUNCTION T highest() {
  if constexpr (is_float<T>) {
    return T(kInfinity);
  } else if constexpr (is_same<T, pred>) {
    return true;
  } else {
    return kLargest<T>;
  }
}
template <class T>
JF_FUNCTION T all_ones() {
  if constexpr (is_same<T, pred>) {
    return true;
  } else {
    return T(~T(0));
  }
}

// The ops that fold, as types, with the value that each leaves unchanged.
namespace fold {
#define JF_FOLD(name, expression)              \
  struct name {                                \
    template <class T>                         \
    JF_FUNCTION T identity() {                 \
      return expression;                       \
    }                                          \
    template <class L>                         \
    JF_FUNCTION L of(const L& a, const L& b) { \
      return jf::name(a, b);                   \
    }                                          \
  };
JF_FOLD(add, T(0))
JF_FOLD(mul, T(1))
JF_FOLD(max, lowest<T>())
JF_FOLD(min, highest<T>())
JF_FOLD(and_, all_ones<T>())
JF_FOLD(or_, T(0))
JF_FOLD(xor_, T(0))
#undef JF_FOLD
}  // namespace fold

template <class Op, class T, int W>
JF_FUNCTION void fill(Lanes<T, W>& x) {
  x = constant<Lanes<T, W>>(Op::template identity<T>());
}
template <class Op, class L, int N>
JF_FUNCTION void fill(L (&array)[N]) {
  JF_UNROLL for (int i = 0; i < N; ++i) fill<Op>(array[i]);
}

// The lanes that do not exist keep what they hold.
template <class Op, class L, class On>
JF_FUNCTION void accumulate(L& element, const L& value, On on) {
  element = first_lanes(on, Op::of(element, value), element);
}

// The fold of all lanes, in all lanes.
template <class Op, class T, int W>
JF_FUNCTION void fold_lanes(Lanes<T, W>& x) {
  x = folded<Op>(x);
}
template <class Op, class L, int N>
JF_FUNCTION void fold_lanes(L (&array)[N]) {
  JF_UNROLL for (int i = 0; i < N; ++i) fold_lanes<Op>(array[i]);
}

}  // namespace jf
