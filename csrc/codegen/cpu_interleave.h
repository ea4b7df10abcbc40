// Elements that each lane has side by side in memory, a few of them (real and imaginary parts, colors): whole vectors
// are loaded and stored, and their elements sorted in registers.
#pragma once

#include "codegen/cpu_memory.h"

namespace jf {

// What n vectors hold that the active lanes have n elements of.
JF_FUNCTION All times(All, int) { return {}; }
JF_FUNCTION First times(First on, int n) { return {on.count * n}; }
// Whether the active lanes are the first ones.
template <class On>
inline constexpr bool is_prefix = is_same<On, All> || is_same<On, First>;

// Two elements of 8 or 16 bits, as one integer.
template <class M, int n>
inline constexpr bool is_pair = n == 2 && sizeof(M) <= 2;
template <class M>
using Pair = Integer<Unsigned<Stored<M>>, 2 * sizeof(M)>;

// Element e of vectors side by side, from kVector * JF_PART on, is lane e / n of x[e % n].
template <int kVector, int kPhase, class V, int n, int... l>
JF_FUNCTION V interleaved(const V (&x)[n], const V& before, Numbers<l...> lanes) {
  if constexpr (kPhase == n) {
    return before;
  } else {
    constexpr int kFrom = kVector * JF_PART;
    const V both = __builtin_shufflevector(before, x[kPhase],
                                           ((kFrom + l) % n == kPhase ? JF_PART + (kFrom + l) / n
                                            : kPhase == 1             ? (kFrom + l) / n
                                                                      : l)...);
    return interleaved<kVector, kPhase + 1>(x, both, lanes);
  }
}
// Every n-th element of the vectors, from kPhase on.
template <int kVector, int kPhase, class V, int n, int... l>
JF_FUNCTION V every_nth(const V (&x)[n], const V& before, Numbers<l...> lanes) {
  if constexpr (kVector == n) {
    return before;
  } else {
    constexpr int kFrom = kVector * JF_PART;
    const V both = __builtin_shufflevector(before, x[kVector],
                                           ((l * n + kPhase) / JF_PART == kVector ? JF_PART + l * n + kPhase - kFrom
                                            : kVector == 1                        ? (l * n + kPhase) % JF_PART
                                                                                  : l)...);
    return every_nth<kVector + 1, kPhase>(x, both, lanes);
  }
}

template <class M, int n, class On, int... k>
JF_FUNCTION void write_interleaved(M* p, const Part<Stored<M>> (&x)[n], On on, Numbers<k...>) {
  if constexpr (is_pair<M, n>) {
    using U = Unsigned<Stored<M>>;
    const Part<Pair<M>> low = value_as<Pair<M>>(bits_as<U>(x[0])), high = value_as<Pair<M>>(bits_as<U>(x[1]));
    write<JF_PART>((Pair<M>*)p, One{}, low | high << 8 * sizeof(M), on);
  } else {
    const On all = times(on, n);
    (write<JF_PART>(p + k * JF_PART, One{}, interleaved<k, 1>(x, x[0], typename NumbersBelow<JF_PART>::Type{}),
                    rest(all, k * JF_PART)),
     ...);
  }
}
template <class M, class T, int W, int n, class On, int... k>
JF_FUNCTION void store_all_interleaved(M* p, const Lanes<T, W> (&x)[n], On on, Numbers<k...> phases) {
  if constexpr (W > JF_PART) {
    const Lanes<T, W / 2> low[] = {x[k].lo...}, high[] = {x[k].hi...};
    store_all_interleaved(p, low, on, phases);
    store_all_interleaved(p + n * (W / 2), high, rest(on, W / 2), phases);
  } else {
    const Part<Stored<M>> parts[] = {encode(M{}, x[k].v)...};
    write_interleaved(p, parts, on, phases);
  }
}
// Lane l of x[k] goes to p[k][offset + k + n * l]. Arrays in parts are mostly one array.
template <class M, class T, int W, int n, class On = All>
JF_FUNCTION void store_interleaved(M* const (&p)[n], long offset, const Lanes<T, W> (&x)[n], On on = {}) {
  if constexpr (W >= JF_PART && is_prefix<On>) {
    bool one = true;
    for (int k = 1; k < n; ++k) one = one && p[k] == p[0];
    if (one) return store_all_interleaved(p[0] + offset, x, on, typename NumbersBelow<n>::Type{});
  }
  for (int k = 0; k < n; ++k) store_strided(p[k] + offset + k, long(n), x[k], on);
}

template <class M, int n, class On, int... k>
JF_FUNCTION auto read_interleaved(const M* p, On on, Numbers<k...>) {
  struct Vectors {
    Part<Stored<M>> x[n];
  };
  const On all = times(on, n);
  return Vectors{{read<JF_PART>(p + k * JF_PART, One{}, rest(all, k * JF_PART))...}};
}
// Every n-th element from p + kPhase on, where the lanes have all elements from p on.
template <int n, int kPhase, class T, int W, class M, class On>
JF_FUNCTION Lanes<T, W> load_every_nth(Type<Lanes<T, W>>, const M* p, On on) {
  if constexpr (W > JF_PART) {
    constexpr int kHalf = W / 2;
    return {load_every_nth<n, kPhase>(Type<Lanes<T, kHalf>>{}, p, on),
            load_every_nth<n, kPhase>(Type<Lanes<T, kHalf>>{}, p + n * kHalf, rest(on, kHalf))};
  } else if constexpr (W < JF_PART || !is_prefix<On>) {
    return load_strided(Type<Lanes<T, W>>{}, p + kPhase, long(n), on);
  } else if constexpr (is_pair<M, n>) {
    const Part<Pair<M>> both = read<W>((const Pair<M>*)p, One{}, on);
    if constexpr (is_same<M, bf16>) {
      return {bits_as<f32>(kPhase == 0 ? both << 16 : both & 0xffff0000)};
    } else {
      return {decode(M{}, value_as<Stored<M>>(kPhase == 0 ? both : both >> 8 * sizeof(M)))};
    }
  } else {
    const auto all = read_interleaved<M, n>(p, on, typename NumbersBelow<n>::Type{});
    return {decode(M{}, every_nth<1, kPhase>(all.x, all.x[0], typename NumbersBelow<W>::Type{}))};
  }
}
template <class L, int n, int kPhase, class M, class On = All>
JF_FUNCTION L load_interleaved(const M* p, long offset, On on = {}) {
  return load_every_nth<n, kPhase>(Type<L>{}, p + offset - kPhase, on);
}

}  // namespace jf
