"""Kernels of rows as planned: any width, which exponentials may lose bits, rows side by side. No GPU is needed."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf


def softmax(x):
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)


def loss(x, labels):
    x = x.astype(jnp.float32)
    return jax.nn.logsumexp(x, axis=-1) - jnp.take_along_axis(x, labels[:, None], -1)[:, 0]


def weights_and_loss(x):
    x = x.astype(jnp.float32)
    return jnp.exp(x - x.max(-1, keepdims=True)), jnp.exp(x).sum(-1)


def kernel(f, *arrays):
    """The only kernel of a function on an H200: its fusion's schedule."""
    fusion = jf.ir.trace(f, *arrays)
    return jf.ir.schedule(fusion, "reduction", "cuda")


@pytest.mark.parametrize("columns", [31, 33, 127, 250, 360, 513, 1000, 1251])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_of_any_width(dtype, columns):
    x = jax.random.normal(jax.random.key(columns), (5, columns)).astype(dtype)
    [got] = loop_interpreter.run(kernel(softmax, x), np.asarray(x))
    assert_close(got, jax.nn.softmax(x.astype(jnp.float32)), dtype)


def test_threads_of_a_row_idle_little():
    for columns in (768, 1000, 2880, 4096, 5003, 5120, 7168, 8192, 16384):
        for dtype in ("bf16", "f32"):
            b = jf.ir.Builder("sums")
            b.output(b.reduce("reduce_sum", b.pointwise("exp", [b.input("x", dtype, [65536, columns])]), [1]))
            p = jf.ir.compute_heuristics(b.finish(), "reduction", "cuda")
            vectors = -(-columns // p["lanes"])
            assert vectors / (-(-vectors // p["threads"]) * p["threads"]) > 0.84, (columns, dtype, p)


@pytest.mark.parametrize(
    ("f", "dtype", "loose"),
    [
        (softmax, "bfloat16", True),  # rounded to 16 bits
        (softmax, "float32", False),
        (loss, "float32", True),  # only summed
        (weights_and_loss, "bfloat16", False),  # the one that is stored; the other is a kernel's own
    ],
)
def test_exponentials_lose_bits_only_where_nobody_sees_it(f, dtype, loose):
    x = jnp.zeros((64, 1024), dtype)
    arrays = (x, jnp.zeros(64, jnp.int32)) if f is loss else (x,)
    source = jf.ir.lower(jf.ir.trace(f, *arrays), "cuda").as_text("source")
    assert ("exp<jf::Loose>" in source) == (loose or f is weights_and_loss)
    assert ("jf::exp(" in source) == (not loose)


def centered(x):
    y = x.astype(jnp.float32)
    return (y - y.mean(-1, keepdims=True)).astype(x.dtype)


def centered_sum(x, y):
    return centered(x + y)


@pytest.mark.parametrize(
    ("f", "dtype", "packed"),
    [
        (softmax, "bfloat16", ["x_kept"]),  # not the exponentials, which are computed
        (centered, "bfloat16", ["x_kept"]),
        (centered, "float16", []),
        (centered, "float32", []),
        (centered_sum, "bfloat16", []),  # may have more digits than a bf16
    ],
)
def test_rows_as_they_were_read_are_kept_in_pairs(f, dtype, packed):
    arrays = [jax.ShapeDtypeStruct((8192, 4096), dtype)] * f.__code__.co_argcount
    source = jf.ir.lower(jf.ir.trace(f, *arrays), "cuda").as_text("source")
    assert re.findall(r"jf::Packed<8> (\w+)\[", source) == packed
    for array in packed:
        uses = re.findall(rf"(\S*){array}\[i\d+\]( = jf::pack)?", source)
        assert uses and all(written or read.endswith(">(") for read, written in uses)


@pytest.mark.parametrize(
    ("f", "dtype", "pairs"),
    [
        (softmax, "bfloat16", ["t2"]),
        (lambda x: x.min(-1), "bfloat16", ["t1_2"]),
        (lambda x: abs(x).max(-1), "bfloat16", []),  # computed
        (softmax, "float16", []),
        (softmax, "float32", []),
        (centered, "bfloat16", []),  # sums have more digits
    ],
)
def test_the_largest_of_what_was_read_is_found_in_pairs(f, dtype, pairs):
    source = jf.ir.lower(jf.ir.trace(f, jax.ShapeDtypeStruct((8192, 4096), dtype)), "cuda").as_text("source")
    assert re.findall(r"jf::Packed<8> (\w+)_pairs;", source) == pairs


@pytest.mark.parametrize("columns", [1 << 18, 1 << 19, 1 << 21])
def test_the_longest_rows_have_a_whole_block(columns):
    fusion = jf.ir.trace(lambda x: jax.nn.softmax(x, -1), jax.ShapeDtypeStruct((512, columns), "float32"))
    assert jf.ir.compute_heuristics(fusion, "reduction", "cuda")["threads"] >= 512


@pytest.mark.parametrize(("dtype", "rows"), [("float32", 1), ("float32", 4), ("bfloat16", 2), ("bfloat16", 4)])
def test_rows_side_by_side_on_the_cpu(dtype, rows):
    """Sums across the rows, in parts of 52 rows, the last one of 46, which 4 do not divide."""

    def backward(x, dy, g):
        x, dy = x.astype(jnp.float32), dy.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        t = dy * g
        return (scale * (t - x * scale**2 * jnp.mean(t * x, -1, keepdims=True))).astype(dtype), (dy * x * scale).sum(0)

    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(k, shape).astype(dtype) for k, shape in zip(keys, [(774, 72), (774, 72), (72,)])]
    first = jf.ir.propose(jf.ir.trace(backward, *arrays), "cpu")[0]
    parameters = jf.ir.compute_heuristics(first.fusion, "reduction", "cpu")
    assert parameters["rows"] == (2 if dtype == "float32" else 1)
    edited = jf.ir.schedule(first.fusion, "reduction", "cpu", {**parameters, "rows": rows})
    for got, want in zip(jf.ir.run(edited, *arrays), jf.ir.evaluate(first.fusion, *arrays)):
        assert_close(got, want)
    for got, want in zip(jf.fuse(backward)(*arrays), backward(*(a.astype(jnp.float32) for a in arrays))):
        assert_close(got, want, dtype)


@pytest.mark.parametrize(
    ("rows", "columns", "dtypes"),
    [(8192, 768, ["bfloat16"] * 12), (2049, 2731, ["bfloat16", "float32", "float32"]), (2049, 7001, ["bfloat16"] * 4)],
)
def test_rows_side_by_side_have_room_for_their_sums(rows, columns, dtypes):
    """Of so many inputs fewer rows are side by side, rather than what they need being two kernels."""

    def scaled_and_summed(*xs):
        total = sum(jnp.sin(x.astype(jnp.float32)) for x in xs)
        scaled = total * total.mean(1, keepdims=True)
        return scaled.astype(jnp.bfloat16), scaled.sum(0)

    arrays = [jax.ShapeDtypeStruct((rows, columns), dtype) for dtype in dtypes]
    assert len(jf.ir.propose(jf.ir.trace(scaled_and_summed, *arrays), "cuda")) == 2


def test_rows_side_by_side_need_a_fold_across_them():
    fusion = jf.ir.trace(lambda x: x - x.max(1, keepdims=True), jnp.zeros((64, 64)))
    with pytest.raises(jf.UserError, match="rows: nothing folds across rows"):
        jf.ir.schedule(fusion, "reduction", "cpu", {"rows": 2})


def test_what_a_row_takes_from_memory_is_read_before_its_folds():
    fusion = jf.ir.trace(loss, np.zeros((64, 4096), np.float32), np.zeros(64, np.int32))
    lowered = jf.ir.lower(fusion, "cuda")
    loops, source = lowered.as_text("loops"), lowered.as_text("source")
    assert max(m.start() for m in re.finditer(" load x", loops)) < loops.index("combine ")
    # Neither the label nor what lies there is left to a compiler that would read them last.
    assert len(re.findall(r"jf::load_ahead<(s32|f32)>\(", source)) == 2 and "load_splat" not in source


def test_parts_of_warps_read_nothing_ahead():
    """They would wait for threads that are not there."""
    for rows, columns, threads in ((32, 2, 16), (64, 4096, 128)):
        shapes = jax.ShapeDtypeStruct((rows, columns), "float16"), jax.ShapeDtypeStruct((rows,), "int32")
        source = jf.ir.lower(jf.ir.trace(loss, *shapes), "cuda").as_text("source")
        assert f"__launch_bounds__({threads})" in source
        assert ("load_ahead" in source) == (threads % 32 == 0)


def test_rows_that_no_cache_holds_leave_it_after_what_is_written():
    def source(rows):
        shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, 8192), (8192,))]
        return jf.ir.lower(jf.ir.trace(lambda x, g: centered(x) * g, *shapes), "cuda").as_text("source")

    assert re.findall(r"jf::load_lasting<f32, 8>\((\w+),", source(4096)) == ["x"]
    assert "load_lasting" not in source(4095)


@pytest.mark.parametrize(
    ("columns", "dtype", "threads", "unroll", "keep"),
    [
        (1024, "bfloat16", 32, 4, "rows"),
        (2048, "bfloat16", 64, 4, "rows"),
        (4096, "bfloat16", 128, 4, "rows"),
        (8192, "bfloat16", 256, 4, "rows"),
        (16384, "bfloat16", 512, 4, "rows"),  # two elements in a register
        (8192, "float16", 128, 8, "rows"),
        (16384, "float16", 512, 2, "nothing"),
        (5003, "bfloat16", 128, 5, "rows"),  # no whole vectors
        (4096, "float32", 256, 4, "rows"),
    ],
)
def test_threads_of_rows_that_are_only_read(columns, dtype, threads, unroll, keep):
    shapes = jax.ShapeDtypeStruct((16384, columns), dtype), jax.ShapeDtypeStruct((16384,), "int32")
    p = jf.ir.compute_heuristics(jf.ir.trace(loss, *shapes), "reduction", "cuda")
    assert (p["threads"], p["unroll"], p["keep"]) == (threads, unroll, keep)


def layer_norm(x, g, b):
    y = centered(x.astype(jnp.float32))
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True)) * g + b).astype(x.dtype)


@pytest.mark.parametrize(
    ("columns", "dtype", "threads", "rows", "unroll", "more"),
    [
        (768, "bfloat16", 32, 4, 3, True),
        (768, "float32", 64, 1, 3, False),
        (2048, "bfloat16", 64, 1, 4, False),
        (4096, "bfloat16", 64, 2, 8, False),
        (16384, "bfloat16", 256, 1, 8, False),
        (8192, "float16", 256, 1, 4, False),  # not in pairs
        (8192, "float32", 512, 1, 4, False),
    ],
)
def test_threads_of_rows_that_are_folded_twice(columns, dtype, threads, rows, unroll, more):
    x, g = jax.ShapeDtypeStruct((16384, columns), dtype), jax.ShapeDtypeStruct((columns,), dtype)
    p = jf.ir.compute_heuristics(jf.ir.trace(layer_norm, x, g, g), "reduction", "cuda")
    assert (p["threads"], p["threads_y"], p["unroll"], p["keep"]) == (threads, rows, unroll, "rows")
    assert (p["keep_columns"], p["keep_wide"]) == (more, more)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "tile", "threads"),
    [
        (2048, 768, "bfloat16", 64, 256),
        (16384, 768, "bfloat16", 64, 256),
        (16384, 8192, "bfloat16", 128, 512),
        (2048, 2048, "float32", 32, 128),
        (16384, 2048, "float32", 64, 256),
        (2047, 769, "bfloat16", 56, 448),  # turned in vectors
    ],
)
def test_few_tiles_are_small(rows, columns, dtype, tile, threads):
    fusion = jf.ir.trace(lambda x: x.T * 2, jax.ShapeDtypeStruct((rows, columns), dtype))
    p = jf.ir.compute_heuristics(fusion, "transpose", "cuda")
    assert (p["tile"], p["threads"]) == (tile, threads)


@pytest.mark.parametrize("columns", [2048, 16384])
def test_losses_of_long_rows(columns):
    x = 4 * jax.random.normal(jax.random.key(columns), (6, columns)).astype(jnp.bfloat16)
    x = x.at[1].set(-jnp.inf).at[1, 7].set(0).at[2, columns - 1].set(300)
    labels = jnp.array([0, 7, columns - 1, 5, -1, columns // 2])
    [got] = loop_interpreter.run(kernel(loss, x, labels), np.asarray(x), np.asarray(labels))
    assert_close(got, loss(x, labels), "float32")
