"""Constructors: layouts, round trips, conversion of index arrays."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fuser as jf

# Rows of storage and rows of each group.
LAYOUTS = {
    "middle empty": (325, [127, 0, 198]),
    "first empty": (9, [0, 4, 5]),
    "last empty": (9, [4, 5, 0]),
    "several empty": (9, [0, 0, 4, 0, 0, 5, 0]),
    "all empty": (7, [0, 0, 0]),
    "all rows in one": (131, [0, 131, 0, 0]),
    "one group": (13, [13]),
    "below capacity": (17, [3, 0, 7]),
    "no rows": (0, [0, 0]),
    "no groups": (5, []),
    "odd": (129, [1, 127, 0, 1]),
}


def rows(count, *dense, dtype=jnp.float32):
    values = np.arange(count * int(np.prod(dense)), dtype=np.float64).reshape(count, *dense)
    return jnp.asarray(values + 1, dtype)


def test_rfc_example():
    x = rows(325, 512)
    nt = jf.as_nested(x, [0, 127, 127, 325])
    assert nt.shape == (3, "ragged", 512)
    assert repr(nt.shape) == "(3, ragged, 512)"
    assert nt.extents.tolist() == [127, 0, 198]
    assert nt.extents.dtype == jnp.int32
    assert nt.offsets.tolist() == [0, 127, 127, 325]
    assert nt.starts.tolist() == [0, 127, 127]
    assert (nt.num_groups, nt.capacity, int(nt.total), nt.ragged_dim, nt.dtype) == (3, 325, 325, 0, x.dtype)
    assert jf.as_flattened(nt) is x
    assert jf.nested.combine(jf.nested.partition(x, 0, [0, 127, 127, 325])) is x


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(name):
    capacity, extents = LAYOUTS[name]
    x = rows(capacity, 3)
    offsets = np.concatenate([[0], np.cumsum(extents)]).astype(np.int64)
    total = offsets[-1]
    ids = np.full(capacity, len(extents))
    ids[:total] = np.repeat(np.arange(len(extents)), np.asarray(extents, int))
    for nt in (
        jf.as_nested(x, extents=extents),
        jf.as_nested(x, offsets),
        jf.as_nested(x, jnp.asarray(offsets)),
        jf.nested.from_segment_ids(x, ids, len(extents)),
    ):
        assert nt.shape == (len(extents), "ragged", 3)
        assert nt.extents.tolist() == extents and nt.extents.dtype == jnp.int32
        assert nt.offsets.tolist() == offsets.tolist()
        assert nt.row_ids().tolist() == ids.tolist()
        assert nt.row_mask().tolist() == (ids < len(extents)).tolist()
        assert int(nt.total) == total
        np.testing.assert_array_equal(jf.as_flattened(nt), x)
    assert len(list(nt)) == len(nt) == len(extents)
    for group, (start, end) in zip(nt, itertools.pairwise(offsets)):
        np.testing.assert_array_equal(group, x[start:end])


def test_outer_dimensions():
    x = rows(2 * 10 * 4, 1).reshape(2, 10, 4)
    shared = jf.as_nested(x, extents=[3, 0, 5], ragged_dim=1)
    own = jf.as_nested(x, [[0, 3, 3, 8], [0, 0, 4, 10]], ragged_dim=-2)
    assert shared.shape == own.shape == (2, 3, "ragged", 4)
    assert own.extents.tolist() == [[3, 0, 5], [0, 4, 6]]
    assert own.total.tolist() == [8, 10]
    assert own.row_mask().sum(axis=1).tolist() == [8, 10]
    assert own.row_ids()[0].tolist() == [0, 0, 0, 2, 2, 2, 2, 2, 3, 3]
    assert shared.row_mask().shape == (10,)
    assert own[1].shape == shared[1].shape == (3, "ragged", 4)
    np.testing.assert_array_equal(own[1, 2], x[1, 4:])
    np.testing.assert_array_equal(own[-1][1, 0], x[1, 0])
    np.testing.assert_array_equal(shared[1][2], x[1, 3:8])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_gapped_storage(order):
    extents = np.array([3, 0, 4, 1], np.int32)
    starts = np.zeros(4, np.int32)
    starts[order] = [1, 5, 5, 10] if order == [0, 1, 2, 3] else [1, 6, 9, 9]
    x = rows(14, 2)
    nt = jf.NestedTensor(x, jnp.asarray(extents), jnp.asarray(starts))
    assert nt.gapped and nt.starts.tolist() == starts.tolist()
    ids, flat = np.full(14, 4), np.zeros((14, 2), np.float32)
    at = 0
    for g, (start, n) in enumerate(zip(starts, extents)):
        ids[start : start + n] = g
        flat[at : at + n] = x[start : start + n]
        at += n
    assert nt.row_ids().tolist() == ids.tolist()
    assert nt.row_mask().tolist() == (ids < 4).tolist()
    np.testing.assert_array_equal(jf.as_flattened(nt), flat)
    np.testing.assert_array_equal(nt[2], x[starts[2] : starts[2] + 4])
    contiguous = jf.as_nested(jnp.asarray(flat), extents=extents)
    assert jf.nested.allclose(nt, contiguous)
    assert not jf.nested.allclose(nt + 1, contiguous)
    np.testing.assert_array_equal(jf.nested.to_padded(nt), jf.nested.to_padded(contiguous))
    # The gradient of the compaction puts rows back.
    weights = rows(14, 2)
    got = jax.grad(lambda d: jnp.vdot(jf.as_flattened(nt.replace(data=d)), weights))(x)
    want = np.zeros((14, 2), np.float32)
    want[ids < 4] = np.asarray(weights)[np.argsort(ids, kind="stable").argsort()[ids < 4]]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_index_dtypes(dtype):
    nt = jf.as_nested(rows(6, 2), np.array([0, 2, 6], dtype))
    assert nt.extents.dtype == jnp.int32 and nt.extents.tolist() == [2, 4]


def test_extents_array_is_kept():
    sizes = jnp.array([2, 4], jnp.int32)
    assert jf.as_nested(rows(6, 2), extents=sizes).extents is sizes


def test_like_takes_the_layout():
    nt = jf.as_nested(rows(6, 2), extents=[2, 4])
    other = jf.as_nested(rows(6), like=nt)
    assert other.extents is nt.extents and other.shape == (2, "ragged")


def test_validate_false_skips_values():
    assert jf.as_nested(rows(6, 2), [0, 9], validate=False).extents.tolist() == [9]


def test_from_list():
    parts = [rows(2, 3), rows(0, 3), rows(5, 3)]
    nt = jf.nested.from_list(parts, capacity=9)
    assert nt.extents.tolist() == [2, 0, 5] and nt.capacity == 9
    for part, group in zip(parts, nt):
        np.testing.assert_array_equal(part, group)
    assert jf.as_flattened(nt)[7:].tolist() == [[0.0] * 3] * 2


def test_padded_round_trip():
    capacity, extents = LAYOUTS["below capacity"]
    x = rows(capacity, 2).at[10:].set(jnp.nan)
    padded = jf.nested.to_padded(jf.as_nested(x, extents=extents), max_extent=8, fill=-1)
    assert padded.shape == (3, 8, 2)
    for g, n in enumerate(extents):
        start = sum(extents[:g])
        np.testing.assert_array_equal(padded[g, :n], x[start : start + n])
        assert (padded[g, n:] == -1).all()
    back = jf.nested.from_padded(padded, extents)
    np.testing.assert_array_equal(back.data[:10], x[:10])
    assert back.capacity == 24 and (back.data[10:] == 0).all()


def test_to_padded_with_own_extents():
    x = rows(2 * 10, 4).reshape(2, 10, 4)
    padded = jf.nested.to_padded(jf.as_nested(x, extents=[[3, 0, 5], [0, 4, 6]], ragged_dim=1))
    assert padded.shape == (2, 3, 6, 4)
    np.testing.assert_array_equal(padded[1, 2], x[1, 4:])
    np.testing.assert_array_equal(padded[0, 2, :5], x[0, 3:8])
    assert (padded[0, 1] == 0).all()


def test_sort_by_group():
    ids = np.array([2, 0, 5, 2, -1, 0, 3])
    x = rows(7, 2)
    nt, perm = jf.nested.sort_by_group(x, ids, 4)
    assert nt.extents.tolist() == [2, 0, 2, 1] and nt.capacity == 7
    assert perm.tolist() == [1, 5, 0, 3, 6, 2, 4] and perm.dtype == jnp.int32
    np.testing.assert_array_equal(nt.data[:5], np.asarray(x)[[1, 5, 0, 3, 6]])
    assert (nt.data[5:] == 0).all()


def test_sort_by_group_of_many_elements():
    """By a kernel of ours, forward and backward."""
    t, n = 1100, 1000
    x, w = np.random.default_rng(0).normal(size=(2, t, n)).astype(np.float32)
    ids = np.random.default_rng(1).integers(-1, 6, t)

    def weighted(x):
        nt, _ = jf.nested.sort_by_group(x, ids, 5)
        return jnp.vdot(nt.data, w), nt

    grad, nt = jax.jit(jax.grad(weighted, has_aux=True))(x)
    order = np.argsort(np.where((ids >= 0) & (ids < 5), ids, 5), kind="stable")
    total = int(nt.extents.sum())
    want, back = np.zeros_like(x), np.zeros_like(x)
    want[:total], back[order[:total]] = x[order[:total]], w[:total]
    np.testing.assert_array_equal(nt.data, want)
    np.testing.assert_array_equal(grad, back)


def test_sort_by_group_with_copies():
    ids = np.array([[1, 0], [2, 1], [9, 0]])
    x = rows(3, 2)

    def weighted(x):
        nt, perm = jf.nested.sort_by_group(x, ids, 3)
        return jnp.vdot(nt.data, rows(6, 2)), (nt, perm)

    grad, (nt, perm) = jax.grad(weighted, has_aux=True)(x)
    assert perm.tolist() == [1, 5, 0, 3, 2, 4]
    np.testing.assert_array_equal(nt.data[:5], np.asarray(x)[[0, 2, 0, 1, 1]])
    w = np.asarray(rows(6, 2))
    np.testing.assert_array_equal(grad, [w[0] + w[2], w[3] + w[4], w[1]])


def test_sort_by_group_has_no_scatter_of_rows():
    text = str(
        jax.make_jaxpr(jax.grad(lambda x: jf.nested.sort_by_group(x, np.arange(8) % 3, 3)[0].data.sum()))(rows(8, 2))
    )
    assert "scatter-add" not in text


def test_select():
    capacity, extents = LAYOUTS["below capacity"]
    x = rows(capacity, 2).at[10:].set(jnp.nan)
    nt = jf.as_nested(x, extents=extents)
    np.testing.assert_array_equal(jf.nested.select(nt, 2), x[3:10])
    np.testing.assert_array_equal(jf.nested.select(nt, -1), nt[-1])
    got = jax.jit(lambda nt, i: jf.nested.select(nt, i, max_extent=8))(nt, jnp.int32(0))
    np.testing.assert_array_equal(got[:3], x[:3])
    assert (got[3:] == 0).all()
    assert jf.nested.select(nt, 1).shape == (0, 2)


def test_concat():
    a = jf.as_nested(rows(6, 2), extents=[1, 3])
    b = jf.as_nested(rows(5, 2) * 10, extents=[0, 5, 0])
    both = jf.nested.concat([a, b], axis=0)
    assert both.extents.tolist() == [1, 3, 0, 5, 0] and both.capacity == 11 and not both.gapped
    for got, want in zip(both, [*a, *b]):
        np.testing.assert_array_equal(got, want)
    wide = jf.nested.concat([a, a * 2], axis=2)
    np.testing.assert_array_equal(wide[1], jnp.concatenate([a[1], 2 * a[1]], axis=1))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("count", "columns"), [(1, (1,)), (3, ()), (5, (3, 17))])
def test_concat_of_several(count, columns, axis):
    """Rows and their derivatives, of few arrays from where they are and of more put together first; some are empty."""
    rng = np.random.default_rng(count)
    extents = [[1, 0, 3], [0, 0, 0], [2, 1, 0], [0, 4, 2], [1, 1, 1]][:count]
    data = [np.float32(rng.normal(size=(n, *columns))) for n in (7, 0, 3, 6, 5)][:count]

    def join(data):
        return jf.nested.concat([jf.as_nested(x, extents=e) for x, e in zip(data, extents)], axis).data

    groups = [np.split(x[: sum(e)], np.cumsum(e)[:-1]) for x, e in zip(data, extents)]
    want = np.concatenate([part for several in (zip(*groups) if axis else groups) for part in several])
    got, gradient = join(data), jax.grad(lambda data: jnp.sum(join(data) ** 2))(data)
    np.testing.assert_array_equal(got[: len(want)], want)
    assert (got[len(want) :] == 0).all()
    for g, x, e in zip(gradient, data, extents):
        np.testing.assert_array_equal(g[: sum(e)], 2 * x[: sum(e)])
        assert (g[sum(e) :] == 0).all()


def test_concat_promotes_and_batches():
    a, b = rows(4, 2).astype("bfloat16"), rows(4, 2) / 3
    both = jf.nested.concat([jf.as_nested(x, extents=[1, 2]) for x in (a, b)], "ragged")
    assert both.dtype == jnp.float32
    want = np.concatenate([a[:1], b[:1], a[1:3], b[1:3], np.zeros((2, 2))])
    np.testing.assert_array_equal(both.data, want)
    outer = [jf.as_nested(jnp.stack([x, 2 * x]), extents=[1, 2], ragged_dim=1) for x in (a, b)]
    np.testing.assert_array_equal(jf.nested.concat(outer, "ragged").data, [want, 2 * want])


def test_derivatives_of_padding():
    """Rows that are cut off have none; what fills has that of all places that it fills, of all outer indices."""
    x, extents = rows(2 * 10, 4).reshape(2, 10, 4), jnp.array([[3, 0, 5], [0, 4, 6]])

    def square(x, fill, extents):
        return jnp.sum(jf.nested.to_padded(jf.as_nested(x, extents=extents, ragged_dim=1), 4, fill) ** 2)

    gradient, of_fill = jax.jit(jax.grad(square, (0, 1)))(x, 3.0, extents)
    kept = np.array([[1, 1, 1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]])
    np.testing.assert_array_equal(gradient, 2 * kept[..., None] * x)
    assert of_fill == 2 * 3 * 4 * (1 + 4 + 0 + 4 + 0 + 0)


def test_a_batch_of_fills():
    nt, fills = jf.as_nested(rows(10, 4), extents=[3, 0, 5]), jnp.arange(3.0)
    got = jax.vmap(lambda fill: jf.nested.to_padded(nt, 6, fill))(fills)
    np.testing.assert_array_equal(got, [jf.nested.to_padded(nt, 6, float(fill)) for fill in fills])


@pytest.mark.parametrize("name", ["to_padded", "concat"])
def test_rows_are_moved_once(name):
    """On CPUs nothing of the size of the rows is kept between."""

    def f(x, y, extents):
        a, b = (jf.as_nested(z, extents=extents) for z in (x, y))
        return jf.nested.to_padded(a, 300, fill=-1) if name == "to_padded" else jf.nested.concat([a, b], 1).data

    x = jnp.ones((400, 128))
    memory = jax.jit(f).lower(x, x, jnp.array([100, 0, 300])).compile().memory_analysis()
    assert memory.temp_size_in_bytes < x.nbytes / 4


def test_stats():
    s = jf.nested.stats(jf.as_nested(rows(8, 2), extents=[4, 0, 2]))
    assert [float(v) for v in s] == [6.0, 4.0, 2.0, 2.0, 1.0, 0.25]
    none = jax.jit(jf.nested.stats)(jf.as_nested(rows(0, 2), extents=[]))
    assert [float(v) for v in none] == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_ids_that_are_no_group_drop_their_rows():
    """Concrete ones, too: they are how one says so."""
    for num in (2, jnp.int32(2), -7):
        sorted_rows, perm = jf.nested.sort_by_group(jnp.array([1.0, 2.0, 3.0]), [1, -1, num], 2)
        assert sorted_rows.data.tolist() == [1, 0, 0] and sorted_rows.extents.tolist() == [0, 1]
        assert perm.tolist() == [0, 1, 2]
