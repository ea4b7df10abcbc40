"""Cheap ops between complex numbers or windows stay with XLA, which fuses all of it; what needs rows twice does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tolerances import assert_close

import jax_fuser as jf

REASON = "fused by XLA with complex numbers or windows beside it"


def complexes(*shape):
    return lax.complex(*jax.random.normal(jax.random.key(0), (2, *shape)))


def mandelbrot(c):
    z = c
    for _ in range(3):
        z = jnp.where(jnp.abs(z) < 4, z * z + c, z)
    return jnp.abs(z)


def rotary(z):
    x, angle = z.real, jnp.arange(z.shape[-1]) * 0.1
    turned = lax.complex(x, jnp.tanh(x)) * jnp.exp(1j * angle)
    return jnp.stack([turned.real, turned.imag], -1).reshape(len(x), 2 * z.shape[-1])


def window(z):
    ones = (1, 2)
    return lax.reduce_window(jax.nn.relu(z.real + 1), 0.0, lax.add, ones, ones, "VALID") / 4


WHOLE = {
    "mandelbrot": mandelbrot,
    "rotary": rotary,
    "window": window,
    "power": lambda z: 10 * jnp.log10(jnp.maximum(z.real**2 + z.imag**2, 1e-10)),
    "polar": lambda z: (jnp.abs(z), jnp.angle(z)),
    "sums of rows": lambda z: jnp.sum(z.real**2 + z.imag**2, -1),
    "a loss": lambda z: ((jnp.abs(z) - 1) ** 2).mean(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_stored_between_ours_and_theirs(name):
    f, z = WHOLE[name], complexes(3, 17)

    def gradient(f):
        return jax.grad(lambda z: sum(y.sum() for y in jax.tree.leaves(f(z))))

    assert not jf.explain(f)(z).regions and not jf.explain(gradient(f))(z).regions
    assert REASON in {c.reason for c in jf.explain(f)(z).cuts}
    assert "jax_fuser.program" not in jax.jit(jf.fuse(f)).lower(z).as_text()
    for of in map(complexes, (3, 1, 0), (17, 2, 4)):
        jax.tree.map(np.testing.assert_array_equal, jf.fuse(f)(of), jax.jit(f)(of))
    got, want = jax.jit(gradient(jf.fuse(f)))(z), jax.jit(gradient(f))(z)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


KEPT = {
    # Rows that are read again after they were folded; noise; what XLA has little of.
    "softmax": (1, lambda z: jax.nn.softmax(jnp.abs(z))),
    "scan": (1, lambda z: jnp.cumsum(z.real)),
    "few bytes": (1, lambda z: jnp.sin(jnp.zeros((64, 3, 17)) + z.real) * 2),
    "beside": (1, lambda z: (jnp.abs(z) * 2, jax.nn.softmax(jnp.ones(z.shape) * jnp.arange(17.0)))),
    "product": (1, lambda z: jnp.sin((z.real @ z.real.T) * 2)),
    "fft": (1, lambda z: jnp.sin(jnp.fft.irfft(z)) * 2),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_has_a_kernel_still(name):
    count, f = KEPT[name]
    z = complexes(3, 17)
    assert len(jf.explain(f)(z).regions) == count
    for got, want in zip(jax.tree.leaves(jf.fuse(f)(z)), jax.tree.leaves(f(z)), strict=True):
        assert_close(got, want)
