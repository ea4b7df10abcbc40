"""What is inside of loops, branches, checkpoints and custom derivatives fuses by itself, under every transform."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf

X = jnp.linspace(0.1, 1, 12).reshape(3, 4)
SCALE = jnp.arange(4.0) + 0.5


@jax.jit
def closes_over_arrays(x):
    return jnp.tanh(x) * SCALE + np.arange(4, dtype=np.float32)


@jax.custom_vjp
def doubled_gradient(x):
    return jnp.tanh(jnp.sin(x) @ x.T)


doubled_gradient.defvjp(lambda x: (doubled_gradient(x), x), lambda x, ct: (2 * ct @ x,))


@jax.custom_jvp
def own_tangent(x):
    return jnp.exp(jnp.sin(x) @ x.T) * 2


own_tangent.defjvp(lambda p, t: (own_tangent(*p), 3 * t[0] @ p[0].T))


def over_steps(x):
    return lax.scan(lambda a, b: (closes_over_arrays(a) * b, jax.nn.softmax(a)), x, jnp.arange(3.0))


def some_at_once(x, length, unroll, reverse=False):
    """Steps that carry an array and a count, read an array and a key, and return an array and a number."""

    def step(carry, given):
        a, i = carry
        b, key = given
        noise = jax.random.key_data(key)[0] % 7 / 7
        return (jnp.sin(a * b + noise), i + 1), (a[0] * i, b)

    keys = jax.random.split(jax.random.key(0), length)
    return lax.scan(step, (x, 0), (jnp.linspace(0, 1, length), keys), unroll=unroll, reverse=reverse)


BODIES = {
    "scan": over_steps,
    "scan of scans": lambda x: lax.scan(lambda a, _: (over_steps(a)[0], None), x, None, length=2)[0],
    "scan of some steps at once": lambda x: some_at_once(x, 7, 3, reverse=True),
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda i, a: jnp.sin(a + SCALE) * 2, x),
    "while_loop": lambda x: lax.while_loop(lambda a: a.sum() < 99, lambda a: closes_over_arrays(a) * a + 1, x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda a: jnp.tanh(a * SCALE) + 1, lambda a: -jnp.exp(a), x),
    "switch": lambda x: lax.switch(jnp.int32(x[0, 1] * 9), [jnp.sin, jnp.cos, lambda a: a * SCALE], x),
    "checkpoint": lambda x: jax.checkpoint(lambda a: closes_over_arrays(jax.nn.softmax(jnp.sin(a))))(x),
    "checkpoint of a scan": lambda x: jax.checkpoint(over_steps)(x)[0],
    "custom_vjp": doubled_gradient,
    "custom_jvp": own_tangent,
}


def total(f):
    return lambda *x: sum((leaf * leaf).sum() for leaf in jax.tree.leaves(f(*x)))


def batch(f):
    return lambda x: jax.vmap(f)(jnp.stack([x, x + 0.25]))


TRANSFORMS = {
    "call": lambda f: f,
    "vmap": batch,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "grad": lambda f: jax.grad(total(f)),
    "vmap of grad of checkpoint": lambda f: batch(jax.grad(total(jax.checkpoint(f)))),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("body", BODIES)
def test_a_body_is_fused_and_computes_the_same(body, transform):
    f, way = BODIES[body], TRANSFORMS[transform]
    if (transform == "jvp" and body == "custom_vjp") or ("grad" in transform and body == "while_loop"):
        pytest.skip("JAX has no such derivative")
    want = jax.jit(way(f))(X)
    for got in (jax.jit(way(jf.fuse(f)))(X), jf.fuse(way(f))(X)):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert_close(a, b)


@pytest.mark.parametrize(
    ("length", "unroll", "loops"), [(6, 6, 0), (5, 2, 1), (5, 3, 0), (4, True, 0), (1, 1, 1), (0, 2, 1), (6, 2, 1)]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_unrolled_steps_are_straight_code(length, unroll, loops, reverse):
    f = functools.partial(some_at_once, length=length, unroll=unroll, reverse=reverse)
    for a, b in zip(jax.tree.leaves(jf.fuse(f)(X)), jax.tree.leaves(jax.jit(f)(X)), strict=True):
        assert a.dtype == b.dtype
        assert_close(a, b)
    cuts = [cut.primitive for cut in jf.explain(f)(X).cuts]
    assert cuts.count("scan") == loops


def test_a_polynomial_is_one_kernel():
    coefficients = jnp.linspace(-1, 1, 30)
    f = lambda x: jnp.polyval(coefficients, x)  # noqa: E731
    assert_close(jf.fuse(f)(X), f(X))
    assert len(jf.explain(f)(X).regions) == 1
    assert_close(jax.grad(total(jf.fuse(f)))(X), jax.grad(total(f))(X))


@pytest.mark.parametrize("body", ["scan", "checkpoint"])
def test_second_derivatives(body):
    f = BODIES[body]
    assert_close(jax.jit(jax.hessian(total(jf.fuse(f))))(X), jax.jit(jax.hessian(total(f)))(X))


@pytest.mark.parametrize("body", ["scan", "switch", "checkpoint", "no body"])
def test_the_transpose_of_a_fused_derivative_keeps_apart_what_is_not_linear(body):
    f = BODIES.get(body, lambda x: jnp.tanh(jnp.sin(x) @ x.T) @ jnp.cos(x))
    want, pull = jax.vjp(f, X)
    want = pull(want)

    def tangents(x, t):
        return jax.jvp(f, (x,), (t,))[1]

    for way in (tangents, jax.checkpoint(tangents)):
        pull = jax.linear_transpose(functools.partial(jf.fuse(way), X), X)
        assert_close(pull(f(X))[0], want[0])


@pytest.mark.parametrize("policy", ["nothing_saveable", "dots_saveable", "everything_saveable"])
def test_policies_of_checkpoints_of_fused_functions(policy):
    @jf.fuse
    def f(x, t):
        y, out = jax.jvp(lambda x: jnp.tanh(jnp.sin(x) @ x.T) * 2, (x,), (t,))
        return y * jnp.cos(y), out

    def loss(f):
        saved = jax.checkpoint(f, policy=getattr(jax.checkpoint_policies, policy))
        return jax.grad(lambda t: total(saved)(X, jnp.sin(t)))(X)

    assert_close(loss(f), loss(f._function))


@pytest.mark.parametrize("body", BODIES)
def test_explain_shows_what_is_inside(body):
    report = jf.explain(jf.fuse(BODIES[body]))(X)
    assert report.regions
    assert report.cuts and "tanh" not in {cut.primitive for cut in report.cuts}


def test_an_update_of_a_loop_stays_in_place():
    def f(x):
        return lax.fori_loop(0, 3, lambda i, a: lax.dynamic_update_index_in_dim(a, jnp.tanh(a[i]) * 2 + 1, i, 0), x)

    assert_close(jf.fuse(f)(X), f(X))
    assert "dynamic_update_slice" in {cut.primitive for cut in jf.explain(jf.fuse(f))(X).cuts}


def test_effects_inside_of_a_loop_happen_in_order(capfd):
    def step(a, i):
        jax.debug.print("step {}", i, ordered=True)
        return jnp.tanh(a) * 2 + i, None

    assert_close(jf.fuse(lambda x: lax.scan(step, x, jnp.arange(3))[0])(X), lax.scan(step, X, jnp.arange(3))[0])
    jax.effects_barrier()
    printed = capfd.readouterr().out.split("\n")[:3]
    assert printed == ["step 0", "step 1", "step 2"]


def test_a_device_of_a_shard_map_fuses_its_part():
    mesh = meshes.mesh(d=1)

    def part(x, w):
        y = jax.nn.softmax(jnp.sin(x) @ w) * 2
        return y + lax.psum(closes_over_arrays(x).sum(), "d") + lax.axis_index("d")

    f = jax.shard_map(part, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
    w = jnp.linspace(0, 1, 16).reshape(4, 4)
    assert_close(jf.fuse(f)(X, w), f(X, w))
    gradient = jax.grad(total(f), (0, 1))
    for got in (jax.grad(total(jf.fuse(f)), (0, 1)), jf.fuse(gradient)):
        for a, b in zip(got(X, w), gradient(X, w)):
            assert_close(a, b)
    report = jf.explain(jf.fuse(f))(X, w)
    assert len(report.regions) >= 3 and "psum_invariant" in {cut.primitive for cut in report.cuts}
