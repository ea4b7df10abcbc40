"""Scans under scheduling calls: any loops in order give the same result, and others are refused by name."""

import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

ROWS, COLUMNS = 12, 40


def fusion(axis=1, reverse=False, linear=""):
    """y = x + cumsum(2 x); its values are x, ..., doubled, summed, y. With `linear` a recurrence of 2 x and x."""
    b = jf.ir.Builder("sums")
    x = b.input("x", "f32", [ROWS, COLUMNS])
    doubled = b.pointwise("add", [x, x])
    if linear:
        # Where x is 0, and nowhere else, the factor is NaN.
        factors = b.pointwise("div", [b.pointwise("mul", [x, x]), x]) if linear == RESETS else x
        summed = b.scan(linear, doubled, axis, reverse, factors=factors)
    else:
        summed = b.scan("scan_sum", doubled, axis, reverse)
    b.output(b.pointwise("add", [summed, x]))
    return b.finish()


RESETS = "scan_linear_resets"
X, DOUBLED, SUMMED, Y = fusion().values


def values(linear=""):
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    return np.where(np.abs(x) < 0.3, 0, x) if linear == RESETS else x


def truth(x, axis, reverse, linear=""):
    x = np.asarray(x, np.float64)
    turned = np.flip(x, axis) if reverse else x
    if linear:
        rows = np.moveaxis(turned, axis, -1)
        s = np.moveaxis(
            loop_interpreter.recurred(2 * rows, np.where(rows == 0, np.nan, rows), 0, linear == RESETS)[0], -1, axis
        )
    else:
        s = np.cumsum(turned * 2, axis)
    return x + (np.flip(s, axis) if reverse else s)


def scheduled(f, edit):
    s = jf.ir.Scheduler(f)
    edit(s)
    s.transform_like(SUMMED)
    s.parallelize_like(SUMMED)
    s.inline_most()
    return s.schedule


def lanes(s):
    s.split(SUMMED, 1, 8)
    s.parallelize(SUMMED, -1, "vector")


def columns(s):
    s.reorder(SUMMED, [1, 0])
    s.split(SUMMED, 0, 16)
    s.reorder(SUMMED, [0, 2, 1])
    s.parallelize(SUMMED, -1, "vector")


def uneven(s):
    s.split(SUMMED, 1, 7)
    s.split(SUMMED, 2, 3)
    s.split(SUMMED, 0, 5)


def tasks(s):
    lanes(s)
    s.parallelize(SUMMED, 0, "task")


def side_by_side(s):
    s.split(SUMMED, 0, 3)
    s.reorder(SUMMED, [0, 2, 1])


CPU = [lanes, columns, uneven, tasks, side_by_side, lambda s: None]


LINEAR = pytest.mark.parametrize("linear", ["", "scan_linear", RESETS], ids=["sum", "linear", "resets"])


@LINEAR
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("edit", CPU)
def test_any_loops_give_the_same_result(edit, axis, reverse, linear):
    x = values(linear)
    try:
        schedule = scheduled(fusion(axis, reverse, linear), edit)
        [got] = jf.ir.run(schedule, jnp.asarray(x))
    except _core.UserError as error:
        assert axis == 0 and edit is tasks, error  # its tasks run apart
        return
    assert_close(got, truth(x, axis, reverse, linear), scale=4)
    assert jf.ir.Scheduler(schedule).schedule == schedule


def test_values_that_nobody_inlines():
    f = fusion()
    x = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    [got] = jf.ir.run(jf.ir.Scheduler(f).schedule, jnp.asarray(x))
    assert_close(got, truth(x, 1, False))


def rows(s):
    s.split(SUMMED, 1, 8)
    s.parallelize(SUMMED, 2, "thread")
    s.parallelize(SUMMED, 0, "block")


def rows_in_chunks(s):
    s.split(SUMMED, 1, 2)
    s.split(SUMMED, 1, 4)
    s.split(SUMMED, 1, 2)
    s.parallelize(SUMMED, -1, "vector")
    s.parallelize(SUMMED, -2, "thread")
    s.parallelize(SUMMED, -3, "unroll")
    s.parallelize(SUMMED, 0, "block")


def runs_of_threads(s):
    s.split(SUMMED, 1, 5)
    s.parallelize(SUMMED, 1, "thread")
    s.parallelize(SUMMED, 2, "unroll")
    s.parallelize(SUMMED, 0, "block")


def threads_y(s):
    s.reorder(SUMMED, [1, 0])
    s.split(SUMMED, 1, 3)
    s.split(SUMMED, 0, 8)
    for axis, parallel in enumerate(["block", "thread", "thread_y", "unroll"]):
        s.parallelize(SUMMED, axis, parallel)


CUDA = {rows: 1, rows_in_chunks: 1, runs_of_threads: 1, threads_y: 0}


@pytest.mark.parametrize("reverse", [False, True])
@LINEAR
@pytest.mark.parametrize("edit", CUDA)
def test_threads_scan_together(edit, reverse, linear):
    schedule = scheduled(fusion(CUDA[edit], reverse, linear), edit)
    text = jf.ir.lower(schedule, "cuda").as_text("source")
    assert ("jf::recur_threads<" if linear else "jf::scan_threads<jf::fold::add") in text and (
        "kReverse" in text
    ) == reverse
    if _core.nvrtc()[0] is not None:
        assert _core.compile_cuda(f"{schedule.fusion}{schedule}", _core.cuda_target_for(90))


def one_thread_outside(s):
    s.split(SUMMED, 1, 8)
    s.split(SUMMED, 1, 1, False)
    s.parallelize(SUMMED, 1, "thread")
    s.parallelize(SUMMED, 3, "thread_y")


@pytest.mark.parametrize("reverse", [False, True])
@LINEAR
@pytest.mark.parametrize("edit", [*CUDA, one_thread_outside])
def test_threads_scan_every_element_in_order(edit, reverse, linear):
    axis = CUDA.get(edit, 1)
    x = values(linear)
    [got] = loop_interpreter.run(scheduled(fusion(axis, reverse, linear), edit), x)
    assert_close(got, truth(x, axis, reverse, linear), scale=4)


def test_a_scan_by_threads_stands_beside_lanes_of_others():
    b = jf.ir.Builder("beside")
    x = b.input("x", "f32", [ROWS, COLUMNS])
    b.output(b.scan("scan_sum", x, 1))
    b.output(b.pointwise("neg", [x]))
    s = jf.ir.Scheduler(b.finish())
    summed, negative = s.fusion.outputs
    s.split(summed, 1, 5)
    s.parallelize(summed, 1, "thread")
    s.split(negative, 1, 4)
    s.parallelize(negative, 2, "vector")
    for value in (summed, negative):
        s.parallelize(value, 0, "block")
    s.inline_most()
    got = loop_interpreter.run(s.schedule, np.ones((ROWS, COLUMNS), np.float32))
    assert_close(got[0], np.broadcast_to(np.arange(1, COLUMNS + 1), (ROWS, COLUMNS)))
    if _core.nvrtc()[0] is not None:
        assert _core.compile_cuda(f"{s.fusion}{s.schedule}", _core.cuda_target_for(90))


def test_threads_scan_what_they_folded():
    """In loops that the scan's result lacks."""
    b = jf.ir.Builder("after")
    fold = b.reduce("reduce_sum", b.input("x", "f32", [ROWS, COLUMNS]), [1])
    b.output(b.scan("scan_sum", fold, 0))
    s = jf.ir.Scheduler(b.finish())
    fold = s.fusion.values[1]
    s.split(fold, 0, 8)
    s.parallelize(fold, 1, "thread")
    s.transform_like(fold)
    s.parallelize_like(fold)
    s.inline_most()
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    assert_close(loop_interpreter.run(s.schedule, x)[0], np.cumsum(x.astype(np.float64).sum(1)))


def out_of_order(s):
    s.split(SUMMED, 1, 8)
    s.reorder(SUMMED, [0, 2, 1])


def tasks_along(s):
    s.parallelize(SUMMED, 1, "task")


def two_kinds_of_threads(s):
    s.split(SUMMED, 1, 8)
    s.parallelize(SUMMED, 1, "thread_y")
    s.parallelize(SUMMED, 2, "thread")


def lanes_elsewhere(s):
    s.split(SUMMED, 0, 4)
    s.reorder(SUMMED, [0, 2, 1])
    s.parallelize(SUMMED, 1, "thread")
    s.parallelize(SUMMED, 2, "vector")


def lanes_along_threads_y(s):
    s.split(SUMMED, 1, 4)
    s.parallelize(SUMMED, 1, "thread_y")
    s.parallelize(SUMMED, 2, "vector")


def lanes_of_no_step(s):
    """Columns in thirteens, and those in lanes of 4: both end within a vector."""
    s.split(SUMMED, 1, 13)
    s.split(SUMMED, 2, 4)
    s.reorder(SUMMED, [1, 2, 0, 3])
    s.parallelize(SUMMED, 2, "thread_y")
    s.parallelize(SUMMED, 3, "vector")


REFUSED = {
    out_of_order: ("cpu", rf"{SUMMED} is scanned along loop axis 2, .*reorder"),
    tasks_along: ("cpu", rf"{SUMMED} is scanned along loop axis 1, which is task"),
    two_kinds_of_threads: ("cuda", rf"{SUMMED} is scanned along loop axes 1 and 2, both threads"),
    lanes_elsewhere: ("cuda", rf"{SUMMED} is scanned by the threads of axis 1, but its lanes lie along another"),
    lanes_along_threads_y: ("cuda", rf"{SUMMED} is scanned along loop axis 1 and along its lanes; use thread"),
    lanes_of_no_step: ("cuda", rf"{SUMMED} is scanned by threads, 4 columns in lanes .* split them off an axis that 4"),
}


@pytest.mark.parametrize("edit", REFUSED)
def test_loops_that_are_refused(edit):
    platform, message = REFUSED[edit]
    with pytest.raises(_core.UserError, match=message):
        jf.ir.lower(scheduled(fusion(axis=0 if edit is lanes_of_no_step else 1), edit), platform)


def test_calls_that_are_refused():
    s = jf.ir.Scheduler(fusion())
    with pytest.raises(_core.UserError, match=rf"\[merge\] axes 0 and 1 of {SUMMED}: it is scanned along one"):
        s.merge(SUMMED, 0)
    s.split(SUMMED, 1, 8)
    s.parallelize(SUMMED, 2, "thread")
    s.transform_like(SUMMED)
    s.parallelize_like(SUMMED)
    s.inline_at(SUMMED, 3)
    with pytest.raises(_core.UserError, match=rf"{SUMMED} is inlined at 3, inside of loop axis 2, whose threads"):
        jf.ir.lower(s.schedule, "cuda")


def test_opposite_directions_in_one_loop_are_refused():
    b = jf.ir.Builder("both")
    x = b.input("x", "f32", [ROWS, COLUMNS])
    b.output(b.pointwise("add", [b.scan("scan_sum", x, 1), b.scan("scan_sum", x, 1, reverse=True)]))
    s = jf.ir.Scheduler(b.finish())
    s.inline_most()
    with pytest.raises(_core.UserError, match="scans values in opposite directions in one loop of 40"):
        jf.ir.lower(s.schedule, "cpu")


def test_copies_of_a_scan():
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    for call in ("cache_after", "cache_before"):
        s = jf.ir.Scheduler(fusion())
        getattr(s, call)(SUMMED)
        [got] = jf.ir.run(s.schedule, jnp.asarray(x))
        assert_close(got, truth(x, 1, False))


def test_text_and_verification():
    f = fusion(reverse=True)
    assert jf.ir.Fusion(str(f)) == f and "scan_sum(t1) {axis=1 reverse}" in str(f)
    with pytest.raises(_core.UserError, match=r"\[scan_sum\] expected an axis below the rank of f32\[12,40\], got 2"):
        fusion(axis=2)
    with pytest.raises(_core.UserError, match=r"\[scan\] 'reduce_sum' is not a scan"):
        b = jf.ir.Builder("f")
        b.scan("reduce_sum", b.input("x", "f32", [3]), 0)
    with pytest.raises(_core.UserError, match=r"\[scan_logsumexp\] operand 0 has unsupported dtype s32"):
        b = jf.ir.Builder("f")
        b.scan("scan_logsumexp", b.input("x", "s32", [3]), 0)
    assert jf.ir.can_schedule(f, "reduction", "cpu") == (True, "")
    ok, reason = jf.ir.can_schedule(f, "pointwise", "cpu")
    assert not ok and "is scanned along an axis; use reduction" in reason
