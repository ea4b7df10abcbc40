"""Arrays whose order in memory is not the order of their axes: read, written and kept so, without copies."""

from __future__ import annotations

import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from arrays import numbers as array
from tolerances import assert_close

import jax_fuser as jf

# For each rank the order in which the axes of an array of logical shape (n, c, h, w) lie in memory.
ROW_MAJOR = {1: (0,), 2: (0, 1), 3: (0, 1, 2), 4: (0, 1, 2, 3)}
CHANNELS_LAST = {1: (0,), 2: (1, 0), 3: (0, 2, 1), 4: (0, 2, 3, 1)}
ORDERS = {"row major": ROW_MAJOR, "channels last": CHANNELS_LAST}
SHAPES = {1: (37,), 2: (19, 34), 3: (3, 7, 20), 4: (2, 5, 6, 7)}


def to_logical(order):
    return tuple(int(i) for i in np.argsort(order))


def launches(f, *arrays, platform):
    return jf.fuse(f).lower(*arrays).as_text("host", platform=platform).count("launch ")


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("read", ORDERS)
@pytest.mark.parametrize("written", ORDERS)
def test_pointwise_between_orders(device, read, written, rank):
    """Read in one order, add a bias per channel, write in another: one kernel, for any pair of orders."""
    shape = SHAPES[rank]
    stored_order, out_order = ORDERS[read][rank], ORDERS[written][rank]
    x = array(*shape)
    bias = array(shape[min(1, rank - 1)])
    spread = bias.reshape([-1] + [1] * (rank - 2)) if rank > 1 else bias

    def f(stored, bias):
        logical = jnp.transpose(stored, to_logical(stored_order))
        other = bias.reshape(spread.shape)
        return jnp.transpose(jnp.tanh(logical + other), out_order)

    stored = np.ascontiguousarray(x.transpose(stored_order))
    assert_close(jf.fuse(f)(stored, bias), np.tanh(x + spread).transpose(out_order))
    for platform in ("cpu", "cuda"):
        assert launches(f, stored, bias, platform=platform) == 1


@pytest.mark.parametrize("written", ["row major", "channels last", "both"])
def test_two_inputs_of_other_orders_meet(device, written):
    x, z = array(*SHAPES[4]), array(*SHAPES[4])
    order = CHANNELS_LAST[4]

    def f(x, stored):
        y = x * jnp.transpose(stored, to_logical(order))
        last = jnp.transpose(y, order)
        return {"row major": y, "channels last": last, "both": (y, last)}[written]

    got = jf.fuse(f)(x, np.ascontiguousarray(z.transpose(order)))
    want = x * z
    for one in got if written == "both" else [got]:
        assert_close(one, want if one.shape == want.shape else want.transpose(order))


@pytest.mark.parametrize("read", ORDERS)
@pytest.mark.parametrize("folded", [(1,), (2, 3), (0, 2, 3), (3,), (0,), (0, 1, 2, 3)])
def test_folds_of_channels_last(device, read, folded):
    """Sums over axes that lie apart in memory, and what reads them, as in a norm over channels."""
    order = ORDERS[read][4]
    x = array(2, 8, 5, 6)

    def f(stored):
        x = jnp.transpose(stored, to_logical(order))
        total = (x * x).sum(folded, keepdims=True)
        return total, jnp.transpose(x / total, order)

    got = jf.fuse(f)(np.ascontiguousarray(x.transpose(order)))
    total = np.square(np.float64(x)).sum(folded, keepdims=True)
    assert_close(got[0], total)
    assert_close(got[1], (x / total).transpose(order))


def test_a_transposed_intermediate(device):
    """Computed in one order, read in another, by a fold too."""
    x, r = array(20, 33), array(20)

    def f(x, r):
        t = jnp.exp(x).T
        return t * r, (t * 2).sum(1), jnp.exp(x).sum(1)

    e = np.exp(np.float64(x))
    for got, want in zip(jf.fuse(f)(x, r), (e.T * r, 2 * e.sum(0), e.sum(1))):
        assert_close(got, want)


def test_a_matrix_is_transposed_in_tiles(device):
    x = array(130, 70)
    assert_close(jf.fuse(lambda x: x.T * 2)(x), 2 * x.T)
    source = jf.fuse(lambda x: x.T * 2).lower(array(512, 512)).as_text("source", platform="cuda")
    assert "__shared__" in source


@pytest.mark.parametrize("shape", [(1, 8, 5), (8, 1, 5), (8, 5, 1), (1, 1, 7)])
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (0, 2, 1), (2, 1, 0)])
def test_axes_of_extent_one_have_no_order(device, shape, order):
    stored = array(*shape)
    r = array(shape[order[-1]])
    assert_close(jf.fuse(lambda x, r: jnp.transpose(x, order) * r)(stored, r), stored.transpose(order) * r)


# The same by hand: copies before, after and beside what is read and written in another order.


def permuted(order: tuple[int, ...]) -> jf.ir.Fusion:
    """y = |x| in logical order, of an x that is stored in another one."""
    shape = [SHAPES[4][i] for i in order]
    stored = ",".join(map(str, shape))
    logical = ",".join(map(str, SHAPES[4]))
    back = ",".join(map(str, to_logical(order)))
    return jf.ir.Fusion(f"""fusion permuted(x: f32[{stored}]) -> (y, z) {{
      t: f32[{logical}] = transpose(x) {{dims=[{back}]}}
      y: f32[{logical}] = abs(t)
      z: f32[{logical}] = neg(y)
    }}""")


CACHES = {
    "after an input": [("cache_after", "x")],
    "after the transpose": [("cache_after", "t")],
    "before an output": [("cache_before", "z")],
    "before and after": [("cache_before", "z"), ("cache_after", "x")],
    "fork": [("cache_fork", "y")],
}


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3)])
@pytest.mark.parametrize("case", CACHES)
def test_a_cache_keeps_the_loops_of_its_value_not_its_order(case, order, machine):
    s = jf.ir.Scheduler(permuted(order))
    made = [getattr(s, call)(value) for call, value in CACHES[case]]
    s.merge("z", 2)
    s.split("z", 2, 8)
    s.parallelize("z", -1, machine.inner)
    s.transform_like("z")
    s.parallelize_like("z")
    s.inline_most()
    for value in made:
        assert s.loops(value) == s.loops("z")
    x = array(*SHAPES[4])
    y, z = machine.run(s.schedule, np.ascontiguousarray(x.transpose(order)))
    assert_close(y, abs(x))
    assert_close(z, -abs(x))


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 2, 1, 0)])
@pytest.mark.parametrize("loops", ["stored", "logical", "merged", "split"])
def test_a_shared_copy_is_allocated_over_its_own_loops(order, loops):
    """Whatever order the input has, the copy's allocation follows from its loops, inside of those that are shared."""
    s = jf.ir.Scheduler(permuted(order))
    kept = s.cache_after("x")
    s.transform_like("z")
    s.set_memory(kept, "shared")
    s.reorder(kept, [0, 1, 2, 3] if loops != "stored" else [0, 3, 1, 2])
    if loops == "merged":
        s.merge(kept, 2)
    if loops == "split":
        s.split(kept, 3, 4)
    s.parallelize("z", 0, "block")
    s.parallelize_like("z", [v for v in s.fusion.values if v != kept])
    s.parallelize(kept, 0, "block")
    s.inline_most([v for v in s.fusion.values if v not in ("x", kept)])
    s.inline_at(kept, 1)
    text = jf.ir.lower(s.schedule, "cuda").as_text("loops")
    _, c, h, w = SHAPES[4]
    assert f"shared {kept}: f32[{c * h * (w if loops != 'split' else 8)}]" in text
    x = array(*SHAPES[4])
    y, z = loop_interpreter.run(s.schedule, np.ascontiguousarray(x.transpose(order)))
    assert_close(y, abs(x))
    assert_close(z, -abs(x))


def test_an_allocation_stays_when_the_loops_change(machine):
    """Set over [tile, row, column], it is the same allocation after the loops are merged, split and reordered."""
    if machine.platform == "cpu":
        pytest.skip("shared memory is CUDA's")
    x = array(12, 10)
    fusion = jf.ir.Fusion("fusion f(x: f32[12,10]) -> (y) { t: f32[12,10] = neg(x) y: f32[12,10] = exp(t) }")
    for edit in (
        [],
        [("merge", 1)],
        [("merge", 1), ("split", 1, 8)],
        [("reorder", [0, 2, 1])],
        [("split", 2, 5), ("reorder", [0, 2, 1, 3])],
        [("split", 1, 3), ("split", 3, 4), ("merge", 2)],
    ):
        s = jf.ir.Scheduler(fusion)
        s.split("y", 0, 4)
        s.transform_like("y")
        s.set_memory("t", "shared")
        s.set_allocation("t", 1, 1)
        for call, *arguments in edit:
            getattr(s, call)("t", *arguments)
        for value in ("t", "y"):
            s.parallelize(value, 0, "block")
            s.parallelize(value, 1, "thread")
        s.inline_at("t", 1)
        loops = jf.ir.lower(s.schedule, "cuda").as_text("loops")
        assert "shared t: f32[44]" in loops, edit  # 4 rows of 10 + 1
        assert_close(machine.run(s.schedule, x)[0], np.exp(-x))
