// Scans along registers of one thread, for both languages; cpu_scan.h and cuda_scan.cuh include it after what differs
// between them: scanned() over lanes, recurred() over lanes in turn, and last_lane(), the last one in all lanes.
#pragma once

namespace jf {

enum Order : bool { kForward = false, kReverse = true };

// Of elements that follow each other, each in a lane of its own.
template <class Op, class L>
JF_FUNCTION L scan(L& carry, const L& value) {
  return carry = Op::of(carry, value);
}

// Of lanes that follow each other. Those that do not exist count nothing.
template <class Op, Order kOrder, class L>
JF_FUNCTION L scan_lanes(const L& value) {
  return scanned<Op, kOrder>(value);
}
template <class Op, Order kOrder, class L>
JF_FUNCTION L scan_lanes(L& carry, const L& value) {
  const L result = Op::of(carry, scanned<Op, kOrder>(value));
  carry = last_lane<kOrder>(result);
  return result;
}
template <class Op, Order kOrder, class L, class On>
JF_FUNCTION L scan_lanes(const L& value, On on) {
  L nothing;
  fill<Op>(nothing);
  return scan_lanes<Op, kOrder>(first_lanes(on, value, nothing));
}
template <class Op, Order kOrder, class L, class On>
JF_FUNCTION L scan_lanes(L& carry, const L& value, On on) {
  L nothing;
  fill<Op>(nothing);
  return scan_lanes<Op, kOrder>(carry, first_lanes(on, value, nothing));
}

// Linear recurrences: an element is what stands before it; before the next one `factor` times that, and `value`. With
// kForgets, `value` alone where the factor is NaN.
template <bool kForgets, class L>
JF_FUNCTION L recur(L& carry, const L& factor, const L& value) {
  const L before = carry, sum = add(mul(factor, carry), value);
  if constexpr (kForgets) {
    carry = select(ne(factor, factor), value, sum);
  } else {
    carry = sum;
  }
  return before;
}
template <bool kForgets, Order kOrder, class L>
JF_FUNCTION L recur_lanes(L& carry, const L& factor, const L& value) {
  return recurred<kForgets, kOrder>(carry, factor, value);
}
template <bool kForgets, Order kOrder, class L, class On>
JF_FUNCTION L recur_lanes(L& carry, const L& factor, const L& value, On on) {
  L zero, one;
  fill<fold::add>(zero), fill<fold::mul>(one);
  return recur_lanes<kForgets, kOrder>(carry, first_lanes(on, factor, one), first_lanes(on, value, zero));
}
// Without elements before.
struct Start {};

template <bool kForgets, Order kOrder, class L, class... On>
JF_FUNCTION L recur_lanes(Start, const L& factor, const L& value, On... on) {
  L carry;
  fill<fold::add>(carry);
  return recur_lanes<kForgets, kOrder>(carry, factor, value, on...);
}

}  // namespace jf
