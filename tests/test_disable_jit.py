"""Under `jax.disable_jit`, where people step through their code, our primitives still run."""

import arrays
import jax
import jax.numpy as jnp
import pytest
from tolerances import assert_close

import jax_fuser as jf

SIZES = jnp.array([3, 0, 5], jnp.int32)


def expert_layer(x):
    weights, experts, _ = jf.moe.route(x @ jnp.ones((16, 3)), 2)
    return jf.moe.mlp(x, experts, weights, jnp.ones((3, 16, 8)), jnp.ones((3, 4, 16)))


CALLS = {
    "product": lambda x: jf.ragged_dot(x, jnp.ones((3, 16, 4)), SIZES),
    "product and tail": lambda x: jf.grouped_matmul(x, jnp.ones((3, 16, 4)), SIZES, activation="gelu"),
    "bf16": lambda x: jf.grouped_matmul(
        x.astype("bfloat16"), jnp.ones((3, 16, 4), "bfloat16"), SIZES, activation="silu"
    ),
    "layer": expert_layer,
    "gradient": jax.grad(lambda x: jnp.sum(jnp.sin(expert_layer(x)))),
    "sum": lambda x: jf.nested.sum(jf.as_nested(x, extents=SIZES), axis="ragged"),
    "largest": lambda x: jf.nested.max(jf.as_nested(x, extents=SIZES), axis="ragged"),
    "softmax": lambda x: jf.nested.softmax(jf.as_nested(x, extents=SIZES)).data,
    "eight bits": lambda x: jf.scaled_grouped_matmul(
        jf.quantize(x, "fp8_row"), jf.quantize(jnp.ones((3, 8, 16)), "fp8_row"), SIZES
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_same_as_with_jit(call):
    x = arrays.array(8, 16, scale=1.0)
    with jax.disable_jit():
        got = CALLS[call](x)
    assert_close(got, CALLS[call](x))
