// Products of one output tile by plain multiply-adds, for any arithmetic element type: integers, f64, mixed operands.
//
//   tile      kM x kN per block, (kM / 16) x (kN / 16) sums per thread, kK contraction indices per slice
//   threads   256, as 16 x 16
//   shared    kK * (kM + kN + 2) * sizeof(Acc), then the searches' scratch
//   aligned   nothing beyond the element
//
// Integers wrap: Acc is unsigned for them.
#pragma once

#include "grouped/cuda/tile.cuh"

namespace jf::grouped {

template <class Lhs_, class Rhs_, class Out_, class Acc, class Tile_, class Layout_>
struct Fma {
  using Lhs = Lhs_;
  using Rhs = Rhs_;
  using Out = Out_;
  using Tile = Tile_;
  using Layout = Layout_;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr int kSide = 16;
  static constexpr int kThreadM = Tile::kM / kSide, kThreadN = Tile::kN / kSide;
  static_assert(kThreads == kSide * kSide, "threads form a 16 x 16 grid over the tile");
  static_assert(Tile::kM % kSide == 0 && Tile::kN % kSide == 0, "each thread owns every 16th row and column");

  struct Shared {
    Acc lhs[Tile::kK][Tile::kM + 1];
    Acc rhs[Tile::kK][Tile::kN + 1];
  };

  Shared& shared;
  int row, column;
  Acc sums[kThreadM][kThreadN];

  __device__ __forceinline__ explicit Fma(Shared& memory)
      : shared(memory), row(threadIdx.x / kSide), column(threadIdx.x % kSide) {
#pragma unroll
    for (int i = 0; i < kThreadM; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadN; ++j) sums[i][j] = 0;
    }
  }

  __device__ __forceinline__ void multiply(const View<const Lhs>& lhs, const View<const Rhs>& rhs, int depth) {
    for (int k = 0; k < depth; k += Tile::kK) {
      copy<Layout::kLhsKMajor>(shared.lhs, lhs, k);
      copy<Layout::kRhsKMajor>(shared.rhs, rhs, k);
      __syncthreads();
#pragma unroll
      for (int step = 0; step < Tile::kK; ++step) {
        Acc a[kThreadM], b[kThreadN];
#pragma unroll
        for (int i = 0; i < kThreadM; ++i) a[i] = shared.lhs[step][row + i * kSide];
#pragma unroll
        for (int j = 0; j < kThreadN; ++j) b[j] = shared.rhs[step][column + j * kSide];
#pragma unroll
        for (int i = 0; i < kThreadM; ++i) {
#pragma unroll
          for (int j = 0; j < kThreadN; ++j) sums[i][j] += a[i] * b[j];
        }
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ void store(const View<Out>& out) {
#pragma unroll
    for (int i = 0; i < kThreadM; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadN; ++j) {
        const int r = row + i * kSide, c = column + j * kSide;
        if (r < out.outer && c < out.inner) out.data[r * out.pitch + c] = Narrow<Out>::from(sums[i][j]);
      }
    }
  }

 private:
  // Contraction indices k .. k + kK of a view into to[index][extent]; zero outside the view.
  template <bool kKMajor, class T, int kPitch>
  static __device__ __forceinline__ void copy(Acc (&to)[Tile::kK][kPitch], const View<const T>& view, int k) {
    constexpr int kExtent = kPitch - 1;
    constexpr int kInner = kKMajor ? Tile::kK : kExtent;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kExtent * Tile::kK; i += kThreads) {
      const int outer = i / kInner, inner = i % kInner;
      const int from_outer = outer + (kKMajor ? 0 : k), from_inner = inner + (kKMajor ? k : 0);
      const bool valid = from_outer < view.outer && from_inner < view.inner;
      const Acc value = valid ? static_cast<Acc>(widen(view.data[from_outer * view.pitch + from_inner])) : Acc(0);
      (kKMajor ? to[inner][outer] : to[outer][inner]) = value;
    }
  }
};

}  // namespace jf::grouped
