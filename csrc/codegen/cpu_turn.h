// Tiles of memory whose rows become lanes: contiguous vectors are loaded and turned in registers.
#pragma once

#include "codegen/cpu_memory.h"

namespace jf {

// One step of a transposition: lanes l with l & d of x trade places with lanes l - d of y.
template <int d, class T, int... l>
JF_FUNCTION void trade(Part<T>& x, Part<T>& y, Numbers<l...>) {
#if defined(__clang__)
  const Part<T> a = __builtin_shufflevector(x, y, (l & d ? JF_PART + l - d : l)...);
  y = __builtin_shufflevector(x, y, (l & d ? JF_PART + l : l + d)...);
#else
  using N = LaneNumber<T>;
  const Part<T> a = __builtin_shuffle(x, y, Part<N>{N(l & d ? JF_PART + l - d : l)...});
  y = __builtin_shuffle(x, y, Part<N>{N(l & d ? JF_PART + l : l + d)...});
#endif
  x = a;
}
template <int d, class T>
JF_FUNCTION void turn(Part<T>* rows) {
  if constexpr (d > 0) {
    JF_UNROLL
    for (int i = 0; i < JF_PART; ++i) {
      if (!(i & d)) trade<d, T>(rows[i], rows[i + d], typename NumbersBelow<JF_PART>::Type{});
    }
    turn<d / 2, T>(rows);
  }
}

// Rows of twice as many bf16: turned as pairs, of which one half is widened by a shift and the other by a mask.
template <class At>
JF_FUNCTION void load_turned_pairs(At at, const bf16* p, long stride, int count) {
  Part<u32> rows[JF_PART];
  JF_UNROLL
  for (int l = 0; l < JF_PART; ++l) {
    rows[l] = Part<u32>{};
    if (l < count) __builtin_memcpy(&rows[l], p + l * stride, sizeof(Part<u32>));
  }
  turn<JF_PART / 2, u32>(rows);
  JF_UNROLL
  for (int l = 0; l < JF_PART; ++l) {
    at(2 * l).v = bits_as<f32>(rows[l] << 16);
    at(2 * l + 1).v = bits_as<f32>(rows[l] & 0xffff0000);
  }
}

// Fetches what is `ahead` of element e of rows, at p, where it begins a line. Rows that are multiples of a page apart
// have no room in the first-level cache together.
template <class M>
JF_FUNCTION void fetch_line(const M* p, long stride, long ahead, int e) {
  if (e * sizeof(M) % 64 != 0) return;
  for (int l = 0; l < JF_PART; ++l) {
    const M* const line = p + l * stride + ahead;
    stride * sizeof(M) % 4096 == 0 ? __builtin_prefetch(line, 0, 2) : __builtin_prefetch(line);
  }
}

// at(e) is where element e goes; rows are those of its lanes, `columns` how many elements of each exist.
template <int E, int W, class T, class At, class M, class Columns, class On>
JF_FUNCTION void load_turned_lanes(Type<Lanes<T, W>>, At at, const M* p, long stride, long ahead, Columns columns,
                                   On on) {
  if constexpr (W > JF_PART) {
    using Half = Type<Lanes<T, W / 2>>;
    load_turned_lanes<E>(Half{}, [=](int e) JF_LAMBDA -> auto& { return at(e).lo; }, p, stride, ahead, columns, on);
    load_turned_lanes<E>(
        Half{}, [=](int e) JF_LAMBDA -> auto& { return at(e).hi; }, p + W / 2 * stride, stride, ahead, columns,
        rest(on, W / 2));
  } else if constexpr (W == JF_PART && E % JF_PART == 0) {
    const int count = active<W>(on);
    if constexpr (is_same<M, bf16> && E % (2 * JF_PART) == 0) {
      if (active<E>(columns) == E) {
        for (int e = 0; e < E; e += 2 * JF_PART) {
          fetch_line(p + e, stride, ahead, e);
          load_turned_pairs([=](int i) JF_LAMBDA -> auto& { return at(e + i); }, p + e, stride, count);
        }
        return;
      }
    }
    for (int e = 0; e < E; e += JF_PART) {
      fetch_line(p + e, stride, ahead, e);
      Part<T> rows[JF_PART];
      JF_UNROLL
      for (int l = 0; l < JF_PART; ++l) {
        rows[l] = l < count ? decode(M{}, read<JF_PART>(p + l * stride + e, One{}, rest(columns, e))) : Part<T>{};
      }
      turn<JF_PART / 2, T>(rows);
      JF_UNROLL
      for (int l = 0; l < JF_PART; ++l) at(e + l).v = rows[l];
    }
  } else {
    const int last = active<E>(columns);
    for (int e = 0; e < last; ++e) at(e) = load_strided(Type<Lanes<T, W>>{}, p + e, stride, on);
  }
}
template <int E, class T, int W, class M, class Columns, class On = All>
JF_FUNCTION void load_turned(Lanes<T, W> (&to)[E], const M* p, long offset, long stride, long ahead, Columns columns,
                             On on = {}) {
  Lanes<T, W>* const first = to;
  load_turned_lanes<E>(
      Type<Lanes<T, W>>{}, [=](int e) JF_LAMBDA -> auto& { return first[e]; }, p + offset, stride, ahead, columns, on);
}

}  // namespace jf
