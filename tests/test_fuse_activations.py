"""Activations of jax.nn and their derivatives in every float dtype; broadcasting, scalars, pytrees, nested tensors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "silu": jax.nn.silu,
    "swish": jax.nn.swish,
    "gelu": jax.nn.gelu,
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
    "elu": jax.nn.elu,
    "celu": jax.nn.celu,
    "selu": jax.nn.selu,
    "softplus": jax.nn.softplus,
    "soft_sign": jax.nn.soft_sign,
    "leaky_relu": jax.nn.leaky_relu,
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_silu": jax.nn.hard_silu,
    "hard_swish": jax.nn.hard_swish,
    "hard_tanh": jax.nn.hard_tanh,
    "log_sigmoid": jax.nn.log_sigmoid,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jax.nn.tanh,
    "mish": jax.nn.mish,
    "squareplus": jax.nn.squareplus,
    "sparse_plus": jax.nn.sparse_plus,
}


def every(x):
    return {name: f(x) for name, f in ACTIVATIONS.items()}


def derivatives(f):
    def run(x):
        ones = jnp.ones_like(x)
        return {name: jax.vjp(lambda x, n=name: f(x)[n], x)[1](ones)[0] for name in ACTIVATIONS}

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_activations(device, dtype):
    check(dtype, lambda f: f)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_derivatives_of_activations(device, dtype):
    check(dtype, derivatives)


def check(dtype, of):
    x = jnp.linspace(-8, 8, 333).astype(dtype)
    f = jf.fuse(of(every))
    # f32 is the truth of the narrow dtypes, too.
    got, want = f(x), of(every)(x.astype(jnp.float32))
    for name in ACTIVATIONS:
        assert got[name].dtype == dtype
        try:
            assert_close(got[name], want[name], dtype)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    report = jf.explain(f)(x)
    assert [c.primitive for c in report.cuts if "moves" not in c.reason] == []


def test_glu_is_one_kernel_with_its_slices(device):
    x = jnp.linspace(-2, 2, 40).reshape(4, 10)
    f = jf.fuse(jax.nn.glu)
    assert_close(f(x), jax.nn.glu(x))
    assert not jf.explain(f)(x).cuts


def test_broadcasting(device):
    x, row, column = jnp.arange(12.0).reshape(3, 4), jnp.arange(4.0), jnp.arange(3.0)[:, None]

    def f(x, row, column, s):
        t = x * row + column
        return t, (t.T + s)[None], jnp.where(column > 1, t, -t), jnp.maximum(row, column), row[None, :, None] * x.T

    for got, want in zip(jf.fuse(f)(x, row, column, 2), f(x, row, column, 2)):
        assert_close(got, want)
    assert len(jf.explain(f)(x, row, column, 2).regions) >= 1


def test_shapes_of_every_kind(device):
    f = lambda x: jnp.tanh(x) * 2 + jnp.arange(x.shape[-1], dtype=x.dtype)  # noqa: E731
    for shape in [(1,), (7,), (1, 1), (3, 1), (1, 5), (2, 3, 4, 5), (1023,), (64, 129), (0,), (3, 0), (2, 1, 3, 1, 2)]:
        x = jnp.linspace(-1, 1, int(np.prod(shape))).reshape(shape)
        assert_close(jf.fuse(f)(x), f(x))


def test_python_scalars_and_weak_types():
    f = lambda x, s: x * s + 1  # noqa: E731
    for x in (jnp.ones(3, jnp.bfloat16), jnp.arange(3), jnp.ones(3)):
        for s in (2, 2.0, True, np.float32(2)):
            got, want = jf.fuse(f)(x, s), jax.jit(f)(x, s)
            assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type)
            assert_close(got, want)


def test_mixed_dtypes(device):
    def f(x, y, i):
        t = x.astype(jnp.float32) * y
        return t.astype(jnp.bfloat16), t > 0, (t * 10).astype(jnp.int8), i * 2 + (y > 0)

    args = jnp.linspace(-1, 1, 50).astype(jnp.bfloat16), jnp.linspace(0, 2, 50), jnp.arange(50, dtype=jnp.int16)
    for got, want in zip(jf.fuse(f)(*args), f(*args)):
        assert got.dtype == want.dtype
        assert_close(got, want)


def test_pytrees():
    f = lambda tree, *, scale: {"a": [tree["a"] * scale, None], "b": (tree["b"] + 1,)}  # noqa: E731
    tree = {"a": jnp.ones(3), "b": jnp.arange(4)}
    got = jf.fuse(f)(tree, scale=2.0)
    assert jax.tree.structure(got) == jax.tree.structure(f(tree, scale=2.0))
    assert_close(got["a"][0], 2 * jnp.ones(3))


def test_results_that_are_arguments_constants_or_equal():
    def f(x, y):
        t = jnp.tanh(x) + y
        return t, x, jax.lax.stop_gradient(t), jnp.tanh(x) + y, jnp.zeros(3), 2.0, t * 1

    x, y = jnp.linspace(0, 1, 5), jnp.ones(5)
    for got, want in zip(jf.fuse(f)(x, y), jax.jit(f)(x, y)):
        assert_close(got, want, "float32")


def test_nested_tensors(device):
    nt = jf.as_nested(jnp.linspace(-2, 2, 24).reshape(6, 4), extents=jnp.array([2, 0, 4], jnp.int32))

    @jf.fuse
    def f(nt, w):
        return jf.nested.map(jax.nn.silu, nt) * w + 1

    want = jax.nn.silu(nt.data) * 3 + 1
    assert_close(f(nt, 3.0).data, want)
    assert_close(jax.grad(lambda data: f(jf.as_nested(data, extents=nt.extents), 3.0).data.sum())(nt.data),
                 jax.grad(lambda data: (jax.nn.silu(data) * 3 + 1).sum())(nt.data))  # fmt: skip
    assert len(jf.explain(f)(nt, 3.0).regions) == 1
