"""What moves rows, on a mesh of explicit axes: results and gradients are right and lie where the rule says."""

import functools

import arrays
import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf

ROWS, D, GROUPS = 16, 8, 4
SIZES = jnp.array([5, 0, 6, 3], jnp.int32)
IDS = jnp.array([0, 2, 1, 0, 2, 2, 1, 0, 4, 1, 2, 1, 3, 3, 0, 1], jnp.int32)
OUTER = jnp.array([[2, 0, 3], [1, 1, 4]], jnp.int32)


def nested(x):
    return jf.as_nested(x, extents=SIZES)


def outer(x):
    return jf.as_nested(x.reshape(2, ROWS // 2, D), extents=OUTER, ragged_dim=1)


def layer(x, w):
    weights, experts, aux = jf.moe.route(x, 2)
    return jf.moe.mlp(x, experts, weights, w, jnp.swapaxes(w[..., :4], 1, 2)) * (1 + aux.load_balance)


def there_and_back(x):
    rows, state = jf.moe.dispatch(x, IDS[:, None], num_experts=GROUPS)
    return jf.moe.combine(rows * 2, state, jnp.sin(x.sum(1)))


W = arrays.array(GROUPS, D, D, scale=0.5)
# Of rows (16, 8) split over ("a", "b"): the function, and the spec of its result.
CASES = {
    "sort": (lambda x: jf.nested.sort_by_group(x, IDS, GROUPS)[0].data, P("a", "b")),
    "sum": (lambda x: jf.nested.sum(nested(x)), P(None, "b")),
    "total": (lambda x: jf.nested.max(nested(x), "group"), P("b")),
    "softmax": (lambda x: jf.nested.softmax(nested(x)).data, P("a", "b")),
    "padded": (lambda x: jf.nested.to_padded(nested(x), 8), P(None, None, "b")),
    "aligned": (lambda x: jf.nested.align(nested(x), 4).data, P("a", "b")),
    "blocks": (lambda x: jf.nested.split(nested(x), 1, factor=4, blocks=True).data, P(None, None, "b")),
    "dense merge": (lambda x: jf.nested.merge(nested(x), 1, 2).data, P("a")),
    "outer merge": (lambda x: jf.nested.merge(outer(x), 0, 2).data, P(None, "b")),
    "outer product": (lambda x: jf.grouped_matmul(outer(x), W[:3]).data, P("a", None, None)),
    "gathered rows": (lambda x: jf.grouped_matmul(x, W, SIZES, row_index=jnp.arange(ROWS)[::-1]), P(None, None)),
    "dispatch": (there_and_back, P("a", "b")),
    "layer": (functools.partial(layer, w=W), P("a", "b")),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_are_moved_where_they_lie(case):
    f, spec = CASES[case]
    x = arrays.array(ROWS, D, scale=1.0)

    @jax.jit
    def run(x):
        out, back = jax.vjp(f, x)
        return out, *back(jnp.cos(out))

    want = run(x)
    mesh = meshes.mesh(AxisType.Explicit, a=2, b=2)
    with jax.set_mesh(mesh):
        out, grad = run(jax.device_put(x, P("a", "b")))
    assert out.sharding.is_equivalent_to(NamedSharding(mesh, spec), out.ndim), jax.typeof(out)
    assert grad.sharding.spec == P("a", "b")
    for got, wanted in zip((out, grad), want):
        assert_close(np.asarray(got), wanted, scale=4)


def rows_by_sizes(x, w, bias, sizes):
    return jf.grouped_matmul(x, w, sizes, bias=bias, activation=jnp.tanh)


def nested_rows(x, w, bias, sizes):
    return jf.grouped_matmul(jf.as_nested(x, extents=sizes), w, bias=bias, activation=jnp.tanh).data


def rows_in_8_bits(x, w, bias, sizes):
    how = {"format": "fp8_row", "transpose_rhs": False, "preferred_element_type": "float32"}
    return jf.scaled_grouped_matmul(x, w, sizes, bias=bias, **how)


@pytest.mark.parametrize("f", [rows_by_sizes, nested_rows, rows_in_8_bits])
def test_everything_of_groups_is_split(f):
    """Rows need the bias of any group, and the sizes of all."""
    args = arrays.array(ROWS, D, scale=1.0), W, arrays.array(GROUPS, D, scale=1.0), SIZES

    @jax.jit
    def run(*args):
        out, back = jax.vjp(lambda *a: f(*a, args[3]), *args[:3])
        return out, *back(jnp.cos(out))

    want = run(*args)
    mesh = meshes.mesh(AxisType.Explicit, a=2)
    with jax.set_mesh(mesh):
        got = run(args[0], *(jax.device_put(a, P("a")) for a in args[1:]))
    assert [g.sharding.spec[0] for g in got[2:]] == ["a", "a"]
    for a, b in zip(got, want):
        assert_close(np.asarray(a), b, scale=4)


# Over ("ep", "fsdp"), of which `ep` is manual: tokens, their weights, and the two matrices of each expert.
PARTS = {
    "columns of weights": (P("ep"), P("ep"), P("ep", None, "fsdp"), P("ep", "fsdp")),
    "rows of weights and tokens": (P(("ep", "fsdp")), P(("ep", "fsdp")), P("ep", "fsdp"), P("ep", None, "fsdp")),
    "columns of tokens": (P("ep", "fsdp"), P("ep"), P("ep"), P("ep")),
}


def spread_layer(x, weights, w13, w2, experts, **how):
    return jf.moe.ep_mlp(x, experts, weights, w13, w2, axis_name="ep", **how)


def spread_there_and_back(x, weights, w13, w2, experts):
    rows, state = jf.moe.ep_dispatch(x, experts, num_experts=4, axis_name="ep")
    return jf.moe.ep_combine(jf.grouped_matmul(rows, w13), state, weights)


def sent(x, weights, w13, w2, experts):
    sizes, first = jnp.array([2, 4], jnp.int32), jnp.array([1, 3], jnp.int32)
    return jf.parallel.ragged_all_to_all(
        x, 2 * x, first, sizes, first, jax.lax.all_to_all(sizes, "ep", 0, 0, tiled=True), axis_name="ep"
    )


def local_layer(x, weights, w13, w2, experts):
    return layer(x, w13) * weights[:, :1] + jf.moe.mlp(x, experts % 2, weights, w13, w2)


SPREAD = {
    "layer": spread_layer,
    "layer in 8 bits": functools.partial(spread_layer, format="fp8_row"),
    "dispatch": spread_there_and_back,
    "exchange": sent,
    "layer of each device": local_layer,
}


@pytest.mark.parametrize(
    "case, parts", [(c, p) for c in SPREAD for p in PARTS if c == "layer" or p == "rows of weights and tokens"]
)
def test_one_axis_manual_and_one_explicit(case, parts):
    """As where `ep` is the only axis; gradients lie where their arguments do."""
    shapes = (ROWS, D), (ROWS, 2), (4, D, D), (4, D // 2, D)
    args = [arrays.array(*shape, scale=1.0) for shape in shapes]
    experts = jnp.stack([IDS % 4, (IDS + 1) % 4], 1)

    def run(f, experts, *args):
        def loss(*args):
            out = f(*args, experts)
            return jnp.sum(jnp.sin(out)), out

        (_, out), slopes = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*args)
        return out, *slopes

    f = functools.partial(jax.shard_map, SPREAD[case], in_specs=P("ep"), out_specs=P("ep"))
    alone = meshes.mesh(ep=2)
    want = jax.jit(functools.partial(run, f(mesh=alone)))(experts, *args)
    mesh = meshes.mesh(AxisType.Explicit, ep=2, fsdp=2)
    with jax.set_mesh(mesh):
        placed = [jax.device_put(a, spec) for a, spec in zip(args, PARTS[parts])]
        out, *slopes = jax.jit(functools.partial(run, f(axis_names={"ep"})))(
            jax.device_put(experts, PARTS[parts][1]), *placed
        )
    for got, wanted in zip((out, *slopes), want, strict=True):
        assert_close(np.asarray(got), wanted, scale=4)
    for got, given in zip(slopes, placed):
        assert got.sharding.is_equivalent_to(given.sharding, got.ndim)
