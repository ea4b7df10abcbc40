// What becomes of the sums of HopperRows before they are stored: a functor that the compiler prints.
//
//   struct Epilogue {
//     static constexpr int kSums = 2;                  // sums that an element of the result is made of, 1 or 2
//     static int first(int sum);                       // the columns of the product that column 0 of it is made of
//     struct Group { .. };                             // what depends on nothing but the row's group
//     struct alignas(4) Row { .. };                    // what depends on the row alone
//     Group group(int group) const;
//     Row row(const Group&, int row) const;
//     float at(const Group&, const Row&, const float (&sums)[kSums], int row, int column) const;
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
  static constexpr int kSums = 0;
};

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

// One warpgroup: its sums, 64 columns of the product in each of two slices by a tile's rows, become results, in the
// first slice alone where two sums make one. Column `column` of the result belongs to the first of the slice.
template <int kRows, class Epilogue>
__device__ __forceinline__ void apply(const Epilogue& epilogue, float (&sums)[2][kRows / 2], const RowUnit& unit,
                                      int column, int n) {
  constexpr int kSlice = 64, kRowsOfWarp = 32, kResults = Epilogue::kSums == 2 ? 1 : 2;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = unit.row, last = row + unit.count - 1;
  const typename Epilogue::Group of_group = epilogue.group(unit.group);
  typename Epilogue::Row evaluated;
#pragma unroll
  for (int r = 0; r < kRows; r += 8) {
    if (r % 16 == 0 && r >= unit.count) return;
    // Rows and columns that do not exist are others again: what they give is not stored.
    if (r % kRowsOfWarp == 0) evaluated = epilogue.row(of_group, min(row + r + lane, last));
#pragma unroll
    for (int next = 0; next < 2; ++next) {
      const int within = lane % 4 * 2 + next, here = min(row + r + within, last);
      const auto own = shuffle(evaluated, r % kRowsOfWarp + within);
#pragma unroll
      for (int i = 0; i < kResults * 2; ++i) {
        const int slice = i / 2, at = r / 2 + i % 2 * 2 + next;
        const int to = min(column + slice * kSlice + warp * 16 + lane / 4 + i % 2 * 8, n - 1);
        if constexpr (Epilogue::kSums == 2) {
          sums[0][at] = epilogue.at(of_group, own, {sums[0][at], sums[1][at]}, here, to);
        } else {
          sums[slice][at] = epilogue.at(of_group, own, {sums[slice][at]}, here, to);
        }
      }
    }
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
          chunk[c] = Narrow<Out>::from(epilogue.at(of_group, own, zeros, row, i + c));
        }
        uint4 words;
        memcpy(&words, chunk, sizeof(words));
        ptx::st_global(out + static_cast<long long>(row) * n + i, words);
      }
    }
  });
}

}  // namespace jf::grouped
