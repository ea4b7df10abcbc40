// The rows of every group in shared memory, the longest group first: blocks that take the tiles of all groups in turn
// then finish together. Called by every thread of the block.
#pragma once

#include "grouped/cuda/ragged.cuh"

namespace jf::grouped {

struct GroupRows {
  int group;
  int begin;
  int length;
};

// Of up to kGroups groups.
template <int kGroups, int kThreads>
struct GroupOrder {
  static_assert(kGroups <= 65536, "a place in the order has 16 bits");
  int begins[kGroups];
  int lengths[kGroups];
  unsigned short groups[kGroups];  // by place
  unsigned sums[kThreads / 32];
  int filled;  // groups that have rows: the places before the empty ones

  __device__ GroupRows at(unsigned place) const {
    const int group = groups[place];
    return {group, begins[group], lengths[group]};
  }

  template <bool kHasStarts>
  __device__ void find(const Ragged& ragged) {
    const int thread = static_cast<int>(threadIdx.x), per_thread = cdiv(ragged.groups, kThreads);
    const int first = min(thread * per_thread, ragged.groups), last = min(first + per_thread, ragged.groups);
    unsigned rows = 0;
    for (int g = first; g < last; ++g) rows = min(rows + ragged.extent(g), static_cast<unsigned>(ragged.m));
    int at = kHasStarts ? 0 : static_cast<int>(scan<kThreads>(rows, ragged.m, sums).before);
    if (thread == 0) filled = ragged.groups;
    for (int g = first; g < last; ++g) {
      const Span s = span<kHasStarts>(ragged, g, at);
      begins[g] = s.begin;
      lengths[g] = s.end - s.begin;
      at = s.end;
    }
    __syncthreads();
    for (int g = first; g < last; ++g) {
      const int length = lengths[g];
      int place = 0;
      for (int other = 0; other < ragged.groups; ++other) {
        place += lengths[other] > length || (lengths[other] == length && other < g);
      }
      groups[place] = static_cast<unsigned short>(g);
      if (length == 0) atomicMin(&filled, place);
    }
    __syncthreads();
  }
};

}  // namespace jf::grouped
