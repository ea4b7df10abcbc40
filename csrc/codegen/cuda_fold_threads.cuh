// Folds over the threads of a block: shuffles within a warp, then shared memory between warps. All threads of the block
// call them together. The order is fixed, so equal blocks give equal bits.
//
// Values of several folds go together, so that the threads meet once. They meet a second time only where the same
// scratch is written again before they meet elsewhere.
//
// Threads along x are numbered first; there are a power of two up to 32 of them, or a multiple of 32, so that a row of
// them fills whole warps or divides one.
#pragma once

#include "codegen/cuda_fold.cuh"

namespace jf {

constexpr int kWarp = 32;

// What to fold over: any sum of these. kAgain: the scratch is written again before the threads meet elsewhere.
constexpr int kLanes = 1, kX = 2, kY = 4, kAgain = 8;

// Shared memory of a fold.
template <int kBytes>
struct Scratch {
  char* bytes;
};

template <int kBlockX, int kBlockY>
struct Block {
  static_assert(kBlockX % kWarp == 0 || kWarp % kBlockX == 0, "a row of threads fills whole warps or divides one");
  static constexpr int kColumns = kBlockX, kRows = kBlockY, kThreads = kBlockX * kBlockY;
  static constexpr int kWarps = (kThreads + kWarp - 1) / kWarp;
  // Every warp is full, or there is only one and it halves down to a thread.
  static constexpr bool kEven = kThreads % kWarp == 0 || kWarp % kThreads == 0;
  static constexpr int kWarpThreads = kThreads < kWarp ? kThreads : kWarp;

  JF_FUNCTION int column() { return threadIdx.x; }
  JF_FUNCTION int row() { return threadIdx.y; }
  JF_FUNCTION int thread() { return threadIdx.y * kBlockX + threadIdx.x; }
  // The threads of this warp that exist.
  JF_FUNCTION u32 warp_mask() {
    constexpr int kLast = kThreads % kWarp;
    return kLast == 0 || thread() / kWarp < kThreads / kWarp ? ~0u : (1u << kLast) - 1;
  }
};

// What another thread of the warp holds; `shuffle` gets a word from it.
template <class T, class Shuffle>
JF_FUNCTION T shuffled(T x, Shuffle shuffle) {
  if constexpr (sizeof(T) == sizeof(u64)) {
    const u64 bits = bits_as<u64>(x);
    const u32 low = shuffle(u32(bits)), high = shuffle(u32(bits >> 32));
    return bits_as<T>(u64(high) << 32 | low);
  } else if constexpr (is_float<T>) {
    return bits_as<T>(shuffle(bits_as<u32>(x)));
  } else {
    return T(shuffle(u32(x)));
  }
}
template <class T>
JF_FUNCTION T shuffle_xor(u32 mask, T x, int distance) {
  return shuffled(x, [=](u32 word) { return __shfl_xor_sync(mask, word, distance); });
}
// Folds the threads whose numbers differ in the bits from kLeast to below kMost; all of them get the result.
template <class Op, class B, int kLeast, int kMost, class T, int V>
JF_FUNCTION void fold_warp(Lanes<T, V>& values) {
  const u32 mask = B::warp_mask();
#pragma unroll
  for (int distance = kMost / 2; distance >= kLeast; distance /= 2) {
    values = Op::of(values, map<T>([&](T x) { return shuffle_xor(mask, x, distance); }, values));
  }
}

constexpr int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// How many of V values the scratch holds at once, when there are kCopies of each.
template <class T, int V, int kCopies, int kBytes>
JF_FUNCTION constexpr int values_at_once() {
  constexpr int kFit = kBytes / (kCopies * int(sizeof(T)));
  static_assert(kFit > 0, "the scratch is too small for this fold");
  return smaller_of(V, kFit);
}

// Every warp's first thread holds values of part `part` of result `slot`; all threads of a slot get its fold.
template <class Op, class B, int kSlots, int kParts, bool kTwice, class T, int V, int kBytes>
JF_FUNCTION void fold_few(Lanes<T, V>& values, int slot, int part, Scratch<kBytes> scratch) {
  constexpr int kRound = values_at_once<T, V, kSlots * kParts, kBytes>(), kPower = power_of_two_from(kParts);
  T* const partial = reinterpret_cast<T*>(scratch.bytes);
  const int lane = B::thread() % kWarp, read = lane % kPower;
#pragma unroll
  for (int first = 0; first < V; first += kRound) {
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kRound && first + i < V; ++i) {
        partial[(i * kSlots + slot) * kParts + part] = values.v[first + i];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRound && first + i < V; ++i) {
      values.v[first + i] = read < kParts ? partial[(i * kSlots + slot) * kParts + read] : Op::template identity<T>();
    }
    if (kTwice || kRound < V) __syncthreads();  // the scratch is free again
  }
  fold_warp<Op, B, 1, kPower>(values);
}

// Threads where `holds` is set hold values of part `part` of result `slot`; all threads of a slot get its fold. For
// many slots: the block's threads share out the results.
template <class Op, class B, int kSlots, int kParts, bool kTwice, class T, int V, int kBytes>
JF_FUNCTION void fold_many(Lanes<T, V>& values, bool holds, int slot, int part, Scratch<kBytes> scratch) {
  constexpr int kRound = values_at_once<T, V, kSlots * kParts, kBytes>(), kItems = kRound * kSlots;
  T* const partial = reinterpret_cast<T*>(scratch.bytes);
#pragma unroll
  for (int first = 0; first < V; first += kRound) {
    if (holds) {
#pragma unroll
      for (int i = 0; i < kRound && first + i < V; ++i) {
        partial[part * kItems + i * kSlots + slot] = values.v[first + i];
      }
    }
    __syncthreads();
    const int items = smaller_of(kRound, V - first) * kSlots;
    for (int item = B::thread(); item < items; item += B::kThreads) {
      Lanes<T, 1> sum{{partial[item]}};
#pragma unroll
      for (int p = 1; p < kParts; ++p) sum = Op::of(sum, Lanes<T, 1>{{partial[p * kItems + item]}});
      partial[item] = sum.v[0];  // nobody else reads or writes this item
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRound && first + i < V; ++i) values.v[first + i] = partial[i * kSlots + slot];
    if (kTwice || kRound < V) __syncthreads();  // the scratch is free again
  }
}

// Folds each of V values over a full warp. At each of the first steps a thread gives half of its values away, so that
// its last one is value lane / (kWarp / V): 6 shuffles for four values instead of 20.
template <class Op, int kDistance = kWarp / 2, class T, int V>
JF_FUNCTION T fold_apart(const Lanes<T, V>& values, int lane) {
  if constexpr (V > 1) {
    Lanes<T, V / 2> kept, given;
    const bool high = lane & kDistance;
#pragma unroll
    for (int i = 0; i < V / 2; ++i) {
      kept.v[i] = high ? values.v[i + V / 2] : values.v[i];
      given.v[i] = high ? values.v[i] : values.v[i + V / 2];
    }
    const auto taken = map<T>([](T x) { return shuffle_xor(~0u, x, kDistance); }, given);
    return fold_apart<Op, kDistance / 2>(Op::of(kept, taken), lane);
  } else {
    Lanes<T, 1> value = values;
#pragma unroll
    for (int distance = kDistance; distance > 0; distance /= 2) {
      value = Op::of(value, map<T>([=](T x) { return shuffle_xor(~0u, x, distance); }, value));
    }
    return value.v[0];
  }
}
constexpr int kMostApart = 8;
// Of rows of full warps, each value in another part of a warp.
template <class Op, class B, bool kTwice, class T, int V, int kBytes>
JF_FUNCTION void fold_several(Lanes<T, V>& values, Scratch<kBytes> scratch) {
  constexpr int kValues = power_of_two_from(V), kWarps = B::kColumns / kWarp, kOfValue = kWarp / kValues;
  const int lane = B::thread() % kWarp;
  Lanes<T, kValues> all;
#pragma unroll
  for (int i = 0; i < kValues; ++i) all.v[i] = i < V ? values.v[i] : Op::template identity<T>();
  T own = fold_apart<Op>(all, lane);
  if constexpr (kWarps > 1) {
    T* const partial = reinterpret_cast<T*>(scratch.bytes) + B::row() * (V * kWarps);
    if (lane % kOfValue == 0 && lane / kOfValue < V) partial[lane / kOfValue * kWarps + B::column() / kWarp] = own;
    __syncthreads();
    const int value = lane / kOfValue;
    Lanes<T, 1> sum = splat(Type<Lanes<T, 1>>{}, Op::template identity<T>());
#pragma unroll
    for (int first = 0; first < kWarps; first += kOfValue) {
      const int part = first + lane % kOfValue;
      if (value < V && part < kWarps) sum = Op::of(sum, Lanes<T, 1>{{partial[value * kWarps + part]}});
    }
    if (kTwice) __syncthreads();  // the scratch is free again
    fold_warp<Op, B, 1, smaller_of(kOfValue, power_of_two_from(kWarps))>(sum);
    own = sum.v[0];
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    values.v[i] = shuffled(own, [=](u32 word) { return __shfl_sync(~0u, word, i * kOfValue); });
  }
}

template <class Op, class B, bool kTwice, class T, int V, int kBytes>
JF_FUNCTION void fold_columns(Lanes<T, V>& values, Scratch<kBytes> scratch) {
  constexpr int kParts = B::kColumns / kWarp, kFewest = kParts == 1 ? 4 : 2;
  if constexpr (B::kColumns % kWarp == 0 && V >= kFewest && V <= kMostApart &&
                (kParts == 1 || V * kParts * B::kRows * int(sizeof(T)) <= kBytes)) {
    return fold_several<Op, B, kTwice>(values, scratch);
  }
  fold_warp<Op, B, 1, smaller_of(B::kColumns, kWarp)>(values);
  if constexpr (B::kColumns > kWarp) {
    fold_few<Op, B, B::kRows, B::kColumns / kWarp, kTwice>(values, B::row(), B::column() / kWarp, scratch);
  }
}
template <class Op, class B, bool kTwice, class T, int V, int kBytes>
JF_FUNCTION void fold_rows(Lanes<T, V>& values, Scratch<kBytes> scratch) {
  if constexpr (B::kEven && B::kColumns < kWarp) {
    fold_warp<Op, B, B::kColumns, B::kWarpThreads>(values);
    if constexpr (B::kWarps > 1) {
      const int lane = B::thread() % kWarp;
      fold_many<Op, B, B::kColumns, B::kWarps, kTwice>(values, lane < B::kColumns, B::column(), B::thread() / kWarp,
                                                       scratch);
    }
  } else if constexpr (B::kRows > 1) {
    fold_many<Op, B, B::kColumns, B::kRows, kTwice>(values, true, B::column(), B::row(), scratch);
  }
}
template <class Op, class B, bool kTwice, class T, int V, int kBytes>
JF_FUNCTION void fold_block(Lanes<T, V>& values, Scratch<kBytes> scratch) {
  if constexpr (B::kEven) {
    fold_warp<Op, B, 1, B::kWarpThreads>(values);
    if constexpr (B::kWarps > 1) {
      fold_few<Op, B, 1, B::kWarps, kTwice>(values, 0, B::thread() / kWarp, scratch);
    }
  } else {
    fold_columns<Op, B, true>(values, scratch);
    fold_rows<Op, B, kTwice>(values, scratch);
  }
}

// What the threads fold of an element: one value when its lanes are folded too.
template <class Op, int kEach, class T, int W, int V>
JF_FUNCTION void pack(Lanes<T, V>& values, int& next, const Lanes<T, W>& x) {
  const Lanes<T, W> own = kEach == 1 ? folded<Op>(x) : x;
#pragma unroll
  for (int i = 0; i < kEach; ++i) values.v[next++] = own.v[i];
}
template <class Op, int kEach, class T, int W, int N, int V>
JF_FUNCTION void pack(Lanes<T, V>& values, int& next, const Lanes<T, W> (&array)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) pack<Op, kEach>(values, next, array[n]);
}
template <int kEach, class T, int W, int V>
JF_FUNCTION void unpack(const Lanes<T, V>& values, int& next, Lanes<T, W>& x) {
#pragma unroll
  for (int i = 0; i < W; ++i) x.v[i] = values.v[next + i % kEach];
  next += kEach;
}
template <int kEach, class T, int W, int N, int V>
JF_FUNCTION void unpack(const Lanes<T, V>& values, int& next, Lanes<T, W> (&array)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) unpack<kEach>(values, next, array[n]);
}

template <class X>
struct Shape;
template <class T, int W>
struct Shape<Lanes<T, W>> {
  using Type = T;
  static constexpr int kWidth = W, kElements = 1;
};
template <class T, int W, int N>
struct Shape<Lanes<T, W>[N]> {
  using Type = T;
  static constexpr int kWidth = W, kElements = N;
};

// Folds every element of the arrays over the lanes, the threads along x, those along y, as kOver says; B is a Block.
// The scratch is free before.
template <class Op, class B, int kOver, int kBytes, class X, class... More>
JF_FUNCTION void fold_threads(Scratch<kBytes> scratch, X& first, More&... more) {
  constexpr int kEach = kOver & kLanes ? 1 : Shape<X>::kWidth;
  constexpr bool kTwice = kOver & kAgain;
  Lanes<typename Shape<X>::Type, kEach*(Shape<X>::kElements + ... + Shape<More>::kElements)> values;
  int next = 0;
  pack<Op, kEach>(values, next, first);
  (pack<Op, kEach>(values, next, more), ...);
  // Where there is one thread along x, those along y are all.
  constexpr bool kAll = (kOver & (kX | kY)) == (kX | kY) || (kOver & kY && B::kEven && B::kColumns == 1);
  if constexpr (kAll) {
    fold_block<Op, B, kTwice>(values, scratch);
  } else if constexpr (kOver & kX) {
    fold_columns<Op, B, kTwice>(values, scratch);
  } else {
    fold_rows<Op, B, kTwice>(values, scratch);
  }
  next = 0;
  unpack<kEach>(values, next, first);
  (unpack<kEach>(values, next, more), ...);
}

}  // namespace jf
