// Which lanes of a vector are real, and which elements they stand for. For both languages; cpu_memory.h and
// cuda_memory.cuh include it.
#pragma once

namespace jf {

// Which lanes of a vector are real: all, or the first `count`. The others never touch memory.
struct All {};
struct First {
  int count;
};
// Lanes first .. end - 1.
struct Between {
  int first, end;
};
template <int W>
JF_FUNCTION int active(All) {
  return W;
}
template <int W>
JF_FUNCTION int active(First on) {
  return on.count < W ? on.count : W;
}

template <class A, class B>
JF_FUNCTION auto least(A a, B b) -> decltype(a + b) {
  return a < b ? a : b;
}

// Calls body(base, lanes that are below the limit): full vectors run without masks.
template <int W, class I, class F>
JF_FUNCTION void vector(I base, long limit, F body) {
  if (limit - base >= W) {
    body(base, All{});
  } else if (base < limit) {
    body(base, First{int(limit - base)});
  }
}

constexpr long kNoEnd = 0x7fffffffffffffff;
// A number of lanes of W.
template <int W>
JF_FUNCTION int lane_number(long lane) {
  return lane < 0 ? 0 : lane > W ? W : int(lane);
}
// The active lanes of W whose index is from `begin` on, below `end`; lane 0 has `index`, the next one more.
template <int W, class On>
JF_FUNCTION Between between(long index, long begin, long end, On on) {
  const int count = active<W>(on), last = lane_number<W>(end - index);
  return {lane_number<W>(begin - index), last < count ? last : count};
}

// How many of `count` numbers from `first` on are below the limit.
JF_FUNCTION int below(int count, long first, long limit) {
  return limit <= first ? 0 : limit - first < count ? int(limit - first) : count;
}

// weight * x, x brought into [0, limit].
template <class T>
JF_FUNCTION long step_of(T x, long limit, long weight) {
  if (is_signed<T> && x < T(0)) return 0;
  return (u64(x) > u64(limit) ? limit : long(x)) * weight;
}

}  // namespace jf
