"""Random arrays that are the same in every test, whatever ran before it."""

import jax.numpy as jnp
import numpy as np

RNG = np.random.default_rng(0)


def begin():
    """Start anew; conftest calls it before each test."""
    global RNG
    RNG = np.random.default_rng(0)


def array(*shape, dtype="float32", scale=4.0):
    """Return normal numbers, or booleans, as a JAX array; a second call gives others."""
    if dtype == "bool":
        return jnp.asarray(RNG.standard_normal(shape) > 0)
    return jnp.asarray(scale * RNG.standard_normal(shape), dtype)


def integers(low, high, shape, dtype="int32"):
    """Return integers from `low` to below `high`, within the dtype, as a JAX array."""
    return jnp.asarray(RNG.integers(max(low, jnp.iinfo(dtype).min), high, shape), dtype)


def numbers(*shape, dtype=np.float32):
    """Return normal numbers as a numpy array, of one seed for each shape."""
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def paired(cases, dtypes):
    """Return pairs for tests: every case with the first dtype and with one of the others, which take turns."""
    first, *others = dtypes
    return [pair for i, case in enumerate(cases) for pair in ((case, first), (case, others[i % len(others)]))]
