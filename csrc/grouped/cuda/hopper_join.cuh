// Blocks of a cluster that have each summed a stretch of k join what they have: f32 sums go through the blocks' shared
// memory and are added in the order of the blocks, so that equal operands give equal bits. Afterwards each block has
// finished sums of some of the rows of the unit.
#pragma once

#include "grouped/cuda/hopper_schedule.cuh"
#include "grouped/cuda/ptx_hopper.cuh"

namespace jf::grouped {

// For the two warpgroups of a block, which join in turn and each meet those of the same number in the other blocks.
template <int kRows, int kSplit>
class HopperJoin {
  static constexpr int kSlices = 2, kThreads = 128, kEight = 8;  // rows of four sums of a thread
  static constexpr int kPieces = kRows / kEight * kSlices;
  static constexpr unsigned kPieceBytes = kThreads * sizeof(float4), kWarps = kThreads / 32;
  static_assert(kRows % (kEight * kSplit) == 0, "each block finishes as many rows");

 public:
  struct Shared {
    alignas(16) unsigned char sums[kPieces * kPieceBytes];  // each thread's own: no other layout is needed
    // Phases: the sums of a unit are there, of all blocks; all have read those of a warpgroup's.
    unsigned long long there, read[2];
  };

  __device__ __forceinline__ HopperJoin(Shared& shared, unsigned rank) : shared_(shared), rank_(rank) {}

  // One thread of the block, before mbarrier_init_fence.
  static __device__ __forceinline__ void init(Shared& shared) {
    ptx::mbarrier_init(ptx::shared_address(&shared.there), kSplit * kWarps);
    for (auto& read : shared.read) ptx::mbarrier_init(ptx::shared_address(&read), kSplit * kWarps);
  }

  // The rows of a unit that this block finishes; none of a unit of few rows, perhaps.
  __device__ __forceinline__ RowUnit share(RowUnit unit) const {
    const int eights = (unit.count + kEight - 1) / kEight, rows = (eights + kSplit - 1) / kSplit * kEight;
    const int first = static_cast<int>(rank_) * rows;
    unit.row += first;
    unit.count = max(0, min(rows, unit.count - first));
    return unit;
  }

  // One warpgroup, `self` of two: its sums of `unit`, its own number `turn`, become those of share(unit).
  __device__ __forceinline__ void join(float (&sums)[kSlices][kRows / 2], const RowUnit& unit, unsigned self,
                                       unsigned turn) {
    const unsigned own = address(shared_.sums) + threadIdx.x % kThreads * sizeof(float4);
    const unsigned there = address(&shared_.there), parity = turn & 1;
    // Units take turns: the last of this warpgroup and the last of the other have been read.
    ptx::mbarrier_wait_cluster(address(&shared_.read[self]), parity ^ 1);
    ptx::mbarrier_wait_cluster(address(&shared_.read[self ^ 1]), parity ^ self ^ 1);
#pragma unroll
    for (int r = 0; r < kRows; r += kEight) {
      if (r >= unit.count) break;
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        const float* s = &sums[slice][r / 2];
        ptx::st_shared(own + piece(r, slice), float4{s[0], s[1], s[2], s[3]});
      }
    }
    tell(there);
    ptx::mbarrier_wait_cluster(there, self);
    const RowUnit mine = share(unit);
    const int first = mine.row - unit.row;
#pragma unroll
    for (int r = 0; r < kRows / kSplit; r += kEight) {
      if (r >= mine.count) break;
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        float4 parts[kSplit];
#pragma unroll
        for (int rank = 0; rank < kSplit; ++rank) {
          parts[rank] = ptx::ld_cluster(ptx::in_cluster(own + piece(first + r, slice), rank));
        }
#pragma unroll
        for (int rank = 1; rank < kSplit; ++rank) {
          parts[0].x += parts[rank].x, parts[0].y += parts[rank].y;
          parts[0].z += parts[rank].z, parts[0].w += parts[rank].w;
        }
        float* s = &sums[slice][r / 2];
        s[0] = parts[0].x, s[1] = parts[0].y, s[2] = parts[0].z, s[3] = parts[0].w;
      }
    }
    tell(address(&shared_.read[self]));
  }

 private:
  static __device__ __forceinline__ unsigned address(const void* pointer) { return ptx::shared_address(pointer); }
  static __device__ __forceinline__ unsigned piece(int row, int slice) {
    return (row / kEight * kSlices + slice) * kPieceBytes;
  }
  // This warp arrives in every block.
  static __device__ __forceinline__ void tell(unsigned barrier) {
    __syncwarp();
    if (const unsigned lane = threadIdx.x % 32; lane < kSplit) {
      ptx::mbarrier_publish_cluster(ptx::in_cluster(barrier, static_cast<int>(lane)));
    }
  }

  Shared& shared_;
  unsigned rank_;
};

// Of all of k.
template <int kRows>
class HopperJoin<kRows, 1> {
 public:
  struct Shared {};
  __device__ __forceinline__ HopperJoin(Shared&, unsigned) {}
  static __device__ __forceinline__ void init(Shared&) {}
  __device__ __forceinline__ const RowUnit& share(const RowUnit& unit) const { return unit; }
};

}  // namespace jf::grouped
