"""Under `jax.debug_nans` a NaN is found in what we compute, and the operation that made it is named."""

import jax
import jax.numpy as jnp
import pytest

import jax_fuser as jf

X = jnp.ones((4, 8))
WITH_NAN = X.at[0, 0].set(jnp.nan)
SIZES = jnp.array([1, 3])
WEIGHTS = jnp.ones((2, 8, 4))

MADE = {
    "region": (jf.fuse(lambda x: jnp.log(x - 5)), X, "encountered in log"),
    "region in jit": (jax.jit(jf.fuse(lambda x: jnp.log(x - 5))), X, "encountered in log"),
    "gradient": (jax.grad(jf.fuse(lambda x: jnp.sum(jnp.sqrt(x * 0 - 1)))), X, "encountered in sqrt"),
    "product": (lambda x: jf.grouped_matmul(x, WEIGHTS, SIZES), WITH_NAN, "encountered in jax_fuser_grouped_matmul"),
    "in jit": (
        jax.jit(lambda x: jf.grouped_matmul(x, WEIGHTS, SIZES)),
        WITH_NAN,
        "encountered in jax_fuser_grouped_matmul",
    ),
    "fold": (
        lambda x: jf.nested.sum(jf.as_nested(x, extents=SIZES)),
        WITH_NAN,
        "encountered in jax_fuser_sum_groups",
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_is_found(name):
    f, x, message = MADE[name]
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=message):
        f(x)


def test_results_without_one_are_the_same():
    f = jf.fuse(lambda x: jax.nn.softmax(x) + 1)
    want = f(X)
    with jax.debug_nans(True):
        assert (f(X) == want).all()
        assert jf.grouped_matmul(X, WEIGHTS, SIZES).tolist() == [[8.0] * 4] * 4


@pytest.mark.parametrize("axis", ["group", "ragged"])
def test_padding_is_not_looked_at(axis):
    nt = jf.as_nested(jnp.array([1, 2, jnp.nan], jnp.float32), extents=[0, 2])
    with jax.debug_nans(True):
        assert jf.nested.concat([nt, nt], axis).data[:4].tolist() == [1, 2, 1, 2]


def test_infinities_are_found():
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"value \(inf\) encountered in div"):
        jf.fuse(lambda x: 1 / (x - 1))(X)
