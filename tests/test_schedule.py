"""Every scheduling call: it changes the loops as it says, never the result, and refuses what it cannot do by name."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from schedules import check_schedule
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

ROWS, COLUMNS = 16, 10


def act() -> jf.ir.Fusion:
    """y = tanh(x + r) * x, with a row r; u = x + r is an output too."""
    b = jf.ir.Builder("act")
    x, r = b.input("x", "f32", [ROWS, COLUMNS]), b.input("r", "f32", [COLUMNS])
    u = b.pointwise("add", [x, b.broadcast(r, [ROWS, COLUMNS], [1])])
    b.output(b.pointwise("mul", [b.pointwise("tanh", [u]), x]))
    b.output(u)
    return b.finish()


def inputs() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(ROWS, COLUMNS)).astype(np.float32), random.normal(size=COLUMNS).astype(np.float32)


def scheduled(edit: Callable[[jf.ir.Scheduler], None]) -> jf.ir.Schedule:
    """Schedule the first output by `edit`, and the other values like it."""
    scheduler = jf.ir.Scheduler(act())
    edit(scheduler)
    scheduler.transform_like(Y)
    scheduler.parallelize_like(Y)
    scheduler.inline_most()
    return scheduler.schedule


X, R, STRETCHED, U, T, Y = act().values


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


# Folds.


def row_sums() -> jf.ir.Fusion:
    """The sum of squares of every row."""
    b = jf.ir.Builder("row_sums")
    b.output(b.reduce("reduce_sum", b.pointwise("square", [b.input("x", "f32", [ROWS, COLUMNS])]), [1]))
    return b.finish()


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


@pytest.mark.parametrize("edit", EDITS_OF_THE_FUSION)
def test_a_cached_value_does_not_change_the_result(edit):
    call, value = EDITS_OF_THE_FUSION[edit]
    start = scheduled(vector_with_a_remainder)
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


def nvrtc_compiles(schedule: jf.ir.Schedule) -> None:
    if _core.nvrtc()[0] is None:
        pytest.skip(f"no NVRTC here: {_core.nvrtc()[1]}")
    assert _core.compile_cuda(f"{schedule.fusion}{schedule}", _core.cuda_target_for(90))


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


# Strategies.


def strategy_cases() -> dict[str, tuple[Callable, list[np.ndarray], list[str]]]:
    random = np.random.default_rng(0)

    def array(*shape):
        return random.normal(size=shape).astype(np.float32)

    return {
        "row": (lambda x, r: jnp.tanh(x + r) * x, [array(16, 10), array(10)], ["pointwise"]),
        "two places": (lambda r: jnp.tanh(r)[:, None] - jnp.tanh(r)[None, :], [array(12)], ["pointwise"]),
        "unused input": (lambda x, y: y * 2, [array(3), array(4, 5)], ["pointwise"]),
        "across": (lambda x, y: x + y.T, [array(64, 48), array(48, 64)], ["transpose", "pointwise"]),
        "softmax": (lambda x: jax.nn.softmax(x, axis=1), [array(16, 10)], ["reduction"]),
        "columns": (lambda x: (x * x).sum(axis=0), [array(16, 10)], ["reduction"]),
        "all": (lambda x: (x * x).sum(), [array(5, 7)], ["reduction"]),
        "two folds": (lambda x: (x.sum(axis=0), x.sum(axis=1)), [array(16, 10)], []),
    }


@pytest.mark.parametrize("case", strategy_cases())
def test_strategies_by_name(case):
    f, arrays, fits = strategy_cases()[case]
    fusion = jf.ir.trace(f, *arrays, name="f")
    want = jax.tree.leaves(f(*arrays))
    assert jf.ir.find_compatible_schedulers(fusion, "cuda") == fits
    assert jf.ir.find_compatible_schedulers(fusion, "cpu") == [s for s in fits if s != "transpose"]
    for strategy in ("pointwise", "transpose", "reduction"):
        fit, reason = jf.ir.can_schedule(fusion, strategy, "cuda")
        assert fit == (strategy in fits) == (not reason)
        if not fit:
            with pytest.raises(jf.UserError) as error:
                jf.ir.schedule(fusion, strategy, "cuda")
            assert str(error.value) == reason
    for strategy in fits:
        for platform in ("cpu", "cuda") if strategy != "transpose" else ("cuda",):
            parameters = jf.ir.compute_heuristics(fusion, strategy, platform)
            schedule = jf.ir.schedule(fusion, strategy, platform)
            assert schedule == jf.ir.schedule(fusion, strategy, platform, parameters)
            assert schedule.fusion.inputs == fusion.inputs and jf.ir.Fusion(str(schedule.fusion)) == schedule.fusion
            if platform == "cuda":
                nvrtc_compiles(schedule)
                continue
            for got, array in zip(jf.ir.run(schedule, *arrays), want):
                assert_close(got, array)


EDITED_PARAMETERS = [
    ("row", "pointwise", {"lanes": 4, "lane_loop": 0}),
    ("row", "pointwise", {"collapse": [2], "lane_loop": 0, "tasks": 3}),
    ("across", "pointwise", {"tile": 1, "tile_loop": -1}),
    ("softmax", "reduction", {"keep": "nothing", "lane_loop": 0, "chunk": 2, "lanes": 4}),
    ("softmax", "reduction", {"keep": "rows", "lanes": 1, "tasks": 5}),
    ("columns", "reduction", {"lane_loop": 0, "lanes": 8}),
]


@pytest.mark.parametrize(("case", "strategy", "parameters"), EDITED_PARAMETERS)
def test_edited_parameters_give_the_same_result(case, strategy, parameters):
    f, arrays, _ = strategy_cases()[case]
    fusion = jf.ir.trace(f, *arrays, name="f")
    schedule = jf.ir.schedule(fusion, strategy, "cpu", parameters)
    assert schedule != jf.ir.schedule(fusion, strategy, "cpu")
    assert_close(jf.ir.run(schedule, *arrays)[0], f(*arrays))


@pytest.mark.parametrize(
    ("case", "strategy", "parameters"),
    [
        ("row", "pointwise", {"lanes": 2, "threads": 64, "unroll": 2, "two_axes": True}),
        ("across", "transpose", {"tile": 32, "lanes": 2, "threads": 128}),
        ("softmax", "reduction", {"along": "rows", "threads": 64, "keep": "nothing"}),
        ("columns", "reduction", {"threads": 4, "threads_y": 8}),
    ],
)
def test_edited_parameters_compile_for_cuda(case, strategy, parameters):
    f, arrays, _ = strategy_cases()[case]
    fusion = jf.ir.trace(f, *arrays, name="f")
    schedule = jf.ir.schedule(fusion, strategy, "cuda", parameters)
    assert schedule != jf.ir.schedule(fusion, strategy, "cuda")
    nvrtc_compiles(schedule)


BAD_PARAMETERS = {
    "name": ("row", "pointwise", "cpu", {"lane": 4}, r"\[pointwise\] it has no parameter 'lane' here; it has collapse"),
    "lanes": ("row", "pointwise", "cpu", {"lanes": 3}, r"\[pointwise\] lanes: expected a power of two up to 64, got 3"),
    "type": ("row", "pointwise", "cpu", {"lanes": "4"}, r"\[pointwise\] lanes: expected an integer"),
    "list": ("row", "pointwise", "cpu", {"collapse": [1]}, r"collapse: .* sum to 2, got a sum of 1"),
    "loop": ("row", "pointwise", "cpu", {"lane_loop": 2}, r"lane_loop: expected a loop in \[0, 2\), got 2"),
    "zero": ("row", "pointwise", "cpu", {"tasks": 0}, r"tasks: expected an integer from 1 to"),
    "tile": ("row", "pointwise", "cpu", {"tile": 4}, r"tile: a tile of 4 needs a tile_loop"),
    "threads": ("row", "pointwise", "cuda", {"threads": 2048}, r"threads: expected at most 1024, got 2048"),
    "other platform": ("row", "pointwise", "cuda", {"tasks": 2}, r"no parameter 'tasks' here"),
    "word": ("softmax", "reduction", "cpu", {"keep": "all"}, r"keep: expected nothing, dear or rows, got 'all'"),
    "along": ("softmax", "reduction", "cuda", {"along": "columns"}, r"lane_loop: loop 1 is folded; threads along col"),
    "one row": ("all", "reduction", "cuda", {"along": "rows"}, r"along: there is one row"),
    "warp": ("softmax", "reduction", "cuda", {"threads": 48}, r"threads: expected a power of two up to 32 or a mult"),
    "block": (
        "softmax",
        "reduction",
        "cuda",
        {"threads": 64, "threads_y": 32},
        r"threads times threads_y: .* got 2048",
    ),
    "large tile": ("across", "transpose", "cuda", {"tile": 128}, r"\[transpose\] tiles of 128 x 128 .* a smaller tile"),
    "wrong loop": ("across", "transpose", "cuda", {"loop": 1}, r"\[transpose\] expected a loop in \[0, 1\), got 1"),
}


@pytest.mark.parametrize("name", BAD_PARAMETERS)
def test_a_wrong_parameter_is_named(name):
    case, strategy, platform, parameters, message = BAD_PARAMETERS[name]
    f, arrays, _ = strategy_cases()[case]
    with pytest.raises(jf.UserError, match=message):
        jf.ir.schedule(jf.ir.trace(f, *arrays, name="f"), strategy, platform, parameters)


def test_a_wrong_strategy_is_named():
    for call in (jf.ir.can_schedule, jf.ir.compute_heuristics, jf.ir.schedule):
        with pytest.raises(ValueError, match=rf"{call.__name__}: strategy must be one of .*got 'matmul'"):
            call(act(), "matmul", "cpu")
        with pytest.raises(ValueError, match=rf"{call.__name__}: platform must be"):
            call(act(), "pointwise", "tpu")
    with pytest.raises(TypeError, match=r"schedule: parameter lanes must be a bool, int, str or list of int, got 4\.0"):
        jf.ir.schedule(act(), "pointwise", "cpu", {"lanes": 4.0})
    with pytest.raises(ValueError, match=r"schedule: parameter lanes is out of range"):
        jf.ir.schedule(act(), "pointwise", "cpu", {"lanes": 2**80})


WHY_NOT = {
    "pointwise": (lambda b, x: b.reduce("reduce_sum", x, [0]), r"\[pointwise\] t1 folds axes; use reduction"),
    "transpose": (lambda b, x: b.pointwise("neg", [x]), r"\[transpose\] f reads no long input along another axis"),
    "reduction": (lambda b, x: b.pointwise("neg", [x]), r"\[reduction\] f folds no axis; use pointwise"),
}


def test_what_no_single_kernel_makes():
    x, _ = inputs()
    fusion = jf.ir.trace(lambda x: jnp.concatenate([x * 2, x + 1]), x, name="joined")
    ok, reason = jf.ir.can_schedule(fusion, "pointwise", "cpu")
    assert not ok and "put together in memory" in reason
    empty = jf.ir.Fusion("fusion f(x: f32[0,4]) -> (y) { y: f32[0,4] = neg(x) }")
    assert jf.ir.can_schedule(empty, "pointwise", "cpu") == (False, "[pointwise] y has no elements")
    single = jf.ir.Fusion("fusion f(x: f32[1,4]) -> (y) { y: f32[] = reduce_sum(x) {dims=[0,1]} }")
    assert "squeeze it" in jf.ir.can_schedule(single, "reduction", "cpu")[1]


@pytest.mark.parametrize("strategy", WHY_NOT)
def test_a_strategy_says_why_not(strategy):
    build, message = WHY_NOT[strategy]
    b = jf.ir.Builder("f")
    b.output(build(b, b.input("x", "f32", [8, 4])))
    with pytest.raises(jf.UserError, match=message):
        jf.ir.compute_heuristics(b.finish(), strategy, "cuda")


# What is refused.

# The last call of each list is refused.
REFUSED = {
    "split axis": ([("split", Y, 2, 4)], r"\[split\] t5 has 2 loop axes; .* \[-2, 2\), got 2"),
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
    assert fusion.name == "act" and fusion.inputs == ["x0", "x1"] and len(fusion.outputs) == 1
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
