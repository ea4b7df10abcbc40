// An epilogue of several results, which reads up to two arrays at their places and may also add up the columns of each
// row, for HopperRows:
//
//   struct Epilogue {
//     static constexpr int kSums = 1, kTiles = 2;      // and all else of hopper_epilogue.cuh, but for
//     static constexpr int kResults = 3;               // of one 16-bit type
//     static constexpr bool kFolds = true;             // a number more, of which the columns of a row are added up
//     static int tile_column(int tile);                // where in its array a tile begins
//     float tile(int which, int row, int column) const;
//     void at(const Group&, const Row&, const float (&sums)[1], const float (&tiles)[kTiles], int row, int column,
//             float (&made)[kResults + 1]) const;  // the last is what is added up
//   };
//
// Pieces of 32 rows by 64 columns: tensor copies bring those of the arrays, the results take their places, more of them
// places beside, and tensor copies take those away. The first two pieces of a unit come while its product is computed,
// each other one while the piece before is worked on. A warp adds up its 16 columns of both slices in order and leaves
// that in partial[number of the warp among all of the row, row], float32.
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
  static constexpr int kSlice = 64, kSlices = 2, kPieceRows = 32;
  static constexpr int kTiles = Epilogue::kTiles, kResults = Epilogue::kResults;
  static constexpr int kBuffers = kTiles > kResults ? kTiles : kResults;
  static constexpr unsigned kRowBytes = 128, kPieceBytes = kPieceRows * kRowBytes;
  using Store = HopperStore<Out, kPieceRows>;
  using Tile = typename Epilogue::Tile;
  static_assert(Epilogue::kSums == 1 && sizeof(Out) == 2 && sizeof(Tile) == 2, "all are pieces of rows of 128 bytes");
  static_assert(kRows % kPieceRows == 0, "a tile is cut into pieces");

 public:
  template <class>
  struct Buffers {
    alignas(1024) unsigned char bytes[2][kBuffers][kPieceBytes];
  };
  struct Memory {
    PlaceOfResult<Out> results[kResults];
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
  __device__ __forceinline__ void finish(const Epilogue& epilogue, const float (&sums)[kSlices][kRows / 2],
                                         const RowUnit& unit, int n, int m) {
    if (slices_ == 0) return;
    const typename Epilogue::Group of_group = epilogue.group(unit.group);
    int piece = 0;
#pragma unroll
    for (int first = 0; first < kRows; first += kPieceRows) {
      if (first >= unit.count) return;
      const typename Epilogue::Row evaluated = row_of_lane(epilogue, of_group, unit, first);
      float folded[kPieceRows / 4] = {};
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        const int column = unit.column + slice * kSlice;
        if (column >= n) break;
        // All have read the buffers of the piece before. Without arrays to wait for, all also know by this when the
        // copies of the piece before that are done.
        if (kTiles == 0 && piece > 1 && Store::thread() == 0) ptx::bulk_wait_read<1>();
        if (piece > 0) Store::meet();
        if (kTiles > 0 && piece > 0 && Store::thread() == 0 && piece + 1 < pieces_) {
          ptx::bulk_wait_read<0>();
          load(unit, piece + 1, place_.index ^ 1);
        }
        if constexpr (kTiles > 0) ptx::mbarrier_wait(full_ + place_.index * 8, place_.parity);
        const unsigned buffer = buffers_ + place_.index * (kBuffers * kPieceBytes);
        apply(epilogue, of_group, evaluated, sums[slice], folded, buffer, unit, first, column, n);
        ptx::fence_async_shared();
        Store::meet();
#pragma unroll
        for (int i = 0; i < kResults; ++i) {
          const auto& to = memory_.results[i];
          Store::deliver(buffer + i * kPieceBytes, *to.map, to.data, unit.row + first, unit.count - first, column, n,
                         to.pitch, to.first);
        }
        if (Store::thread() == 0) ptx::bulk_commit();
        place_.advance();
        ++piece;
      }
      if constexpr (Epilogue::kFolds) leave(folded, unit, first, m);
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
          alignas(16) Out chunks[kResults][kPerChunk];
#pragma unroll
          for (int c = 0; c < kPerChunk; ++c) {
            const float zeros[1] = {};
            float tiles[kTiles > 0 ? kTiles : 1] = {}, made[kResults + 1];
#pragma unroll
            for (int t = 0; t < kTiles; ++t) tiles[t] = epilogue.tile(t, row, i + c);
            epilogue.at(of_group, own, zeros, tiles, row, i + c, made);
#pragma unroll
            for (int r = 0; r < kResults; ++r) chunks[r][c] = Narrow<Out>::from(made[r]);
            if constexpr (Epilogue::kFolds) folded += made[kResults];
          }
#pragma unroll
          for (int r = 0; r < kResults; ++r) {
            const auto& to = memory.results[r];
            uint4 words;
            memcpy(&words, chunks[r], sizeof(words));
            ptx::st_global(to.data + static_cast<long long>(row) * to.pitch + to.first + i, words);
          }
        }
        if constexpr (Epilogue::kFolds) {
#pragma unroll
          for (int far = 16; far > 0; far /= 2) folded += __shfl_xor_sync(~0u, folded, far);
          const int partials = cdiv(n, kSlice * kSlices) * kWarps;
          for (int p = static_cast<int>(lane_id()); p < partials; p += 32) {
            memory.partial[static_cast<long long>(p) * ragged.m + row] = p == 0 ? folded : 0;
          }
        }
      }
    });
  }

 private:
  static constexpr int kWarps = 4;

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

  static __device__ __forceinline__ void apply(const Epilogue& epilogue, const typename Epilogue::Group& of_group,
                                               const typename Epilogue::Row& evaluated, const float (&sums)[kRows / 2],
                                               float (&folded)[kPieceRows / 4], unsigned buffer, const RowUnit& unit,
                                               int first, int column, int n) {
    const int lane = Store::thread() % 32, warp = Store::thread() / 32, last = unit.row + unit.count - 1;
    const unsigned own_matrices = buffer + Store::offset(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
#pragma unroll
    for (int r = 0; r < kPieceRows; r += 16) {
      if (first + r >= unit.count) return;
      const unsigned at_rows = own_matrices + r * kRowBytes;
      unsigned read[kTiles > 0 ? kTiles : 1][4], words[kResults][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) ptx::ldmatrix_x4_trans(read[t], at_rows + t * kPieceBytes);
#pragma unroll
      for (int w = 0; w < 4; ++w) {  // eight rows by 16 columns take two
        const int eight = w / 2, half = w % 2;
        const int exact = column + warp * 16 + lane / 4 + half * 8, to = min(exact, n - 1);
        float made[2][kResults + 1];
#pragma unroll
        for (int next = 0; next < 2; ++next) {
          const int within = r + eight * 8 + lane % 4 * 2 + next, here = min(unit.row + first + within, last);
          const auto own = shuffle(evaluated, within);
          float tiles[kTiles > 0 ? kTiles : 1] = {};
#pragma unroll
          for (int t = 0; t < kTiles; ++t) tiles[t] = next ? decode_high(Tile{}, read[t][w]) : decode_low(Tile{}, read[t][w]);
          const float sum[1] = {sums[(first + r) / 2 + w * 2 + next]};
          epilogue.at(of_group, own, sum, tiles, here, to, made[next]);
          if constexpr (Epilogue::kFolds) {
            folded[r / 4 + eight * 2 + next] += exact < n ? made[next][kResults] : 0.0f;
          }
        }
#pragma unroll
        for (int i = 0; i < kResults; ++i) words[i][w] = Narrow<Out>::pair(made[0][i], made[1][i]);
      }
#pragma unroll
      for (int i = 0; i < kResults; ++i) ptx::stmatrix_x4_trans(at_rows + i * kPieceBytes, words[i]);
    }
  }

  // One number of each row, of this warp's columns.
  __device__ __forceinline__ void leave(float (&folded)[kPieceRows / 4], const RowUnit& unit, int first, int m) const {
    const int lane = Store::thread() % 32, warp = Store::thread() / 32;
    float* to = memory_.partial + static_cast<long long>(unit.column / (kSlice * kSlices) * kWarps + warp) * m + unit.row;
#pragma unroll
    for (int i = 0; i < kPieceRows / 4; ++i) {
#pragma unroll
      for (int far = 4; far < 32; far *= 2) folded[i] += __shfl_xor_sync(~0u, folded[i], far);
      const int row = first + i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (lane < 4 && row < unit.count) to[row] = folded[i];
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
