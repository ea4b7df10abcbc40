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
