"""CUDA: many short rows of any length share warps, so that few threads idle."""

import re

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from arrays import numbers as array
from tolerances import assert_close

import jax_fuser as jf


def mean_and_argmax(v, a):
    q = v[:, None] + a - a.mean(-1, keepdims=True)
    return q.argmax(-1), q.max(-1)


def block(f, *shapes, dtype="float32"):
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    text = jf.fuse(f).lower(*args).as_text("loops", platform="cuda")
    return re.search(r"width=(\d+) .*block=(\w+)", text).groups()


@pytest.mark.parametrize(
    ("columns", "want"),
    [
        (64, ("4", "16x8")),  # whole vectors, as ever
        (17, ("1", "4x32")),
        (18, ("2", "4x32")),
        (21, ("1", "8x16")),
        (51, ("1", "16x8")),
        (63, ("1", "16x8")),
        (100, ("4", "16x8")),
        (256, ("4", "32x4")),
    ],
)
def test_threads_of_short_rows(columns, want):
    assert block(jax.nn.softmax, (1_000_003, columns)) == want


@pytest.mark.parametrize(
    ("columns", "dtype", "want"),
    [(9, "float32", "2x64"), (15, "float32", "2x64"), (21, "float32", "4x32"), (63, "float32", "8x16"),
     (21, "bfloat16", "2x64"), (33, "bfloat16", "4x32"), (63, "bfloat16", "8x16")],
)  # fmt: skip
def test_rows_that_are_only_folded_have_few_threads(columns, dtype, want):
    assert block(lambda x: x.sum(-1), (1_000_003, columns), dtype=dtype) == ("1", want)


def test_threads_of_rows_that_caches_have():
    f = lambda x, y: (jnp.abs(x[:, None] - jnp.arange(51.0)[:, None]) * y[:, None]).sum(-1)  # noqa: E731
    assert block(f, (131072, 51), (131072, 51)) == ("1", "8x16")


def test_few_rows_have_a_warp_each():
    assert block(jax.nn.softmax, (1000, 18)) == ("1", "32x4")


@pytest.mark.parametrize(("columns", "threads", "lanes"), [(17, 8, 1), (18, 4, 2), (51, 8, 1), (100, 16, 4)])
def test_values(columns, threads, lanes):
    v, a = array(37), array(37, columns)
    fusion = jf.ir.trace(mean_and_argmax, v, a)
    chosen = jf.ir.compute_heuristics(fusion, "reduction", "cuda")
    chosen |= {
        "threads": threads,
        "threads_y": 128 // threads,
        "lanes": lanes,
        "unroll": -(-columns // lanes // threads),
    }
    index, best = loop_interpreter.run(jf.ir.schedule(fusion, "reduction", "cuda", parameters=chosen), v, a)
    want = np.float64(v)[:, None] + a - np.float64(a).mean(-1, keepdims=True)
    np.testing.assert_array_equal(index, want.argmax(-1))
    assert_close(best, want.max(-1))
