// out[b] = lhs[b] * rhs[b] for every batch entry b of any group; the other entries become zero. One block per output
// tile.
//
//   lhs [m, rows, k], rhs [m, k, n] or [m, n, k] (K-major), out [m, rows, n]
//   grid      batch entries x tiles of one [rows, n] matrix
//   engine    TensorCore or Fma: its header tells threads, shared bytes and alignment
#pragma once

#include "grouped/cuda/ragged.cuh"

namespace jf::grouped {

template <class Engine, bool kHasStarts>
struct Batch {
  using Lhs = typename Engine::Lhs;
  using Rhs = typename Engine::Rhs;
  using Out = typename Engine::Out;
  using Tile = typename Engine::Tile;
  using Layout = typename Engine::Layout;
  static_assert(Layout::kLhsKMajor, "lhs is [m, rows, k]");

  struct Shared {
    typename Engine::Shared engine;
    RaggedScratch<Engine::kThreads> ragged;
  };
  static constexpr int kSharedBytes = sizeof(Shared);

  static __device__ __forceinline__ void run(void* memory, const Lhs* lhs, const Rhs* rhs, const Ragged& ragged,
                                             Out* out, long long k, long long n, long long rows) {
    Shared& shared = *static_cast<Shared*>(memory);
    const unsigned tile_rows = cdiv(rows, Tile::kM), tile_columns = cdiv(n, Tile::kN);
    const unsigned entry = blockIdx.x / (tile_rows * tile_columns);
    const Place place = raster(blockIdx.x - entry * (tile_rows * tile_columns), tile_rows, tile_columns);

    const int row = static_cast<int>(place.row) * Tile::kM, column = static_cast<int>(place.column) * Tile::kN;
    const int height = min(Tile::kM, static_cast<int>(rows) - row), width = min(Tile::kN, static_cast<int>(n) - column);
    const View<Out> target = {out + (entry * rows + row) * n + column, n, height, width};
    if (!in_any_group<Engine::kThreads, kHasStarts>(ragged, entry, shared.ragged)) {
      return store_zeros<Engine::kThreads, Layout::kOutAccess>(target);
    }

    const Rhs* matrix = rhs + entry * k * n;
    const View<const Lhs> a = {lhs + (entry * rows + row) * k, k, height, static_cast<int>(k)};
    const View<const Rhs> b = Layout::kRhsKMajor ? View<const Rhs>{matrix + column * k, k, width, static_cast<int>(k)}
                                                 : View<const Rhs>{matrix + column, n, static_cast<int>(k), width};
    Engine engine(shared.engine);
    engine.multiply(a, b, static_cast<int>(k));
    engine.store(target);
  }
};

}  // namespace jf::grouped
