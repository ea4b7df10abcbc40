"""Hopper kernels on a CPU (hopper_block.h): blocks that take units of work from a queue and blocks that share them
evenly compute the same, and every block ends."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from grouped_reference import owned_rows, rows
from test_fp8_blocks import run_on_cpu
from tolerances import assert_close

import jax_fuser as jf

BF16 = ml_dtypes.bfloat16
# More units than blocks; groups of a row, of part of a tile, of several tiles; none; one with all rows.
M = 380
EXTENTS = np.int32([[0, 1, 64, 0, 0, 65, 13, 217, 0], [0] * 9, [0, 0, 0, 0, 0, 0, 0, 0, 370]])
STARTS = np.int32([[0, 0, 3, 70, 70, 72, 140, 160, 380], [0] * 9, [0, 0, 0, 0, 0, 0, 0, 0, 8]])

ROWS = """
using namespace jf;
constexpr int m = %(m)d, k = %(k)d, n = %(n)d, groups = %(groups)d;

template <class Out, class Tile, bool kRhsKMajor, bool kHasStarts>
void run(int blocks) {
  using Kernel = grouped::HopperRows<bf16, Out, Tile, kRhsKMajor, kHasStarts>;
  constexpr int size = sizeof(Out);
  auto lhs = read("lhs"), rhs = read(kRhsKMajor ? "rhs_t" : "rhs"), extents = read("extents"), starts = read("starts");
  for (int problem = 0; problem < %(problems)d; ++problem) {
    for (const bool shares : {false, true}) {
      std::vector<unsigned char> out(size * m * n, 255);  // NaN
      const TensorMap lhs_map = {lhs.data(), k * 2, m, 2}, out_map = {out.data(), n * size, m, size, 128 / size};
      const TensorMap rhs_map = {rhs.data(), (kRhsKMajor ? k : n) * 2, kRhsKMajor ? n : k, 2, kRhsKMajor ? 128 : 64};
      const int first = problem * groups;
      const grouped::Ragged ragged = {data<int>(extents) + first, data<int>(starts) + first, groups, m};
      unsigned next = 0;
      ptx::launch(blocks, Tile::kCluster, [&](void* memory) {
        Kernel::run(memory, lhs_map, rhs_map, out_map, ragged, data<Out>(out), shares ? nullptr : &next, k, n);
      });
      std::fwrite(out.data(), 1, out.size(), stdout);
    }
  }
}

int main() {
  run<bf16, grouped::HopperTile<64, 2, 1>, false, false>(3);
  run<bf16, grouped::HopperTile<128, 3, 2>, true, true>(4);
  run<float, grouped::HopperTile<192, 2, 2>, false, true>(4);
}
"""


def results(raw, kinds, n):
    """(with starts, from a queue, shared) of each problem of each kernel, for kernels (type of out, with starts)."""
    at = 0
    for dtype, starts in kinds:
        for problem in range(len(EXTENTS)):
            pair = np.frombuffer(raw, dtype, 2 * M * n, at).reshape(2, M, n)
            at += pair.nbytes
            yield EXTENTS[problem], STARTS[problem] if starts else None, *pair
    assert at == len(raw)


def check(queued, shared, want, extents, starts, **tolerance):
    np.testing.assert_array_equal(queued.view(np.uint8), shared.view(np.uint8))
    owned = owned_rows(extents, M, starts)
    assert (shared[~owned] == 0).all()
    assert_close(shared[owned], want[owned], dtype=shared.dtype.name, **tolerance)


def test_rows(tmp_path):
    k, n, groups = 136, 328, EXTENTS.shape[1]
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.normal(size=s).astype(BF16) for s in ((M, k), (groups, k, n)))
    lhs[max(EXTENTS.sum(1)) :] = np.nan
    arrays = {"lhs": lhs, "rhs": rhs, "rhs_t": rhs.swapaxes(1, 2), "extents": EXTENTS, "starts": STARTS}
    raw = run_on_cpu(ROWS % {"m": M, "k": k, "n": n, "groups": groups, "problems": len(EXTENTS)}, arrays, 4, tmp_path)
    kinds = [(BF16, False), (BF16, True), (np.float32, True)]
    for extents, starts, queued, shared in results(raw, kinds, n):
        check(queued, shared, rows(lhs, rhs, extents, starts), extents, starts)
