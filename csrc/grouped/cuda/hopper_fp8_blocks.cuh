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
  static constexpr int kScaleWarps = 2;                                              // the last of the first warpgroup
  static constexpr int kEach = (kRows + 32 * kScaleWarps - 1) / (32 * kScaleWarps);  // rows of one of their lanes

  using Store = HopperStore<Out, kRows>;
  using Schedule = RowSchedule<kHasStarts, kRows, kStep, kColumns * kCluster>;
  using Sums = float[kRows / 2];
  using Units = UnitQueue<kCluster, kSlices * kWarps + kScaleWarps + 1>;

  struct Stage {
    unsigned char rhs[kRhsBytes];
    unsigned char lhs[kRows * kRowBytes];
  };
  struct alignas(1024) Shared {
    Stage stages[kStages];
    typename Store::Shared results[kSlices];
    float scales[kStages][kRows];  // of both operands, in the order of the threads' sums
    typename Units::Shared units;
    unsigned long long full[kStages], empty[kStages];
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
        if (kernel.rank_ == 0) kernel.units_.template fill<Schedule, kColumns, 1>(Schedule(ragged, n), next);
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
      : shared_(shared), units_(shared.units), rank_(kCluster > 1 ? ptx::cluster_rank() : 0) {}

  static __device__ __forceinline__ unsigned address(const void* pointer) { return ptx::shared_address(pointer); }
  static __device__ __forceinline__ unsigned in_block(unsigned shared, unsigned rank) {
    return kCluster > 1 ? ptx::in_cluster(shared, rank) : shared;
  }

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(address(&shared_.full[i]), 1 + kScaleWarps);
      ptx::mbarrier_init(address(&shared_.empty[i]), kCluster * kSlices * kWarps);
    }
    units_.init();
    ptx::mbarrier_init_fence();
  }

  // ---- one thread: copies ----
  __device__ __forceinline__ void copy(const TensorMap& lhs, const TensorMap& rhs, int steps) {
    ptx::prefetch_map(lhs);
    ptx::prefetch_map(rhs);
    typename Units::Place unit_place;
    RingPlace<kStages> place;
    while (true) {
      const RowUnit unit = units_.template read<false>(unit_place);
      unit_place.advance();
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
    typename Units::Place unit_place;
    RingPlace<kStages> place;
    while (true) {
      const RowUnit unit = units_.template read<true>(unit_place);
      unit_place.advance();
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
    Store store(shared_.results[self]);
    typename Units::Place unit_place;
    RingPlace<kStages> place;
    Sums sums;
    while (true) {
      const RowUnit unit = units_.template read<true>(unit_place);
      unit_place.advance();
      if (unit.group == RowUnit::kEnd) break;
      multiply_rows<kFewest>(sums, place, self, unit.count, steps);
      place.skip(steps);
      store.results(sums, out_map, out, unit.row, unit.count, unit.column + static_cast<int>(self) * kSlice, n);
    }
    store.drain();
  }

  // With the narrowest instruction that holds `count` rows, as in HopperRows.
  static constexpr int kFewest = 32;
  template <int kCount>
  __device__ __forceinline__ void multiply_rows(Sums& sums, RingPlace<kStages> place, unsigned self, int count,
                                                int steps) {
    if constexpr (kCount < kRows) {
      constexpr int kNext = kCount + (kCount < 128 ? 32 : 16);
      if (count > kCount) return multiply_rows<kNext>(sums, place, self, count, steps);
    }
    accumulate<kCount>(sums, place, self, steps);
  }

  template <int kCount>
  __device__ __forceinline__ void accumulate(Sums& sums, RingPlace<kStages> place, unsigned self, int steps) {
    constexpr unsigned kNext = 32 / 16;  // in units of 16 bytes
    const unsigned first = address(&shared_.stages);
    const unsigned rhs = ptx::wgmma_operand(first + self * kSliceBytes), lhs = ptx::wgmma_operand(first + kRhsBytes);
    const unsigned scales = address(&shared_.scales) + threadIdx.x % 4 * 16;
    float part[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) sums[i] = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      ptx::mbarrier_wait(address(&shared_.full[place.index]), place.parity);
      const unsigned at = place.index * (sizeof(Stage) / 16);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kRowBytes / 32; ++i) {
        HopperProduct<In>::template run<kCount, true>(part, rhs + at + i * kNext, lhs + at + i * kNext, i > 0);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::keep(part);
      const unsigned own = scales + place.index * (kRows * 4);
#pragma unroll
      for (int i = 0; i < kCount / 2; i += 8) {
        const int4 words = ptx::ld_shared4(own + i * 8);
        const float scale[4] = {__int_as_float(words.x), __int_as_float(words.y), __int_as_float(words.z),
                                __int_as_float(words.w)};
        // Of four sums in eight rows, the second and the last are those of the next row.
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i + j] += scale[j / 4 * 2 + j % 2] * part[i + j];
      }
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
  Units units_;
  unsigned rank_;
};

}  // namespace jf::grouped
