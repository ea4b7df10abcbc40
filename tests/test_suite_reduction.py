"""Folds of every size, axis and dtype: compared with float64, by bits where order does not matter."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from arrays import numbers as array
from tolerances import assert_close

import jax_fuser as jf

SIZES = [1, 2, 3, 31, 32, 33, 127, 1000, 4097]


def sums(axis):
    def f(x):
        return (x * x).sum(axis), jnp.abs(x).max(axis)

    return f


def check(f, x, axis):
    exact = np.float64(x)
    total, most = jf.fuse(f)(x)
    # Sums round to their dtype once; a maximum does not round.
    assert_close(total, np.square(exact).sum(axis), total.dtype, scale=4)
    np.testing.assert_array_equal(np.float64(most), abs(exact).max(axis))


@pytest.mark.parametrize("folded", SIZES)
@pytest.mark.parametrize("kept", [1, 7, 64])
def test_inner(device, kept, folded):
    check(sums(1), array(kept, folded), 1)


@pytest.mark.parametrize("folded", SIZES)
@pytest.mark.parametrize("kept", [1, 7, 64])
def test_outer(device, kept, folded):
    check(sums(0), array(folded, kept), 0)


@pytest.mark.parametrize("shape", [(3, 5, 7), (16, 1, 33), (2, 64, 3), (1, 1, 1), (40, 3, 8)])
def test_every_set_of_axes(device, shape):
    x = array(*shape)
    f = jf.fuse(lambda x: [x.sum(axes) for axes in AXES])
    for got, axes in zip(f(x), AXES):
        assert_close(got, x.sum(axes, dtype=np.float64), scale=4)


AXES = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]


@pytest.mark.parametrize("size", [1, 100, 10_007, 300_000])
def test_everything_to_a_scalar(device, size):
    check(sums(None), array(size), None)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
@pytest.mark.parametrize("shape", [(5, 3000), (3000, 5)])
def test_low_precision_is_summed_in_float32(device, shape, dtype):
    axis = int(np.argmax(shape))
    x = array(*shape).astype(dtype)
    check(sums(axis), x, axis)
    # A sum of ones, longer than the dtype counts.
    ones = np.ones(shape, dtype)
    np.testing.assert_array_equal(np.float64(jf.fuse(lambda x: (x + 0).sum(axis))(ones)), np.float64(dtype(3000)))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint32])
@pytest.mark.parametrize("axis", [0, 1])
def test_integers_wrap_as_in_xla(device, axis, dtype):
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, (300, 40), dtype, endpoint=True)

    def f(x):
        return jnp.sum(x + x, axis, dtype=dtype), (x * x).max(axis), x.min(axis)

    for got, want in zip(jf.fuse(f)(x), f(jnp.asarray(x))):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(300, 40), (33, 1)])
def test_flags(device, axis, shape):
    x = array(*shape)

    def f(x):
        return (x > 1).any(axis), (x > -3).all(axis), ((x > 0) & (x < 1)).sum(axis)

    for got, want in zip(jf.fuse(f)(x), f(x)):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axis", [0, 1])
def test_nan_and_infinity_are_not_lost(device, axis):
    x = array(70, 33)
    x[3, 4], x[50, 7], x[9, 9] = np.nan, np.inf, -np.inf
    got = jf.fuse(lambda x: ((x + 0).max(axis), (x + 0).min(axis), (x + 0).sum(axis)))(x)
    with np.errstate(invalid="ignore"):
        wants = x.max(axis), x.min(axis), x.sum(axis)
    for one, want in zip(got, wants):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(one), np.isinf(want))
    np.testing.assert_array_equal(got[0], wants[0])
    np.testing.assert_array_equal(got[1], wants[1])


def test_equal_inputs_give_equal_bits(device):
    x = array(257, 1001)
    f = jf.fuse(lambda x: ((x * x).sum(0), (x * x).sum(1), (x * x).sum()))
    first = f(x)
    for _ in range(3):
        for a, b in zip(f(x), first):
            np.testing.assert_array_equal(a, b)


# By hand: each way of sharing a fold out.


def lanes(s, machine):
    s.split("y", -1, 8)
    s.parallelize("y", -1, "vector")


def outer_lanes(s, machine):
    s.split("y", -1, 8, inner=False)
    s.reorder("y", [0, 2, 1])
    s.parallelize("y", -1, "vector")


def threads(s, machine):
    s.split("y", -1, 32)
    s.parallelize("y", 0, machine.outer)
    s.parallelize("y", -1, machine.inner)


def two_rows_of_threads(s, machine):
    s.split("y", -1, 16)
    s.split("y", 1, 4, inner=False)
    s.parallelize("y", 0, machine.outer)
    s.parallelize("y", -1, machine.inner)
    s.parallelize("y", 1, "unroll" if machine.platform == "cpu" else "thread_y")


def threads_and_lanes(s, machine):
    s.split("y", -1, 2)
    s.split("y", -2, 16)
    s.parallelize("y", -2, machine.inner)
    s.parallelize("y", -1, "vector")


def unrolled(s, machine):
    s.split("y", -1, 4)
    s.parallelize("y", -1, "unroll")


def swizzled(s, machine):
    s.split("y", -1, 8)
    s.split("y", -2, 8)
    s.swizzle("y", 2, 3)


@pytest.mark.parametrize(
    "edit", [lanes, outer_lanes, threads, two_rows_of_threads, threads_and_lanes, unrolled, swizzled]
)
@pytest.mark.parametrize("columns", [128, 77])
def test_by_hand(edit, columns, machine):
    fusion = jf.ir.Fusion(f"""fusion f(x: f32[6,{columns}]) -> (y) {{
      t: f32[6,{columns}] = mul(x, x)
      y: f32[6] = reduce_sum(t) {{dims=[1]}}
    }}""")
    s = jf.ir.Scheduler(fusion)
    edit(s, machine)
    s.transform_like("y")
    s.parallelize_like("y")
    s.inline_most()
    x = array(6, columns)
    assert_close(machine.run(s.schedule, x)[0], np.square(np.float64(x)).sum(1))


@pytest.mark.parametrize("parts", [1, 4, 7, 32])
@pytest.mark.parametrize("axis", [0, 1])
def test_in_parts_by_hand(axis, parts, machine):
    shape = (50, 6) if axis == 0 else (6, 50)
    kept = shape[1 - axis]
    fusion = jf.ir.Fusion(f"""fusion f(x: f32[{shape[0]},{shape[1]}]) -> (y) {{
      y: f32[{kept}] = reduce_max(x) {{dims=[{axis}]}}
    }}""")
    s = jf.ir.Scheduler(fusion)
    s.split("y", axis, parts, inner=False)
    made = s.rfactor("y", [axis + 1])
    assert s.fusion.shape(made)[axis] == parts
    if axis == 0:  # its kept axes stand where those of y do
        s.reorder(made, [0, 2, 1])
    x = array(*shape)
    np.testing.assert_array_equal(machine.run(s.schedule, x)[0], x.max(axis))
