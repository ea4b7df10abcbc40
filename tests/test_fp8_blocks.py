"""The kernel of 8-bit floats with scales for blocks, on a CPU: which elements, scales and rows it takes and stores,
with g++ for a GPU's compiler (warpgroup.h)."""

import grouped_reference as ref
import jax.numpy as jnp
import numpy as np
import pytest
from device_text import run_on_cpu
from tolerances import assert_close

MAIN = """
#include "grouped/cuda/hopper_fp8_blocks.cuh"
using namespace jf;

int main() {
  using Out = %(out)s;
  using Tile = grouped::HopperTile<128, 3, JF_BLOCKS>;
  using Kernel = grouped::HopperBlocks<grouped::Fp8<%(lhs)s, %(rhs)s>, Out, Tile, %(starts)s>;
  constexpr int m = %(m)d, k = %(k)d, n = %(n)d, groups = %(groups)d, size = sizeof(Out);
  auto lhs = read("lhs"), rhs = read("rhs"), lhs_scales = read("lhs_scales"), rhs_scales = read("rhs_scales");
  auto extents = read("extents"), starts = read("starts");
  std::vector<unsigned char> out(size * m * n, 255);  // NaN
  const TensorMap maps[] = {{lhs.data(), k, m, 1}, {rhs.data(), k, n, 1}, {out.data(), n * size, m, size}};
  const grouped::Ragged ragged = {data<int>(extents), data<int>(starts), groups, m};
  unsigned next = 0;
  ptx::launch(JF_BLOCKS, JF_BLOCKS, [&](void* memory) {
    Kernel::run(memory, maps[0], maps[1], maps[2], ragged, data<Out>(out), &next, k, n,
                {data<float>(lhs_scales), data<float>(rhs_scales)});
  });
  std::fwrite(out.data(), 1, out.size(), stdout);
}
"""


def run_blocks_on_cpu(main, arrays, blocks, folder):
    """What a program prints that reads these arrays and launches at most so many blocks."""
    for name, array in arrays.items():
        (folder / name).write_bytes(np.asarray(array).tobytes())
    flags = ("-O1", f"-DJF_BLOCKS={blocks}", f"-DJF_WARPS={12 * blocks}")
    return run_on_cpu(main, folder, flags, headers=("warpgroup.h", "hopper_block.h"))


@pytest.mark.parametrize(
    ("extents", "starts", "k", "n", "dtypes", "out", "blocks"),
    [
        # Groups of a row, half a tile, a tile, more; none first, last and between; wide columns and narrow ones.
        ([0, 1, 64, 0, 65, 0], None, 144, 584, ("e4m3fn", "e4m3fn"), "bfloat16", 2),
        ([70, 129, 0, 3], [0, 75, 210, 215], 272, 136, ("e4m3fn", "e5m2"), "float32", 1),
    ],
)
def test_every_element_gets_its_own(extents, starts, k, n, dtypes, out, blocks, tmp_path):
    m, rng = 220, np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.normal(size=s), f"float8_{d}") for s, d in zip(((m, k), (len(extents), n, k)), dtypes))
    across = [-(-size // 128) for size in (k, n)]
    scales = [rng.uniform(0.5, 2, s).astype("float32") for s in ((m, across[0]), (len(extents), *across[::-1]))]
    owned = ref.owned_rows(extents, m, starts)
    scales[0][~owned] = np.nan
    arrays = {"lhs": lhs, "rhs": rhs, "lhs_scales": scales[0], "rhs_scales": scales[1],
              "extents": np.int32(extents), "starts": np.int32(starts if starts else [])}  # fmt: skip
    types = {"bfloat16": "bf16", "float16": "f16", "float32": "float"}
    truths = {"lhs": dtypes[0] == "e5m2", "rhs": dtypes[1] == "e5m2", "starts": starts is not None}
    main = MAIN % {"out": types[out], "m": m, "k": k, "n": n, "groups": len(extents),
                   **{name: str(flag).lower() for name, flag in truths.items()}}  # fmt: skip
    raw = run_blocks_on_cpu(main, arrays, blocks, tmp_path)
    got = np.frombuffer(raw, jnp.dtype(out)).reshape(m, n)

    def wide(x, scales, *axes):
        for axis in axes:
            scales = np.repeat(scales, 128, axis)
        return np.asarray(x, np.float64) * scales[tuple(slice(s) for s in x.shape)]

    left, right = wide(lhs, scales[0], 1), wide(rhs, scales[1], 1, 2)
    want = np.zeros((m, n))
    for g, rows in ref.groups(extents, starts, m):
        want[rows] = left[rows] @ right[g].T
    assert (got[~owned] == 0).all()
    assert_close(got[owned], want[owned], dtype=out)
