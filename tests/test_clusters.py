"""Rows of several blocks: the blocks of a cluster fold together what each of them has folded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf


def softmax(x):
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)


def layer_norm(x, g, b):
    y = x - x.mean(-1, keepdims=True)
    return y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * g + b


def norm_backward(x, g, dy):
    def f(x, g):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g

    return jax.vjp(f, x, g)[1](dy)


def kinds(x):
    """Folds of each kind, of integers and of numbers of 64 bits."""
    n = (x * 8).astype(jnp.int32)
    return n.sum(-1), n.min(-1), x.max(-1), (x > 2).any(-1), jnp.argmax(n, -1)


def in_cluster(f, arrays, blocks, **parameters):
    """Return the first kernel of a function, with rows of so many blocks."""
    segments = jf.ir.lower(jf.ir.trace(f, *arrays), "cuda").as_text("segments")
    first = jf.ir.Fusion("fusion" + segments.split("\nfusion", 1)[1].split("\n}", 1)[0] + "\n}\n")
    given = {"threads": 32, "threads_y": 1, "stages": 1, "cluster": blocks, **parameters}
    return jf.ir.schedule(first, "reduction", "cuda", parameters=given)


def numbers(*shape, dtype="float32"):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


@pytest.fixture(params=["loops", pytest.param("cuda", marks=pytest.mark.gpu)])
def run(request):
    """Run a schedule as its loops say, in numpy, and on a device that has clusters where there is one."""
    if request.param == "loops":
        yield loop_interpreter.run
        return
    with jax.default_device(hopper_or_skip()):
        yield jf.ir.run


@pytest.mark.parametrize("columns", [96, 520, 1000, 1001])
@pytest.mark.parametrize("blocks", [2, 3, 8])
@pytest.mark.parametrize("keep", ["rows", "nothing"])
def test_rows_of_several_blocks(run, keep, blocks, columns):
    x = numbers(3, columns, dtype=jnp.bfloat16)
    [got] = run(in_cluster(softmax, [x], blocks, keep=keep), x)
    assert_close(got, jax.nn.softmax(np.float32(x)), "bfloat16")


@pytest.mark.parametrize("threads", [16, 64])
def test_folds_that_follow_each_other(run, threads):
    x, g, b = numbers(5, 777), numbers(777), numbers(777)
    [got] = run(in_cluster(layer_norm, [x, g, b], 4, threads=threads), x, g, b)
    assert_close(got, layer_norm(x, g, b))


def test_sums_across_rows_of_several_blocks(run):
    """Each block folds its own columns; rows come one after the other, so slots are used again."""
    x, g, dy = numbers(514, 264), numbers(264), numbers(514, 264)
    schedule = in_cluster(norm_backward, [x, g, dy], 2, lanes=4, keep="rows", unroll=2)
    given = {"x": x, "g": g, "dy": dy}
    arrays = [x, dy, g] if schedule.fusion.shape(schedule.fusion.inputs[1]) == [514, 264] else [x, g, dy]
    del given
    outs = run(schedule, *arrays)
    want = norm_backward(x, g, dy)
    for got in outs:
        got = np.asarray(got)
        exact = want[0] if got.shape == x.shape else want[1]
        assert_close(got if got.shape == x.shape else got.reshape(-1, 264).sum(0), exact, scale=4)


def test_folds_of_each_kind(run):
    x = numbers(4, 1000)
    fusion = jf.ir.trace(kinds, x)
    parameters = {"threads": 64, "threads_y": 1, "cluster": 4, "keep": "rows"}
    schedule = jf.ir.schedule(fusion, "reduction", "cuda", parameters=parameters)
    for got, exact in zip(run(schedule, x), kinds(x), strict=True):
        np.testing.assert_array_equal(got, exact)
