// What becomes of the sums of HopperRows before they are stored: a functor that the compiler prints.
//
//   struct Epilogue {
//     static constexpr int kSums = 2;                  // sums that an element of the result is made of, 1 or 2
//     static int first(int sum);                       // the columns of the product that column 0 of it is made of
//     struct Group { .. };                             // what depends on nothing but the row's group
//     struct alignas(4) Row { .. };                    // what depends on the row alone
//     Group group(int group) const;
//     Row row(const Group&, int row) const;
//     static constexpr int kTiles = 1, kTileColumn = 0;  // arrays read at the result's places, from this column on: 0,
//     1 using Tile = bf16;                               // their type, 16-bit float tile(int row, int column) const;
//     // what they hold there float at(const Group&, const Row&, const float (&sums)[kSums], float tile, int row, int
//     column) const;
//   };
//
// A row is evaluated once in a warp. Padding rows get what the functor makes of zeros; they follow all groups, and
// their group is the number of those, unless the groups have starts: then the functor does not ask for it.
#pragma once

#include "grouped/cuda/hopper_schedule.cuh"
#include "grouped/cuda/tile.cuh"

namespace jf::grouped {

// The sums are the result.
struct NoEpilogue {
  static constexpr int kSums = 0, kTiles = 0;
};

// Whether it has several results: see hopper_several.cuh.
template <class Epilogue, int = Epilogue::kResults>
constexpr bool has_several(int) {
  return true;
}
template <class>
constexpr bool has_several(...) {
  return false;
}
template <class Epilogue>
constexpr bool kSeveral = has_several<Epilogue>(0);

// Padding rows are zeros, whatever the functor would make of them.
template <class Epilogue>
constexpr bool kZeroPadding = Epilogue::kSums == 0;

// What lane `from` of the warp holds.
template <class T>
__device__ __forceinline__ T shuffle(const T& value, int from) {
  if constexpr (__is_empty(T)) return value;
  constexpr int kWords = sizeof(T) / 4;
  static_assert(sizeof(T) % 4 == 0, "lanes exchange words");
  unsigned words[kWords];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (unsigned& word : words) word = __shfl_sync(~0u, word, from);
  T result;
  memcpy(&result, words, sizeof(T));
  return result;
}

constexpr int kRowsOfWarp = 32;
// Rows and columns that do not exist are others again: what they give is not stored.
template <class Epilogue>
__device__ __forceinline__ typename Epilogue::Row row_of_lane(const Epilogue& epilogue,
                                                              const typename Epilogue::Group& of_group,
                                                              const RowUnit& unit, int r) {
  return epilogue.row(of_group, min(unit.row + r + static_cast<int>(threadIdx.x % 32), unit.row + unit.count - 1));
}

// One warpgroup: its sums, 64 columns of the product in a slice by a tile's rows, become results, in the first of two
// slices where two sums make one. In kResults slices from `slice` on, in the rows r to r + 7 of the unit; column
// `column` of the result belongs to the first of them. `tile`: as the sums of a slice.
template <int kResults, int kRows, class Epilogue>
__device__ __forceinline__ void apply_to_eight(const Epilogue& epilogue, const typename Epilogue::Group& of_group,
                                               const typename Epilogue::Row& evaluated, float (&sums)[2][kRows / 2],
                                               const float (&tile)[4], const RowUnit& unit, int r, int slice,
                                               int column, int n) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, last = unit.row + unit.count - 1;
#pragma unroll
  for (int next = 0; next < 2; ++next) {
    const int within = lane % 4 * 2 + next, here = min(unit.row + r + within, last);
    const auto own = shuffle(evaluated, r % kRowsOfWarp + within);
#pragma unroll
    for (int i = 0; i < kResults * 2; ++i) {
      const int half = i % 2, from = slice + i / 2, at = r / 2 + half * 2 + next;
      const int to = min(column + i / 2 * 64 + warp * 16 + lane / 4 + half * 8, n - 1);
      const float read = tile[half * 2 + next];
      if constexpr (Epilogue::kSums == 2) {
        sums[0][at] = epilogue.at(of_group, own, {sums[0][at], sums[1][at]}, read, here, to);
      } else {
        sums[from][at] = epilogue.at(of_group, own, {sums[from][at]}, read, here, to);
      }
    }
  }
}

// All of them.
template <int kRows, class Epilogue>
__device__ __forceinline__ void apply(const Epilogue& epilogue, float (&sums)[2][kRows / 2], const RowUnit& unit,
                                      int column, int n) {
  constexpr int kResults = Epilogue::kSums == 2 ? 1 : 2;
  const typename Epilogue::Group of_group = epilogue.group(unit.group);
  typename Epilogue::Row evaluated;
#pragma unroll
  for (int r = 0; r < kRows; r += 8) {
    if (r % 16 == 0 && r >= unit.count) return;
    if (r % kRowsOfWarp == 0) evaluated = row_of_lane(epilogue, of_group, unit, r);
    apply_to_eight<kResults, kRows>(epilogue, of_group, evaluated, sums, {}, unit, r, 0, column, n);
  }
}

// One warp: every kShare-th of the padding rows, from the `share`-th on. Rows are multiples of 16 bytes.
template <bool kHasStarts, class Epilogue, class Out>
__device__ __forceinline__ void apply_to_padding(const Epilogue& epilogue, const Ragged& ragged, Out* out, int n,
                                                 unsigned share, unsigned shares) {
  constexpr int kPerChunk = 16 / static_cast<int>(sizeof(Out));
  const auto of_group = epilogue.group(ragged.groups);
  for_padding<kHasStarts>(ragged, [&](int begin, int end) {
    for (int row = begin + static_cast<int>(share); row < end; row += static_cast<int>(shares)) {
      const auto own = epilogue.row(of_group, row);
      for (int i = static_cast<int>(lane_id()) * kPerChunk; i < n; i += 32 * kPerChunk) {
        alignas(16) Out chunk[kPerChunk];
#pragma unroll
        for (int c = 0; c < kPerChunk; ++c) {
          const float zeros[Epilogue::kSums] = {};
          chunk[c] = Narrow<Out>::from(epilogue.at(of_group, own, zeros, epilogue.tile(row, i + c), row, i + c));
        }
        uint4 words;
        memcpy(&words, chunk, sizeof(words));
        ptx::st_global(out + static_cast<long long>(row) * n + i, words);
      }
    }
  });
}

}  // namespace jf::grouped
