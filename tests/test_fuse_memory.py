"""How CPU kernels get at memory: tiles turned in registers, results beyond the caches, divisions by what loops keep."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

# The last ones have rows so long that tiles follow each other along them, alone and two beside each other.
SHAPES = [(64, 64), (33, 70), (100, 37), (5, 200), (257, 129), (17, 1000), (96, 1030), (128, 600)]


# Every shape with one dtype of each width, the others with two.
WIDTHS, OTHERS = ["float64", "float32", "bfloat16", "int8"], ["float16", "int64", "int32", "int16", "bool"]


@pytest.mark.parametrize(
    ("dtype", "shape"), [*itertools.product(WIDTHS, SHAPES), *itertools.product(OTHERS, SHAPES[1::4])], ids=str
)
def test_transposes_are_exact(device, dtype, shape):
    with jax.default_device(device), jax.enable_x64(True):
        x = np.arange(np.prod(shape)).reshape(shape) * 37 % 251 - 100
        x = x > 0 if dtype == "bool" else x.astype(jnp.dtype(dtype))
        for f in (lambda xp, x: (x.T, x.T[0] == x.T), lambda xp, x: xp.swapaxes(xp.stack([x, x]), 1, 2) == x[0, 0]):
            fused = jf.fuse(functools.partial(f, jnp), name="turned")
            jax.tree.map(np.testing.assert_array_equal, jax.jit(fused)(x), f(np, x))


@pytest.mark.parametrize(
    ("rows", "order"), [(4096, "along_rows vectors=2"), (4128, "along_rows vectors=1"), (4099, "")]
)
def test_tiles_follow_long_rows_where_they_store_whole_lines(rows, order):
    fusion = jf.ir.trace(lambda x: x.T * 2, jnp.ones((rows, 512), jnp.bfloat16))
    schedule = _core.stages(str(fusion), "cpu isa=avx512 vector_bytes=64")["schedule"]
    assert ("along_rows" in schedule) == bool(order) and order in schedule


@pytest.mark.parametrize(
    ("f", "columns", "unrolls", "fetches"),
    [
        (lambda x, y: x.T * 2, 4096, True, False),
        (lambda x, y: x.T + y[0], 4096, True, False),
        (lambda x, y: x.T + y, 4096, True, True),
        (lambda x, y: x.T + y, 4099, False, False),
        (lambda x, y: jnp.exp(x.T) + y, 4096, False, True),
    ],
)
def test_tiles_of_short_bodies_stay_in_registers(f, columns, unrolls, fetches):
    fusion = jf.ir.trace(f, jnp.ones((4096, columns)), jnp.ones((columns, 4096)))
    source = _core.stages(str(fusion), "cpu isa=avx512 vector_bytes=64")["source"]
    assert "load_turned" in source and ("jf::prefetch" in source) == fetches
    assert ("unroll" in source) == unrolls and ("task, true) : " in source) == unrolls


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32"])
@pytest.mark.parametrize("columns", [4096, 4099])
def test_large_transposes(device, dtype, columns):
    with jax.default_device(device):
        x = jnp.asarray(np.random.default_rng(0).integers(-99, 99, (2112, columns)), dtype)
        f = jax.jit(jf.fuse(lambda x, y: (x.T * 2, x.T + y)))
        for got, want in zip(f(x, x.T * 3), (np.asarray(x * 2).T, np.asarray(x * 4).T)):
            np.testing.assert_array_equal(got, want)


def test_a_tile_reads_nothing_outside_of_its_array():
    source = jf.fuse(lambda x: x.T * 2).lower(jnp.ones((70, 1000))).as_text("source")
    if "load_turned" in source:  # the CPU's
        assert "jf::below(64, " in source and ", on);" in source


@pytest.mark.parametrize("columns", [4096, 4099])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_beyond_the_caches(device, dtype, columns):
    # Run often: later results come on the pages of earlier ones, which are resident.
    with jax.default_device(device):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(2100, columns)), dtype)
        f = jax.jit(jf.fuse(lambda x: (jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype), x + 1, x.T * 2)))
        wide = np.asarray(x, np.float64)
        e = np.exp(wide - wide.max(-1, keepdims=True))
        want = [e / e.sum(-1, keepdims=True), np.asarray(x + 1), np.asarray(x.T * 2)]
        for again in range(3):
            softmax, more, transposed = map(np.asarray, f(x))
            assert_close(softmax, want[0], dtype) if again == 0 else np.testing.assert_array_equal(softmax, want[0])
            want[0] = softmax.copy()
            np.testing.assert_array_equal(more, want[1])
            np.testing.assert_array_equal(transposed, want[2])
            del softmax, more, transposed


def test_rows_divided_by_one_value_keep_what_division_gives(device):
    # The loop over a row multiplies by a reciprocal and mends the result.
    special = [
        0.0,
        -0.0,
        1.0,
        3.0,
        np.inf,
        -np.inf,
        np.nan,
        3e38,
        -3e38,
        1e-37,
        7.0,
        1e-30,
        123.456,
        2.0**-100,
        2.0**100,
    ]
    x = np.tile(np.array(special * 5, np.float32), (len(special) + 40, 1))
    divisors = np.concatenate([special, np.linspace(0.1, 40, 40)]).astype(np.float32)[:, None]
    with jax.default_device(device), np.errstate(all="ignore"):
        got = np.asarray(jax.jit(jf.fuse(lambda x, d: x / (d + jnp.sum(x * 0 == 1, -1, keepdims=True))))(x, divisors))
        want = x / (divisors + np.float32(0))  # no minus zero
        normal = (np.abs(want) > 2e-38) | (want == 0) | ~np.isfinite(want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))
    exact = device.platform == "cpu"
    np.testing.assert_allclose(got[normal], want[normal], rtol=1.2e-7 if exact else 3e-7, atol=0)


def test_the_maximum_of_rows_keeps_nan(device):
    x = np.random.default_rng(0).standard_normal((64, 1000)).astype(np.float32)
    x[np.arange(0, 64, 2), np.arange(0, 64, 2) * 15] = np.nan
    x[1] = -0.0
    with jax.default_device(device):
        low, high = jax.jit(jf.fuse(lambda x: (jnp.min(x, -1), jnp.max(x, -1))))(x)
    np.testing.assert_array_equal(low, x.min(-1))
    np.testing.assert_array_equal(high, x.max(-1))
