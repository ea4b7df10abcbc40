"""`transform_like` and `parallelize_like` from a reference that lacks axes: what others fold, or fold in parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from schedules import check_schedule, nvrtc_compiles
from tolerances import assert_close

import jax_fuser as jf

ROWS, COLUMNS = 12, 20
FUNCTIONS = {
    "variance": lambda x: x.var(1),
    "variance of columns": lambda x: x.var(0),
    "tanh of a sum": lambda x: jnp.tanh(x.sum(1)),
    "of a computed value": lambda x: jnp.tanh(jnp.exp(x)).sum(0) * 2,
    "cross entropy": lambda x: jax.nn.logsumexp(x, 1) - x[:, 0],
    "of a middle axis": lambda x: jnp.tanh(x.reshape(12, 4, 5).sum(1)),
    "two folds": lambda x: jnp.sin(x.sum(1)) * x.max(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_folds_follow_a_result_that_lacks_their_axes(name, machine):
    f, x = FUNCTIONS[name], array(ROWS, COLUMNS)
    s = jf.ir.Scheduler(jf.ir.trace(f, x))
    [out] = s.fusion.outputs
    s.split(out, 0, 4)
    s.parallelize(out, 0, machine.outer)
    s.parallelize(out, 1, machine.inner)
    s.transform_like(out)
    s.parallelize_like(out)
    s.inline_most()
    for value in s.fusion.values:
        if s.fusion.is_reduction(value):
            assert s.loops(value)[:2] == s.loops(out)[:2]
            assert all(parallel == "serial" for _, parallel in s.loops(value)[len(s.loops(out)) :])
    [got] = machine.run(s.schedule, x.reshape(s.fusion.shape(s.fusion.inputs[0])))
    assert_close(np.asarray(got).reshape(f(x).shape), f(x))
    if machine.platform == "cuda":
        nvrtc_compiles(s.schedule)


def test_the_sum_of_a_cached_result(machine):
    x = array(ROWS, COLUMNS)
    s = jf.ir.Scheduler(jf.ir.trace(lambda x: x.sum(1), x))
    made = s.cache_before("t1")
    s.split("t1", 0, 5)
    s.transform_like("t1")
    assert s.loops(made) == [(3, "serial"), (5, "serial"), (COLUMNS, "serial")]
    s.inline_most()
    check_schedule(s.schedule, machine, [x], x.sum(1))


def test_a_reference_whose_axes_are_merged_and_reordered(machine):
    x = array(4, 5, 6, 7)

    def f(x):
        return jnp.tanh(jnp.exp(x).sum((1, 3)))

    s = jf.ir.Scheduler(jf.ir.trace(f, x))
    [out] = s.fusion.outputs
    s.reorder(out, [1, 0])
    s.merge(out, 0)
    s.split(out, 0, 8)
    s.reorder(out, [1, 0])
    s.transform_like(out)
    s.inline_most()
    [fold] = [v for v in s.fusion.values if s.fusion.is_reduction(v)]
    assert [extent for extent, _ in s.loops(fold)] == [8, 3, 5, 7]
    check_schedule(s.schedule, machine, [x], f(x))


def test_lanes_along_rows_need_the_fold_as_the_reference():
    x = array(ROWS, COLUMNS)
    s = jf.ir.Scheduler(jf.ir.trace(FUNCTIONS["variance"], x))
    [out] = s.fusion.outputs
    s.split(out, 0, 4)
    s.parallelize(out, 1, "vector")
    s.transform_like(out)
    before = s.schedule
    message = (
        r"\[parallelize_like\] axis 1 of t11 is vector, but t1 has another axis inside of it, .* t1 also folds axis 1"
    )
    with pytest.raises(jf.UserError, match=message + ": use t1 as the reference"):
        s.parallelize_like(out)
    assert s.schedule == before
    s = jf.ir.Scheduler(s.fusion)
    s.split("t1", 0, 4)
    s.reorder("t1", [0, 2, 1])
    s.parallelize("t1", 2, "vector")
    s.transform_like("t1")
    s.parallelize_like("t1")
    s.inline_most()
    assert_close(jf.ir.run(s.schedule, x)[0], x.var(1))


# Folds in parts.


def square_sums(x):
    return (x * x).sum(1)


def in_parts(f, x):
    s = jf.ir.Scheduler(jf.ir.trace(f, x))
    total = next(v for v in s.fusion.values if s.fusion.is_reduction(v))
    s.split(total, 1, 4, inner=False)
    return s, total, s.rfactor(total, [2])


# Edits of the parts [rows, part, element], and the loops of their fold.
EDITS = {
    "none": ([], [12, 4]),
    "rows in threes": ([("split", 0, 3)], [4, 3, 4]),
    "parts in twos": ([("split", 1, 2)], [12, 2, 2]),
    "elements in twos": ([("split", 2, 2)], [12, 4]),
    "parts first": ([("reorder", [1, 0, 2])], [4, 12]),
}


@pytest.mark.parametrize("edits", EDITS)
@pytest.mark.parametrize("f", [square_sums, lambda x: jnp.tanh(square_sums(x)), lambda x: x / square_sums(x)[:, None]])
def test_a_fold_of_parts_has_the_loops_that_it_can_have(f, edits, machine):
    x = array(ROWS, COLUMNS)
    s, total, parts = in_parts(f, x)
    calls, loops = EDITS[edits]
    for call, *arguments in calls:
        getattr(s, call)(parts, *arguments)
    s.transform_like(parts)
    s.parallelize_like(parts)
    assert [extent for extent, _ in s.loops(total)] == loops
    s.inline_most()
    check_schedule(s.schedule, machine, [x], f(x))


def test_threads_fold_the_parts_of_a_block_s_rows():
    x = array(ROWS, COLUMNS)
    s, total, parts = in_parts(lambda x: x / square_sums(x)[:, None], x)
    s.parallelize(parts, 0, "block")
    s.parallelize(parts, 1, "thread")
    s.transform_like(parts)
    s.parallelize_like(parts)
    s.inline_most()
    assert s.loops(total) == [(ROWS, "block"), (4, "thread")]
    nvrtc_compiles(s.schedule)


@pytest.mark.parametrize("call", [("merge", 0), ("merge", 1), ("swizzle", 1, 2)])
def test_a_fold_of_parts_that_are_one_axis_with_others_stays_as_it_is(call):
    s, total, parts = in_parts(square_sums, array(ROWS, COLUMNS))
    s.split(parts, 0, 4)
    s.reorder(parts, [0, 1, 2, 3] if call[0] == "swizzle" else [1, 0, 2, 3] if call[1] else [1, 2, 0, 3])
    before = s.loops(total)
    getattr(s, call[0])(parts, *call[1:])
    with pytest.raises(
        jf.UserError, match=r"\[transform_like\] t2 folds the parts of t2_parts, where they are one axis"
    ):
        s.transform_like(parts, [total])
    s.transform_like(parts)
    assert s.loops(total) == before and s.loops("t1") == s.loops(parts)


def test_other_loops_than_those_of_parts_name_the_reference():
    s, total, _ = in_parts(square_sums, array(ROWS, COLUMNS))
    with pytest.raises(jf.UserError, match=r"t1 .* shares no axes with t2 .*; t2_parts folds in parts: use it as the"):
        s.transform_like(total)
    s.inline_most()
    with pytest.raises(jf.UserError, match=r"consumer t2_parts has another axis there; use transform_like\(t2_parts\)"):
        jf.ir.lower(s.schedule, "cpu")
