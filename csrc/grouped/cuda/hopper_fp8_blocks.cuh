// out[r, c] = sum over k of lhs[r, k] * lhs_scale[r, k / 128] * rhs[g, c, k] * rhs_scale[g, c / 128, k / 128], g the
// group of r, in 8-bit floats on the warpgroup products of sm_90a; padding rows become zero.
//
//   lhs [m, k], rhs [groups, n, k]; k a multiple of 16 and n of 16 bytes of out
//   scales    lhs_scale [m, blocks of k], rhs_scale [groups, blocks of n, blocks of k], f32, blocks of 128
//   tile      128 rows of one group by 192 or 128 columns: rows of out are rows of the instruction, so that a thread's
//             sums of a block of k have two scales of lhs and one or two of rhs. A stage is one block of k
//   block     kThreads: a warpgroup that schedules and copies, then two with 64 rows each, or of tiles of no more rows
//             with half of the columns each. What the tensor cores sum in a block of k is scaled and added to sums in
//             full precision by one warpgroup while they multiply for the other
//   cluster, grid, next: as in HopperRows
//   maps      as in HopperRows, boxes 128 bytes wide and of 64 rows
#pragma once

#include "grouped/cuda/hopper_fp8.cuh"

namespace jf::grouped {

struct BlockScales {
  const float* lhs;
  const float* rhs;
};

// The columns of a cluster's units: wide ones, then as many narrow ones as waste the fewest columns.
template <int kCluster>
struct BlockColumns {
  static constexpr int kWide = 192, kNarrow = 128, kBox = 64;
  int wide, count;

  __device__ __forceinline__ explicit BlockColumns(int n) {
    const int boxes = cdiv(n, kBox * kCluster);
    count = cdiv(boxes, kWide / kBox);
    wide = count - min(count, count * (kWide / kBox) - boxes);
  }
  // Of unit number `index`, of each block; and the first of a block.
  __device__ __forceinline__ int width(int index) const { return index < wide ? kWide : kNarrow; }
  __device__ __forceinline__ int first(int index, int rank) const {
    return (index * kWide - max(index - wide, 0) * (kWide - kNarrow)) * kCluster + rank * width(index);
  }
};

template <class In, class Out, class Tile, bool kHasStarts>
class HopperBlocks {
  static constexpr int kRows = 128, kStages = Tile::kStages, kCluster = Tile::kCluster;
  static_assert(Tile::kRows == kRows, "two warpgroups have 64 rows each");
  static constexpr int kHalf = 64;  // rows of a warpgroup, of an instruction and of a box
  static constexpr int kGroupThreads = 128, kMultipliers = 2, kThreads = kGroupThreads * (1 + kMultipliers);
  static constexpr int kRowBytes = 128, kDepth = kRowBytes, kBlock = 128;
  static constexpr unsigned kBoxBytes = kHalf * kRowBytes;
  static constexpr unsigned kWarps = kGroupThreads / 32;
  static constexpr int kChunkColumns = kRowBytes / static_cast<int>(sizeof(Out));  // of one store

  using Columns = BlockColumns<kCluster>;
  static constexpr unsigned kRhsBytes = Columns::kWide * kRowBytes;
  using Sums = float[Columns::kWide / 2];
  // A unit's column is its number among the columns.
  using Schedule = RowSchedule<kHasStarts, kRows, kHalf, 1>;
  using Units = UnitQueue<kCluster, kMultipliers * kWarps + 1>;

  struct Stage {
    unsigned char rhs[kRhsBytes];
    unsigned char lhs[kRows * kRowBytes];
  };
  struct alignas(1024) Shared {
    Stage stages[kStages];
    unsigned char results[kMultipliers][kBoxBytes];
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
    const Columns columns(n);
    if (warp < kWarps) {
      ptx::give_registers<40>();
      if (warp == 0) {
        if (threadIdx.x == 0) kernel.copy(lhs, rhs, columns, steps);
      } else if (warp == 1) {
        if (kernel.rank_ == 0) kernel.units_.template fill<Schedule, 0, 1>(Schedule(ragged, columns.count), next);
      } else {
        store_padding<kHasStarts>(ragged, out, n, blockIdx.x * 2 + warp % 2, gridDim.x * 2);
      }
    } else {
      ptx::take_registers<232>();
      kernel.multiply(out_map, out, columns, {scales, steps, ragged.m, n});
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
      ptx::mbarrier_init(address(&shared_.full[i]), 1);
      ptx::mbarrier_init(address(&shared_.empty[i]), kCluster * kMultipliers * kWarps);
    }
    units_.init();
    ptx::mbarrier_init_fence();
  }

  // ---- one thread: copies ----
  __device__ __forceinline__ void copy(const TensorMap& lhs, const TensorMap& rhs, const Columns& columns, int steps) {
    ptx::prefetch_map(lhs);
    ptx::prefetch_map(rhs);
    typename Units::Place unit_place;
    RingPlace<kStages> place;
    while (true) {
      const RowUnit unit = units_.template read<false>(unit_place);
      unit_place.advance();
      if (unit.group == RowUnit::kEnd) return;
      const int boxes = cdiv(unit.count, kHalf), across = columns.width(unit.column) / Columns::kBox;
      const int column = columns.first(unit.column, rank_);
      const unsigned bytes = (across + boxes) * kBoxBytes;
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const unsigned full = address(&shared_.full[place.index]);
        const unsigned to_rhs = address(shared_.stages[place.index].rhs);
        const unsigned to_lhs = address(shared_.stages[place.index].lhs);
        const int depth = step * kDepth;
        ptx::mbarrier_wait(address(&shared_.empty[place.index]), place.parity ^ 1);
        ptx::mbarrier_arrive_expect(full, bytes);
        for (int i = 0; i < across; ++i) {
          ptx::tile_load(to_rhs + i * kBoxBytes, &rhs, full, depth, column + i * Columns::kBox, unit.group);
        }
        for (int i = rank_; i < boxes; i += kCluster) {
          const int row = unit.row + i * kHalf;
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

  // ---- two warpgroups: products and results ----
  struct Problem {
    BlockScales scales;
    int steps, m, n;
  };
  // What a warpgroup computes of a unit: up to 64 rows from `row` on, and where its part of rhs begins in a stage.
  struct Work {
    int group, row, rows, column;
    unsigned lhs, rhs;  // bytes
  };

  __device__ __forceinline__ void multiply(const TensorMap& out_map, Out* out, const Columns& columns,
                                           const Problem& problem) {
    // Known to be the same in all lanes, see HopperRows.
    const unsigned self = __shfl_sync(~0u, threadIdx.x / kGroupThreads - 1, 0);
    typename Units::Place unit_place;
    RingPlace<kStages> place;
    Sums sums;
    while (true) {
      const RowUnit unit = units_.template read<true>(unit_place);
      unit_place.advance();
      if (unit.group == RowUnit::kEnd) break;
      const int column = columns.first(unit.column, rank_), width = columns.width(unit.column);
      if (unit.count > kHalf) {
        const int first = static_cast<int>(self) * kHalf;
        const Work work = {unit.group, unit.row + first, min(unit.count - first, kHalf), column, self * kBoxBytes, 0};
        if (width == Columns::kWide) {
          compute<Columns::kWide>(sums, place, work, problem, self, out_map, out);
        } else {
          compute<Columns::kNarrow>(sums, place, work, problem, self, out_map, out);
        }
      } else {
        const int first = static_cast<int>(self) * width / 2;
        const Work work = {unit.group, unit.row, unit.count, column + first, 0, first * unsigned{kRowBytes}};
        if (width == Columns::kWide) {
          compute<Columns::kWide / 2>(sums, place, work, problem, self, out_map, out);
        } else {
          compute<Columns::kNarrow / 2>(sums, place, work, problem, self, out_map, out);
        }
      }
      place.skip(problem.steps);
    }
    if (threadIdx.x % kGroupThreads == 0) ptx::bulk_wait_read<0>();
  }

  template <int kCount>
  __device__ __forceinline__ void compute(Sums& sums, const RingPlace<kStages>& place, const Work& work,
                                          const Problem& problem, unsigned self, const TensorMap& out_map, Out* out) {
    accumulate<kCount>(sums, place, work, problem);
    store<kCount>(sums, work, self, out_map, out, problem.n);
  }

  // The scales of a thread's sums in one block of k: of its two rows, and of the first and the last column.
  struct Scales {
    float rows[2], columns[2];
  };

  template <int kCount>
  __device__ __forceinline__ void accumulate(Sums& sums, RingPlace<kStages> place, const Work& work, const Problem& p) {
    constexpr unsigned kNext = 32 / 16;  // in units of 16 bytes
    // Columns that are surely in one block.
    constexpr int kPiece = kCount % 64 == 0 ? 64 : 32, kPieces = kCount / kPiece;
    const unsigned first = address(&shared_.stages);
    const unsigned rhs = ptx::wgmma_operand(first + work.rhs), lhs = ptx::wgmma_operand(first + kRhsBytes + work.lhs);
    const int across = cdiv(p.n, kBlock), block = work.column / kBlock;
    const float *of_rows[2], *of_columns[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Rows of other groups are multiplied but not stored, and columns past the last likewise.
      const int row =
          min(work.row + static_cast<int>(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4) + i * 8, p.m - 1);
      const int of = min((work.column + i * (kCount - 1)) / kBlock, across - 1);
      of_rows[i] = p.scales.lhs + static_cast<long long>(row) * p.steps;
      of_columns[i] = p.scales.rhs + (static_cast<long long>(work.group) * across + of) * p.steps;
    }
    const auto load = [&](int step) {
      return Scales{{__ldg(of_rows[0] + step), __ldg(of_rows[1] + step)},
                    {__ldg(of_columns[0] + step), __ldg(of_columns[1] + step)}};
    };
    Scales ahead = load(0);
    float part[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) sums[i] = 0;
#pragma unroll 1
    for (int step = 0; step < p.steps; ++step) {
      const Scales now = ahead;
      ahead = load(min(step + 1, p.steps - 1));
      ptx::mbarrier_wait(address(&shared_.full[place.index]), place.parity);
      const unsigned at = place.index * (sizeof(Stage) / 16);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kRowBytes / 32; ++i) {
        HopperProduct<In>::template run_rows<kCount>(part, lhs + at + i * kNext, rhs + at + i * kNext, i > 0);
      }
      ptx::wgmma_commit();
      float scale[kPieces][2];
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const float of = (work.column + i * kPiece) / kBlock == block ? now.columns[0] : now.columns[1];
        scale[i][0] = of * now.rows[0];
        scale[i][1] = of * now.rows[1];
        ptx::keep(scale[i]);
      }
      ptx::wgmma_wait<0>();
      ptx::keep(part);
      release(place.index);
      place.advance();
      // Of four sums in eight columns, the last two are those of the second row.
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) sums[i] += scale[i / (kPiece / 2)][i / 2 % 2] * part[i];
    }
  }

  // This warp has read the stage: tells every block that copies into it.
  __device__ __forceinline__ void release(unsigned stage) {
    __syncwarp();
    const unsigned lane = threadIdx.x % 32;
    if (lane < kCluster) ptx::mbarrier_arrive_cluster(in_block(address(&shared_.empty[stage]), lane));
  }

  // A chunk of columns at a time through shared memory. A copy cannot end where a group does, nor between chunks: then
  // the threads store.
  template <int kCount>
  __device__ __forceinline__ void store(const Sums& sums, const Work& work, unsigned self, const TensorMap& map,
                                        Out* out, int n) {
    const bool issues = threadIdx.x % kGroupThreads == 0;
    const auto meet = [&] { ptx::meet<kGroupThreads>(1 + static_cast<int>(self)); };
    const unsigned buffer = address(shared_.results[self]);
#pragma unroll
    for (int first = 0; first < kCount; first += kChunkColumns) {
      const int column = work.column + first, columns = min(kCount - first, kChunkColumns);
      if (column >= n) return;
      if (issues) ptx::bulk_wait_read<0>();
      meet();
      put_rows<Out>(buffer, sums + first / 2, columns);
      if (work.rows == kHalf && columns == kChunkColumns) {
        ptx::fence_async_shared();
        meet();
        if (issues) {
          ptx::tile_store(&map, buffer, column, work.row);
          ptx::bulk_commit();
        }
      } else {
        meet();
        copy_rows(buffer, out + static_cast<long long>(work.row) * n + column, work.rows, min(columns, n - column), n);
      }
    }
  }

  static __device__ __forceinline__ void copy_rows(unsigned buffer, Out* to, int rows, int columns, long long pitch) {
    constexpr int kChunks = kRowBytes / 16, kPerChunk = 16 / static_cast<int>(sizeof(Out));
    for (int i = threadIdx.x % kGroupThreads; i < rows * kChunks; i += kGroupThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      if (chunk * kPerChunk >= columns) continue;
      const int4 words = ptx::ld_shared4(buffer + row * kRowBytes + (chunk ^ row % 8) * 16);
      ptx::st_global(to + row * pitch + chunk * kPerChunk, reinterpret_cast<const uint4&>(words));
    }
  }

  Shared& shared_;
  Units units_;
  unsigned rank_;
};

}  // namespace jf::grouped
