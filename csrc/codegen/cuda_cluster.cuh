// Folds over the blocks of a cluster: each block sends its result into the shared memory of all of them. Needs sm_90.
//
// All threads of the cluster call everything, equally often. Results of folds go to two slots in turn: a block sends to
// a slot again only after the fold in between, for which it needs what every block sends after it has read the slot.
#pragma once

#include "codegen/cuda_fold_threads.cuh"
#include "codegen/ptx.cuh"

namespace jf {

// What `kMost` words of each block take in shared memory: a barrier for each slot, then the slots.
constexpr int kClusterSlots = 2;
template <int kBlocks, int kMost>
struct Cluster {
  u64* full;  // a barrier for each slot, whose phase ends when all blocks' words have arrived
  int slot = 0;
  u32 parity = 0;  // of the slot's phase

  __device__ __forceinline__ explicit Cluster(char* bytes) : full(reinterpret_cast<u64*>(bytes)) {
    if (threadIdx.x + threadIdx.y == 0) {
#pragma unroll
      for (int i = 0; i < kClusterSlots; ++i) ptx::mbarrier_init(barrier(i), 1);
      ptx::mbarrier_init_fence();
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }

  // Folds every element of the arrays over the blocks, whose threads all hold the same already. The order is that of
  // the blocks, so all of them get equal bits.
  template <class Op, class B, bool kLanesFolded, class X, class... More>
  __device__ __forceinline__ void fold(X& first, More&... more);

 private:
  __device__ __forceinline__ u32 barrier(int number) const { return ptx::shared_address(full + number); }
  __device__ __forceinline__ u32* words() const {
    return reinterpret_cast<u32*>(full + kClusterSlots) + slot * kBlocks * kMost;
  }
};

// An element as words, and back.
template <class T>
constexpr int kWordsOf = sizeof(T) == sizeof(u64) ? 2 : 1;
template <class T>
JF_FUNCTION void to_words(u32* words, T x) {
  if constexpr (sizeof(T) == sizeof(u64)) {
    const u64 bits = bits_as<u64>(x);
    words[0] = u32(bits);
    words[1] = u32(bits >> 32);
  } else if constexpr (is_float<T>) {
    words[0] = bits_as<u32>(x);
  } else {
    words[0] = u32(x);
  }
}
template <class T>
JF_FUNCTION T from_words(const u32* words) {
  if constexpr (sizeof(T) == sizeof(u64)) {
    return bits_as<T>(u64(words[1]) << 32 | words[0]);
  } else if constexpr (is_float<T>) {
    return bits_as<T>(words[0]);
  } else {
    return T(words[0]);
  }
}

// The lanes of an element that differ: one where lanes have been folded.
template <int kEach, class T, int W, int V>
JF_FUNCTION void gather(Lanes<T, V>& values, int& next, const Lanes<T, W>& x) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) values.v[next++] = x.v[i];
}
template <int kEach, class T, int W, int N, int V>
JF_FUNCTION void gather(Lanes<T, V>& values, int& next, const Lanes<T, W> (&array)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) gather<kEach>(values, next, array[n]);
}

template <int kBlocks, int kMost>
template <class Op, class B, bool kLanesFolded, class X, class... More>
__device__ __forceinline__ void Cluster<kBlocks, kMost>::fold(X& first, More&... more) {
  using T = typename Shape<X>::Type;
  constexpr int kEach = kLanesFolded ? 1 : Shape<X>::kWidth;
  constexpr int kValues = kEach * (Shape<X>::kElements + ... + Shape<More>::kElements);
  constexpr int kWords = kValues * kWordsOf<T>;
  static_assert(kWords <= kMost, "the slots are too small for this fold");
  Lanes<T, kValues> values;
  int next = 0;
  gather<kEach>(values, next, first);
  (gather<kEach>(values, next, more), ...);

  if (B::thread() == 0) {
    ptx::mbarrier_expect(barrier(slot), kBlocks * kWords * u32(sizeof(u32)));
    ptx::mbarrier_arrive(barrier(slot));
  }
  u32* const own = words();  // [block][word]
  for (int block = B::thread(); block < kBlocks; block += B::kThreads) {
    const u32 to = ptx::in_cluster(ptx::shared_address(own + ptx::cluster_rank() * kWords), block);
    const u32 arrived = ptx::in_cluster(barrier(slot), block);
    u32 sent[kWords];
#pragma unroll
    for (int i = 0; i < kValues; ++i) to_words(sent + i * kWordsOf<T>, values.v[i]);
#pragma unroll
    for (int i = 0; i < kWords; ++i) ptx::store_in_cluster(to + i * u32(sizeof(u32)), sent[i], arrived);
  }
  while (!ptx::mbarrier_try_wait(barrier(slot), parity)) {
  }
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    Lanes<T, kValues> other;
#pragma unroll
    for (int i = 0; i < kValues; ++i) other.v[i] = from_words<T>(own + block * kWords + i * kWordsOf<T>);
    values = block == 0 ? other : Op::of(values, other);
  }
  slot ^= 1;
  parity ^= slot == 0;
  next = 0;
  unpack<kEach>(values, next, first);
  (unpack<kEach>(values, next, more), ...);
}

}  // namespace jf
