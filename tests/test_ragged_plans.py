"""What the compiler plans by itself for nested values: folds of rows in parts, and rows combined, on every platform."""

import math

import jax
import jax.numpy as jnp
import loop_interpreter
import loop_ops
import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _ir_text

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16, "s32": jnp.int32}
FOLDS = {
    "sum": (np.sum, 0),
    "max": (np.max, -np.inf),
    "min": (np.min, np.inf),
    "prod": (np.prod, 1),
}


def sizes_of(groups, rows):
    """Return lists of sizes; what they leave over is padding."""
    draw = np.random.default_rng(groups * rows)
    uneven = draw.multinomial(max(rows - 3, 0), draw.dirichlet(np.full(groups, 0.3)))
    return {
        "all empty": [0] * groups,
        "all in the first": [rows] + [0] * (groups - 1),
        "nearly all in the last": [0] * (groups - 1) + [max(rows - 5, 0)],
        "even": [rows // groups] * groups,
        "uneven": list(uneven),
    }


def inputs(sizes, rows, columns, dtype="f32"):
    draw = np.random.default_rng(0)
    groups = len(sizes)
    x = draw.uniform(0.5, 1.5, (rows, columns)).astype(np.float32)
    w = draw.uniform(0.9, 1.1, (groups, columns)).astype(np.float32)
    if dtype == "s32":
        x, w = np.round(4 * x), np.round(w)
    else:
        x[sum(sizes) :] = np.nan
    ends = np.cumsum(sizes)
    starts, extents = (ends - sizes).astype(np.int32), np.asarray(sizes, np.int32)
    return np.asarray(jnp.asarray(x, DTYPES[dtype])), np.asarray(jnp.asarray(w, DTYPES[dtype])), starts, extents


def start(groups, rows, columns, dtype="f32"):
    b = jf.ir.Builder("nested")
    x, w = b.input("x", dtype, [rows, columns]), b.input("w", dtype, [groups, columns])
    s, e = b.input("starts", "s32", [groups]), b.input("sizes", "s32", [groups])
    n = b.partition(x, s, e, 0, rows)
    return b, b.pointwise("mul", [n, b.broadcast_like(w, n, [0, 2])]), s, e


def folds(groups, rows, columns, dtype="f32", ops=("sum", "max")):
    b, scaled, *_ = start(groups, rows, columns, dtype)
    for op in ops:
        b.output(b.reduce(f"reduce_{op}", scaled, [1]))
    return b.finish()


def fold_truth(arrays, ops):
    x, w, starts, extents = arrays
    parts = [np.float64(x[s : s + n]) * np.float64(w[g]) for g, (s, n) in enumerate(zip(starts, extents))]
    return [np.stack([FOLDS[op][0](p, axis=0, initial=FOLDS[op][1]) for p in parts]) for op in ops]


def interpreted(fusion, *arrays):
    """Run the planned kernels for CUDA one after the other as their loops say."""
    known, wholes = dict(zip(fusion.inputs, arrays)), {}
    schedules = jf.ir.propose(fusion, "cuda")
    stored = {name for schedule in schedules for name in schedule.fusion.outputs}
    for op in _ir_text.ops(fusion):
        # Each part of it is stored by a kernel, which may be another one than that of the others.
        if op.kind == "concat" and op.result not in stored:
            whole = loop_interpreter.Buffer(op.result, op.dtype, math.prod(op.shape))
            known[op.result] = whole.data.reshape(op.shape)
            wholes |= dict.fromkeys(op.operands, whole)
    for schedule in schedules:
        made = loop_interpreter.run(schedule, *(known[name] for name in schedule.fusion.inputs), wholes=wholes)
        known.update(zip(schedule.fusion.outputs, made))
    assert all(whole.written.all() for name, whole in wholes.items() if name in stored)
    return [known[name] for name in fusion.outputs]


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 5, 4), (4, 13, 6), (2, 700, 5), (8, 2048, 96), (5, 4096, 1), (16, 300, 33)]
)
def test_folds_of_rows(device, shape):
    groups, rows, columns = shape
    fusion = folds(*shape)
    for name, sizes in sizes_of(groups, rows).items():
        arrays = inputs(sizes, rows, columns)
        got = jf.ir.run(fusion, *arrays)
        for g, want in zip(got, fold_truth(arrays, ("sum", "max"))):
            np.testing.assert_array_equal(np.isinf(g), np.isinf(want), err_msg=name)
            assert_close(np.where(np.isinf(g), 0, g), np.where(np.isinf(want), 0, want), "float32")


@pytest.mark.parametrize("dtype", ["bf16", "f16", "s32"])
@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
def test_dtypes_and_folds(device, op, dtype):
    groups, rows, columns = 4, 640, 24
    fusion = folds(groups, rows, columns, dtype, (op,))
    arrays = inputs([0, 3, 600, 2] if op != "prod" else [0, 3, 5, 2], rows, columns, dtype)
    [got], [want] = jf.ir.run(fusion, *arrays), jf.ir.evaluate(fusion, *arrays)
    assert got.dtype == DTYPES[dtype]
    if dtype == "s32":
        np.testing.assert_array_equal(got, want)
    else:
        finite = np.isfinite(np.float32(want))
        np.testing.assert_array_equal(np.isfinite(np.float32(got)), finite)
        assert_close(jnp.where(finite, got, 0), jnp.where(finite, want, 0))


def test_sums_of_many_rows_are_taken_in_float32(device):
    """In bf16 a sum of ones stays at 256."""
    b = jf.ir.Builder("ones")
    x, s, e = b.input("x", "bf16", [4096, 8]), b.input("starts", "s32", [2]), b.input("sizes", "s32", [2])
    b.output(b.reduce("reduce_sum", b.partition(x, s, e, 0, 4096), [1]))
    [got] = jf.ir.run(b.finish(), jnp.ones((4096, 8), jnp.bfloat16), jnp.array([0, 4000]), jnp.array([4000, 96]))
    np.testing.assert_array_equal(np.float32(got), [[4000] * 8, [96] * 8])


def test_a_fold_needs_another_one_and_its_running_sum(device):
    """Between kernels: what follows from a fold along components is no value of their kernel."""
    b, scaled, *_ = start(6, 40, 4)
    total = b.reduce("reduce_sum", scaled, [1])
    own, before = (b.broadcast_like(t, scaled, [0, 2]) for t in (total, b.scan("scan_sum", total, 0)))
    b.output(b.reduce("reduce_sum", b.pointwise("add", [b.pointwise("mul", [scaled, own]), before]), [1]))
    fusion, arrays = b.finish(), inputs([9, 0, 20, 1, 0, 4], 40, 4)
    [got], [total] = jf.ir.run(fusion, *arrays), fold_truth(arrays, ("sum",))
    assert_close(got, total * total + np.cumsum(total, 0) * arrays[3][:, None], "float32")


def test_a_fold_of_rows_that_are_known_after_another_one(device):
    """What a fold reads from memory is stored before its kernel, though another fold of the rows could run earlier."""
    sizes = [3, 0, 4]
    b, scaled, starts, e = start(3, 8, 4)
    group = b.convert(b.search(b.scan("scan_sum", e, 0), b.iota("s32", [8], 0)), "f32")
    groups = b.partition(b.broadcast(group, [8, 4], [0]), starts, e, 0, 8)
    below = b.pointwise("sub", [scaled, b.broadcast_like(b.reduce("reduce_max", scaled, [1]), scaled, [0, 2])])
    b.output(b.reduce("reduce_sum", b.pointwise("mul", [below, groups]), [1]))
    arrays = inputs(sizes, 8, 4)
    largest, total = fold_truth(arrays, ("max", "sum"))
    want = [[0.0] * 4 if n == 0 else g * (total[g] - n * largest[g]) for g, n in enumerate(sizes)]
    assert_close(jf.ir.run(b.finish(), *arrays)[0], np.asarray(want), "float32")


def test_one_value_by_component_and_by_row(device):
    """With as many rows as components, what numbers both is read at rows, and as it is along components."""
    b, scaled, starts, e = start(3, 3, 4)
    number = b.iota("f32", [3], 0)
    rows = b.broadcast(b.partition(b.broadcast(number, [3, 4], [0]), starts, e, 0, 3), [3, 3, 4], [0, 1, 2])
    b.output(b.reduce("reduce_sum", b.pointwise("mul", [b.pointwise("mul", [scaled, rows]), rows]), [1]))
    own = b.broadcast_like(number, scaled, [0])
    row = b.partition(number, starts, e, 0, 3)
    both = b.pointwise("sub", [own, b.broadcast(row, [3, 3, 4], [0, 1])])
    b.output(b.reduce("reduce_max", both, [1]))
    x, w, *_ = arrays = inputs([0, 2, 1], 3, 4)
    squares, most = jf.ir.run(b.finish(), *arrays)
    assert_close(squares, np.stack([0 * w[0], x[1] * w[1], 4 * x[2] * w[2]]), "float32")
    np.testing.assert_array_equal(most, np.repeat([[-np.inf], [1.0], [0.0]], 4, axis=1))


def test_a_mean_is_one_program(device):
    groups, rows, columns = 4, 1000, 16
    b, scaled, _, e = start(groups, rows, columns)
    total = b.reduce("reduce_sum", scaled, [1])
    one = b.broadcast(b.constant("s32", 1), [groups], [])
    count = b.convert(b.pointwise("max", [e, one]), "f32")
    b.output(b.pointwise("div", [total, b.broadcast(count, [groups, columns], [0])]))
    fusion = b.finish()
    arrays = inputs([0, 990, 3, 1], rows, columns)
    [sums] = fold_truth(arrays, ("sum",))
    assert_close(jf.ir.run(fusion, *arrays)[0], sums / np.maximum(arrays[3], 1)[:, None], "float32")


def softmax(groups, rows, columns, dtype="f32"):
    b, scaled, s, _ = start(groups, rows, columns, dtype)
    scaled = b.convert(scaled, "f32")
    largest = b.broadcast_like(b.reduce("reduce_max", scaled, [1]), scaled, [0, 2])
    power = b.pointwise("exp", [b.pointwise("sub", [scaled, largest])])
    total = b.broadcast_like(b.reduce("reduce_sum", power, [1]), power, [0, 2])
    b.output(b.combine(b.convert(b.pointwise("div", [power, total]), dtype), s, rows))
    return b.finish()


def softmax_truth(arrays):
    x, w, starts, extents = arrays
    want = np.zeros(x.shape)
    for g, (s, n) in enumerate(zip(starts, extents)):
        if n:
            scaled = np.float64(x[s : s + n]) * np.float64(w[g])
            power = np.exp(scaled - scaled.max(axis=0))
            want[s : s + n] = power / power.sum(axis=0)
    return want


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (8, 2048, 96), (4, 640, 3)])
def test_softmax_over_rows(device, shape):
    groups, rows, columns = shape
    fusion = softmax(*shape)
    for sizes in sizes_of(groups, rows).values():
        arrays = inputs(sizes, rows, columns)
        [got] = jf.ir.run(fusion, *arrays)
        want = softmax_truth(arrays)
        np.testing.assert_array_equal(np.asarray(got)[sum(sizes) :], 0)
        assert_close(got, want, "float32")


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (2, 160, 40), (3, 130, 1)])
def test_kernels_for_cuda(shape):
    groups, rows, columns = shape
    for sizes in sizes_of(groups, rows).values():
        arrays = inputs(sizes, rows, columns)
        for got, want in zip(interpreted(folds(*shape), *arrays), fold_truth(arrays, ("sum", "max"))):
            assert_close(np.where(np.isinf(got), 0, got), np.where(np.isinf(want), 0, want), "float32")
        assert_close(interpreted(softmax(*shape), *arrays)[0], softmax_truth(arrays), "float32")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s32"])
@pytest.mark.parametrize("shape", [(3, 7), (2, 1000), (4, 70000)])
def test_rows_of_one_element(device, shape, dtype):
    """On CPUs lanes go along the rows."""
    groups, rows = shape
    tolerance = "float32" if dtype == "s32" else DTYPES[dtype]
    b = jf.ir.Builder("one_element")
    x, e, s = b.input("x", dtype, [rows]), b.input("sizes", "s32", [groups]), b.input("starts", "s32", [groups])
    w = b.input("w", dtype, [groups])
    nested = b.partition(x, s, e, 0, rows)
    scaled = b.pointwise("mul", [nested, b.broadcast_like(w, nested, [0])])
    b.output(b.reduce("reduce_sum", scaled, [1]))
    b.output(b.reduce("reduce_max", nested, [1]))
    b.output(b.combine(scaled, s, rows))
    fusion = b.finish()
    if device.platform == "cpu" and rows > 1000:
        assert "jf::load_rows<" in jf.ir.lower(fusion, "cpu").as_text("source")
    for sizes in sizes_of(groups, rows).values():
        x, w, starts, extents = inputs(sizes, rows, 1, dtype)
        x, w = x[:, 0], w[:, 0]
        got = [np.float64(a) for a in jf.ir.run(fusion, x, extents, starts, w)]
        each = [np.float64(x[s : s + n]) for s, n in zip(starts, extents)]
        assert_close(got[0], [part.sum() * np.float64(f) for part, f in zip(each, w)], tolerance)
        for top, part in zip(got[1], each):
            assert part.size == 0 or top == part.max()
        want = np.zeros(rows)
        for s, n, part, f in zip(starts, extents, each, w):
            want[s : s + n] = part * np.float64(f)
        assert_close(got[2], want, tolerance)


@pytest.mark.parametrize("rows", [40, 700])  # components as a whole, and in parts
def test_what_follows_folds_is_in_their_kernel(device, rows):
    b, scaled, *_ = start(3, rows, 8)
    largest = b.reduce("reduce_max", scaled, [1])
    power = b.pointwise("exp", [b.pointwise("sub", [scaled, b.broadcast_like(largest, scaled, [0, 2])])])
    total = b.reduce("reduce_sum", power, [1])
    b.output(b.pointwise("add", [b.pointwise("log", [total]), largest]))
    b.output(b.pointwise("neg", [largest]))
    fusion = b.finish()
    last = jf.ir.propose(fusion, "cuda")[-1].fusion
    assert set(fusion.outputs) == set(last.outputs) and largest not in last.outputs
    for sizes in ([3, rows - 5, 2], [rows, 0, 0]):
        arrays = inputs(sizes, rows, 8)
        [top] = fold_truth(arrays, ("max",))
        x, w, starts, extents = arrays
        there = np.flatnonzero(extents)
        parts = [np.float64(x[starts[g] : starts[g] + extents[g]]) * np.float64(w[g]) for g in there]
        want = np.stack([np.log(np.exp(p).sum(0)) for p in parts])
        for got, lowest in (jf.ir.run(fusion, *arrays), interpreted(fusion, *arrays)):
            assert_close(np.asarray(got)[there], want, "float32")
            assert_close(np.asarray(lowest)[there], -top[there], "float32")


def contiguous(groups, rows, columns, dtype="f32"):
    """Softmax over the rows of groups that follow each other: starts are computed from the sizes."""
    b = jf.ir.Builder("contiguous")
    x, e = b.input("x", dtype, [rows, columns]), b.input("sizes", "s32", [groups])
    end = b.broadcast(b.constant("s32", rows), [groups], [])
    s = b.pointwise("min", [b.pointwise("sub", [b.scan("scan_sum", e, 0), e]), end])
    behind = b.pointwise("sub", [end, s])
    nested = b.convert(b.partition(x, s, b.pointwise("min", [e, behind]), 0, rows), "f32")
    largest = b.reduce("reduce_max", nested, [1])
    power = b.pointwise("exp", [b.pointwise("sub", [nested, b.broadcast_like(largest, nested, [0, 2])])])
    b.output(largest)
    b.output(b.reduce("reduce_sum", power, [1]))
    return b.finish()


@pytest.mark.parametrize("shape", [(2, 160, 40), (3, 700, 8), (5, 4096, 72)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_groups_that_follow_each_other(device, shape, dtype):
    groups, rows, columns = shape
    fusion = contiguous(*shape, dtype)
    # The rows of each part are read once.
    text = jf.ir.lower(fusion, "cuda").as_text("schedule")
    planned = [line for line in text.splitlines() if ": nested lanes" in line]
    assert planned[0].endswith(" keep")
    # They are kept as they are in memory, and what all of them need is computed before the loop over them.
    loops = jf.ir.lower(fusion, "cuda").as_text("loops")
    kept = [line.split() for line in loops.splitlines() if "_in_parts: " in line]
    assert [array[-1].split("[")[0] for array in kept] == [dtype]
    assert loops.count("_shifted_2[0] = ") == 1
    for sizes in [*sizes_of(groups, rows).values(), [rows] * groups]:
        x, _, starts, extents = inputs(sizes, rows, columns, dtype)
        parts = [np.float64(x[min(s, rows) : min(s + n, rows)]) for s, n in zip(starts, extents)]
        runs = [jf.ir.run(fusion, x, extents)]
        if rows * columns < 10000:
            runs.append(interpreted(fusion, x, extents))
        for largest, total in runs:
            for part, top, powers in zip(parts, np.asarray(largest), np.asarray(total)):
                np.testing.assert_array_equal(top, part.max(0, initial=-np.inf))
                assert_close(powers, np.exp(part - part.max(0, initial=-np.inf)).sum(0), "float32")


def test_sizes_that_are_not_cut_off_where_the_array_ends(device):
    """Groups behind the end read the last row again: there are more rows of all groups than the array has."""
    groups, rows, cap = 4, 4096, 3000
    b = jf.ir.Builder("capped")
    x, e = b.input("x", "f32", [rows, 8]), b.input("sizes", "s32", [groups])
    starts = b.pointwise("sub", [b.scan("scan_sum", e, 0), e])
    sizes = b.pointwise("min", [e, b.broadcast(b.constant("s32", cap), [groups], [])])
    b.output(b.reduce("reduce_sum", b.partition(x, starts, sizes, 0, rows), [1]))
    x, sizes = np.random.default_rng(0).normal(size=(rows, 8)).astype("f"), np.array([4096, 3000, 3000, 10], np.int32)
    got = jf.ir.run(b.finish(), x, sizes)
    for start, size, total in zip(np.cumsum(sizes) - sizes, np.minimum(sizes, cap), np.asarray(got).reshape(groups, 8)):
        assert_close(total, x[np.minimum(start + np.arange(size), rows - 1)].sum(0), "float32", scale=10)


def test_cuda_sources_compile():
    nvrtc_or_skip()
    for dtype in ("f32", "bf16"):
        for shape in [(3, 7, 5), (8, 2048, 96), (64, 8192, 1024), (5, 4096, 1)]:
            more = [contiguous(*shape, dtype)] if shape == (8, 2048, 96) else []
            for fusion in (folds(*shape, dtype=dtype), softmax(*shape, dtype=dtype), *more):
                for _, _, cubin in _core.compile_cuda(str(fusion), _core.cuda_target_for(90)):
                    assert cubin


def test_a_fold_of_components_and_rows(device):
    groups, rows, columns = 4, 1000, 16
    b, scaled, *_ = start(groups, rows, columns)
    b.output(b.reduce("reduce_sum", scaled, [0, 1]))
    b.output(b.reduce("reduce_sum", scaled, [1, 2]))
    b.output(b.reduce("reduce_sum", scaled, [0, 1, 2]))
    fusion = b.finish()
    for sizes in sizes_of(groups, rows).values():
        arrays = inputs(sizes, rows, columns)
        [sums] = fold_truth(arrays, ("sum",))
        for got, axes in zip(jf.ir.run(fusion, *arrays), (0, 1, None)):
            assert_close(got, sums.sum(axis=axes), "float32")


def test_outer_axes_have_extents_of_their_own(device):
    b = jf.ir.Builder("outer")
    x = b.input("x", "f32", [2, 640, 6])
    s, e = b.input("starts", "s32", [2, 3]), b.input("sizes", "s32", [2, 3])
    n = b.transpose(b.partition(x, s, e, 1, 640), [3, 2, 0, 1])
    b.output(b.reduce("reduce_sum", n, [1]))
    b.output(b.combine(b.transpose(b.pointwise("neg", [n]), [2, 3, 1, 0]), s, 640))
    fusion = b.finish()
    (x0, _, s0, e0), (x1, _, s1, e1) = inputs([0, 500, 3], 640, 6), inputs([2, 0, 638], 640, 6)
    x, s, e = np.stack([x0, x1]), np.stack([s0, s1]), np.stack([e0, e1])
    sums, rows = jf.ir.run(fusion, x, s, e)
    ones = np.ones((3, 6), np.float32)
    want = np.stack([fold_truth((x[i], ones, s[i], e[i]), ("sum",))[0].T for i in range(2)], axis=1)
    assert_close(sums, want, "float32")
    ends = e.sum(axis=1)[:, None, None]
    np.testing.assert_array_equal(rows, np.where(np.arange(640)[None, :, None] < ends, -x, 0))


def test_extents_and_rows_may_be_computed(device):
    """Counts come from a scan and rows from a fold, each in a kernel of its own; what is combined is read again."""
    groups, rows, columns = 4, 700, 8
    b = jf.ir.Builder("computed")
    x, e = b.input("x", "f32", [rows, columns]), b.input("sizes", "s32", [groups])
    twice = b.pointwise("add", [e, e])
    s = b.pointwise("sub", [b.scan("scan_sum", twice, 0), twice])
    norm = b.pointwise("sqrt", [b.reduce("reduce_sum", b.pointwise("square", [x]), [1])])
    unit = b.pointwise("div", [x, b.broadcast(norm, [rows, columns], [0])])
    n = b.partition(unit, s, twice, 0, rows)
    b.output(b.reduce("reduce_sum", n, [1]))
    back = b.combine(b.pointwise("exp", [n]), s, rows)
    b.output(b.reduce("reduce_max", b.pointwise("neg", [back]), [0]))
    fusion = b.finish()
    x, sizes = inputs([rows, 0, 0, 0], rows, columns)[0], np.array([0, 150, 1, 190], np.int32)
    unit = x / np.sqrt(np.square(x).sum(axis=1, keepdims=True))
    ends = np.cumsum(2 * sizes)
    want = np.stack([unit[end - 2 * n : end].sum(axis=0) for end, n in zip(ends, sizes)])
    sums, least = jf.ir.run(fusion, x, sizes)
    assert_close(sums, want, "float32")
    assert_close(least, -np.append(np.exp(unit[: ends[-1]]), np.zeros((1, columns)), axis=0).min(axis=0), "float32")


def test_equal_inputs_give_equal_bits(device):
    fusion = folds(8, 4096, 64, ops=("sum",))
    arrays = inputs([0, 4000, 1, 2, 3, 4, 5, 6], 4096, 64)
    first, second = jf.ir.run(fusion, *arrays), jf.ir.run(fusion, *arrays)
    np.testing.assert_array_equal(first[0], second[0])
    # A row that moves to another component leaves the others as they are.
    moved = [*arrays[:3], arrays[3] - np.eye(8, dtype=np.int32)[1]]
    np.testing.assert_array_equal(np.delete(jf.ir.run(fusion, *moved)[0], 1, 0), np.delete(first[0], 1, 0))


def test_gradients_and_batches(device):
    groups, rows, columns = 3, 100, 4
    fusion = folds(groups, rows, columns, ops=("sum",))
    x, w, starts, extents = inputs([0, 60, 30], rows, columns)
    got = jax.grad(lambda x: jnp.square(jf.ir.run(fusion, x, w, starts, extents)[0]).sum())(jnp.asarray(x))
    [sums] = fold_truth((x, w, starts, extents), ("sum",))
    want = np.zeros(x.shape)
    for g, (s, n) in enumerate(zip(starts, extents)):
        want[s : s + n] = 2 * sums[g] * w[g]
    assert_close(got, want, "float32")
    batch = jnp.stack([jnp.asarray(x), 2 * jnp.asarray(x)])
    [many] = jax.vmap(lambda x: jf.ir.run(fusion, x, w, starts, extents))(batch)
    assert_close(many, np.stack([sums, 2 * sums]), "float32")


def test_nothing(device):
    for groups, rows in ((0, 5), (3, 0), (0, 0)):
        fusion = folds(groups, rows, 4, ops=("sum",))
        x, w, e = jnp.ones((rows, 4)), jnp.ones((groups, 4)), jnp.zeros(groups, jnp.int32)
        np.testing.assert_array_equal(jf.ir.run(fusion, x, w, e, e)[0], np.zeros((groups, 4)))
        b, scaled, s, _ = start(groups, rows, 4)
        b.output(b.combine(scaled, s, rows + 2))
        np.testing.assert_array_equal(jf.ir.run(b.finish(), x, w, e, e)[0], np.zeros((rows + 2, 4)))


def test_parts_share_one_large_component():
    """On the CPU the parts of a component are tasks of their own, on CUDA blocks."""
    for platform, parallel in (("cpu", "task"), ("cuda", "block")):
        nested = [s for s in jf.ir.propose(folds(8, 8192, 256), platform) if "partition" in str(s.fusion)]
        schedule, _ = nested  # the second one folds the parts of each component
        extents = dict((kind, extent) for extent, kind in schedule.loops(schedule.fusion.outputs[0]))
        assert extents[parallel] >= 64


def test_sums_go_along_whole_rows_on_the_cpu(device):
    """In strips as wide as sums have room for in a cache; where components are few, narrower ones are more tasks."""

    def width(groups, rows, ops):
        of_parts, *_ = (
            s for s in jf.ir.propose(folds(groups, rows, 4096, ops=ops), "cpu") if "partition" in str(s.fusion)
        )
        *_, (strip, _), (lanes, _) = of_parts.loops(of_parts.fusion.outputs[0])
        return strip * lanes

    whole = width(8, 8192, ("sum",))
    assert whole == 2 * width(8, 8192, ("sum", "max")) and whole >= 1024
    assert width(1, 60, ("sum",)) < whole
    arrays = inputs([0, 30, 0, 93, 0, 1, 140, 60], 330, 4096)
    for got, want in zip(jf.ir.run(folds(8, 330, 4096), *arrays), fold_truth(arrays, ("sum", "max"))):
        assert_close(np.where(np.isinf(got), 0, got), np.where(np.isinf(want), 0, want), "float32")


def test_strategies_say_where_nested_values_are_planned():
    reason = jf.ir.can_schedule(folds(3, 5, 4), "reduction", "cpu")[1]
    assert "is nested; see propose" in reason


def test_kernels_that_place_parts_of_one_output():
    """Folds of unlike arrays are two kernels, whose results are parts of one array that a third one reads."""
    b = jf.ir.Builder("parts")
    x, y = b.input("x", "f32", [6, 40]), b.input("y", "f32", [5, 40])
    total = b.broadcast(b.reduce("reduce_sum", x, [1]), [6, 40], [0])
    largest = b.broadcast(b.reduce("reduce_max", y, [0]), [5, 40], [1])
    whole = b.concat([b.pointwise("sub", [x, total]), b.pointwise("sub", [y, largest])], 0)
    for output in (whole, b.reduce("reduce_max", whole, [0])):
        b.output(output)
    fusion = b.finish()
    x, y = (np.random.default_rng(n).normal(size=(n, 40)).astype(np.float32) for n in (6, 5))
    want = np.concatenate([x - x.sum(1, keepdims=True), y - y.max(0)])
    assert any("place(" in str(schedule.fusion) for schedule in jf.ir.propose(fusion, "cuda"))
    for got, right in zip(interpreted(fusion, x, y), (want, want.max(0)), strict=True):
        assert_close(got, right)


BINARY = ["ne", "eq", "or_", "xor_", "and_", "rem", "shift_left", "shift_right_logical", "shift_right_arithmetic"]


@pytest.mark.parametrize("dtype", ["s32", "u8", "s16", "f32"])
def test_ops_of_loop_programs(dtype):
    """What the loops are run with is what kernels compute."""
    b = jf.ir.Builder("ops")
    x, y = b.input("x", dtype, [256]), b.input("y", dtype, [256])
    for op in [op for op in BINARY if dtype != "f32" or op in ("ne", "eq", "rem")]:
        b.output(b.pointwise(op, [x, y]))
    if dtype != "u8":
        b.output(b.pointwise("sign", [x]))
    fusion = b.finish()
    draw, low = np.random.default_rng(0), 0 if dtype == "u8" else -40
    x, y = (draw.integers(low, 40, 256).astype(loop_ops.DTYPES[dtype]) for _ in "xy")
    for got, want in zip(interpreted(fusion, x, y), jf.ir.run(fusion, x, y), strict=True):
        np.testing.assert_array_equal(got, want)
