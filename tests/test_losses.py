"""Losses and their gradients: every array is read and written as often as the results need it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf


def mean_logsumexp(x):
    return jax.nn.logsumexp(x, -1).mean()


def smooth_l1(x, y, w):  # the mean of what counts
    d = jnp.abs(x - y)
    return (jnp.where(d < 1, 0.5 * d * d, d - 0.5) * w[:, None]).sum() / w.sum()


def masked_cross_entropy(x, labels):
    z, m = 30 * jnp.tanh(x / 30), (labels > 1).astype(x.dtype)
    return ((jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, labels[:, None], -1)[:, 0]) * m).sum() / m.sum()


def chosen_log_softmax(x, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(x, -1), labels[:, None], -1).mean()


def weighted_logistic(x, y, w):
    return -(w * y * jax.nn.log_sigmoid(x) + (1 - y) * jax.nn.log_sigmoid(-x)).mean()


def operands(f, rows, columns):
    """Return arguments of float64 and integers."""
    rng = np.random.default_rng(rows + columns)
    x = rng.standard_normal((rows, columns))
    if f is mean_logsumexp:
        return (x,)
    if f in (masked_cross_entropy, chosen_log_softmax):
        return x, rng.integers(0, columns, rows).astype(np.int32)
    if f is smooth_l1:
        return x, 2 * rng.standard_normal((rows, columns)), rng.uniform(0.5, 1, rows)
    return x, rng.random((rows, columns)) < 0.5, rng.uniform(0.5, 1.5, columns)


def shapes_of(f, rows, columns):
    given = operands(f, 1, columns)
    return [
        jax.ShapeDtypeStruct(
            tuple(rows if extent == 1 else extent for extent in a.shape),
            jnp.float32 if a.dtype == np.float64 else a.dtype,
        )
        for a in given
    ]


def moved(f, *shapes):
    """Return the kernels of a plan for CUDA, the bytes that they read and write, and those of operands and results."""
    kernels = [s for r in jf.explain(f, platform="cuda")(*shapes).regions for s in r.segments]
    arrays = [*shapes, *jax.tree.leaves(jax.eval_shape(f, *shapes))]
    return (
        len(kernels),
        sum(k.bytes_read + k.bytes_written for k in kernels),
        sum(a.size * a.dtype.itemsize for a in arrays),
    )


@pytest.mark.parametrize("rows", [819_199, 819_200, 4_000_001])
def test_mean_of_very_many_rows(rows):
    kernels, bytes_moved, least = moved(mean_logsumexp, *shapes_of(mean_logsumexp, rows, 32))
    assert kernels == 3
    assert bytes_moved < 1.07 * least


def test_gradient_waits_for_the_weights_alone():
    kernels, bytes_moved, least = moved(jax.value_and_grad(smooth_l1), *shapes_of(smooth_l1, 4_000_001, 4))
    assert kernels == 4
    assert bytes_moved < 1.1 * least  # the weights are read twice


def test_gradient_of_masked_rows_is_their_kernels():
    gradient = jax.value_and_grad(masked_cross_entropy)
    kernels, bytes_moved, least = moved(gradient, *shapes_of(masked_cross_entropy, 2048, 32000))
    assert kernels == 3
    assert bytes_moved < 1.01 * least


def test_weights_share_a_kernel_where_nothing_large_needs_them():
    assert moved(masked_cross_entropy, *shapes_of(masked_cross_entropy, 2048, 32000))[0] == 2


@pytest.mark.parametrize("f", [chosen_log_softmax, jax.value_and_grad(chosen_log_softmax)])
def test_what_is_taken_of_a_softmax_is_all_that_is_computed(f):
    kernels, bytes_moved, least = moved(f, *shapes_of(chosen_log_softmax, 2048, 32001))
    assert kernels < 4
    assert bytes_moved < 1.01 * least


TAKEN = {
    "a column of each row": lambda x, i: jnp.take_along_axis(jax.nn.log_softmax(x, -1), i[:, None], -1),
    "rows": lambda x, i: jnp.take(jax.nn.log_softmax(x, -1), i, 0),
    "columns": lambda x, i: jnp.take(jax.nn.log_softmax(x, -1), i, 1),
    "columns, turned": lambda x, i: jnp.take(jax.nn.softmax(x, -1), i, 1).T,
    "of one that is turned": lambda x, i: jnp.take(jax.nn.softmax(x, 0).T, i, 0),
    "part of them": lambda x, i: jnp.take(jax.nn.softmax(x, -1), i, 1)[1:, ::2],
    "of part": lambda x, i: jnp.take(jax.nn.softmax(x, -1)[::2], i, 1),
    "one place": lambda x, i: jax.nn.softmax(x, -1)[i[0], i[1]],
    "a window": lambda x, i: jax.lax.dynamic_slice(jax.nn.softmax(x, -1), (i[0], i[1]), (x.shape[0] // 2, 1)),
    "more than there is": lambda x, i: jnp.take(jax.nn.softmax(x, -1), jnp.tile(i, 3), 1),
    "and the whole": lambda x, i: (lambda y: (y, jnp.take(y, i, 1)))(jax.nn.softmax(x, -1)),
    "of what rows have in common": lambda x, i: jnp.take(x * x.sum(0), i, 1) + jnp.take(x - x.max(1)[:, None], i, 1),
}


@pytest.mark.parametrize("size", [(1, 1), (17, 3), (5, 33)])
@pytest.mark.parametrize("f", TAKEN.values(), ids=TAKEN)
def test_taken(f, size):
    rng = np.random.default_rng(7)
    x, indices = rng.standard_normal(size).astype(np.float32), rng.integers(-2, size[1], size[0]).astype(np.int32)
    indices = np.resize(indices, max(2, size[0]))
    got = jax.jit(jf.fuse(f))(jnp.asarray(x), jnp.asarray(indices))
    with jax.enable_x64():
        want = f(jnp.asarray(x, np.float64), jnp.asarray(indices))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(g, np.asarray(w))


@pytest.mark.parametrize("columns", [2048, 2049])
def test_gradient_of_rows_that_vectors_do_not_divide(columns):
    gradient = jax.value_and_grad(weighted_logistic)
    kernels, bytes_moved, least = moved(gradient, *shapes_of(weighted_logistic, 16384, columns))
    assert kernels == 2
    assert bytes_moved < 1.01 * least


@pytest.mark.parametrize("f", [mean_logsumexp, smooth_l1, masked_cross_entropy, chosen_log_softmax, weighted_logistic])
@pytest.mark.parametrize("size", [(1, 3), (17, 5), (65_536, 3), (70_001, 4)])
def test_values(f, size):
    args = operands(f, *size)
    if f is masked_cross_entropy:
        args[1][0] = 2
    single = [jnp.asarray(a, jnp.float32) if a.dtype == np.float64 else jnp.asarray(a) for a in args]
    value, gradient = jax.jit(jf.fuse(jax.value_and_grad(f)))(*single)
    with jax.enable_x64():
        want_value, want_gradient = jax.value_and_grad(f)(*(jnp.asarray(a) for a in args))
    assert_close(value, np.asarray(want_value))
    assert_close(gradient, np.asarray(want_gradient))


def test_nothing():
    assert np.isnan(jf.fuse(mean_logsumexp)(jnp.ones((0, 3))))
    assert jax.jit(jf.fuse(jax.grad(mean_logsumexp)))(jnp.ones((0, 3))).shape == (0, 3)
