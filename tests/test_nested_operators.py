"""Operators and `map` against a loop over groups in NumPy; padding neither read nor left in results."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

# Rows of storage, rows of each group, first rows where storage has gaps.
LAYOUTS = {
    "ends empty": (17, [0, 5, 1, 6, 0], None),
    "all empty": (7, [0, 0, 0], None),
    "all rows in one": (13, [0, 13, 0], None),
    "one group": (9, [7], None),
    "gaps": (19, [3, 0, 4, 1], [9, 2, 1, 17]),
}
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def group_rows(layout):
    _, extents, starts = LAYOUTS[layout]
    starts = np.cumsum([0, *extents[:-1]]) if starts is None else starts
    return [slice(s, s + n) for s, n in zip(starts, extents)]


def nested_of(layout, data):
    _, extents, starts = LAYOUTS[layout]
    starts = None if starts is None else jnp.array(starts, jnp.int32)
    return jf.NestedTensor(jnp.asarray(data), jnp.array(extents, jnp.int32), starts)


def make(layout, *dense, seed=0, dtype=np.float32):
    """Return a nested tensor with NaN padding and its rows in NumPy."""
    rng = np.random.default_rng(seed)
    data = np.full((LAYOUTS[layout][0], *dense), np.nan, dtype)
    for rows in group_rows(layout):
        data[rows] = rng.uniform(0.5, 2.0, data[rows].shape)
    return nested_of(layout, data), data


def by_group(layout, fn, data, *others):
    """Apply `fn` group by group; zero elsewhere. `others` are lists of one value per group."""
    out = None
    for g, rows in enumerate(group_rows(layout)):
        part = fn(data[rows], *(o[g] for o in others))
        out = np.zeros((data.shape[0], *part.shape[1:]), part.dtype) if out is None else out
        out[rows] = part
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands(layout):
    nt, x = make(layout, 3)
    other, y = make(layout, 3, seed=1)
    rng = np.random.default_rng(2)
    row, group = rng.uniform(0.5, 2, 3).astype("f"), rng.uniform(0.5, 2, (nt.num_groups, 1, 3)).astype("f")
    slices = group_rows(layout)
    operands = [
        (1.5, [1.5] * len(slices)),
        (np.float32(1.5), [1.5] * len(slices)),
        (jnp.float32(1.5), [1.5] * len(slices)),
        (row, [row] * len(slices)),
        (jnp.asarray(group), list(group)),
        (jnp.asarray(group[:, :, :1]), list(group[:, :, :1])),
        (other, [y[s] for s in slices]),
    ]
    for value, parts in operands:
        got = jax.jit(lambda nt, v: (nt * v, v / nt))(nt, value)
        for result, fn in zip(got, (lambda a, b: a * b, lambda a, b: b / a)):
            assert_close(result.data, by_group(layout, fn, x, parts))
            assert jf.nested.same_layout(result, nt) and result.gapped == nt.gapped


@pytest.mark.parametrize("op", OPERATORS + COMPARISONS, ids=lambda op: op.__name__)
def test_operators(op):
    layout = "ends empty"
    nt, x = make(layout, 2)
    other, y = make(layout, 2, seed=1)
    y_parts = [y[s] for s in group_rows(layout)]
    assert_close(op(nt, other).data, by_group(layout, op, x, y_parts))
    assert_close(op(nt, 1.25).data, by_group(layout, lambda a: op(a, np.float32(1.25)), x))
    assert_close(op(1.25, nt).data, by_group(layout, lambda a: op(np.float32(1.25), a), x))
    row = np.array([0.75, 1.25], np.float32)
    assert_close(op(row, nt).data, by_group(layout, lambda a: op(row, a), x))
    assert_close(op(jnp.asarray(row), nt).data, by_group(layout, lambda a: op(row, a), x))


def test_operators_of_integers_and_masks():
    x = np.random.default_rng(0).integers(1, 20, (9, 2)).astype(np.int32)
    nt, mask = jf.as_nested(x, extents=[4, 0, 3]), np.arange(9)[:, None] < 7
    for op in (operator.mod, operator.floordiv, operator.and_, operator.or_, operator.xor):
        np.testing.assert_array_equal(op(nt, nt * 0 + 3).data, np.where(mask, op(x, 3), 0))
        np.testing.assert_array_equal(op(29, nt).data, np.where(mask, op(29, x), 0))
    both = (nt > 3) & ~(nt > 12) | (nt == 1)
    np.testing.assert_array_equal(both.data, mask & ((x > 3) & ~(x > 12) | (x == 1)))


def test_matmul():
    nt, x = make("ends empty", 3)
    w = np.random.default_rng(1).normal(size=(5, 3, 4)).astype("f")
    assert_close((nt @ w).data, by_group("ends empty", np.matmul, x, w))


def test_unary():
    layout = "gaps"
    nt, x = make(layout, 2)
    assert_close((-nt).data, by_group(layout, np.negative, x))
    assert_close(abs(-nt).data, by_group(layout, np.abs, x))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "bool"])
def test_dtypes_follow_jax(dtype):
    nt = jf.as_nested(jnp.ones((4, 2), dtype), extents=[1, 2])
    for other in (2, 2.5, jnp.float32(1), np.float32(1), nt):
        assert (nt * other).dtype == (nt.data * getattr(other, "data", other) if other is nt else nt.data * other).dtype


def test_outer_dimensions():
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("f")
    w = np.random.default_rng(1).normal(size=(2, 2, 1, 3)).astype("f")
    shared = jf.as_nested(x, extents=[2, 3], ragged_dim=1)
    own = jf.as_nested(x, extents=[[2, 3], [0, 5]], ragged_dim=1)
    for nt, extents in ((shared, [[2, 3]] * 2), (own, own.extents.tolist())):
        for scale in (w, w[:1], w[0]):
            want = np.zeros_like(x)
            for d in range(2):
                at = 0
                for g, n in enumerate(extents[d]):
                    per_group = np.broadcast_to(scale, w.shape)[d, g]
                    want[d, at : at + n] = x[d, at : at + n] * per_group
                    at += n
            assert_close((nt * scale).data, want)


def test_no_dense_dimensions():
    nt = jf.as_nested(jnp.arange(1.0, 6.0), extents=[2, 0, 2])
    assert (nt * jnp.array([[2.0], [9.0], [3.0]])).data.tolist() == [2.0, 4.0, 9.0, 12.0, 0.0]
    assert (nt + jnp.array([1.0])).data.tolist() == [2.0, 3.0, 4.0, 5.0, 0.0]


def test_map():
    layout = "gaps"
    nt, x = make(layout, 4)
    got = jf.nested.map(lambda a, b: jnp.log(a) + b, nt, 2.0)
    assert_close(got.data, by_group(layout, lambda a: np.log(a) + 2, x))
    left, right = jf.nested.map(lambda a: jnp.split(a, 2, axis=-1), nt)
    assert_close(left.data, by_group(layout, lambda a: a[:, :2], x))
    assert right.shape == (4, "ragged", 2)
    assert jf.nested.map(lambda a: a.sum(-1), nt).shape == (4, "ragged")


@pytest.mark.parametrize("layout", ["ends empty", "all empty", "gaps"])
def test_gradients_of_padding_are_zero(layout):
    """NaN and infinite derivatives in the padding reach no gradient."""
    nt, x = make(layout, 3)
    group = np.random.default_rng(1).uniform(0.5, 2, (nt.num_groups, 1, 3)).astype("f")
    row = np.array([1.0, 2.0, 3.0], "f")

    def loss(data, group, row):
        y = jf.nested.map(jnp.log, nt.replace(data=data)) * group / row
        return jnp.sum((y * y).data)

    got = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(nt.data, jnp.asarray(group), jnp.asarray(row))
    want_x, want_group, want_row = np.zeros_like(x), np.zeros_like(group), np.zeros_like(row)
    for g, rows in enumerate(group_rows(layout)):
        part = x[rows].astype(np.float64)
        y = np.log(part) * group[g] / row
        want_x[rows] = 2 * y * group[g] / row / part
        want_group[g, 0] = (2 * y * np.log(part) / row).sum(0)
        want_row += (-2 * y * y / row).sum(0)
    for have, want in zip(got, (want_x, want_group, want_row)):
        assert_close(have, want)


def test_nan_stays_in_its_group():
    nt = jf.as_nested(jnp.ones((6, 2)), extents=[2, 0, 3])
    scale = jnp.array([[[jnp.nan]], [[jnp.nan]], [[2.0]]])

    def loss(data, scale):
        return jnp.sum((nt.replace(data=data) * scale).data[2:])

    assert (nt * scale).data[2:].tolist() == [[2.0] * 2] * 3 + [[0.0] * 2]
    dx, dscale = jax.grad(loss, argnums=(0, 1))(nt.data, scale)
    assert dx[2:].tolist() == [[2.0] * 2] * 3 + [[0.0] * 2]
    assert dscale[1:].reshape(-1).tolist() == [0.0, 6.0]


def test_comparison_with_something_else():
    nt = jf.as_nested(jnp.ones(2), extents=[2])
    assert (nt == None) is False  # noqa: E711
    with pytest.raises(TypeError):
        nt + "a"


def test_allclose():
    nt, _ = make("ends empty", 3)
    assert jf.nested.allclose(nt, nt.replace(data=jnp.nan_to_num(nt.data)))
    assert not jf.nested.allclose(nt, nt + 0.1)
    assert not jf.nested.allclose(nt, nt.replace(extents=jnp.array([5, 0, 1, 6, 0], jnp.int32)))
    assert not jf.nested.allclose(nt, jf.nested.map(lambda a: a[:, :2], nt))
    longer = jf.as_nested(jnp.concatenate([nt.data, nt.data]), extents=nt.extents)
    assert jf.nested.allclose(nt, longer) and jf.nested.allclose(longer, nt)
