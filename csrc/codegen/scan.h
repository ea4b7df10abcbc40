// Scans along registers of one thread, for both languages; cpu_scan.h and cuda_scan.cuh include it after what differs
// between them: scanned() over lanes, and last_lane(), the last one in all lanes.
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

}  // namespace jf
