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

// Linear recurrences: each element is `value`, and `factor` times the one before it.
template <class L>
JF_FUNCTION L recur(L& carry, const L& factor, const L& value) {
  return carry = add(mul(factor, carry), value);
}
// Without elements before.
struct Start {};

template <class L>
JF_FUNCTION L first_carry(Start, const L&) {
  L zero;
  fill<fold::add>(zero);
  return zero;
}
template <class L>
JF_FUNCTION L first_carry(const L& carry, const L&) {
  return carry;
}
template <Order kOrder, class Carry, class L>
JF_FUNCTION L recur_lanes(Carry&& carry, const L& factor, const L& value) {
  const L result = recurred<kOrder>(first_carry(carry, value), factor, value);
  if constexpr (!is_same<Carry, Start>) carry = last_lane<kOrder>(result);
  return result;
}
template <Order kOrder, class Carry, class L, class On>
JF_FUNCTION L recur_lanes(Carry&& carry, const L& factor, const L& value, On on) {
  L zero, one;
  fill<fold::add>(zero), fill<fold::mul>(one);
  return recur_lanes<kOrder>(static_cast<Carry&&>(carry), first_lanes(on, factor, one), first_lanes(on, value, zero));
}

}  // namespace jf
