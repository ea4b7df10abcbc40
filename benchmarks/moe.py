"""A whole mixture-of-experts layer: route, dispatch, two grouped matmuls with SwiGLU, combine; forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import jax_fuser as jf

from .measure import Contender, time_all
from .report import OURS, Case


@dataclass(frozen=True)
class Layer:
    """Tokens x hidden through `experts` of width `ffn`, `top_k` each."""

    name: str
    tokens: int
    hidden: int
    ffn: int
    experts: int
    top_k: int


CPU_LAYERS = [Layer("small", 1024, 512, 1024, 8, 2), Layer("many experts", 1024, 512, 512, 64, 4)]
GPU_LAYERS = [
    Layer("Qwen3", 8192, 2048, 768, 128, 8),
    Layer("Mixtral", 8192, 4096, 14336, 8, 2),
    Layer("DeepSeek-V3 slice", 8192, 7168, 2048, 32, 4),
]
# Few tokens: weights are read, and little else.
DECODERS = [
    Layer("gpt-oss-120b decode", 64, 2880, 2880, 128, 4),
    Layer("DeepSeek-V3 slice decode", 256, 7168, 2048, 32, 4),
]

# Routing alone: no rows to speak of.
ROUTERS = [Layer("router", 16384, 1, 0, 128, 8), Layer("DeepSeek-V3 router", 16384, 1, 0, 256, 8)]


def plain_router(layer: Layer) -> Callable[..., Any]:
    """Weights, the order of the choices by expert and the load, as one writes them in JAX today."""

    def f(logits: jax.Array) -> tuple[jax.Array, ...]:
        weights, experts = jax.lax.top_k(jax.nn.softmax(logits), layer.top_k)
        flat = experts.reshape(-1)
        order = jnp.argsort(flat, stable=True)
        weights = weights / weights.sum(-1, keepdims=True)
        return weights, order, jnp.argsort(order), jnp.bincount(flat, length=layer.experts)

    return f


def our_router(layer: Layer) -> Callable[..., Any]:
    """The same through jax_fuser."""

    def f(logits: jax.Array) -> tuple[jax.Array, ...]:
        weights, experts, _ = jf.moe.route(logits, layer.top_k)
        _, state = jf.moe.dispatch(logits[:, :1], experts, num_experts=layer.experts)
        return weights, state.source, state.target, state.extents

    return f


def _loss_and_rest(weights: jax.Array, *rest: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return jnp.sum(jnp.sin(weights)), rest


def router_cases(only: str) -> Iterator[Case]:
    """Yield the time of routing."""
    for layer in ROUTERS:
        logits = jax.random.normal(jax.random.key(0), (layer.tokens, layer.experts), jnp.float32)
        for which in ("forward", "forward+backward"):
            name = f"{layer.name} {which} float32"
            if only not in name:
                continue
            contenders = []
            for way, f in ((OURS, our_router(layer)), ("plain JAX", plain_router(layer))):
                step = jax.jit(f)
                if which != "forward":
                    step = jax.jit(jax.value_and_grad(lambda x, f=f: _loss_and_rest(*f(x)), has_aux=True))
                contenders.append(Contender(way, functools.partial(step, logits)))
            parameters = {"tokens": layer.tokens, "experts": layer.experts, "top_k": layer.top_k}
            case = Case("moe", name, parameters, "us", 0)
            case.timings = time_all(contenders, seconds=4, repeats=7, inner=5)
            yield case


def plain_layer(layer: Layer) -> Callable[..., Any]:
    """The layer as one writes it in JAX today."""

    def f(x: jax.Array, logits: jax.Array, w13: jax.Array, w2: jax.Array) -> jax.Array:
        weights, experts = jax.lax.top_k(jax.nn.softmax(logits.astype(jnp.float32)), layer.top_k)
        weights = weights / weights.sum(-1, keepdims=True)
        flat = experts.reshape(-1)
        order = jnp.argsort(flat, stable=True)
        sizes = jnp.bincount(flat, length=layer.experts).astype(jnp.int32)
        h = jax.lax.ragged_dot(x[order // layer.top_k], w13, sizes)
        gate, up = jnp.split(h, 2, -1)
        y = jax.lax.ragged_dot(jax.nn.silu(gate) * up, w2, sizes)
        y = y[jnp.argsort(order)].reshape(layer.tokens, layer.top_k, -1).astype(jnp.float32)
        return jnp.einsum("tkh,tk->th", y, weights).astype(x.dtype)

    return f


def our_layer(layer: Layer, mlp: Callable[..., Any] = jf.moe.mlp) -> Callable[..., Any]:
    """The same through jax_fuser."""

    def f(x: jax.Array, logits: jax.Array, w13: jax.Array, w2: jax.Array) -> jax.Array:
        weights, experts, _ = jf.moe.route(logits, layer.top_k)
        return mlp(x, experts, weights, w13, w2)

    return f


def in_four_bits(matrices: jax.Array) -> jf.PackedWeights:
    """Weights `(experts, k, n)` as the kernel reads them."""
    quantize = jax.jit(lambda w: jf.repack_weights(jf.quantize(jnp.swapaxes(w, 1, 2), "mxfp4")))
    packed: jf.PackedWeights = quantize(matrices)
    return packed


def in_eight_bits(matrices: jax.Array) -> jf.ScaledTensor:
    """The same with a scale for each row."""
    quantize = jax.jit(lambda w: jf.quantize(jnp.swapaxes(w, 1, 2), "fp8_row"))
    quantized: jf.ScaledTensor = quantize(matrices)
    return quantized


def kept(w13: jax.Array, w2: jax.Array) -> dict[str, tuple[jf.ScaledTensor, jf.ScaledTensor]]:
    """What `format="fp8_row"` would make of the weights in every call."""
    along = jax.jit(lambda w: jf.quantize(w, "fp8_row"))
    return {f"quantized_{name}": (in_eight_bits(w), along(w)) for name, w in (("w13", w13), ("w2", w2))}


def layer_of_kept(layer: Layer, mlp: Callable[..., Any]) -> Callable[..., Any]:
    """The layer with what `kept` returns as its last argument."""
    return lambda *args: our_layer(layer, functools.partial(mlp, **args[-1]))(*args[:-1])


def decode_cases(only: str) -> Iterator[Case]:
    """Yield the time of layers for few tokens, with weights of 16, eight and four bits."""
    for layer in DECODERS:
        name = f"{layer.name} forward bfloat16"
        if only not in name:
            continue
        x, logits, w13, w2 = arguments(layer, "bfloat16")
        packed, quantized = ((small(w13), small(w2)) for small in (in_four_bits, in_eight_bits))
        ways = [
            (OURS, our_layer(layer), (w13, w2)),
            (f"{OURS}, fp8_row weights", our_layer(layer), quantized),
            (f"{OURS}, mxfp4 weights", our_layer(layer), packed),
            ("plain JAX", plain_layer(layer), (w13, w2)),
        ]
        contenders = [Contender(way, functools.partial(jax.jit(f), x, logits, *given)) for way, f, given in ways]
        parameters = {"tokens": layer.tokens, "hidden": layer.hidden, "ffn": layer.ffn, "experts": layer.experts}
        case = Case("moe", name, parameters, "us", 0)
        case.timings = time_all(contenders, seconds=4, repeats=7, inner=5)
        yield case


def arguments(layer: Layer, dtype: str) -> tuple[jax.Array, ...]:
    """Return tokens, logits and weights of both products."""
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (layer.tokens, layer.hidden), dtype)
    logits = jax.random.normal(keys[1], (layer.tokens, layer.experts), jnp.float32)
    w13 = jax.random.normal(keys[2], (layer.experts, layer.hidden, 2 * layer.ffn), dtype)
    w2 = jax.random.normal(keys[3], (layer.experts, layer.ffn, layer.hidden), dtype)
    return x, logits, (w13 * layer.hidden**-0.5).astype(dtype), (w2 * layer.ffn**-0.5).astype(dtype)


def several_ways(layer: Layer, args: tuple[jax.Array, ...]) -> list[tuple[str, Callable[..., Any], Any]]:
    """Ways to compute the layer with an equal part of the tokens on each device, with the arguments as they lie there.

    Experts are spread, and rows go to them and back, or all of them are on every device, and no row moves.
    """
    mesh = jax.make_mesh((jax.device_count(),), ("ep",), axis_types=(jax.sharding.AxisType.Auto,))
    spread, everywhere = jax.P("ep"), jax.P()
    over = functools.partial(jax.shard_map, mesh=mesh, out_specs=spread)
    mlp = functools.partial(jf.moe.ep_mlp, axis_name="ep")
    parts = jax.device_put(args, jax.NamedSharding(mesh, spread))
    copies = jax.device_put(args[2:], jax.NamedSharding(mesh, everywhere))
    return [
        (OURS, over(our_layer(layer, mlp), in_specs=spread), parts),
        (
            f"{OURS}, capacity 1.25",
            over(our_layer(layer, functools.partial(mlp, capacity=1.25)), in_specs=spread),
            parts,
        ),
        (
            f"{OURS}, all experts everywhere",
            over(our_layer(layer), in_specs=(spread, spread, everywhere, everywhere)),
            (*parts[:2], *copies),
        ),
        ("plain JAX", plain_layer(layer), parts),
    ]


def cases(*, quick: bool, only: str) -> Iterator[Case]:
    """Yield measured cases; work counts the FLOPs of the three matmuls, three times as many with the backward pass.

    Where there are several devices, layers run on all of them.
    """
    yield from router_cases(only)
    gpu, devices = jax.default_backend() == "gpu", jax.device_count()
    if gpu and devices == 1:
        yield from decode_cases(only)
    for layer in GPU_LAYERS if gpu else CPU_LAYERS:
        for dtype in ("bfloat16",) if gpu else ("float32", "bfloat16"):
            args = arguments(layer, dtype)
            flops = 6.0 * layer.tokens * layer.top_k * layer.hidden * layer.ffn
            if devices > 1:
                ways = several_ways(layer, args)
            else:
                ways = [(OURS, our_layer(layer), args), ("plain JAX", plain_layer(layer), args)]
                if gpu:
                    mlp = functools.partial(jf.moe.mlp, format="fp8_row")
                    with_dw = functools.partial(mlp, dw_format="fp8_row")
                    ways[1:1] = [
                        (f"{OURS}, fp8_row", our_layer(layer, mlp), args),
                        (f"{OURS}, fp8_row, dw too", our_layer(layer, with_dw), args),
                        (
                            f"{OURS}, fp8_row, dw too, weights once",
                            layer_of_kept(layer, with_dw),
                            (*args, kept(*args[2:])),
                        ),
                    ]
            for which in ("forward", "forward+backward"):
                name = f"{layer.name} {which} {dtype}" + (f" on {devices} devices" if devices > 1 else "")
                if only not in name:
                    continue
                contenders = []
                for way, f, given in ways:
                    step = jax.jit(f)
                    if which != "forward":
                        step = jax.jit(jax.grad(lambda *a, f=f: f(*a).astype(jnp.float32).var(), argnums=(0, 1, 2, 3)))
                    contenders.append(Contender(way, functools.partial(step, *given)))
                parameters = {
                    "tokens": layer.tokens,
                    "hidden": layer.hidden,
                    "ffn": layer.ffn,
                    "experts": layer.experts,
                }
                work = flops * (1 if which == "forward" else 3)
                case = Case("moe", name, parameters, "TFLOP/s" if gpu else "GFLOP/s", work)
                case.timings = time_all(contenders, seconds=4, repeats=7, inner=5 if gpu else 1)
                yield case
