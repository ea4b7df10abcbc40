"""CUDA: folds of few elements, each by one thread or as part of what needs it, and results of few elements a row."""

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from arrays import numbers
from tolerances import assert_close

import jax_fuser as jf

S = jax.ShapeDtypeStruct


def chosen(f, *operands):
    return jf.ir.compute_heuristics(jf.ir.trace(f, *operands), "reduction", "cuda")


def planned(f, *operands):
    return [schedule.fusion for schedule in jf.ir.propose(jf.ir.trace(f, *operands), "cuda")]


def check(f, *operands, kernels=1):
    """The planned kernels, run one after the other, leave what `f` does; their loops."""
    fusion = jf.ir.trace(f, *operands)
    known = dict(zip(fusion.inputs, operands, strict=True))
    made, text = [], ""
    schedules = jf.ir.propose(fusion, "cuda")
    for schedule in schedules:
        results = loop_interpreter.run(schedule, *[known[name] for name in schedule.fusion.inputs])
        known.update(zip(schedule.fusion.outputs, results, strict=True))
        made += results
        text += jf.ir.lower(schedule, "cuda").as_text("loops")
    assert len(schedules) == kernels
    want = jax.tree.leaves(f(*[np.asarray(x, np.float64) for x in operands]))
    for g, w in zip(made, want, strict=True):
        assert_close(g.reshape(w.shape), np.asarray(w).astype(g.dtype))
    return text


def pool(x):
    return x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2, x.shape[3]).sum((2, 4))


@pytest.mark.parametrize(
    ("f", "operands", "lanes"),
    [
        (lambda x: x.sum(1), [S((4096, 2, 1024), "float32")], 4),
        (lambda x: x.max(1), [S((4096, 7, 1024), "bfloat16")], 8),
        (lambda x: x.sum((0, 2)), [S((2, 2048, 3, 4097), "float32")], 1),
        (pool, [S((64, 112, 112, 64), "bfloat16")], 8),
        (lambda x: jax.nn.softmax(x, 1), [S((4096, 3, 1024), "float32")], 4),
    ],
)
def test_each_thread_folds_its_own_columns(f, operands, lanes):
    parameters = chosen(f, *operands)
    assert (parameters["along"], parameters["lanes"], parameters["threads_y"]) == ("rows", lanes, 1)


@pytest.mark.parametrize(
    "operand",
    [
        S((64, 2, 1024), "float32"),  # too few columns for every thread
        S((4096, 65, 1024), "float32"),  # many rows
        S((65536, 768), "bfloat16"),
    ],
)
def test_other_columns_are_folded_by_several(operand):
    parameters = chosen(lambda x: x.sum(operand.ndim - 2), operand)
    assert parameters["along"] == "columns" and parameters["threads_y"] > 1


@pytest.mark.parametrize("folded", [2, 3, 17])
@pytest.mark.parametrize(("columns", "lanes"), [(1, 1), (17, 1), (24, 4)])
def test_columns_of_threads(folded, columns, lanes):
    x = numbers(9, folded, columns)
    for f in (lambda x: x.sum(1), lambda x: (x.max(1), x - x.min(1, keepdims=True))):
        fusion = jf.ir.trace(f, x)
        wide = columns > 1
        given = {"along": "rows", "lane_loop": 2 if wide else 0, "lanes": lanes, "threads": 32, "unroll": 8}
        schedule = jf.ir.schedule(fusion, "reduction", "cuda", parameters={**given, "threads_y": 1})
        for g, w in zip(loop_interpreter.run(schedule, x), jax.tree.leaves(f(x)), strict=True):
            assert_close(g, np.asarray(w))


def squares(a, b):
    return ((a[:, None] - b[None]) ** 2).sum(-1)


def test_no_kernel_stores_what_pairs_fold():
    a, b = numbers(101, 3), numbers(131, 3)
    check(squares, a, b)
    check(lambda a, b: jnp.exp(-squares(a, b)).sum(1), a, b)
    check(lambda a, b: (squares(a, b).min(0), squares(a, b).min(1)), a, b, kernels=2)
    a, m = numbers(131, 3), np.abs(numbers(131))
    attract = lambda x, m: (  # noqa: E731
        (x[None] - x[:, None]) * (m[None] / (squares(x, x) + 1))[..., None]
    ).sum(1)
    check(attract, a, m)


def test_folds_of_what_is_no_larger_are_kernels():
    assert " = reduce" in str(planned(lambda x: (x * x).sum(-1), S((4096, 3), "float32"))[0])
    assert " = reduce" in str(planned(squares, S((64, 3), "float32"), S((64, 3), "float32"))[0])
    assert " = reduce" in str(planned(squares, S((4096, 9), "float32"), S((4096, 9), "float32"))[0])
    assert " = reduce" not in str(planned(squares, S((4096, 8), "float32"), S((4096, 8), "float32"))[0])


def test_folds_of_short_folds_are_one():
    twice = lambda x: x.sum(3).sum(1)  # noqa: E731
    check(twice, numbers(5, 2, 7, 3, 4))
    assert len(planned(twice, S((64, 2, 64, 2, 32), "float32"))) == 1
    assert len(planned(twice, S((64, 2, 64, 2, 32), "bfloat16"))) == 2  # what lies between is rounded
    assert len(planned(twice, S((64, 2, 64, 17, 32), "float32"))) == 2
    assert len(planned(lambda x: (x.sum(3), x.sum(3).sum(1)), S((64, 2, 64, 2, 32), "float32"))) == 2


def counts(x):
    return (jnp.floor(x[..., None] * 8).astype(jnp.int32) == jnp.arange(8)).sum(-2)


def test_counts_read_each_element_once():
    text = check(counts, np.abs(numbers(139, 301)) % 1)
    assert "width=8" in text and text.count("load x[") == 1
    parameters = chosen(counts, S((8192, 4097), "float32"))
    assert (parameters["along"], parameters["lanes"], parameters["threads"]) == ("columns", 8, 1)


def test_strided_elements_leave_threads_side_by_side():
    pack = lambda x: x[:, ::2].astype(jnp.uint8) | (x[:, 1::2].astype(jnp.uint8) << 4)  # noqa: E731
    fusion = jf.ir.trace(pack, S((8192, 8192), "float32"))
    assert jf.ir.compute_heuristics(fusion, "pointwise", "cuda")["lanes"] == 1
    halves = lambda x: x[:, :4096].astype(jnp.uint8) | (x[:, 4096:].astype(jnp.uint8) << 4)  # noqa: E731
    fusion = jf.ir.trace(halves, S((8192, 8192), "float32"))
    assert jf.ir.compute_heuristics(fusion, "pointwise", "cuda")["lanes"] == 4


@pytest.mark.parametrize("parts", [2, 5, 16])
def test_stacks_of_single_elements_are_stored_in_whole_vectors(parts):
    text = check(lambda *a: jnp.stack(a, -1), *[numbers(3, 17) + i for i in range(parts)])
    assert text.count("store") == 1


def test_butterflies_read_each_element_once():
    def level(z, h):
        y = z.reshape(z.shape[0], -1, 2, h)
        return jnp.concatenate([y[:, :, :1] + y[:, :, 1:], y[:, :, :1] - y[:, :, 1:]], 2).reshape(z.shape)

    text = check(lambda x: level(level(level(x, 1), 2), 4), numbers(3, 24))
    assert text.count("load") == 8


SHORT = {
    "sum": (lambda x: x.sum(-1), 4),
    "softmax": (lambda x: jax.nn.softmax(x, -1), 8),
    "logsumexp": (lambda x: jax.nn.logsumexp(x.astype("float32"), -1), 20),
    "norm": (lambda x: x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1), 2),
}


@pytest.mark.parametrize("name", SHORT)
def test_cpus_fold_short_rows_beside_each_other(name):
    """Their lanes go from row to row, up to as many elements as that pays for."""
    f, most = SHORT[name]
    for extent in (most, most + 1):
        text = jf.fuse(f).lower(jax.ShapeDtypeStruct((4096, extent), "float32")).as_text("loops", platform="cpu")
        assert ("over lanes" in text) == (extent > most), text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SHORT)
def test_values_of_short_rows(name, dtype):
    f, most = SHORT[name]
    for rows, extent in [(3, 1), (5, 2), (1031, most), (37, most + 1)]:
        x = jnp.asarray(numbers(rows, extent), dtype)
        assert_close(jf.fuse(f)(x), jax.jit(f)(x.astype("float32")), dtype)
