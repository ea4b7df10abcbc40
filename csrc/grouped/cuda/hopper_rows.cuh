// out[r, :] = lhs[r, :] * rhs[group of r] on the warpgroup products of sm_90a; padding rows become zero.
//
//   lhs [m, k], rhs [groups, k, n] or [groups, n, k] (K-major), 16-bit; out [m, n]; k and n positive multiples of 8.
//             8-bit: see hopper_fp8.cuh
//   tile      kColumns columns by at most kRows rows of one group; kDepth contraction indices a stage. The product is
//             computed transposed: columns of out are the rows of the instruction and the group's rows its columns, so
//             that tiles cost what their rows cost, in steps of kStep.
//   block     kThreads: a warpgroup that schedules and copies, then two that take turns: while one stores its tile, the
//             other multiplies the next; or (kShared) that multiply the same rows, each its columns: a unit is twice as
//             wide and reads rows half as often, but stores overlap less
//   cluster   two blocks compute neighbouring columns of the same rows; each copies half of those rows for both. Last
//             columns that one block can hold both compute, each for rows of its own, which it copies alone
//   shared    kSharedBytes, aligned to 1024
//   grid      a multiple of kCluster, about one block for each multiprocessor
//   maps      lhs 2D {k, m}, box {64, 64}; out 2D {n, m}, box {kStoreColumns, kStoreRows};
//             rhs 3D {n, k, groups}, box {64, 64, 1}, or K-major {k, n, groups}, box {64, 128, 1}; all swizzled by 128
//   source    what brings rows of lhs, see hopper_gather.cuh; where numbers name them, lhs has no map and a cluster is
//             a block
//   epilogue  what becomes of the sums, see hopper_epilogue.cuh. n is then that of the result; one made of two sums has
//             half a unit's columns, and K-major boxes are {64, 64, 1}; an array of its kTiles has a map like out's
//   result    how it is stored: as out; or quantized instead, see hopper_quantize.cuh, and out is neither array nor map
//   split     kSplits: 1, 2, 4 or 8 blocks, the cluster that the launch says, each sum a stretch of k of one unit, at
//             least a stage, and join their sums: hopper_join.cuh. For few units, which would leave multiprocessors
//             idle
//   next      zero when the kernel starts: clusters take units as they come; or null, and where k is split: each takes
//             as many as the others
//
// Copies run past the end of a group into rows whose products are not stored. What lies past the end of an array is
// read as zero, so a last stage that k does not fill adds nothing.
#pragma once

#include "grouped/cuda/hopper_epilogue.cuh"
#include "grouped/cuda/hopper_exchange.cuh"
#include "grouped/cuda/hopper_gather.cuh"
#include "grouped/cuda/hopper_join.cuh"
#include "grouped/cuda/hopper_several.cuh"
#include "grouped/cuda/hopper_store.cuh"
#include "grouped/cuda/hopper_units.cuh"

namespace jf::grouped {

// kShared: both warpgroups compute the same rows, each its own columns, instead of units in turn. Then k has more than
// kStages stages.
template <int kRows_, int kStages_, int kCluster_, bool kShared_ = false, bool kSplits_ = false>
struct HopperTile {
  static constexpr int kRows = kRows_, kStages = kStages_, kCluster = kCluster_;
  static constexpr bool kShared = kShared_, kSplits = kSplits_;
  static_assert(kRows % 64 == 0 && kRows <= 192, "rows are copied in boxes of 64, sums are registers");
  static_assert(kCluster == 1 || kCluster == 2, "a cluster is a block or a pair");
  static_assert(!kSplits || (kRows == 64 && kCluster == 1 && !kShared), "few rows alone leave room to join sums");
};

// The product of two operands of type In.
template <class In>
struct HopperProduct {
  template <int kCount, bool kRhsKMajor, int kSize>
  static __device__ __forceinline__ void run(float (&sums)[kSize], unsigned rhs, unsigned lhs, int add) {
    ptx::Wgmma<kCount>::template run<kIsBf16<In>, kRhsKMajor, true>(sums, rhs, lhs, add);
  }
};

// A result that is stored as it is.
struct ResultOfOut {
  static constexpr bool kQuantizes = false;
  static constexpr int kScaleColumns = 0;
};

template <class In, class Out, class Tile, bool kRhsKMajor, bool kHasStarts, class Epilogue = NoEpilogue,
          class Source = RowsInOrder, class Result = ResultOfOut>
class HopperRows {
  static constexpr int kRows = Tile::kRows, kStages = Tile::kStages, kCluster = Tile::kCluster;
  static constexpr bool kPaired = Epilogue::kSums == 2, kTurns = !Tile::kShared, kSplits = Tile::kSplits;
  static constexpr int kStep = sizeof(In) == 2 && sizeof(Out) == 2 ? 8 : 16;
  static constexpr int kGroupThreads = 128, kMultipliers = 2, kThreads = kGroupThreads * (1 + kMultipliers);
  // A slice: columns of an instruction. kReaders: warpgroups that read a stage. kOwnColumns, kColumns: of the result,
  // of a warpgroup and of a unit; its elements take one sum or two.
  static constexpr int kSlice = 64, kSlices = 2, kReaders = kTurns ? 1 : kMultipliers;
  static constexpr int kOwnColumns = kSlice * (kPaired ? 1 : kSlices), kColumns = kOwnColumns * kReaders;
  static constexpr int kRowBytes = 128;  // of a stage: the span of the swizzle
  static constexpr int kDepth = kRowBytes / static_cast<int>(sizeof(In));
  // Groups of products in a stage. A loop of them compiles in 0.6 of the time of as many copies, and is as fast where
  // tiles have many rows of 16 bits; with few rows, and with sums by two, it is up to 3% slower (H200).
  static constexpr int kParts = kRowBytes / 32;
  static constexpr bool kRolls = kRows > 64 && !kPaired && sizeof(In) == 2;
  static constexpr int kBoxRows = 64;
  static constexpr unsigned kBoxBytes = kBoxRows * kRowBytes, kSliceBytes = kSlice * kRowBytes;
  static constexpr unsigned kOwnRhsBytes = kSlices * kSliceBytes, kRhsBytes = kOwnRhsBytes * kReaders;

  static constexpr bool kStacks = kCluster > 1;
  using Store = HopperStore<Out, kRows>;
  using Schedule = RowSchedule<kHasStarts, kRows, kStep, kColumns * kCluster, kStacks>;
  using Several = HopperSeveral<Out, kRows, Epilogue>;
  static constexpr bool kQuantizes = Result::kQuantizes;
  static_assert(!kQuantizes || (!kSeveral<Epilogue> && Epilogue::kTiles == 0 && kTurns), "buffers are its own");
  static_assert(!kQuantizes || !kSplits, "units are whole");
  static_assert(!kPaired || kCluster == 2 || Result::kScaleColumns <= kOwnColumns, "two blocks tell each other");
  using Sums = float[kSlices][kRows / 2];
  static constexpr unsigned kWarps = kGroupThreads / 32 * kReaders;  // that read a stage, in each block
  // They and the copies. Blocks that split k each find their units themselves.
  using Units = UnitQueue<kCluster, kWarps + Source::kWarps>;
  using Join = HopperJoin<kRows, kSplits>;

  struct Stage {
    unsigned char rhs[kRhsBytes];
    unsigned char lhs[kRows * kRowBytes];
  };
  // The last stages are room for the sums that blocks join: where these are several, all others are in use.
  static constexpr int kUnjoined = kStages - static_cast<int>((Join::kBytes + sizeof(Stage) - 1) / sizeof(Stage));
  static_assert(kUnjoined >= 2, "copies and products overlap");
  using StagePlace = RingPlace<kStages, kUnjoined>;
  struct alignas(1024) Shared {
    Stage stages[kStages];
    typename Several::template Buffers<typename Store::Shared> results[kMultipliers];
    typename Units::Shared units;
    // Phases of a stage: its copies have arrived; its readers in the whole cluster are done.
    unsigned long long full[kStages], empty[kStages];
    unsigned long long turn[kMultipliers];  // the other warpgroup has waited for all its stages; kShared: has begun
    unsigned long long piece_full[kMultipliers][2];  // see HopperExchange
    typename Join::Shared join;
  };

 public:
  static constexpr int kSharedBytes = sizeof(Shared);

  static __device__ __forceinline__ void run(void* memory, const TensorMap& lhs, const TensorMap& rhs,
                                             const TensorMap& out_map, const Ragged& ragged, Out* out, unsigned* next,
                                             int k, int n, const Epilogue& epilogue = {},
                                             const TensorMap* tile_map = nullptr,
                                             const typename Several::Memory& several = {}, const Source& source = {},
                                             const Result& result = {}) {
    HopperRows kernel(*static_cast<Shared*>(memory));
    const unsigned warp = threadIdx.x / 32;
    if (threadIdx.x == 0) kernel.init();
    const HopperSplit& split = kernel.split_;
    const bool alone = kCluster == 1 && split.log2_blocks == 0;
    if (alone) {
      __syncthreads();
    } else {
      ptx::cluster_meet();
    }
    const int first = split.first(cdiv(k, kDepth), split.rank);  // of this block's steps
    const int steps = split.first(cdiv(k, kDepth), split.rank + 1) - first;
    if (warp < kGroupThreads / 32) {
      ptx::give_registers<Source::kCopyRegisters>();
      if (warp == 1) {
        if (kernel.rank_ == 0) {
          kernel.units_.template fill<Schedule, kColumns, kTurns ? kMultipliers : 1>(Schedule(ragged, n), next,
                                                                                     split.log2_blocks);
        }
      } else if constexpr (Source::kGathers) {
        kernel.gather(source, rhs, steps, k);
      } else if (warp == 0) {
        if (threadIdx.x == 0) kernel.copy(lhs, rhs, first, steps);
      }
      if constexpr (kQuantizes) {
        if (warp > 1) result.template padding<kHasStarts>(ragged, n, blockIdx.x * 2 + warp % 2, gridDim.x * 2);
      } else if constexpr (kZeroPadding<Epilogue>) {
        if (warp > 1) store_padding<kHasStarts>(ragged, out, n, blockIdx.x * 2 + warp % 2, gridDim.x * 2);
      }
    } else {
      ptx::take_registers<Source::kMultiplyRegisters>();
      kernel.multiply(out_map, out, steps, n, ragged.m, epilogue, tile_map, several, result);
      if constexpr (kQuantizes) {
        // Padding is stored already.
      } else if constexpr (kSeveral<Epilogue>) {
        constexpr unsigned kAll = kMultipliers * kGroupThreads / 32;
        Several::template padding<kHasStarts>(epilogue, ragged, several, n, blockIdx.x * kAll + warp % kAll,
                                              gridDim.x * kAll);
      } else if constexpr (!kZeroPadding<Epilogue>) {
        constexpr unsigned kAll = kMultipliers * kGroupThreads / 32;
        apply_to_padding<kHasStarts>(epilogue, ragged, out, n, blockIdx.x * kAll + warp % kAll, gridDim.x * kAll);
      }
    }
    // Blocks of a cluster arrive at each other's barriers until all are done.
    if (!alone) {
      __syncwarp();
      ptx::cluster_meet();
    }
  }

 private:
  __device__ __forceinline__ explicit HopperRows(Shared& shared)
      : shared_(shared),
        units_(shared.units),
        rank_(kCluster > 1 ? ptx::cluster_rank() : 0),
        split_(kSplits ? HopperSplit::of_launch() : HopperSplit{}) {}

  __device__ __forceinline__ StagePlace first_stage() const { return {0, 0, split_.log2_blocks > 0}; }

  static __device__ __forceinline__ unsigned address(const void* pointer) { return ptx::shared_address(pointer); }
  static __device__ __forceinline__ unsigned in_block(unsigned shared, unsigned rank) {
    return kCluster > 1 ? ptx::in_cluster(shared, rank) : shared;
  }

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(address(&shared_.full[i]), 1 + Source::kArrivals);
      ptx::mbarrier_init(address(&shared_.empty[i]), kCluster * kWarps);
    }
    units_.init();
    Join::init(shared_.join, split_);
    for (int i = 0; i < kMultipliers; ++i) {
      ptx::mbarrier_init(address(&shared_.turn[i]), kGroupThreads / 32);
      for (int j = 0; j < 2; ++j) ptx::mbarrier_init(address(&shared_.piece_full[i][j]), 1);
    }
    ptx::mbarrier_init_fence();
  }

  // ---- one thread: copies ----
  __device__ __forceinline__ void copy(const TensorMap& lhs, const TensorMap& rhs, int first, int steps) {
    ptx::prefetch_map(lhs);
    ptx::prefetch_map(rhs);
    typename Units::Place unit_place;
    StagePlace place = first_stage();
    while (true) {
      RowUnit unit = units_.template read<false>(unit_place);
      unit_place.advance();
      if (unit.group == RowUnit::kEnd) return;
      const bool shares = kCluster > 1 && unit.column % 2 != RowUnit::kStacked;
      if (kStacks) unit.column &= ~RowUnit::kStacked;
      const int boxes = cdiv(unit.count, kBoxRows);
      const unsigned bytes = kRhsBytes + boxes * kBoxBytes;
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const unsigned full = address(&shared_.full[place.index]);
        const unsigned to_rhs = address(shared_.stages[place.index].rhs);
        const unsigned to_lhs = address(shared_.stages[place.index].lhs);
        const int depth = (first + step) * kDepth;
        ptx::mbarrier_wait(address(&shared_.empty[place.index]), place.parity ^ 1);
        ptx::mbarrier_arrive_expect(full, bytes);
        copy_rhs(to_rhs, rhs, full, depth, unit);
        for (int i = shares ? rank_ : 0; i < boxes; i += shares ? kCluster : 1) {
          const int row = unit.row + i * kBoxRows;
          if (shares) {
            ptx::tile_load_multicast(to_lhs + i * kBoxBytes, &lhs, full, (1 << kCluster) - 1, depth, row);
          } else {
            ptx::tile_load(to_lhs + i * kBoxBytes, &lhs, full, depth, row);
          }
        }
        place.advance();
      }
    }
  }

  // One thread.
  static __device__ __forceinline__ void copy_rhs(unsigned to_rhs, const TensorMap& rhs, unsigned full, int depth,
                                                  const RowUnit& unit) {
    if constexpr (kRhsKMajor && !kPaired) {
#pragma unroll
      for (int i = 0; i < kReaders; ++i) {
        ptx::tile_load(to_rhs + i * kOwnRhsBytes, &rhs, full, depth, unit.column + i * kOwnColumns, unit.group);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kSlices * kReaders; ++i) {
        const int column = rhs_column(unit.column + i / kSlices * kOwnColumns, i % kSlices);
        const unsigned to = to_rhs + i * kSliceBytes;
        if constexpr (kRhsKMajor) {
          ptx::tile_load(to, &rhs, full, depth, column, unit.group);
        } else {
          ptx::tile_load(to, &rhs, full, column, depth, unit.group);
        }
      }
    }
  }

  // ---- or three warps: all but the second ----
  __device__ __forceinline__ void gather(const Source& source, const TensorMap& rhs, int steps, int k) {
    static_assert(kCluster == 1 && !kSplits, "a block copies its own rows");
    const unsigned warp = threadIdx.x / 32;
    GatheringWarp<kRows> rows(source, warp == 0 ? 0 : warp - 1, static_cast<unsigned>(k) * sizeof(In));
    typename Units::Place unit_place;
    StagePlace place = first_stage();
    while (true) {
      const RowUnit unit = units_.template read<true>(unit_place);
      unit_place.advance();
      if (unit.group == RowUnit::kEnd) break;
      rows.begin(unit);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const unsigned full = address(&shared_.full[place.index]);
        ptx::mbarrier_wait(address(&shared_.empty[place.index]), place.parity ^ 1);
        if (threadIdx.x == 0) {
          ptx::mbarrier_arrive_expect(full, kRhsBytes);
          copy_rhs(address(shared_.stages[place.index].rhs), rhs, full, step * kDepth, unit);
        }
        __syncwarp();
        rows.copy(address(shared_.stages[place.index].lhs), step * kRowBytes);
        ptx::cp_async_arrive(full);
        place.advance();
      }
    }
    ptx::cp_async_wait_all();
  }

  // The first column of a slice, of a unit of the result from `column` on.
  static __device__ __forceinline__ int rhs_column(int column, int slice) {
    if constexpr (kPaired) {
      return column + Epilogue::first(slice);
    } else {
      return column + slice * kSlice;
    }
  }

  // ---- two warpgroups: products and results, each of every second unit ----
  __device__ __forceinline__ void multiply(const TensorMap& out_map, Out* out, int steps, int n, int m,
                                           const Epilogue& epilogue, const TensorMap* tile_map,
                                           const typename Several::Memory& memory, const Result& result) {
    // The same in all lanes, and known to be: what follows from it stays in uniform registers, where instructions look
    // for their operands.
    const unsigned self = __shfl_sync(~0u, threadIdx.x / kGroupThreads - 1, 0);
    Store store(address(&shared_.results[self]));
    Several several(address(&shared_.results[self]), address(shared_.piece_full[self]), memory);
    HopperExchange<Out, kRows, Epilogue> exchange(address(&shared_.results[self]), address(shared_.piece_full[self]),
                                                  tile_map);
    Join join(shared_.join, address(&shared_.stages[kUnjoined % kStages]), split_);
    StagePlace place = first_stage();
    if (kTurns) place.skip(self * steps);
    Sums sums;
    // One number beside the sums says all: no register is left for a place of its own.
    for (unsigned turn = 0;; ++turn) {
      const unsigned parity = turn & 1;
      RowUnit whole = units_.template read<true>(kTurns ? typename Units::Place{self, parity}
                                                        : typename Units::Place{parity, turn / 2 & 1});
      if (whole.group == RowUnit::kEnd) break;
      if (kStacks) whole.column &= ~RowUnit::kStacked;
      if constexpr (!kTurns) whole.column += static_cast<int>(self) * kOwnColumns;
      const RowUnit unit = join.share(whole);  // what becomes results here
      if constexpr (kSeveral<Epilogue>) {
        several.begin(unit, n);
      } else if constexpr (Epilogue::kTiles > 0) {
        exchange.begin(unit, n);
      }
      if constexpr (kTurns) {
        // A wait tells only neighbouring phases of a stage apart: each waits for its stages after the other has for the
        // stages before. The first turn of the first is free.
        ptx::mbarrier_wait(address(&shared_.turn[self]), parity ^ self ^ 1);
      } else if (self == 1) {
        // A stage behind the other, so that one multiplies while the other stores (H200: 5% of k = 4096).
        ptx::mbarrier_wait(address(&shared_.turn[1]), parity);
      }
      const unsigned last = multiply_rows<kFewest>(sums, place, self, whole.count, steps);
      if (kTurns) begin_other(self);
      ptx::wgmma_wait<0>();
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) ptx::keep(sums[slice]);
      release(last);
      if constexpr (kTurns) place.skip(steps);
      if constexpr (kSplits) {
        if (split_.log2_blocks > 0) join.join(sums, whole, self, turn);
      }
      if constexpr (kQuantizes) {
        if constexpr (Epilogue::kSums > 0) apply<kRows>(epilogue, sums, unit, unit.column, n);
        const typename Result::template Warpgroup<Out, kRows, kPaired> quantize(
            address(&shared_.results[self]), address(shared_.piece_full[self]), result);
        quantize.results(sums, unit, turn, n);
      } else if constexpr (kSeveral<Epilogue>) {
        several.finish(epilogue, sums, unit, n, m);
      } else if constexpr (Epilogue::kTiles > 0) {
        exchange.finish(epilogue, sums, out_map, out, unit, n);
      } else {
        if constexpr (Epilogue::kSums > 0) apply<kRows>(epilogue, sums, unit, unit.column, n);
        store.results(sums[0], out_map, out, unit.row, unit.count, unit.column, n);
        if constexpr (!kPaired) {  // 32-bit results take the register that it needs
          store.template results<sizeof(Out) == 2>(sums[1], out_map, out, unit.row, unit.count, unit.column + kSlice,
                                                   n);
        }
      }
    }
    if constexpr (!kQuantizes) store.drain();
  }

  // Begins the products, with the narrowest instruction that holds `count` rows; returns the last stage. Each width is
  // a main loop to compile: near the full tile, where most work is, they are kStep rows apart, else 32, or 64 where
  // only groups of so few rows would use them.
  static constexpr int kApart = kRows > 128 ? 64 : 32, kFewest = kApart;
  template <int kCount>
  __device__ __forceinline__ unsigned multiply_rows(Sums& sums, StagePlace& place, unsigned self, int count,
                                                    int steps) {
    if constexpr (kCount < kRows) {
      constexpr int kNext = kCount + (kCount < 128 ? kApart : kStep);
      if (count > kCount) return multiply_rows<kNext>(sums, place, self, count, steps);
    }
    return accumulate<kCount>(sums, place, self, steps);
  }

  template <int kCount>
  __device__ __forceinline__ unsigned accumulate(Sums& sums, StagePlace& place, unsigned self, int steps) {
    constexpr unsigned kNextRhs = (kRhsKMajor ? 32 : 16 * kRowBytes) / 16, kNextLhs = 32 / 16;  // in units of 16 bytes
    const unsigned first = address(&shared_.stages);
    const unsigned rhs = ptx::wgmma_operand(first + (kTurns ? 0 : self * kOwnRhsBytes));
    const unsigned lhs = ptx::wgmma_operand(first + kRhsBytes);
    unsigned before = 0;  // the stage of the step before
    int step = 0;
    // At least once, plainly: the compiler would wait for every single product if it saw a way from the epilogue's
    // writes to the sums to the end of this loop.
#pragma unroll 1
    do {
      ptx::mbarrier_wait(address(&shared_.full[place.index]), place.parity);
      const unsigned at = place.index * (sizeof(Stage) / 16);
      if constexpr (Source::kGathers) ptx::fence_async_shared();  // products see what threads have copied
      ptx::wgmma_fence();
#pragma unroll(kRolls ? 1 : kParts)
      for (int i = 0; i < kParts; ++i) {
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
          HopperProduct<In>::template run<kCount, kRhsKMajor>(sums[slice],
                                                              rhs + at + slice * (kSliceBytes / 16) + i * kNextRhs,
                                                              lhs + at + i * kNextLhs, step > 0 || i > 0);
        }
        if (kRolls) ptx::wgmma_commit();
      }
      if (!kRolls) ptx::wgmma_commit();
      if (step > 0) {
        ptx::wgmma_wait<kRolls ? kParts : 1>();
        release(before);
      }
      if (!kTurns && step == 0 && self == 0) begin_other(self);
      before = place.index;
      place.advance();
    } while (++step < steps);
    return before;
  }

  __device__ __forceinline__ void begin_other(unsigned self) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(address(&shared_.turn[self ^ 1]));
  }

  // This warp has read the stage: tells every block that copies into it.
  __device__ __forceinline__ void release(unsigned stage) {
    const unsigned lane = threadIdx.x % 32;
    if (lane < kCluster) ptx::mbarrier_arrive_cluster(in_block(address(&shared_.empty[stage]), lane));
  }

  Shared& shared_;
  Units units_;
  unsigned rank_;  // in a cluster of neighbouring columns
  HopperSplit split_;
};

}  // namespace jf::grouped
