// Tiles of transposes whose rows begin anywhere: aligned vectors of rows are read, and their elements go to shared
// memory at places that are as far into a vector as theirs in the result, so that vectors of columns are aligned, too.
#pragma once

#include "codegen/cuda_memory.cuh"

namespace jf {

// Vectors of a thread that are on their way together.
constexpr int kTurnedAtOnce = 4;

// As loops::TurnTile says. All threads of the block call it, with equal arguments.
template <int kTile, int kBefore, int kPitch, int kThreads, long kStep, class M>
JF_FUNCTION void turn_tile(M* shared, const M* x, long from, long row, long rows, long column, long columns) {
  constexpr int kWidth = kMostBytes / int(sizeof(M)), kVectors = kTile / kWidth + 1;
  constexpr int kAll = kVectors * (kTile + kBefore), kEach = (kAll + kThreads - 1) / kThreads;
  using Vector = Chunk<Stored<M>, kWidth>;
  Stored<M>* const to = reinterpret_cast<Stored<M>*>(shared);
#pragma unroll
  for (int first = 0; first < kEach; first += kTurnedAtOnce) {
    Vector vectors[kTurnedAtOnce];
#pragma unroll
    for (int i = 0; i < kTurnedAtOnce && first + i < kEach; ++i) {
      const int number = (first + i) * kThreads + int(threadIdx.x), r = number / kVectors - kBefore;
      const long begin = from + r * kStep;
      const int at = number % kVectors * kWidth - int(begin & (kWidth - 1));
      const bool there = number < kAll && row + r >= 0 && row + r < rows && column + at < columns;
      vectors[i] = there ? *reinterpret_cast<const Vector*>(x + begin + at) : Vector{};
    }
#pragma unroll
    for (int i = 0; i < kTurnedAtOnce && first + i < kEach; ++i) {
      const int number = (first + i) * kThreads + int(threadIdx.x), r = number / kVectors - kBefore;
      const int at = number % kVectors * kWidth - (int(from + r * kStep) & (kWidth - 1));
      if (number >= kAll) break;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) to[(at + j) * kPitch + r] = vectors[i].v[j];
    }
  }
}

}  // namespace jf
