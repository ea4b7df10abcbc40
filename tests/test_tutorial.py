"""Scheduling by hand, step by step: each step changes the loops as it says and not the result."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from arrays import numbers as array
from schedules import check_schedule, nvrtc_compiles

import jax_fuser as jf


def extents(s, value):
    return [extent for extent, _ in s.loops(value)]


def check(s, machine, arrays, *wants):
    check_schedule(s.schedule, machine, arrays, *wants)
    if machine.platform == "cuda":
        nvrtc_compiles(s.schedule)


def test_a_loop_nest_is_the_axes_of_a_value(machine):
    x = array(4, 8, 16)
    s = jf.ir.Scheduler(jf.ir.Fusion("fusion f(x: f32[4,8,16]) -> (y) { y: f32[4,8,16] = neg(x) }"))
    assert extents(s, "y") == [4, 8, 16]
    s.split("y", 1, 4)  # the inner part has 4
    assert extents(s, "y") == [4, 2, 4, 16]
    s.split("y", 0, 4, inner=False)  # the outer part has 4
    assert extents(s, "y") == [4, 1, 2, 4, 16]
    s.merge("y", 2)
    assert extents(s, "y") == [4, 1, 8, 16]
    s.reorder("y", [2, 0, 1, 3])
    assert extents(s, "y") == [8, 4, 1, 16]
    s.merge("y", 0)
    s.merge("y", 1)
    assert extents(s, "y") == [32, 16]
    check(s, machine, [x], -x)
    # Which element an iteration computes: 8 before 4.
    positions = s.schedule.positions("y")
    assert positions[:17] == [*range(16), 128] and sorted(positions) == list(range(x.size))


def test_a_fold_on_blocks_and_threads(machine):
    """A row for each block, then threads along the row, then the row in parts."""
    x = array(16, 128)
    fusion = jf.ir.Fusion("fusion f(x: f32[16,128]) -> (y) { y: f32[16] = reduce_sum(x) {dims=[1]} }")
    s = jf.ir.Scheduler(fusion)
    s.parallelize("y", 0, machine.outer)
    check(s, machine, [x], x.sum(1))

    s.split("y", 1, 32)
    s.parallelize("y", 2, machine.inner)
    check(s, machine, [x], x.sum(1))
    if machine.platform == "cuda":
        assert "combine y by add over threads" in jf.ir.lower(s.schedule, "cuda").as_text("loops")

    s = jf.ir.Scheduler(fusion)
    s.split("y", 1, 32, inner=False)
    part = s.rfactor("y", [2])
    assert extents(s, part) == [16, 32, 4] and extents(s, "y") == [16, 32]
    assert [s.fusion.is_reduction(v) for v in s.fusion.values] == [False, True, True]
    for value in (part, "y"):
        s.parallelize(value, 0, machine.outer)
        s.parallelize(value, 1, machine.inner)
    s.inline_at(part, 1)
    check(s, machine, [x], x.sum(1))


def test_a_fold_over_all_axes(machine):
    """Parts of the rows first; a grid folds no more, so the parts are folded by one block."""
    x = array(64, 6)
    s = jf.ir.Scheduler(jf.ir.Fusion("fusion f(x: f32[64,6]) -> (y) { y: f32[] = reduce_max(x) {dims=[0,1]} }"))
    inner = s.rfactor("y", [1])
    assert s.fusion.shape(inner) == [64]
    s.parallelize(inner, 0, "thread" if machine.platform == "cuda" else "unroll")
    s.parallelize("y", 0, "thread" if machine.platform == "cuda" else "unroll")
    check(s, machine, [x], x.max())


def test_what_runs_apart_is_not_folded(machine):
    x = array(16, 128)
    s = jf.ir.Scheduler(jf.ir.Fusion("fusion f(x: f32[16,128]) -> (y) { y: f32[16] = reduce_sum(x) {dims=[1]} }"))
    s.parallelize("y", 1, machine.outer)
    with pytest.raises(
        Exception, match=r"y is folded along loop axis 1, which is \w+: .* takes a second kernel, .* make the "
    ):
        machine.run(s.schedule, x)


def test_inlining_by_position(machine):
    """The deeper a value is inlined, the less of it is kept until it is read again."""
    x = array(4, 6, 8)
    fusion = jf.ir.Fusion("""fusion f(x: f32[4,6,8]) -> (y) {
      t: f32[4,6,8] = exp(x)
      total: f32[4,6] = reduce_sum(t) {dims=[2]}
      wide: f32[4,6,b8] = broadcast(total) {dims=[0,1]}
      y: f32[4,6,8] = div(t, wide)
    }""")
    for position, kept in enumerate((4 * 6 * 8, 6 * 8, 8)):
        s = jf.ir.Scheduler(fusion)
        s.inline_most(["wide"])
        for value in ("t", "total"):
            s.inline_at(value, position)
            assert s.schedule.inline_position(value) == position
        assert f"array t: f32[{kept}]" in jf.ir.lower(s.schedule, machine.platform).as_text("loops")
        check(s, machine, [x], np.exp(x) / np.exp(x).sum(2, keepdims=True))


def test_inlining_stops_where_loops_differ(machine):
    x = array(4, 6)
    s = jf.ir.Scheduler(
        jf.ir.Fusion("""fusion f(x: f32[4,6]) -> (y) {
      t: f32[4,6] = exp(x)
      y: f32[4,6] = neg(t)
    }""")
    )
    s.split("y", 1, 2)
    with pytest.raises(jf.UserError, match=r"\[inline_at\] t agrees in 1 outer loop axes with its consumers"):
        s.inline_at("t", 2)
    s.inline_at("t", 2, best_effort=True)
    assert s.schedule.inline_position("t") == 1
    s.transform_like("y", ["t"])
    s.inline_most()
    assert s.schedule.inline_position("t") == 3
    check(s, machine, [x], -np.exp(x))


def test_inlining_a_fold_stops_before_what_it_folds(machine):
    x = array(4, 6)
    s = jf.ir.Scheduler(
        jf.ir.Fusion("""fusion f(x: f32[4,6]) -> (y) {
      total: f32[4] = reduce_sum(x) {dims=[1]}
      wide: f32[4,b6] = broadcast(total) {dims=[0]}
      y: f32[4,6] = mul(x, wide)
    }""")
    )
    s.inline_most()
    assert [s.schedule.inline_position(v) for v in ("total", "wide")] == [1, 2]
    check(s, machine, [x], x * x.sum(1, keepdims=True))
    with pytest.raises(jf.UserError, match=r"\[lower\] total is inlined at 2 .*axis 1, along which it is folded"):
        s.inline_at("total", 2)
        jf.ir.lower(s.schedule, machine.platform)


def test_a_transpose_read_and_written_in_lines(machine):
    """Without shared memory one side is read in strides; with it both are lines, and a pad keeps columns apart."""
    x = array(70, 45)
    fusion = jf.ir.Fusion("fusion f(x: f32[70,45]) -> (y) { y: f32[45,70] = transpose(x) {dims=[1,0]} }")
    s = jf.ir.Scheduler(fusion)
    s.split("y", 1, 32)
    s.parallelize("y", 0, machine.outer)
    s.parallelize("y", 2, machine.inner)
    check(s, machine, [x], x.T)
    if machine.platform == "cpu":
        return

    s = jf.ir.Scheduler(fusion)
    tile = s.cache_after("x")
    s.split("y", 1, 32)
    s.split("y", 0, 32)
    s.reorder("y", [0, 2, 1, 3])
    s.merge("y", 0)
    s.transform_like("y")
    s.set_memory(tile, "shared")
    s.reorder(tile, [0, 2, 1])
    s.set_allocation(tile, 1, pad=1)
    for value in (tile, "y"):
        s.parallelize(value, 0, "block")
        s.split(value, 1, 4)
        s.merge(value, 2)
        s.split(value, 2, 128)
        s.parallelize(value, 3, "thread")
    s.inline_most()
    text = jf.ir.lower(s.schedule, "cuda").as_text("loops")
    assert f"shared {tile}: f32[{32 * 33}]" in text and text.count("sync") == 1
    check(s, machine, [x], x.T)


def test_lanes(machine):
    """A vector axis is the innermost one; what it does not divide is a tail."""
    x = array(5, 30)
    fusion = jf.ir.Fusion("fusion f(x: f32[5,30]) -> (y) { t: f32[5,30] = exp(x) y: f32[5,30] = neg(t) }")
    for merged, text in ((False, "below 30"), (True, "below 150")):
        s = jf.ir.Scheduler(fusion)
        if merged:
            s.merge("y", 0)
        s.split("y", -1, 4)
        s.parallelize("y", -1, "vector")
        s.transform_like("y")
        s.parallelize_like("y")
        s.inline_most()
        loops = jf.ir.lower(s.schedule, machine.platform).as_text("loops")
        assert "width=4" in loops and text in loops and "lane * 1" in loops
        check(s, machine, [x], -np.exp(x))


def test_a_softmax_from_nothing(machine):
    """Every call of the tutorial on one fusion: a row for each block, kept in registers between three passes."""
    x = array(6, 77)
    fusion = jf.ir.trace(lambda x: softmax(x), x, name="softmax")
    s = jf.ir.Scheduler(fusion)
    [y] = fusion.outputs
    s.split(y, 1, 2)
    s.split(y, 1, 16)
    s.parallelize(y, 0, machine.outer)
    s.parallelize(y, 2, machine.inner)
    s.parallelize(y, 3, "vector")
    s.transform_like(y)
    s.parallelize_like(y)
    s.inline_most()
    text = jf.ir.lower(s.schedule, machine.platform).as_text("loops")
    assert text.count("= load x[") <= 3
    e = np.exp(np.float64(x) - x.max(1, keepdims=True))
    check(s, machine, [x], e / e.sum(1, keepdims=True))


def softmax(x):
    e = jnp.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_axes_that_share_an_index(machine):
    """The index graph answers what the schedule made of an axis."""
    s = jf.ir.Scheduler(
        jf.ir.Fusion("""fusion f(x: f32[8,6], r: f32[6]) -> (y) {
      wide: f32[b8,6] = broadcast(r) {dims=[1]}
      y: f32[8,6] = add(x, wide)
    }""")
    )
    s.split("y", 0, 4)
    s.split("y", 0, 2)
    s.transform_like("y")
    graph = jf.ir.IndexGraph(s.schedule)
    assert graph.are_mapped("exact", ("r", 0), graph.root("wide", 1))
    assert graph.are_mapped("permissive", graph.root("wide", 0), graph.root("x", 0))
    assert not graph.are_mapped("exact", graph.root("wide", 0), graph.root("x", 0))
    for position in range(4):
        assert graph.are_mapped("permissive", graph.loop("wide", position), graph.loop("y", position))
    s.inline_most()
    graph = jf.ir.IndexGraph(s.schedule)
    assert graph.are_mapped("loop", graph.loop("wide", 3), graph.loop("y", 3))
    x, r = array(8, 6), array(6)
    check(s, machine, [x, r], x + r)


def test_a_strategy_then_by_hand(machine):
    """Start from what the compiler proposes and change one thing."""
    x = array(32, 100)
    fusion = jf.ir.trace(lambda x: softmax(x), x, name="softmax")
    assert jf.ir.find_compatible_schedulers(fusion, machine.platform)[0] == "reduction"
    parameters = jf.ir.compute_heuristics(fusion, "reduction", machine.platform)
    first = jf.ir.schedule(fusion, "reduction", machine.platform, parameters)
    second = jf.ir.schedule(fusion, "reduction", machine.platform, {**parameters, "lanes": 1, "keep": "nothing"})
    assert first != second
    e = np.exp(np.float64(x) - x.max(1, keepdims=True))
    for schedule in (first, second):
        s = jf.ir.Scheduler(schedule)
        check(s, machine, [x], e / e.sum(1, keepdims=True))
