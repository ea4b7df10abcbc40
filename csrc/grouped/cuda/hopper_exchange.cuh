// An epilogue that reads an array at the places of its result: tensor copies bring the array's elements, 64 rows by 64
// columns at a time, into the buffer from where the results that replace them are stored.
//
// The first two pieces of a unit come while its product is computed, each other one while the piece before is worked
// on.
#pragma once

#include "grouped/cuda/hopper_epilogue.cuh"
#include "grouped/cuda/hopper_store.cuh"
#include "grouped/cuda/ring.cuh"

namespace jf::grouped {

// One warpgroup's. `full`: its two barriers, of one arrival each.
template <class Out, int kRows, class Epilogue, bool kReads = (Epilogue::kTiles > 0 && !kSeveral<Epilogue>)>
class HopperExchange {
  using Store = HopperStore<Out, kRows>;
  using Tile = typename Epilogue::Tile;
  static_assert(sizeof(Out) == 2 && sizeof(Tile) == 2, "both are pieces of 64 rows of 128 bytes");
  static constexpr int kSlice = 64, kPieceRows = 64, kResults = Epilogue::kSums == 2 ? 1 : 2;
  static constexpr unsigned kRowBytes = 128, kPieceBytes = kPieceRows * kRowBytes;

 public:
  __device__ __forceinline__ HopperExchange(unsigned buffers, unsigned full, const TensorMap* from)
      : buffers_(buffers), full_(full), from_(from) {}

  // Before the product of a unit, after all of the one before.
  __device__ __forceinline__ void begin(const RowUnit& unit, int n) {
    Store::meet();
    const int slices = unit.column >= n ? 0 : unit.column + kSlice < n ? kResults : 1;
    pieces_ = cdiv(unit.count, kPieceRows) * slices;
    if (Store::thread() != 0 || pieces_ == 0) return;
    ptx::bulk_wait_read<0>();
    load(unit, 0, place_.index);
    if (pieces_ > 1) load(unit, 1, place_.index ^ 1);
  }

  __device__ __forceinline__ void finish(const Epilogue& epilogue, float (&sums)[2][kRows / 2],
                                         const TensorMap& out_map, Out* out, const RowUnit& unit, int n) {
    const typename Epilogue::Group of_group = epilogue.group(unit.group);
    int piece = 0;
#pragma unroll
    for (int slice = 0; slice < kResults; ++slice) {
      const int column = unit.column + slice * kSlice;
      if (column >= n) return;
#pragma unroll
      for (int first = 0; first < kRows; first += kPieceRows) {
        if (first >= unit.count) break;
        if (piece > 0) {
          Store::meet();  // all have read the buffer of the piece before
          if (Store::thread() == 0 && piece + 1 < pieces_) {
            ptx::bulk_wait_read<0>();
            load(unit, piece + 1, place_.index ^ 1);
          }
        }
        ptx::mbarrier_wait(full_ + place_.index * 8, place_.parity);
        const unsigned buffer = buffers_ + place_.index * kPieceBytes;
        apply(epilogue, of_group, sums, buffer, unit, first, slice, column, n);
        Store::put(buffer, sums[slice], first);
        Store::send(buffer, out_map, out, unit.row + first, unit.count - first, column, n);
        place_.advance();
        ++piece;
      }
    }
  }

 private:
  // One thread.
  __device__ __forceinline__ void load(const RowUnit& unit, int piece, unsigned index) {
    const int down = cdiv(unit.count, kPieceRows), slice = piece / down;
    ptx::mbarrier_arrive_expect(full_ + index * 8, kPieceBytes);
    ptx::tile_load(buffers_ + index * kPieceBytes, from_, full_ + index * 8,
                   unit.column + slice * kSlice + Epilogue::kTileColumn,
                   unit.row + (piece - slice * down) * kPieceRows);
  }

  static __device__ __forceinline__ void apply(const Epilogue& epilogue, const typename Epilogue::Group& of_group,
                                               float (&sums)[2][kRows / 2], unsigned buffer, const RowUnit& unit,
                                               int first, int slice, int column, int n) {
    const int lane = Store::thread() % 32, warp = Store::thread() / 32;
    const unsigned from = buffer + Store::offset(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
    typename Epilogue::Row evaluated;
#pragma unroll
    for (int r = first; r < first + kPieceRows; r += 16) {
      if (r >= unit.count) return;
      if (r % kRowsOfWarp == 0) evaluated = row_of_lane(epilogue, of_group, unit, r);
      unsigned words[4];
      ptx::ldmatrix_x4_trans(words, from + (r - first) * kRowBytes);
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        float tile[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          tile[half * 2] = decode_low(Tile{}, words[eight * 2 + half]);
          tile[half * 2 + 1] = decode_high(Tile{}, words[eight * 2 + half]);
        }
        apply_to_eight<1, kRows>(epilogue, of_group, evaluated, sums, tile, unit, r + eight * 8, slice, column, n);
      }
    }
  }

  unsigned buffers_, full_;
  const TensorMap* from_;
  RingPlace<2> place_;
  int pieces_ = 0;  // of the unit
};

// For an epilogue that reads none.
template <class Out, int kRows, class Epilogue>
class HopperExchange<Out, kRows, Epilogue, false> {
 public:
  __device__ __forceinline__ HopperExchange(unsigned, unsigned, const TensorMap*) {}
};

}  // namespace jf::grouped
