"""Whole expert layers whose weights have four bits, against the same layer of what they stand for."""

import functools
import re

import arrays
import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser._packed_weights import unpack_weights

T, D, F, EXPERTS, TOP_K = 37, 128, 192, 4, 2
P = jax.P
# On GPUs a kernel takes rows of bf16 alone, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:scaled_grouped_matmul. unpacks its weights:UserWarning")


def matrices(experts, n, k, format):
    """Return packed weights, and the same as floats (experts, k, n)."""
    packed = jf.repack_weights(jf.quantize(arrays.array(experts, n, k, scale=0.1), format))
    return packed, jnp.swapaxes(unpack_weights(packed, jnp.float32), 1, 2)


def layer(format="mxfp4", gated=True, dtype="float32"):
    p13, f13 = matrices(EXPERTS, F * (2 if gated else 1), D, format)
    p2, f2 = matrices(EXPERTS, D, F, format)
    x, weights = arrays.array(T, D, dtype=dtype, scale=0.5), arrays.array(T, TOP_K)
    experts = arrays.integers(-1, EXPERTS + 1, (T, TOP_K))
    return (x, experts, weights), (p13, p2), (f13.astype(dtype), f2.astype(dtype))


def value_and_gradients(args, matrices, activation):
    def loss(x, weights, matrices):
        out = jf.moe.mlp(x, args[1], weights, *matrices, activation=activation)
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    (_, out), found = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(args[0], args[2], matrices)
    return out, *found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("format", "activation"),
    [("mxfp4", "swiglu"), ("nvfp4", "gelu"), ("int4", None), ("mxfp4", lambda x: x * jnp.tanh(x))],
    ids=["mxfp4", "nvfp4", "int4", "function"],
)
def test_value_and_gradients(device, dtype, format, activation):
    args, packed, floats = layer(format, activation == "swiglu", dtype)
    wide = tuple(a.astype(jnp.float32) for a in floats)
    x, experts, weights = args
    want = value_and_gradients((x.astype(jnp.float32), experts, weights), wide, activation)
    for a, b in zip(value_and_gradients(args, packed, activation), want, strict=True):
        assert_close(a, b, dtype, scale=4)


@pytest.mark.parametrize("chosen", [[], [0], [3], [1, 2]])
def test_experts_of_no_rows(device, chosen):
    (x, _, weights), packed, floats = layer()
    experts = jnp.asarray(np.resize(chosen or [-1], (T, TOP_K)), jnp.int32)
    for a, b in zip(*(value_and_gradients((x, experts, weights), m, "swiglu") for m in (packed, floats)), strict=True):
        assert_close(a, b)


def test_one_of_them_may_be_floats(device):
    (x, *args), (p13, p2), (f13, f2) = layer()
    want = jf.moe.mlp(x, *args, f13, f2)
    for pair in ((p13, f2), (f13, p2)):
        assert_close(jax.jit(jf.moe.mlp)(x, *args, *pair), want)


def test_leading_dimensions_vmap_scan_and_export():
    (x, experts, weights), packed, floats = layer()
    want = jf.moe.mlp(x, experts, weights, *floats)
    out = jf.moe.mlp(x[None, :36].reshape(4, 9, D), *(a[:36].reshape(4, 9, TOP_K) for a in (experts, weights)), *packed)
    assert_close(out.reshape(36, D), want[:36])
    batch = jax.vmap(jf.moe.mlp, (0, None, None, None, None))(jnp.stack([x, -x]), experts, weights, *packed)
    assert_close(batch[0], want)
    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), packed)
    two, _ = jax.lax.scan(lambda x, m: (jf.moe.mlp(x, experts, weights, *m), None), x, stacked)
    assert_close(two, jf.moe.mlp(want, experts, weights, *floats))
    ours = [jax.export.DisabledSafetyCheck.custom_call("jax_fuser.program")]
    text = jax.export.export(jax.jit(jf.moe.mlp), platforms=["cuda"], disabled_checks=ours)(
        *(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (x.astype(jnp.bfloat16), experts, weights))),
        *packed,
    ).mlir_module()
    assert text.count("packed=mxfp4") >= 2 or text.count("mxfp4") >= 2


@pytest.mark.parametrize("devices", [2, 4])
def test_experts_of_several_devices(device, devices):
    (x, experts, weights), packed, floats = layer()
    x, experts, weights = x[:36], experts[:36], weights[:36]

    def loss(f, matrices):
        return lambda x, weights: jnp.sum(jnp.sin(f(x, experts, weights, *matrices)))

    on_mesh = jax.shard_map(
        functools.partial(jf.moe.ep_mlp, axis_name="ep"), mesh=meshes.mesh(ep=devices), in_specs=P("ep"),
        out_specs=P("ep"),
    )  # fmt: skip
    got, want = (
        jax.jit(jax.value_and_grad(loss(f, m), (0, 1)))(x, weights)
        for f, m in ((on_mesh, packed), (jf.moe.mlp, floats))
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(a, b, scale=2)


def refused(message, error=ValueError, **changes):
    args, (p13, p2), _ = layer()
    given = dict(zip(("x", "experts", "weights"), args, strict=True)) | {"w13": p13, "w2": p2} | changes
    with pytest.raises(error, match=re.escape(message)):
        jf.moe.mlp(**given)


def test_messages():
    _, (p13, p2), (f13, _) = layer()
    refused(
        "mlp: w13 must be packed (num_experts, columns, d) and w2 packed (num_experts, d, f) for x (.., d), got "
        f"(4, {D}, {F}), (4, {2 * F}, {D}) and ({T}, {D})",
        w13=p2,
        w2=p13,
    )
    refused(f"mlp: w13 must have {2 * D} columns for activation 'swiglu' and w2 (4, {2 * F}, {D}) as packed", w2=p13)
    refused(f"mlp: w13 must have {F} columns for activation 'silu'", activation="silu")
    refused("mlp: w13 must be (num_experts, d, columns) and w2 packed (num_experts, d, f)", w13=f13[:3])
    small = jf.quantize(jnp.ones((EXPERTS, 2 * F, D)), "mxfp4")
    refused("mlp: w13 must be an array, PackedWeights, or a ScaledTensor of fp8_row", TypeError, w13=small)
