"""CUDA: few rows that no blocks can keep are in parts, so that all multiprocessors read them, and nothing is stored in
between that is as fast to compute again."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import numbers as array
from test_ragged_plans import interpreted
from tolerances import assert_close

import jax_fuser as jf


def loops(f, *shape, dtype="float32", platform="cuda"):
    return jf.fuse(f).lower(jax.ShapeDtypeStruct(shape, dtype)).as_text("loops", platform=platform)


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "f"),
    [
        ((64, 1024, 511), lambda x: jax.nn.softmax(x, (1, 2))),
        ((64, 1_000_000), jax.nn.log_softmax),
        ((131, 1_000_003), jax.nn.softmax),
        ((64, 1_000_000), layer_norm),
    ],
)
def test_long_rows_are_read_three_times_by_all_multiprocessors(shape, f, dtype):
    kernels = loops(f, *shape, dtype=dtype).split("kernel ")[1:]
    reading = [text for text in kernels if "load x[" in text]
    assert len(reading) == sum(text.count("load x[") for text in kernels) == 3
    assert all(int(re.search(r"grid=(\d+)", text)[1]) > 3 * 132 for text in reading)
    assert not re.search(r"store (?!\w+_parts)", "".join(reading[:-1]))


def test_rows_that_blocks_share_or_that_are_enough_stay_whole():
    for shape in [(100, 131072), (132, 1_000_000)]:
        assert loops(jax.nn.softmax, *shape).count("kernel ") == 1


def test_parts_are_whole_vectors():
    """10 rows in 52 parts would have runs of 19231."""
    assert loops(lambda x: x.sum(1), 10, 1_000_000).startswith("# region 0: <lambda>\nkernel _lambda__0 width=4 ")


def test_what_is_compared_is_computed_once():
    """Else kernels might round it differently, and no element would be the largest."""
    for compare in (jnp.equal, jnp.greater_equal, jnp.less):
        text = loops(lambda x: compare(jnp.exp(x), jnp.exp(x).max(1, keepdims=True)), 2, 1_000_000)  # noqa: B023
        assert text.count("= exp ") == 1, compare


@pytest.mark.parametrize("f", [jax.nn.softmax, jax.nn.log_softmax, layer_norm, lambda x: x.sum(-1)])
def test_values(f):
    for columns in (33_001, 40_000):
        x = array(2, columns)
        with jax.enable_x64(True):
            want = np.asarray(f(jnp.float64(x)))
        [got] = interpreted(jf.ir.trace(f, x), x)
        assert_close(got, want, scale=4)
