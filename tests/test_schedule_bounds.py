"""Values that loops share are there wherever they are read: bounds of axes that differ, arrays beside guards, lanes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fuser as jf


def each(call, *arguments):
    """The same call for every computed value, then all inlined."""

    def schedule(s):
        for value in s.fusion.values:
            if value not in s.fusion.inputs:
                getattr(s, call)(value, *arguments)
        s.inline_most()

    return schedule


@pytest.mark.parametrize("call", ["split", "pad"])
def test_an_axis_of_one_element_is_not_computed_beyond_it(device, call):
    x, z = jnp.arange(1.0, 4).reshape(3, 1), jnp.ones((3, 4))
    with pytest.raises(jf.UserError, match=r"loop axis 1 of \w+ runs over other elements than that of its consumer"):
        jf.fuse(lambda x, z: jnp.abs(x) + z, schedule=each(call, 1, 4))(x, z)


def test_arrays_are_set_beside_guards_of_others(device):
    def f(x):
        column = jax.lax.iota(jnp.float32, 4)
        return -x * (column * column + 7)[None, :]

    def schedule(s):
        (out,) = s.fusion.outputs
        s.split(out, 0, 4)
        s.transform_like(out)
        for value in s.fusion.values:
            if value not in (*s.fusion.inputs, out):
                s.inline_at(value, 1, best_effort=True)

    x = jnp.ones((2, 4))
    np.testing.assert_array_equal(jf.fuse(f, schedule=schedule)(x), f(x))


def test_an_axis_that_is_not_there_is_swizzled(device):
    def schedule(s):
        (out,) = s.fusion.outputs
        s.split(out, 1, 2)
        s.split(out, 1, 2)
        s.swizzle(out, 3, 2)
        s.reorder(out, [1, 2, 0, 3])
        s.transform_like(out)
        s.inline_most()

    x, w = jnp.ones((5, 6)), jnp.arange(5.0) + 10
    f = lambda x, w: x * w[:, None]  # noqa: E731
    np.testing.assert_array_equal(jf.fuse(f, schedule=schedule)(x, w), f(x, w))


def nested(rows, groups, tail=()):
    """Return a builder with rows, starts and sizes of groups, and the rows as groups."""
    b = jf.ir.Builder("p")
    inputs = [b.input("x", "f32", [rows, *tail]), b.input("starts", "s32", [groups]), b.input("sizes", "s32", [groups])]
    return b, inputs, b.partition(*inputs, 0, rows)


def check(schedule, **arrays):
    """Compare with the plan that the compiler makes by itself."""
    given = [np.asarray(arrays[name], np.float32 if name in "xw" else np.int32) for name in schedule.fusion.inputs]
    got, want = (jf.ir.run(program, *given)[0] for program in (schedule, schedule.fusion))
    np.testing.assert_array_equal(got, want)


def test_arrays_are_set_beside_guards_of_groups():
    b, (_, starts, _), groups = nested(3, 2, (3,))
    w = b.input("w", "f32", [2, 3])
    b.output(b.combine(b.pointwise("sub", [groups, b.broadcast_like(w, groups, [0, 2])]), starts, 3))
    f = b.finish()
    s = jf.ir.Scheduler(f)
    s.transform_like(f.outputs[0])
    s.inline_most(f.values[6:])  # not the groups, nor what w is for each row
    check(s.schedule, x=np.arange(9).reshape(3, 3), w=np.full((2, 3), 100), starts=[0, 1], sizes=[1, 1])


def test_what_follows_the_fold_of_an_empty_group_is_set():
    b, _, groups = nested(1, 1, (8,))
    fold = b.reduce("reduce_max", groups, [1])
    b.output(b.pointwise("max", [fold, b.broadcast(b.constant("f32", -9.0), [1, 8], [])]))
    f = b.finish()
    s = jf.ir.Scheduler(f)
    s.transform_like(f.outputs[0])
    s.inline_most()
    s.cache_after(next(v for v in f.values if f.is_reduction(v)))
    check(s.schedule, x=np.ones((1, 8)), starts=[0], sizes=[0])


@pytest.mark.parametrize("rows", [1, 4, 5, 7, 9])
@pytest.mark.parametrize("merges", [False, True])
def test_lanes_along_groups(rows, merges):
    b, (_, starts, _), groups = nested(rows, 2)
    b.output(b.combine(b.pointwise("neg", [groups]), starts, rows))
    f = b.finish()
    s, out = jf.ir.Scheduler(f), f.outputs[0]
    s.split(out, -1, 4)
    s.parallelize(out, -1, "vector")
    if merges:
        s.merge(out, 0)
    s.transform_like(out)
    s.parallelize_like(out)
    s.inline_most()
    check(s.schedule, x=np.arange(rows) + 1, starts=[0, rows // 3], sizes=[rows // 3, rows - rows // 3])


def test_what_is_read_anywhere_must_be_in_memory():
    b, (_, starts, _), groups = nested(1, 2)
    b.output(b.combine(b.pointwise("neg", [groups]), starts, 1))
    partitioned = jf.ir.Scheduler(b.finish())
    taken = jf.ir.Scheduler(jf.ir.trace(lambda table, i: table[i] * 2, jnp.ones((1, 4)), jnp.zeros(3, jnp.int32)))
    for s, kind in ((partitioned, "partition"), (taken, "take")):
        s.cache_after(s.fusion.inputs[0])
        s.transform_like(s.fusion.outputs[0])
        s.inline_most()
        for platform in ("cpu", "cuda"):
            with pytest.raises(jf.UserError, match=rf", a {kind}, reads \w+_cache, which must come from memory"):
                jf.ir.lower(s.schedule, platform)
