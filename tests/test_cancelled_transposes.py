"""CUDA: transposes that undo each other are left out, and rows between them become columns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import numbers as array
from test_ragged_plans import interpreted
from tolerances import assert_close

import jax_fuser as jf


def normed(m):
    return m / jnp.sqrt((m * m).sum() + 1e-3)


CASES = {  # and how many kernels it takes
    "softmax of columns": (jax.vmap(jax.nn.softmax, in_axes=1, out_axes=1), (9, 20), 1),
    "softmax of the middle": (jax.vmap(jax.nn.softmax, in_axes=2, out_axes=2), (3, 9, 20), 1),
    "norms of slices": (jax.vmap(normed, in_axes=1, out_axes=1), (3, 9, 20), 1),
    "broadcasts": (lambda x: (jnp.tanh(x.T + x[:, 0]) * x[0][:, None]).T, (9, 20), 1),
    "three axes": (lambda x: (x.transpose(2, 0, 1) * x[:, :, 0]).transpose(1, 2, 0) + 1, (3, 5, 7), 1),
    "small ones turn": (lambda x: (x.transpose(2, 1, 0) * x[:, :, 0].T).transpose(2, 1, 0), (3, 5, 7), 1),
    "sums": (lambda x: jnp.tanh(x.T).sum(1), (9, 20), 1),
    "what is left": (lambda x: (x.transpose(2, 0, 1) * 2).sum(2), (3, 5, 7), None),
    "scans": (lambda x: jnp.cumsum(x.T, 1).T, (9, 20), 1),
    "both orders": (lambda x: ((x.T * 2).T + 1, x.T * 2), (9, 20), None),
    "the same twice": (lambda x: ((x.T + 1).T, x + 1), (9, 20), None),
    "square": (lambda x: ((x.T + x).T * x, x.T), (17, 17), None),
}


@pytest.mark.parametrize("case", CASES)
def test_values(case):
    f, shape, kernels = CASES[case]
    x = array(*shape)
    fusion = jf.ir.trace(f, x)
    if kernels:
        text = jf.fuse(f).lower(x).as_text("segments", platform="cuda")
        assert text.count("\nfusion ") == kernels and "transpose" not in text
    for got, want in zip(interpreted(fusion, x), jax.tree.leaves(f(jnp.asarray(x))), strict=True):
        assert_close(got, np.asarray(want))


@pytest.mark.parametrize("f", [lambda x: x.T * 2, lambda x: jax.nn.softmax(x.T, -1)])
def test_transposes_that_stay_are_where_they_were(f):
    text = jf.fuse(f).lower(jax.ShapeDtypeStruct((640, 512), "float32")).as_text("segments", platform="cuda")
    assert "= transpose(x)" in text


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 17), (0, 3), (3, 0)])
def test_any_size(device, shape):
    f, x = CASES["broadcasts"][0], array(*shape)
    f = f if x.size else lambda x: (x.T * 2).T.sum(0)
    assert_close(jf.fuse(f)(x), np.asarray(f(jnp.asarray(x))))
