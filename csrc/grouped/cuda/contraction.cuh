// out[g] = transpose(lhs rows of g) * (rhs rows of g): the ragged axis is summed. One block per output tile of one
// group.
//
//   lhs [m, k], rhs [m, n], out [groups, k, n]; an empty group gives exact zeros
//   grid      groups x tiles of one [k, n] matrix
//   engine    TensorCore or Fma with neither operand K-major: its header tells threads, shared bytes and alignment
#pragma once

#include "grouped/cuda/ragged.cuh"

namespace jf::grouped {

template <class Engine, bool kHasStarts>
struct Contraction {
  using Lhs = typename Engine::Lhs;
  using Rhs = typename Engine::Rhs;
  using Out = typename Engine::Out;
  using Tile = typename Engine::Tile;
  static_assert(!Engine::Layout::kLhsKMajor && !Engine::Layout::kRhsKMajor, "rows of both operands are summed over");

  struct Shared {
    typename Engine::Shared engine;
    RaggedScratch<Engine::kThreads> ragged;
  };
  static constexpr int kSharedBytes = sizeof(Shared);

  static __device__ __forceinline__ void run(void* memory, const Lhs* lhs, const Rhs* rhs, const Ragged& ragged,
                                             Out* out, long long k, long long n) {
    Shared& shared = *static_cast<Shared*>(memory);
    const unsigned tile_rows = cdiv(k, Tile::kM), tile_columns = cdiv(n, Tile::kN);
    const unsigned group = blockIdx.x / (tile_rows * tile_columns);
    const Place place = raster(blockIdx.x - group * (tile_rows * tile_columns), tile_rows, tile_columns);
    const Span rows = find_group<Engine::kThreads, kHasStarts>(ragged, group, shared.ragged);

    const int row = static_cast<int>(place.row) * Tile::kM, column = static_cast<int>(place.column) * Tile::kN;
    const int height = min(Tile::kM, static_cast<int>(k) - row), width = min(Tile::kN, static_cast<int>(n) - column);
    // Rows behind the group are not read: they become zeros in shared memory, never zero times what they hold.
    const int depth = rows.end - rows.begin;
    Engine engine(shared.engine);
    engine.multiply({lhs + rows.begin * k + row, k, depth, height}, {rhs + rows.begin * n + column, n, depth, width},
                    depth);
    engine.store({out + (group * k + row) * n + column, n, height, width});
  }
};

}  // namespace jf::grouped
