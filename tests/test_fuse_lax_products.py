"""`jax.lax.ragged_dot` inside of `fuse` is the grouped product, wherever it stands."""

import functools

import arrays
import jax
import jax.numpy as jnp
import meshes
import pytest
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf

M, K, F, G = 24, 8, 16, 4


def experts(x, w13, w2, sizes):
    gate, up = jnp.split(jax.lax.ragged_dot(x, w13, sizes), 2, axis=-1)
    return x + jax.lax.ragged_dot(jax.nn.silu(gate) * up, w2, sizes)


def operands(dtype="float32"):
    shapes = (M, K), (G, K, 2 * F), (G, F, K)
    return *(arrays.array(*s, dtype=dtype, scale=0.5) for s in shapes), jnp.array([5, 0, 9, 2], jnp.int32)


def products_of_xla(f, *args):
    return str(jax.make_jaxpr(f)(*args)).count("ragged_dot_general")


def twice(*args):
    return jax.lax.scan(lambda x, _: (experts(x, *args[1:]), None), args[0], None, length=2)[0]


PLACES = {
    "plain": experts,
    "jit": jax.jit(experts),
    "scan": twice,
    "checkpoint": jax.checkpoint(experts),
    "cond": lambda x, *rest: jax.lax.cond(rest[-1][0] > 0, experts, lambda x, *_: x, x, *rest),
    "gradient": lambda x, w13, w2, sizes: jax.grad(
        lambda x, w13, w2: jnp.sum(jnp.sin(experts(x, w13, w2, sizes))), (0, 1, 2)
    )(x, w13, w2),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place(place, device):
    f = PLACES[place]
    args = operands()
    assert products_of_xla(f, *args) > 0
    assert products_of_xla(jf.fuse(f), *args) == 0
    jax.tree.map(functools.partial(assert_close, scale=10), jf.fuse(f)(*args), f(*args))


def test_derivative_and_batch_of_the_fused_function(device):
    args = operands()

    def loss(f):
        return jax.grad(lambda *w: jnp.sum(jnp.sin(f(*w, args[3]))), (0, 1, 2))(*args[:3])

    jax.tree.map(functools.partial(assert_close, scale=10), loss(jf.fuse(experts)), loss(experts))
    # jax.lax.ragged_dot itself has no such batch.
    batch = jax.vmap(jf.fuse(experts), in_axes=(0, None, None, None))(jnp.stack([args[0], -args[0]]), *args[1:])
    assert_close(batch[1], experts(-args[0], *args[1:]), scale=10)


def test_activation_is_in_the_kernel_of_the_product(device):
    plan = str(jf.explain(experts)(*operands("bfloat16")))
    assert "on its sums, which are not stored" in plan and "left to XLA" not in plan


def test_activation_is_in_the_kernel_of_a_product_of_f32_on_the_cpu():
    plan = str(jf.explain(experts, platform="cpu")(*operands()))
    assert "on its sums, which are not stored" in plan and "left to XLA" not in plan


def test_products_apart_are_calls_of_their_own():
    x, w13, _, sizes = operands()
    report = jf.explain(jax.grad(lambda *a: jf.fuse(jax.lax.ragged_dot)(*a, sizes).sum(), (0, 1)), platform="cpu")(
        x, w13
    )
    assert {c.reason for c in report.cuts if c.own_call} == {
        "a grouped product whose result is needed as it is",
        "a grouped product that sums over the rows of groups of float32",
    }
    assert "  calls of their own:\n    jax_fuser_grouped_matmul x" in repr(report)
    assert "a grouped product of int32" in repr(jf.explain(jax.lax.ragged_dot)(x.astype(int), w13.astype(int), sizes))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("inside", [True, False], ids=["fuse inside", "fuse outside"])
def test_shard_map(inside, check_vma):
    mesh = meshes.mesh(d=4)
    x, w13, w2, _ = operands()

    def mapped(f):
        specs = {"in_specs": (P("d"), P(), P()), "out_specs": P("d"), "check_vma": check_vma}
        return jax.shard_map(lambda *w: f(*w, jnp.array([2, 0, 3, 0], jnp.int32)), mesh=mesh, **specs)

    f = mapped(jf.fuse(experts)) if inside else jf.fuse(mapped(experts))
    assert products_of_xla(f, x, w13, w2) == 0
    assert_close(f(x, w13, w2), mapped(experts)(x, w13, w2), scale=10)

    def loss(f):
        return jax.jit(jax.grad(lambda *w: jnp.sum(jnp.sin(f(*w))), (0, 1, 2)))(x, w13, w2)

    jax.tree.map(functools.partial(assert_close, scale=10), loss(f), loss(mapped(experts)))


def test_what_xla_has_to_do_stays():
    lhs, rhs = jnp.ones((4, 8), jnp.float8_e4m3fn), jnp.ones((2, 8, 4), jnp.float8_e4m3fn)
    f = jf.fuse(lambda *a: jax.lax.ragged_dot(*a, preferred_element_type=jnp.float32))
    assert products_of_xla(f, lhs, rhs, jnp.array([1, 2])) == 1
    # Along a ragged batch dimension XLA multiplies what is past the last group, too.
    dims = jax.lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), [0], [])
    args = jnp.ones((4, 2, 8)), jnp.ones((4, 8, 3)), jnp.array([1, 2])
    g = functools.partial(jax.lax.ragged_dot_general, ragged_dot_dimension_numbers=dims)
    assert_close(jf.fuse(g)(*args), g(*args))
