// out[r, c] = sum over k of lhs[r, k] * lhs_scale[r, k / 128] * rhs[g, c, k] * rhs_scale[g, c / 128, k / 128], g the
// group of r, in 8-bit floats on the warpgroup products of sm_90a; padding rows become zero.
//
//   lhs [m, k], rhs [groups, n, k]; k a multiple of 16 and n of 16 bytes of out
//   scales    lhs_scale [m, blocks of k], rhs_scale [groups, blocks of n, blocks of k], f32, blocks of 128
//   tile      kColumns columns, one block of rhs_scale, by at most kRows rows of one group, transposed as in
//   HopperRows;
//             a stage is one block of k
//   block     kThreads: a warpgroup that schedules, copies and multiplies scales, then two with 64 columns each. What
//             the tensor cores sum in a block of k is scaled and added to sums in full precision by one warpgroup while
//             they multiply for the other
//   cluster, grid, maps, next: as in HopperRows, boxes of maps 128 elements wide
#pragma once

#include "grouped/cuda/hopper_fp8.cuh"

namespace jf::grouped {

struct BlockScales {
  const float* lhs;
  const float* rhs;
};

template <class In, class Out, class Tile, bool kHasStarts>
class HopperBlocks {
  static constexpr int kRows = Tile::kRows, kStages = Tile::kStages, kCluster = Tile::kCluster;
  static constexpr int kStep = 16;
  static constexpr int kSlice = 64, kSlices = 2, kColumns = kSlice * kSlices;
  static constexpr int kGroupThreads = 128, kThreads = kGroupThreads * (1 + kSlices);
  static constexpr int kDepth = 128, kRowBytes = 128;
  static constexpr int kBoxRows = 64;
  static constexpr unsigned kBoxBytes = kBoxRows * kRowBytes, kSliceBytes = kSlice * kRowBytes;
  static constexpr unsigned kRhsBytes = kColumns * kRowBytes;
  static constexpr unsigned kWarps = kGroupThreads / 32;
  static constexpr int kUnits = 2;                                                   // that are known ahead
  static constexpr int kScaleWarps = 2;                                              // the last of the first warpgroup
  static constexpr int kEach = (kRows + 32 * kScaleWarps - 1) / (32 * kScaleWarps);  // rows of one of their lanes

  using Store = HopperStore<Out, kRows>;
  using Schedule = RowSchedule<kHasStarts, kRows, kStep, kColumns * kCluster>;
  using Sums = float[kRows / 2];

  struct Stage {
    unsigned char rhs[kRhsBytes];
    unsigned char lhs[kRows * kRowBytes];
  };
  struct alignas(1024) Shared {
    Stage stages[kStages];
    typename Store::Shared results[kSlices];
    float scales[kStages][kRows];  // of both operands, in the order of the threads' sums
    int4 units[kUnits];
    unsigned long long full[kStages], empty[kStages];
    unsigned long long unit_full[kUnits], unit_empty[kUnits];
  };

 public:
  static constexpr int kSharedBytes = sizeof(Shared);

  static __device__ __forceinline__ void run(void* memory, const TensorMap& lhs, const TensorMap& rhs,
                                             const TensorMap& out_map, const Ragged& ragged, Out* out, unsigned* next,
                                             int k, int n, const BlockScales& scales) {
    HopperBlocks kernel(*static_cast<Shared*>(memory));
    const unsigned warp = threadIdx.x / 32;
    if (threadIdx.x == 0) kernel.init();
    if (kCluster > 1) {
      ptx::cluster_meet();
    } else {
      __syncthreads();
    }
    const int steps = cdiv(k, kDepth);
    if (warp < kWarps) {
      ptx::give_registers<56>();
      if (warp == 0) {
        if (threadIdx.x == 0) kernel.copy(lhs, rhs, steps);
      } else if (warp == 1) {
        if (kernel.rank_ == 0) kernel.schedule(ragged, next, n);
      } else {
        kernel.scale(warp % kScaleWarps, scales.lhs, scales.rhs, steps, ragged.m, cdiv(n, kColumns));
        store_padding<kHasStarts>(ragged, out, n, blockIdx.x * 2 + warp % 2, gridDim.x * 2);
      }
    } else {
      ptx::take_registers<224>();
      kernel.multiply(out_map, out, steps, n);
    }
    // Blocks of a cluster arrive at each other's barriers until both are done.
    if (kCluster > 1) {
      __syncwarp();
      ptx::cluster_meet();
    }
  }

 private:
  __device__ __forceinline__ explicit HopperBlocks(Shared& shared)
      : shared_(shared), rank_(kCluster > 1 ? ptx::cluster_rank() : 0) {}

  static __device__ __forceinline__ unsigned address(const void* pointer) { return ptx::shared_address(pointer); }
  static __device__ __forceinline__ unsigned in_block(unsigned shared, unsigned rank) {
    return kCluster > 1 ? ptx::in_cluster(shared, rank) : shared;
  }

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(address(&shared_.full[i]), 1 + kScaleWarps);
      ptx::mbarrier_init(address(&shared_.empty[i]), kCluster * kSlices * kWarps);
    }
    for (int i = 0; i < kUnits; ++i) {
      ptx::mbarrier_init(address(&shared_.unit_full[i]), 1);
      ptx::mbarrier_init(address(&shared_.unit_empty[i]), kCluster * (kSlices * kWarps + kScaleWarps + 1));
    }
    ptx::mbarrier_init_fence();
  }

  // ---- one warp of the cluster: what is computed next ----
  __device__ __forceinline__ void schedule(const Ragged& ragged, unsigned* next, int n) {
    const unsigned clusters = gridDim.x / kCluster, lane = threadIdx.x % 32;
    Schedule schedule(ragged, n);
    RingPlace<kUnits> place;
    for (unsigned wanted = blockIdx.x / kCluster;;) {
      RowUnit unit;
      const bool found = schedule.find(wanted, unit);
      ptx::mbarrier_wait(address(&shared_.unit_empty[place.index]), place.parity ^ 1);
      if (found) {
        for (unsigned rank = 0; rank < kCluster; ++rank) {
          const int column = unit.column + static_cast<int>(rank) * kColumns;
          ptx::st_cluster(in_block(address(&shared_.units[place.index]), rank),
                          int4{unit.group, unit.row, unit.count, column});
          ptx::mbarrier_publish_cluster(in_block(address(&shared_.unit_full[place.index]), rank));
        }
      }
      place.advance();
      if (__any_sync(~0u, found && unit.group == RowUnit::kEnd)) return;
      if (lane == 0) wanted = atomicAdd(next, 1) + clusters;
      wanted = __shfl_sync(~0u, wanted, 0);
    }
  }

  // What the schedule says, read by one lane or all lanes of a warp.
  template <bool kWarp>
  __device__ __forceinline__ RowUnit read_unit(RingPlace<kUnits>& place) {
    ptx::mbarrier_wait_cluster(address(&shared_.unit_full[place.index]), place.parity);
    const int4 words = ptx::ld_shared4(address(&shared_.units[place.index]));
    if (kWarp) __syncwarp();
    if (!kWarp || threadIdx.x % 32 == 0) {
      ptx::mbarrier_arrive_cluster(in_block(address(&shared_.unit_empty[place.index]), 0));
    }
    place.advance();
    return {words.x, words.y, words.z, words.w};
  }

  // ---- one thread: copies ----
  __device__ __forceinline__ void copy(const TensorMap& lhs, const TensorMap& rhs, int steps) {
    ptx::prefetch_map(lhs);
    ptx::prefetch_map(rhs);
    RingPlace<kUnits> unit_place;
    RingPlace<kStages> place;
    while (true) {
      const RowUnit unit = read_unit<false>(unit_place);
      if (unit.group == RowUnit::kEnd) return;
      const int boxes = cdiv(unit.count, kBoxRows);
      const unsigned bytes = kRhsBytes + boxes * kBoxBytes;
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const unsigned full = address(&shared_.full[place.index]);
        const unsigned to_lhs = address(shared_.stages[place.index].lhs);
        const int depth = step * kDepth;
        ptx::mbarrier_wait(address(&shared_.empty[place.index]), place.parity ^ 1);
        ptx::mbarrier_arrive_expect(full, bytes);
        ptx::tile_load(address(shared_.stages[place.index].rhs), &rhs, full, depth, unit.column, unit.group);
        for (int i = rank_; i < boxes; i += kCluster) {
          const int row = unit.row + i * kBoxRows;
          if constexpr (kCluster > 1) {
            ptx::tile_load_multicast(to_lhs + i * kBoxBytes, &lhs, full, (1 << kCluster) - 1, depth, row);
          } else {
            ptx::tile_load(to_lhs + i * kBoxBytes, &lhs, full, depth, row);
          }
        }
        place.advance();
      }
    }
  }

  // ---- two warps: the scale of each row in each block of k ----
  // A thread's sums of 16 rows are those of four, of which two pairs lie together: its scales are one word of 16 bytes.
  static __device__ __forceinline__ int place_of(int row) {
    return row / 16 * 16 + row % 8 / 2 * 4 + row % 16 / 8 * 2 + row % 2;
  }

  __device__ __forceinline__ void scale(int share, const float* lhs_scale, const float* rhs_scale, int steps, int m,
                                        int across) {
    const int lane = threadIdx.x % 32;
    RingPlace<kUnits> unit_place;
    RingPlace<kStages> place;
    while (true) {
      const RowUnit unit = read_unit<true>(unit_place);
      if (unit.group == RowUnit::kEnd) return;
      const float* of_unit = lhs_scale + static_cast<long long>(unit.row) * steps;
      unsigned of_rows[kEach];
      int to[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int row = (i * kScaleWarps + share) * 32 + lane;
        // Rows of other groups are multiplied but not stored.
        of_rows[i] = min(row, m - 1 - unit.row) * steps;
        to[i] = row < kRows ? place_of(row) : -1;
      }
      // A column past the last block belongs to the other half of a pair: nothing of it is stored.
      const int block = min(unit.column / kColumns, across - 1);
      const float* of_block = rhs_scale + (static_cast<long long>(unit.group) * across + block) * steps;
      float ahead[kEach], block_ahead = __ldg(of_block);
#pragma unroll
      for (int i = 0; i < kEach; ++i) ahead[i] = __ldg(of_unit + of_rows[i]);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        float own[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) own[i] = ahead[i] * block_ahead;
        const int after = min(step + 1, steps - 1);
        block_ahead = __ldg(of_block + after);
#pragma unroll
        for (int i = 0; i < kEach; ++i) ahead[i] = __ldg(of_unit + of_rows[i] + after);
        ptx::mbarrier_wait(address(&shared_.empty[place.index]), place.parity ^ 1);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          if (to[i] >= 0) ptx::st_shared(address(&shared_.scales[place.index][to[i]]), own[i]);
        }
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(address(&shared_.full[place.index]));
        place.advance();
      }
    }
  }

  // ---- two warpgroups: products and results, each of its columns ----
  __device__ __forceinline__ void multiply(const TensorMap& out_map, Out* out, int steps, int n) {
    // Known to be the same in all lanes, see HopperRows.
    const unsigned self = __shfl_sync(~0u, threadIdx.x / kGroupThreads - 1, 0);
    if (self == 1) ptx::pass<kSlices * kGroupThreads>(kTurn);  // the first turn
    Store store(shared_.results[self]);
    RingPlace<kUnits> unit_place;
    RingPlace<kStages> place;
    Sums sums;
    while (true) {
      const RowUnit unit = read_unit<true>(unit_place);
      if (unit.group == RowUnit::kEnd) break;
      multiply_rows<kFewest>(sums, place, self, unit.count, steps);
      place.skip(steps);
      store.results(sums, out_map, out, unit.row, unit.count, unit.column + static_cast<int>(self) * kSlice, n);
    }
    store.drain();
  }

  // With the narrowest instruction that holds `count` rows, as in HopperRows.
  static constexpr int kFewest = 32, kTurn = 1 + kThreads / kGroupThreads;  // the latter: a barrier's number, of two
  template <int kCount>
  __device__ __forceinline__ void multiply_rows(Sums& sums, RingPlace<kStages> place, unsigned self, int count,
                                                int steps) {
    if constexpr (kCount < kRows) {
      constexpr int kNext = kCount + (kCount < 128 ? 32 : 16);
      if (count > kCount) return multiply_rows<kNext>(sums, place, self, count, steps);
    }
    accumulate<kCount>(sums, place, self, steps);
  }

  // The warpgroups take turns, else both would wait for the tensor cores, then both add. The turn passes on after half
  // of the products, so that those of the other are there when they end.
  template <int kCount>
  __device__ __forceinline__ void accumulate(Sums& sums, RingPlace<kStages> place, unsigned self, int steps) {
    constexpr int kHalf = kCount / 2;
    const unsigned first = address(&shared_.stages);
    const unsigned rhs = ptx::wgmma_operand(first + self * kSliceBytes), lhs = ptx::wgmma_operand(first + kRhsBytes);
    const unsigned scales = address(&shared_.scales) + threadIdx.x % 4 * 16;
    float parts[2][kHalf / 2];
    const auto begin = [&](int half) {
      const unsigned at = place.index * (sizeof(Stage) / 16), rows = at + half * (kHalf * kRowBytes / 16);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kRowBytes; i += 32) {
        HopperProduct<In>::template run<kHalf, true>(parts[half], rhs + at + i / 16, lhs + rows + i / 16, i > 0);
      }
      ptx::wgmma_commit();
    };
    const auto add = [&](int half) {
      ptx::keep(parts[half]);
      const unsigned own = scales + place.index * (kRows * 4);
#pragma unroll
      for (int i = 0; i < kHalf / 2; i += 4) {
        const int at = half * (kHalf / 2) + i;
        // Of four sums in eight rows, the second and the last are those of the next row.
        const float2 scale = ptx::ld_shared2(own + at / 8 * 64 + at % 8 * 2);
        sums[at] += scale.x * parts[half][i];
        sums[at + 1] += scale.y * parts[half][i + 1];
        sums[at + 2] += scale.x * parts[half][i + 2];
        sums[at + 3] += scale.y * parts[half][i + 3];
      }
    };
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) sums[i] = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      ptx::mbarrier_wait(address(&shared_.full[place.index]), place.parity);
      ptx::meet<kSlices * kGroupThreads>(kTurn + self);
      begin(0);
      begin(1);
      ptx::wgmma_wait<1>();
      ptx::pass<kSlices * kGroupThreads>(kTurn + (self ^ 1));
      add(0);
      ptx::wgmma_wait<0>();
      add(1);
      release(place.index);
      place.advance();
    }
  }

  // This warp has read the stage: tells every block that copies into it.
  __device__ __forceinline__ void release(unsigned stage) {
    __syncwarp();
    const unsigned lane = threadIdx.x % 32;
    if (lane < kCluster) ptx::mbarrier_arrive_cluster(in_block(address(&shared_.empty[stage]), lane));
  }

  Shared& shared_;
  unsigned rank_;
};

}  // namespace jf::grouped
