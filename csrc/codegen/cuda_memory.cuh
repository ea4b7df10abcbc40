// Memory on CUDA: vector access as wide as the offset's known multiple allows, at most 16 bytes; buffers start at
// multiples of 16.
#pragma once

#include "codegen/cuda_lanes.cuh"
#include "codegen/memory.h"

namespace jf {

JF_FUNCTION bool is_active(All, int) { return true; }
JF_FUNCTION bool is_active(Between on, int lane) { return on.first <= lane && lane < on.end; }
JF_FUNCTION bool is_active(First on, int lane) { return lane < on.count; }
// Those whose bit is set.
struct Some {
  u32 lanes;
};
JF_FUNCTION bool is_active(Some on, int lane) { return on.lanes >> lane & 1; }

// Calls body(base - before, lanes that are neither negative nor above the limit). `begins`, `ends`: whether some lanes
// may be the one or the other, known where loops are unrolled. Where some thread of a warp has a part of a vector, all
// count lanes, so that none waits for another's body.
template <int W, class I, class F>
JF_FUNCTION void vector_before(I base, I before, long up_to, bool begins, bool ends, F body) {
  const I first = base - before, limit = I(up_to);
  const bool whole = (!begins || first >= 0) && (!ends || limit - first >= W);
  if ((!begins && !ends) || ptx::all_of_warp(whole)) {
    body(first, All{});
  } else if (first < limit) {
    const u32 all = (1ul << W) - 1, there = limit - first < W ? (1u << int(limit - first)) - 1 : all;
    body(first, Some{first < 0 ? there & all << int(-first) : there});
  }
}

constexpr int kMostBytes = 16;

constexpr int smaller_of(int a, int b) { return a < b ? a : b; }
// Elements of one memory access.
template <class M, int W, int kMultiple>
inline constexpr int kChunk = smaller_of(smaller_of(W, kMultiple), kMostBytes / int(sizeof(M)));

template <class E, int N>
struct alignas(sizeof(E) * N) Chunk {
  E v[N];
};

template <class T>
struct Type {};

// kLasts: what is read leaves the second-level cache after what is written.
template <bool kLasts, class Piece>
JF_FUNCTION Piece load_piece(const Piece* p) {
  if constexpr (kLasts && sizeof(Piece) == 16) {
    Chunk<u64, 2> words;
    ptx::load_lasting(p, words.v[0], words.v[1]);
    return bits_as<Piece>(words);
  } else {
    return *p;
  }
}
template <int kMultiple, bool kLasts = false, class T, int W, class M>
JF_FUNCTION Lanes<T, W> load_lanes(Type<Lanes<T, W>>, const M* p, All) {
  constexpr int kCount = kChunk<M, W, kMultiple>;
  Lanes<T, W> x;
  if constexpr (is_short<M> && kCount > 1) {
    using Piece = Chunk<Pair<M>, kCount / 2>;
#pragma unroll
    for (int i = 0; i < W / kCount; ++i) {
      const Piece piece = load_piece<kLasts>(reinterpret_cast<const Piece*>(p) + i);
#pragma unroll
      for (int j = 0; j < kCount; j += 2) {
        x.v[i * kCount + j] = decode_low(M{}, piece.v[j / 2]);
        x.v[i * kCount + j + 1] = decode_high(M{}, piece.v[j / 2]);
      }
    }
  } else {
    using Piece = Chunk<Stored<M>, kCount>;
#pragma unroll
    for (int i = 0; i < W / kCount; ++i) {
      const Piece piece = load_piece<kLasts>(reinterpret_cast<const Piece*>(p) + i);
#pragma unroll
      for (int j = 0; j < kCount; ++j) x.v[i * kCount + j] = decode(M{}, piece.v[j]);
    }
  }
  return x;
}
// The compiler takes a store to global memory apart where the offset is long.
template <bool kShared, class Piece>
JF_FUNCTION void store_piece(Piece* p, const Piece& piece) {
  if constexpr (!kShared && sizeof(Piece) == 16) {
    const auto words = bits_as<Chunk<u64, 2>>(piece);
    ptx::store_global(p, words.v[0], words.v[1]);
  } else {
    *p = piece;
  }
}
template <int kMultiple, bool kShared, class M, class T, int W>
JF_FUNCTION void store_lanes(M* p, const Lanes<T, W>& x, All) {
  constexpr int kCount = kChunk<M, W, kMultiple>;
  if constexpr (is_short<M> && kCount > 1) {
    using Piece = Chunk<Pair<M>, kCount / 2>;
#pragma unroll
    for (int i = 0; i < W / kCount; ++i) {
      Piece piece;
#pragma unroll
      for (int j = 0; j < kCount; j += 2) {
        piece.v[j / 2] = encode_pair(M{}, x.v[i * kCount + j], x.v[i * kCount + j + 1]);
      }
      store_piece<kShared>(reinterpret_cast<Piece*>(p) + i, piece);
    }
  } else {
    using Piece = Chunk<Stored<M>, kCount>;
#pragma unroll
    for (int i = 0; i < W / kCount; ++i) {
      Piece piece;
#pragma unroll
      for (int j = 0; j < kCount; ++j) piece.v[j] = encode(M{}, x.v[i * kCount + j]);
      store_piece<kShared>(reinterpret_cast<Piece*>(p) + i, piece);
    }
  }
}

// The stored bytes of all lanes.
template <class M, class T, int W>
JF_FUNCTION Chunk<Stored<M>, W> encode_lanes(M, const Lanes<T, W>& x) {
  Chunk<Stored<M>, W> result;
  if constexpr (is_short<M> && W > 1) {
    Chunk<Pair<M>, W / 2> pairs;
#pragma unroll
    for (int i = 0; i < W; i += 2) pairs.v[i / 2] = encode_pair(M{}, x.v[i], x.v[i + 1]);
    result = bits_as<Chunk<Stored<M>, W>>(pairs);
  } else {
#pragma unroll
    for (int i = 0; i < W; ++i) result.v[i] = encode(M{}, x.v[i]);
  }
  return result;
}

template <class M>
JF_FUNCTION Compute<M> load_one(const M* p) {
  return decode(M{}, *reinterpret_cast<const Stored<M>*>(p));
}
template <class M, class T>
JF_FUNCTION void store_one(M* p, T x) {
  *reinterpret_cast<Stored<M>*>(p) = encode(M{}, x);
}
template <class T, int W, class M, class On>
JF_FUNCTION Lanes<T, W> load_strided(Type<Lanes<T, W>>, const M* p, long stride, On on) {
  Lanes<T, W> x;
#pragma unroll
  for (int i = 0; i < W; ++i) x.v[i] = is_active(on, i) ? load_one(p + i * stride) : T(0);
  return x;
}
template <class M, class T, int W, class On>
JF_FUNCTION void store_strided(M* p, long stride, const Lanes<T, W>& x, On on) {
#pragma unroll
  for (int i = 0; i < W; ++i) {
    if (is_active(on, i)) store_one(p + i * stride, x.v[i]);
  }
}
template <int kMultiple, class T, int W, class M>
JF_FUNCTION Lanes<T, W> load_lanes(Type<Lanes<T, W>> type, const M* p, First on) {
  return load_strided(type, p, 1, on);
}
template <int kMultiple, bool kShared, class M, class T, int W, class On>
JF_FUNCTION void store_lanes(M* p, const Lanes<T, W>& x, On on) {
  store_strided(p, 1, x, on);
}

// Whole vectors among them in one access.
template <int kMultiple, bool kShared, class M, class T, int W>
JF_FUNCTION void store_lanes(M* p, const Lanes<T, W>& x, Some on) {
  if constexpr (kMultiple % W == 0 && W * sizeof(M) <= kMostBytes) {
    const auto stored = encode_lanes(M{}, x);
    if (on.lanes == (1ul << W) - 1) return store_piece<kShared>(reinterpret_cast<Chunk<Stored<M>, W>*>(p), stored);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      if (is_active(on, i)) reinterpret_cast<Stored<M>*>(p)[i] = stored.v[i];
    }
  } else {
    store_strided(p, 1, x, on);
  }
}

// Words from a byte of theirs on.
template <int kWords>
JF_FUNCTION Chunk<u32, kWords> from_byte(const u32 (&words)[2 * kWords], u32 byte) {
  u32 x[2 * kWords];
#pragma unroll
  for (int i = 0; i < 2 * kWords; ++i) x[i] = words[i];
#pragma unroll
  for (int step = kWords / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i + step < 2 * kWords; ++i) x[i] = byte & (4 * step) ? x[i + step] : x[i];
  }
  Chunk<u32, kWords> result;
#pragma unroll
  for (int i = 0; i < kWords; ++i) result.v[i] = __funnelshift_r(x[i], x[i + 1], 8 * (byte & 3));
  return result;
}
// Elements from any index on, `before` a vector's begin: from the two aligned vectors that they are in, as far as some
// of `count` are there. On All they all are, and places are the same distance apart for all vectors of a thread.
template <class T, int W, class M, class I, class On>
JF_FUNCTION Lanes<T, W> load_around_lanes(Type<Lanes<T, W>> type, const M* p, I index, I before, I count, On) {
  constexpr int kWords = W * int(sizeof(M)) / 4;
  using Piece = Chunk<u32, kWords>;
  const I high = index + before, low = high - (before > 0 ? W : 0);
  const auto piece_at = [&](I at) {
    const I last = (count - 1) & -W;
    if constexpr (!is_same<On, All>) at = at < 0 ? 0 : at > last ? last : at;
    return *reinterpret_cast<const Piece*>(p + at);
  };
  const Piece a = piece_at(low), b = piece_at(high);
  u32 words[2 * kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = a.v[i];
    words[kWords + i] = b.v[i];
  }
  const Piece piece = from_byte<kWords>(words, (W - u32(before)) % W * u32(sizeof(M)));
  return load_lanes<W>(type, reinterpret_cast<const M*>(&piece), All{});
}

// The offset where the condition holds, else 0. Of `where ? offset : 0`, ptxas 13 makes a 64-bit zero and predicated
// arithmetic on it, and reads the zero before it is there: kernels failed on an H200 with misaligned addresses.
JF_FUNCTION long or_first(bool where, long offset) { return offset & ptx::mask(where); }

// L is the Lanes type of the result; kMultiple divides the offset.
template <class L, int kMultiple = 1, class M, class On = All>
JF_FUNCTION L load(const M* p, long offset, On on = {}) {
  return load_lanes<kMultiple>(Type<L>{}, p + offset, on);
}
// The same of an array that no cache holds, where such a one is written, too: that goes on to memory first, in longer
// runs. 16384 x 8192 bf16: a norm of rows took 126 us instead of 131.
template <class L, int kMultiple = 1, class M>
JF_FUNCTION L load_lasting(const M* p, long offset, All = {}) {
  return load_lanes<kMultiple, true>(Type<L>{}, p + offset, All{});
}
template <class L, int kMultiple = 1, class M, class On>
JF_FUNCTION L load_lasting(const M* p, long offset, On on) {
  return load<L, kMultiple>(p, offset, on);
}
// Lane 0 at the offset, each lane before the one before; kMultiple divides the last lane's offset.
template <int kMultiple, class T, int W, class M>
JF_FUNCTION Lanes<T, W> load_reversed_lanes(Type<Lanes<T, W>> type, const M* p, All) {
  const Lanes<T, W> x = load_lanes<kMultiple>(type, p - (W - 1), All{});
  Lanes<T, W> result;
#pragma unroll
  for (int i = 0; i < W; ++i) result.v[i] = x.v[W - 1 - i];
  return result;
}
template <int kMultiple, class T, int W, class M, class On>
JF_FUNCTION Lanes<T, W> load_reversed_lanes(Type<Lanes<T, W>> type, const M* p, On on) {
  return load_strided(type, p, -1, on);
}
template <class L, int kMultiple = 1, class M, class On = All>
JF_FUNCTION L load_reversed(const M* p, long offset, On on = {}) {
  return load_reversed_lanes<kMultiple>(Type<L>{}, p + offset, on);
}
template <class L, class M, class On = All>
JF_FUNCTION L gather(const M* p, long offset, long stride, On on = {}) {
  return load_strided(Type<L>{}, p + offset, stride, on);
}
template <class L, class M, class I, class On = Some>
JF_FUNCTION L load_around(const M* p, I index, I before, long count, On on = {}) {
  return load_around_lanes(Type<L>{}, p, index, before, I(count), on);
}
// The stride of neighbours.
struct One {
  __device__ __forceinline__ operator long() const { return 1; }
};
template <class L, int kMultiple, class M, class On>
JF_FUNCTION L load_all(const M* p, One, On on) {
  return load_lanes<kMultiple>(Type<L>{}, p, on);
}
template <class L, int kMultiple, class M, class On>
JF_FUNCTION L load_all(const M* p, long stride, On on) {
  return load_strided(Type<L>{}, p, stride, on);
}
// Lanes whose index is from `begin` on, below `end`; lane 0 has `index`.
template <class L, int kMultiple, class M, class Stride, class T, int W, class On>
JF_FUNCTION L load_within_lanes(Type<Lanes<T, W>>, const M* p, Stride stride, long index, long begin, long end, On on) {
  if (begin <= index && index <= end - W) return load_all<L, kMultiple>(p, stride, on);
  return load_strided(Type<L>{}, p, stride, between<W>(index, begin, end, on));
}
template <class L, int kMultiple = 1, class M, class Stride, class On = All>
JF_FUNCTION L load_within(const M* p, long offset, Stride stride, long index, long begin, long end, On on = {}) {
  return load_within_lanes<L, kMultiple>(Type<L>{}, p + offset, stride, index, begin, end, on);
}
template <class T, int W>
JF_FUNCTION long step(const Lanes<T, W>& x, long limit, long weight) {
  return step_of(x.v[0], limit, weight);
}
// Of a condition that is the same in all lanes.
template <int W>
JF_FUNCTION bool first(const Lanes<pred, W>& x) {
  return x.v[0];
}
template <class T, int W>
JF_FUNCTION Lanes<s64, W> steps(const Lanes<T, W>& x, long limit, long weight) {
  return map<s64>([=](T i) { return step_of(i, limit, weight); }, x);
}
// Each lane from its own place.
template <class T, int W, class M, class On>
JF_FUNCTION Lanes<T, W> load_lanes_at(Type<Lanes<T, W>>, const M* p, long stride, const Lanes<s64, W>& at, On on) {
  Lanes<T, W> x;
#pragma unroll
  for (int i = 0; i < W; ++i) x.v[i] = is_active(on, i) ? load_one(p + i * stride + at.v[i]) : T(0);
  return x;
}
template <class L, class M, int W, class On = All>
JF_FUNCTION L load_at(const M* p, long offset, long stride, const Lanes<s64, W>& at, On on = {}) {
  return load_lanes_at(Type<L>{}, p + offset, stride, at, on);
}
template <int kMultiple = 1, class M, class T, int W, class On = All>
JF_FUNCTION void store(M* p, long offset, const Lanes<T, W>& x, On on = {}) {
  store_lanes<kMultiple, false>(p + offset, x, on);
}
template <int kMultiple = 1, class M, class T, int W, class On = All>
JF_FUNCTION void store_shared(M* p, long offset, const Lanes<T, W>& x, On on = {}) {
  store_lanes<kMultiple, true>(p + offset, x, on);
}
template <class M, class T, int W, class On = All>
JF_FUNCTION void scatter(M* p, long offset, long stride, const Lanes<T, W>& x, On on = {}) {
  store_strided(p + offset, stride, x, on);
}
// The first lane alone.
template <class M, class T, int W>
JF_FUNCTION void store_first(M* p, long offset, const Lanes<T, W>& x) {
  store_one(p + offset, x.v[0]);
}

template <class T, int W, class V>
JF_FUNCTION Lanes<T, W> from_values(Type<Lanes<T, W>>, V base, V stride) {
  Lanes<T, W> x;
#pragma unroll
  for (int i = 0; i < W; ++i) x.v[i] = T(base + i * stride);
  return x;
}
template <class L>
JF_FUNCTION L from_index(long base, long stride) {
  return from_values(Type<L>{}, base, stride);
}
template <class T, int W>
JF_FUNCTION Lanes<T, W> splat(Type<Lanes<T, W>>, T value) {
  Lanes<T, W> x;
#pragma unroll
  for (int i = 0; i < W; ++i) x.v[i] = value;
  return x;
}
template <class T, int W, class M>
JF_FUNCTION Lanes<T, W> load_splat_of(Type<Lanes<T, W>> type, const M* p) {
  return splat(type, load_one(p));
}
// One element in all lanes.
template <class L, class M>
JF_FUNCTION L load_splat(const M* p, long offset) {
  return load_splat_of(Type<L>{}, p + offset);
}
// The same, and no later than here, by all threads of a warp. Compilers read it when they need it, and what lies at the
// address that it tells after that: cross entropy's label and its logit, each of which a row then waits for.
template <class L, class M>
JF_FUNCTION L load_ahead(const M* p, long offset) {
  return splat(Type<L>{}, decode(M{}, ptx::load_now(reinterpret_cast<const Stored<M>*>(p + offset))));
}
template <class T, int W, class V>
JF_FUNCTION Lanes<T, W> constant_of(Type<Lanes<T, W>> type, V value) {
  return splat(type, T(value));
}
template <class L, class V>
JF_FUNCTION L constant(V value) {
  return constant_of(Type<L>{}, value);
}

}  // namespace jf
