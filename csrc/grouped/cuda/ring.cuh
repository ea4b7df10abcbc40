// Places of a ring of buffers, each with an mbarrier.
#pragma once

namespace jf::grouped {

// Entries are used in turn, and the parity of their phases flips with every round.
template <int kSize>
struct RingPlace {
  unsigned index = 0, parity = 0;

  __device__ __forceinline__ unsigned parity_of(unsigned) const { return parity; }  // of the entry at the index
  __device__ __forceinline__ void advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(unsigned entries) {
    index += entries;
    parity ^= index / kSize % 2;
    index %= kSize;
  }
};

// Of a ring whose users may begin again at its first entry at any time: every entry has a parity.
template <int kSize>
struct RestartedPlace {
  unsigned index = 0, parities = 0;

  __device__ __forceinline__ unsigned parity_of(unsigned entry) const { return parities >> entry & 1; }
  __device__ __forceinline__ void advance() {
    parities ^= 1u << index;
    if (++index == kSize) index = 0;
  }
  // The entries before this one were used.
  __device__ __forceinline__ void turn_before(unsigned entry) { parities ^= (1u << entry) - 1; }
};

}  // namespace jf::grouped
