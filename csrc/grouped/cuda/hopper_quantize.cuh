// Results of one warpgroup in few bits, with a scale for each so many columns of a row, for HopperRows: what `quantize`
// makes of the 16-bit results, which are never stored. Rows of no group are zeros, whatever the epilogue makes of them.
//
// Sums become rows in shared memory, rounded, 64 rows by 64 columns at a time; eight lanes read a row again, and those
// that have the columns of a scale find their largest magnitude. Where results are made of two sums, a warpgroup has 64
// columns: of a scale of 128 the cluster's other block with the same rows has the others, and they tell each other what
// they found.
#pragma once

#include "codegen/cuda_lanes.cuh"
#include "grouped/cuda/hopper_schedule.cuh"
#include "grouped/cuda/hopper_store.cuh"
#include "grouped/cuda/output_formats.cuh"

namespace jf::grouped {

template <class Format, class Out, int kRows, bool kPaired>
class HopperQuantize;

// Where they are stored: elements [m, n] and scales [m, n / Format::kColumns]; n is a multiple of that.
template <class Format>
struct QuantizedRows {
  static constexpr bool kQuantizes = true;
  static constexpr int kScaleColumns = Format::kColumns;
  static constexpr int kOfByte = 8 / Format::kBits;  // elements
  template <class Out, int kRows, bool kPaired>
  using Warpgroup = HopperQuantize<Format, Out, kRows, kPaired>;

  unsigned char* data;
  typename Format::Scale* scales;

  // One warp: every kShare-th of the padding rows, from the `share`-th on.
  template <bool kHasStarts>
  __device__ __forceinline__ void padding(const Ragged& ragged, int n, unsigned share, unsigned shares) const {
    if constexpr (kScaleColumns / kOfByte % 16 == 0) {
      store_padding<kHasStarts>(ragged, data, n / kOfByte, share, shares);
    } else {
      store_padding<kHasStarts, uint2>(ragged, data, n / kOfByte, share, shares);
    }
    const int across = n / kScaleColumns;
    for_padding<kHasStarts>(ragged, [&](int begin, int end) {
      for (int row = begin + static_cast<int>(share); row < end; row += static_cast<int>(shares)) {
        for (int i = static_cast<int>(lane_id()); i < across; i += 32) {
          scales[static_cast<long long>(row) * across + i] = Format::kOfZeros;
        }
      }
    });
  }
};

template <class Format, class Out, int kRows, bool kPaired>
class HopperQuantize {
  static constexpr int kColumns = Format::kColumns;
  static constexpr int kSlice = 64, kSlices = kPaired ? 1 : 2, kPieceRows = 64;
  static constexpr int kAcross = 8, kApart = 128 / kAcross;  // lanes of a row, rows between those of a thread
  // Scales of what a thread has of a row, one of each slice or of all; lanes that have the columns of one.
  static constexpr bool kOfSlice = kColumns <= kSlice;
  static constexpr int kScales = kOfSlice ? kSlices : 1, kLanes = kOfSlice ? kColumns / 8 : kAcross;
  static constexpr bool kTells = kSlice * kSlices < kColumns;
  static constexpr unsigned kPieceBytes = kPieceRows * 128;
  using To = QuantizedRows<Format>;
  using Store = HopperStore<Out, kRows>;
  static_assert(sizeof(Out) == 2, "a slice is 128 bytes wide");
  static_assert(kOfSlice ? kSlice % kColumns == 0 : kColumns == 128, "slices have whole scales, or two one");

 public:
  // `buffers`: a HopperStore's. `told`: two barriers of one arrival, kTells only.
  __device__ __forceinline__ HopperQuantize(unsigned buffers, unsigned told, const To& to)
      : buffers_(buffers), told_(told), to_(to) {}

  // `turn`: how many units were stored before.
  __device__ __forceinline__ void results(const float (&sums)[2][kRows / 2], const RowUnit& unit, unsigned turn,
                                          int n) const {
    if (unit.column >= n) return;  // both blocks, if they are a pair
    if constexpr (kTells) {
      // Two of all, in turn: what one turn brings may still be awaited or read in the next, but not in the one behind,
      // since each block has told the other something before it comes there.
      const unsigned parity = turn & 1, other = ptx::cluster_rank() ^ 1, told = told_ + parity * 8;
      const unsigned there = ptx::in_cluster(place(parity), other);
      pieces(sums, unit, [&](const Words& words, int row, int across) {
        const Most most = largest(words);
        if (across == 0) ptx::st_cluster(there + row * 4, most.of[0]);
      });
      Store::meet();
      if (Store::thread() == 0) ptx::mbarrier_publish_cluster(ptx::in_cluster(told, other));
      ptx::mbarrier_wait_cluster(told, turn / 2 & 1);
      // From the sums once more: kept beside them, the words would find no registers.
      pieces(sums, unit, [&](const Words& words, int row, int across) {
        const f32 theirs = bits_as<f32>(ptx::ld_shared(place(parity) + row * 4));
        store(words, {ptx::max_nan(largest(words).of[0], theirs)}, unit, row, across, n);
      });
    } else {
      pieces(sums, unit,
             [&](const Words& words, int row, int across) { store(words, largest(words), unit, row, across, n); });
    }
  }

 private:
  using Words = u32[kSlices * 4];  // eight columns of each slice
  struct Most {
    f32 of[kScales];
  };

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

  // Of the lanes of a scale; NaN where there is one.
  static __device__ __forceinline__ Most largest(const Words& words) {
    constexpr int kWords = kSlices * 4 / kScales;
    u32 own[kScales] = {};
#pragma unroll
    for (int i = 0; i < kSlices * 4; ++i) own[i / kWords] = Magnitudes<Out>::most(own[i / kWords], words[i]);
    u32 most = own[0];
    // Two scales go through the lanes in one word.
    if constexpr (kScales == 2) {
      most = Magnitudes<Out>::most(own[0] & 0xffff | own[1] << 16, own[0] >> 16 | own[1] & 0xffff0000u);
    }
#pragma unroll
    for (int far = 1; far < kLanes; far *= 2) most = Magnitudes<Out>::most(most, __shfl_xor_sync(~0u, most, far));
    const f32 low = decode_low(Out{}, most), high = decode_high(Out{}, most);
    if constexpr (kScales == 2) {
      return {low, high};
    } else {
      return {ptx::max_nan(low, high)};
    }
  }

  // A row of the tile, of which the thread has eight columns in each slice.
  __device__ __forceinline__ void store(const Words& words, const Most& most, const RowUnit& unit, int row, int across,
                                        int n) const {
    if (row >= unit.count) return;
    const long long at = unit.row + row;
    f32 inverse[kScales];
    inverse[0] = store_scale(most.of[0], at, unit.column, across, n);
    if constexpr (kScales == 2) inverse[1] = store_scale(most.of[1], at, unit.column + kSlice, across, n);
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if (kOfSlice && !inside(unit.column + slice * kSlice, across, n)) continue;
      f32 scaled[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const u32 word = words[slice * 4 + i];
        scaled[i * 2] = decode_low(Out{}, word) * inverse[slice % kScales];
        scaled[i * 2 + 1] = decode_high(Out{}, word) * inverse[slice % kScales];
      }
      const auto first = static_cast<u64>(at * n + unit.column + slice * kSlice + across * 8);
      *reinterpret_cast<typename Format::Eight*>(to_.data + first / To::kOfByte) = Format::eight(scaled);
    }
  }

  // That of the thread's columns in the slice from `column` on, or in all; returns its inverse.
  __device__ __forceinline__ f32 store_scale(f32 most, long long at, int column, int across, int n) const {
    f32 inverse;
    const auto scale = Format::scale_of(most, inverse);
    if constexpr (!kOfSlice) {
      if (across == 0 && column % kColumns == 0) to_.scales[at * (n / kColumns) + column / kColumns] = scale;
    } else if (across % kLanes == 0 && inside(column, across, n)) {
      to_.scales[at * (n / kColumns) + column / kColumns + across / kLanes] = scale;
    }
    return inverse;
  }

  // Whether there are the eight columns of a lane; the last tile may be narrower.
  static __device__ __forceinline__ bool inside(int column, int across, int n) { return column + across * 8 < n; }

  unsigned buffers_, told_;
  const To to_;
};

}  // namespace jf::grouped
