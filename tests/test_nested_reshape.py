"""Merging, splitting and aligning groups: the ragged part of the RFC's second example."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fuser as jf


def test_rfc_example_2():
    tokens = np.random.default_rng(0).normal(size=(2, 100, 8)).astype("f")
    offsets = [[0, 30, 50, 90, 100], [0, 25, 40, 65, 100]]
    nt = jf.nested.partition(tokens, 1, offsets)
    assert nt.shape == (2, 4, "ragged", 8)
    merged = jf.nested.merge(nt, 0, 2)
    assert merged.extents.tolist() == [55, 35, 65, 45] and merged.shape == (4, "ragged", 8)
    for e, group in enumerate(merged):
        np.testing.assert_array_equal(
            group, np.concatenate([tokens[d, offsets[d][e] : offsets[d][e + 1]] for d in range(2)])
        )
    split = jf.nested.split(merged, 0, num=2)
    assert split.extents.tolist() == [[55, 35], [65, 45]] and split.shape == (2, 2, "ragged", 8)
    for e, group in enumerate(merged):
        np.testing.assert_array_equal(split[e // 2, e % 2], group)
    assert jf.nested.split(merged, 0, factor=1).shape == (4, 1, "ragged", 8)
    tight = jax.jit(lambda nt: jf.nested.split(nt, 0, num=2, capacity=110))(merged)
    assert tight.capacity == 110 and jf.nested.allclose(tight[1], split[1])


def test_merge_outer_under_transforms():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(3, 2, 6, 2)).astype("f")
    data[:, :, 5:] = np.nan
    extents = rng.integers(0, 3, size=(3, 2, 2)).astype(np.int32)
    nt = jf.as_nested(data, extents=extents, ragged_dim=2)
    starts = np.asarray(nt.starts)
    for axis in (0, 1):
        merged = jf.nested.merge(nt, axis, 3)
        assert merged.extents.tolist() == extents.sum(axis).tolist()
        for other in range(merged.data.shape[0]):
            at = [(d, other) if axis == 0 else (other, d) for d in range(data.shape[axis])]
            want = [data[i][starts[i][g] : starts[i][g] + extents[i][g]] for g in range(2) for i in at]
            want = np.concatenate(want)
            np.testing.assert_array_equal(merged.data[other, : len(want)], want)
            assert (merged.data[other, len(want) :] == 0).all()
    batched = jax.jit(jax.vmap(lambda nt: jf.nested.merge(nt, 0, 2)))(nt)
    np.testing.assert_array_equal(batched.data, merged.data)

    def loss(d):
        y = jf.nested.merge(nt.replace(data=d), 0, 3)
        return jnp.sum((y * y).data)

    grad = jax.jit(jax.grad(loss))(nt.data)
    np.testing.assert_allclose(grad, np.where(nt.row_mask()[..., None], 2 * data, 0), rtol=1e-6)


def test_split_that_cuts_rows():
    """Extents are those of the rows that are left."""
    nt = jf.as_nested(jnp.arange(200.0), extents=[55, 35, 65, 45])
    made = jax.jit(lambda nt: jf.nested.split(nt, 0, num=2, capacity=100))(nt)
    assert made.extents.tolist() == [[55, 35], [65, 35]] and made.capacity == 100
    np.testing.assert_allclose(jf.nested.mean(made)[1], [90 + 32, 155 + 17])


def test_shared_extents_merge_with_an_outer_dimension():
    x = jnp.arange(2 * 6 * 2.0).reshape(2, 6, 2)
    merged = jf.nested.merge(jf.as_nested(x, extents=[2, 3], ragged_dim=1), 0, 2)
    assert merged.extents.tolist() == [4, 6]
    np.testing.assert_array_equal(merged[0], np.concatenate([x[0, :2], x[1, :2]]))
    np.testing.assert_array_equal(merged[1], np.concatenate([x[0, 2:5], x[1, 2:5]]))


@pytest.mark.parametrize("extents", [[2, 3, 0, 1], [[2, 3, 0, 1], [0, 0, 0, 0]]])
def test_split_of_groups_behind_an_outer_dimension(extents):
    x = jnp.arange(2 * 6 * 2.0).reshape(2, 6, 2)
    nt = jf.as_nested(x, extents=extents, ragged_dim=1)
    made = jax.jit(lambda nt: jf.nested.split(nt, "group", num=2))(nt)
    assert made.shape == (2, 2, 2, "ragged", 2)
    for d in range(2):
        for g in range(4):
            np.testing.assert_array_equal(made[d, g // 2, g % 2], nt[d, g])
    grad = jax.grad(lambda x: jf.nested.sum(jf.nested.split(nt.replace(data=x), 1, factor=2), -1).data.sum())(x)
    np.testing.assert_array_equal(grad, np.broadcast_to(nt.row_mask()[..., None], x.shape))


def test_split_of_no_groups():
    nt = jf.as_nested(jnp.ones((3, 2)), extents=[])
    for made in (jf.nested.split(nt, 0, factor=2), jf.nested.split(nt, 0, num=2)):
        assert made.num_groups in (0, 2) and made.extents.size == 0


def test_merge_with_a_dense_dimension():
    x = jnp.arange(5 * 4 * 3.0).reshape(5, 4, 3)
    nt = jf.as_nested(x, extents=[3, 0, 2])
    merged = jf.nested.merge(nt, 1, 2)
    assert merged.extents.tolist() == [12, 0, 8] and merged.shape == (3, "ragged", 3)
    np.testing.assert_array_equal(merged[2], x[3:].reshape(8, 3))
    gapped = jf.nested.merge(jf.nested.align(nt, 4), 1, 2)
    np.testing.assert_array_equal(gapped[2], merged[2])
    assert jf.nested.merge(nt, 0, 1) is x


@pytest.mark.parametrize("extents", [[3, 5, 2], [0, 0, 0], [16, 0, 0]])
def test_align(extents):
    x = jnp.arange(32.0).reshape(16, 2).at[sum(extents) :].set(jnp.nan)
    nt = jf.as_nested(x, extents=extents)
    for aligned in (jf.nested.align(nt, 4), jf.nested.split(nt, 1, factor=4)):
        assert aligned.gapped and aligned.capacity == 28 and aligned.extents.tolist() == extents
        assert (aligned.starts % 4 == 0).all()
        assert (aligned.data[~aligned.row_mask()] == 0).all()
        assert jf.nested.allclose(aligned, nt)
        for a, b in zip(aligned, nt):
            np.testing.assert_array_equal(a, b)
    grad = jax.grad(lambda d: jnp.sum(jf.nested.align(nt.replace(data=d), 4).data))(x)
    np.testing.assert_array_equal(grad, np.broadcast_to(nt.row_mask()[:, None], (16, 2)).astype("f"))


six = jf.as_nested(jnp.ones((12, 2, 3)), extents=[1, 2, 3, 0, 0, 1])


@pytest.mark.parametrize(
    "error, message, call",
    [
        (
            ValueError,
            "merge: dims (0, 2) are neither (component, ragged), (ragged, next regular) nor "
            "(outer extents dim, ragged)",
            lambda: jf.nested.merge(six, 0, 2),
        ),
        (ValueError, "split: 6 experts not divisible by 4", lambda: jf.nested.split(six, 0, factor=4)),
        (ValueError, "split: 6 experts not divisible by 4", lambda: jf.nested.split(six, 0, num=4)),
        (TypeError, "split: pass exactly one of factor= or num=", lambda: jf.nested.split(six, 0)),
        (
            ValueError,
            f"split: axis 2 is neither the group dimension, 0, nor the ragged one, 1, of {six!r}; reshape other "
            f"dimensions with nested.map",
            lambda: jf.nested.split(six, 2, factor=1),
        ),
        (ValueError, "split: axis 4 is out of range for 4 dimensions", lambda: jf.nested.split(six, 4, factor=1)),
        (
            ValueError,
            "split: the ragged dimension takes factor=, the multiple to pad to, and no capacity=",
            lambda: jf.nested.split(six, 1, factor=2, capacity=40),
        ),
        (ValueError, "align: multiple must be at least 1, got 0", lambda: jf.nested.align(six, 0)),
    ],
)
def test_messages(error, message, call):
    with pytest.raises(error, match="^" + re.escape(message) + "$"):
        call()
