// out[r, :] = lhs[r, :] * rhs[group of r]: one block per output tile of one group, or of padding rows, which become
// zero.
//
//   lhs [m, k], rhs [groups, k, n] or [groups, n, k] (K-major), out [m, n]
//   grid      row tiles (the static bound: more than any extents can need) x column tiles; surplus blocks leave at once
//   engine    TensorCore or Fma: its header tells threads, shared bytes and alignment
#pragma once

#include "grouped/cuda/ragged.cuh"

namespace jf::grouped {

template <class Engine, bool kHasStarts>
struct Rows {
  using Lhs = typename Engine::Lhs;
  using Rhs = typename Engine::Rhs;
  using Out = typename Engine::Out;
  using Tile = typename Engine::Tile;
  using Layout = typename Engine::Layout;
  static_assert(Layout::kLhsKMajor, "lhs is [m, k]");

  struct Shared {
    typename Engine::Shared engine;
    RaggedScratch<Engine::kThreads> ragged;
  };
  static constexpr int kSharedBytes = sizeof(Shared);

  static __device__ __forceinline__ void run(void* memory, const Lhs* lhs, const Rhs* rhs, const Ragged& ragged,
                                             Out* out, long long k, long long n) {
    Shared& shared = *static_cast<Shared*>(memory);
    const unsigned columns = cdiv(n, Tile::kN);
    const Place place = raster(blockIdx.x, gridDim.x / columns, columns);
    const RowTile tile = find_row_tile<Tile::kM, Engine::kThreads, kHasStarts>(ragged, place.row, shared.ragged);
    if (tile.count == 0) return;

    const int column = static_cast<int>(place.column) * Tile::kN;
    const int width = min(Tile::kN, static_cast<int>(n) - column);
    const View<Out> target = {out + tile.row * n + column, n, tile.count, width};
    if (tile.group == RowTile::kPadding) return store_zeros<Engine::kThreads, Layout::kOutAccess>(target);

    const Rhs* matrix = rhs + tile.group * k * n;
    const View<const Lhs> a = {lhs + tile.row * k, k, tile.count, static_cast<int>(k)};
    const View<const Rhs> b = Layout::kRhsKMajor ? View<const Rhs>{matrix + column * k, k, width, static_cast<int>(k)}
                                                 : View<const Rhs>{matrix + column, n, static_cast<int>(k), width};
    Engine engine(shared.engine);
    engine.multiply(a, b, static_cast<int>(k));
    engine.store(target);
  }
};

}  // namespace jf::grouped
