"""Schedules of nested values by hand, on every machine: what exists is computed, and nothing else is read or stored.

Truth is one component at a time in numpy. Rows of no component are NaN, and so is what a wrong row would bring in.
"""

import random
import re

import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

G, M, H = 4, 13, 6
# Sizes by component; the rows behind them are padding.
SIZES = {
    "first empty": [0, 4, 3, 6],
    "last empty": [5, 2, 6, 0],
    "several empty": [0, 7, 0, 0],
    "all empty": [0, 0, 0, 0],
    "all rows in one": [0, 0, 13, 0],
    "even": [3, 3, 3, 3],
    "a padded tail": [1, 2, 3, 1],
}


def data(sizes, dtype=np.float32):
    x = np.random.default_rng(0).uniform(0.5, 1.5, (M, H)).astype(dtype)
    x[sum(sizes) :] = np.nan
    w = np.random.default_rng(1).uniform(0.5, 1.5, (G, H)).astype(dtype)
    ends = np.cumsum(sizes)
    return x, w, (ends - sizes).astype(np.int32), np.asarray(sizes, np.int32)


def start():
    b = jf.ir.Builder("nested")
    x, w = b.input("x", "f32", [M, H]), b.input("w", "f32", [G, H])
    s, e = b.input("starts", "s32", [G]), b.input("sizes", "s32", [G])
    n = b.partition(x, s, e, 0, M)
    return b, n, b.pointwise("mul", [n, b.broadcast_like(w, n, [0, 2])]), s


def fold_fusion(op="sum"):
    b, _, scaled, _ = start()
    b.output(b.reduce(f"reduce_{op}", scaled, [1]))
    return b.finish()


def fold_truth(x, w, starts, sizes, op="sum"):
    fold, nothing = {"sum": (np.sum, 0), "max": (np.max, -np.inf), "min": (np.min, np.inf), "prod": (np.prod, 1)}[op]
    return np.stack([fold(x[s : s + n] * w[g], axis=0, initial=nothing) for g, (s, n) in enumerate(zip(starts, sizes))])


def rows_fusion():
    b, _, scaled, s = start()
    b.output(b.combine(b.pointwise("exp", [scaled]), s, M))
    return b.finish()


def rows_truth(x, w, starts, sizes):
    want = np.zeros_like(x)
    for g, (s, n) in enumerate(zip(starts, sizes)):
        want[s : s + n] = np.exp(x[s : s + n] * w[g])
    return want


def scheduled(fusion, changes, value=None):
    """Make the changes on one value, and the others like it."""
    scheduler = jf.ir.Scheduler(fusion)
    value = value or fusion.outputs[0]
    parallel = []
    for call, *arguments in changes:
        if call == "parallelize":
            parallel.append(arguments)
        else:
            getattr(scheduler, call)(value, *arguments)
    for axis, kind in parallel:
        scheduler.parallelize(value, axis, kind)
    scheduler.transform_like(value)
    scheduler.parallelize_like(value)
    scheduler.inline_most()
    return scheduler.schedule


# Axes are the component, its rows, and the columns.
SERIAL = {
    "as they are": [],
    "tasks of components": [("parallelize", 0, "outer")],
    "rows in tiles": [("split", 1, 4)],
    "rows in tiles of all": [("split", 1, 16)],
    "rows in unrolled tiles": [("split", 1, 4), ("parallelize", 2, "unroll")],
    "an outer split of rows": [("split", 1, 3, False)],
    "tiles of tiles": [("split", 1, 8), ("split", 2, 3), ("split", 4, 4)],
    "columns outside": [("reorder", [2, 0, 1]), ("parallelize", 0, "outer")],
    "columns in lanes": [("split", 2, 4), ("parallelize", 3, "vector"), ("parallelize", 0, "outer")],
    "columns in lanes, outside": [("split", 2, 2), ("reorder", [2, 0, 1, 3]), ("parallelize", 3, "vector")],
    "padded rows": [("pad", 1, 8)],
    "components in tiles": [("split", 0, 3), ("parallelize", 0, "outer")],
    "lanes over components": [("reorder", [1, 2, 0]), ("parallelize", 2, "vector")],
}
# On the CPU.
ROWS_IN_LANES = {
    "rows in lanes": [("split", 1, 8), ("reorder", [0, 3, 1, 2]), ("parallelize", 3, "vector")],
    "rows in many lanes, of tasks": [
        ("split", 1, 16),
        ("reorder", [0, 3, 1, 2]),
        ("parallelize", 3, "vector"),
        ("parallelize", 0, "outer"),
    ],
}
THREADS = {
    "rows on threads": [("split", 1, 16), ("parallelize", 0, "block"), ("parallelize", 2, "thread")],
    "tiles of rows on threads": [("split", 1, 4), ("parallelize", 0, "block"), ("parallelize", 2, "thread")],
    "rows on thread_y": [
        ("split", 1, 4),
        ("split", 3, 8),
        ("reorder", [0, 3, 4, 1, 2]),
        ("parallelize", 0, "block"),
        ("parallelize", 2, "thread"),
        ("parallelize", 4, "thread_y"),
    ],
    "many warps": [
        ("split", 1, 4),
        ("split", 3, 32),
        ("parallelize", 0, "block"),
        ("parallelize", 2, "thread_y"),
        ("parallelize", 4, "thread"),
    ],
    "components on threads": [("parallelize", 0, "thread")],
    "components on blocks and threads": [("split", 0, 3), ("parallelize", 0, "block"), ("parallelize", 1, "thread")],
    "components on block_y": [
        ("split", 1, 16),
        ("parallelize", 0, "block_y"),
        ("parallelize", 2, "thread"),
        ("parallelize", 3, "unroll"),
    ],
}
# Merged axes are for values that keep them all.
FLAT = {
    "components and rows in one": [("merge", 0), ("parallelize", 0, "outer")],
    "rows and columns in one": [("merge", 1), ("split", 1, 4)],
    "all in one": [("merge", 0), ("merge", 0), ("split", 0, 5), ("parallelize", 0, "outer")],
    "all in one, in lanes": [("merge", 0), ("merge", 0), ("split", 0, 2), ("parallelize", 1, "vector")],
    "rows apart": [("split", 1, 4), ("merge", 0), ("parallelize", 0, "outer")],
    "rows swizzled": [("split", 1, 4), ("split", 2, 2), ("split", 4, 2), ("swizzle", 3, 5)],
}
FLAT_THREADS = {
    "rows on blocks": [("split", 1, 4), ("parallelize", 1, "block"), ("parallelize", 3, "thread")],
    "rows on block_y": [
        ("split", 1, 4),
        ("parallelize", 0, "block"),
        ("parallelize", 1, "block_y"),
        ("parallelize", 2, "thread"),
    ],
    "all on blocks and threads": [
        ("merge", 0),
        ("merge", 0),
        ("split", 0, 32),
        ("parallelize", 0, "block"),
        ("parallelize", 1, "thread"),
    ],
}


def changes_of(machine, name):
    """Return the changes by their name, for the machine; skip where it cannot make them."""
    if name in {**THREADS, **FLAT_THREADS} and machine.platform == "cpu":
        pytest.skip("threads are CUDA's")
    if name in ROWS_IN_LANES and machine.platform != "cpu":
        pytest.skip("lanes along rows are the CPU's")
    changes = {**SERIAL, **ROWS_IN_LANES, **THREADS, **FLAT, **FLAT_THREADS}[name]
    names = {"outer": machine.outer}
    return [[names.get(item, item) if isinstance(item, str) else item for item in change] for change in changes]


@pytest.mark.parametrize("name", [*SERIAL, *ROWS_IN_LANES, *THREADS])
@pytest.mark.parametrize("sizes", SIZES)
def test_folds_of_rows(machine, sizes, name):
    schedule = scheduled(fold_fusion(), changes_of(machine, name))
    x, w, starts, extents = data(SIZES[sizes])
    [got] = machine.run(schedule, x, w, starts, extents)
    assert_close(got, fold_truth(x, w, starts, extents))


@pytest.mark.parametrize("op", ["max", "min", "prod"])
@pytest.mark.parametrize("name", ["rows in tiles", "columns in lanes", "rows in lanes", "rows on thread_y"])
def test_other_folds_of_rows(machine, op, name):
    schedule = scheduled(fold_fusion(op), changes_of(machine, name))
    for sizes in SIZES.values():
        x, w, starts, extents = data(sizes)
        [got] = machine.run(schedule, x, w, starts, extents)
        assert_close(got, fold_truth(x, w, starts, extents, op))


@pytest.mark.parametrize("name", [*SERIAL, *THREADS, *FLAT, *FLAT_THREADS])
@pytest.mark.parametrize("sizes", ["several empty", "all rows in one", "a padded tail", "all empty"])
def test_rows_of_their_own(machine, sizes, name):
    changes = changes_of(machine, name)
    x, w, starts, extents = data(SIZES[sizes])
    [got] = machine.run(scheduled(rows_fusion(), changes), x, w, starts, extents)
    assert_close(got, rows_truth(x, w, starts, extents))


@pytest.mark.parametrize(
    "name", ["as they are", "rows in tiles", "columns in lanes", *ROWS_IN_LANES, "rows on thread_y"]
)
@pytest.mark.parametrize("extents", [[-3, 2, 100, 1], [4, 4, 4, 4], [2**31 - 1, -(2**31), 1, 0]])
@pytest.mark.parametrize("starts", [[0, 2, 9, 12], [-5, 100, 3, 13]])
def test_sizes_that_do_not_fit_stay_in_bounds(machine, name, starts, extents):
    changes = changes_of(machine, name)
    x, w, *_ = data([M, 0, 0, 0])
    starts, extents = np.array(starts, np.int32), np.array(extents, np.int32)
    fusion = fold_fusion()
    [got] = machine.run(scheduled(fusion, changes), x, w, starts, extents)
    assert_close(got, jf.ir.evaluate(fusion, x, w, starts, extents)[0])


@pytest.mark.parametrize("name", ["as they are", "rows in tiles", "columns in lanes"])
def test_rows_of_several_components_are_those_of_one_of_them(device, name):
    x, w, *_ = data([M, 0, 0, 0])
    starts, extents = np.array([0, 2, 9, 12], np.int32), np.array([5, 100, -3, 2], np.int32)
    changes = [[{"outer": "serial"}.get(i, i) if isinstance(i, str) else i for i in c] for c in SERIAL[name]]
    [got] = jf.ir.run(scheduled(rows_fusion(), changes), x, w, starts, extents)
    choices = [np.exp(x * w[g]) for g in (0, 1, 3)]
    assert all(any(np.allclose(row, c[i]) for c in choices) for i, row in enumerate(np.asarray(got)))


def softmax_fusion():
    """Over the rows of each component, column by column."""
    b, _, scaled, s = start()
    largest = b.reduce("reduce_max", scaled, [1])
    power = b.pointwise("exp", [b.pointwise("sub", [scaled, b.broadcast_like(largest, scaled, [0, 2])])])
    total = b.broadcast_like(b.reduce("reduce_sum", power, [1]), power, [0, 2])
    b.output(b.combine(b.pointwise("div", [power, total]), s, M))
    return b.finish()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("columns", ["serial", "vector", "thread"])
def test_softmax_in_one_kernel(machine, sizes, columns):
    if columns == "thread" and machine.platform == "cpu":
        pytest.skip("threads are CUDA's")
    fusion = softmax_fusion()
    scheduler = jf.ir.Scheduler(fusion)
    [out] = fusion.outputs
    scheduler.reorder(out, [0, 2, 1])
    if columns == "vector":
        scheduler.split(out, 1, 2)
        scheduler.reorder(out, [0, 1, 3, 2])
    scheduler.parallelize(out, 0, machine.outer)
    scheduler.parallelize(out, {"serial": 1, "vector": -1, "thread": 1}[columns], columns)
    scheduler.transform_like(out)
    scheduler.parallelize_like(out)
    scheduler.inline_most()
    x, w, starts, extents = data(SIZES[sizes])
    [got] = machine.run(scheduler.schedule, x, w, starts, extents)
    want = np.zeros_like(x)
    for g, (s, n) in enumerate(zip(starts, extents)):
        if n:
            power = np.exp(x[s : s + n] * w[g] - (x[s : s + n] * w[g]).max(axis=0))
            want[s : s + n] = power / power.sum(axis=0)
    assert_close(got, want)


def test_rows_of_several_arrays_and_outer_axes(machine):
    """x[2, M, H] has extents for each of its two parts; y[M] has those of one of them."""
    b = jf.ir.Builder("outer")
    x = b.input("x", "f32", [2, M, H])
    s, e = b.input("starts", "s32", [2, G]), b.input("sizes", "s32", [2, G])
    n = b.partition(x, s, e, 1, M)
    b.output(b.reduce("reduce_sum", b.transpose(n, [0, 3, 2, 1]), [2]))
    fusion = b.finish()
    scheduler = jf.ir.Scheduler(fusion)
    [out] = fusion.outputs
    scheduler.merge(out, 0)
    scheduler.split(out, 1, 4)
    scheduler.parallelize(out, 0, machine.outer)
    scheduler.transform_like(out)
    scheduler.parallelize_like(out)
    scheduler.inline_most()
    (x0, _, s0, e0), (x1, _, s1, e1) = data([2, 0, 5, 1]), data([0, 9, 4, 0])
    x, s, e = np.stack([x0, x1]), np.stack([s0, s1]), np.stack([e0, e1])
    [got] = machine.run(scheduler.schedule, x, s, e)
    ones = np.ones((G, H), np.float32)
    want = np.stack([fold_truth(x[i], ones, s[i], e[i]).T for i in range(2)])
    assert_close(got, want)


def test_one_component_and_one_row(machine):
    for groups, rows in ((1, 5), (3, 1), (1, 1)):
        b = jf.ir.Builder("few")
        x = b.input("x", "f32", [rows, H])
        s, e = b.input("starts", "s32", [groups]), b.input("sizes", "s32", [groups])
        n = b.partition(x, s, e, 0, rows)
        b.output(b.reduce("reduce_sum", n, [1]))
        b.output(b.combine(b.pointwise("neg", [n]), s, rows))
        fusion = b.finish()
        scheduler = jf.ir.Scheduler(fusion)
        scheduler.inline_most()
        x = np.arange(1, rows * H + 1, dtype=np.float32).reshape(rows, H)
        for sizes in ([rows] + [0] * (groups - 1), [0] * groups, [0] * (groups - 1) + [rows]):
            sizes = np.array(sizes, np.int32)
            starts = (np.cumsum(sizes) - sizes).astype(np.int32)
            sums, negative = machine.run(scheduler.schedule, x, starts, sizes)
            assert_close(sums, np.stack([x[s : s + n].sum(axis=0) for s, n in zip(starts, sizes)]))
            np.testing.assert_array_equal(negative, -x if sizes.sum() else 0 * x)


def test_rows_in_shared_memory(machine):
    """Threads meet inside of the loop over tiles of rows, which ends for all of them at once."""
    if machine.platform == "cpu":
        pytest.skip("threads are CUDA's")
    fusion = fold_fusion()
    scheduler = jf.ir.Scheduler(fusion)
    [nested] = [line.split(":")[0].strip() for line in str(fusion).splitlines() if "= partition(" in line]
    copy = scheduler.cache_after(nested)
    [out] = scheduler.fusion.outputs
    scheduler.pad(out, 2, 8)
    scheduler.split(out, 1, 8)
    scheduler.transform_like(out)
    for value in scheduler.fusion.values:
        if value in scheduler.fusion.inputs:
            continue
        scheduler.parallelize(value, 0, "block")
        scheduler.parallelize(value, 3 if value in (nested, copy) else 2, "thread")
    scheduler.set_memory(copy, "shared")
    scheduler.inline_most()
    scheduler.inline_at(copy, 2)
    for sizes in SIZES.values():
        x, w, starts, extents = data(sizes)
        [got] = machine.run(scheduler.schedule, x, w, starts, extents)
        assert_close(got, fold_truth(x, w, starts, extents))


def test_loops_end_with_the_rows():
    """A serial loop over rows is left where they end; a block whose tile is beyond them has nothing to do."""
    text = jf.ir.lower(scheduled(fold_fusion(), [("split", 1, 4)]), "cpu").as_text("loops")
    outer, inner = re.findall(r"for (i\d+) < \d+ serial while (.+)", text)
    assert re.fullmatch(rf"{outer[0]} \* 4 < i\d+", outer[1])
    assert re.fullmatch(rf"\({outer[0]} \* 4\) \+ {inner[0]} < i\d+", inner[1])
    changes = [
        ("split", 1, 4),
        ("parallelize", 0, "block_y"),
        ("parallelize", 1, "block"),
        ("parallelize", 2, "thread"),
    ]
    text = jf.ir.lower(scheduled(rows_fusion(), changes), "cuda").as_text("loops")
    assert re.search(r"for i1 < 4 block\n.*if i1 \* 4 < i\d+", text, re.DOTALL)


REFUSED = {
    "lanes along rows": (
        fold_fusion,
        [("reorder", [0, 2, 1]), ("split", 2, 4), ("parallelize", 3, "vector")],
        r"the lanes of t\d+ lie along its ragged axis",
    ),
    "rows in bulk": (rows_fusion, [("parallelize", 2, "bulk")], r"bulk"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, changes, message = REFUSED[case]
    with pytest.raises(jf.UserError, match=message):
        jf.ir.lower(scheduled(make(), changes), "cuda")


def test_extents_must_be_in_memory():
    b = jf.ir.Builder("made")
    x, s, e = b.input("x", "f32", [M, H]), b.input("starts", "s32", [G]), b.input("sizes", "s32", [G])
    twice = b.pointwise("add", [e, e])
    b.output(b.reduce("reduce_sum", b.partition(x, s, twice, 0, M), [1]))
    fusion = b.finish()
    with pytest.raises(jf.UserError, match=r"a partition, reads t\d+, which must come from memory"):
        jf.ir.lower(scheduled(fusion, []), "cpu")


def test_what_is_combined_is_not_read():
    b, _, scaled, s = start()
    b.output(b.pointwise("neg", [b.combine(scaled, s, M)]))
    fusion = b.finish()
    scheduler = jf.ir.Scheduler(fusion)
    with pytest.raises(jf.UserError, match=r"t\d+ is combined, and t\d+ reads it"):
        jf.ir.lower(scheduler.schedule, "cpu")


def random_changes(seed):
    draw = random.Random(seed)
    changes, rank = [], 3
    for _ in range(draw.randint(1, 5)):
        kind = draw.choice(["split", "split", "split", "reorder", "merge", "pad"])
        if kind == "split":
            changes.append(("split", draw.randrange(rank), draw.choice([1, 2, 3, 4, 5, 7, 8, 16]), draw.random() < 0.5))
            rank += 1
        elif kind == "merge" and rank > 1:
            changes.append(("merge", draw.randrange(rank - 1)))
            rank -= 1
        elif kind == "pad":
            changes.append(("pad", draw.randrange(rank), draw.choice([2, 3, 4, 8])))
        else:
            changes.append(("reorder", draw.sample(range(rank), rank)))
    kinds = draw.sample(["thread", "block", "thread_y", "block_y", "serial", "serial"], min(rank, 4))
    parallel = [("parallelize", axis, kind) for axis, kind in zip(draw.sample(range(rank), len(kinds)), kinds)]
    return changes, [p for p in parallel if p[2] != "serial"]


@pytest.mark.parametrize("batch", range(6))
def test_random_schedules_touch_exactly_what_exists(batch):
    """The loop interpreter refuses reads out of bounds, rows stored twice with two values; padding is NaN."""
    made = 0
    for seed in range(batch * 12, (batch + 1) * 12):
        changes, parallel = random_changes(seed)
        sizes = [int(n) for n in np.random.default_rng(seed).multinomial(M - seed % 4, [0.1, 0.2, 0.6, 0.1])]
        x, w, starts, extents = data(sizes)
        for fusion, truth in ((rows_fusion(), rows_truth), (fold_fusion(), fold_truth)):
            for run, on in ((jf.ir.run, []), (interpret, parallel)):
                try:
                    schedule = scheduled(fusion, [*changes, *on])
                    [got] = run(schedule, x, w, starts, extents)
                except jf.UserError as refused:
                    assert "ragged" not in str(refused) and "InternalError" not in str(refused)
                    continue
                made += 1
                assert_close(got, truth(x, w, starts, extents))
    assert made > 12


def interpret(schedule, *arrays):
    import loop_interpreter

    return loop_interpreter.run(schedule, *arrays)


def test_cuda_sources_compile():
    nvrtc_or_skip()
    target = _core.cuda_target_for(90)
    for fusion, names in ((fold_fusion(), {**SERIAL, **THREADS}), (rows_fusion(), {**FLAT, **FLAT_THREADS})):
        for changes in names.values():
            changes = [[{"outer": "block"}.get(i, i) if isinstance(i, str) else i for i in c] for c in changes]
            schedule = scheduled(fusion, changes)
            for _, source, cubin in _core.compile_cuda(f"{fusion}{schedule}", target):
                assert cubin
                assert "read_index" in source or "zeros" in source
