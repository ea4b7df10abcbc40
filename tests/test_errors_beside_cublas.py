"""Errors of grouped products against float64, beside those of cuBLAS for the same groups: at most 1.2 times them."""

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fuser as jf

EXTENTS = [0, 700, 3, 1100, 0, 245]  # 2048 rows, sizes that fit no tile
K, N = 1024, 776
MOST = 1.2


def passes(matmul):
    """forward, dlhs and drhs of (lhs, rhs, cotangent)."""
    return {
        "forward": lambda x, w, dy: matmul(x, w),
        "dlhs": lambda x, w, dy: jax.vjp(lambda x: matmul(x, w), x)[1](dy)[0],
        "drhs": lambda x, w, dy: jax.vjp(lambda w: matmul(x, w), w)[1](dy)[0],
    }


def dot_per_group(x, w):
    """What cuBLAS makes of it: a dense product for each group."""
    return jnp.concatenate([x[span] @ w[g] for g, span in ref.groups(EXTENTS, None, len(x))])


def truths(x, w, dy):
    return {
        "forward": ref.rows(x, w, EXTENTS),
        "dlhs": ref.rows(dy, w, EXTENTS, transpose_rhs=True),
        "drhs": ref.contraction(x, dy, EXTENTS),
    }


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_errors_are_those_of_cublas(dtype):
    try:
        gpu = jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("no cuda device on this machine")
    rng = np.random.default_rng(0)
    shapes = (sum(EXTENTS), K), (len(EXTENTS), K, N), (sum(EXTENTS), N)
    operands = [jax.device_put(jnp.asarray(rng.normal(size=s), dtype), gpu) for s in shapes]
    sizes = jax.device_put(jnp.asarray(EXTENTS, jnp.int32), gpu)
    ours, theirs = passes(lambda x, w: jf.ragged_dot(x, w, sizes)), passes(dot_per_group)
    found = {}
    for name, truth in truths(*operands).items():
        errors = []
        for run in (ours[name], theirs[name]):
            off = np.asarray(jax.jit(run)(*operands), np.float64) - truth
            errors.append((np.sqrt(np.mean(off**2)), np.abs(off).max()))
        found[name] = tuple(a / b for a, b in zip(*errors, strict=True))
    assert all(mean <= MOST and most <= MOST for mean, most in found.values()), found
