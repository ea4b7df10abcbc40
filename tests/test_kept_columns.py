"""CUDA: columns that are folded and read again stay in registers, in blocks of as few columns as that takes."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from arrays import numbers as array
from tolerances import assert_close

import jax_fuser as jf


def softmax(axis):
    return lambda x: jax.nn.softmax(x.astype(jnp.float32), axis).astype(x.dtype)


def layer_norm(axis):
    return lambda x: (x - x.mean(axis, keepdims=True)) * jax.lax.rsqrt(x.var(axis, keepdims=True) + 1e-3)


def loops(f, shape, dtype="float32"):
    return jf.fuse(f).lower(jax.ShapeDtypeStruct(shape, dtype)).as_text("loops", platform="cuda")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((512, 65536), 0),
        ((2048, 16384), 0),
        ((300, 5003), 0),  # rows begin anywhere
        ((512, 512), 0),  # few columns
        ((64, 1024, 3), 1),
        ((256, 150, 1024), 1),
        ((127, 513, 1023), 1),
        ((32, 32, 32, 256), (1, 2)),
    ],
)
def test_columns_are_read_once(shape, axis, dtype):
    for f in (softmax(axis), layer_norm(axis)):
        text = loops(f, shape, dtype)
        assert text.count("kernel ") == text.count("load x[") == 1


def test_blocks_read_lines_where_they_can():
    found = {
        rows: [int(n) for n in re.search(r"block=(\d+)x(\d+)", loops(softmax(0), (rows, 32768)))[0][6:].split("x")]
        for rows in (512, 1024, 2048, 4096)
    }
    assert found == {512: [8, 32], 1024: [4, 64], 2048: [2, 128], 4096: [2, 256]}  # vectors of 16 bytes


def test_columns_that_are_read_once_or_are_too_long_are_not_kept():
    assert "block=8x" not in loops(lambda x: x.sum(0), (512, 65536))
    assert loops(softmax(0), (16384, 65536)).count("load x[") == 3


@pytest.mark.parametrize(("shape", "axis"), [((300, 17), 0), ((2, 270, 5), 1), ((1, 264, 3), 1), ((257, 64), 0)])
def test_values(shape, axis):
    x = array(*shape)
    for f, want in (
        (softmax(axis), np.exp(np.float64(x)) / np.exp(np.float64(x)).sum(axis, keepdims=True)),
        (layer_norm(axis), layer_norm_of(np.float64(x), axis)),
    ):
        schedule = jf.ir.schedule(jf.ir.trace(f, x), "reduction", "cuda")
        assert jf.ir.lower(schedule, "cuda").as_text("loops").count("load x[") == 1
        [got] = loop_interpreter.run(schedule, x)
        assert_close(got, want, scale=2)


def layer_norm_of(x, axis):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-3)


@pytest.mark.parametrize("shape", [(1, 5), (3, 1), (17, 17), (300, 1), (0, 4), (4, 0)])
def test_any_size(device, shape):
    x = array(*shape)
    got = jf.fuse(softmax(0))(x)
    assert got.shape == shape
    if x.size:
        assert_close(got, np.exp(np.float64(x)) / np.exp(np.float64(x)).sum(0))
