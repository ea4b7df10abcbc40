"""Groups that hurt others: empty, full, short of the array, with gaps, too large, unsorted, NaN.

Where results are ours they are written over NaN, so that what no kernel stores shows. Truth is one group at a time.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

ROWS, H = 24, 8
W = np.random.default_rng(9).normal(size=(4, H, H)).astype(np.float32)
# Rows that no group has lie behind the last one.
LAYOUTS = {
    "first empty": [0, 7, 3, 11],
    "last empty": [7, 3, 11, 0],
    "consecutive empty": [9, 0, 0, 12],
    "all empty": [0, 0, 0, 0],
    "all rows in one": [0, 0, 24, 0],
    "even": [6, 6, 6, 6],
    "fewer than the array has": [2, 1, 0, 4],
}


def rows(sizes, capacity=ROWS, dense=(H,), dtype=np.float32):
    x = np.random.default_rng(sum(sizes)).normal(size=(capacity, *dense)).astype(dtype)
    x[sum(sizes) :] = np.nan
    return x


def groups(x, sizes):
    return np.split(x[: sum(sizes)], np.cumsum(sizes)[:-1])


def poisoned(f, *operands):
    """Return `f(*operands)`, its results in memory that held NaN, or a large integer."""
    shapes, tree = jax.tree.flatten(jax.eval_shape(f, *operands))
    poison = [jnp.full(s.shape, jnp.nan if jnp.issubdtype(s.dtype, jnp.inexact) else 2**30, s.dtype) for s in shapes]
    places = {x.unsafe_buffer_pointer() for x in jax.block_until_ready(poison) if x.size}
    run = jax.jit(lambda _, *operands: f(*operands), donate_argnums=0, keep_unused=True)
    found = jax.tree.leaves(run(poison, *operands))
    assert all(x.unsafe_buffer_pointer() in places for x in found if x.size)
    return jax.tree.unflatten(tree, found)


@jf.fuse
def activation(nt, bias):
    return jf.nested.map(jax.nn.silu, nt + bias)


@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS)
class TestLayouts:
    """Groups without rows; all rows in one; rows that no group has, which are uninitialised memory to most."""

    def test_rows_are_computed_and_the_tail_is_zero(self, device, sizes):
        x, bias = rows(sizes), np.linspace(-1, 1, 4 * H, dtype=np.float32).reshape(4, 1, H)
        got = poisoned(lambda nt, b: activation(nt, b).data, jf.as_nested(x, extents=sizes), bias)
        z = np.concatenate([p + b for p, b in zip(groups(x, sizes), bias)])
        assert_close(got[: len(z)], z / (1 + np.exp(-z)))
        np.testing.assert_array_equal(got[len(z) :], 0)

    def test_a_matrix_of_no_rows_has_gradient_zero(self, device, sizes):
        x = rows(sizes)

        def loss(w, x):
            return jnp.square(jf.grouped_matmul(jf.as_nested(x, extents=jnp.asarray(sizes)), w).data).sum()

        out = poisoned(lambda w, x: jf.grouped_matmul(jf.as_nested(x, extents=jnp.asarray(sizes)), w).data, W, x)
        assert_close(out[: sum(sizes)], np.concatenate([p @ w for p, w in zip(groups(x, sizes), W)]))
        np.testing.assert_array_equal(out[sum(sizes) :], 0)
        dw, dx = poisoned(jax.grad(loss, (0, 1)), W, x)
        assert_close(dw, np.stack([2 * p.T @ (p @ w) for p, w in zip(groups(x, sizes), W)]))
        np.testing.assert_array_equal(dw[np.array(sizes) == 0], 0)
        np.testing.assert_array_equal(dx[sum(sizes) :], 0)

    def test_programs_written_by_hand(self, device, sizes):
        b = jf.ir.Builder("nested")
        x, s, e = b.input("x", "f32", [ROWS, H]), b.input("starts", "s32", [4]), b.input("sizes", "s32", [4])
        n = b.partition(x, s, e, 0, ROWS)
        b.output(b.combine(b.pointwise("exp", [n]), s, ROWS))
        b.output(b.reduce("reduce_max", n, [1]))
        fusion, x = b.finish(), rows(sizes)
        starts = np.cumsum(sizes) - sizes
        back, largest = poisoned(
            lambda *a: jf.ir.run(fusion, *a), x, jnp.asarray(starts, jnp.int32), jnp.asarray(sizes, jnp.int32)
        )
        assert_close(back[: sum(sizes)], np.exp(x[: sum(sizes)]))
        np.testing.assert_array_equal(back[sum(sizes) :], 0)
        np.testing.assert_array_equal(largest, [p.max(0, initial=-np.inf) for p in groups(x, sizes)])


STARTS = {
    "in order": ([0, 10, 30, 30], [10, 12, 0, 20]),
    "backwards, with gaps": ([60_000, 40_000, 500, 7], [5_000, 16_000, 30_000, 2]),
    "on top of each other": ([0, 5, 0, 50_000], [65_536, 20, 100, 10_000]),
    "one inside of another": ([0, 10, 65_000, 20], [1_000, 5, 536, 3]),
    "outside": ([-7, 65_536, 70_000, 2**31 - 1], [9, 4, 2**31 - 1, -3]),
    "nothing": ([5, 4, 3, 2], [0, 0, -1, 0]),
}


@pytest.mark.parametrize("columns", [64, 4])
def test_rows_between_components_are_zero(device, columns):
    """Of large results only the gaps are filled, wherever components lie."""
    rows = 65_536
    b = jf.ir.Builder("gaps")
    x, s, e = b.input("x", "f32", [rows, columns]), b.input("starts", "s32", [4]), b.input("sizes", "s32", [4])
    b.output(b.combine(b.pointwise("neg", [b.partition(x, s, e, 0, rows)]), s, rows))
    fusion = b.finish()
    x = np.random.default_rng(0).uniform(1, 2, (rows, columns)).astype(np.float32)
    for starts, sizes in STARTS.values():
        starts, sizes = np.array(starts, np.int32), np.array(sizes, np.int32)
        got = poisoned(lambda *a: jf.ir.run(fusion, *a)[0], x, starts, sizes)
        inside = np.zeros(rows, bool)
        for start, size in zip(np.clip(starts, 0, rows), np.clip(sizes, 0, rows)):
            inside[start : min(start + size, rows)] = True
        np.testing.assert_array_equal(got, np.where(inside[:, None], -x, 0))


def test_no_rows_no_groups_one_group(device):
    for capacity, sizes in ((0, [0, 0]), (0, []), (5, []), (5, [5]), (5, [0])):
        x = rows(sizes, capacity)
        nt = jf.as_nested(x, extents=np.array(sizes, np.int32))
        np.testing.assert_array_equal(
            jf.nested.sum(nt), [p.sum(0) for p in groups(x, sizes)] if sizes else np.ones((0, H))
        )
        w = W[: len(sizes)]
        out = jax.jit(lambda nt, w: jf.grouped_matmul(nt, w).data)(nt, w)
        want = np.zeros((capacity, H), np.float32)
        want[: sum(sizes)] = x[: sum(sizes)] @ W[0]
        assert_close(out, want)


def test_padding_inside_of_groups(device):
    """Rows between groups are never read, in the gradient of the matrices neither, where they would be summed."""
    x = np.full((ROWS, H), np.nan, np.float32)
    starts, sizes = [0, 8, 8, 16], [5, 0, 7, 2]
    for s, n in zip(starts, sizes):
        x[s : s + n] = np.random.default_rng(s).normal(size=(n, H))
    nt = jf.NestedTensor(x, jnp.asarray(sizes, jnp.int32), jnp.asarray(starts, jnp.int32))
    parts = [x[s : s + n] for s, n in zip(starts, sizes)]
    dw = poisoned(jax.grad(lambda w, nt: jnp.square(jf.grouped_matmul(nt, w).data).sum()), W, nt)
    assert_close(dw, np.stack([2 * p.T @ (p @ w) for p, w in zip(parts, W)]))
    got = poisoned(lambda nt, b: activation(nt, b).data, nt, np.zeros((4, 1, H), np.float32))
    inside = np.isfinite(x)
    assert_close(got, np.where(inside, x / (1 + np.exp(-x)), 0))


def test_more_rows_than_there_are(device):
    """Refused where sizes are known; where they are not, the first groups take what there is."""
    with pytest.raises(ValueError, match=r"^as_nested: extents sum to 13, which exceeds data\.shape"):
        jf.as_nested(jnp.ones((7, 2)), extents=[5, 5, 3])
    sizes, w = jnp.array([5, 5, 3]), np.stack([np.full((2, 1), g + 1, np.float32) for g in range(3)])

    @jax.jit
    def by_prefix(sizes):
        nt = jf.as_nested(jnp.ones((7, 2)), extents=sizes)
        some = (jf.nested.sum, jf.nested.max, jf.nested.mean)
        folds = [f(nt)[:, 0] for f in some]
        folds += jf.fuse(lambda nt: [f(nt)[:, 0] for f in some])(nt)
        folds.append(jf.nested.mean(nt, "group")[:1])
        return nt.row_ids(), jf.grouped_matmul(nt, w).data[:, 0], jf.nested.to_padded(nt, 4)[..., 0], folds

    ids, product, padded, folds = by_prefix(sizes)
    for fold, want in zip(folds, [[5, 2, 0], [1, 1, -np.inf], [1, 1, 0]] * 2 + [[1]], strict=True):
        np.testing.assert_array_equal(fold, want)
    assert ids.tolist() == [0] * 5 + [1] * 2
    assert_close(product, [2.0] * 5 + [4.0] * 2)
    np.testing.assert_array_equal(padded, [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])


ORDERS = {
    "offsets[0] must be 0, got 1": [1, 3, 7],
    "offsets must be non-decreasing; offsets[1]=5 > offsets[2]=3": [0, 5, 3, 7],
    "offsets[-1]=9 exceeds data.shape[0]=7": [0, 3, 9],
    "offsets[1]=2147483653 does not fit in int32": np.array([0, 2**31 + 5]),
    "offsets must be an integer array, got bool": np.array([False, True]),
    "offsets must be an integer array, got float64": np.array([0.0, 7.0]),
}


@pytest.mark.parametrize("message", ORDERS)
def test_offsets_out_of_order(message):
    """Silent elsewhere. The range of index dtypes is checked before they become int32. Traced: test_debug_checks."""
    with pytest.raises((ValueError, TypeError), match="^as_nested: " + re.escape(message)):
        jf.as_nested(jnp.ones((7, 2)), ORDERS[message])


def moved_and_summed(groups, rows, columns, dtype):
    """All rows negated, and the sums of each group's."""
    b = jf.ir.Builder("rows")
    x = b.input("x", dtype, [rows, columns])
    s, e = b.input("starts", "s32", [groups]), b.input("sizes", "s32", [groups])
    n = b.partition(x, s, e, 0, rows)
    b.output(b.combine(b.pointwise("neg", [n]), s, rows))
    b.output(b.reduce("reduce_sum", n, [1]))
    return b.finish()


def test_addresses_are_64_bit():
    """300000 rows of 7168 columns have elements past 2^31."""
    fusion = moved_and_summed(8, 300_000, 7168, "f32")
    for platform in "cpu", "cuda":
        source = jf.ir.lower(fusion, platform).as_text("source")
        places = re.findall(r"(\w+) i\d+ = jf::read_index<\w+>\([^;]*, 300000\)", source)
        reads = re.findall(r"jf::load<[^;]*\(x, [^;]*;", source)
        assert places and set(places) <= {"long"} and reads and all("* 7168L" in read for read in reads)


@pytest.mark.parametrize(("groups", "rows", "columns"), [(1, 3 << 29, 1), (3, (1 << 30) - 1, 1), (8, 3_000_000, 7168)])
def test_many_rows_can_be_lowered(groups, rows, columns):
    """Loops over parts stay countable; a start and a row's number of 31 bits each have a sum of more."""
    fusion = moved_and_summed(groups, rows, columns, "bf16")
    for platform in "cpu", "cuda":
        source = jf.ir.lower(fusion, platform).as_text("source")
        kinds = re.findall(r"= jf::read_index<(\w+)>", source)
        assert kinds and (set(kinds) == {"long"} or rows < 1 << 30)


def test_more_elements_than_int32_counts(device):
    """On a GPU for real: rows of the last group lie past element 2^31, with gaps past 2^32 bytes."""
    if device.platform == "cpu":
        pytest.skip("4 GiB of rows are for a GPU; test_addresses_are_64_bit reads the sources")
    rows, columns = 300_000, 7168
    assert rows * columns > 2**31
    sizes = [100_000, 150_000, 0, 49_990]

    @jax.jit
    def storage():
        row, column = (jax.lax.broadcasted_iota(jnp.int32, (rows, columns), i) for i in range(2))
        return ((row * 5 + column) % 7).astype(jnp.bfloat16)

    nt = jf.as_nested(storage(), extents=sizes)
    bias = np.arange(4, dtype=np.float32).reshape(4, 1, 1).repeat(columns, 2).astype(jnp.bfloat16)
    moved = jax.jit(jf.fuse(lambda nt, b: (nt + b).data))(nt, bias)
    sums, largest = jax.jit(lambda nt: (jf.nested.sum(nt), jf.nested.max(nt)))(nt)
    for row in 0, 100_000, 260_000, 299_989:
        group = 0 if row < 100_000 else 1 if row < 250_000 else 3
        np.testing.assert_array_equal(np.asarray(moved[row], np.float32), (row * 5 + np.arange(columns)) % 7 + group)
    assert not np.asarray(moved[299_990:], np.float32).any()
    for g, (start, size) in enumerate(zip(np.cumsum(sizes) - sizes, sizes)):
        part = nt.data[start : start + size].astype(jnp.float32)
        assert_close(sums[g], part.sum(0), "bfloat16")
        np.testing.assert_array_equal(np.asarray(largest[g], np.float32), part.max(0, initial=-jnp.inf))


def test_more_rows_than_int32_are_refused():
    nt = jax.eval_shape(lambda: jf.as_nested(jnp.zeros((70_000, 70_000), jnp.int8), extents=jnp.array([3, 4])))
    with pytest.raises(ValueError, match=r"^merge: 70000 rows times 70000 do not fit in int32"):
        jax.eval_shape(lambda nt: jf.nested.merge(nt, 1, 2), nt)
    with pytest.raises(ValueError, match=r"^align: \d+ rows do not fit in int32"):
        jax.eval_shape(lambda nt: jf.nested.align(nt, 2**30), nt)


def test_dropped_rows_are_zero_and_so_are_their_gradients(device):
    """Active and physical sizes are two things: what an expert has, and what there is room for."""
    x = rows([6, 6, 6, 6]).reshape(2, 12, H)
    nt = jf.as_nested(x, extents=[[7, 5], [2, 8]], ragged_dim=1)
    merged = jf.nested.merge(nt, 0, 2, capacity=14)
    assert merged.extents.tolist() == [9, 5] and merged.capacity == 14 and nt.extents.sum() == 22
    np.testing.assert_array_equal(merged[1], x[0, 7:])
    grad = jax.grad(lambda d: jnp.square(jf.nested.merge(nt.replace(data=d), 0, 2, capacity=14).data).sum())(x)
    kept = np.zeros_like(x)
    kept[0], kept[1, :2] = 1, 1
    assert_close(grad, 2 * x * kept)


def test_sums_of_bfloat16_are_taken_in_float32(device):
    """64 experts of weight 1/64 of one token, in order."""
    tokens, k = 16, 64
    x = jnp.full((tokens, H), 1.0078125, jnp.bfloat16)
    experts = jnp.tile(jnp.arange(k), (tokens, 1))
    nt, state = jf.moe.dispatch(x, experts, num_experts=k)
    got = jf.moe.combine(nt, state, jnp.full((tokens, k), 1 / 64, jnp.float32))
    np.testing.assert_array_equal(np.float32(got), 1.0078125)


def test_two_runs_are_equal_bit_by_bit(device):
    sizes = [3, 0, 20, 1]
    x = rows(sizes)

    @jax.jit
    def both(x):
        nt = jf.as_nested(x, extents=jnp.asarray(sizes))
        sums = jf.nested.sum(nt * 1.1)
        return sums, jax.grad(lambda d: jnp.square(jf.nested.softmax(nt.replace(data=d), axis="ragged").data).sum())(x)

    for first, second in zip(both(x), both(x)):
        np.testing.assert_array_equal(first, second)


def test_nan_stays_in_its_group(device):
    sizes = [5, 7, 0, 6]
    x = rows(sizes)
    x[6] = np.nan
    clean = x.copy()
    clean[6] = 0
    others = np.r_[0:5, 12:18]

    @jax.jit
    def all_of(x):
        nt = jf.as_nested(x, extents=jnp.asarray(sizes))
        softmax = jf.nested.softmax(nt, axis="ragged").data
        sums = [jf.nested.sum(nt), jf.nested.max(nt), jf.nested.mean(nt)]
        return (
            [softmax, jf.grouped_matmul(nt, W).data],
            sums,
            jax.grad(lambda w: jf.grouped_matmul(nt, w).data.sum())(W),
        )

    (by_row, by_group, dw), (row_truth, group_truth, dw_truth) = all_of(x), all_of(clean)
    for got, want in zip(by_row, row_truth):
        np.testing.assert_array_equal(got[others], want[others])
    for got, want in [*zip(by_group, group_truth), (dw, dw_truth)]:
        assert np.isnan(got[1]).any()
        np.testing.assert_array_equal(np.delete(got, 1, 0), np.delete(want, 1, 0))


@pytest.mark.parametrize("size", [1, 7, 127, 129])
def test_sizes_at_the_edges_of_tiles(device, size):
    draw = np.random.default_rng(size)
    sizes = [size, 0, 128, 1]
    x = draw.normal(size=(sum(sizes) + 3, size)).astype(np.float32)
    x[sum(sizes) :] = np.nan
    w = draw.normal(size=(4, size, 130 - size)).astype(np.float32)
    got = poisoned(lambda x, w: jf.grouped_matmul(jf.as_nested(x, extents=jnp.asarray(sizes)), w).data, x, w)
    want = np.concatenate([p @ m for p, m in zip(groups(x, sizes), w)])
    assert_close(got[: sum(sizes)], want, scale=4)
    np.testing.assert_array_equal(got[sum(sizes) :], 0)


def test_folds_and_softmax_of_no_rows(device):
    sizes = [0, 4, 0, 0]
    nt = jf.as_nested(rows(sizes), extents=sizes)
    empty = np.array(sizes) == 0
    folds = {jf.nested.sum: 0, jf.nested.mean: 0, jf.nested.max: -np.inf, jf.nested.min: np.inf}
    results, softmax = jax.jit(lambda nt: ([f(nt) for f in folds], jf.nested.softmax(nt, axis="ragged")))(nt)
    for got, want in zip(results, folds.values()):
        np.testing.assert_array_equal(got[empty], want)
    assert np.isfinite(softmax.data).all()
    assert_close(softmax[1].sum(0), np.ones(H))


def test_a_dispatch_that_runs_again_gives_the_same_groups(device):
    """Rematerialisation: capacity is static, so that only values are computed again."""
    x = np.random.default_rng(0).normal(size=(12, H)).astype(np.float32)
    logits = np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32)

    def layer(x, w):
        weights, experts = jax.lax.top_k(jax.nn.softmax(logits), 2)
        nt, state = jf.moe.dispatch(x, experts, num_experts=4)
        return jnp.square(jf.moe.combine(jf.grouped_matmul(nt, w), state, weights)).sum()

    plain, again = (jax.jit(jax.grad(f, (0, 1)))(x, W) for f in (layer, jax.checkpoint(layer)))
    for got, want in zip(again, plain):
        assert_close(got, want)
