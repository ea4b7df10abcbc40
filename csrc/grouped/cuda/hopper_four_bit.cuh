// out[r, :] = lhs[r, :] * rhs[group of r] with weights of four bits (four_bit.cuh) on the warpgroup products of sm_90a;
// padding rows become zero.
//
//   lhs [m, k] bf16; out [m, n]; k and n positive multiples of 8
//   pieces    [groups, columns / 128, k / 64, kPieceBytes], both rounded up: what a block reads is contiguous
//   tile      128 columns by at most kRows rows of one group, a piece or two a stage. Computed transposed, as in
//             HopperRows: weights become rows of the product, in registers, while the products of the piece before run.
//   block     kThreads: a warpgroup that schedules and copies, then two that multiply, 64 columns each
//   shared    kSharedBytes, aligned to 1024
//   grid      about kBlocks blocks for each multiprocessor
//   maps      lhs 2D {k, m}, box {64, kBoxRows}; out 2D {n, m}, box {kStoreColumns, kStoreRows}; all swizzled by 128
//   next      zero when the kernel starts: blocks take units as they come; or null: each takes as many as the others
#pragma once

#include "grouped/cuda/four_bit.cuh"
#include "grouped/cuda/hopper_store.cuh"
#include "grouped/cuda/hopper_units.cuh"

namespace jf::grouped {

template <int kRows_, int kStages_, int kBlocks_>
struct FourBitTile {
  static constexpr int kRows = kRows_, kStages = kStages_, kBlocks = kBlocks_;
  static_assert(kRows == 32 || kRows % 64 == 0 && kRows <= 256, "sums are registers");
};

template <class Format, class Out, class Tile, bool kHasStarts>
class HopperFourBit {
  static constexpr int kRows = Tile::kRows, kStages = Tile::kStages;
  static constexpr int kPieces = kRows <= 128 ? 2 : 1;  // of a stage
  static constexpr int kSlice = 64, kSlices = 2, kColumns = kSlice * kSlices, kDepth = 64;
  static constexpr int kGroupThreads = 128, kThreads = kGroupThreads * (1 + kSlices);
  static constexpr int kWarps = kGroupThreads / 32 * kSlices;  // that read a stage
  static constexpr int kRowBytes = kDepth * 2;
  static constexpr int kBoxRows = kRows < 64 ? 16 : 64;
  static constexpr unsigned kBoxBytes = kBoxRows * kRowBytes, kLhsBytes = kRows * kRowBytes;
  static constexpr unsigned kCodeBytes = kGroupThreads * 16, kScaleWords = Format::kScaleWords;
  static constexpr unsigned kScaleBytes = 32 * kScaleWords * 4;  // of a slice: shared by the four lanes of a row
  static constexpr unsigned kFactorAt = kSlices * (kCodeBytes + kScaleBytes), kPieceBytes = kFactorAt + 16;
  static constexpr int kStep = 16;

  using Store = HopperStore<Out, kRows>;
  using Schedule = RowSchedule<kHasStarts, kRows, kStep, kColumns>;
  using Sums = float[kRows / 2];
  using Units = UnitQueue<1, kWarps + 1>;

  struct Stage {
    alignas(1024) unsigned char lhs[kPieces][kLhsBytes];
    unsigned char rhs[kPieces][kPieceBytes];
  };
  // Where things lie in shared memory: constants, so that addresses are sums of few instructions.
  static constexpr unsigned kResultsAt = kStages * sizeof(Stage);
  static constexpr unsigned kUnitsAt = kResultsAt + kSlices * sizeof(typename Store::Shared);
  // Phases of a stage: its copies have arrived; its readers are done.
  static constexpr unsigned kFullAt = kUnitsAt + sizeof(Units::Shared), kEmptyAt = kFullAt + kStages * 8;

 public:
  static constexpr int kSharedBytes = (kEmptyAt + kStages * 8 + 1023) / 1024 * 1024;

  static __device__ __forceinline__ void run(void* memory, const TensorMap& lhs, const unsigned char* pieces,
                                             const TensorMap& out_map, const Ragged& ragged, Out* out, unsigned* next,
                                             int k, int n) {
    HopperFourBit kernel(memory);
    const unsigned warp = threadIdx.x / 32;
    if (threadIdx.x == 0) kernel.init();
    __syncthreads();
    const int steps = cdiv(k, kDepth);
    if (warp < kGroupThreads / 32) {
      ptx::give_registers<40>();
      if (warp == 0) {
        if (threadIdx.x == 0) kernel.copy(lhs, pieces, steps, n);
      } else if (warp == 1) {
        kernel.units_.template fill<Schedule, kColumns, 1>(Schedule(ragged, n), next);
      } else {
        store_padding<kHasStarts>(ragged, out, n, blockIdx.x * 2 + warp % 2, gridDim.x * 2);
      }
    } else {
      ptx::take_registers<Tile::kBlocks == 1 ? 232 : 96>();
      auto* results = reinterpret_cast<typename Store::Shared*>(static_cast<unsigned char*>(memory) + kResultsAt);
      kernel.multiply(results, out_map, out, steps, n);
    }
  }

 private:
  __device__ __forceinline__ explicit HopperFourBit(void* memory)
      : shared_(ptx::shared_address(memory)),
        units_(*reinterpret_cast<Units::Shared*>(static_cast<unsigned char*>(memory) + kUnitsAt)) {}

  __device__ __forceinline__ unsigned full(unsigned stage) const { return shared_ + kFullAt + stage * 8; }
  __device__ __forceinline__ unsigned empty(unsigned stage) const { return shared_ + kEmptyAt + stage * 8; }
  static __device__ __forceinline__ unsigned lhs_of(unsigned part) { return part * kLhsBytes; }
  static __device__ __forceinline__ unsigned rhs_of(unsigned part) { return kPieces * kLhsBytes + part * kPieceBytes; }

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), kWarps);
    }
    units_.init();
    ptx::mbarrier_init_fence();
  }

  // ---- one thread: copies ----
  __device__ __forceinline__ void copy(const TensorMap& lhs, const unsigned char* pieces, int steps, int n) {
    ptx::prefetch_map(lhs);
    const int across = cdiv(n, kColumns);
    typename Units::Place unit_place;
    RingPlace<kStages> place;
    while (true) {
      const RowUnit unit = units_.template read<false>(unit_place);
      unit_place.advance();
      if (unit.group == RowUnit::kEnd) return;
      const int boxes = cdiv(unit.count, kBoxRows);
      const long long tile = static_cast<long long>(unit.group) * across + unit.column / kColumns;
      const unsigned char* from = pieces + tile * steps * kPieceBytes;
#pragma unroll 1
      for (int step = 0; step < steps; step += kPieces) {
        const unsigned arrived = full(place.index), stage = shared_ + place.index * sizeof(Stage);
        const int here = min(kPieces, steps - step);
        ptx::mbarrier_wait(empty(place.index), place.parity ^ 1);
        ptx::mbarrier_arrive_expect(arrived, here * (kPieceBytes + boxes * kBoxBytes));
        ptx::bulk_load(stage + rhs_of(0), from, here * kPieceBytes, arrived);
        from += here * kPieceBytes;
        for (int p = 0; p < here; ++p) {
          for (int i = 0; i < boxes; ++i) {
            ptx::tile_load(stage + lhs_of(p) + i * kBoxBytes, &lhs, arrived, (step + p) * kDepth,
                           unit.row + i * kBoxRows);
          }
        }
        place.advance();
      }
    }
  }

  // ---- two warpgroups: products and results, 64 columns of every unit each ----
  __device__ __forceinline__ void multiply(typename Store::Shared* results, const TensorMap& out_map, Out* out,
                                           int steps, int n) {
    // The same in all lanes, and known to be: what follows from it stays in uniform registers, where instructions look
    // for their operands. So are the rows of a unit.
    const unsigned self = __shfl_sync(~0u, threadIdx.x / kGroupThreads - 1, 0), thread = threadIdx.x % kGroupThreads;
    codes_ = shared_ + rhs_of(0) + self * kCodeBytes + thread * 16;
    scales_ = shared_ + rhs_of(0) + kSlices * kCodeBytes + self * kScaleBytes + thread / 4 * (kScaleWords * 4);
    Store store(results[self]);
    typename Units::Place unit_place;
    RingPlace<kStages> place;
    Sums sums;
    while (true) {
      const RowUnit unit = units_.template read<true>(unit_place);
      unit_place.advance();
      if (unit.group == RowUnit::kEnd) break;
      multiply_rows<kFewest>(sums, place, __shfl_sync(~0u, unit.count, 0), steps);
      store.results(sums, out_map, out, unit.row, unit.count, unit.column + static_cast<int>(self) * kSlice, n);
    }
    store.drain();
  }

  // With the narrowest instruction that holds `count` rows.
  static constexpr int kFewest = kRows <= 128 ? 16 : 64;
  template <int kCount>
  __device__ __forceinline__ void multiply_rows(Sums& sums, RingPlace<kStages>& place, int count, int steps) {
    if constexpr (kCount < kRows) {
      constexpr int kNext = kCount < 64 ? kCount * 2 : kCount + (kCount < 128 ? 64 : 32);
      if (count > kCount) return multiply_rows<kNext>(sums, place, count, steps);
    }
    accumulate<kCount>(sums, place, steps);
  }

  // Products that begin together. Two sets of their words take turns: while one is made, the products of the other run.
  // A whole piece costs fewer instructions, half a piece fewer registers.
  static constexpr int kTogether = kRows <= 128 ? 4 : 2;

  template <int kCount>
  __device__ __forceinline__ void accumulate(Sums& sums, RingPlace<kStages>& place, int steps) {
    unsigned even[kTogether * 4], odd[kTogether * 4];
    unsigned before = 0;  // the stage before
#pragma unroll 1
    for (int step = 0;;) {
      const unsigned stage = place.index * static_cast<unsigned>(sizeof(Stage));
      const unsigned lhs = ptx::wgmma_operand(shared_) + stage / 16;
      ptx::mbarrier_wait(full(place.index), place.parity);
      if constexpr (kTogether == 4) {
        const Codes<Format> first = load(stage), second = load(stage + kPieceBytes);
        decode<Format, 4>(first, 0, even);
        begin<kCount>(sums, even, lhs, step > 0);
        if (step > 0) release(before);
        if (++step == steps) break;
        decode<Format, 4>(second, 0, odd);
        begin<kCount>(sums, odd, lhs + kLhsBytes / 16, true);
      } else {
        const Codes<Format> codes = load(stage);
        decode<Format, 2>(codes, 0, even);
        begin<kCount>(sums, even, lhs, step > 0);
        if (step > 0) release(before);
        decode<Format, 2>(codes, 2, odd);
        begin<kCount>(sums, odd, lhs + 4, true);
      }
      if (++step == steps) break;
      before = place.index;
      place.advance();
    }
    ptx::wgmma_wait<0>();
    ptx::keep(sums);
    const unsigned last = shared_ + place.index * static_cast<unsigned>(sizeof(Stage));
    const float factor = __uint_as_float(ptx::ld_shared(last + rhs_of(0) + kFactorAt));
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) sums[i] *= factor;
    __syncwarp();
    release(place.index);
    place.advance();
  }

  // What this thread reads of a piece, of the stage so many bytes further.
  __device__ __forceinline__ Codes<Format> load(unsigned stage) const {
    const int4 words = ptx::ld_shared4(codes_ + stage);
    Codes<Format> codes = {{static_cast<unsigned>(words.x), static_cast<unsigned>(words.y),
                            static_cast<unsigned>(words.z), static_cast<unsigned>(words.w)}};
    ptx::ld_shared(scales_ + stage, codes.scales);
    return codes;
  }

  // Begins these products and waits for those before.
  template <int kCount>
  static __device__ __forceinline__ void begin(Sums& sums, const unsigned (&words)[kTogether * 4], unsigned lhs,
                                               bool add) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      ptx::WgmmaRegisters<kCount>::run(sums, words + 4 * i, lhs + 2 * i, add || i > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }

  // This warp has read the stage.
  __device__ __forceinline__ void release(unsigned stage) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty(stage));
  }

  unsigned shared_;
  Units units_;
  unsigned codes_, scales_;  // of this thread in the first stage
};

}  // namespace jf::grouped
