"""Values that are cut and put together in every step: what a slice computes again stays in proportion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tolerances import assert_close

import jax_fuser as jf

X = jnp.asarray(np.random.default_rng(0).standard_normal((3, 512)), "float32")


def butterflies(x, steps):
    for _ in range(steps):
        a, b = x[:, ::2], x[:, 1::2]
        x = jnp.concatenate([a + b, a - b], 1) * 0.7
    return x


def stencils(x, steps):
    for _ in range(steps):
        x = (x[:, :-2] + 2 * x[:, 1:-1] + x[:, 2:]) * 0.25
    return x


def halves(x, steps):
    for _ in range(steps):
        x = jnp.concatenate([x[:, ::2], x[:, 1::2]], 1)
    return jnp.sin(x)


def sums(x, steps):
    return lax.associative_scan(jnp.add, x, axis=1)


@pytest.mark.parametrize("f", [butterflies, stencils, halves, sums])
def test_values_and_size(f):
    steps = 9
    fused = jf.fuse(lambda x: f(x, steps))
    assert_close(fused(X), f(X, steps), scale=5)
    # 4 ** 9 ops and more, if every slice were computed from the argument.
    text = fused.lower(X).as_text("fusion")
    assert "add(" in text or "sin(" in text
    assert text.count(" = ") < 1000
    reached = jf.explain(fused)(X)
    assert not any(cut.primitive in ("add", "sub", "mul", "sin") for cut in reached.cuts)


@pytest.mark.parametrize("f", [butterflies, stencils])
def test_gradients(f):
    steps = 6

    def slope(g):
        return jax.grad(lambda x: (g(x) ** 2).sum())(X)

    assert_close(slope(jf.fuse(lambda x: f(x, steps))), slope(lambda x: f(x, steps)), scale=5)


def test_one_step_is_one_kernel():
    assert jf.fuse(lambda x: butterflies(x, 3)).lower(X).as_text("fusion").count("# region") == 1


def test_a_fusion_by_hand_has_a_limit():
    with pytest.raises(jf.UserError, match=r"f takes more than 65536 ops \(each slice of a computed value computes it"):
        jf.ir.trace(lambda x: butterflies(x, 20), jnp.ones((1, 1 << 20)), name="f")


def test_a_long_chain_is_sliced_without_a_deep_stack():
    b = jf.ir.Builder("chain")
    x = b.input("x", "f32", [8])
    one = b.broadcast(b.constant("f32", 1), [8], [])
    for _ in range(20000):
        x = b.pointwise("add", [x, one])
    b.output(b.slice(x, [1], [2], [3]))
    assert str(b.finish()).count("slice(") < 3  # the rest of the chain is stored, and read
