"""CUDA: a value that is stored and turned is stored by a kernel that computes it in its own order, square or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import numbers as array
from test_ragged_plans import interpreted
from tolerances import assert_close

import jax_fuser as jf

CASES = {
    "and its transpose": lambda x: (lambda y: (y, y.T))(jnp.tanh(x)),
    "and what follows its transpose": lambda x: (lambda y: (y, jnp.exp(y.T) + 1))(jnp.tanh(x)),
    "and what is turned later": lambda x: (lambda y: (y, (y * y + 1).T))(jnp.tanh(x)),
    "and a sum with it": lambda x: (lambda y: (y, y + y.T))(jnp.tanh(x)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(1024, 1024), (1024, 512)])
def test_only_tiles_are_stored_in_another_order(shape, dtype):
    f = lambda x: (lambda y: (y, y.T))((x * 16).astype(dtype))  # noqa: E731
    text = jf.fuse(f).lower(jax.ShapeDtypeStruct(shape, "float32")).as_text("loops", platform="cuda")
    assert text.count("kernel ") == 2 and "_tile: " in text
    assert not [
        line for line in text.splitlines() if " store t" in line and not line.split("] ")[1].startswith("lane * 1 ")
    ]


@pytest.mark.parametrize("case", CASES)
def test_values(case):
    f = CASES[case]
    for n in (1, 3, 17, 64):
        x = array(n, n)
        for got, want in zip(interpreted(jf.ir.trace(f, x), x), f(jnp.asarray(x))):
            assert_close(got, np.asarray(want))
