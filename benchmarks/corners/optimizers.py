"""Steps of optimizers, some over trees of weights (opt)."""

import jax
import jax.numpy as jnp
from jax import lax

from .cases import KEY, bits, corner, f32, normal, positive

MATRIX = ((4096, 4099), (33, 21))
LONG, ROUNDED = ((8192, 4096), (16, 512)), normal((8192, 4097), (33, 21), "f32")
SCALAR = positive((), None, "f32")


def weights(make=normal, dtype=None):
    up, down = make((1024, 4096), (9, 17), dtype), make((4096, 1024), (17, 9), dtype)
    biases = [make((4096,), (17,), dtype), make((1024,), (9,), dtype)]
    return {"w": [up, down], "b": biases, "e": make((8000, 1024), (33, 9), dtype)}


def moments(m, v, g):
    return 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g


def global_norm(tree):
    return jnp.sqrt(sum((f32(x) ** 2).sum() for x in jax.tree.leaves(tree)))


@corner("opt.adam", *[normal(*MATRIX)] * 3, positive(*MATRIX), SCALAR)
def adam(p, g, m, v, t):
    m, v = moments(m, v, g)
    return p - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v


@corner(
    "opt.adamw_clip_tree",
    *(weights(dtype="f32"), weights(), weights(dtype="f32"), weights(positive, "f32"), SCALAR),
)
def clipped_adamw(p, g, m, v, t):
    n = global_norm(g)

    def step(p, m, v):
        return p - 1e-3 * (m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.95**t)) + 1e-8) + 0.1 * p)

    g = jax.tree.map(lambda x: f32(x) * jnp.minimum(1.0, 1.0 / (n + 1e-6)), g)
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
    v = jax.tree.map(lambda a, b: 0.95 * a + 0.05 * b * b, v, g)
    return jax.tree.map(step, p, m, v), m, v


@corner("opt.global_norm_clip", weights(), forward="bf16")
def global_norm_clip(g):
    n = global_norm(g)
    return jax.tree.map(lambda x: (x * jnp.minimum(1.0, 1.0 / n)).astype(x.dtype), g)


@corner(
    "opt.adafactor",
    *(normal(*MATRIX), normal(*MATRIX), positive((4096,), (33,), "f32"), positive((4099,), (21,), "f32")),
    forward="bf16",
)
def adafactor(p, g, r, c):
    g2 = f32(g) ** 2 + 1e-30
    r, c = 0.99 * r + 0.01 * g2.mean(1), 0.99 * c + 0.01 * g2.mean(0)
    u = g * lax.rsqrt(r / r.mean())[:, None] * lax.rsqrt(c)[None]
    u = u / jnp.maximum(1.0, jnp.sqrt((u * u).mean()))
    return (p - 1e-2 * jnp.maximum(1e-3, jnp.sqrt((f32(p) ** 2).mean())) * u).astype(p.dtype), r, c


@corner("opt.lamb", *[normal(*MATRIX)] * 3, positive(*MATRIX))
def lamb(p, g, m, v):
    m, v = moments(m, v, g)
    u = m / (jnp.sqrt(v) + 1e-6) + 0.01 * p
    pn, un = jnp.linalg.norm(p), jnp.linalg.norm(u)
    return p - 1e-3 * jnp.where((pn > 0) & (un > 0), pn / un, 1.0) * u, m, v


@corner("opt.muon_pieces", *[normal((8192, 4096), (33, 21))] * 2)
def muon(g, m):
    m = 0.95 * m + g
    u = g + 0.95 * m
    return m, (u / (jnp.linalg.norm(f32(u)) + 1e-7)).astype(jnp.bfloat16)


@corner("opt.muon_batched_T", *[normal((12, 2048, 1024), (2, 33, 21))] * 2)
def muon_batched(g, m):
    u = g + 0.95 * m
    return (u / (jnp.sqrt((u * u).sum((1, 2), keepdims=True)) + 1e-7)).swapaxes(1, 2).astype(jnp.bfloat16)


@corner("opt.master_weights", weights(dtype="f32"), weights(dtype="bf16"), weights(dtype="f32"), SCALAR)
def master_weights(p, g, m, scale):
    g = jax.tree.map(lambda x: f32(x) / scale, g)
    ok = jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(g)]).all()

    def if_finite(new, old):
        return jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, old)

    new_m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
    new_p = if_finite(jax.tree.map(lambda p, m: p - 1e-3 * m, p, new_m), p)
    low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), new_p)
    return new_p, if_finite(new_m, m), low, jnp.where(ok, scale * 2, scale / 2)


@corner("opt.momentum_8bit", normal(*LONG), normal(*LONG), bits("i8", *LONG), positive((131072,), (32,)))
def momentum_in_8_bits(p, g, q, s):
    m = (q.reshape(-1, 256) * s[:, None]).reshape(p.shape) * 0.9 + 0.1 * g
    b = m.reshape(-1, 256)
    s = jnp.abs(b).max(-1) / 127
    return p - 1e-3 * m, jnp.round(b / s[:, None]).astype(jnp.int8).reshape(p.shape), s


@corner("opt.stochastic_round", ROUNDED, bits("u32", (8192, 4097), (33, 21)))
def stochastic_round(x, bits):
    b = lax.bitcast_convert_type(x, jnp.uint32) + (bits & 0xFFFF)
    return lax.bitcast_convert_type(b & jnp.uint32(0xFFFF0000), jnp.float32).astype(jnp.bfloat16)


@corner("opt.stochastic_round_key", ROUNDED, KEY)
def stochastic_round_key(x, key):
    return stochastic_round(x, jax.random.bits(jax.random.wrap_key_data(key), x.shape, "uint32"))
