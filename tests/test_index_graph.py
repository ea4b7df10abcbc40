"""Which axes share an index: splits of splits and merges of splits map where every split divides, and only there."""

import jax
import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip

import jax_fuser as jf
from jax_fuser import _core


def chain(*shape: int) -> jf.ir.Fusion:
    """x -> t -> y, each over the same axes."""
    b = jf.ir.Builder("chain")
    b.output(b.pointwise("exp", [b.pointwise("neg", [b.input("x", "f32", shape)])]))
    return b.finish()


def graph_of(fusion: jf.ir.Fusion, **edits) -> jf.ir.IndexGraph:
    """Apply a list of (call, arguments) to each named value."""
    scheduler = jf.ir.Scheduler(fusion)
    for value, calls in edits.items():
        for call, *arguments in calls:
            getattr(scheduler, call)(value, *arguments)
    return jf.ir.IndexGraph(scheduler.schedule)


def almost_exact(graph: jf.ir.IndexGraph, a: int, b: int) -> bool:
    """Whether loop a of t1 and loop b of t2 share an index."""
    return graph.are_mapped("almost_exact", graph.loop("t1", a), graph.loop("t2", b))


def test_chain_has_the_names_that_these_tests_use():
    assert chain(8).values == ["x", "t1", "t2"]


def test_split_of_split_maps():
    # {8} -> {4, 2}, its 4 by outer 2, against {8} by outer 2.
    graph = graph_of(chain(8), t1=[("split", 0, 2), ("split", 0, 2, False)], t2=[("split", 0, 2, False)])
    assert almost_exact(graph, 0, 0)
    assert not almost_exact(graph, 1, 0) and not almost_exact(graph, 2, 0)
    assert not graph.are_mapped("exact", graph.loop("t1", 0), graph.loop("t2", 0))


def test_inner_split_of_split_maps():
    graph = graph_of(chain(8), t1=[("split", 0, 4), ("split", 1, 2)], t2=[("split", 0, 2)])
    assert almost_exact(graph, 2, 1)
    assert not almost_exact(graph, 1, 1) and not almost_exact(graph, 0, 0)


def test_split_of_split_of_other_extent_does_not_map():
    # {12} -> {6, 2}, its 6 by outer 2, against {12} by outer 3.
    graph = graph_of(chain(12), t1=[("split", 0, 2), ("split", 0, 2, False)], t2=[("split", 0, 3, False)])
    assert not any(almost_exact(graph, a, b) for a in range(3) for b in range(2))


def test_splits_with_a_remainder_never_map():
    # {6} -> {3, 2}, its 3 by inner 2 -> {2, 2}, against {6} by inner 4 -> {2, 4}: both outer axes have extent 2.
    graph = graph_of(chain(6), t1=[("split", 0, 2), ("split", 0, 2)], t2=[("split", 0, 4)])
    assert not any(almost_exact(graph, a, b) for a in range(3) for b in range(2))


def test_equal_splits_with_a_remainder_map():
    graph = graph_of(chain(6), t1=[("split", 0, 4)], t2=[("split", 0, 4)])
    assert almost_exact(graph, 0, 0) and almost_exact(graph, 1, 1) and not almost_exact(graph, 0, 1)


def test_outer_never_meets_inner():
    # Both axes have extent 4.
    graph = graph_of(chain(16), t1=[("split", 0, 4)], t2=[("split", 0, 4)])
    assert not almost_exact(graph, 0, 1) and not almost_exact(graph, 1, 0)


def test_merge_of_split_maps():
    # {4, 2} -> {8} -> {4, 2}: the parts are the merged axes again.
    graph = graph_of(chain(4, 2), t1=[("merge", 0), ("split", 0, 2)])
    assert almost_exact(graph, 0, 0) and almost_exact(graph, 1, 1)
    assert not almost_exact(graph, 0, 1) and not almost_exact(graph, 1, 0)


def test_split_then_merge_is_the_axis_again():
    graph = graph_of(chain(8), t1=[("split", 0, 2), ("merge", 0)])
    assert almost_exact(graph, 0, 0)


def test_split_with_a_remainder_then_merge_is_another_axis():
    graph = graph_of(chain(6), t1=[("split", 0, 4), ("merge", 0)])
    assert not almost_exact(graph, 0, 0)


def test_merge_of_swapped_axes_does_not_map():
    graph = graph_of(chain(4, 4), t1=[("reorder", [1, 0]), ("merge", 0)], t2=[("merge", 0)])
    assert not almost_exact(graph, 0, 0)


def test_swizzle_maps_only_with_its_equal():
    swizzled = [("swizzle", 0, 1)]
    graph = graph_of(chain(4, 4), t1=swizzled, t2=swizzled)
    assert almost_exact(graph, 0, 0) and almost_exact(graph, 1, 1)
    assert graph.are_mapped("exact", graph.loop("t1", 1), graph.loop("t2", 1))
    graph = graph_of(chain(4, 4), t1=swizzled, t2=[("swizzle", 1, 0)])
    assert not any(almost_exact(graph, a, b) for a in range(2) for b in range(2))
    graph = graph_of(chain(4, 4), t1=swizzled)
    assert almost_exact(graph, 0, 0) and not almost_exact(graph, 1, 1)


def test_broadcast_maps_permissively():
    b = jf.ir.Builder("stretch")
    row = b.broadcast(b.input("r", "f32", [8]), [4, 8], [1])
    b.output(b.pointwise("add", [b.input("x", "f32", [4, 8]), row]))
    graph = jf.ir.IndexGraph(jf.ir.Schedule(b.finish()))
    assert graph.are_mapped("almost_exact", ("r", 0), ("t3", 1))
    assert graph.are_mapped("permissive", ("t2", 0), ("t3", 0))
    assert not graph.are_mapped("almost_exact", ("t2", 0), ("t3", 0))


def test_a_fold_keeps_the_axes_that_it_folds():
    b = jf.ir.Builder("fold")
    b.output(b.reduce("reduce_sum", b.input("x", "f32", [4, 8]), [1]))
    fusion = b.finish()
    graph = jf.ir.IndexGraph(jf.ir.Schedule(fusion))
    assert graph.axes(fusion.outputs[0]) == [4, 8]
    assert graph.are_mapped("exact", ("x", 1), graph.root(fusion.outputs[0], 1))


def test_loops_that_are_shared_are_one():
    fusion = chain(8)
    scheduler = jf.ir.Scheduler(fusion)
    scheduler.split("t2", 0, 4)
    scheduler.transform_like("t2")
    scheduler.inline_at("t1", 1)
    graph = jf.ir.IndexGraph(scheduler.schedule)
    assert graph.are_mapped("loop", graph.loop("t1", 0), graph.loop("t2", 0))
    assert not graph.are_mapped("loop", graph.loop("t1", 1), graph.loop("t2", 1))
    assert [("t1", 1), ("t2", 1)] in graph.groups("almost_exact")


# 64 elements on 512 threads: splits by 64, 64, 8, 8 and 1, a swizzle, and merges. The split of an axis of extent 1 by 8
# has a remainder, so that only threads below 64 have an element. A graph that says the parts of that split are the axis
# again would lose the predicate.


def counterexample(fusion: jf.ir.Fusion) -> jf.ir.Scheduler:
    scheduler = jf.ir.Scheduler(fusion)
    [y] = fusion.outputs
    scheduler.split(y, 0, 64)  # N -> blocks, 64
    scheduler.split(y, 1, 64)  # 64 -> 1, 64
    scheduler.split(y, 2, 8)  # 64 -> 8, 8
    scheduler.split(y, 1, 8)  # 1 -> 1, 8
    scheduler.split(y, 2, 1)  # 8 -> 8, 1
    assert [extent for extent, _ in scheduler.loops(y)][1:] == [1, 8, 1, 8, 8]
    scheduler.swizzle(y, 2, 4)
    for _ in range(4):
        scheduler.merge(y, 1)
    assert scheduler.loops(y)[1] == (512, "serial")
    return scheduler


@pytest.mark.parametrize("elements", [64, 192, 100])
def test_counterexample_computes_every_element_once(elements):
    fusion = one_op(elements)
    schedule = counterexample(fusion).schedule
    positions = [p for p in schedule.positions(fusion.outputs[0]) if p is not None]
    assert sorted(positions) == list(range(elements))


@pytest.mark.parametrize("elements", [64, 192, 100])
def test_counterexample_runs_on_cpu(elements):
    fusion = one_op(elements)
    x = np.arange(elements, dtype=np.float32)
    [got] = jf.ir.run(counterexample(fusion).schedule, x)
    np.testing.assert_array_equal(got, -x)


def on_threads(fusion: jf.ir.Fusion) -> jf.ir.Schedule:
    scheduler = counterexample(fusion)
    [y] = fusion.outputs
    scheduler.parallelize(y, 0, "block")
    scheduler.parallelize(y, 1, "thread")
    return scheduler.schedule


def test_counterexample_keeps_its_guard_on_cuda():
    schedule = on_threads(one_op(64))
    source = jf.ir.lower(schedule, "cuda").as_text("source")
    assert "int(threadIdx.x)" in source and "< 64)" in source
    nvrtc_or_skip()
    assert _core.compile_cuda(f"{schedule.fusion}{schedule}", _core.cuda_target_for(90))


@pytest.mark.gpu
def test_counterexample_runs_on_cuda():
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("no cuda device on this machine")
    for elements in (64, 192, 100):
        x = jax.device_put(np.arange(elements, dtype=np.float32), device)
        [got] = jf.ir.run(on_threads(one_op(elements)), x)
        np.testing.assert_array_equal(got, -np.arange(elements, dtype=np.float32))


def one_op(elements: int) -> jf.ir.Fusion:
    b = jf.ir.Builder("negate")
    b.output(b.pointwise("neg", [b.input("x", "f32", [elements])]))
    return b.finish()
