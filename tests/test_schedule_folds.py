"""Scheduling calls on folds and copies of values: splits and orders of a fold, rfactor, caches, shared memory."""

from __future__ import annotations

import numpy as np
import pytest
from schedules import (
    COLUMNS,
    ROWS,
    STRETCHED,
    T,
    U,
    X,
    Y,
    act,
    check_schedule,
    inputs,
    nvrtc_compiles,
    row_sums,
    scheduled,
)
from tolerances import assert_close

import jax_fuser as jf

FOLD_EDITS = {
    "rows, then columns": [],
    "split": [("split", 1, 4)],
    "vector across the fold": [("split", 1, 4), ("parallelize", 2, "vector")],
    "columns first": [("reorder", [1, 0])],
    "vector beside the fold": [("reorder", [1, 0]), ("split", 1, 8), ("parallelize", 2, "vector")],
    "tasks": [("split", 0, 5), ("parallelize", 0, "task")],
    "swizzle in the fold": [("split", 1, 4), ("split", 1, 4, False), ("swizzle", 1, 3)],
}


@pytest.mark.parametrize("edit", FOLD_EDITS)
def test_a_schedule_does_not_change_a_fold(edit):
    fusion, (x, _) = row_sums(), inputs()
    [y] = fusion.outputs
    scheduler = jf.ir.Scheduler(fusion)
    for call, *arguments in FOLD_EDITS[edit]:
        getattr(scheduler, call)(y, *arguments)
    scheduler.transform_like(y)
    scheduler.parallelize_like(y)
    scheduler.inline_most()
    assert jf.ir.Schedule(fusion, str(scheduler)) == scheduler.schedule
    [got] = jf.ir.run(scheduler.schedule, x)
    assert_close(got, np.square(x).sum(axis=1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("merge", 0), r"\[merge\] axes 0 and 1 of t2: one is reduced and the other is not"),
        (("swizzle", 0, 1), r"\[swizzle\] axes 0 and 1 of t2 have extents 16 and 10"),
    ],
)
def test_a_folded_axis_stays_apart(call, message):
    scheduler = jf.ir.Scheduler(row_sums())
    with pytest.raises(jf.UserError, match=message):
        getattr(scheduler, call[0])("t2", *call[1:])


# Copies of values.


EDITS_OF_THE_FUSION = {
    "after an input": ("cache_after", X),
    "after a broadcast": ("cache_after", STRETCHED),
    "after a value": ("cache_after", T),
    "after an output that is read": ("cache_after", U),
    "before an output": ("cache_before", Y),
    "before an output that is read": ("cache_before", U),
    "before a value": ("cache_before", T),
    "fork": ("cache_fork", U),
}


def check_act(scheduler: jf.ir.Scheduler) -> None:
    x, r = inputs()
    check_schedule(scheduler.schedule, jf.ir, (x, r), np.tanh(x + r) * x, x + r)


def in_vectors(s):
    s.split(Y, 1, 4)  # 10 columns: with a remainder
    s.parallelize(Y, -1, "vector")


@pytest.mark.parametrize("edit", EDITS_OF_THE_FUSION)
def test_a_cached_value_does_not_change_the_result(edit):
    call, value = EDITS_OF_THE_FUSION[edit]
    start = scheduled(in_vectors)
    scheduler = jf.ir.Scheduler(start)
    made = getattr(scheduler, call)(value)
    assert made == f"{value}_cache" and scheduler.fusion.shape(made) == scheduler.fusion.shape(value)
    assert start.fusion == act() and made not in start.fusion.values
    assert all(scheduler.schedule.loops(v) == start.loops(v) for v in (U, T, Y))
    if value != X:  # the copy of an input has the loops of an array until it is scheduled
        check_act(scheduler)
    for name in (f"{made}_cache", f"{value}_cache_2"):
        scheduler.transform_like(Y)
        scheduler.parallelize_like(Y)
        scheduler.inline_most()
        check_act(scheduler)
        if call == "cache_after":
            assert scheduler.cache_after(made if name.startswith(made + "_c") else value) == name


def test_who_reads_what_after_an_edit():
    def text(call: str) -> str:
        scheduler = jf.ir.Scheduler(act())
        getattr(scheduler, call)(U)
        return str(scheduler.fusion)

    for line in (f"{U}_cache: f32[16,10] = copy({U})", f"tanh({U}_cache)"):
        assert line in text("cache_after")
    for line in (f"{U}_cache: f32[16,10] = add(", f"{U}: f32[16,10] = copy({U}_cache)", f"tanh({U})"):
        assert line in text("cache_before")
    for line in (f"{U}_cache: f32[16,10] = add(", f"{U}: f32[16,10] = copy({U}_cache)", f"tanh({U}_cache)"):
        assert line in text("cache_fork")


def test_a_fold_can_be_cached():
    x, _ = inputs()
    for call in ("cache_before", "cache_after"):
        b = jf.ir.Builder("twice")
        rows = b.reduce("reduce_max", b.input("x", "f32", [ROWS, COLUMNS]), [1])
        b.output(b.pointwise("square", [rows]))
        scheduler = jf.ir.Scheduler(b.finish())
        made = getattr(scheduler, call)("t1")
        assert scheduler.fusion.is_reduction("t1") == (call == "cache_after") != scheduler.fusion.is_reduction(made)
        scheduler.inline_most()
        assert_close(jf.ir.run(scheduler.schedule, x)[0], np.square(x.max(axis=1)))


# Folds in two.


@pytest.mark.parametrize("parts", range(1, 11))
def test_rfactor_folds_runs_first(parts):
    fusion, (x, _) = row_sums(), inputs()
    scheduler = jf.ir.Scheduler(fusion)
    scheduler.split("t2", 1, parts, inner=False)
    made = scheduler.rfactor("t2", [2])
    assert made == "t2_parts" and scheduler.fusion.shape(made) == [ROWS, parts]
    scheduler.transform_like(made, ["t1"])
    for inlined in (False, True):
        if inlined:
            scheduler.inline_most()
        assert jf.ir.Schedule(scheduler.fusion, str(scheduler)) == scheduler.schedule
        assert jf.ir.Fusion(str(scheduler.fusion)) == scheduler.fusion
        assert_close(jf.ir.run(scheduler.schedule, x)[0], np.square(x).sum(axis=1))


@pytest.mark.parametrize(
    ("split", "axes", "order"),
    [
        (None, [0], [1, 2, 0]),
        (None, [-1], [0, 1, 2]),
        ((0, 2), [1], [0, 2, 3, 1]),
        ((0, 2), [1, 3], [0, 2, 1, 3]),
        ((2, 3), [3], [0, 1, 2, 3]),
    ],
)
def test_rfactor_of_several_folded_axes(split, axes, order):
    x = np.random.default_rng(0).normal(size=(6, 5, 7)).astype(np.float32)
    b = jf.ir.Builder("columns")
    b.output(b.reduce("reduce_max", b.input("x", "f32", [6, 5, 7]), [0, 2]))
    scheduler = jf.ir.Scheduler(b.finish())
    if split:
        scheduler.split("t1", *split, inner=False)
    made = scheduler.rfactor("t1", axes)
    scheduler.reorder(made, order)
    assert scheduler.fusion.is_reduction(made) and scheduler.fusion.is_reduction("t1")
    assert_close(jf.ir.run(scheduler.schedule, x)[0], x.max(axis=(0, 2)))


def test_parts_over_the_threads_of_a_block():
    b = jf.ir.Builder("sums")
    b.output(b.reduce("reduce_sum", b.pointwise("square", [b.input("x", "f32", [16, 1024])]), [1]))
    scheduler = jf.ir.Scheduler(b.finish())
    scheduler.split("t2", 1, 128, inner=False)
    made = scheduler.rfactor("t2", [2])
    scheduler.transform_like(made, ["t1"])
    scheduler.parallelize(made, 0, "block")
    scheduler.parallelize(made, 1, "thread")
    scheduler.parallelize_like(made, ["t1"])
    scheduler.parallelize("t2", 0, "block")
    scheduler.parallelize("t2", 1, "thread")
    scheduler.inline_most()
    lowered = jf.ir.lower(scheduler.schedule, "cuda")
    assert "combine t2 by add over threads" in lowered.as_text("loops")
    nvrtc_compiles(scheduler.schedule)


# Shared memory.


def transposed_by_hand(pad: int) -> jf.ir.Scheduler:
    b = jf.ir.Builder("transposed")
    b.output(b.transpose(b.input("x", "f32", [64, 96]), [1, 0]))
    scheduler = jf.ir.Scheduler(b.finish())
    tile = scheduler.cache_after("x")
    scheduler.split("t1", 1, 32)
    scheduler.split("t1", 0, 32)
    scheduler.reorder("t1", [0, 2, 1, 3])
    scheduler.merge("t1", 0)
    scheduler.transform_like("t1")
    scheduler.reorder(tile, [0, 2, 1])
    scheduler.set_memory(tile, "shared")
    scheduler.set_allocation(tile, 1, pad)
    for value in (tile, "t1"):
        scheduler.merge(value, 1)
        scheduler.split(value, 1, 128)
        scheduler.parallelize(value, 0, "block")
        scheduler.parallelize(value, 2, "thread")
    scheduler.inline_most()
    return scheduler


def test_a_padded_tile_in_shared_memory():
    scheduler = transposed_by_hand(pad=1)
    assert "shared (3,5 pad 1)" in str(scheduler)
    assert jf.ir.Schedule(scheduler.fusion, str(scheduler)) == scheduler.schedule
    source = jf.ir.lower(scheduler.schedule, "cuda").as_text("source")
    assert "x_cache[1056]" in source and "__syncthreads" in source  # 32 rows of 32 + 1
    assert "x_cache[1024]" in jf.ir.lower(transposed_by_hand(pad=0).schedule, "cuda").as_text("source")
    nvrtc_compiles(scheduler.schedule)
