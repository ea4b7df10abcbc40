// out[g] = transpose(lhs rows of g) * (rhs rows of g) on the warpgroup products of sm_90a: the ragged axis is summed.
//
//   lhs [m, k], rhs [m, n], 16-bit; out [groups, k, n], 16- or 32-bit; rows of all three are multiples of 16 bytes; an
//   empty group gives exact zeros. 8-bit: see hopper_fp8_contraction.cuh
//   tile      128 x kN of one matrix, kDepth rows of lhs and rhs a stage. The last columns of tiles, up to two, are
//             kNarrow wide, so that fewer than 64 columns lie behind n
//   block     384 threads: a warpgroup whose first thread copies, then two that take turns: while one stores its tile,
//             the other multiplies the next
//   shared    kSharedBytes, aligned to 1024
//   grid      any; blocks take the tiles of all groups in turn, those of the longest first. Zeros of empty groups are
//             stored by the thread that copies, between tiles
//   maps      lhs, rhs: 4D, each ending with the group: see `ragged` in hopper.cpp; box {64, kDepth, 1, 1}
//             out:      3D {n, k, groups}, box {128 / sizeof(Out), 64, 1}; all with a 128-byte swizzle
#pragma once

#include "grouped/cuda/group_order.cuh"
#include "grouped/cuda/hopper_store.cuh"
#include "grouped/cuda/ring.cuh"

namespace jf::grouped {

// Operands of type In: boxes of 64 columns by kDepth rows, of which a product takes kStepRows. kStepBytes, kLeading: to
// those of the next product; to the next 64 columns of rhs, see ptx_hopper.cuh.
template <class In>
struct ContractionOperands {
  static_assert(sizeof(In) == 2, "the tensor cores take 16-bit operands whose contraction index is slow");
  static constexpr int kDepth = 64, kStepRows = 16;
  static constexpr unsigned kStepBytes = kStepRows * 128, kLeading = kDepth * 128;

  // One thread: rows of a group from its row number `row` on, and zeros behind the group.
  static __device__ __forceinline__ void load(unsigned to, const TensorMap& map, unsigned barrier, int column,
                                              const GroupRows& rows, int row) {
    constexpr int kEnd = 1 << 30;  // of the rows in the ragged maps
    ptx::tile_load(to, &map, barrier, column, kEnd - rows.length + row, kEnd, rows.begin + rows.length);
  }

  template <int kWidth, int kSize>
  static __device__ __forceinline__ void run(float (&sums)[kSize], unsigned lhs, unsigned rhs, int add) {
    ptx::Wgmma<kWidth>::template run<kIsBf16<In>, false, false>(sums, lhs, rhs, add);
  }
};

// The sums are the result. kOfNothing: whether zeros, the sums of no rows, become other numbers.
struct NoContractionScales {
  static constexpr bool kOfNothing = false;
  template <int kColumns>
  __device__ __forceinline__ void apply(float*, const GroupRows&, int, int, int, int) const {}
};

// Of up to kGroups groups.
template <class In, class Out, int kN, int kStages, int kGroups, bool kHasStarts, class Scales = NoContractionScales>
struct HopperContraction {
  using Operands = ContractionOperands<In>;
  static constexpr int kM = 128, kDepth = Operands::kDepth, kStepRows = Operands::kStepRows;
  static constexpr int kBuffers = 2;  // chunks of results of a warpgroup: one is written while another is stored
  static constexpr int kThreads = 384, kWarpgroup = 128;
  static constexpr int kBoxBytes = 64 * 128;  // 64 columns of a stage
  static constexpr int kNarrow = kN == 192 ? 128 : kN;
  static constexpr int kLhsBytes = kM / 64 * kBoxBytes, kRhsBytes = kN / 64 * kBoxBytes;
  static constexpr int kChunkColumns = 128 / static_cast<int>(sizeof(Out));  // of one store
  static constexpr int kChunkBytes = 64 * 128;
  static_assert(kN % 64 == 0 && kN <= 192, "a box has 64 columns, and the sums of a tile are registers of a warpgroup");
  static_assert(kStages >= 2, "one stage is multiplied while another is copied");

  struct Shared {
    struct Stage {
      alignas(1024) unsigned char lhs[kLhsBytes];
      alignas(1024) unsigned char rhs[kRhsBytes];
    };
    Stage stages[kStages];
    alignas(1024) unsigned char results[2][kBuffers][kChunkBytes];  // of each multiplying warpgroup, in turn
    alignas(1024) unsigned char zeros[kChunkBytes];
    unsigned long long full[kStages], empty[kStages];
    unsigned long long turn[2];  // the other warpgroup has waited for all its stages
    GroupOrder<kGroups, kThreads> order;
  };
  static constexpr int kSharedBytes = sizeof(Shared);

  struct Maps {
    const TensorMap &lhs, &rhs, &out;
  };

  static __device__ __forceinline__ void run(void* memory, const Maps& maps, const Ragged& ragged, int k, int n,
                                             const Scales& scales = {}) {
    Shared& shared = *static_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
      constexpr int kWarps = kWarpgroup / 32;
      for (int i = 0; i < kStages; ++i) {
        ptx::mbarrier_init(ptx::shared_address(&shared.full[i]), 1);
        ptx::mbarrier_init(ptx::shared_address(&shared.empty[i]), kWarps);
      }
      for (auto& turn : shared.turn) ptx::mbarrier_init(ptx::shared_address(&turn), kWarps);
      ptx::mbarrier_init_fence();
      ptx::prefetch_map(maps.lhs);
      ptx::prefetch_map(maps.rhs);
      ptx::prefetch_map(maps.out);
    }
    for (int i = static_cast<int>(threadIdx.x) * 16; i < kChunkBytes; i += kThreads * 16) {
      ptx::st_shared(ptx::shared_address(shared.zeros) + i, {0, 0, 0, 0});
    }
    ptx::fence_async_shared();
    shared.order.template find<kHasStarts>(ragged);
    Tiles tiles(shared, k, n, Scales::kOfNothing ? ragged.groups : shared.order.filled);
    if (threadIdx.x < kWarpgroup) {
      ptx::give_registers<24>();
      if (threadIdx.x == 0) copy(shared, maps, tiles, k, n, ragged.groups);
    } else {
      ptx::take_registers<240>();
      multiply(shared, maps.out, tiles, k, n, scales);
    }
  }

 private:
  using Stages = RingPlace<kStages>;

  struct Work {
    GroupRows rows;
    int row, column, width;  // of the tile
  };

  // This block's tiles, of the groups that have rows, or of all. Every other round goes backwards over the blocks, and
  // each pair of rounds begins further on, so that none always has the longest or the narrow ones.
  struct Tiles {
    const Shared& shared;
    unsigned rows, columns, wide, count;  // wide: columns of kN
    unsigned round = 0;

    __device__ Tiles(const Shared& shared, int k, int n, int groups)
        : shared(shared), rows(cdiv(k, kM)), columns(cdiv(n, kN)), wide(columns), count(rows * columns * groups) {
      // A narrow tile is one box narrower.
      if (kNarrow < kN) wide -= min(columns, columns * (kN / 64) - cdiv(n, 64));
    }

    __device__ __forceinline__ bool next(Work& work) {
      constexpr unsigned kFurther = 37;
      const unsigned place = (blockIdx.x + round / 2 * kFurther) % gridDim.x;
      const unsigned tile = round * gridDim.x + (round % 2 == 0 ? place : gridDim.x - 1 - place);
      ++round;
      if (tile >= count) return false;
      const Place at = raster(tile % (rows * columns), rows, columns);
      const unsigned narrow = at.column - min(at.column, wide);  // tiles before it
      work = {shared.order.at(tile / (rows * columns)), static_cast<int>(at.row) * kM,
              static_cast<int>(at.column * kN - narrow * (kN - kNarrow)), at.column < wide ? kN : kNarrow};
      return true;
    }
  };

  // Unless zeros become other numbers: zeros into up to `most` of this block's boxes of the matrices of empty groups,
  // from number `box` on.
  static __device__ __forceinline__ void store_zeros(const Shared& shared, const TensorMap& map, int k, int n,
                                                     int groups, unsigned& box, unsigned most) {
    if (Scales::kOfNothing) return;
    const unsigned rows = cdiv(k, 64), columns = cdiv(n, kChunkColumns);
    const unsigned end = rows * columns * (groups - shared.order.filled);
    for (; box < end && most > 0; box += gridDim.x, --most) {
      const unsigned row = box / columns;
      ptx::tile_store(&map, ptx::shared_address(shared.zeros), static_cast<int>((box - row * columns) * kChunkColumns),
                      static_cast<int>(row % rows) * 64, shared.order.groups[shared.order.filled + row / rows]);
      ptx::bulk_commit();
    }
  }

  static __device__ __forceinline__ void copy(Shared& shared, const Maps& maps, Tiles& tiles, int k, int n,
                                              int groups) {
    Stages at;
    unsigned box = blockIdx.x;
    for (Work work; tiles.next(work);) {
#pragma unroll 1
      for (int row = 0; row < work.rows.length; row += kDepth, at.advance()) {
        ptx::mbarrier_wait(ptx::shared_address(&shared.empty[at.index]), at.parity ^ 1);
        const unsigned barrier = ptx::shared_address(&shared.full[at.index]);
        ptx::mbarrier_arrive_expect(barrier, kLhsBytes + work.width / 64 * kBoxBytes);
        const unsigned lhs = ptx::shared_address(shared.stages[at.index].lhs);
        const unsigned rhs = ptx::shared_address(shared.stages[at.index].rhs);
#pragma unroll
        for (int i = 0; i < kM / 64; ++i) {
          Operands::load(lhs + i * kBoxBytes, maps.lhs, barrier, work.row + i * 64, work.rows, row);
        }
#pragma unroll
        for (int i = 0; i < kN / 64; ++i) {
          if (i >= kNarrow / 64 && work.width == kNarrow) break;
          Operands::load(rhs + i * kBoxBytes, maps.rhs, barrier, work.column + i * 64, work.rows, row);
        }
      }
      // Fewer than a tile has, so that memory writes them while products go on, not all at the end (H200: 5% of drhs
      // where a quarter of 128 groups is empty).
      store_zeros(shared, maps.out, k, n, groups, box, 4);
    }
    store_zeros(shared, maps.out, k, n, groups, box, ~0u);
    ptx::bulk_wait_read<0>();
  }

  // Sums of 64 rows each.
  static constexpr int kSlices = kM / 64;
  using Sums = float[kSlices][kN / 2];

  static __device__ __forceinline__ void multiply(Shared& shared, const TensorMap& map, Tiles& tiles, int k, int n,
                                                  const Scales& scales) {
    // Numbers that are the same in all lanes, and known to be: what follows from them stays in uniform registers, where
    // instructions look for their operands.
    const auto uniform = [](auto value) { return __shfl_sync(~0u, value, 0); };
    const unsigned self = uniform(threadIdx.x / kWarpgroup - 1);
    Stages at;
    Sums sums;
    unsigned stores = 0, tile = 0;
    for (Work work; tiles.next(work); ++tile) {
      const int length = uniform(work.rows.length);
      if (tile % 2 != self) {
        at.skip(cdiv(length, kDepth));
        continue;
      }
      // A wait tells only neighbouring phases of a stage apart: each warpgroup waits for the stages in its turn. The
      // first turn of the first is free.
      ptx::mbarrier_wait(ptx::shared_address(&shared.turn[self]), tile / 2 % 2 ^ self ^ 1);
      if (kN == kNarrow || work.width == kN) {
        accumulate<kN>(shared, at, sums, length, self);
      } else {
        accumulate<kNarrow>(shared, at, sums, length, self);
      }
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        if (work.row + slice * 64 < k) store(shared, map, work, sums[slice], slice, self, k, n, scales, stores);
      }
    }
    if (threadIdx.x % kWarpgroup == 0) ptx::bulk_wait_read<0>();
  }

  template <int kWidth>
  static __device__ __forceinline__ void accumulate(Shared& shared, Stages& at, Sums& sums, int length, unsigned self) {
    int before = -1;  // the stage of the products under way
    int row = 0;
    constexpr int kSteps = kDepth / kStepRows;
#pragma unroll 1
    for (; row + kDepth - kStepRows < length; row += kDepth) stage<kWidth, kSteps>(shared, at, sums, row > 0, before);
    // Rows that the group does not have are not multiplied, but for less than those of a product.
    if (const int left = length - row; left > 2 * kStepRows) {
      stage<kWidth, 3>(shared, at, sums, row > 0, before);
    } else if (left > kStepRows) {
      stage<kWidth, 2>(shared, at, sums, row > 0, before);
    } else if (left > 0) {
      stage<kWidth, 1>(shared, at, sums, row > 0, before);
    }
    arrive(shared.turn[self ^ 1]);
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) ptx::keep(sums[slice]);
    if (!Scales::kOfNothing || before >= 0) arrive(shared.empty[before]);
  }

  // The first kSteps products of a stage; when they have begun, those of the stage `before` are done.
  template <int kWidth, int kSteps>
  static __device__ __forceinline__ void stage(Shared& shared, Stages& at, Sums& sums, bool add, int& before) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[at.index]), at.parity);
    constexpr unsigned kStep = Operands::kStepBytes;
    const unsigned a = ptx::wgmma_operand(ptx::shared_address(shared.stages[at.index].lhs));
    const unsigned b = ptx::wgmma_operand(ptx::shared_address(shared.stages[at.index].rhs), Operands::kLeading);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        Operands::template run<kWidth>(sums[slice], a + (slice * kBoxBytes + step * kStep) / 16, b + step * kStep / 16,
                                       add || step > 0);
      }
    }
    ptx::wgmma_commit();
    if (before >= 0) {
      ptx::wgmma_wait<1>();
      arrive(shared.empty[before]);
    }
    before = static_cast<int>(at.index);
    at.advance();
  }

  static __device__ __forceinline__ void arrive(unsigned long long& barrier) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
  }

  // 64 rows, through shared memory: the threads write one chunk of columns while the one before is on its way.
  static __device__ __forceinline__ void store(Shared& shared, const TensorMap& map, const Work& work,
                                               float (&sums)[kN / 2], int slice, unsigned self, int k, int n,
                                               const Scales& scales, unsigned& stores) {
    const bool issues = threadIdx.x % kWarpgroup == 0;
    const auto meet = [&] { ptx::meet<kWarpgroup>(1 + static_cast<int>(self)); };
#pragma unroll
    for (int chunk = 0; chunk < kN / kChunkColumns; ++chunk) {
      const int column = work.column + chunk * kChunkColumns;
      if (column >= n || chunk * kChunkColumns >= work.width) break;
      const unsigned to = ptx::shared_address(shared.results[self][stores++ % kBuffers]);
      if (issues) ptx::bulk_wait_read<kBuffers - 1>();
      meet();
      // Here, a chunk at a time: the sums leave few registers for scales that are read ahead.
      float results[kChunkColumns / 2];
#pragma unroll
      for (int i = 0; i < kChunkColumns / 2; ++i) results[i] = sums[chunk * kChunkColumns / 2 + i];
      scales.template apply<kChunkColumns>(results, work.rows, work.row + slice * 64, column, k, n);
      put_rows<Out>(to, results);
      ptx::fence_async_shared();
      meet();
      if (issues) {
        ptx::tile_store(&map, to, column, work.row + slice * 64, work.rows.group);
        ptx::bulk_commit();
      }
    }
  }
};

}  // namespace jf::grouped
