"""`fuse` under every JAX transform gives what the function alone gives there."""

import functools

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax import lax
from jax.experimental import jet
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf


def layer(x, w, b):
    """Two regions around a matrix product, a broadcast operand, a reduction and a transposed result."""
    h = jax.nn.gelu(jnp.sin(x) @ w + b)
    return jnp.sum(h * jnp.cos(x) + b, axis=1), (jax.nn.silu(h) * x).T


fused = jf.fuse(layer)
X = jnp.linspace(-2, 2, 4 * 6).reshape(4, 6)
W = jnp.cos(jnp.arange(36.0)).reshape(6, 6)
B = jnp.linspace(-1, 1, 6)
ARGS = (X, W, B)


def loss(f):
    return lambda *args: sum(jnp.sum(out**2) for out in f(*args))


def stacked(x, n=3):
    return jnp.stack([x + 0.1 * i for i in range(n)])


def doubled(f):
    return jax.vmap(f, in_axes=(0, None, 0), out_axes=(0, 1))


def scanned(f):
    def body(x, _):
        rows, columns = f(x, W, B)
        return columns.T * 0.3, rows

    return lambda x: lax.scan(body, x, None, length=3)[1]


def looped(f):
    return lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, f(s[1], W, B)[1].T * 0.3), (0, x))[1]


def branched(f):
    return lambda x: lax.cond(x[0, 0] < 0, lambda x: loss(f)(x, W, B), lambda x: 0.0 * x.sum(), x)


def jitted_twice(f):
    return jax.jit(lambda x: loss(jax.jit(f))(x, W, B))


TRANSFORMS = {
    "eager": lambda f: f(*ARGS),
    "jit": lambda f: jax.jit(f)(*ARGS),
    "grad": lambda f: jax.grad(loss(f), (0, 1, 2))(*ARGS),
    "value_and_grad of jit": lambda f: jax.value_and_grad(jitted_twice(f))(X),
    "vjp": lambda f: jax.vjp(f, *ARGS)[1]((jnp.arange(4.0), X.T)),
    "jvp": lambda f: jax.jvp(f, ARGS, (X + 1, W, B)),
    "jvp of one": lambda f: jax.jvp(lambda b: f(X, W, b), (B,), (B,)),
    "linearize": lambda f: jax.linearize(f, *ARGS)[1](*ARGS),
    "linear_transpose": lambda f: jax.linear_transpose(jax.linearize(f, *ARGS)[1], *ARGS)((jnp.arange(4.0), X.T)),
    "transpose of a batched linear map": lambda f: jax.linear_transpose(
        jax.vmap(lambda b: jax.linearize(f, *ARGS)[1](X, W, b)), stacked(B)
    )((jnp.ones((3, 4)), stacked(X.T))),
    "jacfwd": lambda f: jax.jacfwd(f, (0, 2))(*ARGS),
    "jacrev": lambda f: jax.jacrev(f, (0, 2))(*ARGS),
    "hessian": lambda f: jax.hessian(loss(f), 2)(*ARGS),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(loss(f), 2), 2)(*ARGS),
    "reverse over forward": lambda f: jax.grad(lambda b: jax.jvp(lambda b: loss(f)(X, W, b), (b,), (B,))[1])(B),
    "vmap": lambda f: doubled(f)(stacked(X), W, stacked(B)),
    "vmap of a late axis": lambda f: jax.vmap(f, in_axes=(2, None, 1))(jnp.moveaxis(stacked(X), 0, 2), W, stacked(B).T),
    "vmap of vmap": lambda f: jax.vmap(jax.vmap(f, (None, None, 0)), (0, None, None))(stacked(X), W, stacked(B)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(loss(f), 2), (0, None, 0))(stacked(X), W, stacked(B)),
    "grad of vmap": lambda f: jax.grad(loss(doubled(f)), (0, 1))(stacked(X), W, stacked(B)),
    "jvp of vmap": lambda f: jax.jvp(lambda x: doubled(f)(x, W, stacked(B)), (stacked(X),), (stacked(X),)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(loss(f)), (0, 2))(*ARGS),
    "checkpoint inside": lambda f: jax.grad(loss(jax.checkpoint(f)), (0, 2))(*ARGS),
    "checkpoint with a policy": lambda f: jax.grad(
        jax.checkpoint(loss(f), policy=jax.checkpoint_policies.dots_saveable), (0, 2)
    )(*ARGS),
    "scan": lambda f: scanned(f)(X),
    "grad of scan": lambda f: jax.grad(lambda x: scanned(f)(x).sum())(X),
    "while": lambda f: looped(f)(X),
    "cond": lambda f: jax.grad(branched(f))(X),
    "map": lambda f: lax.map(lambda x: f(x, W, B), stacked(X)),
    "custom_vjp around": lambda f: jax.grad(lambda x: _with_own_rule(f)(x).sum())(X),
}


def _with_own_rule(f):
    @jax.custom_vjp
    def g(x):
        return f(x, W, B)[1]

    g.defvjp(lambda x: (g(x), x), lambda x, ct: (jax.vjp(lambda x: f(x, W, B)[1], x)[1](2 * ct)[0],))
    return g


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(device, name):
    # Eager once: whatever else is eager compiles each op of JAX's by itself, which takes longer than all of it.
    got, want = (
        TRANSFORMS[name](f) if name == "eager" else jax.jit(lambda f=f: TRANSFORMS[name](f))() for f in (fused, layer)
    )
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert a.dtype == b.dtype
        assert_close(a, b, scale=10 if "reverse over" in name or name == "hessian" else 2)


def test_eval_shape():
    assert jax.eval_shape(fused, *ARGS) == jax.eval_shape(layer, *ARGS)


def test_disable_jit_runs_the_function_itself():
    with jax.disable_jit():
        for got, want in zip(fused(*ARGS), layer(*ARGS)):
            assert_close(got, want)


def test_scalar_functions_fuse_under_vmap(device):
    def f(x, s):
        return jnp.tanh(x) * s + 1

    xs = jnp.linspace(-3, 3, 100)
    assert_close(jf.fuse(f)(xs[3], 2.0), f(xs[3], 2.0))
    assert_close(jax.vmap(jf.fuse(f), (0, None))(xs, 2.0), jax.vmap(f, (0, None))(xs, 2.0))
    assert_close(jax.vmap(jax.grad(jf.fuse(f)), (0, None))(xs, 2.0), jax.vmap(jax.grad(f), (0, None))(xs, 2.0))
    assert len(jf.explain(jax.vmap(jf.fuse(f), (0, None)))(xs, 2.0).regions) == 1


def test_what_is_not_batched_stays_unbatched():
    def f(x, w):
        return x * 2, jnp.tanh(w) * 3

    got = jax.make_jaxpr(jax.vmap(jf.fuse(f), in_axes=(0, None), out_axes=(0, None)))(jnp.ones((5, 4)), jnp.ones(4))
    assert got.out_avals[1].shape == (4,)


def test_backward_keeps_only_the_inputs_of_a_region():
    def f(x, y):
        for _ in range(5):
            x = jnp.tanh(x) * jnp.exp(-y) + jnp.sin(x)
        return x

    _, pullback = jax.vjp(jf.fuse(f), jnp.ones(1000), jnp.ones(1000))
    kept = sum(leaf.size for leaf in jax.tree.leaves(pullback) if hasattr(leaf, "size"))
    assert kept == 2000


def test_integer_and_boolean_operands_have_no_tangents(device):
    def f(x, i, mask):
        return jnp.where(mask, x * i, x) * 2, i + 1, mask & (x > 0)

    x, i, mask = X, jnp.arange(6), X > 0
    got, want = (jax.jvp(lambda x, g=g: g(x, i, mask), (x,), (x,)) for g in (jf.fuse(f), f))
    jax.tree.map(np.testing.assert_array_equal, got, want)
    got, want = (
        jax.grad(lambda *a, g=g: g(*a)[0].sum(), (0, 1, 2), allow_int=True)(x, i, mask) for g in (jf.fuse(f), f)
    )
    np.testing.assert_allclose(got[0], want[0])
    assert [g.dtype for g in got] == [w.dtype for w in want]


def test_custom_derivative_rules_are_used(device):
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    f.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 100 * tangents[0]))
    assert_close(jax.vmap(jax.grad(jf.fuse(lambda x: f(x) * 2)))(B), jnp.full(6, 200.0))
    # The derivative of relu at 0 is 0 by its rule.
    np.testing.assert_array_equal(
        jax.vmap(jax.grad(jf.fuse(lambda x: jax.nn.relu(x) * 1)))(jnp.array([-1.0, 0, 1])), [0, 0, 1]
    )


def test_derivatives_that_have_no_op_are_left_to_xla(device):
    x = jnp.linspace(0.5, 3, 10)
    f = jf.fuse(lambda x: jax.scipy.special.digamma(x) * x)
    want = jax.vmap(jax.grad(lambda x: jax.scipy.special.digamma(x) * x))(x)
    assert_close(jax.grad(lambda x: f(x).sum())(x), want)
    assert "polygamma" in {c.primitive for c in jf.explain(jax.grad(lambda x: f(x).sum()))(x).cuts}


def test_closed_over_arrays_are_inputs(device):
    table = jnp.arange(6.0)

    def outer(w):
        return jf.fuse(lambda x: x * w + table)(X)

    assert_close(jax.jit(outer)(B), X * B + table)
    assert_close(jax.grad(lambda w: outer(w).sum())(B), X.sum(0))


def test_fused_functions_nest(device):
    inner = jf.fuse(lambda x: jnp.tanh(x) + 1)
    outer = jf.fuse(lambda x: inner(x) * inner(2 * x))
    assert_close(outer(X), (jnp.tanh(X) + 1) * (jnp.tanh(2 * X) + 1))
    assert len(jf.explain(outer)(X).regions) == 1
    assert len(jf.explain(jf.fuse(jax.grad(lambda x: outer(x).sum())))(X).regions) == 1


def test_many_calls_in_one_program(device):
    # XLA may run independent calls on its own pool's threads; each waits for helpers from that pool.
    f = jf.fuse(lambda x, s: jnp.tanh(x * s) + 1)
    xs = [jnp.full(20_000, 0.01 * i) for i in range(64)]
    got = jax.jit(lambda xs: [f(x, 1.0 + i) for i, x in enumerate(xs)])(xs)
    for i, y in enumerate(got):
        assert_close(y[::5000], jnp.tanh(jnp.full(4, 0.01 * i) * (1.0 + i)) + 1)


# Meshes.


def mesh(explicit=False):
    return meshes.mesh(AxisType.Explicit if explicit else AxisType.Auto, d=4)


def sharded(f):
    return jax.shard_map(f, mesh=mesh(), in_specs=(P("d"), P(), P()), out_specs=(P("d"), P(None, "d")))


def test_shard_map():
    for got, want in zip(sharded(fused)(*ARGS), layer(*ARGS)):
        assert_close(got, want)
    got, want = (jax.grad(loss(f), (0, 1, 2))(*ARGS) for f in (sharded(fused), layer))
    for a, b in zip(got, want):
        assert_close(a, b, scale=2)


def test_shard_map_sums_what_was_replicated():
    f = jf.fuse(lambda x, b: jnp.tanh(x) * b)
    g = jax.shard_map(f, mesh=mesh(), in_specs=(P("d"), P()), out_specs=P("d"))
    assert_close(jax.grad(lambda b: g(X, b).sum())(B), jnp.tanh(X).sum(0))


def test_shard_map_refuses_a_varying_result_as_replicated():
    f = jf.fuse(lambda x: jnp.tanh(x) + 1)
    with pytest.raises(ValueError, match=r"out_specs|replicated"):
        jax.shard_map(f, mesh=mesh(), in_specs=P("d"), out_specs=P())(X)
    jax.shard_map(f, mesh=mesh(), in_specs=P(), out_specs=P())(X)


def test_shard_map_over_scan():
    def body(f):
        return lambda x: lax.scan(lambda c, _: (f(c, B), None), x, None, length=2)[0]

    f = lambda x, b: jnp.tanh(x) * b  # noqa: E731
    g = jax.shard_map(body(jf.fuse(f)), mesh=mesh(), in_specs=P("d"), out_specs=P("d"))
    assert_close(g(X), body(f)(X))


def test_explicit_mesh():
    with jax.set_mesh(mesh(explicit=True)):
        x = jax.device_put(jnp.tile(X, (2, 1)), P("d", None))
        f = lambda x, b: jnp.tanh(x) * b + 1  # noqa: E731
        got = jf.fuse(f)(x, B)
        assert jax.typeof(got) == jax.typeof(f(x, B))
        assert_close(got, f(x, B))


def test_wrapped_functions_keep_their_name_and_bind_as_methods():
    assert fused.__name__ == "layer" and "Two regions" in fused.__doc__

    @functools.partial(jax.tree_util.register_dataclass, data_fields=["scale"], meta_fields=[])
    class Scale:
        def __init__(self, scale):
            self.scale = scale

        @jf.fuse
        def apply(self, x):
            return x * self.scale + 1

    assert_close(Scale(jnp.float32(2)).apply(X), X * 2 + 1)


def test_taylor_series(device):
    x = jnp.linspace(0.1, 1, 4)
    f = lambda x, y: (jnp.sin(x) * y, jnp.sum(jnp.exp(y), keepdims=True))  # noqa: E731
    series = ((x, x * x, 1 - x), (jnp.ones(4), x, 0 * x))
    got, want = (jet.jet(g, (x, x * 2), series) for g in (jf.fuse(f), f))
    jax.tree.map(assert_close, got, want)
    assert len(jf.explain(lambda x, y: jet.jet(jf.fuse(f), (x, y), series))(x, x).regions) == 1


def test_pmap():
    f = jf.fuse(lambda x: jnp.tanh(x) * 2)
    x = jnp.arange(8.0).reshape(4, 2)
    np.testing.assert_allclose(jax.pmap(f, devices=jax.devices("cpu"))(x), jnp.tanh(x) * 2, rtol=1e-6)
