// Which tile a cluster computes next, and which rows are padding, found by single warps from the extents: no host read,
// no workspace, any number of groups.
#pragma once

#include "grouped/cuda/ragged.cuh"

namespace jf::grouped {

__device__ __forceinline__ unsigned lane_id() { return threadIdx.x % 32; }

// A warp looks at 32 groups at once, one for each lane; groups past the last have no rows and no padding.
template <bool kHasStarts>
struct GroupWindow {
  const Ragged& ragged;
  int first = 0;      // group of lane 0
  unsigned rows = 0;  // of all groups before, if they follow each other
  Span span;

  __device__ explicit GroupWindow(const Ragged& r) : ragged(r) { look(); }

  __device__ int group() const { return first + static_cast<int>(lane_id()); }
  __device__ bool past_end() const { return first >= ragged.groups; }

  __device__ void advance() {
    rows = __shfl_sync(~0u, static_cast<unsigned>(span.end), 31);
    first += 32;
    look();
  }

  // Inclusive, and no more than `limit`.
  static __device__ unsigned sum(unsigned value, unsigned limit) {
    unsigned inclusive = min(value, limit);
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(~0u, inclusive, step);
      if (lane_id() >= step) inclusive = min(inclusive + other, limit);
    }
    return inclusive;
  }

 private:
  __device__ void look() {
    const bool inside = group() < ragged.groups;
    const unsigned limit = ragged.m;
    const unsigned through = sum(inside ? ragged.extent(group()) : 0, limit), left = __shfl_up_sync(~0u, through, 1);
    const unsigned before = lane_id() == 0 ? 0 : left;
    span = inside ? grouped::span<kHasStarts>(ragged, group(), static_cast<int>(min(rows + before, limit)))
                  : Span{ragged.m, ragged.m, ragged.m};
  }
};

// Rows [row, row + count) of a group, columns from `column` on.
struct RowUnit {
  static constexpr int kEnd = -1;  // a group: nothing is left
  int group;
  int row;
  int count;
  int column;
  // Of a stacked unit: the second block of the cluster computes the same columns of `below` rows from row + pitch on.
  int pitch = 0, below = 0;
  // What its blocks find added to the column, a multiple of 64.
  static constexpr int kStacked = 1;
};

// Every group has units: one for each row tile and stretch of columns. Units are numbered through all groups.
// kRows: most rows of a tile, else a multiple of kStep. kColumns: of a unit. kStacks: where one block would do for the
// last columns, they are stacked units, of two row tiles each.
template <bool kHasStarts, int kRows, int kStep, int kColumns, bool kStacks = false>
class RowSchedule {
 public:
  __device__ RowSchedule(const Ragged& ragged, int n)
      : window_(ragged), across_(cdiv(n, kColumns)), stacks_(kStacks && (n - 1) % kColumns < kColumns / 2) {
    across_ -= stacks_;
    count();
  }

  // Unit number `wanted`, at least that of the call before: in the lane that returns true.
  __device__ bool find(unsigned wanted, RowUnit& unit) {
    while (wanted - done_ >= total_) {
      if (window_.past_end()) {
        unit = {RowUnit::kEnd, 0, 0, 0};
        return lane_id() == 0;
      }
      done_ += total_;
      window_.advance();
      count();
    }
    const unsigned index = wanted - done_ - before_;
    if (index >= units_of(tiles_)) return false;
    unit = at(index);
    return true;
  }

 private:
  // Tiles that run together should share rows of lhs and columns of rhs in L2: even bands of at most so many row tiles,
  // and in a band down each stretch of columns before the next.
  static constexpr unsigned kBand = 8;

  __device__ void count() {
    const Span& span = window_.span;
    tiles_ = cdiv(span.end - span.begin, kRows);
    constexpr unsigned kMost = 0x7fffffff;
    const unsigned units = window_.sum(units_of(tiles_), kMost);
    before_ = units - units_of(tiles_);
    total_ = __shfl_sync(~0u, units, 31);
  }

  // Of a group of so many row tiles: stacked units are the last.
  __device__ unsigned units_of(unsigned tiles) const {
    return tiles * across_ + (kStacks && stacks_ ? (tiles + 1) / 2 : 0);
  }

  __device__ RowUnit at(unsigned index) const {
    const Span& span = window_.span;
    // Tiles of one height, so that the last is not a small one which streams rhs for a few rows.
    const int rows = span.end - span.begin, pitch = cdiv(cdiv(rows, static_cast<int>(tiles_)), kStep) * kStep;
    if (kStacks && index >= tiles_ * across_) {
      const int first = static_cast<int>(index - tiles_ * across_) * 2 * pitch;
      const int column = static_cast<int>(across_) * kColumns, below = min(pitch, rows - first - pitch);
      if (below <= 0) return {window_.group(), span.begin + first, rows - first, column};
      return {window_.group(), span.begin + first, pitch, column + RowUnit::kStacked, pitch, below};
    }
    const unsigned bands = cdiv(tiles_, kBand), most = cdiv(tiles_, bands);
    const unsigned band = index / (most * across_), within = index - band * (most * across_);
    const unsigned height = min(most, tiles_ - band * most);
    const int first = static_cast<int>(band * most + within % height) * pitch;
    return {window_.group(), span.begin + first, min(pitch, rows - first),
            static_cast<int>(within / height) * kColumns};
  }

  GroupWindow<kHasStarts> window_;
  unsigned across_;  // units of one row tile, without stacked ones
  bool stacks_;
  unsigned done_ = 0;  // units of the groups before the window
  unsigned tiles_;     // of this lane's group
  unsigned before_;    // units of the window's groups before it
  unsigned total_;     // units of the window
};

// One warp: calls visit(begin, end) with every stretch of padding rows, unless they are left as they are.
template <bool kHasStarts, class Visit>
__device__ __forceinline__ void for_padding(const Ragged& ragged, Visit visit) {
  if (ragged.leaves_padding) return;
  visit(0, ragged.groups == 0 ? ragged.m : kHasStarts ? ragged.start(0) : 0);
  for (GroupWindow<kHasStarts> window(ragged); !window.past_end(); window.advance()) {
    for (unsigned found = __ballot_sync(~0u, window.span.end < window.span.next); found != 0; found &= found - 1) {
      const int lane = __ffs(static_cast<int>(found)) - 1;
      visit(__shfl_sync(~0u, window.span.end, lane), __shfl_sync(~0u, window.span.next, lane));
    }
  }
}

// One warp: zeros into every kShare-th of the padding rows, from the `share`-th on. Rows are whole chunks.
template <bool kHasStarts, class Chunk = uint4, class Out>
__device__ void store_padding(const Ragged& ragged, Out* out, int n, unsigned share, unsigned shares) {
  constexpr int kPerChunk = static_cast<int>(sizeof(Chunk) / sizeof(Out));
  for_padding<kHasStarts>(ragged, [&](int begin, int end) {
    for (int row = begin + static_cast<int>(share); row < end; row += static_cast<int>(shares)) {
      Out* to = out + static_cast<long long>(row) * n;
      for (int i = static_cast<int>(lane_id()) * kPerChunk; i < n; i += 32 * kPerChunk) ptx::st_global(to + i, Chunk{});
    }
  });
}

}  // namespace jf::grouped
