"""Every scheduling call changes the loops as it says, never the result; schedules read back, and run."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from schedules import (
    COLUMNS,
    ROWS,
    STRETCHED,
    T,
    U,
    Y,
    act,
    inputs,
    scheduled,
)
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core


def test_values_have_the_names_that_these_tests_use():
    fusion = act()
    assert fusion.name == "act" and fusion.inputs == ["x", "r"] and fusion.outputs == [Y, U]
    assert (fusion.dtype(STRETCHED), fusion.shape(STRETCHED)) == ("f32", [ROWS, COLUMNS])


# The same result, whatever the loops.


def nothing(s):
    pass


def split_inner(s):
    s.split(Y, 1, 5)


def split_outer(s):
    s.split(Y, 0, 4, inner=False)


def split_with_a_remainder(s):
    s.split(Y, 1, 4)
    s.split(Y, 0, 3)


def merge(s):
    s.merge(Y, 0)


def reorder(s):
    s.reorder(Y, [1, 0])


def swizzle(s):
    s.split(Y, 0, 4)
    s.swizzle(Y, 0, 1)


def unroll(s):
    s.split(Y, 1, 2)
    s.parallelize(Y, -1, "unroll")


def vector(s):
    s.merge(Y, 0)
    s.split(Y, 0, 8)
    s.parallelize(Y, -1, "vector")


def vector_with_a_remainder(s):
    s.split(Y, 1, 4)
    s.parallelize(Y, -1, "vector")


def vector_down_columns(s):
    s.reorder(Y, [1, 0])
    s.split(Y, 1, 8)
    s.parallelize(Y, -1, "vector")


def task(s):
    s.parallelize(Y, 0, "task")


def task_swizzle_vector(s):
    s.split(Y, 0, 4)
    s.swizzle(Y, 1, 0)
    s.merge(Y, 0)
    s.merge(Y, 0)
    s.split(Y, 0, 8)
    s.split(Y, 0, 7)
    s.parallelize(Y, 0, "task")
    s.parallelize(Y, -1, "vector")


EDITS = [
    nothing,
    split_inner,
    split_outer,
    split_with_a_remainder,
    merge,
    reorder,
    swizzle,
    unroll,
    vector,
    vector_with_a_remainder,
    vector_down_columns,
    task,
    task_swizzle_vector,
]
LOOPS = {
    nothing: [ROWS, COLUMNS],
    split_inner: [ROWS, 2, 5],
    split_outer: [4, 4, COLUMNS],
    split_with_a_remainder: [6, 3, 3, 4],
    merge: [ROWS * COLUMNS],
    reorder: [COLUMNS, ROWS],
    swizzle: [4, 4, COLUMNS],
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_schedule_does_not_change_the_result(edit):
    x, r = inputs()
    schedule = scheduled(edit)
    got = jf.ir.run(schedule, x, r)
    assert_close(got[0], np.tanh(x + r) * x)
    assert_close(got[1], x + r)


@pytest.mark.parametrize("edit", LOOPS)
def test_a_call_makes_the_loops_that_it_says(edit):
    schedule = scheduled(edit)
    for value in (T, U, Y):
        assert schedule.loops(value) == [(extent, "serial") for extent in LOOPS[edit]]


@pytest.mark.parametrize("edit", EDITS)
def test_text_of_a_schedule_reads_back(edit):
    schedule = scheduled(edit)
    again = jf.ir.Schedule(act(), str(schedule))
    assert again == schedule and str(again) == str(schedule) and hash(again) == hash(schedule)
    assert (again != jf.ir.Schedule(act())) == (str(schedule) != str(jf.ir.Schedule(act())))


def test_inline_most_shares_all_loops():
    schedule = scheduled(split_inner)
    assert [schedule.inline_position(v) for v in (U, T, Y)] == [3, 3, 0]


def test_inline_at():
    scheduler = jf.ir.Scheduler(act())
    scheduler.inline_at(T, 2)
    assert scheduler.schedule.inline_position(T) == 2
    scheduler.inline_at(T, 0)
    assert scheduler.schedule.inline_position(T) == 0


def test_parallel_types_are_copied_to_equal_loops_only():
    scheduler = jf.ir.Scheduler(act())
    scheduler.split(Y, 1, 2)
    scheduler.transform_like(Y)
    scheduler.parallelize(Y, 0, "task")
    scheduler.merge(T, 0)
    scheduler.parallelize_like(Y)
    assert scheduler.loops(U)[0] == (ROWS, "task")
    assert scheduler.loops(T)[0] == (ROWS * 5, "serial")


def test_memory_is_part_of_the_schedule():
    scheduler = jf.ir.Scheduler(act())
    scheduler.set_memory(T, "shared")
    assert scheduler.schedule.memory(T) == "shared" and "shared" in str(scheduler)
    assert jf.ir.Schedule(act(), str(scheduler)) == scheduler.schedule
    scheduler.set_memory(T, "register")
    assert scheduler.schedule == jf.ir.Schedule(act())


def test_axes_count_from_the_end_too():
    scheduler = jf.ir.Scheduler(act())
    scheduler.split(Y, -1, 5)
    scheduler.parallelize(Y, -3, "task")
    assert scheduler.loops(Y) == [(ROWS, "task"), (2, "serial"), (5, "serial")]


def test_scheduling_goes_on_from_a_schedule():
    start = scheduled(split_inner)
    scheduler = jf.ir.Scheduler(start)
    scheduler.merge(Y, 1)
    assert scheduler.loops(Y) == [(ROWS, "serial"), (COLUMNS, "serial")]
    assert start.loops(Y)[1:] == [(2, "serial"), (5, "serial")]


# Texts.


def renamed(**names: str) -> jf.ir.Fusion:
    text = str(act())
    for old, new in names.items():
        text = text.replace(old, new)
    return jf.ir.Fusion(text)


@pytest.mark.parametrize("name", ["inline", "inline_2", "inline3", "shared", "shared_row", "schedule", "vector"])
def test_values_may_have_the_names_of_keywords(name):
    fusion = renamed(t4=name)
    scheduler = jf.ir.Scheduler(fusion)
    for value in (U, name, Y):
        scheduler.split(value, 1, 2)
    scheduler.set_memory(U, "shared")
    scheduler.inline_at(name, 1)
    assert jf.ir.Schedule(fusion, str(scheduler)) == scheduler.schedule


def test_a_schedule_on_its_way_prints_and_parses():
    scheduler = jf.ir.Scheduler(act())
    scheduler.inline_at(T, 2)
    scheduler.split(Y, 0, 4)  # T no longer agrees with its consumer
    assert jf.ir.Schedule(scheduler.fusion, str(scheduler)) == scheduler.schedule
    assert copy.copy(scheduler).schedule == scheduler.schedule
    with pytest.raises(jf.UserError, match=r"\[inline_at\] t4 is inlined at 2 but agrees only in 0 loop axes"):
        jf.ir.lower(scheduler.schedule, "cpu")


BAD_TEXTS = {
    "schedule { t9[16,10]: -> [16, 10] }": r"line 1: expected a value of act, got 't9",
    "schedule {\n t5[16,9]: -> [16, 9] }": r"line 2: expected the shape \[16,10\]",
    "schedule { t5[16,10]: split(0,2) -> [16, 10] }": r"loop axes of t5 are not what its transforms give",
    "schedule { t5[16,10]: split(99999999999,2) -> [16, 10] }": r"line 1: expected an axis, got '99999999999",
    "schedule { t5[16,10]: split(4294967296,2) -> [8, 2, 10] }": r"expected an axis",
    "schedule { t5[16,10]: turn(0) -> [16, 10] }": r"expected split, merge, reorder, swizzle, insert, drop or '->'",
    "schedule { t5[16,10]: -> [16 warp, 10] }": r"expected one of serial, unroll, vector, task, block",
    "schedule { t5[16,10]: -> [16 tasks, 10] }": r"expected one of serial",
    "schedule { t5[16,10]: merge(0) -> [160] t5[16,10]: -> [16, 10] }": r"expected a value that is not listed above",
    "schedule { t4[16,10]: -> [16, 10] inline 9 }": r"\[inline_at\] t4 has 2 loop axes; cannot inline at 9",
    "schedule { t5[16,10]: -> [16, 10]": r"got the end",
    "schedule { } more": r"expected the end of the text",
    "schedule { t5[16,10]: split(-1,2) -> [16, 5, 2] }": r"an integer that is not negative",
    "schedule { t5[16,10]: insert(0,x.2) -> [1, 16, 10] }": r"expected an axis of that value",
}


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_a_wrong_text_says_where(text):
    with pytest.raises(jf.UserError, match=BAD_TEXTS[text]):
        jf.ir.Schedule(act(), text)


def test_block_y_is_not_block():
    scheduler = jf.ir.Scheduler(act())
    scheduler.parallelize(Y, 0, "block_y")
    scheduler.parallelize(Y, 1, "thread_y")
    again = jf.ir.Schedule(act(), str(scheduler))
    assert again == scheduler.schedule and again.loops(Y) == [(ROWS, "block_y"), (COLUMNS, "thread_y")]


# Running.


def test_run_works_under_jit():
    x, r = inputs()
    schedule = scheduled(vector)
    got = jax.jit(lambda x, r: jf.ir.run(schedule, x + 1, r)[0] * 2)(x, r)
    assert_close(got, 2 * np.tanh(x + 1 + r) * (x + 1))


def test_run_without_a_schedule_lets_the_compiler_choose():
    x, r = inputs()
    assert_close(jf.ir.run(act(), x, r)[0], np.tanh(x + r) * x)


def test_run_checks_its_arrays():
    x, r = inputs()
    with pytest.raises(TypeError, match=r"run: act takes 2 arrays \(x, r\), got 1"):
        jf.ir.run(act(), x)
    with pytest.raises(ValueError, match=r"run: input r is f32\[10\], got f32\[16,10\]"):
        jf.ir.run(act(), x, x)
    with pytest.raises(ValueError, match=r"run: input x is f32\[16,10\], got bf16\[16,10\]"):
        jf.ir.run(act(), jnp.asarray(x, jnp.bfloat16), r)
    with pytest.raises(TypeError, match="run: expected a Fusion or a Schedule, got str"):
        jf.ir.run(str(act()), x, r)


def test_lower_shows_the_schedule_as_given():
    schedule = scheduled(vector_with_a_remainder)
    lowered = jf.ir.lower(schedule, "cpu")
    assert lowered.as_text("schedule") == str(schedule)
    assert lowered.as_text("fusion") == str(act())
    assert "width=4" in lowered.as_text("loops") and "act" in lowered.as_text("source")
    with pytest.raises(ValueError, match=r"as_text: stage must be one of .*got 'ptx'"):
        lowered.as_text("ptx")
    with pytest.raises(ValueError, match="lower: platform must be"):
        jf.ir.lower(schedule, "tpu")


def test_the_program_of_a_call_holds_the_schedule():
    x, r = inputs()
    schedule = scheduled(split_inner)
    text = jax.jit(lambda x, r: jf.ir.run(schedule, x, r)).lower(x, r).as_text()
    assert "split(1,5)" in text


def test_what_the_compiler_proposes_can_be_edited_and_run():
    x, r = inputs()
    [schedule] = jf.ir.propose(act(), "cpu")
    assert schedule.loops(Y)[-1][1] == "vector"
    scheduler = jf.ir.Scheduler(schedule)
    scheduler.split(Y, 0, 3)
    scheduler.transform_like(Y)
    scheduler.parallelize_like(Y)
    scheduler.inline_most()
    want = {Y: np.tanh(x + r) * x, U: x + r}
    for either in (schedule, scheduler.schedule):
        for name, got in zip(schedule.fusion.outputs, jf.ir.run(either, x, r)):
            assert_close(got, want[name])
    assert "thread" in str(jf.ir.propose(act(), "cuda")[0])


# From JAX to a fusion.


def test_trace_makes_one_fusion():
    x, r = inputs()
    fusion = jf.ir.trace(lambda x, r: jnp.tanh(x + r) * x, x, r, name="act")
    assert fusion.name == "act" and fusion.inputs == ["x", "r"] and len(fusion.outputs) == 1
    assert jf.ir.Fusion(str(fusion)) == fusion
    assert_close(jf.ir.run(fusion, x, r)[0], np.tanh(x + r) * x)


def test_trace_refuses_what_is_no_fusion():
    x, _ = inputs()
    with pytest.raises(ValueError, match="trace: sort in f is not an op of a fusion"):
        jf.ir.trace(lambda x: jnp.sort(x), x, name="f")
    with pytest.raises(ValueError, match="trace: f closes over 1 arrays; pass them as arguments"):
        jf.ir.trace(lambda y: y + jnp.asarray(x), x, name="f")
    with pytest.raises(ValueError, match="trace: a result of f is an argument or another result"):
        jf.ir.trace(lambda x: (x, x + 1), x, name="f")


def test_fusion_text_is_checked():
    with pytest.raises(jf.UserError, match=r"\[parse\] line 1"):
        jf.ir.Fusion("fusion f(x: f32[8]) -> (y) {}")
    with pytest.raises(jf.UserError, match=r"\[shape\] act has no value 'q'"):
        act().shape("q")


def test_cuda_source_of_a_hand_schedule_compiles():
    if _core.nvrtc()[0] is None:
        pytest.skip(f"no NVRTC here: {_core.nvrtc()[1]}")

    def edit(s):
        s.split(Y, 0, 4)
        s.swizzle(Y, 0, 1)
        s.merge(Y, 0)
        s.merge(Y, 0)
        s.split(Y, 0, 2)
        s.split(Y, 0, 32)
        for axis, parallel in enumerate(("block", "thread", "vector")):
            s.parallelize(Y, axis, parallel)

    schedule = scheduled(edit)
    assert _core.compile_cuda(f"{act()}{schedule}", _core.cuda_target_for(90))
