"""The kernel of 8-bit floats with scales for blocks, on a CPU: which elements, scales and rows it takes and stores,
with g++ for a GPU's compiler and threads for its threads."""

import subprocess
from pathlib import Path

import grouped_reference as ref
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

from jax_fuser import _core

ROOT = Path(__file__).parents[1]
STUBS = ("codegen/ptx.cuh", "codegen/ptx_convert.cuh", "grouped/cuda/ptx_hopper.cuh", "grouped/cuda/ptx_fp8.cuh",
         "grouped/cuda/hopper_rows.cuh")  # fmt: skip
MAIN = """
#include "grouped/cuda/hopper_fp8_blocks.cuh"
#include <cstdio>
#include <fstream>
#include <iterator>
using namespace jf;
std::vector<char> read(const char* name) {
  std::ifstream file(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
template <class T>
T* data(std::vector<char>& bytes) { return reinterpret_cast<T*>(bytes.data()); }

int main() {
  using Out = %(out)s;
  using Tile = grouped::HopperTile<128, 3, JF_BLOCKS>;
  using Kernel = grouped::HopperBlocks<grouped::Fp8<%(lhs)s, %(rhs)s>, Out, Tile, %(starts)s>;
  constexpr int m = %(m)d, k = %(k)d, n = %(n)d, groups = %(groups)d;
  auto lhs = read("lhs"), rhs = read("rhs"), lhs_scales = read("lhs_scales"), rhs_scales = read("rhs_scales");
  auto extents = read("extents"), starts = read("starts");
  std::vector<char> out(sizeof(Out) * m * n, -1);  // NaN
  const auto bytes = [](auto& a) { return reinterpret_cast<unsigned char*>(a.data()); };
  constexpr int size = sizeof(Out);
  const TensorMap maps[] = {{bytes(lhs), k, m, 1}, {bytes(rhs), k, n, 1}, {bytes(out), n * size, m, size}};
  const grouped::Ragged ragged = {data<int>(extents), data<int>(starts), groups, m};
  unsigned next = 0;
  gridDim.x = JF_BLOCKS;
  std::vector<std::thread> threads;
  for (unsigned block = 0; block < JF_BLOCKS; ++block) {
    for (unsigned id = 0; id < ptx::kThreads; ++id) {
      threads.emplace_back([&, block, id] {
        blockIdx.x = block, threadIdx.x = id, first_warp = block * (ptx::kThreads / 32);
        Kernel::run(ptx::memory[block].bytes, maps[0], maps[1], maps[2], ragged, data<Out>(out), &next, k, n,
                    {data<float>(lhs_scales), data<float>(rhs_scales)});
      });
    }
  }
  for (std::thread& t : threads) t.join();
  std::fwrite(out.data(), 1, out.size(), stdout);
}
"""


@pytest.mark.parametrize(
    ("extents", "starts", "k", "n", "dtypes", "out", "blocks"),
    [
        # Groups of a row, half a tile, a tile, more; none first, last and between; wide columns and narrow ones.
        ([0, 1, 64, 0, 65, 0], None, 144, 584, ("e4m3fn", "e4m3fn"), "bfloat16", 2),
        ([70, 129, 0, 3], [0, 75, 210, 215], 272, 136, ("e4m3fn", "e5m2"), "float32", 1),
    ],
)
def test_every_element_gets_its_own(extents, starts, k, n, dtypes, out, blocks, tmp_path):
    compiler = _core.host_compiler()[0]
    if not compiler.endswith("g++"):
        pytest.skip(f"the device headers are compiled by g++ here, got {compiler or 'no compiler'}")
    m, rng = 220, np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.normal(size=s), f"float8_{d}") for s, d in zip(((m, k), (len(extents), n, k)), dtypes))
    across = [-(-size // 128) for size in (k, n)]
    scales = [rng.uniform(0.5, 2, s).astype("float32") for s in ((m, across[0]), (len(extents), *across[::-1]))]
    owned = ref.owned_rows(extents, m, starts)
    scales[0][~owned] = np.nan
    arrays = {"lhs": lhs, "rhs": rhs, "lhs_scales": scales[0], "rhs_scales": scales[1],
              "extents": np.int32(extents), "starts": np.int32(starts if starts else [])}  # fmt: skip
    for name, array in arrays.items():
        (tmp_path / name).write_bytes(np.asarray(array).tobytes())
    for stub in STUBS:
        (tmp_path / stub).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / stub).write_text("#pragma once\n")
    types = {"bfloat16": "bf16", "float16": "f16", "float32": "float"}
    truths = {"lhs": dtypes[0] == "e5m2", "rhs": dtypes[1] == "e5m2", "starts": starts is not None}
    main = MAIN % {"out": types[out], "m": m, "k": k, "n": n, "groups": len(extents),
                   **{name: str(flag).lower() for name, flag in truths.items()}}  # fmt: skip
    texts = [(ROOT / "tests" / name).read_text() for name in ("warpgroup.h", "hopper_block.h")]
    (tmp_path / "main.cpp").write_text("".join(t.replace("#pragma once", "", 1) for t in texts) + main)
    flags = ["-std=c++20", "-O1", "-w", "-pthread", f"-DJF_BLOCKS={blocks}", f"-DJF_WARPS={12 * blocks}",
             f"-I{tmp_path}", f"-I{ROOT / 'csrc'}"]  # fmt: skip
    subprocess.run([compiler, *flags, "main.cpp", "-o", "main"], cwd=tmp_path, check=True)
    raw = subprocess.run(["./main"], cwd=tmp_path, check=True, capture_output=True, timeout=300).stdout
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
