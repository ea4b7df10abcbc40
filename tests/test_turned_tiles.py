"""Transposes of arrays whose rows begin anywhere in memory: tiles in vectors, and results stay the same."""

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from test_cuda_sources import assert_no_spills, nvrtc_or_skip
from tolerances import assert_close

import jax_fuser as jf

BF16, F32 = jnp.bfloat16, jnp.float32
# By name: the function, the shapes of what it takes, their dtype.
TURNED = {
    "bf16": (lambda x: x.T * 2, [(155, 263)], BF16),
    "f32": (lambda x: x.T * 2, [(127, 131)], F32),
    "one row more than tiles have": (lambda x: x.T * 2, [(241, 121)], BF16),
    "rows of whole vectors": (lambda x: x.T * 2, [(131, 128)], BF16),
    "columns of whole vectors": (lambda x: x.T * 2, [(128, 131)], BF16),
    "batch": (lambda x: jnp.swapaxes(x, 1, 2) * 2, [(3, 131, 67)], BF16),
    "axes reversed": (lambda x: jnp.transpose(x, (2, 1, 0)) * 2, [(131, 3, 67)], BF16),
    "narrower": (lambda x: x.T.astype(BF16) * 2, [(131, 67)], F32),
    "wider": (lambda x: x.T.astype(F32) * 2, [(131, 67)], BF16),
    "columns": (lambda x, b: x.T * 2 + b[:, None], [(131, 67), (67,)], BF16),
    "rows": (lambda x, b: x.T * 2 + b, [(131, 67), (131,)], BF16),
    "beside": (lambda x, y: x.T * 2 + y, [(131, 67), (67, 131)], BF16),
    "two": (lambda x, y: x.T + y.T, [(131, 67), (131, 67)], F32),
    "two results": (lambda x: (x.T * 2, x.T + 1), [(131, 67)], BF16),
}
# What is taken one element at a time.
OTHERS = {
    "bytes": (lambda x: x.T * 2, [(131, 67)], jnp.int8),
    "counted": (lambda x: x.T + jnp.arange(131, dtype=F32), [(131, 67)], F32),
    "even": (lambda x: x.T * 2, [(132, 66)], BF16),
}


def arrays(shapes, dtype):
    rng = np.random.default_rng(0)
    return [(4 * rng.standard_normal(shape)).astype(dtype) for shape in shapes]


def loops(schedule):
    return jf.ir.lower(schedule, "cuda").as_text("loops")


def check(name, f, shapes, dtype, **parameters):
    args = arrays(shapes, dtype)
    fusion = jf.ir.trace(f, *args)
    chosen = {**jf.ir.compute_heuristics(fusion, "transpose", "cuda"), **parameters}
    schedule = jf.ir.schedule(fusion, "transpose", "cuda", chosen)
    for got, want in zip(loop_interpreter.run(schedule, *args), jax.tree.leaves(f(*args)), strict=True):
        assert_close(got, np.asarray(want))
    return schedule


@pytest.mark.parametrize("name", TURNED)
def test_tiles_go_in_vectors(name):
    schedule = check(name, *TURNED[name])
    assert " turn " in loops(schedule) and " whole" in loops(schedule)


@pytest.mark.parametrize("name", OTHERS)
def test_others_go_as_they_did(name):
    assert " turn " not in loops(check(name, *OTHERS[name]))


@pytest.mark.parametrize("tile", [40, 56, 64])
def test_every_tile_gives_the_same(tile):
    """Where the last tile ends too early for the last columns, elements go one at a time."""
    schedule = check("bf16", *TURNED["bf16"], tile=tile, threads=tile * 4)
    assert (" turn " in loops(schedule)) == (-(-155 // tile) * tile - 7 >= 155)


def test_turned_tiles_are_compiled(tmp_path):
    nvrtc_or_skip()
    for f, shapes, dtype in (TURNED["bf16"], TURNED["narrower"], TURNED["beside"]):
        fusion = jf.ir.trace(f, *arrays(shapes, dtype))
        [used] = assert_no_spills(str(fusion), tmp_path)
        assert used["STACK"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", TURNED)
def test_turned_tiles_on_a_gpu(name):
    f, shapes, dtype = TURNED[name]
    large = [tuple(4 * n + 3 if n > 3 else n for n in shape) for shape in shapes]
    if jax.default_backend() != "gpu":
        pytest.skip("no GPU")
    for sizes in (shapes, large):
        args = [jnp.asarray(a) for a in arrays(sizes, dtype)]
        for got, want in zip(jax.tree.leaves(jax.jit(jf.fuse(f))(*args)), jax.tree.leaves(f(*args)), strict=True):
            assert_close(got, np.asarray(want))


def test_an_array_meets_its_own_transpose():
    """Two reads of one input say nothing of each other's places."""
    f = lambda x: (x + x.T) * 0.5  # noqa: E731
    for n in (96, 67):
        x = np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
        [got] = loop_interpreter.run(jf.ir.schedule(jf.ir.trace(f, x), "transpose", "cuda"), x)
        assert_close(got, f(x))
    x = jax.ShapeDtypeStruct((2, 512, 512), "bfloat16")
    text = jf.fuse(lambda x: x + x.swapaxes(1, 2)).lower(x).as_text("loops", platform="cuda")
    assert text.count("kernel ") == 1
