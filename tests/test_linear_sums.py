"""Sums of multiples of what other folds give: they wait for those folds only afterwards."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf


def layer_norm(x, g, b):
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, -1, keepdims=True)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6) * g + b).astype(x.dtype)


def layer_norm_backward(x, dy, g, b):
    return jax.vjp(layer_norm, x, g, b)[1](dy)


def rms_norm_backward(x, dy, g):
    def f(x, g):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g

    return jax.vjp(f, x, g)[1](dy)


def first_kernel(f, *arrays):
    segments = jf.ir.lower(jf.ir.trace(f, *arrays), "cuda").as_text("segments")
    return jf.ir.Fusion("fusion" + segments.split("\nfusion", 1)[1].split("\n}", 1)[0] + "\n}\n")


def softmax_backward(x, dy):
    return jax.vjp(lambda x: jax.nn.softmax(x, -1), x)[1](dy)[0]


def weighted_means(x, y):
    scale = jnp.sum(jnp.abs(x), -1, keepdims=True)
    return jnp.sum(x / scale - y * jnp.sum(y, -1, keepdims=True) * y, -1)


def mean_of_centered(x, y):
    return jnp.sum(x * y - jnp.mean(x, -1, keepdims=True), -1)


def variance(x, y):
    return jnp.sum(jnp.square(x - jnp.mean(x, -1, keepdims=True)) * y, -1)


def total_times_columns(x, y):
    return jnp.sum(x * jnp.sum(y, 0) * jnp.sum(x, keepdims=True), -1)


def sum_of_largest_one(x):
    return jnp.sum(x / jnp.max(jnp.abs(x), -1, keepdims=True), -1)


def sum_of_squared_shares(x):
    shares = x / jnp.sum(jnp.abs(x), -1, keepdims=True)
    return jnp.sum(shares * shares, -1)


@pytest.mark.parametrize("f", [sum_of_largest_one, sum_of_squared_shares])
@pytest.mark.parametrize("scale", [1e-30, 1e34])
def test_what_is_scaled_so_that_it_fits(f, scale):
    x = jax.random.uniform(jax.random.key(2), (8, 3000), minval=0.5)
    assert_close(jf.fuse(f)(x * scale), f(x))


@pytest.mark.parametrize(
    ("f", "columns", "meetings"),
    [
        (layer_norm_backward, 2, 2),
        (rms_norm_backward, 1, 1),
        (softmax_backward, 0, 2),  # the maximum first
        (weighted_means, 0, 1),
        (mean_of_centered, 0, 2),  # as it is written: its parts are larger than their sum
        (variance, 0, 2),
        (total_times_columns, 0, 1),  # whose factors come from other kernels
    ],
)
def test_folds_one_after_the_other(f, columns, meetings):
    keys = jax.random.split(jax.random.key(0), 2 + columns)
    shapes = [(600, 256)] * 2 + [(256,)] * columns
    arrays = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes)]
    source = jf.ir.lower(jf.ir.trace(f, *arrays), "cuda").as_text("source").split("__global__")
    rows = [len(re.findall(r"fold_threads<[^;]*kX", kernel)) for kernel in source]
    assert max(rows) == meetings
    for got, want in zip(jax.tree.leaves(jf.fuse(f)(*arrays)), jax.tree.leaves(f(*arrays))):
        assert_close(got, want)


def far_from_the_mean(x, y):
    """What differs from a sixth of the sum and from the mean of something else does not add up to nothing."""
    total = jnp.sum(x, -1, keepdims=True)
    return jnp.sum((x - total / 6) * total, -1), jnp.sum((x - jnp.mean(y, -1, keepdims=True)) * total, -1)


def test_what_differs_from_its_mean_adds_up_to_nothing():
    arrays = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((600, 256), (600, 256), (256,), (256,))]
    # x, its variance, and two of the derivative; the fifth is 0
    assert str(first_kernel(layer_norm_backward, *arrays)).count("reduce_sum(") == 4 + 2
    x, y = (jax.random.normal(jax.random.key(i), (7, 96)) + i for i in (0, 1))
    for got, want in zip(jf.fuse(far_from_the_mean)(x, y), far_from_the_mean(x, y)):
        assert_close(got, want)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("keep_wide", [False, True])
def test_what_stays_in_registers(keep_wide, cluster):
    """The columns for all rows of a block, the rows as f32 from fold to fold."""
    keys = jax.random.split(jax.random.key(1), 4)
    shapes = [(515, 256)] * 2 + [(256,)] * 2
    arrays = [np.asarray(jax.random.normal(k, s).astype(jnp.bfloat16)) for k, s in zip(keys, shapes)]
    first = first_kernel(layer_norm_backward, *arrays)
    given = {"threads": 64 // cluster, "threads_y": 1, "lanes": 4, "unroll": 1, "keep": "rows", "stages": 2}
    schedule = jf.ir.schedule(
        first, "reduction", "cuda", {**given, "keep_columns": True, "keep_wide": keep_wide, "cluster": cluster}
    )
    used = arrays[: len(first.inputs)]
    for got, want in zip(loop_interpreter.run(schedule, *used), jf.ir.evaluate(first, *used)):
        assert_close(got, want, "bfloat16")


@pytest.mark.parametrize(("rows", "stages", "side_by_side"), [(1021, 3, 4), (512, 2, 2), (509, 1, 4), (634, 1, 5)])
def test_rows_side_by_side(rows, stages, side_by_side):
    """Warps of a block have neighbouring rows, in stages or all at once; the last runs lack some."""
    keys = jax.random.split(jax.random.key(2), 4)
    shapes = [(rows, 256)] * 2 + [(256,)] * 2
    arrays = [np.asarray(jax.random.normal(k, s).astype(jnp.bfloat16)) for k, s in zip(keys, shapes)]
    b = jf.ir.Builder("centred")
    x, y = (b.convert(b.input(name, "bf16", [rows, 256]), "f32") for name in "xy")
    product = b.pointwise("mul", [x, y])
    total = b.broadcast(b.reduce("reduce_sum", product, [1]), [rows, 256], [0])
    b.output(b.convert(b.pointwise("sub", [product, total]), "bf16"))
    b.output(b.reduce("reduce_sum", product, [0], parts=128))
    given = {"threads": 32, "threads_y": side_by_side, "lanes": 8, "unroll": 1, "keep": "rows", "stages": stages}
    more = {"keep_columns": True, "keep_wide": True}
    schedule = jf.ir.schedule(b.finish(), "reduction", "cuda", {**given, **more})
    product = np.prod(np.float32(arrays[:2]), 0)
    got, sums = map(np.asarray, loop_interpreter.run(schedule, *arrays[:2]))
    assert_close(got, product - product.sum(1, keepdims=True), "bfloat16")
    assert_close(sums.sum(0), product.sum(0))


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "threads", "stages", "parts"),
    [
        (8192, 4096, "bfloat16", 256, 2, 256),
        (16384, 8192, "bfloat16", 512, 3, 132),
        (65536, 768, "bfloat16", 64, 3, 1041),
        (8192, 4096, "float32", 256, 2, 256),
        (4096, 16384, "bfloat16", 512, 2, 132),  # 32 elements: the columns alone
        (2048, 4096, "bfloat16", 256, 2, 256),
        (2048, 2048, "bfloat16", 128, 3, 256),  # fewer blocks than have room: more stages
        (2000, 768, "bfloat16", 32, 1, 125),  # a warp's, 16 of a block at once
        (1000, 768, "bfloat16", 32, 1, 125),  # or 8
        (529, 768, "bfloat16", 32, 1, 106),
        (16384, 768, "bfloat16", 32, 3, 256),  # 4 at once
    ],
)
def test_even_rows_stay_in_registers(rows, columns, dtype, threads, stages, parts):
    """As planned: 16 or 12 elements for each thread, and the fewest runs of rows that take no longer."""
    x, g = jax.ShapeDtypeStruct((rows, columns), dtype), jax.ShapeDtypeStruct((columns,), dtype)
    first = first_kernel(layer_norm_backward, x, x, g, g)
    p = jf.ir.compute_heuristics(first, "reduction", "cuda")
    wide = dtype == "bfloat16" and columns < 16384
    assert (p["threads"], p["stages"], p["keep_columns"], p["keep_wide"]) == (threads, stages, True, wide)
    assert f"parts={parts}{'' if (threads, stages) == (32, 3) else ', in_turn'}" in str(first)


@pytest.mark.parametrize(("count", "rows", "side_by_side"), [(4, 2000, 16), (6, 2000, 1), (8, 8192, 4), (10, 8192, 1)])
def test_rows_side_by_side_have_room_in_registers(count, rows, side_by_side):
    """What is needed again after a row's folds stays there; of more than fits, a block has one row at a time."""

    def scaled_and_summed(*xs):
        xs = [x.astype(jnp.float32) for x in xs]
        scale = jnp.square(sum(xs)).mean(1, keepdims=True)
        summed = sum(x * scale * (i + 1.0) for i, x in enumerate(xs)).sum(0)
        return sum(jnp.sin(x * scale) for x in xs).astype(jnp.bfloat16), summed

    arrays = [jax.ShapeDtypeStruct((rows, 768), "bfloat16")] * count
    p = jf.ir.compute_heuristics(first_kernel(scaled_and_summed, *arrays), "reduction", "cuda")
    assert p["threads_y"] == side_by_side
