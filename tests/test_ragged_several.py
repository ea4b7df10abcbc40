"""Values with several ragged axes: two axes of one array, and all pairs of rows within each component."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_several import Program
from test_cuda_sources import nvrtc_or_skip
from test_ragged_plans import interpreted
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

G, F, M, N = 3, 2, 11, 9


def spans(sizes):
    sizes = np.asarray(sizes, np.int32)
    return (np.cumsum(sizes) - sizes).astype(np.int32), sizes


S1, E1 = spans([2, 0, 5])
S2, E2 = spans([4, 3])


def two(b):
    x = b.input("x", "f32", [M, N])
    s1, e1 = b.input("starts", "s32", [G]), b.input("sizes", "s32", [G])
    s2, e2 = b.input("tiles", "s32", [F]), b.input("widths", "s32", [F])
    return b.partition(b.partition(b.pointwise("exp", [x]), s1, e1, 0, M), s2, e2, 2, N), (s1, e1), (s2, e2)


def matrix():
    x = np.random.default_rng(0).uniform(0.5, 1.5, (M, N)).astype(np.float32)
    x[E1.sum() :], x[:, E2.sum() :] = np.nan, np.nan
    return x


def blocks(x):
    return [[np.exp(x[s : s + n, t : t + k]) for t, k in zip(S2, E2)] for s, n in zip(S1, E1)]


def several_outputs():
    b = jf.ir.Builder("two")
    n, (s1, _), (s2, _) = two(b)
    b.output(b.reduce("reduce_sum", n, [1, 3]))
    b.output(b.reduce("reduce_max", n, [1, 2, 3]))
    b.output(b.combine(b.reduce("reduce_sum", n, [2, 3]), s1, M))
    b.output(b.combine(b.pointwise("neg", [n]), [s1, s2], [M, N + 2]))
    return b.finish()


def check_several_outputs(run):
    x = matrix()
    sums, largest, rows, whole = run(several_outputs(), x, S1, E1, S2, E2)
    assert_close(sums, [[p.sum() for p in row] for row in blocks(x)])
    assert_close(np.asarray(largest)[[0, 2]], [max(p.max() for p in blocks(x)[g]) for g in (0, 2)])
    assert np.isneginf(largest[1])
    want = np.zeros((M, N + 2), np.float32)
    want[: E1.sum(), : E2.sum()] = -np.exp(x[: E1.sum(), : E2.sum()])
    assert_close(rows, -want.sum(1))
    assert_close(whole, want)


def test_text():
    fusion = several_outputs()
    text = str(fusion)
    assert jf.ir.Fusion(text) == fusion
    assert "f32[3,ragged 11 of sizes by 0,2,ragged 9 of widths by 2] = partition(" in text
    assert "{most=11, axis=0, also=[1,9]}" in text and "{rows=11, also=[11]}" in text


def test_two_axes_of_one_array(device):
    check_several_outputs(jf.ir.run)


@pytest.mark.parametrize("run", [jf.ir.evaluate, interpreted], ids=["op by op", "loops for cuda"])
def test_two_axes_of_one_array_elsewhere(run):
    check_several_outputs(run)


def test_views_of_dense_axes(device):
    rng = np.random.default_rng(1)
    x, w = rng.uniform(0.5, 1.5, (M, 4, N, 6)).astype(np.float32), rng.uniform(1, 2, (G, 4)).astype(np.float32)
    x[E1.sum() :], x[:, :, E2.sum() :] = np.nan, np.nan
    sums, whole = jf.ir.run(views(), x, S1, E1, S2, E2, w)
    want = np.zeros((M, 3, N, 7), np.float32)
    want_sums = np.zeros((G, 3, F), np.float32)
    for g, (s, n) in enumerate(zip(S1, E1)):
        for f, (t, k) in enumerate(zip(S2, E2)):
            part = (np.exp(x[s : s + n, :, t : t + k]) * w[g][:, None, None])[:, 2:]
            part = np.concatenate([part, part[..., :1]], 3)
            part = np.pad(part, [(0, 0), (1, 0), (0, 0), (0, 0)], constant_values=0.5)
            want[s : s + n, :, t : t + k] = part
            want_sums[g, :, f] = part.sum((0, 2, 3))
    assert_close(whole, want)
    assert_close(sums, want_sums)


def test_extents_of_an_outer_axis_beside_others(device):
    """[D, tokens, h] with extents [D, E] of the tokens, and extents [F] of h: matched by position."""
    b = jf.ir.Builder("outer")
    x = b.input("x", "f32", [2, M, N])
    s1, e1 = b.input("starts", "s32", [2, G]), b.input("sizes", "s32", [2, G])
    s2, e2 = b.input("tiles", "s32", [F]), b.input("widths", "s32", [F])
    n = b.partition(b.partition(x, s2, e2, 2, N), s1, e1, 1, M)
    b.output(b.reduce("reduce_sum", n, [2, 4]))
    b.output(b.combine(n, [s1, s2], [M, N]))
    fusion = b.finish()
    assert "f32[2,3,ragged 11 of sizes by 0 1,2,ragged 9 of widths by 3]" in str(fusion)
    x = np.stack([np.log(np.exp(matrix())), matrix() + 1])
    starts, sizes = (np.stack(a) for a in zip(spans([2, 0, 5]), spans([0, 4, 3])))
    sums, whole = jf.ir.run(fusion, x, starts, sizes, S2, E2)
    want = np.zeros_like(x)
    for d in range(2):
        want[d, : sizes[d].sum(), : E2.sum()] = x[d, : sizes[d].sum(), : E2.sum()]
        for g in range(G):
            rows = x[d, starts[d, g] : starts[d, g] + sizes[d, g]]
            assert_close(sums[d, g], [rows[:, t : t + k].sum() for t, k in zip(S2, E2)])
    assert_close(whole, want)


def attention(groups, mq, mk, d):
    """Return softmax(q k^T) v of the rows of each component, and the scores as blocks of one matrix."""
    b = jf.ir.Builder("attention")
    q, k, v = b.input("q", "f32", [mq, d]), b.input("k", "f32", [mk, d]), b.input("v", "f32", [mk, d])
    sq, eq, sk, ek = (b.input(name, "s32", [groups]) for name in ("sq", "eq", "sk", "ek"))
    q, k, v = b.partition(q, sq, eq, 0, mq), b.partition(k, sk, ek, 0, mk), b.partition(v, sk, ek, 0, mk)
    pairs = [groups, mq, mk, d]

    def of_queries(x):
        return b.stretch(b.broadcast(x, [groups, mq, 1, d], [0, 1, 3]), ek, 2, mk, [0])

    def of_keys(x):
        return b.stretch(b.broadcast(x, [groups, 1, mk, d], [0, 2, 3]), eq, 1, mq, [0])

    scores = b.reduce("reduce_sum", b.pointwise("mul", [of_queries(q), of_keys(k)]), [3])
    largest = b.broadcast_like(b.reduce("reduce_max", scores, [2]), scores, [0, 1])
    power = b.pointwise("exp", [b.pointwise("sub", [scores, largest])])
    total = b.broadcast(b.reduce("reduce_sum", power, [2]), [groups, mq, d], [0, 1])
    out = b.reduce("reduce_sum", b.pointwise("mul", [b.broadcast(power, pairs, [0, 1, 2]), of_keys(v)]), [2])
    b.output(b.combine(b.pointwise("div", [out, total]), sq, mq))
    b.output(b.combine(scores, [sq, sk], [mq, mk]))
    return b.finish()


PAIRS = {
    "kernels": (jf.ir.run, 10),
    "loops for cuda": (interpreted, 10),
    "more than a thread keeps": (jf.ir.run, 70000),
}


@pytest.mark.parametrize("case", PAIRS)
def test_every_pair_of_rows_of_a_component(device, case):
    run, mk = PAIRS[case]
    if run is interpreted and device.platform != "cpu":
        pytest.skip("no device takes part")
    mq, d = 8, 4
    (sq, eq), (sk, ek) = spans([3, 0, 5]), spans([4, 2, 3])
    q, k, v = (np.random.default_rng(i).normal(size=(n, d)).astype(np.float32) for i, n in enumerate([mq, mk, mk]))
    k[ek.sum() :], v[ek.sum() :] = np.nan, np.nan
    rows, scores = run(attention(G, mq, mk, d), q, k, v, sq, eq, sk, ek)
    want_rows, want = np.zeros((mq, d)), np.zeros((mq, mk))
    for a, m, c, n in zip(sq, eq, sk, ek):
        block = q[a : a + m] @ k[c : c + n].T
        want[a : a + m, c : c + n] = block
        power = np.exp(block - block.max(1, keepdims=True, initial=-9))
        want_rows[a : a + m] = power / power.sum(1, keepdims=True) @ v[c : c + n]
    assert_close(scores, want)
    assert_close(rows, want_rows)


def all_pairs(b):
    """Return exp(x) y of each two rows of one component, x of [M] and y of [N, 2]."""
    x, y = b.pointwise("exp", [b.input("x", "f32", [M])]), b.input("y", "f32", [N, 2])
    (sx, ex), (sy, ey) = [(b.input("s", "s32", [G]), b.input("e", "s32", [G])) for _ in range(2)]
    x = b.broadcast(b.partition(x, sx, ex, 0, M), [G, M, 1, 2], [0, 1])
    y = b.broadcast(b.partition(y, sy, ey, 0, N), [G, 1, N, 2], [0, 2, 3])
    return b.pointwise("mul", [b.stretch(x, ey, 2, N, [0]), b.stretch(y, ex, 1, M, [0])])


def pairs_in_numpy():
    x, y = matrix()[:, 0], np.random.default_rng(3).normal(size=(N, 2)).astype(np.float32)
    (sx, ex), (sy, ey) = (S1, E1), spans([4, 2, 3])
    parts = [np.exp(x[s : s + n])[:, None, None] * y[t : t + k] for s, n, t, k in zip(sx, ex, sy, ey)]
    return (x, y, sx, ex, sy, ey), parts


RUNS = pytest.mark.parametrize(
    "run", [jf.ir.run, jf.ir.evaluate, interpreted], ids=["run", "op by op", "loops for cuda"]
)


@RUNS
def test_slices_of_rows_and_components(run):
    """Components 1 and 2 of the first axis, their rows from 2 on; rows 1 to 3 of component 1 of the second."""
    b = jf.ir.Builder("slices")
    n, *_ = two(b)
    some = b.slice(n, [1, 2, 1, 1], [1, 1, 1, 1], [2, M - 2, 1, 3])
    b.output(b.reduce("reduce_sum", some, [1, 3]))
    b.output(b.reduce("reduce_max", b.slice(n, [0, 0, 0, 3], [2, 1, 1, 1], [2, M, F, N - 3]), [1, 3]))
    x = matrix()
    sums, largest = run(b.finish(), x, S1, E1, S2, E2)
    assert_close(sums, [[blocks(x)[g][1][2:, 1:4].sum()] for g in (1, 2)])
    want = [[p[:, 3:].max(initial=-np.inf) for p in blocks(x)[g]] for g in (0, 2)]
    np.testing.assert_array_equal(np.isinf(largest), np.isinf(want))
    assert_close(np.maximum(largest, -9), np.maximum(want, -9))


@RUNS
def test_slices_of_pairs(run):
    b = jf.ir.Builder("slices")
    n = all_pairs(b)
    b.output(b.reduce("reduce_sum", b.slice(n, [1, 2, 1, 0], [1] * 4, [2, 3, N - 1, 2]), [1, 2]))
    b.output(b.reduce("reduce_sum", b.slice(b.reduce("reduce_sum", n, [1]), [0, 1, 0], [1] * 3, [G, 2, 1]), [1, 2]))
    given, parts = pairs_in_numpy()
    some, folded = run(b.finish(), *given)
    assert_close(some, [parts[g][2:5, 1:].sum((0, 1)) for g in (1, 2)])
    assert_close(folded, [p.sum(0)[1:3, :1].sum() for p in parts])


@RUNS
@pytest.mark.parametrize("component", range(G))
def test_one_component_of_pairs(run, component):
    b = jf.ir.Builder("one")
    b.output(b.select(all_pairs(b), component))
    given, parts = pairs_in_numpy()
    want = np.zeros((M, N, 2), np.float32)
    part = parts[component]
    want[: part.shape[0], : part.shape[1]] = part
    assert_close(run(b.finish(), *given)[0], want)


@RUNS
def test_runs_of_rows_that_are_paired_then(run):
    """What the refusal of splitting pairs advises: two rows of x at a time with each row of y."""
    b = jf.ir.Builder("runs")
    x, y = b.input("x", "f32", [M]), b.input("y", "f32", [N])
    (sx, ex), (sy, ey) = [(b.input("s", "s32", [G]), b.input("e", "s32", [G])) for _ in range(2)]
    x, _, parts = b.split(b.partition(x, sx, ex, 0, M), 1, 2)
    most = -(-M // 2)
    x = b.stretch(b.broadcast(x, [G, most, 1, 2], [0, 1, 3]), ey, 2, N, [0])
    y = b.stretch(b.broadcast(b.partition(y, sy, ey, 0, N), [G, 1, N, 2], [0, 2]), parts, 1, most, [0])
    b.output(b.combine(b.reduce("reduce_sum", b.pointwise("mul", [x, y]), [1]), sy, N))
    rows, columns = matrix()[:, 0], np.random.default_rng(3).normal(size=N).astype(np.float32)
    (first, counts), (at, widths) = spans([3, 0, 5]), spans([4, 2, 3])
    [got] = run(b.finish(), rows, columns, first, counts, at, widths)
    part = [rows[s : s + n] for s, n in zip(first, counts)]
    want = np.zeros((N, 2), np.float32)
    for p, a, n in zip(part, at, widths):
        want[a : a + n] = columns[a : a + n, None] * [p[::2].sum(), p[1::2].sum()]
    assert_close(got, want)


def regrouped(how, *arguments):
    """Return [G, rows, 4, F, columns] with its rows or columns in another grouping, folded along those."""
    b = jf.ir.Builder(how)
    x = b.input("x", "f32", [M, 4, N])
    s1, e1 = b.input("starts", "s32", [G]), b.input("sizes", "s32", [G])
    s2, e2 = b.input("tiles", "s32", [F]), b.input("widths", "s32", [F])
    n = b.partition(b.partition(b.pointwise("exp", [x]), s1, e1, 0, M), s2, e2, 3, N)
    made, starts, extents = getattr(b, how)(n, *arguments)
    return b, made, starts, extents


def cube():
    x = np.random.default_rng(4).uniform(0.5, 1.5, (M, 4, N)).astype(np.float32)
    x[E1.sum() :], x[..., E2.sum() :] = np.nan, np.nan
    return x, [[np.exp(x[s : s + n, :, t : t + k]) for t, k in zip(S2, E2)] for s, n in zip(S1, E1)]


@RUNS
def test_split_beside_another_ragged_axis(run):
    """Rows [2, 0, 5] in twos are [1, 0, 3]; columns [4, 3] in threes are [2, 1]."""
    x, parts = cube()
    b, made, _, extents = regrouped("split", 1, 2)
    b.output(b.reduce("reduce_sum", made, [1, 5]))
    b.output(extents)
    sums, counts = run(b.finish(), x, S1, E1, S2, E2)
    assert np.asarray(counts).tolist() == [1, 0, 3]
    want = [[[p[i::2].sum((0, 2)) for i in range(2)] for p in row] for row in parts]
    assert_close(sums, np.transpose(want, (0, 2, 3, 1)))
    b, made, _, extents = regrouped("split", 4, 3)
    b.output(b.reduce("reduce_sum", made, [1, 4]))
    b.output(extents)
    sums, counts = run(b.finish(), x, S1, E1, S2, E2)
    assert np.asarray(counts).tolist() == [2, 1]
    want = [[[p[..., i::3].sum((0, 2)) for i in range(3)] for p in row] for row in parts]
    assert_close(sums, np.transpose(want, (0, 3, 1, 2)))


@RUNS
def test_merges_beside_another_ragged_axis(run):
    x, parts = cube()
    b, made, _, extents = regrouped("merge", 1, 2)  # rows of 4
    b.output(b.reduce("reduce_sum", made, [1, 3]))
    b.output(extents)
    sums, counts = run(b.finish(), x, S1, E1, S2, E2)
    assert np.asarray(counts).tolist() == (4 * E1).tolist()
    assert_close(sums, [[p.sum() for p in row] for row in parts])
    b, made, *_ = regrouped("merge", 0, 1)  # all rows, columns still of two tiles
    b.output(b.reduce("reduce_sum", made, [3]))
    [rows] = run(b.finish(), x, S1, E1, S2, E2)
    want = np.zeros((M, 4, F), np.float32)
    want[: E1.sum()] = np.concatenate([np.stack([p.sum(2) for p in row], -1) for row in parts])
    assert_close(rows, want)


def test_sizes_that_do_not_fit_stay_in_bounds(device):
    x, wild = np.random.default_rng(1).normal(size=(M, N)).astype(np.float32), np.array([-3, 2**31 - 1, 4], np.int32)
    arrays = x, np.array([5, -7, 2**30], np.int32), wild, np.array([8, 2], np.int32), np.array([100, 3], np.int32)
    b = jf.ir.Builder("wild")
    n, *_ = two(b)
    b.output(b.reduce("reduce_sum", n, [1, 3]))
    fusion = b.finish()
    assert_close(jf.ir.run(fusion, *arrays)[0], jf.ir.evaluate(fusion, *arrays)[0])


def test_derivatives():
    b = jf.ir.Builder("two")
    n, *_ = two(b)
    b.output(b.reduce("reduce_sum", n, [1, 3]))
    fusion, x = b.finish(), matrix()
    got = jax.grad(lambda x: jf.ir.run(fusion, x, S1, E1, S2, E2)[0].sum())(jnp.asarray(x))
    exists = np.isfinite(x)
    assert_close(got, np.where(exists, np.exp(np.where(exists, x, 0)), 0))


def test_derivatives_of_slices():
    b = jf.ir.Builder("slices")
    n, *_ = two(b)
    b.output(b.reduce("reduce_sum", b.slice(n, [2, 1, 0, 0], [1] * 4, [1, M - 1, F, N]), [1, 3]))
    fusion, x = b.finish(), matrix()
    got = jax.grad(lambda x: jf.ir.run(fusion, x, S1, E1, S2, E2)[0].sum())(jnp.asarray(x))
    want = np.zeros_like(x)
    want[S1[2] + 1 : S1[2] + E1[2], : E2.sum()] = 1
    assert_close(got, np.where(want > 0, np.exp(np.where(want > 0, x, 0)), 0))
    stacked = jax.vmap(lambda x: jf.ir.run(fusion, x, S1, E1, S2, E2)[0])(jnp.stack([x, x + 1]))
    assert_close(stacked[1], np.asarray(stacked[0]) * np.e)


def test_a_schedule_by_hand(machine):
    b = jf.ir.Builder("by_hand")
    n, *_ = two(b)
    b.output(b.reduce("reduce_sum", n, [1, 3]))
    fusion = b.finish()
    [out] = fusion.outputs
    for calls in (
        [("reorder", [0, 2, 1, 3]), ("parallelize", 0, machine.outer)],
        [("reorder", [0, 2, 1, 3]), ("merge", 0), ("split", 1, 4), ("merge", 2), ("parallelize", 0, machine.outer)],
        [("reorder", [2, 0, 3, 1]), ("split", 3, 3), ("split", 2, 2), ("reorder", [0, 1, 2, 4, 3, 5])],
    ):
        scheduler = jf.ir.Scheduler(fusion)
        for call, *arguments in calls:
            getattr(scheduler, call)(out, *arguments)
        scheduler.transform_like(out)
        scheduler.parallelize_like(out)
        scheduler.inline_most()
        x = matrix()
        [got] = machine.run(scheduler.schedule, x, S1, E1, S2, E2)
        assert_close(got, [[p.sum() for p in row] for row in blocks(x)])


def start():
    b = jf.ir.Builder("two")
    return (b, *two(b))


def views():
    """Return a fusion that reshapes, slices, pads and joins dense axes beside, between and behind two ragged ones."""
    b = jf.ir.Builder("views")
    x = b.input("x", "f32", [M, 4, N, 6])
    s1, e1 = b.input("starts", "s32", [G]), b.input("sizes", "s32", [G])
    s2, e2 = b.input("tiles", "s32", [F]), b.input("widths", "s32", [F])
    n = b.partition(b.partition(b.pointwise("exp", [x]), s1, e1, 0, M), s2, e2, 3, N)
    group = b.broadcast_like(b.input("w", "f32", [G, 4]), n, [0, 2])
    n = b.pointwise("mul", [n, group])
    n = b.reshape(n, [G, M, 2, 2, F, N, 3, 2])
    n = b.slice(n, [0, 0, 1, 0, 0, 0, 0, 0], [1] * 8, [G, M, 1, 2, F, N, 3, 2])
    n = b.reshape(n, [G, M, 2, F, N, 6])
    n = b.concat([n, b.slice(n, [0] * 6, [1] * 6, [G, M, 2, F, N, 1])], 5)
    n = b.pad(n, [0, 0, 1, 0, 0, 0], [0] * 6, b.constant("f32", 0.5))
    b.output(b.reduce("reduce_sum", n, [1, 4, 5]))
    b.output(b.combine(n, [s1, s2], [M, N]))
    return b.finish()


REFUSED = {
    "a fold of one component": (
        lambda b, n, a, c: b.reduce("reduce_sum", n, [1, 2]),
        r"axis 2 is its component, whose elements have extents of their own along ragged axis 3",
    ),
    "other extents of the second": (
        lambda b, n, a, c: b.pointwise(
            "add", [n, b.partition(b.reduce("reduce_sum", n, [3]), c[0], b.input("o", "s32", [F]), 2, F)]
        ),
        r"\[partition\] .* is nested, and what it comes from is no array",
    ),
    "extents that differ": (
        lambda b, n, a, c: b.pointwise(
            "add",
            [n, b.partition(b.partition(b.input("y", "f32", [M, N]), *a, 0, M), c[0], b.input("o", "s32", [F]), 2, N)],
        ),
        r"\[add\] .* have the extents of widths and of o; partition both by one value",
    ),
    "one ragged axis and two": (
        lambda b, n, a, c: b.pointwise("add", [n, b.partition(b.input("y", "f32", [M, F, N]), *a, 0, M)]),
        r"differ in their ragged axes; stretch or partition one like the other",
    ),
    "starts for one of them": (
        lambda b, n, a, c: b.combine(n, a[0], M),
        r"has 2 ragged axes; expected starts and rows for each, got 1 and 1",
    ),
    "every other row": (
        lambda b, n, a, c: b.slice(n, [0, 0, 0, 0], [1, 2, 1, 1], [G, 6, F, N]),
        r"\[slice\] .* only the builder's slice with strides of 1 along its ragged axis",
    ),
    "a pad": (
        lambda b, n, a, c: b.pad(n, [0, 0, 0, 0], [0, 0, 1, 0], b.constant("f32", 0.0)),
        r"\[pad\] .* its axis 2 says which component an element is of and cannot be padded",
    ),
    "a concat": (lambda b, n, a, c: b.concat([n, n], 3), r"\[concat\] .* its ragged axis 3 cannot be extended"),
    "a reshape": (
        lambda b, n, a, c: b.reshape(n, [G, M, F * N]),
        r"\[reshape\] .* its ragged axis and its component stay",
    ),
    "one component": (
        lambda b, n, a, c: b.select(n, 0),
        r"\[select\] .* each with components of its own; slice the axis of those it is one of",
    ),
    "runs of pairs": (
        lambda b, n, a, c: b.split(all_pairs(b), 1, 2),
        r"\[split\] .* has pairs of rows: its ragged axes 1 and 2 are of the same components; split the rows of",
    ),
    "pairs and a dense axis": (
        lambda b, n, a, c: b.merge(all_pairs(b), 2, 3),
        r"\[merge\] .* has pairs of rows: .* merge the rows of one before they are paired",
    ),
    "runs of turned rows": (
        lambda b, n, a, c: b.split(b.transpose(n, [1, 0, 2, 3]), 0, 2),
        r"\[split\] .*: expected each ragged axis behind its component; transpose it",
    ),
    "runs of no axis": (lambda b, n, a, c: b.split(n, 0, 2), r"\[split\] .* expected one of them, got 0"),
    "rows and another's component": (lambda b, n, a, c: b.merge(n, 1, 2), r"\[merge\] axes \(1, 2\) of .* are neither"),
    "a component that is none": (
        lambda b, n, a, c: b.select(all_pairs(b), G),
        r"\[select\] expected a component from 0 to 2 of .*, got 3",
    ),
    "rows that index extents": (
        lambda b, n, a, c: b.partition(
            b.partition(b.input("y", "f32", [M, N]), b.input("s", "s32", [M, F]), b.input("e", "s32", [M, F]), 1, N),
            *a,
            0,
            M,
        ),
        r"multi-level nesting: its axis 0 says which component",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(jf.UserError, match=message):
        make(*start())


def check(program, run):
    try:
        results = run(program.fusion, *program.operands())
    except jf.UserError as error:
        assert "no loops go together" in str(error)
        return 0
    for got, want in zip(results, program.want, strict=True):
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
        finite = np.isfinite(want)
        assert_close(np.where(finite, got, 0), np.where(finite, want, 0), "float32", scale=20)
    return 1


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(device, seed):
    assert check(Program(seed), jf.ir.run)


def test_random_programs_as_loops_for_cuda():
    assert sum(check(Program(seed), interpreted) for seed in range(6, 22)) > 13


def test_random_programs_op_by_op():
    assert check(Program(23), jf.ir.evaluate)


def test_cuda_sources_compile():
    nvrtc_or_skip()
    for fusion in several_outputs(), attention(G, 8, 10, 4):
        for _, _, cubin in _core.compile_cuda(str(fusion), _core.cuda_target_for(90)):
            assert cubin
