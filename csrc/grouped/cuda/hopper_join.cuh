// Blocks of a cluster that have each summed a stretch of k join what they have: f32 sums go through the blocks' shared
// memory and are added in the order of the blocks, so that equal operands give equal bits. Afterwards each block has
// finished sums of some of the rows of the unit. How many blocks that are, the launch says: one kernel serves all.
#pragma once

#include "grouped/cuda/hopper_schedule.cuh"
#include "grouped/cuda/ptx_hopper.cuh"

namespace jf::grouped {

// The blocks that share k, 1, 2, 4 or 8, and which of them this is.
struct HopperSplit {
  static constexpr unsigned kMostBlocks = 8;
  unsigned log2_blocks = 0, rank = 0;

  static __device__ __forceinline__ HopperSplit of_launch() {
    const int log2_blocks = __ffs(static_cast<int>(ptx::cluster_blocks())) - 1;
    return {static_cast<unsigned>(log2_blocks), static_cast<unsigned>(ptx::cluster_rank())};
  }
  __device__ __forceinline__ unsigned blocks() const { return 1u << log2_blocks; }
  // The first of so many steps of k that the block `of` takes.
  __device__ __forceinline__ int first(int steps, unsigned of) const {
    return static_cast<int>(static_cast<unsigned>(steps) * of >> log2_blocks);
  }
};

// For the two warpgroups of a block, which join in turn and each meet those of the same number in the other blocks.
template <int kRows, bool kSplits>
class HopperJoin {
  static constexpr int kSlices = 2, kThreads = 128, kEight = 8;  // rows of four sums of a thread
  static constexpr int kPieces = kRows / kEight * kSlices;
  static constexpr unsigned kPieceBytes = kThreads * sizeof(float4), kWarps = kThreads / 32;
  static_assert(kRows % (kEight * HopperSplit::kMostBlocks) == 0, "each block finishes as many rows");

 public:
  static constexpr int kBytes = kPieces * kPieceBytes;  // of sums, each thread's own: no other layout is needed
  struct Shared {
    // Phases: the sums of a unit are there, of all blocks; all have read those of a warpgroup's.
    unsigned long long there, read[2];
  };

  // `sums`: the address of kBytes.
  __device__ __forceinline__ HopperJoin(Shared& shared, unsigned sums, const HopperSplit& split)
      : shared_(shared), sums_(sums), split_(split) {}

  // One thread of the block, before mbarrier_init_fence.
  static __device__ __forceinline__ void init(Shared& shared, const HopperSplit& split) {
    const unsigned arrivals = split.blocks() * kWarps;
    ptx::mbarrier_init(address(&shared.there), arrivals);
    for (auto& read : shared.read) ptx::mbarrier_init(address(&read), arrivals);
  }

  // The rows of a unit that this block finishes; none of a unit of few rows, perhaps.
  __device__ __forceinline__ RowUnit share(RowUnit unit) const {
    const unsigned eights = (unit.count + kEight - 1) / kEight;
    const int rows = static_cast<int>((eights + split_.blocks() - 1) >> split_.log2_blocks) * kEight;
    const int first = static_cast<int>(split_.rank) * rows;
    unit.row += first;
    unit.count = max(0, min(rows, unit.count - first));
    return unit;
  }

  // One warpgroup, `self` of two, where blocks are more than one: its sums of `unit`, its own number `turn`, become
  // those of share(unit).
  __device__ __forceinline__ void join(float (&sums)[kSlices][kRows / 2], const RowUnit& unit, unsigned self,
                                       unsigned turn) {
    const unsigned own = sums_ + threadIdx.x % kThreads * sizeof(float4);
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
    const unsigned from = own + piece(mine.row - unit.row, 0);
    switch (split_.blocks()) {
      case 2: add<2>(sums, from, mine.count); break;
      case 4: add<4>(sums, from, mine.count); break;
      default: add<8>(sums, from, mine.count);
    }
    tell(address(&shared_.read[self]));
  }

 private:
  // The sums of so many rows become those of all blocks, which each has from the same address on. Unrolled for each
  // number of blocks: all loads are on their way before the first addition.
  template <int kBlocks>
  static __device__ __forceinline__ void add(float (&sums)[kSlices][kRows / 2], unsigned from, int rows) {
#pragma unroll
    for (int r = 0; r < kRows / kBlocks; r += kEight) {
      if (r >= rows) break;
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        float4 parts[kBlocks];
#pragma unroll
        for (int rank = 0; rank < kBlocks; ++rank) {
          parts[rank] = ptx::ld_cluster(ptx::in_cluster(from + piece(r, slice), rank));
        }
#pragma unroll
        for (int rank = 1; rank < kBlocks; ++rank) {
          parts[0].x += parts[rank].x, parts[0].y += parts[rank].y;
          parts[0].z += parts[rank].z, parts[0].w += parts[rank].w;
        }
        float* s = &sums[slice][r / 2];
        s[0] = parts[0].x, s[1] = parts[0].y, s[2] = parts[0].z, s[3] = parts[0].w;
      }
    }
  }

  static __device__ __forceinline__ unsigned address(const void* pointer) { return ptx::shared_address(pointer); }
  static __device__ __forceinline__ unsigned piece(int row, int slice) {
    return (row / kEight * kSlices + slice) * kPieceBytes;
  }
  // This warp arrives in every block.
  __device__ __forceinline__ void tell(unsigned barrier) const {
    __syncwarp();
    if (const unsigned lane = threadIdx.x % 32; lane < split_.blocks()) {
      ptx::mbarrier_publish_cluster(ptx::in_cluster(barrier, static_cast<int>(lane)));
    }
  }

  Shared& shared_;
  unsigned sums_;
  HopperSplit split_;
};

// Of all of k.
template <int kRows>
class HopperJoin<kRows, false> {
 public:
  static constexpr int kBytes = 0;
  struct Shared {};
  __device__ __forceinline__ HopperJoin(Shared&, unsigned, const HopperSplit&) {}
  static __device__ __forceinline__ void init(Shared&, const HopperSplit&) {}
  __device__ __forceinline__ const RowUnit& share(const RowUnit& unit) const { return unit; }
};

}  // namespace jf::grouped
