"""Norms, activations, dropout and noise, embeddings (norm, act, drop, emb)."""

import jax
import jax.numpy as jnp
from jax import lax, nn
from jax.random import wrap_key_data

from ..fuse import layer_norm, rms_norm
from .cases import KEY, booleans, corner, f32, integers, normal, positive, uniform

ROWS, COLUMNS = normal((16384, 2048), (33, 65)), normal((2048,), (65,))
ODD_ROWS, ODD_COLUMNS = normal((8191, 4095), (33, 65)), normal((4095,), (65,))
CHANNELS, BATCH_CHANNELS = normal((256,), (16,)), normal((128,), (16,), "f32")
NHWC, NCHW = normal((64, 56, 56, 128), (2, 4, 5, 16)), normal((64, 128, 56, 55), (2, 16, 4, 5))
TOKENS, IDS = normal((32000, 1024), (99, 1024)), integers(0, (32000, 99), (32768,), (33,))


@corner(
    "norm.group_nhwc",
    *(normal((32, 64, 64, 256), (2, 4, 5, 16)), CHANNELS, CHANNELS),
    forward="bf16",
    vjp=("f32", 0, 1, 2),
)
def group_norm(x, w, b):
    n, c = x.shape[0], x.shape[-1]
    y = f32(x).reshape(n, -1, 8, c // 8)
    m, v = y.mean((1, 3), keepdims=True), y.var((1, 3), keepdims=True)
    return (((y - m) * lax.rsqrt(v + 1e-5)).reshape(x.shape) * w + b).astype(x.dtype)


@corner("norm.group_nchw_silu", normal((32, 256, 64, 64), (2, 16, 4, 5)), CHANNELS, CHANNELS, vjp=("bf16", 0, 1, 2))
def group_norm_nchw_silu(x, w, b):
    y = f32(x).reshape(x.shape[0], x.shape[1] // 8, -1)
    y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return nn.silu(y.reshape(x.shape) * w[:, None, None] + b[:, None, None]).astype(x.dtype)


@corner("norm.instance_nchw", normal((32, 96, 111, 113), (2, 3, 6, 5)), forward="bf16", vjp="f32")
def instance_norm(x, axes=(2, 3)):
    y = f32(x)
    return ((x - y.mean(axes, keepdims=True)) * lax.rsqrt(y.var(axes, keepdims=True) + 1e-5)).astype(x.dtype)


corner("norm.instance_nhwc", normal((32, 112, 112, 96), (2, 6, 5, 3)), vjp="bf16")(lambda x: instance_norm(x, (1, 2)))


@corner("norm.batch_nhwc", NHWC, BATCH_CHANNELS, BATCH_CHANNELS, forward="bf16")
def batch_norm(x, w, b, channels=3):
    axes, shape = [i for i in range(4) if i != channels], [-1 if i == channels else 1 for i in range(4)]
    y = f32(x)
    m = y.mean(axes)
    v = (y * y).mean(axes) - m * m
    scaled = (y - m.reshape(shape)) * (lax.rsqrt(v + 1e-5) * w).reshape(shape)
    return (scaled + b.reshape(shape)).astype(x.dtype), m, v


@corner("norm.batch_nchw", NCHW, BATCH_CHANNELS, BATCH_CHANNELS)
def batch_norm_nchw(x, w, b):
    return batch_norm(x, w, b, channels=1)


@corner("norm.batch_nhwc_relu", NHWC, BATCH_CHANNELS, BATCH_CHANNELS, forward=None, vjp=("f32", 0, 1, 2))
def batch_norm_relu(x, w, b):
    return nn.relu(batch_norm(x, w, b)[0])


@corner("norm.batch_nchw_relu", NCHW, BATCH_CHANNELS, BATCH_CHANNELS, forward=None, vjp=("bf16", 0, 1, 2))
def batch_norm_nchw_relu(x, w, b):
    return nn.relu(batch_norm_nchw(x, w, b)[0])


@corner("norm.batch_infer_relu_add", NHWC, NHWC, *[positive((128,), (16,))] * 4, forward="bf16")
def batch_infer_relu_add(x, z, m, v, w, b):
    return nn.relu((x - m) * lax.rsqrt(v + 1e-5) * w + b + z)


corner("norm.layer_odd", ODD_ROWS, ODD_COLUMNS, ODD_COLUMNS, forward="bf16", vjp=("f32", 0, 1, 2))(layer_norm)


@corner("norm.rms_gemma_residual", ROWS, ROWS, COLUMNS, vjp=("bf16", 0, 1, 2))
def rms_gemma_residual(x, residual, w):
    h = x + residual
    return h, rms_norm(h, 1 + f32(w))


@corner("norm.layer_two_axes", normal((8192, 16, 255), (33, 16, 9)), normal((16, 255), (16, 9)), vjp=("f32", 0, 1))
def layer_two_axes(x, w):
    return (x - x.mean((-2, -1), keepdims=True)) * lax.rsqrt(x.var((-2, -1), keepdims=True) + 1e-5) * w


@corner(
    "norm.adaln_zero",
    normal((64, 256, 1152), (3, 9, 17)),
    *[normal((64, 1152), (3, 17))] * 3,
    normal((64, 256, 1152), (3, 9, 17)),
    vjp=("bf16", 0, 1, 2, 3, 4),
)
def adaptive_layer_norm(x, scale, shift, gate, h):
    y = f32(x)
    y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-6)
    return h + gate[:, None] * (y * (1 + scale[:, None]) + shift[:, None]).astype(x.dtype)


@corner("norm.l2_axis1", normal((64, 384, 1023), (3, 9, 7)), forward="bf16", vjp="f32")
def l2_norm_axis1(x):
    return x * lax.rsqrt((f32(x) ** 2).sum(1, keepdims=True) + 1e-6).astype(x.dtype)


@corner("norm.dyt", ROWS, positive(()), COLUMNS, COLUMNS, vjp=("bf16", 0, 1, 2, 3))
def dynamic_tanh(x, a, w, b):
    return jnp.tanh(a * x) * w + b


corner("norm.softmax_axis0", normal((512, 65536), (33, 65)), forward="bf16", vjp="f32")(lambda x: nn.softmax(x, 0))
corner("norm.softmax_axis12", normal((64, 1024, 511), (3, 9, 7)))(lambda x: nn.softmax(x, (1, 2)))
corner("norm.log_softmax_mid", normal((256, 150, 1024), (3, 9, 7)), forward="bf16", vjp="f32")(
    lambda x: nn.log_softmax(x, 1)
)


@corner("act.swiglu_halves", normal((8192, 8192), (33, 66)), vjp="bf16")
def swiglu_halves(x):
    gate, up = jnp.split(x, 2, -1)
    return nn.silu(gate) * up


@corner("act.swiglu_oai_interleaved", normal((8192, 5760), (33, 66)), forward="bf16", vjp="f32")
def swiglu_interleaved(x):
    gate, up = jnp.minimum(x[..., ::2], 7), jnp.clip(x[..., 1::2], -7, 7)
    return gate * nn.sigmoid(1.702 * gate) * (up + 1)


@corner("act.where_chain", ROWS, vjp="bf16")
def where_chain(x):
    above = jnp.where(x < 1, jnp.tanh(x), jnp.where(x < 3, x * x, x))
    return jnp.where(x < -3, 0, jnp.where(x < -1, x * (x + 3) / 6, above))


@corner("act.select_piecewise", ROWS, vjp="f32")
def select_piecewise(x):
    values = [jnp.exp(x), nn.selu(x), jnp.sqrt(jnp.abs(x) + 1)]
    return jnp.select([x < -2, x < 0, x < 2], values, jnp.log1p(jnp.abs(x)))


@corner("act.bias_gelu_erf", ODD_ROWS, ODD_COLUMNS, vjp=("bf16", 0, 1))
def bias_gelu_erf(x, b):
    return nn.gelu(x + b, approximate=False)


@corner("act.maxout", normal((16384, 2052), (33, 28)), vjp="bf16")
def maxout(x):
    return x.reshape(x.shape[0], -1, 4).max(-1)


@corner("act.spline_kan", normal((8192, 1025), (33, 7)), vjp="f32")
def spline(x):
    t = x - jnp.floor(x)
    return jnp.stack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], -1) / 6


@corner("drop.dropout", ROWS, KEY, vjp="bf16")
def dropout(x, key):
    return jnp.where(jax.random.bernoulli(wrap_key_data(key), 0.9, x.shape), x / 0.9, 0).astype(x.dtype)


@corner("drop.residual_ln", ROWS, ROWS, KEY, COLUMNS, COLUMNS, forward="bf16", vjp=("f32", 0, 1, 3, 4))
def dropout_residual_layer_norm(x, residual, key, w, b):
    h = residual + dropout(x, key)
    return h, layer_norm(h, w, b)


@corner("drop.stochastic_depth", *[normal((64, 512, 1024), (4, 9, 7))] * 2, KEY, vjp=("bf16", 0, 1))
def stochastic_depth(x, residual, key):
    kept = jax.random.bernoulli(wrap_key_data(key), 0.8, (x.shape[0], 1, 1))
    return residual + x * (kept / 0.8).astype(x.dtype)


@corner("drop.gauss_noise", ROWS, KEY)
def gauss_noise(x, key):
    return x + 0.1 * jax.random.normal(wrap_key_data(key), x.shape, x.dtype)


@corner("drop.token_mask", integers(0, 30000, (32768, 513), (33, 513)), KEY)
def token_mask(ids, key):
    u = jax.random.uniform(wrap_key_data(key), ids.shape)
    return jnp.where(u < 0.12, 103, jnp.where(u < 0.135, 7, ids))


corner("emb.one_hot", IDS)(lambda i: nn.one_hot(i, 2048, dtype=jnp.bfloat16))
corner("emb.take", TOKENS, IDS, forward="bf16", floor=lambda written: 2 * written)(lambda t, i: jnp.take(t, i, 0))


@corner(
    "emb.take_scale_pos_ln",
    *(TOKENS, IDS, normal((32768, 1024), (33, 1024)), normal((1024,)), normal((1024,))),
    floor=lambda written: 3 * written,
)
def embed(table, i, positions, w, b):
    return layer_norm(table[i] * 32.0 + positions, w, b)


@corner(
    "emb.bag_mean",
    normal((32000, 256), (99, 256)),
    integers(0, (32000, 99), (8192, 16), (9, 16)),
    booleans((8192, 16), (9, 16), p=0.8),
)
def bag_mean(table, i, mask):
    return (table[i] * mask[..., None]).sum(1) / mask.sum(1)[:, None]


@corner("emb.sinusoid_add", normal((8, 4096, 1024), (2, 9, 1024)))
def add_sinusoids(x):
    half = x.shape[2] // 2
    a = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    return x + jnp.stack([jnp.sin(a), jnp.cos(a)], -1).reshape(x.shape[1:]).astype(x.dtype)


@corner("emb.timestep", uniform((131072,), (33,), high=1000.0))
def timestep(t):
    a = t[:, None] * jnp.exp(-9.21 * jnp.arange(256) / 256)
    return jnp.concatenate([jnp.cos(a), jnp.sin(a)], -1)


@corner("emb.fourier_nerf", normal((1000000, 3), (99, 3)))
def fourier_features(x):
    a = x[..., None] * 2.0 ** jnp.arange(10)
    return jnp.concatenate([x, jnp.sin(a).reshape(x.shape[0], -1), jnp.cos(a).reshape(x.shape[0], -1)], -1)
