"""Axes along which rows are counted are one where they stay beside each other, so that norms plan as for matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf


def layer_norm(x, g, b):
    y = x - jnp.mean(x, -1, keepdims=True)
    return y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6) * g + b


def backward(x, dy, g, b):
    return jax.vjp(layer_norm, x, g, b)[1](dy)


def with_positions(x, dy, g, p):
    """The derivative of the positions is folded along the batch alone."""
    return jax.vjp(lambda x, g, p: layer_norm(x + p, g, 0), x, g, p)[1](dy)


def arrays(*shapes):
    return [np.random.default_rng(i).normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes)]


def kernels(f, *args, platform="cuda"):
    return jf.ir.lower(jf.ir.trace(f, *args), platform).as_text("segments").split("\nsegment ")


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(8, 2048, 768), (4, 2, 2048, 768), (1, 8, 2048, 768), (16384, 1, 768)])
def test_norms_of_more_axes_are_planned_as_of_matrices(shape, platform):
    flat, full = ([jax.ShapeDtypeStruct(s, "bfloat16")] * 2 for s in ((16384, 768), shape))
    g = [jax.ShapeDtypeStruct((768,), "bfloat16")] * 2
    found, want = (kernels(backward, *x, *g, platform=platform) for x in (full, flat))
    assert len(found) == len(want) == 2
    if 1 not in shape:
        assert found == want


@pytest.mark.parametrize("shape", [(5, 103, 24), (2, 3, 101, 24), (1, 530, 24), (3, 1, 200, 24)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_values(shape, keepdims):
    columns = (1,) * (len(shape) - 1) + shape[-1:] if keepdims else shape[-1:]
    x = arrays(shape, shape, columns, columns)
    for got, want in zip(jf.fuse(backward)(*x), backward(*x), strict=True):
        assert got.shape == want.shape
        assert_close(got, want)


def test_axes_that_part_ways_stay_apart():
    x = arrays((6, 90, 16), (6, 90, 16), (16,), (90, 16))
    assert "[6,90,16]" in kernels(with_positions, *x)[0]
    for got, want in zip(jf.fuse(with_positions)(*x), with_positions(*x), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x.sum((0, 1)), x.sum(2), jnp.swapaxes(x, 0, 1) * 2),  # another order
        lambda x: (x.sum((0, 1)), x.sum(2), x[1:, 2:]),  # a part of each
        lambda x: (x.sum((0, 1)), x.sum(2), jnp.cumsum(x, 1)),
        lambda x: (x.sum((0, 1)), x.sum(2), x + jnp.arange(7.0)[:, None]),
        lambda x: (x.sum((0, 1)), x.sum(2), x - x.max(0)),
        lambda x: (x.sum((0, 1)), x.sum(2), jnp.concatenate([x, x], 1)),
        lambda x: (x.sum((0, 1)), x.sum(2), x.reshape(35, 9) * 3),
        lambda x: (x.sum((0, 1)), x.sum((1, 2)), x.sum(2)),
        lambda x: (x.sum((0, 1), keepdims=True) + x, x.sum(2, keepdims=True) * x),
    ],
)
def test_what_knows_one_of_the_axes(f):
    [x] = arrays((5, 7, 9))
    for got, want in zip(jf.fuse(f)(x), f(x), strict=True):
        assert_close(got, want)


def test_batches_of_them():
    x = arrays((3, 5, 40, 16), (3, 5, 40, 16), (16,), (16,))
    f = jax.vmap(backward, in_axes=(0, 0, None, None))
    for got, want in zip(jf.fuse(f)(*x), f(*x), strict=True):
        assert_close(got, want)
