// Places of a ring of buffers, each with an mbarrier.
#pragma once

namespace jf::grouped {

// Entries are used in turn, and the parity of their phases flips with every round.
template <int kSize>
struct RingPlace {
  unsigned index = 0, parity = 0;

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

}  // namespace jf::grouped
