"""Sums of exp(x - largest x) where each thread begins with the largest of its own rows, as their CUDA loops say."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip
from test_ragged_plans import contiguous, interpreted, sizes_of
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

GROUPS, ROWS, COLUMNS = 3, 150, 40


def own(fusion):
    return ["_own" in jf.ir.lower(s, "cuda").as_text("loops") for s in jf.ir.propose(fusion, "cuda")]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("offset", [0.0, -500.0, 500.0])
def test_each_thread_has_its_own(dtype, offset):
    fusion = contiguous(GROUPS, ROWS, COLUMNS, dtype)
    assert any(own(fusion))
    draw = np.random.default_rng(0)
    for sizes in sizes_of(GROUPS, ROWS).values():
        x = np.float32(draw.normal(offset, 3, (ROWS, COLUMNS)))
        x[draw.random(x.shape) < 0.6] = -np.inf  # also all that some threads have
        x[::7, 0], x[5, 1], x[6, 2] = -np.inf, np.inf, np.nan
        x[sum(sizes) :] = np.nan
        x = x.astype(jnp.dtype("bfloat16" if dtype == "bf16" else "float32"))
        ends = np.cumsum(sizes)
        largest, total = interpreted(fusion, x, np.int32(sizes))
        for g, (begin, n) in enumerate(zip(ends - sizes, sizes)):
            rows = np.float64(x[begin : begin + n])
            top = rows.max(0, initial=-np.inf)
            np.testing.assert_array_equal(largest[g], top.astype(np.float32))
            with np.errstate(invalid="ignore"):
                want = np.exp(rows - top).sum(0)
            assert_close(total[g], want, "float32")


def test_other_sums_wait_for_the_largest():
    """The largest of something else does not bound what a thread sums."""
    b = jf.ir.Builder("another")
    x, y = (b.input(name, "f32", [ROWS, COLUMNS]) for name in "xy")
    e = b.input("sizes", "s32", [GROUPS])
    end = b.broadcast(b.constant("s32", ROWS), [GROUPS], [])
    s = b.pointwise("min", [b.pointwise("sub", [b.scan("scan_sum", e, 0), e]), end])
    e = b.pointwise("min", [e, b.pointwise("sub", [end, s])])
    x, y = b.partition(x, s, e, 0, ROWS), b.partition(y, s, e, 0, ROWS)
    largest = b.broadcast_like(b.reduce("reduce_max", x, [1]), x, [0, 2])
    b.output(b.reduce("reduce_sum", b.pointwise("exp", [b.pointwise("sub", [y, largest])]), [1]))
    assert not any(own(b.finish()))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_it_compiles(dtype):
    nvrtc_or_skip()
    for _, _, cubin in _core.compile_cuda(str(contiguous(128, 65536, 2048, dtype)), _core.cuda_target_for(90)):
        assert cubin
