"""Padded loop axes: more iterations at the end, none of which has an element."""

from __future__ import annotations

import numpy as np
import pytest
from schedules import nvrtc_compiles
from tolerances import assert_close

import jax_fuser as jf

ROWS, COLUMNS = 6, 20


def row_sums() -> jf.ir.Fusion:
    """y = x * 2 over its row sums."""
    return jf.ir.Fusion(f"""fusion shares(x: f32[{ROWS},{COLUMNS}]) -> (y) {{
      t: f32[{ROWS},{COLUMNS}] = add(x, x)
      total: f32[{ROWS}] = reduce_sum(t) {{dims=[1]}}
      totals: f32[{ROWS},b{COLUMNS}] = broadcast(total) {{dims=[0]}}
      y: f32[{ROWS},{COLUMNS}] = sub(t, totals)
    }}""")


def rows_on_warps(s, machine):
    s.pad("y", 1, 32)
    s.parallelize("y", 0, machine.outer)
    if machine.platform == "cuda":
        s.parallelize("y", 1, "thread")


def both_axes(s, machine):
    s.pad("y", 0, 4)
    s.pad("y", 1, 16)
    s.split("y", 1, 16)
    s.parallelize("y", -1, "vector")


def twice(s, machine):
    s.pad("y", 1, 3)
    s.pad("y", 1, 8)
    s.split("y", 1, 6)


def swizzled(s, machine):
    s.pad("y", 1, 64)
    s.split("y", 1, 8)
    s.swizzle("y", 1, 2)


def exact_multiple(s, machine):
    s.pad("y", 1, 5)
    assert str(s) == str(jf.ir.Schedule(row_sums()))


LOOPS = {
    rows_on_warps: [6, 32],
    both_axes: [8, 2, 16],
    twice: [6, 4, 6],
    swizzled: [6, 8, 8],
    exact_multiple: [6, 20],
}


@pytest.mark.parametrize("edit", LOOPS)
def test_a_pad_does_not_change_the_result(edit, machine):
    s = jf.ir.Scheduler(row_sums())
    edit(s, machine)
    assert [extent for extent, _ in s.loops("y")] == LOOPS[edit]
    s.transform_like("y")
    s.parallelize_like("y")
    s.inline_most()
    assert jf.ir.Schedule(s.fusion, str(s)) == s.schedule
    elements = [p for p in s.schedule.positions("y") if p is not None]
    assert sorted(elements) == list(range(ROWS * COLUMNS))
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    assert_close(machine.run(s.schedule, x)[0], 2 * x - 2 * x.sum(1, keepdims=True))
    if machine.platform == "cuda":
        nvrtc_compiles(s.schedule)


def test_a_pad_is_a_split_and_a_merge():
    s = jf.ir.Scheduler(row_sums())
    s.pad("y", 1, 32)
    other = jf.ir.Scheduler(row_sums())
    other.split("y", 1, 32)
    other.merge("y", 1)
    assert s.schedule == other.schedule and "y[6,20]: split(1,32) merge(1) -> [6, 32]" in str(s)
    assert s.schedule.positions("y")[:32] == [*range(20), *[None] * 12]


def test_equal_pads_share_an_index_and_no_others():
    s = jf.ir.Scheduler(row_sums())
    s.pad("y", 1, 8)
    s.pad("total", 1, 8)
    s.pad("t", 1, 32)
    graph = jf.ir.IndexGraph(s.schedule)
    assert graph.are_mapped("permissive", graph.loop("total", 1), graph.loop("y", 1))
    assert not graph.are_mapped("permissive", graph.loop("t", 1), graph.loop("y", 1))
    assert not graph.are_mapped("permissive", graph.root("y", 1), graph.loop("y", 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ((0, 0), r"\[pad\] axis 0 of y: expected a multiple of 1 to 1099511627776, got 0"),
        ((1, -32), r"\[pad\] axis 1 of y: expected a multiple of 1 to .*, got -32"),
        ((2, 32), r"\[pad\] y has 2 loop axes; .* \[-2, 2\), got 2"),
        ((0, 2**62), r"\[pad\] axis 0 of y: expected a multiple of 1 to 1099511627776, got"),
    ],
)
def test_a_wrong_pad_is_named(call, message):
    s = jf.ir.Scheduler(row_sums())
    with pytest.raises(jf.UserError, match=message):
        s.pad("y", *call)
    assert s.schedule == jf.ir.Schedule(row_sums())


def test_a_parallel_axis_is_not_padded():
    s = jf.ir.Scheduler(row_sums())
    s.parallelize("y", 0, "task")
    with pytest.raises(jf.UserError, match=r"\[pad\] axis 0 of y is already task; transform axes before"):
        s.pad("y", 0, 4)
