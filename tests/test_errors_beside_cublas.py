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


OF_BATCH = jax.lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), [0], [])


def dot_per_group(x, w, b, sizes):
    """What cuBLAS makes of it: a dense product for each group."""
    return jnp.concatenate([x[span] @ w[g] for g, span in ref.groups(EXTENTS, None, len(x))])


def gelu_per_group(x, w, b, sizes):
    return jnp.concatenate([jax.nn.gelu(x[span] @ w[g] + b[g]) for g, span in ref.groups(EXTENTS, None, len(x))])


def rows(x, w, b, dy):
    sums = ref.contraction(x, dy, EXTENTS)
    return ref.rows(x, w, EXTENTS), ref.rows(dy, w, EXTENTS, transpose_rhs=True), sums


def batches(x, w, b, dy):
    x, w, dy = (np.asarray(a, np.float64) for a in (x, w, dy))
    return x @ w, dy @ w.swapaxes(1, 2), x.swapaxes(1, 2) @ dy


def rows_and_gelu(x, w, b, dy):
    """By hand, of the formula of `jax.nn.gelu`."""
    b, dy = (np.asarray(a, np.float64) for a in (b, dy))
    y = ref.rows(x, w, EXTENTS) + np.repeat(b, EXTENTS, axis=0)
    factor = np.sqrt(2 / np.pi)
    t = np.tanh(factor * (y + 0.044715 * y**3))
    slope = (1 + t) / 2 + y / 2 * (1 - t**2) * factor * (1 + 3 * 0.044715 * y**2)
    return y * (1 + t) / 2, *rows(x, w, b, dy * slope)[1:]


def shapes_of_rows(k, n):
    return (sum(EXTENTS), k), (len(EXTENTS), k, n), (len(EXTENTS), n), (sum(EXTENTS), n)


def shapes_of_batches(k, n):
    return (24, 136, k), (24, k, n), (1,), (24, 136, n)


# Our product and theirs, the truth of out, dlhs and drhs, and shapes of lhs, rhs, bias and cotangent.
CASES = {
    "rows": (lambda x, w, b, sizes: jf.ragged_dot(x, w, sizes), dot_per_group, rows, shapes_of_rows),
    "batch": (
        lambda x, w, b, sizes: jf.ragged_dot_general(x, w, sizes, OF_BATCH),
        lambda x, w, b, sizes: x @ w,
        batches,
        shapes_of_batches,
    ),
    "bias and gelu": (
        lambda x, w, b, sizes: jf.grouped_matmul(x, w, sizes, bias=b, activation="gelu"),
        gelu_per_group,
        rows_and_gelu,
        shapes_of_rows,
    ),
}


def results(product):
    """out, dlhs and drhs of (lhs, rhs, bias, cotangent, sizes)."""

    @jax.jit
    def run(x, w, b, dy, sizes):
        out, pull = jax.vjp(lambda x, w: product(x, w, b, sizes), x, w)
        return out, *pull(dy)

    return run


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_errors_are_those_of_cublas(case, dtype):
    try:
        gpu = jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("no cuda device on this machine")
    compare(case, dtype, gpu, K, N)


@pytest.mark.parametrize("case", CASES)
def test_truths_are_those_of_products(case):
    """In float64 both products have next to no error, on a CPU."""
    with jax.enable_x64(True):
        compare(case, "float64", jax.devices("cpu")[0], 24, 16, least=1e-12)


def compare(case, dtype, device, k, n, least=0.0):
    """Mean and largest errors of both products; where they are smaller than `least` they are not told apart."""
    ours, theirs, truth, shapes = CASES[case]
    rng = np.random.default_rng(0)
    size = 0.25 if "gelu" in case else 1  # of larger sums XLA's derivative is NaN in float16
    operands = [jax.device_put(jnp.asarray(rng.normal(size=s) * size, dtype), device) for s in shapes(k, n)]
    extents = EXTENTS if case != "batch" else [5, 0, 19]
    sizes = jax.device_put(jnp.asarray(extents, jnp.int32), device)
    found = {}
    wanted, made = truth(*operands), [results(product)(*operands, sizes) for product in (ours, theirs)]
    for name, want, *both in zip(("forward", "dlhs", "drhs"), wanted, *made, strict=True):
        errors = []
        for one in both:
            off = np.abs(np.asarray(one, np.float64) - want)
            errors.append([max(e, least * np.abs(want).max()) for e in (np.sqrt(np.mean(off**2)), off.max())])
        found[name] = tuple(a / b for a, b in zip(*errors, strict=True))
    assert all(mean <= MOST and most <= MOST for mean, most in found.values()), found
