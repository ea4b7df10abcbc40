// Places of a ring of buffers, each with an mbarrier.
#pragma once

namespace jf::grouped {

// Entries are used in turn, and the parity of their phases flips with every round. A launch may use `fewer`, kFewer.
template <int kSize, int kFewer = kSize>
struct RingPlace {
  unsigned index = 0, parity = 0;
  bool fewer = false;

  __device__ __forceinline__ void advance() {
    if (++index == (kFewer < kSize && fewer ? kFewer : kSize)) {
      index = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(unsigned entries) {
    index += entries;
    if (kFewer < kSize && fewer) {
      wrap<kFewer>();
    } else {
      wrap<kSize>();
    }
  }

 private:
  template <int kEntries>
  __device__ __forceinline__ void wrap() {
    parity ^= index / kEntries % 2;
    index %= kEntries;
  }
};

}  // namespace jf::grouped
