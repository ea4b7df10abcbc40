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

// Rows of one machine vector at p, so many bytes apart, turned.
#if defined(__AVX512F__) && JF_PART == 16
// Quarters of rows go to their places as they are loaded, which leaves two of four steps to registers: a core loads
// twice as many as it moves.
typedef f32 Quarter __attribute__((vector_size(16)));
#if defined(__clang__)
template <int... l>
JF_FUNCTION Part<f32> place_quarter(int q, Part<f32> x, Quarter from, Numbers<l...>) {
  const Part<f32> all = __builtin_shufflevector(from, from, (l % 4)...);
  const Part<f32> placed[] = {__builtin_shufflevector(x, all, (l / 4 == 0 ? 16 + l : l)...),
                              __builtin_shufflevector(x, all, (l / 4 == 1 ? 16 + l : l)...),
                              __builtin_shufflevector(x, all, (l / 4 == 2 ? 16 + l : l)...),
                              __builtin_shufflevector(x, all, (l / 4 == 3 ? 16 + l : l)...)};
  return placed[q];
}
#else
template <int... l>
JF_FUNCTION Part<f32> place_quarter(int q, Part<f32> x, Quarter from, Numbers<l...>) {
  return __builtin_ia32_broadcastf32x4_512(from, x, (unsigned short)(q == 0 ? -1 : 15 << 4 * q));
}
#endif
// Runs of x and y by turns, from the lower or upper half of each 16 bytes.
template <int run, bool upper, int... l>
JF_FUNCTION Part<f32> weave(Part<f32> x, Part<f32> y, Numbers<l...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, y, (l / 4 * 4 + 2 * upper + l % 4 / (2 * run) + l % run + (l / run % 2) * 16)...);
#else
  return __builtin_shuffle(x, y,
                           Part<s32>{(l / 4 * 4 + 2 * upper + l % 4 / (2 * run) + l % run + (l / run % 2) * 16)...});
#endif
}
template <class T>
JF_FUNCTION void load_turned_vectors(Part<T>* to, const void* p, long bytes) {
  using All16 = NumbersBelow<16>::Type;
  Part<f32> rows[16];
  JF_UNROLL
  for (int l = 0; l < 16; ++l) {
    JF_UNROLL
    for (int q = 0; q < 4; ++q) {
      Quarter x;
      __builtin_memcpy(&x, static_cast<const char*>(p) + l * bytes + 16 * q, sizeof(x));
      Part<f32>& row = rows[4 * q + l % 4];
      row = place_quarter(l / 4, l < 4 ? Part<f32>{} : row, x, All16{});
    }
  }
  JF_UNROLL
  for (int i = 0; i < 16; i += 4) {
    const Part<f32> a = weave<1, false>(rows[i], rows[i + 1], All16{}),
                    b = weave<1, true>(rows[i], rows[i + 1], All16{}),
                    c = weave<1, false>(rows[i + 2], rows[i + 3], All16{}),
                    d = weave<1, true>(rows[i + 2], rows[i + 3], All16{});
    to[i] = bits_as<T>(weave<2, false>(a, c, All16{}));
    to[i + 1] = bits_as<T>(weave<2, true>(a, c, All16{}));
    to[i + 2] = bits_as<T>(weave<2, false>(b, d, All16{}));
    to[i + 3] = bits_as<T>(weave<2, true>(b, d, All16{}));
  }
}
#else
template <class T>
JF_FUNCTION void load_turned_vectors(Part<T>* to, const void* p, long bytes) {
  JF_UNROLL
  for (int l = 0; l < JF_PART; ++l) __builtin_memcpy(&to[l], static_cast<const char*>(p) + l * bytes, sizeof(Part<T>));
  turn<JF_PART / 2, T>(to);
}
#endif

// Rows of twice as many 16-bit floats: turned as pairs.
JF_FUNCTION Part<f32> first_of_pair(bf16, Part<u32> x) { return bits_as<f32>(x << 16); }
JF_FUNCTION Part<f32> second_of_pair(bf16, Part<u32> x) { return bits_as<f32>(x & 0xffff0000); }
JF_FUNCTION Part<f32> first_of_pair(f16, Part<u32> x) { return decode(f16{}, value_as<u16>(x)); }
JF_FUNCTION Part<f32> second_of_pair(f16, Part<u32> x) { return decode(f16{}, value_as<u16>(x >> 16)); }
template <class M, class At, class On>
JF_FUNCTION void load_turned_pairs(At at, const M* p, long stride, On on) {
  Part<u32> rows[JF_PART];
  if constexpr (is_same<On, All>) {
    load_turned_vectors<u32>(rows, p, stride * sizeof(M));
  } else {
    const int count = active<JF_PART>(on);
    JF_UNROLL
    for (int l = 0; l < JF_PART; ++l) {
      rows[l] = Part<u32>{};
      if (l < count) __builtin_memcpy(&rows[l], p + l * stride, sizeof(Part<u32>));
    }
    turn<JF_PART / 2, u32>(rows);
  }
  JF_UNROLL
  for (int l = 0; l < JF_PART; ++l) {
    at(2 * l).v = first_of_pair(M{}, rows[l]);
    at(2 * l + 1).v = second_of_pair(M{}, rows[l]);
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
    if constexpr ((is_same<M, bf16> || is_same<M, f16>) && E % (2 * JF_PART) == 0) {
      if (active<E>(columns) == E) {
        for (int e = 0; e < E; e += 2 * JF_PART) {
          fetch_line(p + e, stride, ahead, e);
          load_turned_pairs([=](int i) JF_LAMBDA -> auto& { return at(e + i); }, p + e, stride, on);
        }
        return;
      }
    }
    for (int e = 0; e < E; e += JF_PART) {
      fetch_line(p + e, stride, ahead, e);
      Part<T> rows[JF_PART];
      if constexpr (is_same<M, T> && sizeof(M) == sizeof(f32) && is_same<On, All>) {
        if (active<JF_PART>(rest(columns, e)) == JF_PART) {
          load_turned_vectors<T>(rows, p + e, stride * sizeof(M));
          JF_UNROLL
          for (int l = 0; l < JF_PART; ++l) at(e + l).v = rows[l];
          continue;
        }
      }
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
