"""Attention around its products, and what is done to logits (attn, logits)."""

import math

import jax
import jax.numpy as jnp
from jax import lax, nn
from jax.random import wrap_key_data

from ..fuse import rms_norm, rotary, softmax
from .cases import KEY, corner, f32, integers, normal, positive, segment_ids, uniform

MASKED = -1e30
SCORES, SLOPES = normal((4, 8, 1024, 1024), (2, 3, 33, 33)), ((8,), (3,))
HEADS, OF_HEADS = normal((4, 4096, 16, 128), (2, 7, 3, 128)), ((4, 4096, 16), (2, 7, 3))
GAIN, POSITIONS = normal((128,)), integers(0, 4096, (4, 4096), (2, 7))
CACHE, NEW = normal((16, 4096, 8, 128), (2, 16, 8, 128)), normal((16, 1, 8, 128), (2, 1, 8, 128))
PLACES = integers(0, 15, (16,), (2,))
VOCABULARY = ((512, 128256), (5, 999))


def places(s):
    """Return each score's query and key."""
    return [lax.broadcasted_iota(jnp.int32, (s.shape[-1],) * 2, axis) for axis in (0, 1)]


def masked_softmax(s, kept):
    return softmax(jnp.where(kept, s, jnp.array(MASKED, s.dtype)))


@corner("attn.causal", SCORES, vjp="bf16")
def causal(s):
    query, key = places(s)
    return masked_softmax(s * 0.125, query >= key)


@corner("attn.causal_tril", SCORES, forward="bf16")
def causal_tril(s):
    return masked_softmax(s * 0.125, jnp.tril(jnp.ones((s.shape[-1],) * 2, bool)))


@corner("attn.sliding", SCORES)
def sliding(s):
    query, key = places(s)
    return masked_softmax(s, (query >= key) & (query - key < 256))


@corner("attn.alibi", SCORES, uniform(*SLOPES, "f32"), forward="bf16", vjp="f32")
def alibi(s, slope):
    query, key = places(s)
    bias = (slope[:, None, None] * (key - query)).astype(s.dtype)
    return softmax(s + bias + jnp.where(key > query, MASKED, 0.0).astype(s.dtype))


@corner("attn.segments", SCORES, segment_ids(4, (4, 1024), (2, 33)), vjp="bf16")
def segments(s, segment):
    query, key = places(s)
    same = segment[:, :, None] == segment[:, None, :]
    return masked_softmax(s, same[:, None] & (query >= key))


@corner("attn.sink", SCORES, normal(*SLOPES), vjp=("bf16", 0, 1))
def sink(s, z):
    z = z[:, None, None]
    m = jnp.maximum(s.max(-1, keepdims=True), z)
    return jnp.exp(s - m) / (jnp.exp(s - m).sum(-1, keepdims=True) + jnp.exp(z - m))


@corner("attn.merge_partials", HEADS, normal(*OF_HEADS, "f32"), HEADS, normal(*OF_HEADS, "f32"), forward="bf16")
def merge_partials(out1, log1, out2, log2):
    m = jnp.maximum(log1, log2)
    a, b = jnp.exp(log1 - m), jnp.exp(log2 - m)
    return (out1 * a[..., None] + out2 * b[..., None]) / (a + b)[..., None], m + jnp.log(a + b)


@corner("attn.qk_norm", HEADS, HEADS, GAIN, GAIN, vjp=("bf16", 0, 1, 2, 3))
def qk_norm(q, k, w, v):
    return rms_norm(q, w), rms_norm(k, v)


def angles(positions, half):
    return (positions[..., None].astype(jnp.float32) * 10000.0 ** (-jnp.arange(half) / half))[:, :, None]


@corner("attn.rope_half", HEADS, POSITIONS, forward="bf16", vjp="f32")
def rope_half(x, positions):
    return rotary(x, angles(positions, x.shape[-1] // 2))


@corner("attn.rope_interleaved", HEADS, POSITIONS, vjp="bf16")
def rope_interleaved(x, positions):
    a = angles(positions, x.shape[-1] // 2)
    c, s = jnp.cos(a), jnp.sin(a)
    even, odd = f32(x[..., ::2]), f32(x[..., 1::2])
    return jnp.stack([even * c - odd * s, odd * c + even * s], -1).reshape(x.shape).astype(x.dtype)


@corner("attn.rope_table", HEADS, POSITIONS, *[normal((4096, 128))] * 2, forward="bf16", vjp="f32")
def rope_table(x, positions, cos, sin):
    half = x.shape[-1] // 2
    turned = jnp.concatenate([-x[..., half:], x[..., :half]], -1)
    return x * cos[positions][:, :, None] + turned * sin[positions][:, :, None]


@corner("attn.rope_complex", HEADS, POSITIONS, vjp="bf16")
def rope_complex(x, positions):
    z = lax.complex(f32(x[..., ::2]), f32(x[..., 1::2])) * jnp.exp(1j * angles(positions, x.shape[-1] // 2))
    return jnp.stack([z.real, z.imag], -1).reshape(x.shape).astype(x.dtype)


@corner("attn.rope_partial", HEADS, POSITIONS, forward="bf16", vjp="f32")
def rope_partial(x, positions):
    return jnp.concatenate([rope_half(x[..., :32], positions), x[..., 32:]], -1)


@corner("attn.rope_norm_split_qkv", normal((4, 4096, 3072), (2, 7, 512)), POSITIONS, GAIN, vjp="bf16")
def rope_norm_split_qkv(qkv, positions, w):
    heads = qkv.shape[-1] // 128
    q, k, v = jnp.split(qkv.reshape(*qkv.shape[:2], heads, 128), (heads * 2 // 3, heads * 5 // 6), 2)
    return (*[rope_half(rms_norm(x, w), positions).transpose(0, 2, 1, 3) for x in (q, k)], v.transpose(0, 2, 1, 3))


@corner("attn.split_heads", normal((8, 2048, 3072), (2, 5, 384)), forward="bf16", vjp="f32")
def split_heads(x):
    return x.reshape(*x.shape[:2], 3, -1, 64).transpose(2, 0, 3, 1, 4)


@corner("attn.repeat_kv", normal((4, 4096, 8, 128), (2, 7, 2, 128)), forward="bf16", vjp="f32")
def repeat_kv(x):
    return jnp.repeat(x, 4, 2)


@corner("attn.kv_update", CACHE, NEW, integers(0, 15, ()))
def kv_update(cache, new, i):
    return lax.dynamic_update_slice(cache, new, (0, i, 0, 0))


@corner("attn.kv_update_rows", CACHE, NEW, PLACES, forward="bf16")
def kv_update_rows(cache, new, i):
    return jax.vmap(lambda cache, new, i: lax.dynamic_update_slice(cache, new, (i, 0, 0)))(cache, new, i)


@corner("attn.kv_update_where", CACHE, NEW, PLACES)
def kv_update_where(cache, new, i):
    return jnp.where((jnp.arange(cache.shape[1]) == i[:, None])[..., None, None], new, cache)


@corner("attn.rel_shift", SCORES, forward="bf16", vjp="f32")
def relative_shift(x):
    b, h, q, k = x.shape
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (1, 0))).reshape(b, h, k + 1, q)[:, :, 1:].reshape(b, h, q, k)


@corner("attn.t5_bias", SCORES, normal((32, 8), (32, 3)))
def t5_bias(s, table):
    query, key = places(s)
    n = jnp.maximum(query - key, 0)
    far = 16 + (jnp.log(jnp.maximum(n, 1) / 16) / math.log(8) * 16).astype(jnp.int32)
    bucket = jnp.where(n < 16, n, jnp.minimum(far, 31))
    return softmax(s + table[bucket].transpose(2, 0, 1))


@corner("logits.topk_mask", normal(*VOCABULARY), forward="bf16")
def topk_mask(logits):
    return jnp.where(logits < lax.top_k(logits, 50)[0][:, -1:], jnp.array(MASKED, logits.dtype), logits)


@corner("logits.temperature_softmax", normal(*VOCABULARY), positive((512,), (5,), "f32"))
def temperature_softmax(logits, temperature):
    return nn.softmax(f32(logits) / temperature[:, None], -1)


@corner("logits.penalty", normal(*VOCABULARY), integers(0, 3, *VOCABULARY, "u8"), positive(()), forward="bf16")
def penalty(logits, seen, p):
    return jnp.where(seen > 0, jnp.where(logits > 0, logits / p, logits * p), logits) - 0.1 * seen


@corner("logits.min_p", normal(*VOCABULARY))
def min_p(logits):
    p = nn.softmax(f32(logits), -1)
    return jnp.where(p < 0.05 * p.max(-1, keepdims=True), MASKED, f32(logits))


@corner("logits.gumbel_argmax", normal(*VOCABULARY), KEY)
def gumbel_argmax(logits, key):
    return (logits + jax.random.gumbel(wrap_key_data(key), logits.shape, logits.dtype)).argmax(-1)


@corner("logits.logprob_entropy", normal(*VOCABULARY))
def log_probability_and_entropy(logits):
    q = nn.log_softmax(f32(logits), -1)
    return q, -(jnp.exp(q) * q).sum(-1)
