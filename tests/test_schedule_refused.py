"""A scheduling call that cannot be made names axis and value, and changes nothing."""

from __future__ import annotations

import pytest
from schedules import (
    T,
    X,
    Y,
    act,
    row_sums,
    scheduled,
)

import jax_fuser as jf

# What is refused.

# The last call of each list is refused.
REFUSED = {
    "split axis": ([("split", Y, 2, 4)], r"\[split\] t5 has 2 loop axes; .* \[-2, 2\), got 2"),
    "split input": (
        [("split", X, 0, 4)],
        r"\[split\] x is an input, which is read and has no loops; .* see cache_after",
    ),
    "parallel input": (
        [("parallelize", X, 0, "block")],
        r"\[parallelize\] x is an input, which is read and has no loops",
    ),
    "unroll far": (
        [("split", Y, 0, 2048), ("parallelize", Y, 1, "unroll")],
        r"\[parallelize\] axis 1 of t5 has extent 2048; an unroll axis has at most 1024, split first",
    ),
    "unroll together": (
        [("split", Y, 0, 64), ("split", Y, 2, 64), ("parallelize", Y, 1, "unroll"), ("parallelize", Y, 3, "unroll")],
        r"\[parallelize\] the unroll axes of t5 have 4096 iterations together; at most 1024, leave",
    ),
    "split factor": ([("split", Y, 1, 0)], r"\[split\] axis 1 of t5: expected a positive factor, got 0"),
    "split far": ([("split", Y, 1, 2**62)], r"\[split\] axis 1 of t5: expected a factor up to 1099511627776, got 46"),
    "merge far": (
        [("split", Y, 1, 2**40), ("split", Y, 0, 2**40), ("merge", Y, 1), ("merge", Y, 1)],
        r"\[merge\] axes 1 and 2 of t5 have extents .* their product is too large",
    ),
    "split value": ([("split", "q", 0, 2)], r"\[split\] act has no value 'q'; it has x, r, t2"),
    "split parallel": ([("parallelize", Y, 0, "task"), ("split", Y, 0, 2)], r"\[split\] axis 0 of t5 is already task"),
    "merge axis": ([("merge", Y, 1)], r"\[merge\] t5 has loop axes \[16,10\]; axis 1 and the next one"),
    "merge parallel": ([("parallelize", Y, 1, "task"), ("merge", Y, 0)], r"\[merge\] axis 1 of t5 is already task"),
    "reorder twice": ([("reorder", Y, [0, 0])], r"\[reorder\] t5 has 2 loop axes .* each of them once"),
    "reorder short": ([("reorder", Y, [0])], r"\[reorder\] t5 has 2 loop axes .* each of them once"),
    "reorder axis": ([("reorder", Y, [0, 2])], r"\[reorder\] t5 has 2 loop axes; .* got 2"),
    "swizzle extents": (
        [("swizzle", Y, 0, 1)],
        r"\[swizzle\] axes 0 and 1 of t5 have extents 16 and 10; .*split first",
    ),
    "swizzle twice": ([("swizzle", Y, 0, 0)], r"\[swizzle\] t5: expected two axes, got 0 twice"),
    "swizzle axis": ([("swizzle", Y, 0, 5)], r"\[swizzle\] t5 has 2 loop axes; .* got 5"),
    "swizzle parallel": (
        [("split", Y, 0, 4), ("parallelize", Y, 0, "task"), ("swizzle", Y, 0, 1)],
        r"\[swizzle\] axis 0 of t5 is already task",
    ),
    "parallel name": (
        [("parallelize", Y, 0, "warp")],
        r"\[parallelize\] t5: unknown parallel type 'warp'; expected one",
    ),
    "parallel axis": ([("parallelize", Y, -3, "task")], r"\[parallelize\] t5 has 2 loop axes; .* got -3"),
    "parallel twice": (
        [("parallelize", Y, 0, "task"), ("parallelize", Y, 1, "task")],
        r"\[parallelize\] t5 has a second task axis, 1; merge the two first",
    ),
    "vector extent": ([("parallelize", Y, 1, "vector")], r"axis 1 of t5 has extent 10; .* power of two"),
    "vector place": ([("parallelize", Y, 0, "vector")], r"axis 0 of t5 of 2: only the innermost .* reorder first"),
    "inline": ([("inline_at", T, 3)], r"\[inline_at\] t4 agrees in 2 outer loop axes .* \[0, 2\], got 3"),
    "inline other loops": ([("merge", Y, 0), ("inline_at", T, 1)], r"\[inline_at\] t4 agrees in 0 outer"),
    "memory name": ([("set_memory", T, "global")], r"\[set_memory\] t4: unknown memory 'global'; expected register"),
    "allocation of a register": (
        [("set_allocation", T, 0)],
        r"\[set_allocation\] t4 is kept in registers, .*set_memory",
    ),
    "allocation axis": (
        [("set_memory", T, "shared"), ("set_allocation", T, 2)],
        r"\[set_allocation\] t4 has 2 loop axes; .* got 2",
    ),
    "allocation pad": (
        [("set_memory", T, "shared"), ("set_allocation", T, 0, -1)],
        r"\[set_allocation\] t4: expected a pad of 0 to 1048576 elements, got -1",
    ),
    "cache after nothing": ([("cache_after", Y)], r"\[cache_after\] no op reads t5; for an output use cache_before"),
    "cache after value": ([("cache_after", "q")], r"\[cache_after\] act has no value 'q'"),
    "cache before an input": ([("cache_before", X)], r"\[cache_before\] x is an input, .*use cache_after"),
    "fork of a value": ([("cache_fork", T)], r"\[cache_fork\] t4 is not an output; use cache_after"),
    "fork of nothing": ([("cache_fork", Y)], r"\[cache_fork\] no op reads t5; use cache_before"),
    "rfactor": ([("rfactor", Y, [1])], r"\[rfactor\] t5 is not a reduction"),
    "like selected": ([("transform_like", Y, ["q"])], r"\[transform_like\] act has no value 'q'"),
    "memory of an input": ([("set_memory", X, "shared")], r"\[set_memory\] x is an input"),
    "like value": ([("transform_like", "q")], r"\[transform_like\] act has no value 'q'"),
}


REFUSED_RFACTOR = {
    "axis": ([], [2], r"\[rfactor\] t2 has 2 loop axes; .* \[-2, 2\), got 2"),
    "kept": ([], [0], r"\[rfactor\] axis 0 of t2 is not folded; expected some of its folded axes, 1"),
    "all": ([], [1], r"\[rfactor\] t2 folds its axes 1; .* got 1: split the folded axis first"),
    "none": ([], [], r"\[rfactor\] t2 folds its axes 1; .* got 0: split the folded axis first"),
    "twice": ([("split", "t2", 1, 5, False)], [2, -1], r"\[rfactor\] t2: axis 2 is named twice"),
    "outer": ([("split", "t2", 1, 5, False)], [1], r"\[rfactor\] axes 1 and 2 of t2 .* name axis 2 and not 1"),
    "runs": ([("split", "t2", 1, 6)], [2], r"\[rfactor\] axis 1 .* 2 runs of 6 .* use split\(1, 2, inner=False\)"),
    "empty runs": ([("split", "t2", 1, 11, False)], [2], r"\[reduce_sum\] expected 1 to 10 parts .*got 11"),
    "transforms": ([("reorder", "t2", [1, 0])], [0], r"\[rfactor\] t2 has other transforms .*call rfactor first"),
    "parallel": ([("parallelize", "t2", 0, "task")], [1], r"\[rfactor\] t2 has parallel axes .* before parallelize"),
}


@pytest.mark.parametrize("case", REFUSED_RFACTOR)
def test_an_rfactor_that_cannot_be_changes_nothing(case):
    calls, axes, message = REFUSED_RFACTOR[case]
    scheduler = jf.ir.Scheduler(row_sums())
    for call, *arguments in calls:
        getattr(scheduler, call)(*arguments)
    before = scheduler.schedule
    with pytest.raises(jf.UserError, match=message):
        scheduler.rfactor("t2", axes)
    assert scheduler.schedule == before and scheduler.fusion == row_sums()


def test_rfactor_does_not_round_between():
    b = jf.ir.Builder("low")
    x = b.input("x", "bf16", [8, 4])
    b.output(b.reduce("reduce_sum", x, [0, 1]))
    b.output(b.reduce("reduce_max", x, [0, 1]))
    scheduler = jf.ir.Scheduler(b.finish())
    with pytest.raises(jf.UserError, match=r"\[rfactor\] t1 is bf16, to which its parts would be rounded; .* f32"):
        scheduler.rfactor("t1", [1])
    assert scheduler.rfactor("t2", [1]) == "t2_parts"
    with pytest.raises(jf.UserError, match=r"\[rfactor\] t2_parts folds its axes 1; expected some but not all"):
        scheduler.rfactor("t2_parts", [1])


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_call_names_axis_and_value_and_changes_nothing(case):
    calls, message = REFUSED[case]
    scheduler = jf.ir.Scheduler(act())
    for call, *arguments in calls[:-1]:
        getattr(scheduler, call)(*arguments)
    before = scheduler.schedule
    call, *arguments = calls[-1]
    with pytest.raises(jf.UserError, match=message):
        getattr(scheduler, call)(*arguments)
    assert scheduler.schedule == before


def test_a_value_that_shares_no_axes_is_named():
    b = jf.ir.Builder("two")
    b.output(b.pointwise("neg", [b.input("x", "f32", [8, 4])]))
    b.output(b.pointwise("neg", [b.input("y", "f32", [5])]))
    fusion = b.finish()
    scheduler = jf.ir.Scheduler(fusion)
    with pytest.raises(jf.UserError, match=r"\[transform_like\] t3 \(f32\[5\]\) shares no axes with t2 .*by itself"):
        scheduler.transform_like(fusion.outputs[0])


@pytest.mark.parametrize(
    ("edit", "platform", "message"),
    [
        (lambda s: s.parallelize(Y, 0, "block"), "cpu", r"\[lower\] \w+ has a block axis.*use task"),
        (lambda s: s.parallelize(Y, 0, "task"), "cuda", r"\[lower\] \w+ has a task axis.*use block and thread"),
        (lambda s: (s.merge(Y, 0), s.split(Y, 0, 2048), s.parallelize(Y, 1, "thread")), "cuda", "threads.*split"),
    ],
)
def test_what_a_machine_does_not_have_is_refused(edit, platform, message):
    with pytest.raises(jf.UserError, match=message):
        jf.ir.lower(scheduled(edit), platform)


def test_a_producer_over_other_elements_is_refused():
    scheduler = jf.ir.Scheduler(act())
    scheduler.reorder(Y, [1, 0])
    with pytest.raises(jf.UserError, match=r"\[lower\].*transform_like"):
        jf.ir.lower(scheduler.schedule, "cpu")
