// Which tile a cluster computes next, found by one warp from the extents: no host read, no workspace.
//
// Entries are the padding before the first group, then each group with the padding behind it. An entry has units: one
// for each row tile and stretch of columns. Units are numbered through all entries; a warp that asks for growing
// numbers walks the entries once, 32 at a time.
#pragma once

#include "grouped/cuda/ragged.cuh"

namespace jf::grouped {

// What the copying and the multiplying warps are told: rows [row, row + count) of a group, columns from `column` on.
struct RowUnit {
  static constexpr int kPadding = -1, kEnd = -2;
  int group;
  int row;
  int count;
  int column;
};

// kRows: most rows of a tile, else a multiple of kStep. kColumns: of a unit.
template <bool kHasStarts, int kRows, int kStep, int kColumns>
class RowSchedule {
 public:
  __device__ RowSchedule(const Ragged& ragged, int n) : ragged_(ragged), across_(cdiv(n, kColumns)) { look(); }

  // Unit number `wanted`, at least that of the call before: in the lane that returns true.
  __device__ bool find(unsigned wanted, RowUnit& unit) {
    while (wanted - done_ >= total_) {
      done_ += total_;
      rows_ = __shfl_sync(~0u, span_.end, 31);
      first_ += 32;
      if (first_ > ragged_.groups) {
        unit = {RowUnit::kEnd, 0, 0, 0};
        return lane() == 0;
      }
      look();
    }
    const unsigned index = wanted - done_ - before_;
    if (index >= own_) return false;
    unit = index < group_units_ ? group_unit(index) : padding_unit(index - group_units_);
    return true;
  }

 private:
  // Tiles that run together should share rows of lhs and columns of rhs in L2: bands of so many row tiles, and in a
  // band down each stretch of columns before the next.
  static constexpr unsigned kBand = 8;

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  // This lane's entry of the 32 that begin at first_.
  __device__ void look() {
    const int group = first_ + lane() - 1;
    const bool is_group = 0 <= group && group < ragged_.groups;
    const unsigned limit = static_cast<unsigned>(ragged_.m);
    const unsigned rows = sum(is_group ? ragged_.extent(group) : 0, limit);
    const unsigned left = __shfl_up_sync(~0u, rows, 1);
    const unsigned begin = min(rows_ + (lane() == 0 ? 0 : left), limit);
    if (is_group) {
      span_ = span<kHasStarts>(ragged_, group, static_cast<int>(begin));
    } else if (group < 0) {
      span_ = {0, 0, ragged_.groups == 0 ? ragged_.m : kHasStarts ? ragged_.start(0) : 0};
    } else {
      span_ = {ragged_.m, ragged_.m, ragged_.m};
    }
    const auto tiles = [](int begin, int end) { return static_cast<unsigned>(cdiv(max(end - begin, 0), kRows)); };
    tiles_ = tiles(span_.begin, span_.end);
    group_units_ = tiles_ * across_;
    own_ = group_units_ + tiles(span_.end, span_.next) * across_;
    constexpr unsigned kMost = 0x7fffffff;
    const unsigned units = sum(own_, kMost);
    before_ = __shfl_up_sync(~0u, units, 1);
    if (lane() == 0) before_ = 0;
    total_ = __shfl_sync(~0u, units, 31);
  }

  __device__ RowUnit group_unit(unsigned index) const {
    const unsigned band = index / (kBand * across_), within = index - band * (kBand * across_);
    const unsigned height = min(kBand, tiles_ - band * kBand);
    const int rows = span_.end - span_.begin;
    // Tiles of one height, so that the last is not a small one which streams rhs for a few rows.
    const int pitch = cdiv(cdiv(rows, static_cast<int>(tiles_)), kStep) * kStep;
    const int first = static_cast<int>(band * kBand + within % height) * pitch;
    return {first_ + lane() - 1, span_.begin + first, min(pitch, rows - first),
            static_cast<int>(within / height) * kColumns};
  }

  __device__ RowUnit padding_unit(unsigned index) const {
    const int row = span_.end + static_cast<int>(index / across_) * kRows;
    return {RowUnit::kPadding, row, min(kRows, span_.next - row), static_cast<int>(index % across_) * kColumns};
  }

  // Inclusive, and no more than `limit`.
  static __device__ unsigned sum(unsigned value, unsigned limit) {
    unsigned inclusive = min(value, limit);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(~0u, inclusive, step);
      if (lane() >= step) inclusive = min(inclusive + other, limit);
    }
    return inclusive;
  }

  Ragged ragged_;
  unsigned across_;    // units of one row tile
  int first_ = 0;      // entry of lane 0
  unsigned rows_ = 0;  // end of the groups before it, if they follow each other
  unsigned done_ = 0;  // units of the entries before it
  // Of this lane's entry:
  Span span_;
  unsigned tiles_, group_units_, own_, before_;
  unsigned total_;  // units of all 32
};

}  // namespace jf::grouped
