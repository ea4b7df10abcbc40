// Results of one warpgroup as e4m3 with a float32 scale for each 128 columns of a row, for HopperRows: what `quantize`
// makes of the 16-bit results, which are never stored. Rows of no group are zeros, whatever the epilogue makes of them.
//
// Sums become rows in shared memory, rounded, 64 rows by 64 columns at a time; eight lanes read a row again, find its
// largest magnitude and store its elements. Where results are made of two sums, a warpgroup has 64 columns of each
// scale and that of the cluster's other block with the same rows has the others: they tell each other what they found.
#pragma once

#include "codegen/cuda_lanes.cuh"
#include "grouped/cuda/hopper_schedule.cuh"
#include "grouped/cuda/hopper_store.cuh"
#include "grouped/cuda/magnitudes.cuh"
#include "grouped/cuda/ptx_quantize.cuh"

namespace jf::grouped {

template <class Out, int kRows, bool kPaired>
class HopperQuantize;

// Where they are stored: [m, n] and [m, n / 128]; n is a multiple of 128.
struct QuantizedRows {
  static constexpr bool kQuantizes = true;
  static constexpr int kColumns = 128;  // of a scale
  template <class Out, int kRows, bool kPaired>
  using Warpgroup = HopperQuantize<Out, kRows, kPaired>;

  unsigned char* data;
  float* scales;

  // One warp: every kShare-th of the padding rows, from the `share`-th on.
  template <bool kHasStarts>
  __device__ __forceinline__ void padding(const Ragged& ragged, int n, unsigned share, unsigned shares) const {
    store_padding<kHasStarts>(ragged, data, n, share, shares);
    const int across = n / kColumns;
    for_padding<kHasStarts>(ragged, [&](int begin, int end) {
      for (int row = begin + static_cast<int>(share); row < end; row += static_cast<int>(shares)) {
        for (int i = static_cast<int>(lane_id()); i < across; i += 32) {
          scales[static_cast<long long>(row) * across + i] = 1;
        }
      }
    });
  }
};

template <class Out, int kRows, bool kPaired>
class HopperQuantize {
  static constexpr int kColumns = QuantizedRows::kColumns;
  static constexpr int kSlice = 64, kSlices = kPaired ? 1 : 2, kPieceRows = 64;
  static constexpr int kAcross = 8, kApart = 128 / kAcross;  // lanes of a row, rows between those of a thread
  static constexpr unsigned kPieceBytes = kPieceRows * 128;
  using Store = HopperStore<Out, kRows>;
  static_assert(sizeof(Out) == 2, "a slice is 128 bytes wide");

 public:
  // `buffers`: a HopperStore's. `told`: two barriers of one arrival, kPaired only.
  __device__ __forceinline__ HopperQuantize(unsigned buffers, unsigned told, const QuantizedRows& to)
      : buffers_(buffers), told_(told), to_(to) {}

  // `turn`: how many units were stored before.
  __device__ __forceinline__ void results(const float (&sums)[2][kRows / 2], const RowUnit& unit, unsigned turn,
                                          int n) const {
    if (unit.column >= n) return;  // both blocks, if they are a pair
    if constexpr (kPaired) {
      // Two of all, in turn: what one turn brings may still be awaited or read in the next, but not in the one behind,
      // since each block has told the other something before it comes there.
      const unsigned parity = turn & 1, other = ptx::cluster_rank() ^ 1, told = told_ + parity * 8;
      const unsigned there = ptx::in_cluster(place(parity), other);
      pieces(sums, unit, [&](const Words& words, int row, int across) {
        const f32 most = largest(words);
        if (across == 0) ptx::st_cluster(there + row * 4, most);
      });
      Store::meet();
      if (Store::thread() == 0) ptx::mbarrier_publish_cluster(ptx::in_cluster(told, other));
      ptx::mbarrier_wait_cluster(told, turn / 2 & 1);
      // From the sums once more: kept beside them, the words would find no registers.
      pieces(sums, unit, [&](const Words& words, int row, int across) {
        const f32 theirs = bits_as<f32>(ptx::ld_shared(place(parity) + row * 4));
        store(words, ptx::max_nan(largest(words), theirs), unit, row, across, n);
      });
    } else {
      pieces(sums, unit,
             [&](const Words& words, int row, int across) { store(words, largest(words), unit, row, across, n); });
    }
  }

 private:
  using Words = u32[kSlices * 4];  // eight columns of each slice

  // Where the other block tells the magnitudes of rows: behind the buffer that pieces of one slice take.
  __device__ __forceinline__ unsigned place(unsigned parity) const {
    return buffers_ + kPieceBytes + parity * (kRows * 4);
  }

  // Calls visit(words, row of the tile, lane of those that have it) with all that this thread has of the rows.
  template <class Visit>
  __device__ __forceinline__ void pieces(const float (&sums)[2][kRows / 2], const RowUnit& unit, Visit visit) const {
    const int across = Store::thread() % kAcross, down = Store::thread() / kAcross;
#pragma unroll
    for (int first = 0; first < kRows; first += kPieceRows) {
      if (first >= unit.count) return;
      Store::meet();  // all have read the piece before
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) Store::put(buffers_ + slice * kPieceBytes, sums[slice], first);
      Store::meet();
#pragma unroll
      for (int row = 0; row < kPieceRows; row += kApart) {
        Words words;
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
          const int4 chunk = ptx::ld_shared4(buffers_ + slice * kPieceBytes + Store::offset(row + down, across));
          words[slice * 4] = u32(chunk.x), words[slice * 4 + 1] = u32(chunk.y);
          words[slice * 4 + 2] = u32(chunk.z), words[slice * 4 + 3] = u32(chunk.w);
        }
        visit(words, first + row + down, across);
      }
    }
  }

  // Of eight lanes; NaN where there is one.
  static __device__ __forceinline__ f32 largest(const Words& words) {
    u32 most = 0;
#pragma unroll
    for (const u32 word : words) most = Magnitudes<Out>::most(most, word);
#pragma unroll
    for (int far = 1; far < kAcross; far *= 2) most = Magnitudes<Out>::most(most, __shfl_xor_sync(~0u, most, far));
    return ptx::max_nan(decode_low(Out{}, most), decode_high(Out{}, most));
  }

  // A row of the tile, of which the thread has eight columns in each slice.
  __device__ __forceinline__ void store(const Words& words, f32 most, const RowUnit& unit, int row, int across,
                                        int n) const {
    if (row >= unit.count) return;
    f32 inverse;
    const f32 scale = scale_of(most, inverse);
    const long long at = unit.row + row;
    if (across == 0 && unit.column % kColumns == 0) to_.scales[at * (n / kColumns) + unit.column / kColumns] = scale;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      const auto pair = [&](int i) {
        const u32 word = words[slice * 4 + i];
        return ptx::e4m3x2_of_scaled(decode_low(Out{}, word) * inverse, decode_high(Out{}, word) * inverse);
      };
      const uint2 made = {pair(0) | pair(1) << 16, pair(2) | pair(3) << 16};
      *reinterpret_cast<uint2*>(to_.data + at * n + unit.column + slice * kSlice + across * 8) = made;
    }
  }

  unsigned buffers_, told_;
  const QuantizedRows to_;
};

}  // namespace jf::grouped
