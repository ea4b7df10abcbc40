"""Everything works where JAX is told to refuse implicit promotion of dtypes and of ranks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest

import jax_fuser as jf

ROWS, K, N, GROUPS = 9, 32, 32, 3
EXTENTS = np.array([2, 0, 6], np.int32)


def array(*shape: int, dtype: str) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape).astype(np.float32)).astype(dtype)


def product(x, w):
    bias, scale = jnp.ones((GROUPS, N), x.dtype), jnp.ones(ROWS, x.dtype)
    return jf.grouped_matmul(x, w, EXTENTS, bias=bias, row_scale=scale, activation=jnp.tanh)


def gradients(x, w):
    return jax.grad(lambda x, w: product(x, w).astype(jnp.float32).sum(), (0, 1))(x, w)


def nested(x, w):
    nt = jf.as_nested(x, extents=jnp.asarray(EXTENTS))
    statistics = jf.nested.stats(nt)
    padded = jf.nested.to_padded(nt, max_extent=8)
    return jf.nested.softmax(nt).data, jf.nested.mean(nt), (nt * nt).data, padded, statistics.imbalance


def outer(x, w):
    nt = jf.as_nested(jnp.stack([x, x]), extents=jnp.asarray(np.stack([EXTENTS, EXTENTS[::-1]])), ragged_dim=1)
    joined = jf.nested.merge(nt, "outer", "ragged"), jf.nested.concat([nt, nt], "ragged"), jf.nested.align(nt, 4)
    shared = jf.as_nested(nt.data, extents=jnp.asarray(EXTENTS), ragged_dim=1)
    scaled = [(shared * x[:GROUPS, None]).data, (shared + x[0]).data, (x[:1, None] * nt).data]
    return nt.row_mask(), jf.nested.sum(nt), jf.nested.allclose(nt, nt), joined, scaled


def layer(x, w):
    weights, experts, aux = jf.moe.route(x[:, :GROUPS], 2, bias=jnp.ones(GROUPS))
    return jf.moe.mlp(x, experts, weights, w, jnp.swapaxes(w[..., : N // 2], 1, 2)), aux.load


def spread(x, w):
    """Experts on two devices."""
    mesh = meshes.mesh(ep=2)

    def local(x, w13, w2):
        _, experts, _ = jf.moe.route(x[:, :4], 2)
        _, state = jf.moe.ep_dispatch(x, experts, num_experts=4, axis_name="ep", capacity=1.5)
        one = jnp.ones(2, jnp.int32)
        sent = jf.parallel.ragged_all_to_all(x, x, one, one, one, one, axis_name="ep")
        return jf.moe.ep_mlp(x, experts, jnp.ones(experts.shape), w13, w2, axis_name="ep"), sent, state.stats().load

    f = jax.shard_map(local, mesh=mesh, in_specs=jax.P("ep"), out_specs=(jax.P("ep"), jax.P("ep"), jax.P()))
    w13 = jnp.concatenate([w, w[:1]])
    args = x[:-1], w13, jnp.swapaxes(w13[..., : N // 2], 1, 2)
    return jax.jit(f)(*args), jax.jit(jax.grad(lambda *a: f(*a)[0].astype(jnp.float32).sum(), (0, 1)))(*args)


def quantized(x, w):
    return [jf.dequantize(jf.quantize(w, name)) for name in ("mxfp8", "nvfp4", "mxfp4", "int4", "fp8_row")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("f", [product, gradients, nested, outer, layer, spread, quantized])
def test_no_implicit_promotion(f, dtype):
    operands = array(ROWS, K, dtype=dtype), array(GROUPS, K, N, dtype=dtype)
    # What is read before anything is traced takes other ways; once is enough.
    run = f if dtype == "float32" else jax.jit(f)
    want = run(*operands)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        got = run(*operands)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
