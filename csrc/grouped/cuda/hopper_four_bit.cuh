// out[r, :] = lhs[r, :] * rhs[group of r] with weights of four bits (four_bit.cuh) on the warpgroup products of sm_90a;
// padding rows become zero.
//
//   lhs [m, k] bf16; out [m, n]; k and n positive multiples of 8
//   pieces    of 64 columns by 64 contraction indices, [groups, columns / 64, indices / 64, kPieceBytes], both rounded
//             up. kBack: the weights' columns are contraction indices, and theirs columns
//   factors   [groups], f32: of all weights of a group
//   tile      128 columns by at most kRows rows of one group, two pieces or four a stage. Computed transposed, as in
//             HopperRows: weights become rows of the product, in registers, while the products of the piece before run.
//   block     kThreads: a warpgroup that schedules and copies, then two that multiply, 64 columns each
//   shared    kSharedBytes, aligned to 1024
//   grid      about kBlocks blocks for each multiprocessor
//   maps      lhs 2D {k, m}, kBoxes of them with boxes {64, box_rows}; out 2D {n, m}, box {kStoreColumns, kStoreRows};
//             all swizzled by 128
//   next      zero when the kernel starts: blocks take units as they come; or null: each takes as many as the others
//   epilogue  what becomes of the sums, see hopper_epilogue.cuh. n is then that of the result, `columns` that of the
//             product. Where one is made of two sums, a tile has 64 columns: each warpgroup multiplies one of the two,
//             and the second hands its sums to the first
#pragma once

#include "grouped/cuda/four_bit.cuh"
#include "grouped/cuda/hopper_epilogue.cuh"
#include "grouped/cuda/hopper_store.cuh"
#include "grouped/cuda/hopper_units.cuh"

namespace jf::grouped {

template <int kRows_, int kStages_, int kBlocks_>
struct FourBitTile {
  static constexpr int kRows = kRows_, kStages = kStages_, kBlocks = kBlocks_;
  static_assert(kRows == 16 || kRows == 32 || kRows == 96 || kRows % 64 == 0 && kRows <= 256, "sums are registers");
};

template <class Format, class Out, class Tile, bool kHasStarts, bool kBack = false, class Epilogue = NoEpilogue>
class HopperFourBit {
  static constexpr int kRows = Tile::kRows, kStages = Tile::kStages;
  static constexpr bool kPaired = Epilogue::kSums == 2;
  static_assert(!kPaired || !kBack, "the pieces of a warpgroup follow those of the other");
  static constexpr int kParts = kRows <= 128 ? 2 : 1;  // of a stage: steps of kDepth
  static constexpr int kSlice = 64, kSlices = 2, kColumns = kSlice * (kPaired ? 1 : kSlices), kDepth = 64;
  static constexpr int kGroupThreads = 128, kThreads = kGroupThreads * (1 + kSlices);
  static constexpr int kGroupWarps = kGroupThreads / 32;
  static constexpr int kWarps = kGroupWarps * kSlices;  // that read a stage
  static constexpr int kRowBytes = kDepth * 2;
  static constexpr unsigned kLhsBytes = kRows * kRowBytes;
  static constexpr unsigned kCodeBytes = kGroupThreads * 16, kScaleBytes = Format::kScaleWords * 4;  // of a row
  static constexpr unsigned kPieceBytes = kCodeBytes + 32 * kScaleBytes;  // four lanes of a row have the same scales
  static_assert(kPieceBytes % 128 == 0, "copies of whole lines");
  static constexpr int kStep = 16;

  // Rows of products, the fewest first: a tile is copied and multiplied with the fewest that hold its rows.
  static constexpr int kFewest = kRows < 32 ? 8 : kRows == 96 ? 32 : kRows <= 128 ? 16 : 64;
  static constexpr int more(int rows) {
    const int next = rows < 64 ? 2 * rows : rows + (rows < 128 ? 64 : 32);
    return next < kRows ? next : kRows;
  }
  static constexpr int numbers() {
    int count = 1;
    for (int rows = kFewest; rows < kRows; rows = more(rows)) ++count;
    return count;
  }
  // One copy for a tile's rows: several cost more than rows that are read in vain, but for tiles of 256.
  static constexpr bool kOneBox = kRows <= 128;

 public:
  static constexpr int kBoxes = kOneBox ? numbers() : 1;
  static constexpr int box_rows(int i) {
    int rows = kFewest;
    for (; i > 0; --i) rows = more(rows);
    return rows;
  }

 private:
  // Two blocks of a multiprocessor need the memory for stages, not for rows on their way out.
  static constexpr int kMostStored = Tile::kBlocks > 1 && kRows >= 64 ? 16 : 64;
  using Store = HopperStore<Out, kRows, kMostStored>;
  using Schedule = RowSchedule<kHasStarts, kRows, kStep, kColumns>;
  using Sums = float[kSlices][kRows / 2];  // the second: of the other warpgroup
  using Units = UnitQueue<1, kWarps + 1>;

  struct Stage {
    alignas(1024) unsigned char lhs[kParts][kLhsBytes];
    unsigned char rhs[kParts * kSlices][kPieceBytes];
  };
  static constexpr unsigned kStageBytes = sizeof(Stage);

  // Two blocks of a multiprocessor wait for instructions: their loop has all stages, whose addresses are constants, and
  // every unit begins with the first stage. The stages behind its last one go round empty.
  static constexpr bool kUnrolled = Tile::kBlocks > 1;
  using Place = RingPlace<kStages>;

  // Where things lie in shared memory: constants, so that addresses are sums of few instructions.
  static constexpr unsigned kResultsAt = kStages * kStageBytes;
  static constexpr unsigned kResultBytes = Store::kBuffers * Store::kBufferBytes;  // of a warpgroup
  static constexpr unsigned kUnitsAt = kResultsAt + kSlices * kResultBytes;
  // Phases of a stage: its copies have arrived; its readers are done. Then of sums from the other warpgroup.
  static constexpr unsigned kFullAt = kUnitsAt + sizeof(Units::Shared), kEmptyAt = kFullAt + kStages * 8;
  static constexpr unsigned kGivenAt = kEmptyAt + kStages * 8, kTakenAt = kGivenAt + 8;

 public:
  static constexpr int kSharedBytes = (kTakenAt + 8 + 1023) / 1024 * 1024;

  static __device__ __forceinline__ void run(void* memory, const TensorMap* const (&lhs)[kBoxes],
                                             const unsigned char* pieces, const float* factors,
                                             const TensorMap& out_map, const Ragged& ragged, Out* out, unsigned* next,
                                             int k, int n, int columns, const Epilogue& epilogue = {}) {
    HopperFourBit kernel(memory);
    const unsigned warp = threadIdx.x / 32;
    if (threadIdx.x == 0) kernel.init();
    __syncthreads();
    const int steps = cdiv(k, kDepth);
    if (warp < kGroupWarps) {
      ptx::give_registers<Tile::kBlocks == 1 ? 40 : 32>();  // of 3 * 168, or 3 * 80 for each of two blocks
      if (warp == 0) {
        if (threadIdx.x == 0) kernel.copy(lhs, pieces, steps, columns);
      } else if (warp == 1) {
        kernel.units_.template fill<Schedule, kColumns, 1>(Schedule(ragged, n), next);
      } else if constexpr (kZeroPadding<Epilogue>) {
        store_padding<kHasStarts>(ragged, out, n, blockIdx.x * 2 + warp % 2, gridDim.x * 2);
      }
    } else {
      ptx::take_registers<Tile::kBlocks == 1 ? 232 : 104>();
      kernel.multiply(static_cast<unsigned char*>(memory) + kResultsAt, factors, out_map, out, steps, n, epilogue);
      if constexpr (!kZeroPadding<Epilogue>) {
        apply_to_padding<kHasStarts>(epilogue, ragged, out, n, blockIdx.x * kWarps + warp % kWarps, gridDim.x * kWarps);
      }
    }
  }

 private:
  __device__ __forceinline__ explicit HopperFourBit(void* memory)
      : shared_(ptx::shared_address(memory)),
        units_(*reinterpret_cast<Units::Shared*>(static_cast<unsigned char*>(memory) + kUnitsAt)) {}

  __device__ __forceinline__ unsigned full(unsigned stage) const { return shared_ + kFullAt + stage * 8; }
  __device__ __forceinline__ unsigned empty(unsigned stage) const { return shared_ + kEmptyAt + stage * 8; }
  static __device__ __forceinline__ unsigned lhs_of(unsigned part) { return part * kLhsBytes; }
  // As they follow each other in memory: of a slice those of the stage's parts, kBack: of a part those of the slices.
  static constexpr unsigned kNextPart = (kBack ? kSlices : 1) * kPieceBytes;
  static constexpr unsigned kNextSlice = (kBack ? 1 : kParts) * kPieceBytes;
  static __device__ __forceinline__ unsigned rhs_of(unsigned slice, unsigned part) {
    return kParts * kLhsBytes + slice * kNextSlice + part * kNextPart;
  }

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), kWarps);
    }
    ptx::mbarrier_init(shared_ + kGivenAt, kGroupWarps);
    ptx::mbarrier_init(shared_ + kTakenAt, kGroupWarps);
    units_.init();
    ptx::mbarrier_init_fence();
  }

  // ---- one thread: copies ----
  __device__ __forceinline__ void copy(const TensorMap* const (&maps)[kBoxes], const unsigned char* pieces, int steps,
                                       int columns) {
    for (const TensorMap* map : maps) ptx::prefetch_map(*map);
    const int across = cdiv(columns, kSlice);
    typename Units::Place unit_place;
    Place place;
    while (true) {
      const RowUnit unit = units_.template read<false>(unit_place);
      unit_place.advance();
      if (unit.group == RowUnit::kEnd) return;
      const TensorMap* lhs = maps[0];
      int rows = kFewest;
#pragma unroll
      for (int i = 1; i < kBoxes; ++i) {
        if (unit.count > rows) lhs = maps[i], rows = more(rows);
      }
      const int boxes = kOneBox ? 1 : cdiv(unit.count, rows), box_bytes = rows * kRowBytes;
      const int first = slice_of(unit, 0), second = slice_of(unit, 1);
      // The last columns may be one slice: what the other warpgroup makes of what it finds is not stored.
      const int slices = second < across ? kSlices : 1;
      const unsigned char* of_group = pieces + static_cast<long long>(unit.group) * across * steps * kPieceBytes;
      const unsigned char* from[kSlices];
      for (int s = 0; s < kSlices; ++s) {
        const int slice = s == 0 ? first : second;
        from[s] = of_group + static_cast<long long>(slice) * (kBack ? 1 : steps) * kPieceBytes;
      }
#pragma unroll 1
      for (int step = 0; step < steps; step += kParts) {
        const unsigned arrived = full(place.index), stage = shared_ + place.index * kStageBytes;
        const int here = min(kParts, steps - step);
        ptx::mbarrier_wait(empty(place.index), place.parity ^ 1);
        ptx::mbarrier_arrive_expect(arrived, here * (slices * kPieceBytes + boxes * box_bytes));
        if constexpr (kBack) {
          for (int p = 0; p < here; ++p) {
            ptx::bulk_load(stage + rhs_of(0, p), from[0], slices * kPieceBytes, arrived);
            from[0] += static_cast<long long>(across) * kPieceBytes;
          }
        } else {
          for (int s = 0; s < slices; ++s) {
            ptx::bulk_load(stage + rhs_of(s, 0), from[s], here * kPieceBytes, arrived);
            from[s] += here * kPieceBytes;
          }
        }
        for (int p = 0; p < here; ++p) {
          for (int i = 0; i < boxes; ++i) {
            ptx::tile_load(stage + lhs_of(p) + i * box_bytes, lhs, arrived, (step + p) * kDepth, unit.row + i * rows);
          }
        }
        place.advance();
      }
      while (kUnrolled && place.index != 0) {
        ptx::mbarrier_wait(empty(place.index), place.parity ^ 1);
        ptx::mbarrier_arrive(full(place.index));
        place.advance();
      }
    }
  }

  // The slice of the product's columns that a warpgroup computes.
  static __device__ __forceinline__ int slice_of(const RowUnit& unit, int self) {
    if constexpr (kPaired) {
      return (unit.column + Epilogue::first(self)) / kSlice;
    } else {
      return unit.column / kSlice + self;
    }
  }

  // ---- two warpgroups: products and results, 64 columns of every unit each ----
  __device__ __forceinline__ void multiply(unsigned char* results, const float* factors, const TensorMap& out_map,
                                           Out* out, int steps, int n, const Epilogue& epilogue) {
    // The same in all lanes, and known to be: what follows from it stays in uniform registers, where instructions look
    // for their operands. So are the rows of a unit.
    const unsigned self = __shfl_sync(~0u, threadIdx.x / kGroupThreads - 1, 0), thread = threadIdx.x % kGroupThreads;
    const unsigned lane = thread % 32, warp = thread / 32, piece = shared_ + rhs_of(self, 0);
    if constexpr (kBack) {
      // Codes of the product that sums, forward, over the 16 indices that are this warp's rows.
      codes_ = piece + lane * 16 + warp * 4;
      scales_ = piece + kCodeBytes + lane / 4 * kScaleBytes + warp / Format::kSteps / Format::kBlocks * 4;
    } else {
      codes_ = piece + thread * 16;
      scales_ = piece + kCodeBytes + thread / 4 * kScaleBytes;
    }
    const unsigned buffers = ptx::shared_address(results), given_rows = buffers + kResultBytes;
    typename Units::Place unit_place;
    Place place;
    RingPlace<1> given;
    while (true) {
      const RowUnit unit = units_.template read<true>(unit_place);
      unit_place.advance();
      if (unit.group == RowUnit::kEnd) break;
      const int count = __shfl_sync(~0u, unit.count, 0);
      // Again for each unit: addresses that the compiler would keep cost registers beside the sums.
      Store store(__shfl_sync(~0u, buffers + self * kResultBytes, 0));
      Sums sums;
      multiply_rows<kFewest>(sums[0], place, count, steps, __ldg(factors + unit.group));
      const int column = unit.column + (kPaired ? 0 : static_cast<int>(self) * kSlice);
      if (kPaired && self == 1) {
        give(sums[0], given_rows, given, count);
      } else {
        if constexpr (Epilogue::kSums > 0) apply_to_slice(epilogue, sums, given_rows, given, unit, count, column, n);
        store.results(sums[0], out_map, out, unit.row, unit.count, column, n);
      }
    }
    Store(buffers).drain();
  }

  // With the narrowest instruction that holds `count` rows.
  template <int kCount>
  __device__ __forceinline__ void multiply_rows(float (&sums)[kRows / 2], Place& place, int count, int steps,
                                                float factor) {
    if constexpr (kCount < kRows) {
      if (count > kCount) return multiply_rows<more(kCount)>(sums, place, count, steps, factor);
    }
    accumulate<kCount>(sums, place, steps, factor);
  }

  // Products that begin together. Two sets of their words take turns: while one is made, the products of the other run.
  // A whole piece costs fewer instructions, parts of it fewer registers: where one loop of a kernel wants more than
  // there are, the compiler makes the products of all wait for each other.
  static constexpr int together(int count) {
    if (!kUnrolled) return kRows <= 128 ? 4 : 2;
    return kRows <= 32 ? 4 : kRows <= 64 || count <= 32 ? 2 : 1;
  }

  template <int kCount>
  __device__ __forceinline__ void accumulate(float (&sums)[kRows / 2], Place& place, int steps, float factor) {
    if constexpr (kUnrolled) {
      multiply_unrolled<kCount>(sums, place, steps);
    } else {
      multiply_rolled<kCount>(sums, place, steps);
    }
    ptx::wgmma_wait<0>();
    ptx::keep(sums);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) sums[i] *= factor;
    __syncwarp();
    if constexpr (kUnrolled) {
      const unsigned last = static_cast<unsigned>(steps - 1) / kParts % kStages;
      release(last);
      for (unsigned s = last + 1; s < kStages; ++s) {
        ptx::mbarrier_wait(full(s), place.parity);
        release(s);
      }
      place.parity ^= 1;
    } else {
      release(place.index);
      place.advance();
    }
  }

  // Both leave the place in the round of the last stage. No function is shared by them: the compiler lets products
  // overlap only where a loop is left from right behind one.
  template <int kCount>
  __device__ __forceinline__ void multiply_unrolled(float (&sums)[kRows / 2], Place& place, int steps) {
    constexpr int kTogether = together(kCount);
    unsigned even[kTogether * 4], odd[kTogether * 4];
    const Format format;
    constexpr bool kOther = kCount > kFewest && kCount <= 64;  // of 96 rows the second of three loops
    const unsigned long long lhs_base = ptx::wgmma_base<kOther>(ptx::wgmma_operand(shared_));
    bool again = false;
    int left = steps;
#pragma unroll 1
    for (;;) {
#pragma unroll
      for (unsigned s = 0; s < kStages; ++s) {
        const unsigned long long lhs = lhs_base + s * (kStageBytes / 16);
        ptx::mbarrier_wait(full(s), place.parity);
        Codes<Format, kBack> codes[kParts];
#pragma unroll
        for (unsigned part = 0; part < kParts; ++part) codes[part] = load(s * kStageBytes + part * kNextPart);
#pragma unroll
        for (unsigned part = 0; part < kParts; ++part) {
#pragma unroll
          for (int i = 0; i < 4; i += kTogether) {
            const bool first = part == 0 && i == 0;
            const unsigned long long from = lhs + part * (kLhsBytes / 16) + 2 * i;
            if ((part * 4 + i) / kTogether % 2 == 0) {
              decode<Format, kTogether>(format, codes[part], i, even);
              begin<kCount>(sums, even, from, !first || s > 0 || again);
            } else {
              decode<Format, kTogether>(format, codes[part], i, odd);
              begin<kCount>(sums, odd, from, true);
            }
            if (first && s > 0) release(s - 1);
            if (first && s == 0 && again) release(kStages - 1);
          }
          if (--left == 0) goto done;
        }
      }
      again = true;
      place.parity ^= 1;
    }
  done:;
  }

  template <int kCount>
  __device__ __forceinline__ void multiply_rolled(float (&sums)[kRows / 2], Place& place, int steps) {
    constexpr int kTogether = together(kCount);
    unsigned even[kTogether * 4], odd[kTogether * 4];
    unsigned before = 0;  // the stage before
    const Format format;
    const unsigned long long lhs_base = ptx::wgmma_base(ptx::wgmma_operand(shared_));
#pragma unroll 1
    for (int step = 0;;) {
      const unsigned stage = place.index * kStageBytes;
      const unsigned long long lhs = lhs_base + __shfl_sync(~0u, stage / 16, 0);  // in uniform registers
      ptx::mbarrier_wait(full(place.index), place.parity);
      if constexpr (kTogether == 4) {
        const Codes<Format, kBack> first = load(stage), second = load(stage + kNextPart);
        decode<Format, 4>(format, first, 0, even);
        begin<kCount>(sums, even, lhs, step > 0);
        if (step > 0) release(before);
        if (++step == steps) break;
        decode<Format, 4>(format, second, 0, odd);
        begin<kCount>(sums, odd, lhs + kLhsBytes / 16, true);
      } else {
        const Codes<Format, kBack> codes = load(stage);
        decode<Format, 2>(format, codes, 0, even);
        begin<kCount>(sums, even, lhs, step > 0);
        if (step > 0) release(before);
        decode<Format, 2>(format, codes, 2, odd);
        begin<kCount>(sums, odd, lhs + 4, true);
      }
      if (++step == steps) break;
      before = place.index;
      place.advance();
    }
  }

  // What this thread reads of a piece, of the stage so many bytes further.
  __device__ __forceinline__ Codes<Format, kBack> load(unsigned stage) const {
    Codes<Format, kBack> codes;
    if constexpr (kBack) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {  // what four warps read, forward
        codes.words[i] = ptx::ld_shared(codes_ + stage + i * 512);
        codes.scales[i] = ptx::ld_shared(scales_ + stage + i * 8 * kScaleBytes);
      }
    } else {
      const int4 words = ptx::ld_shared4(codes_ + stage);
      codes.words[0] = static_cast<unsigned>(words.x), codes.words[1] = static_cast<unsigned>(words.y);
      codes.words[2] = static_cast<unsigned>(words.z), codes.words[3] = static_cast<unsigned>(words.w);
      ptx::ld_shared(scales_ + stage, codes.scales);
    }
    return codes;
  }

  // Begins these products and waits for those before.
  template <int kCount, int kWords>
  static __device__ __forceinline__ void begin(float (&sums)[kRows / 2], const unsigned (&words)[kWords],
                                               unsigned long long lhs, bool add) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      ptx::WgmmaRegisters<kCount>::run(sums, words + 4 * i, lhs + 2 * i, add || i > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }

  // This warp has read the stage.
  __device__ __forceinline__ void release(unsigned stage) {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty(stage));
  }

  // ---- epilogue: as many rows at a time as the second warpgroup, which stores nothing, has a buffer for ----
  static constexpr int kGivenRows = kResultBytes / (kSlice * 4) < kRows ? kResultBytes / (kSlice * 4) : kRows;
  // Of sum number i. Words: stores of 16 bytes would want the sums in certain registers, and products wait for each
  // other.
  static __device__ __forceinline__ unsigned given_at(unsigned buffer, int i) {
    return buffer + (i % (kGivenRows / 2) * kGroupThreads + static_cast<int>(threadIdx.x) % kGroupThreads) * 4;
  }
  __device__ __forceinline__ void tell(unsigned barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(shared_ + barrier);
  }

  __device__ __forceinline__ void give(const float (&sums)[kRows / 2], unsigned buffer, RingPlace<1>& given,
                                       int count) {
#pragma unroll
    for (int first = 0; first < kRows; first += kGivenRows) {
      if (first >= count) return;
      ptx::mbarrier_wait(shared_ + kTakenAt, given.parity ^ 1);
#pragma unroll
      for (int i = first / 2; i < (first + kGivenRows) / 2; ++i) ptx::st_shared(given_at(buffer, i), sums[i]);
      tell(kGivenAt);
      given.advance();
    }
  }

  __device__ __forceinline__ void apply_to_slice(const Epilogue& epilogue, Sums& sums, unsigned buffer,
                                                 RingPlace<1>& given, const RowUnit& unit, int count, int column,
                                                 int n) {
    const typename Epilogue::Group of_group = epilogue.group(unit.group);
    typename Epilogue::Row evaluated;
#pragma unroll
    for (int r = 0; r < kRows; r += 8) {
      if (r % (kPaired ? min(kGivenRows, 16) : 16) == 0 && r >= count) {
        if (kPaired && r % kGivenRows != 0) tell(kTakenAt), given.advance();
        return;
      }
      if (kPaired && r % kGivenRows == 0) ptx::mbarrier_wait(shared_ + kGivenAt, given.parity);
      if (r % kRowsOfWarp == 0) evaluated = row_of_lane(epilogue, of_group, unit, r);
      if constexpr (kPaired) {
#pragma unroll
        for (int i = r / 2; i < r / 2 + 4; ++i) sums[1][i] = __uint_as_float(ptx::ld_shared(given_at(buffer, i)));
      }
      float tile[4] = {};
      if constexpr (Epilogue::kTiles > 0) read_tile(epilogue, unit, r, column, n, tile);
      apply_to_eight<1, kRows>(epilogue, of_group, evaluated, sums, tile, unit, r, 0, column, n);
      if (kPaired && (r + 8) % kGivenRows == 0) tell(kTakenAt), given.advance();
    }
  }

  // An array at the places of the sums of eight rows: few rows, read as they lie.
  static __device__ __forceinline__ void read_tile(const Epilogue& epilogue, const RowUnit& unit, int r, int column,
                                                   int n, float (&tile)[4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, last = unit.row + unit.count - 1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile[i] = epilogue.tile(min(unit.row + r + lane % 4 * 2 + i % 2, last),
                              min(column + warp * 16 + lane / 4 + i / 2 * 8, n - 1));
    }
  }

  unsigned shared_;
  Units units_;
  unsigned codes_, scales_;  // of this thread in the first stage
};

}  // namespace jf::grouped
