"""What each iteration computes, where loops do not follow the axes of a value: inlined broadcasts, merged and uneven
axes, swizzles, transposes through shared memory, lanes and unrolled loops. Every kernel runs, also as CUDA loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from arrays import numbers as array
from schedules import check_schedule
from tolerances import assert_close

import jax_fuser as jf


def scheduled(fusion: jf.ir.Fusion, edit: Callable, machine, reference: str = "y") -> jf.ir.Schedule:
    s = jf.ir.Scheduler(fusion)
    edit(s, machine)
    s.transform_like(reference)
    s.parallelize_like(reference)
    s.inline_most()
    return s.schedule


# Loops that a value shares although it has no axis of its own there, on their way through merges and splits.

ROW = """fusion row(r: f32[6], x: f32[6,5]) -> (y) {
  t: f32[6] = neg(r)
  wide: f32[6,b5] = broadcast(t) {dims=[0]}
  y: f32[6,5] = add(wide, x)
}"""
COLUMN = """fusion column(r: f32[5], x: f32[6,5]) -> (y) {
  t: f32[5] = neg(r)
  wide: f32[b6,5] = broadcast(t) {dims=[1]}
  y: f32[6,5] = add(wide, x)
}"""
TWO_STEPS = """fusion two_steps(r: f32[4], x: f32[4,3], z: f32[4,3,5]) -> (y) {
  t: f32[4] = neg(r)
  wide: f32[4,b3] = broadcast(t) {dims=[0]}
  u: f32[4,3] = add(wide, x)
  wider: f32[4,3,b5] = broadcast(u) {dims=[0,1]}
  y: f32[4,3,5] = mul(wider, z)
}"""
BOTH_SIDES = """fusion both_sides(r: f32[4], c: f32[6]) -> (y) {
  a: f32[4] = neg(r)
  b: f32[6] = abs(c)
  rows: f32[4,b6] = broadcast(a) {dims=[0]}
  columns: f32[b4,6] = broadcast(b) {dims=[1]}
  y: f32[4,6] = mul(rows, columns)
}"""
SCALAR = """fusion scalar(r: f32[], x: f32[6,5]) -> (y) {
  t: f32[] = neg(r)
  wide: f32[b6,b5] = broadcast(t) {dims=[]}
  y: f32[6,5] = add(wide, x)
}"""
SIZE_ONE = """fusion size_one(r: f32[1,5], x: f32[6,5]) -> (y) {
  t: f32[1,5] = neg(r)
  wide: f32[b6,5] = broadcast(t) {dims=[0,1]}
  y: f32[6,5] = add(wide, x)
}"""
PROMOTED = {
    "row": (ROW, [(6,), (6, 5)], lambda r, x: -r[:, None] + x),
    "column": (COLUMN, [(5,), (6, 5)], lambda r, x: -r + x),
    "two steps": (TWO_STEPS, [(4,), (4, 3), (4, 3, 5)], lambda r, x, z: (-r[:, None] + x)[:, :, None] * z),
    "both sides": (BOTH_SIDES, [(4,), (6,)], lambda r, c: -r[:, None] * abs(c)),
    "scalar": (SCALAR, [(), (6, 5)], lambda r, x: -r + x),
    "size one": (SIZE_ONE, [(1, 5), (6, 5)], lambda r, x: -r + x),
}


def as_it_is(s, machine):
    pass


def merged(s, machine):
    while len(s.loops("y")) > 1:
        s.merge("y", 0)


def merged_and_split(s, machine):
    merged(s, machine)
    s.split("y", 0, 4)


def merged_and_split_apart(s, machine):
    merged(s, machine)
    s.split("y", 0, 7)
    s.split("y", 1, 2)
    s.reorder("y", [1, 2, 0])


def split_before_merge(s, machine):
    s.split("y", 0, 2)
    s.merge("y", 1)
    s.parallelize("y", 0, machine.outer)


def uneven(s, machine):
    s.split("y", 0, 4)
    s.split("y", -1, 2)
    s.split("y", -1, 3)


def uneven_outer(s, machine):
    s.split("y", 0, 4, inner=False)
    s.split("y", -1, 4, inner=False)


def uneven_and_merged(s, machine):
    s.split("y", -1, 4)
    s.split("y", 0, 4)
    s.merge("y", 0)
    s.merge("y", 0)


def threads(s, machine):
    merged(s, machine)
    s.split("y", 0, 8)
    s.parallelize("y", 0, machine.outer)
    s.parallelize("y", 1, machine.inner)


def lanes(s, machine):
    merged(s, machine)
    s.split("y", 0, 4)
    s.parallelize("y", 1, "vector")


def lanes_of_an_uneven_axis(s, machine):
    s.split("y", -1, 4)
    s.parallelize("y", -1, "vector")


def lanes_across(s, machine):
    s.reorder("y", [*range(1, len(s.loops("y"))), 0])
    s.split("y", -1, 2)
    s.parallelize("y", -1, "vector")


def unrolled(s, machine):
    s.split("y", -1, 2)
    s.parallelize("y", -1, "unroll")
    s.parallelize("y", 0, machine.outer)


def unrolled_outside_of_threads(s, machine):
    s.split("y", -1, 4)
    s.split("y", -2, 2)
    s.parallelize("y", -2, "unroll")
    s.parallelize("y", -1, machine.inner)


def swizzled(s, machine):
    merged(s, machine)
    s.split("y", 0, 4)
    s.split("y", 0, 4)
    s.swizzle("y", 1, 2)


def swizzled_threads(s, machine):
    merged(s, machine)
    s.split("y", 0, 4)
    s.split("y", 0, 4)
    s.swizzle("y", 2, 1)
    s.merge("y", 1)
    s.parallelize("y", 1, machine.inner)


def padded(s, machine):
    s.pad("y", -1, 8)
    s.parallelize("y", -1, machine.inner)


EDITS = [
    as_it_is,
    merged,
    merged_and_split,
    merged_and_split_apart,
    split_before_merge,
    uneven,
    uneven_outer,
    uneven_and_merged,
    threads,
    lanes,
    lanes_of_an_uneven_axis,
    lanes_across,
    unrolled,
    unrolled_outside_of_threads,
    swizzled,
    swizzled_threads,
    padded,
]


@pytest.mark.parametrize("edit", EDITS)
def test_values_that_lack_axes_are_computed_inside_of_loops_over_them(edit, machine):
    """One test for all cases, since most time is the compiler's."""
    cases = PROMOTED if machine.platform == "cuda" else dict(list(PROMOTED.items())[EDITS.index(edit) % 2 :: 2])
    for name, (text, shapes, f) in cases.items():
        arrays = [array(*shape) for shape in shapes]
        schedule = scheduled(jf.ir.Fusion(text), edit, machine)
        assert schedule.inline_position("wide" if "wide" in schedule.fusion.values else "rows") > 0, name
        check_schedule(schedule, machine, arrays, f(*arrays))


@pytest.mark.parametrize("position", range(4))
def test_inlined_less_than_could_be(position, machine):
    """What is kept between loops has an element for each iteration of those that are not shared."""
    arrays = [array(4), array(4, 3), array(4, 3, 5)]
    s = jf.ir.Scheduler(jf.ir.Fusion(TWO_STEPS))
    s.split("y", 0, 3)
    s.transform_like("y")
    s.inline_most()
    for value in ("t", "wide", "u", "wider"):
        s.inline_at(value, position, best_effort=True)
    check_schedule(s.schedule, machine, arrays, (-arrays[0][:, None] + arrays[1])[:, :, None] * arrays[2])


def test_two_consumers_of_one_value_each_inline_it(machine):
    fusion = jf.ir.Fusion("""fusion siblings(r: f32[6], x: f32[6,5]) -> (y, z) {
      t: f32[6] = neg(r)
      wide: f32[6,b5] = broadcast(t) {dims=[0]}
      y: f32[6,5] = add(wide, x)
      z: f32[6,5] = mul(wide, x)
    }""")
    r, x = array(6), array(6, 5)
    for edit in (merged_and_split, uneven, lanes, threads):
        schedule = scheduled(fusion, edit, machine)
        assert schedule.loops("z") == schedule.loops("y")
        check_schedule(schedule, machine, [r, x], -r[:, None] + x, -r[:, None] * x)


# Two places of one array in one loop.


@pytest.mark.parametrize("axis", [0, 1])
def test_a_fold_along_one_axis_read_along_the_other(axis, machine):
    """An array that meets its own sums crosswise: no group can say which axis is which. Right, or refused."""
    fusion = jf.ir.Fusion(
        f"""fusion crosswise(x: f32[5,5]) -> (y) {{
      t: f32[5,5] = neg(x)
      total: f32[5] = reduce_sum(t) {{dims=[{axis}]}}
      wide: f32[b5,b5] = broadcast(total) {{dims=[{axis}]}}
      y: f32[5,5] = add(t, wide)
    }}""".replace("[b5,b5]", "[5,b5]" if axis == 0 else "[b5,5]")
    )
    x = array(5, 5)
    total = -x.sum(axis)
    want = -x + (total[:, None] if axis == 0 else total)
    for calls in ([], ["inline_most"], ["transform_like", "inline_most"]):
        s = jf.ir.Scheduler(fusion)
        for call in calls:
            getattr(s, call)(*(["y"] if call == "transform_like" else []))
        try:
            got = machine.run(s.schedule, x)
        except Exception as refused:
            assert "[lower]" in str(refused) and "runs over other elements" in str(refused)
        else:
            assert_close(got[0], want)


def test_an_array_and_its_transpose(machine):
    fusion = jf.ir.Fusion("""fusion symmetric(x: f32[6,6]) -> (y) {
      t: f32[6,6] = neg(x)
      turned: f32[6,6] = transpose(x) {dims=[1,0]}
      y: f32[6,6] = add(t, turned)
    }""")
    x = array(6, 6)
    for edit in (as_it_is, merged_and_split, uneven, lanes, threads, swizzled):
        check_schedule(scheduled(fusion, edit, machine), machine, [x], x.T - x)


# Transposes through shared memory: the same tile, written along one axis and read along the other.


def tile(s, rows, columns, lanes=1, pad=0):
    """Blocks of (rows, columns) of y = x.T, staged in shared memory; threads along the rows of each side."""
    kept = s.cache_after("x")
    s.split("y", 1, columns)
    s.split("y", 0, rows)
    s.reorder("y", [0, 2, 1, 3])
    s.merge("y", 0)
    s.transform_like("y")
    s.reorder(kept, [0, 2, 1])
    s.set_memory(kept, "shared")
    s.set_allocation(kept, 1, pad)
    for value in (kept, "y"):
        s.merge(value, 1)
        s.split(value, 1, lanes)
        s.split(value, 1, 16)
        s.parallelize(value, 0, "block")
        s.parallelize(value, 2, "thread")
        s.parallelize(value, 3, "vector")
    s.inline_most()
    return kept


@pytest.mark.parametrize("pad", [0, 1, 2])
@pytest.mark.parametrize(
    ("shape", "rows", "columns", "lanes"), [((8, 16), 8, 8, 1), ((9, 21), 8, 4, 2), ((7, 5), 4, 8, 4)]
)
def test_transposes_through_shared_memory(shape, rows, columns, lanes, pad, machine):
    if machine.platform == "cpu":
        pytest.skip("shared memory is CUDA's")
    text = f"fusion turned(x: f32[{shape[0]},{shape[1]}]) -> (y) "
    text += f"{{ y: f32[{shape[1]},{shape[0]}] = transpose(x) {{dims=[1,0]}} }}"
    s = jf.ir.Scheduler(jf.ir.Fusion(text))
    tile(s, rows, columns, lanes, pad)
    x = array(*shape)
    loops = jf.ir.lower(s.schedule, "cuda").as_text("loops")
    assert f"f32[{columns * (rows + pad)}]" in loops and loops.count("sync") == 1
    check_schedule(s.schedule, machine, [x], x.T)


@pytest.mark.parametrize("x_axis", [1, 2])
def test_a_swizzled_tile_in_shared_memory(x_axis, machine):
    """Rows of a tile lie in another order for every column, so that neither side meets in one bank."""
    if machine.platform == "cpu":
        pytest.skip("shared memory is CUDA's")
    s = jf.ir.Scheduler(jf.ir.Fusion("fusion f(x: f32[8,24]) -> (y) { y: f32[24,8] = transpose(x) {dims=[1,0]} }"))
    kept = s.cache_after("x")
    s.split("y", 0, 8)
    s.transform_like("y")
    s.set_memory(kept, "shared")
    s.swizzle(kept, x_axis, 3 - x_axis)
    for value in (kept, "y"):
        s.parallelize(value, 0, "block")
        s.parallelize(value, 2, "thread")
    s.inline_most()
    x = array(8, 24)
    try:
        check_schedule(s.schedule, machine, [x], x.T)
        assert "^" in jf.ir.lower(s.schedule, "cuda").as_text("loops")
    except jf.UserError as refused:
        assert "set_allocation" in str(refused)


# Predicates.


def test_sixty_four_elements_on_more_threads(machine):
    """An axis of extent 1 split by 8 makes iterations without an element: the guard must not go with the axis."""
    fusion = jf.ir.Fusion("fusion f(x: f32[64]) -> (y) { y: f32[64] = neg(x) }")
    s = jf.ir.Scheduler(fusion)
    s.split("y", 0, 64)
    s.split("y", 0, 8)
    s.merge("y", 0)
    s.merge("y", 0)
    s.parallelize("y", 0, machine.inner)
    x = array(64)
    check_schedule(s.schedule, machine, [x], -x)


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("factors", [(3,), (4, 3), (5, 2, 2), (8, 3), (13, 4)])
def test_splits_that_do_not_divide(factors, inner, machine):
    """Of splits of splits: each that has a remainder is guarded, unless a guard further up says the same."""
    fusion = jf.ir.Fusion("fusion f(x: f32[11,7]) -> (y) { t: f32[11,7] = neg(x) y: f32[11,7] = abs(t) }")
    x = array(11, 7)
    for axis in (0, -1):
        s = jf.ir.Scheduler(fusion)
        for factor in factors:
            s.split("y", axis, factor, inner)
        s.parallelize("y", -1, machine.inner)
        s.transform_like("y")
        s.parallelize_like("y")
        s.inline_most()
        check_schedule(s.schedule, machine, [x], abs(x))


@pytest.mark.parametrize("fold", ["reduce_sum", "reduce_max", "reduce_min"])
@pytest.mark.parametrize(
    "calls", [[("split", 1, 4)], [("split", 1, 3), ("split", 2, 2)], [("pad", 1, 16)], [("pad", 0, 4)]]
)
def test_iterations_without_an_element_are_not_folded(fold, calls, machine):
    fusion = jf.ir.Fusion(
        f"fusion f(x: f32[6,13]) -> (y) {{ t: f32[6,13] = exp(x) y: f32[6] = {fold}(t) {{dims=[1]}} }}"
    )
    s = jf.ir.Scheduler(fusion)
    for call, *arguments in calls:
        getattr(s, call)("y", *arguments)
    if machine.platform == "cuda" and s.loops("y")[-1][0] in (2, 4, 16):
        s.parallelize("y", -1, "thread")
    s.transform_like("y")
    s.parallelize_like("y")
    s.inline_most()
    x = -abs(array(6, 13)) if fold == "reduce_max" else array(6, 13)
    check_schedule(s.schedule, machine, [x], getattr(np, fold.removeprefix("reduce_"))(np.exp(x), axis=1))


def test_threads_that_share_a_loop_with_fewer_are_guarded(machine):
    """Two outputs of other sizes in one kernel: the smaller one takes some of the threads."""
    fusion = jf.ir.Fusion("""fusion f(x: f32[8], z: f32[5]) -> (y, w) {
      y: f32[8] = neg(x)
      w: f32[5] = abs(z)
    }""")
    s = jf.ir.Scheduler(fusion)
    for value in ("y", "w"):
        s.parallelize(value, 0, machine.inner)
    x, z = array(8), array(5)
    check_schedule(s.schedule, machine, [x, z], -x, abs(z))
