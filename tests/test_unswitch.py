"""Rows that a condition leaves out are neither read nor computed."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loop_interpreter import run
from tolerances import assert_close

import jax_fuser as jf

ROWS, COLUMNS = 40, 1536


def gelu_of_groups(data, extents, bias):
    return jf.nested.map(jax.nn.gelu, jf.as_nested(data, extents=extents) + bias).data


def masked_rows(data, extents, bias):
    """A dense mask, and rows of constants where it does not hold."""
    mask = (jnp.arange(data.shape[0]) % 3 == 1) & (extents.sum() > 2)
    return jnp.where(mask[:, None], jnp.tanh(data) * data, 7.0), jnp.where(mask[:, None], bias[0], 0)


def either(data, extents, bias):
    mask = jnp.arange(data.shape[0]) > extents[0]
    return jnp.where(~mask[:, None] | (extents[1] > 100), 1, jnp.exp(data))


def norms_of_rows(data, extents, bias):
    nt = jf.as_nested(data, extents=extents)
    return jf.nested.rms_norm(nt, -1).data, jf.nested.softmax(nt, -1).data


FUNCTIONS = [gelu_of_groups, masked_rows, either, norms_of_rows]


@pytest.mark.parametrize("extents", [[0, 0, 0], [10, 0, 13], [20, 1, 19]])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_results(device, f, dtype, extents):
    rng = np.random.default_rng(0)
    data, bias = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((ROWS, COLUMNS), (3, 1, COLUMNS)))
    data = data if f is masked_rows else data.at[sum(extents) :].set(jnp.nan)
    got, want = (jax.tree.leaves(g(data, jnp.asarray(extents), bias)) for g in (jf.fuse(f), f))
    for a, b in zip(got, want):
        keep = np.isfinite(np.asarray(b, np.float32))
        assert_close(np.asarray(a, np.float32)[keep], np.asarray(b, np.float32)[keep], dtype)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_nothing_is_read_where_the_condition_does_not_hold(f, platform):
    shape = jax.ShapeDtypeStruct((1 << 14, COLUMNS), "float32")
    args = shape, jax.ShapeDtypeStruct((3,), "int32"), jax.ShapeDtypeStruct((3, 1, COLUMNS), "float32")
    loops = jf.fuse(f).lower(*args).as_text("loops", platform=platform)
    kernel = next(part for part in re.split(r"\n(?=kernel )", loops) if "  if r" in part or "  if not r" in part)
    choices = r"(?=\n( +)if (not )?r\d+\n((?:\1 .+\n)+)\1if (not )?r\d+\n((?:\1 .+\n?)+))"
    *_, found = re.finditer(choices, kernel)  # those of one row stand in those of several
    assert bool(found[2]) != bool(found[4])
    bodies = [found[3], found[5]]
    assert sorted("load" in body for body in bodies) == [False, True]
    assert all("store" in body for body in bodies)
    assert all("select" not in body for body in bodies if "load" not in body)


def test_padding_of_a_kernel_for_gpus_in_the_interpreter():
    """As the GPU runs it: rows behind the last group are not read, others are all computed."""
    b = jf.ir.Builder("rows")
    x, n = b.input("x", "f32", [12, 64]), b.input("n", "s32", [])
    row = b.iota("s32", [12], 0)
    mask = b.broadcast(b.pointwise("lt", [row, b.broadcast(n, [12], [])]), [12, 64], [0])
    zero = b.broadcast(b.constant("f32", 0.0), [12, 64], [])
    b.output(b.pointwise("select", [mask, b.pointwise("mul", [x, x]), zero]))
    fusion = b.finish()
    data = np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32)
    for platform in ("cpu", "cuda"):
        parameters = jf.ir.compute_heuristics(fusion, "pointwise", platform)
        schedule = jf.ir.schedule(fusion, "pointwise", platform, parameters)
        assert re.search(r"if (not )?r\d+\n", jf.ir.lower(schedule, platform).as_text("loops"))
        for count in (0, 5, 12):
            [got] = run(schedule, data, np.int32(count), platform=platform)
            np.testing.assert_array_equal(got, np.where(np.arange(12)[:, None] < count, data * data, 0))
