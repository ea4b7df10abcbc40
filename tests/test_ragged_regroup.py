"""Split and merge of nested values in the IR: other groupings of the same rows, on data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_ragged_plans import interpreted
from tolerances import assert_close

import jax_fuser as jf

H = 4


def spans(sizes):
    sizes = np.asarray(sizes, np.int32)
    return (np.cumsum(sizes, axis=-1) - sizes).astype(np.int32), sizes


def rows(shape, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32)


def start(shape, sizes, axis=0):
    b = jf.ir.Builder("regroup")
    x, s, e = b.input("x", "f32", list(shape)), *(b.input(n, "s32", list(np.shape(sizes))) for n in ("starts", "sizes"))
    return b, b.pointwise("exp", [b.partition(x, s, e, axis, shape[axis])])


def op_by_op(fusion, *arrays):
    return jax.jit(lambda *a: jf.ir.evaluate(fusion, *a))(*arrays)


RUNS = {"kernels": jf.ir.run, "op by op": op_by_op, "loops for cuda": interpreted}


@pytest.fixture(params=RUNS)
def run(request, device):
    if request.param != "kernels" and device.platform != "cpu":
        pytest.skip("no device takes part")
    return RUNS[request.param]


@pytest.mark.parametrize("sizes", [[3, 5, 2], [0, 11, 0], [0, 0, 0]])
def test_split(run, sizes):
    """[3, 5, 2] in twos are [2, 3, 1] of them, the last ones filled up with zeros."""
    b, n = start((11, H), sizes)
    value, starts, counts = b.split(n, 1, 2)
    b.output(counts)
    b.output(b.combine(value, starts, 8))
    b.output(b.reduce("reduce_sum", b.reduce("reduce_sum", value, [2]), [1]))
    x, (first, sizes) = rows((11, H)), spans(sizes)
    x[sizes.sum() :] = np.nan
    got, stored, sums = run(b.finish(), x, first, sizes)
    np.testing.assert_array_equal(got, -(-sizes // 2))
    parts = [np.exp(x[s : s + n]) for s, n in zip(first, sizes)]
    want = np.zeros((16, H), np.float32)
    for begin, part in zip(spans(got)[0], parts):
        want[2 * begin : 2 * begin + len(part)] = part
    assert_close(stored, want.reshape(8, 2, H))
    assert_close(sums, [p.sum(0) for p in parts])


def test_split_of_no_component():
    b, n = start((5, H), np.zeros(0, np.int32))
    value, _, counts = b.split(n, 1, 2)
    b.output(b.combine(value, counts, 8))
    assert_close(jf.ir.run(b.finish(), rows((5, H)), *spans(np.zeros(0, np.int32)))[0], np.zeros((8, 2, H)))


def test_merge_with_a_dense_axis(run):
    """[3, 5, 2] rows of 4 are [12, 20, 8] of one."""
    b, n = start((11, H), [3, 5, 2])
    value, starts, counts = b.merge(n, 1, 2)
    b.output(counts)
    b.output(b.combine(value, starts, 44))
    b.output(b.reduce("reduce_max", value, [1]))
    x, (first, sizes) = rows((11, H)), spans([3, 5, 2])
    got, stored, largest = run(b.finish(), x, first, sizes)
    assert got.tolist() == [12, 20, 8]
    assert_close(stored, np.pad(np.exp(x[:10]).ravel(), (0, 4)))
    assert_close(largest, [np.exp(x[s : s + n]).max() for s, n in zip(first, sizes)])


def test_merge_with_an_outer_axis(run):
    """[[30, 0, 40, 30], [25, 35, 25, 15]] are [55, 35, 65, 45], group by group, the outer indices in order."""
    sizes = [[30, 0, 40, 30], [25, 35, 25, 15]]
    b, n = start((2, 100, 3), sizes, 1)
    value, starts, counts = b.merge(n, 0, 2)
    b.output(counts)
    b.output(b.combine(value, starts, 200))
    b.output(b.reduce("reduce_sum", value, [1]))
    x, (first, sizes) = rows((2, 100, 3)), spans(sizes)
    got, stored, sums = run(b.finish(), x, first, sizes)
    assert got.tolist() == [55, 35, 65, 45]
    groups = [
        np.concatenate([np.exp(x[d, s : s + n]) for d, (s, n) in enumerate(zip(first[:, g], sizes[:, g]))])
        for g in range(4)
    ]
    assert_close(stored, np.concatenate(groups))
    assert_close(sums, [g.sum(0) for g in groups])


def test_merge_with_its_component(run):
    """All rows, one component after another, whatever the order they were in."""
    b, n = start((11, H), [3, 5, 2])
    value, starts, _ = b.merge(n, 0, 1)
    b.output(value)
    b.output(starts)
    x, first, sizes = rows((11, H)), np.array([7, 0, 5], np.int32), np.array([3, 5, 2], np.int32)
    flat, begins = run(b.finish(), x, first, sizes)
    assert begins.tolist() == [0, 3, 8]
    assert_close(flat, np.pad(np.exp(np.concatenate([x[7:10], x[:5], x[5:7]])), ((0, 1), (0, 0))))


def test_one_grouping_after_another(device):
    """Merge the outer axis, split in eights, sum each run, then over runs."""
    sizes = [[30, 0, 40, 30], [25, 35, 25, 15]]
    b, n = start((2, 100, 3), sizes, 1)
    value, _, _ = b.merge(n, 0, 2)
    value, _, counts = b.split(value, 1, 8)
    b.output(counts)
    b.output(b.reduce("reduce_max", b.reduce("reduce_sum", value, [2]), [1]))
    x, (first, sizes) = rows((2, 100, 3)), spans(sizes)
    got, largest = jf.ir.run(b.finish(), x, first, sizes)
    assert got.tolist() == [7, 5, 9, 6]
    for g in range(4):
        parts = [np.exp(x[d, s : s + n]) for d, (s, n) in enumerate(zip(first[:, g], sizes[:, g]))]
        flat = np.pad(np.concatenate(parts), ((0, -sum(map(len, parts)) % 8), (0, 0)))
        assert_close(largest[g], flat.reshape(-1, 8, 3).sum(1).max(0))


def test_rows_that_do_not_fit_are_cut_off(device):
    """Components that share rows are more than the array has room for."""
    b, n = start((6, H), [4, 4, 4])
    value, _, counts = b.split(n, 1, 4)
    b.output(counts)
    b.output(b.reduce("reduce_sum", b.reduce("reduce_sum", value, [2]), [1]))
    x, sizes = rows((6, H)), np.array([6, 6, 6], np.int32)
    got, sums = jf.ir.run(b.finish(), x, np.zeros(3, np.int32), sizes)
    assert got.tolist() == [2, 2, 0]
    assert_close(sums, [np.exp(x).sum(0)] * 2 + [np.zeros(H)])


def regrouped(seed):
    """Return a random fusion of one to three regroupings, its inputs, and what its outputs are by components."""
    rng = np.random.default_rng(seed)
    groups, most = int(rng.integers(1, 5)), int(rng.integers(1, 20))
    outer = int(rng.integers(1, 4)) if rng.random() < 0.4 else 0
    lead = (outer,) * (outer > 0)
    dense = [int(n) for n in rng.choice([1, 2, 3, 5], int(rng.integers(0, 3)))]
    sizes = rng.multinomial(int(rng.integers(0, most + 1)), rng.dirichlet(np.full(groups, 0.6)), lead or None)
    first, sizes = spans(sizes)
    x = rows((*lead, most, *dense), seed)
    x[np.broadcast_to((np.arange(most) >= sizes.sum(-1)[..., None])[(...,) + (None,) * len(dense)], x.shape)] = np.nan
    b, value = start(x.shape, sizes, len(lead))
    parts = np.empty((*lead, groups), object)
    for i in np.ndindex(parts.shape):
        parts[i] = np.exp(x[i[:-1]][first[i] : first[i] + sizes[i]])
    axis, room = len(lead) + 1, most
    for _ in range(int(rng.integers(1, 4))):
        kind = str(rng.choice(["split", "dense", "outer"]))
        if kind == "outer" and parts.ndim == 2:
            value, begins, counts = b.merge(value, axis - 2, axis)
            axis, room = axis - 1, room * parts.shape[0]
            joined = np.empty(groups, object)
            for g in range(groups):
                joined[g] = np.concatenate(list(parts[:, g]))
            parts = joined
        elif kind == "dense" and parts.flat[0].ndim > 1:
            value, begins, counts = b.merge(value, axis, axis + 1)
            room *= parts.flat[0].shape[1]
            for i in np.ndindex(parts.shape):
                p = parts[i]
                parts[i] = p.reshape(p.shape[0] * p.shape[1], *p.shape[2:])
        else:
            n = int(rng.integers(1, 6))
            value, begins, counts = b.split(value, axis, n)
            room = room // n + groups
            for i in np.ndindex(parts.shape):
                p = parts[i]
                full = np.concatenate([p, np.zeros((-len(p) % n, *p.shape[1:]), p.dtype)])
                parts[i] = full.reshape(-1, n, *p.shape[1:])
    b.output(counts)
    b.output(b.reduce("reduce_sum", value, [axis]))
    b.output(b.combine(value, begins, room))
    whole = np.zeros((*parts.shape[:-1], room, *parts.flat[0].shape[1:]), np.float32)
    for i in np.ndindex(parts.shape[:-1]):
        flat = np.concatenate(list(parts[i]))
        whole[i][: len(flat)] = flat
    counts = np.vectorize(len, otypes=[np.int32])(parts)
    sums = np.stack([p.sum(0) for p in parts.flat]).reshape(*parts.shape, *parts.flat[0].shape[1:])
    return b.finish(), [x, first, sizes], [counts, sums, whole]


@pytest.mark.parametrize("seed", range(3))
def test_random_regroupings(device, seed):
    fusion, operands, want = regrouped(seed)
    for got, right in zip(jf.ir.run(fusion, *operands), want, strict=True):
        assert_close(got, right, "float32")


def test_random_regroupings_as_loops_for_cuda():
    for seed in range(3, 12):
        fusion, operands, want = regrouped(seed)
        for got, right in zip(interpreted(fusion, *operands), want, strict=True):
            assert_close(got, right, "float32")


def test_derivatives():
    b, n = start((11, H), [3, 5, 2])
    value, starts, _ = b.split(n, 1, 4)
    b.output(b.combine(value, starts, 6))
    fusion, x, (first, sizes) = b.finish(), rows((11, H)), spans([3, 5, 2])
    got = jax.grad(lambda x: jf.ir.run(fusion, x, first, sizes)[0].sum())(jnp.asarray(x))
    assert_close(got, np.where(np.arange(11)[:, None] < 10, np.exp(x), 0))


REFUSED = {
    "a dense axis": (lambda b, n: b.split(n, 2, 2), r"\[split\] expected ragged axis 1 of .*, got 2; reshape splits"),
    "no factor": (lambda b, n: b.split(n, 1, 0), r"\[split\] expected a factor from 1 on, got 0"),
    "other axes": (lambda b, n: b.merge(n, 0, 2), r"\[merge\] axes \(0, 2\) of .* are neither \(component, ragged\)"),
    "a dense value": (lambda b, n: b.merge(b.reduce("reduce_sum", n, [1]), 0, 1), r"\[merge\] expected a nested value"),
    "axes in another order": (
        lambda b, n: b.split(b.transpose(n, [1, 0, 2]), 0, 2),
        r"\[split\] .*: expected its rows behind their component, .* transpose it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(jf.UserError, match=message):
        make(*start((11, H), [3, 5, 2]))
