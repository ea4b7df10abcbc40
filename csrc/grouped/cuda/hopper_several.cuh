// An epilogue of several results, which reads up to two arrays at their places and may also add up the columns of each
// row, for HopperRows:
//
//   struct Epilogue {
//     static constexpr int kSums = 1, kTiles = 2;      // and all else of hopper_epilogue.cuh, but for
//     static constexpr int kResults = 3;               // of one 16-bit type
//     static constexpr bool kKeeps = false;            // whether the sums, rounded to it, are kSums results more
//     static constexpr bool kFolds = true;             // a number more, of which the columns of a row are added up
//     static int tile_column(int tile);                // where in its array a tile begins
//     float tile(int which, int row, int column) const;
//     void at(const Group&, const Row&, const float (&sums)[kSums], const float (&tiles)[kTiles], int row, int column,
//             float (&made)[kResults + 1]) const;  // the last is what is added up
//   };
//
// Pieces of 32 rows by 64 columns: tensor copies bring those of the arrays, the sums are put beside them, rounded, the
// results replace what they are made of and tensor copies take them away. Sums in registers would need the epilogue's
// code once for each, which no instruction cache holds (H200: 1.4 to 2.8 times the time of the product); here it is one
// loop. The first two pieces of a unit come while its product is computed, each other one while the piece before is
// worked on. Numbers to be added up leave 64 columns together, in partial[number of these, row], float32.
#pragma once

#include "grouped/cuda/hopper_epilogue.cuh"
#include "grouped/cuda/hopper_store.cuh"
#include "grouped/cuda/ring.cuh"

namespace jf::grouped {

// Of one result: n columns from `first` on of an array with `pitch`.
template <class Out>
struct PlaceOfResult {
  const TensorMap* map;
  Out* data;
  int pitch, first;
};

// One warpgroup's. `full`: its two barriers, of one arrival each.
template <class Out, int kRows, class Epilogue, bool kAny = kSeveral<Epilogue>>
class HopperSeveral {
  static constexpr int kSums = Epilogue::kSums, kTiles = Epilogue::kTiles, kResults = Epilogue::kResults;
  static constexpr bool kKeeps = Epilogue::kKeeps;
  static constexpr int kSlice = 64, kSlices = kSums == 2 ? 1 : 2, kPieceRows = 32;
  static constexpr int kStored = kResults + (kKeeps ? kSums : 0);
  // The arrays', then the sums', which results replace unless they are kept; then results that have none to replace.
  static constexpr int kRead = kTiles + kSums, kReplaced = kKeeps ? kTiles : kRead;
  static constexpr int kBuffers = kRead + (kResults > kReplaced ? kResults - kReplaced : 0);
  static constexpr int kTogether = 4, kAcross = kSlice / kTogether;  // columns of a thread
  static constexpr unsigned kRowBytes = 128, kPieceBytes = kPieceRows * kRowBytes;
  using Store = HopperStore<Out, kPieceRows>;
  using Tile = typename Epilogue::Tile;
  static_assert(sizeof(Out) == 2 && sizeof(Tile) == 2, "all are pieces of rows of 128 bytes");
  static_assert(kRows % kPieceRows == 0, "a tile is cut into pieces");

 public:
  template <class>
  struct Buffers {
    alignas(1024) unsigned char bytes[2][kBuffers][kPieceBytes];
  };
  struct Memory {
    PlaceOfResult<Out> results[kStored];
    const TensorMap* tiles[kTiles > 0 ? kTiles : 1];
    float* partial;
  };

  __device__ __forceinline__ HopperSeveral(unsigned buffers, unsigned full, const Memory& memory)
      : buffers_(buffers), full_(full), memory_(memory) {}

  // Before the product of a unit, after all of the one before.
  __device__ __forceinline__ void begin(const RowUnit& unit, int n) {
    Store::meet();
    slices_ = unit.column >= n ? 0 : unit.column + kSlice < n ? kSlices : 1;
    pieces_ = cdiv(unit.count, kPieceRows) * slices_;
    if (Store::thread() != 0 || pieces_ == 0) return;
    ptx::bulk_wait_read<0>();
    load(unit, 0, place_.index);
    if (pieces_ > 1) load(unit, 1, place_.index ^ 1);
  }

  // `m`: rows of everything.
  __device__ __forceinline__ void finish(const Epilogue& epilogue, const float (&sums)[2][kRows / 2],
                                         const RowUnit& unit, int n, int m) {
    const typename Epilogue::Group of_group = epilogue.group(unit.group);
    typename Epilogue::Row evaluated;
#pragma unroll 1
    for (int piece = 0; piece < pieces_; ++piece) {
      const int down = piece / slices_, slice = piece - down * slices_;
      const int first = down * kPieceRows, column = unit.column + slice * kSlice;
      if (slice == 0) evaluated = row_of_lane(epilogue, of_group, unit, first);
      // All have read the buffers of the piece before. Without arrays to wait for, all also know by this when the
      // copies of the piece before that are done.
      if (kTiles == 0 && piece > 1 && Store::thread() == 0) ptx::bulk_wait_read<1>();
      if (kTiles == 0 || piece > 0) Store::meet();
      if (kTiles > 0 && piece > 0 && Store::thread() == 0 && piece + 1 < pieces_) {
        ptx::bulk_wait_read<0>();
        load(unit, piece + 1, place_.index ^ 1);
      }
      if constexpr (kTiles > 0) ptx::mbarrier_wait(full_ + place_.index * 8, place_.parity);
      const unsigned buffer = buffers_ + place_.index * (kBuffers * kPieceBytes);
#pragma unroll
      for (int i = 0; i < kSlices * (kRows / kPieceRows); ++i) {
        if (slice != i % kSlices || down != i / kSlices) continue;
#pragma unroll
        for (int s = 0; s < kSums; ++s) {
          Store::put(buffer + (kTiles + s) * kPieceBytes, sums[i % kSlices + s], i / kSlices * kPieceRows);
        }
      }
      Store::meet();
      apply(epilogue, of_group, evaluated, buffer, unit, first, column, n, m);
      ptx::fence_async_shared();
      Store::meet();
#pragma unroll
      for (int i = 0; i < kStored; ++i) {
        const auto& to = memory_.results[i];
        const int from = i < kResults ? buffer_of(i) : kTiles + i - kResults;
        Store::deliver(buffer + from * kPieceBytes, *to.map, to.data, unit.row + first, unit.count - first, column, n,
                       to.pitch, to.first);
      }
      if (Store::thread() == 0) ptx::bulk_commit();
      place_.advance();
    }
  }

  // One warp: every kShare-th of the padding rows, from the `share`-th on.
  template <bool kHasStarts>
  static __device__ __forceinline__ void padding(const Epilogue& epilogue, const Ragged& ragged, const Memory& memory,
                                                 int n, unsigned share, unsigned shares) {
    constexpr int kPerChunk = 16 / static_cast<int>(sizeof(Out));
    const auto of_group = epilogue.group(ragged.groups);
    for_padding<kHasStarts>(ragged, [&](int begin, int end) {
      for (int row = begin + static_cast<int>(share); row < end; row += static_cast<int>(shares)) {
        const auto own = epilogue.row(of_group, row);
        float folded = 0;
        for (int i = static_cast<int>(lane_id()) * kPerChunk; i < n; i += 32 * kPerChunk) {
          alignas(16) Out chunks[kStored][kPerChunk];
#pragma unroll
          for (int c = 0; c < kPerChunk; ++c) {
            const float zeros[kSums] = {};
            float tiles[kTiles > 0 ? kTiles : 1] = {}, made[kResults + 1];
#pragma unroll
            for (int t = 0; t < kTiles; ++t) tiles[t] = epilogue.tile(t, row, i + c);
            epilogue.at(of_group, own, zeros, tiles, row, i + c, made);
#pragma unroll
            for (int r = 0; r < kStored; ++r) chunks[r][c] = Narrow<Out>::from(r < kResults ? made[r] : 0);
            if constexpr (Epilogue::kFolds) folded += made[kResults];
          }
#pragma unroll
          for (int r = 0; r < kStored; ++r) {
            const auto& to = memory.results[r];
            uint4 words;
            memcpy(&words, chunks[r], sizeof(words));
            ptx::st_global(to.data + static_cast<long long>(row) * to.pitch + to.first + i, words);
          }
        }
        if constexpr (Epilogue::kFolds) {
#pragma unroll
          for (int far = 16; far > 0; far /= 2) folded += __shfl_xor_sync(~0u, folded, far);
          const int partials = cdiv(n, kSlice);
          for (int p = static_cast<int>(lane_id()); p < partials; p += 32) {
            memory.partial[static_cast<long long>(p) * ragged.m + row] = p == 0 ? folded : 0;
          }
        }
      }
    });
  }

 private:
  static constexpr int buffer_of(int result) { return result < kReplaced ? result : result + kRead - kReplaced; }

  // One thread. Slices of 32 rows before the next rows.
  __device__ __forceinline__ void load(const RowUnit& unit, int piece, unsigned index) {
    if constexpr (kTiles > 0) {
      const int down = piece / slices_, slice = piece - down * slices_;
      ptx::mbarrier_arrive_expect(full_ + index * 8, kTiles * kPieceBytes);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        ptx::tile_load(buffers_ + (index * kBuffers + i) * kPieceBytes, memory_.tiles[i], full_ + index * 8,
                       unit.column + slice * kSlice + Epilogue::tile_column(i), unit.row + down * kPieceRows);
      }
    }
  }

  // A thread's columns of every eighth row.
  __device__ __forceinline__ void apply(const Epilogue& epilogue, const typename Epilogue::Group& of_group,
                                        const typename Epilogue::Row& evaluated, unsigned buffer, const RowUnit& unit,
                                        int first, int column, int n, int m) const {
    const int part = Store::thread() % kAcross, last = unit.row + unit.count - 1;
    const int exact = column + part * kTogether, to = min(exact, n - kTogether);
#pragma unroll 1
    for (int r = Store::thread() / kAcross; r < kPieceRows; r += 128 / kAcross) {
      const auto own = shuffle(evaluated, r);
      const int here = min(unit.row + first + r, last);
      const unsigned at = buffer + Store::offset(r, part / 2) + part % 2 * 8;
      uint2 read[kRead], words[kResults];
#pragma unroll
      for (int i = 0; i < kRead; ++i) read[i] = ptx::ld_shared2(at + i * kPieceBytes);
      float folded = 0;
#pragma unroll
      for (int pair = 0; pair < kTogether / 2; ++pair) {
        float made[2][kResults + 1];
#pragma unroll
        for (int next = 0; next < 2; ++next) {
          const auto value = [&](auto type, int i) {
            const unsigned word = pair ? read[i].y : read[i].x;
            return next ? decode_high(type, word) : decode_low(type, word);
          };
          float tiles[kTiles > 0 ? kTiles : 1] = {};
#pragma unroll
          for (int i = 0; i < kTiles; ++i) tiles[i] = value(Tile{}, i);
          float sums[kSums];
#pragma unroll
          for (int i = 0; i < kSums; ++i) sums[i] = value(Out{}, kTiles + i);
          epilogue.at(of_group, own, sums, tiles, here, to + pair * 2 + next, made[next]);
          if constexpr (Epilogue::kFolds) folded += made[next][kResults];
        }
#pragma unroll
        for (int i = 0; i < kResults; ++i) {
          (pair ? words[i].y : words[i].x) = Narrow<Out>::pair(made[0][i], made[1][i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kResults; ++i) ptx::st_shared(at + buffer_of(i) * kPieceBytes, words[i]);
      if constexpr (Epilogue::kFolds) {
        if (exact >= n) folded = 0;
#pragma unroll
        for (int far = kAcross / 2; far > 0; far /= 2) folded += __shfl_xor_sync(~0u, folded, far);
        if (part == 0 && first + r < unit.count) {
          memory_.partial[static_cast<long long>(column / kSlice) * m + unit.row + first + r] = folded;
        }
      }
    }
  }

  unsigned buffers_, full_;
  const Memory memory_;
  RingPlace<2> place_;
  int pieces_ = 0, slices_ = 0;  // of the unit
};

// Of one result.
template <class Out, int kRows, class Epilogue>
class HopperSeveral<Out, kRows, Epilogue, false> {
 public:
  template <class Shared>
  struct Buffers : Shared {};
  struct Memory {};
  __device__ __forceinline__ HopperSeveral(unsigned, unsigned, const Memory&) {}
};

}  // namespace jf::grouped
