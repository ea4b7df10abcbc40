"""Grouped products on the kernels of compute capability 9.0: which are chosen, that they compile, and on such a GPU the
numbers at every ragged edge."""

import re
import subprocess

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import grouped, nvrtc_or_skip, resources, tool
from test_tma import hopper_or_skip
from tolerances import assert_close

from jax_fuser import _core

HOPPER = _core.cuda_target_for(90)


def chosen(*program, sm: int = 90) -> str:
    [facts] = _core.facts(grouped(*program), _core.cuda_target_for(sm))
    return facts["parameters"]


def test_few_kernels_serve_any_number_of_rows():
    for mode, most in (("rows", 3), ("contraction", 1)):
        rows = [*range(1, 70), *range(100, 40000, 411)]
        programs = [grouped(mode, False, False, "bf16", "bf16", 2048, 1536, m) for m in rows]
        sources = {_core.stages(p, HOPPER)["source"] for p in programs}
        assert all("hopper_" in s for s in sources)
        assert 1 <= len(sources) <= most


@pytest.mark.parametrize(("out", "tile"), [("bf16", "tile=192x128"), ("f32", "tile=64x128")])
def test_tiles_are_estimated_in_the_steps_that_the_kernel_has(out, tile):
    """Groups of 230 rows: two tiles of 120, where steps are 8 rows, are better than four of 64; two of 128 are not."""
    assert tile in chosen("rows", False, False, "bf16", out, 2048, 1536, 8 * 230)


@pytest.mark.parametrize(
    ("program", "sm", "why"),
    [
        (("rows", False, False, "bf16", "bf16", 1024, 2048), 80, "compute capability 8.0, it has that of 9.0"),
        (("rows", False, False, "bf16", "bf16", 1024, 2048), 100, "compute capability 10.0"),
        (("rows", False, False, "bf16", "bf16", 1022, 2048), 90, "k=1022 gives rows that are not multiples of 16"),
        (("contraction", False, True, "f16", "f32", 64, 36), 90, "n=36 gives rows that are not multiples of 16"),
        (("rows", True, False, "f32", "f32", 64, 64), 90, "f32 * f32 -> f32, it takes bf16 * bf16"),
        (("batch", False, False, "bf16", "bf16", 64, 64), 90, "the ragged axis is a batch axis"),
        (("contraction", False, False, "bf16", "bf16", 64, 64, 0), 90, "an operand is empty"),
        (("rows", False, False, "bf16", "bf16", 64, 64, 2**31 - 8), 90, "m=2147483640, it takes 2147418112"),
    ],
)
def test_other_kernels_say_why(program, sm, why):
    assert "mma.sync" in chosen(*program, sm=sm) and f"no wgmma: {why}" in chosen(*program, sm=sm)


def test_units_come_from_a_queue_where_they_take_unlike_times():
    """Few rows wait for weights, and what all clusters begin at once is not taken in turn."""
    for m, n, units in ((256, 8192, "shared"), (257, 8192, "queued"), (1024, 256, "shared")):
        assert f"units={units}" in chosen("rows", False, False, "bf16", "bf16", 2048, n, m)
    assert "units" not in chosen("contraction", False, False, "bf16", "bf16", 2048, 1536)


@pytest.mark.parametrize(
    ("program", "tile"),
    [
        (("rows", False, False, "bf16", "bf16", 4096, 14336, 16384), "tile=192x128x64 stages=4 cluster=2"),
        (("rows", True, True, "bf16", "f32", 2880, 2400, 200), "tile=64x128x64 stages=8 cluster=2"),
        (("rows", True, True, "bf16", "f32", 2880, 800, 200), "tile=64x128x64 stages=8 cluster=1 split=2"),
        (("rows", False, True, "f16", "f16", 512, 128, 1024), "cluster=1"),
        (("contraction", False, False, "bf16", "bf16", 2048, 1536), "tile=128x192x64 stages=4 cluster=1"),
        (("contraction", False, True, "f16", "f32", 520, 256), "tile=128x128x64 stages=5 cluster=1"),
    ],
)
def test_kernels_compile_to_warpgroup_products(program, tile, tmp_path):
    """Nothing spills, tensor copies feed products, and what tells a product its operands stays in uniform registers."""
    assert chosen(*program).startswith("wgmma, ") and tile in chosen(*program)
    nvrtc_or_skip()
    [(_, _, cubin)] = _core.compile_cuda(grouped(*program), HOPPER)
    [used] = resources(cubin, tmp_path / "kernel.cubin")
    assert used["LOCAL"] == 0 and used["STACK"] == 0 and used["REG"] <= 168
    text = sass(tmp_path / "kernel.cubin")
    count = {op: len(re.findall(rf"\b{op}\b", text)) for op in ("HGMMA", "UTMALDG", "R2UR", "WARPGROUP.DEPBAR")}
    assert count["HGMMA"] >= 2 and count["UTMALDG"] >= 2
    assert count["R2UR"] < count["HGMMA"] + 32
    assert 0 < count["WARPGROUP.DEPBAR"] <= count["HGMMA"] // 2 + 1  # products overlap


def sass(cubin) -> str:
    return subprocess.run([tool("cuobjdump"), "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout


# Extents for 700 rows, with the starts that leave gaps, if any.
EDGES = {
    "first and last empty": ([0, 333, 1, 0, 300, 66, 0], None),
    "all empty": ([0, 0, 0], None),
    "all in one": ([0, 700, 0, 0], None),
    "one group": ([700], None),
    "below capacity": ([129, 0, 64, 7], None),
    "odd": ([1, 63, 65, 127, 129, 255, 13], None),
    "beyond capacity": ([500, 500, 3], None),
    "gaps": ([100, 0, 257, 31], [3, 120, 140, 669]),
}
PROBLEMS = [  # mode, dtype, result, k, n
    ("rows", "bfloat16", "bfloat16", 2880, 768),
    ("rows_t", "bfloat16", "float32", 136, 2880),
    ("rows", "float16", "float16", 8, 264),
    ("rows_t", "float16", "float32", 520, 72),
    ("contraction", "bfloat16", "bfloat16", 2880, 768),
    ("contraction", "float16", "float32", 136, 520),
    ("contraction", "bfloat16", "float32", 8, 72),
]


@pytest.mark.gpu
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("mode", "dtype", "out", "k", "n"), PROBLEMS)
def test_ragged_edges_on_hopper(mode, dtype, out, k, n, edge):
    device = hopper_or_skip()
    rows = 700
    extents, starts = EDGES[edge]
    lhs, rhs = ref.make(mode, extents, rows, k, n)
    lhs, rhs = (np.array(jnp.asarray(x, dtype).astype("float32")) for x in (lhs, rhs))
    # A group of NaN, with more padding of NaN behind it: neither reaches a row or a matrix that is not its own.
    poisoned = int(np.argmax(extents)) if len(extents) > 4 else None
    want = ref.truth(mode, lhs, rhs, extents, starts)
    ours = np.ones(len(want), bool)
    padding = ~ref.owned_rows(extents, rows, starts)
    for g, span in ref.groups(extents, starts, rows):
        if g == poisoned:
            padding[span] = True
            ours[g if mode == "contraction" else span] = False
    lhs[padding] = np.nan
    if mode == "contraction":
        rhs[padding] = np.inf
    with jax.default_device(device):
        jax.block_until_ready(jnp.full(want.shape, jnp.nan, out))  # what the result's memory may hold
        got = np.asarray(
            ref.run(mode, jnp.asarray(lhs, dtype), jnp.asarray(rhs, dtype), extents, starts, jnp.dtype(out))
        )
    assert np.isnan(got[~ours].astype("float32")).all()
    assert_close(got[ours], want[ours])
    if mode == "contraction":
        assert (got[np.asarray(extents) == 0] == 0).all()
    else:
        assert (got[~ref.owned_rows(extents, rows, starts)] == 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("mode", "rows"), [("rows", 6000), ("rows_t", 6000), ("contraction", 6000), ("rows", 1000), ("rows_t", 1000)]
)
def test_many_groups_and_tiles_on_hopper(mode, rows):
    """Every block takes several tiles, of groups with very different sizes, from a queue or where rows are few its
    share."""
    device = hopper_or_skip()
    rng = np.random.default_rng(0)
    extents = rng.multinomial(rows, rng.dirichlet(np.full(130, 0.3))).astype(np.int32)
    lhs, rhs = ref.make(mode, extents, rows + 100, 320, 1152)
    lhs, rhs = (jnp.asarray(x, "bfloat16") for x in (lhs, rhs))
    with jax.default_device(device):
        got = ref.run(mode, *jax.device_put((lhs, rhs), device), extents)
    assert_close(got, ref.truth(mode, *(np.asarray(x, "float32") for x in (lhs, rhs)), extents))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("mode", "dtype", "k", "n"),
    [
        ("rows", "bfloat16", 2568, 1352),  # 72 columns are left for two blocks: each computes rows of its own
        ("rows_t", "float16", 136, 2880),
        ("contraction", "bfloat16", 264, 640),  # tiles of 192 columns, then two of 128
        ("contraction", "float16", 72, 512),
    ],
)
def test_last_tiles_on_hopper(mode, dtype, k, n):
    """Columns and rows that fill no tile are shared out, and groups end within a step of rows."""
    device = hopper_or_skip()
    extents = np.array([0, 1801, 1, 193, 385, 0, 2000, 577, 0, 8, 17, 33, 49], np.int32)
    rows = int(extents.sum()) + 40
    lhs, rhs = (np.array(jnp.asarray(x, dtype).astype("float32")) for x in ref.make(mode, extents, rows, k, n))
    want = ref.truth(mode, lhs, rhs, extents)
    lhs[extents.sum() :] = np.nan
    with jax.default_device(device):
        got = np.asarray(
            ref.run(mode, jnp.asarray(lhs, dtype), jnp.asarray(rhs, dtype), extents, None, jnp.dtype(dtype))
        )
    assert_close(got, want)
