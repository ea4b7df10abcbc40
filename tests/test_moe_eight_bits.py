"""Expert layers by products of 8-bit floats, against the same in float64 of what is quantized where it is."""

import functools
import gc
import re
import weakref

import arrays
import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

T, D, F, EXPERTS, TOP_K = 37, 128, 256, 4, 2
P = jax.P
BLOCKS = {"fp8_row": (None,), "fp8_tensor": (), "fp8_block": (128, 128)}
FORMATS = ["fp8_row", "fp8_block"]
# On GPUs without the kernel operands become floats first, and it is said.
pytestmark = pytest.mark.filterwarnings("ignore:scaled_grouped_matmul. converts its operands:UserWarning")


def arguments(dtype="float32", gated=True, d=D, f=F, tokens=T):
    x, weights = arrays.array(tokens, d, dtype=dtype, scale=0.5), arrays.array(tokens, TOP_K)
    experts = arrays.integers(-1, EXPERTS + 1, (tokens, TOP_K))
    w13 = arrays.array(EXPERTS, d, f * (2 if gated else 1), dtype=dtype, scale=0.1)
    return (x, experts, weights), (w13, arrays.array(EXPERTS, f, d, dtype=dtype, scale=0.1))


def quantized(w, format):
    """Return matrices (experts, k, n) as the layer takes them."""
    return jf.quantize(jnp.swapaxes(w, 1, 2), format, block=BLOCKS[format])


def rounded(x, format, weights=False):
    """Return what 8 bits make of rows, or of matrices (k, n)."""
    if weights:
        return np.float64(jf.dequantize(quantized(x[None], format))[0]).T
    return np.float64(jf.dequantize(jf.quantize(jnp.asarray(x, jnp.float32), format)))


def reference(x, experts, weights, w13, w2, format):
    """Return the layer with SwiGLU, row by row in float64."""
    out = np.zeros((x.shape[0], w2.shape[2]))
    rows = rounded(x, format)
    for e in range(w13.shape[0]):
        first, second = (rounded(w[e], format, weights=True) for w in (w13, w2))
        for token, choice in zip(*np.nonzero(np.asarray(experts) == e)):
            gate, up = np.split(rows[token] @ first, 2)
            h = np.float64(weights[token, choice]) * gate / (1 + np.exp(-gate)) * up
            out[token] += rounded(h[None], format)[0] @ second
    return out


def norm_of_difference(got, want):
    got, want = np.float64(got), np.float64(want)
    assert got.shape == want.shape
    return np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-2), ("bfloat16", 1.5e-2)])
@pytest.mark.parametrize("format", FORMATS)
def test_values(device, format, dtype, most):
    """An element on the edge between two numbers of 8 bits may become the other one; tensor cores sum with 14 bits."""
    (x, experts, weights), (w13, w2) = arguments(dtype)
    want = reference(x, experts, weights, w13, w2, format)
    of_floats = jax.jit(functools.partial(jf.moe.mlp, format=format))(x, experts, weights, w13, w2)
    assert of_floats.dtype == dtype
    assert norm_of_difference(of_floats, want) < most
    kept = quantized(w13, format), quantized(w2, format)
    of_quantized = jax.jit(jf.moe.mlp)(x, experts, weights, *kept)
    assert_close(of_quantized, of_floats)


def test_one_scale_for_all_weights(device):
    (x, experts, weights), pair = arguments()
    small = [quantized(w, "fp8_tensor") for w in pair]
    floats = [jnp.swapaxes(jf.dequantize(w), 1, 2) for w in small]
    assert norm_of_difference(jf.moe.mlp(x, experts, weights, *small), jf.moe.mlp(x, experts, weights, *floats)) < 0.07


@pytest.mark.parametrize("activation", ["swiglu", "geglu", "gelu", None, lambda x: x * jnp.tanh(x)])
@pytest.mark.parametrize("format", FORMATS)
def test_gradients_are_near_those_of_floats(device, format, activation):
    """Two products of operands with three bits behind the point are 6 % off; a wrong gradient is 100."""
    (x, experts, weights), pair = arguments("bfloat16", activation in ("swiglu", "geglu"))
    cotangent = arrays.array(T, D)

    def loss(x, weights, pair, format):
        return jnp.sum(cotangent * jf.moe.mlp(x, experts, weights, *pair, activation=activation, format=format))

    got, want = (
        jax.jit(jax.grad(functools.partial(loss, format=f), (0, 1, 2)))(x, weights, pair) for f in (format, None)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        assert norm_of_difference(a, b) < 0.12


@pytest.mark.parametrize("tokens", [T, 1024])
@pytest.mark.parametrize("format", FORMATS)
def test_activations_that_close_over_arrays(format, tokens):
    """These have gradients, too, and nothing keeps them; what is computed is the same."""
    (x, experts, weights), pair = arguments(gated=False, tokens=tokens)
    by, cotangent = jnp.ones(F), arrays.array(tokens, D)

    def loss(activation, x, pair, format):
        return jnp.sum(cotangent * jf.moe.mlp(x, experts, weights, *pair, activation=activation, format=format))

    def closed(by, x, pair, format=format):
        return loss(lambda y: jnp.tanh(y * by), x, pair, format)

    with jax.checking_leaks():
        of_by, *rest = jax.jit(jax.grad(closed, (0, 1, 2)))(by, x, pair)
    want = jax.grad(functools.partial(loss, jnp.tanh), (0, 1))(x, pair, format)
    for one, other in zip(jax.tree.leaves(rest), jax.tree.leaves(want)):
        assert norm_of_difference(one, other) < 0.01
    assert norm_of_difference(of_by, jax.grad(functools.partial(closed, format=None))(by, x, pair)) < 0.12
    closed(by, x, pair)
    alive = weakref.ref(by)
    del by
    gc.collect()
    assert alive() is None


def test_no_gradient_of_what_an_activation_beside_quantized_weights_closes_over():
    (x, experts, weights), (w13, w2) = arguments(gated=False)
    q13, q2 = quantized(w13, "fp8_row"), quantized(w2, "fp8_row")

    def layer(by):
        return jf.moe.mlp(x, experts, weights, q13, q2, activation=lambda y: jnp.tanh(y * by)).sum()

    same = jf.moe.mlp(x, experts, weights, q13, q2, activation=lambda y: jnp.tanh(y * 2)).sum()
    with jax.checking_leaks():
        assert_close(jax.jit(layer)(2.0), same, scale=10)
    with pytest.raises(TypeError, match="mlp: a layer of weights that are quantized in 8 bits has no derivative"):
        jax.grad(layer)(2.0)


@pytest.mark.parametrize("format", FORMATS)
def test_gradients_of_weights_in_8_bits(device, format):
    (x, experts, weights), pair = arguments("bfloat16")

    def loss(pair, dw_format):
        return jnp.sum(jnp.sin(jf.moe.mlp(x, experts, weights, *pair, format=format, dw_format=dw_format)))

    got, want = (jax.jit(jax.grad(functools.partial(loss, dw_format=f)))(pair) for f in ("fp8_row", None))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert 1e-3 < norm_of_difference(a, b) < 0.06


@pytest.mark.parametrize("format", FORMATS)
def test_weights_quantized_once(device, format):
    """As in every call, gradients too, which go to the floats."""
    (x, experts, weights), pair = arguments("bfloat16")
    block = BLOCKS[format]
    kept = [[jf.quantize(a, format, block=block) for a in (jnp.swapaxes(w, 1, 2), w)] for w in pair]

    def loss(x, pair, kept):
        copies = dict(zip(("quantized_w13", "quantized_w2"), kept))
        return jnp.sum(jnp.sin(jf.moe.mlp(x, experts, weights, *pair, format=format, **copies)))

    want = jax.jit(jax.value_and_grad(functools.partial(loss, kept=()), (0, 1)))(x, pair)
    # Of both matrices, or of the first.
    got = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, pair, kept if format == "fp8_row" else kept[:1])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(a, b)


def test_weights_quantized_once_on_several_devices(device):
    """Tokens lie along an axis of their own, too, along which weights and their copies are the same."""
    (x, experts, weights), pair = arguments("bfloat16", tokens=36)
    kept = {f"quantized_{n}": tuple(jf.quantize(a, "fp8_row") for a in (jnp.swapaxes(w, 1, 2), w))
            for n, w in zip(("w13", "w2"), pair)}  # fmt: skip
    how = {"axis_name": "ep", "format": "fp8_row"}

    def loss(x, pair, kept):
        layer = lambda x, e, w, pair, kept: jf.moe.ep_mlp(x, e, w, *pair, **kept, **how)  # noqa: E731
        rows, own = P(("data", "ep")), P("ep")
        mesh = meshes.mesh(data=2, ep=2)
        f = jax.shard_map(layer, mesh=mesh, in_specs=(rows, rows, rows, own, own), out_specs=rows)
        return jnp.sum(jnp.sin(f(x, experts, weights, pair, kept).astype(jnp.float32)))

    got, want = (jax.jit(jax.grad(loss, (0, 1)))(x, pair, given) for given in (kept, {}))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("chosen", [[], [0], [3], [1, 2]])
def test_experts_of_no_rows(device, chosen):
    (x, _, weights), pair = arguments()
    experts = jnp.asarray(np.resize(chosen or [-1], (T, TOP_K)), jnp.int32)
    want = reference(x, experts, weights, *pair, "fp8_row")
    assert norm_of_difference(jf.moe.mlp(x, experts, weights, *pair, format="fp8_row"), want) < 1e-2
    grads = jax.grad(lambda pair: jnp.sum(jf.moe.mlp(x, experts, weights, *pair, format="fp8_row")))(pair)
    unused = [e for e in range(EXPERTS) if e not in chosen]
    for grad in grads:
        assert not grad[np.array(unused)].any()
        assert all(grad[e].any() for e in chosen)


@pytest.mark.parametrize(("d", "f"), [(100, 36), (128, 130), (16, 8)])
def test_sizes_that_fit_no_tile(device, d, f):
    (x, experts, weights), pair = arguments("bfloat16", d=d, f=f)
    cotangent = arrays.array(T, d)

    def loss(x, pair, format):
        return jnp.sum(cotangent * jf.moe.mlp(x, experts, weights, *pair, format=format))

    for format in FORMATS:
        got, want = (jax.jit(jax.grad(functools.partial(loss, format=f), (0, 1)))(x, pair) for f in (format, None))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert norm_of_difference(a, b) < 0.12


def test_nan_stays_in_its_token_and_expert(device):
    (x, experts, weights), (w13, w2) = arguments()
    experts = experts.at[:, 0].set(0).at[:, 1].set(jnp.where(experts[:, 1] == 2, 1, experts[:, 1]))
    want = jf.moe.mlp(x, experts, weights, w13, w2, format="fp8_row")
    got = jf.moe.mlp(x.at[5].set(jnp.nan), experts, weights, w13.at[2].set(jnp.nan), w2, format="fp8_row")
    assert np.isnan(got[5]).all()
    assert_close(np.delete(got, 5, 0), np.delete(want, 5, 0))


def test_no_tokens():
    (x, experts, weights), pair = arguments()
    out = jf.moe.mlp(x[:0], experts[:0], weights[:0], *pair, format="fp8_row")
    assert out.shape == (0, D)
    grads = jax.grad(lambda pair: jnp.sum(jf.moe.mlp(x[:0], experts[:0], weights[:0], *pair, format="fp8_row")))(pair)
    assert not any(g.any() for g in grads)


def test_leading_dimensions_vmap_scan_checkpoint_and_export():
    (x, experts, weights), pair = arguments()
    layer = jax.jit(functools.partial(jf.moe.mlp, format="fp8_row"))
    want = layer(x, experts, weights, *pair)
    out = layer(x[None, :36].reshape(4, 9, D), *(a[:36].reshape(4, 9, TOP_K) for a in (experts, weights)), *pair)
    assert_close(out.reshape(36, D), want[:36])
    batch = jax.vmap(layer, (0, None, None, None, None))(jnp.stack([x, -x]), experts, weights, *pair)
    assert_close(batch[0], want)
    small = [quantized(w, "fp8_row") for w in pair]
    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), small)
    two, _ = jax.lax.scan(lambda x, m: (jf.moe.mlp(x, experts, weights, *m), None), x, stacked)
    assert_close(two, jf.moe.mlp(want, experts, weights, *small))
    loss = lambda f: lambda x: jnp.sum(jnp.sin(f(x, experts, weights, *pair)))  # noqa: E731
    assert_close(jax.grad(loss(jax.checkpoint(layer)))(x), jax.grad(loss(layer))(x))
    ours = [jax.export.DisabledSafetyCheck.custom_call("jax_fuser.program")]
    narrow = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (x.astype(jnp.bfloat16), experts, weights))
    text = jax.export.export(jax.jit(jf.moe.mlp), platforms=["cuda"], disabled_checks=ours)(*narrow, *small)
    assert text.mlir_module().count(", lhs_scales, rhs_scales") == 2


@pytest.mark.parametrize("devices", [2, 4])
def test_experts_of_several_devices(device, devices):
    (x, experts, weights), pair = arguments(tokens=36)
    how = {"format": "fp8_row", "dw_format": "fp8_row"}
    on_mesh = jax.shard_map(
        functools.partial(jf.moe.ep_mlp, axis_name="ep", **how), mesh=meshes.mesh(ep=devices),
        in_specs=P("ep"), out_specs=P("ep"),
    )  # fmt: skip
    here = functools.partial(jf.moe.mlp, **how)
    got, want = (
        jax.jit(jax.value_and_grad(lambda x, pair, f=f: jnp.sum(x * f(x, experts, weights, *pair)), (0, 1)))(x, pair)
        for f in (on_mesh, here)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert norm_of_difference(a, b) < 1e-2


def refused(message, error=ValueError, **changes):
    args, pair = arguments()
    given = dict(zip(("x", "experts", "weights", "w13", "w2"), (*args, *pair), strict=True)) | changes
    with pytest.raises(error, match=re.escape(message)):
        jf.moe.mlp(**given)


def test_messages():
    (x, experts, weights), (w13, w2) = arguments()
    q13, q2 = quantized(w13, "fp8_row"), quantized(w2, "fp8_row")
    refused("mlp: format must be one of ['fp8_block', 'fp8_row'] or None, got 'fp4'", format="fp4")
    refused(
        "mlp: format= quantizes floats, got w13 as ScaledTensor; leave it out", TypeError, w13=q13, format="fp8_row"
    )
    refused("both must, with scales for rows or for blocks, got fp8_row and float32", TypeError, w13=q13)
    refused("got fp8_row and fp8_block; quantize both", TypeError, w13=q13, w2=quantized(w2, "fp8_block"))
    refused("mlp: w13 must be an array, PackedWeights, or a ScaledTensor of fp8_row", TypeError,
            w13=jf.quantize(jnp.swapaxes(w13, 1, 2), "mxfp8"))  # fmt: skip
    refused("8-bit products take x of bfloat16, float16, float32, got complex64", TypeError,
            x=x.astype(jnp.complex64), w13=q13, w2=q2)  # fmt: skip
    narrow = quantized(w13[:, :120], "fp8_row"), quantized(w2[:, :, :120], "fp8_row")
    refused("the last axis of w13 in eight bits must be a multiple of 16, got (4, 512, 120)", x=x[:, :120],
            w13=narrow[0], w2=narrow[1])  # fmt: skip
    refused("mlp: dw_format must be None, or 'fp8_row' beside format=, got 'fp8_row' beside format=None",
            dw_format="fp8_row")  # fmt: skip
    refused("mlp: dw_format must be None, or 'fp8_row' beside format=, got 'fp8' beside format='fp8_row'",
            format="fp8_row", dw_format="fp8")  # fmt: skip
    refused("mlp: quantized_w2= needs format= and floats", quantized_w2=(q2, q2))
    refused("mlp: quantized_w13 must hold fp8_row (4, 128, 512) with scales (4, 128), got ScaledTensor(fp8_row",
            format="fp8_row", quantized_w13=(q13, q13))  # fmt: skip
    refused("mlp: quantized_w13 must be two ScaledTensors", TypeError, format="fp8_row", quantized_w13=q13)
    with pytest.raises(TypeError, match="mlp: a layer of weights that are quantized in 8 bits has no derivative"):
        jax.grad(lambda x: jf.moe.mlp(x, experts, weights, q13, q2).sum())(x)
    layer = lambda x: jf.moe.mlp(x, experts, weights, w13, w2, format="fp8_row").sum()  # noqa: E731
    for derivative in (jax.jacfwd(layer), jax.hessian(layer), jax.grad(lambda x: jax.grad(layer)(x).sum())):
        with pytest.raises(TypeError, match="mlp: format= has derivatives in reverse mode, once"):
            derivative(x)
