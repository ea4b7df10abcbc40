"""The op `search`: how many elements of a sorted table come before each number, as `numpy.searchsorted` says."""

import itertools
import re

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from test_cuda_sources import INTEGERS, nvrtc_or_skip

import jax_fuser as jf
from jax_fuser import _core

RNG = np.random.default_rng(0)
# Lengths around the halves that the search takes; equal elements, all equal, far apart.
LENGTHS = [1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 1000]


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def numpy_dtype(dtype):
    return np.dtype(("int" if dtype[0] == "s" else "uint") + dtype[1:])


def searched(table, numbers, side, dims):
    """Search row by row in numpy."""
    result = np.zeros(numbers.shape, np.int32)
    for at in itertools.product(*(range(numbers.shape[d]) for d in dims)):
        where = [slice(None)] * numbers.ndim
        for d, i in zip(dims, at):
            where[d] = i
        result[tuple(where)] = np.searchsorted(table[at], numbers[tuple(where)], side)
    return result


def fusion(dtype, table, numbers, side="right", dims=()):
    b = jf.ir.Builder("find")
    t, x = b.input("table", dtype, list(table)), b.input("numbers", dtype, list(numbers))
    b.output(b.search(t, x, side, list(dims)))
    return b.finish()


def check(f, *arrays, side, dims=()):
    want = searched(*(np.asarray(a) for a in arrays), side, dims)
    [got] = jf.ir.run(f, *arrays)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(jf.ir.evaluate(f, *arrays)[0], want)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(device, length, side):
    table = np.sort(RNG.integers(-50, 50, length)).astype(np.int32)
    numbers = RNG.integers(-60, 60, (5, 37)).astype(np.int32)
    f = fusion("s32", table.shape, numbers.shape, side)
    check(f, table, numbers, side=side)
    check(f, table, np.sort(numbers, axis=None).reshape(numbers.shape), side=side)
    for same in (np.full_like(table, 7), np.full_like(table, -(2**31)), np.full_like(table, 2**31 - 1)):
        check(f, same, numbers, side=side)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_dtypes(x64, device, dtype, side):
    kind = np.iinfo(numpy_dtype(dtype))
    table = np.sort(RNG.integers(kind.min, kind.max, 40, kind.dtype, endpoint=True))
    table[:2], table[-2:] = kind.min, kind.max
    numbers = np.concatenate([table, RNG.integers(kind.min, kind.max, 90, kind.dtype, endpoint=True)])
    check(fusion(dtype, table.shape, numbers.shape, side), table, numbers, side=side)


# Shapes of the table and of the numbers, and where the table's outer axes go.
BATCHES = [
    ((3, 9), (3, 50), [0]),
    ((50, 9), (3, 50), [1]),  # a table for each lane
    ((4, 5), (6, 4, 33), [1]),
    ((6, 33, 5), (6, 4, 33), [0, 2]),
    ((6, 4, 33, 3), (6, 4, 33), [0, 1, 2]),
    ((1, 9), (1, 50), [0]),
    ((3, 1), (3, 50), [0]),
]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("table, numbers, dims", BATCHES)
def test_batches(device, table, numbers, dims, side):
    f = fusion("s32", table, numbers, side, dims)
    table = np.sort(RNG.integers(-5, 50, table)).astype(np.int32)
    check(f, table, RNG.integers(-9, 55, numbers).astype(np.int32), side=side, dims=dims)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("table, numbers, dims", [((9,), (5, 64), []), ((9,), (301,), []), *BATCHES[:4]])
def test_loops(table, numbers, dims, platform):
    f = fusion("s32", table, numbers, "right", dims)
    arrays = [np.sort(RNG.integers(-5, 50, table)).astype(np.int32), RNG.integers(-9, 55, numbers).astype(np.int32)]
    [schedule] = jf.ir.propose(f, platform)
    [got] = loop_interpreter.run(schedule, *arrays, platform=platform)
    np.testing.assert_array_equal(got, searched(*arrays, "right", dims))


def test_a_table_that_is_not_sorted_stays_in_bounds(device):
    f = fusion("s32", [13], [400])
    [got] = jf.ir.run(f, jnp.asarray(RNG.integers(-50, 50, 13), jnp.int32), jnp.arange(400, dtype=jnp.int32) - 200)
    assert (got >= 0).all() and (got <= 13).all()


def rows(f_of_id, rows, columns, groups=7):
    """A fusion over [rows, columns] that uses the group of each row, found by search."""
    b = jf.ir.Builder("rows")
    ends, x = b.input("ends", "s32", [groups]), b.input("x", "f32", [rows, columns])
    ids = b.search(ends, b.iota("s32", [rows], 0))
    b.output(f_of_id(b, x, b.broadcast(ids, [rows, columns], [0])))
    return b.finish()


@pytest.mark.parametrize("shape", [(50, 64), (33, 7), (1, 130), (200, 1)])
def test_the_group_of_each_row(device, shape):
    groups = 7
    f = rows(lambda b, x, ids: b.pointwise("mul", [x, b.convert(ids, "f32")]), *shape)
    ends = jnp.asarray(np.sort(RNG.integers(0, shape[0] + 1, groups)), jnp.int32)
    x = jnp.asarray(RNG.standard_normal(shape), jnp.float32)
    ids = np.searchsorted(ends, np.arange(shape[0]), "right")
    np.testing.assert_array_equal(jf.ir.run(f, ends, x)[0], x * ids[:, None].astype(np.float32))
    assert len(jf.ir.propose(f, device.platform.replace("gpu", "cuda"))) == 1


def test_cpu_rows_are_searched_once():
    f = rows(lambda b, x, ids: b.pointwise("add", [x, b.convert(ids, "f32")]), 300, 640)
    [schedule] = jf.ir.propose(f, "cpu")
    text = jf.ir.lower(schedule, "cpu").as_text("loops")
    search, vector = (re.search(rf"( +).*{word}", text)[1] for word in ("search ", "vector i"))
    assert len(search) < len(vector) and "of each lane" not in text


@pytest.mark.parametrize("groups, columns, kernels", [(64, 4096, 1), (5000, 32, 1), (5000, 4096, 2)])
def test_a_long_table_is_searched_before_wide_rows(groups, columns, kernels):
    f = rows(lambda b, x, ids: b.pointwise("add", [x, b.convert(ids, "f32")]), 300, columns, groups)
    schedules = jf.ir.propose(f, "cuda")
    assert len(schedules) == kernels
    segments = jf.ir.lower(f, "cuda").as_text("segments") if kernels == 2 else ""
    assert ("a long table is searched once" in segments) == (kernels == 2)


@pytest.mark.parametrize("sm", [80, 90])
def test_cuda_sources(sm):
    nvrtc_or_skip()
    programs = [str(fusion("s32", *case)) for case in (((9,), (5, 64)), ((1000,), (301,)))]
    programs += [str(fusion("s64", t, n, "left", d)) for t, n, d in BATCHES]
    for program in programs:
        assert _core.compile_cuda(program, _core.cuda_target_for(sm))


def test_text():
    f = fusion("s32", (3, 9), (3, 50), "left", [0])
    assert "search(table, numbers) {side=left, dims=[0]}" in str(f)
    assert str(jf.ir.Fusion(str(f))) == str(f)
    assert "search(table, numbers) {side=right}" in str(fusion("s32", (9,), (50,)))


def test_an_empty_table_comes_before_nothing():
    assert "search" not in str(fusion("s32", (0,), (50,)))


def test_slices_and_pads_search_only_what_is_used():
    b = jf.ir.Builder("part")
    ends = b.input("ends", "s32", [5])
    ids = b.search(ends, b.input("x", "s32", [40]))
    b.output(b.slice(ids, [3], [2], [10]))
    b.output(b.pad(ids, [2], [0], b.constant("s32", -1)))
    f = b.finish()
    assert "s32[10] = search" in str(f) and "s32[42] = search" in str(f)
    ends, x = np.array([2, 3, 3, 9, 11], np.int32), RNG.integers(0, 13, 40).astype(np.int32)
    got = jf.ir.run(f, ends, x)
    want = np.searchsorted(ends, x, "right")
    np.testing.assert_array_equal(got[0], want[3:23:2])
    np.testing.assert_array_equal(got[1], np.pad(want, (2, 0), constant_values=-1))


def test_a_table_that_is_computed_is_stored_first(device):
    b = jf.ir.Builder("computed")
    extents = b.input("extents", "s32", [6])
    ends = b.scan("scan_sum", extents, 0)
    b.output(b.search(ends, b.iota("s32", [90], 0)))
    f = b.finish()
    extents = jnp.asarray([4, 0, 50, 1, 0, 20], jnp.int32)
    np.testing.assert_array_equal(jf.ir.run(f, extents)[0], np.searchsorted(np.cumsum(extents), np.arange(90), "right"))
    assert len(jf.ir.propose(f, "cpu")) == 2


@pytest.mark.parametrize(
    "build, message",
    [
        (
            lambda b: b.search(b.input("t", "s32", [4]), b.input("x", "s64", [4])),
            r"\[search\].*one dtype, got s32\[4\]",
        ),
        (
            lambda b: b.search(b.input("t", "f32", [4]), b.input("x", "f32", [4])),
            r"\[search\] operand 0 has unsupported",
        ),
        (lambda b: b.search(b.input("t", "s32", [2, 4]), b.input("x", "s32", [4])), r"each axis of s32\[2,4\]"),
        (lambda b: b.search(b.input("t", "s32", []), b.input("x", "s32", [4])), r"each axis of s32\[\]"),
        (
            lambda b: b.search(b.input("t", "s32", [2, 4]), b.input("x", "s32", [3, 4]), dims=[0]),
            r"must have the extent of axis 0 of s32\[3,4\]",
        ),
        (
            lambda b: b.search(b.input("t", "s32", [2, 4]), b.input("x", "s32", [3]), dims=[1]),
            r"dims must increase and stay below the rank",
        ),
        (lambda b: b.search(b.input("t", "s32", [4]), b.input("x", "s32", [4]), "middle"), "expected left or right"),
    ],
)
def test_errors(build, message):
    with pytest.raises(jf.UserError, match=message):
        build(jf.ir.Builder("bad"))


def among_others(kind):
    """Searches whose numbers are computed, and whose results are reshaped, folded, scanned, transposed or taken."""
    b = jf.ir.Builder("among")
    table, x = b.input("table", "s32", [6, 5]), b.input("x", "s32", [6, 40])
    found = b.search(table, x, "left", [0])
    if kind == "reshape":
        found = b.pointwise("add", [b.reshape(found, [2, 3, 4, 10]), b.reshape(x, [2, 3, 4, 10])])
    elif kind == "fold":
        found = b.reduce("reduce_sum", b.pointwise("mul", [found, x]), [1])
    elif kind == "of a fold":
        found = b.search(table, b.reduce("reduce_max", x, [1]), "right", [0])
    elif kind == "scan":
        found = b.scan("scan_sum", found, 1)
    elif kind == "of a scan":
        found = b.search(table, b.scan("scan_max", x, 1), "right", [0])
    elif kind == "transpose":
        found = b.pointwise("sub", [b.transpose(found, [1, 0]), b.transpose(x, [1, 0])])
    elif kind == "take":
        found = b.take(x, [b.search(table, x, "right", [0])], [1], [0, -1], [6, 40])
    elif kind == "concat":
        found = b.concat([found, b.pointwise("neg", [x])], 0)
    elif kind == "row by row":
        sums = b.broadcast(b.reduce("reduce_sum", x, [1]), [6, 40], [0])
        found = b.pointwise("sub", [b.search(table, b.pointwise("sub", [sums, x]), "right", [0]), x])
    b.output(found)
    return b.finish()


@pytest.mark.parametrize(
    "kind",
    ["reshape", "fold", "of a fold", "scan", "of a scan", "transpose", "take", "concat", "row by row"],
)
def test_among_other_ops(device, kind):
    f = among_others(kind)
    table = np.sort(RNG.integers(-5, 50, (6, 5)), axis=-1).astype(np.int32)
    x = RNG.integers(-9, 55, (6, 40)).astype(np.int32)
    np.testing.assert_array_equal(jf.ir.run(f, table, x)[0], jf.ir.evaluate(f, table, x)[0])
