// Where the groups lie, found on the device by a whole block: no host read, no workspace, any group size.
//
// Extents and starts are clamped so that whatever they hold, no row outside [0, m) is touched. Rows of no group
// ("padding") become tiles too: their result is zero. All functions here must be called by every thread of the block.
#pragma once

#include "grouped/cuda/tile.cuh"

namespace jf::grouped {

struct Ragged {
  const int* extents;
  const int* starts;  // null: the groups follow each other from row 0
  int groups;
  int m;
  bool leaves_padding = false;  // kernels of sm_90a need not store it

  __device__ int extent(int group) const { return min(max(extents[group], 0), m); }
  __device__ int start(int group) const { return min(max(starts[group], 0), m); }
};

// Rows [begin, end) belong to a group, rows [end, next) to none.
struct Span {
  int begin, end, next;
};

// One output tile of `count` rows: of a group, of the padding (kPadding), or nothing at all (count 0).
struct RowTile {
  static constexpr int kPadding = -1;
  int group;
  int row;
  int count;
};

// Shared memory of the searches below.
template <int kThreads>
struct RaggedScratch {
  unsigned rows[kThreads / 32];
  unsigned tiles[kThreads / 32];
  RowTile found;
};

// `before`: rows of the earlier groups, which only matters without starts.
template <bool kHasStarts>
__device__ __forceinline__ Span span(const Ragged& ragged, int group, int before) {
  const bool last = group + 1 == ragged.groups;
  Span s;
  s.begin = kHasStarts ? ragged.start(group) : before;
  s.end = s.begin + min(ragged.extent(group), ragged.m - s.begin);
  s.next = last ? ragged.m : kHasStarts ? ragged.start(group + 1) : s.end;
  return s;
}

struct Sums {
  unsigned before;  // of the threads before this one
  unsigned total;
};

// Sums over the block that stop growing at `limit` (values and limit below 2^31, so that no addition wraps).
template <int kThreads>
__device__ Sums scan(unsigned value, unsigned limit, unsigned (&warp_sums)[kThreads / 32]) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned inclusive = value;
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(~0u, inclusive, step);
    if (lane >= step) inclusive = min(inclusive + other, limit);
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  const unsigned left = __shfl_up_sync(~0u, inclusive, 1);
  __syncthreads();
  Sums sums = {lane == 0 ? 0 : left, 0};
#pragma unroll
  for (unsigned w = 0; w < kThreads / 32; ++w) {
    if (w < warp) sums.before = min(sums.before + warp_sums[w], limit);
    sums.total = min(sums.total + warp_sums[w], limit);
  }
  return sums;
}

// Tile number `wanted` of the rows: the padding before the first start, then for each group its own tiles and those of
// the padding behind it. At most cdiv(m, kTileM) + parts - 1 of them are not empty, where parts counts groups and
// paddings.
template <int kTileM, int kThreads, bool kHasStarts>
__device__ RowTile find_row_tile(const Ragged& ragged, unsigned wanted, RaggedScratch<kThreads>& scratch) {
  const auto tiles = [](int begin, int end) { return static_cast<unsigned>(cdiv(max(end - begin, 0), kTileM)); };
  const auto tile_at = [](int group, int begin, int end, unsigned index) {
    const int row = begin + static_cast<int>(index) * kTileM;
    return RowTile{group, row, min(kTileM, end - row)};
  };
  const int thread = static_cast<int>(threadIdx.x);
  const int per_thread = cdiv(ragged.groups, kThreads);
  const int first = min(thread * per_thread, ragged.groups), last = min(first + per_thread, ragged.groups);
  if (thread == 0) scratch.found = RowTile{RowTile::kPadding, 0, 0};

  int before = 0;
  if constexpr (!kHasStarts) {
    unsigned rows = 0;
    for (int g = first; g < last; ++g) rows = min(rows + ragged.extent(g), static_cast<unsigned>(ragged.m));
    before = static_cast<int>(scan<kThreads>(rows, ragged.m, scratch.rows).before);
  }

  const int leading = ragged.groups == 0 ? ragged.m : kHasStarts ? ragged.start(0) : 0;
  unsigned own = thread == 0 ? tiles(0, leading) : 0;
  int at = before;
  for (int g = first; g < last; ++g) {
    const Span s = span<kHasStarts>(ragged, g, at);
    own += tiles(s.begin, s.end) + tiles(s.end, s.next);
    at = s.end;
  }
  // Wraps to a large number for the threads behind the tile.
  unsigned index = wanted - scan<kThreads>(own, 0x7fffffffu, scratch.tiles).before;
  if (index < own) {
    RowTile found = {RowTile::kPadding, 0, 0};
    const unsigned lead = thread == 0 ? tiles(0, leading) : 0;
    if (index < lead) found = tile_at(RowTile::kPadding, 0, leading, index);
    bool searching = index >= lead;
    index -= lead;
    at = before;
    for (int g = first; searching && g < last; ++g) {
      const Span s = span<kHasStarts>(ragged, g, at);
      const unsigned group_tiles = tiles(s.begin, s.end), all_tiles = group_tiles + tiles(s.end, s.next);
      if (index < group_tiles) {
        found = tile_at(g, s.begin, s.end, index);
      } else if (index < all_tiles) {
        found = tile_at(RowTile::kPadding, s.end, s.next, index - group_tiles);
      }
      searching = index >= all_tiles;
      index -= all_tiles;
      at = s.end;
    }
    scratch.found = found;
  }
  __syncthreads();
  return scratch.found;
}

// The rows of one group.
template <int kThreads, bool kHasStarts>
__device__ Span find_group(const Ragged& ragged, int group, RaggedScratch<kThreads>& scratch) {
  int before = 0;
  if constexpr (!kHasStarts) {
    unsigned rows = 0;
    for (int g = threadIdx.x; g < group; g += kThreads) {
      rows = min(rows + ragged.extent(g), static_cast<unsigned>(ragged.m));
    }
    before = static_cast<int>(scan<kThreads>(rows, ragged.m, scratch.rows).total);
  }
  return span<kHasStarts>(ragged, group, before);
}

// Whether a row belongs to any group.
template <int kThreads, bool kHasStarts>
__device__ bool in_any_group(const Ragged& ragged, int row, RaggedScratch<kThreads>& scratch) {
  if constexpr (kHasStarts) {
    bool inside = false;
    for (int g = threadIdx.x; g < ragged.groups; g += kThreads) {
      const Span s = span<true>(ragged, g, 0);
      inside |= s.begin <= row && row < s.end;
    }
    return __syncthreads_or(inside);
  } else {
    unsigned rows = 0;
    for (int g = threadIdx.x; g < ragged.groups; g += kThreads) {
      rows = min(rows + ragged.extent(g), static_cast<unsigned>(ragged.m));
    }
    return static_cast<unsigned>(row) < scan<kThreads>(rows, ragged.m, scratch.rows).total;
  }
}

struct Place {
  unsigned row, column;
};

// Blocks that run together should share rows of lhs and columns of rhs in L2: bands of kBand tile rows, and in a band
// down each tile column before the next.
__device__ __forceinline__ Place raster(unsigned index, unsigned rows, unsigned columns) {
  constexpr unsigned kBand = 16;
  const unsigned band = index / (kBand * columns), within = index - band * (kBand * columns);
  const unsigned height = min(kBand, rows - band * kBand);
  return {band * kBand + within % height, within / height};
}

}  // namespace jf::grouped
