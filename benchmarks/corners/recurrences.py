"""Recurrent cells, state space models, scans (rnn, ssm, scan)."""

import jax.numpy as jnp
from jax import lax, nn

from ..fuse import rms_norm
from .attention import HEADS, OF_HEADS, SCORES, SLOPES, places
from .cases import booleans, corner, f32, normal, uniform

STATES = ((2, 1024, 1024), (2, 9, 5))
OF_STATES, DECAY = normal((2, 1024, 16), (2, 9, 16)), normal((1024, 16), (5, 16), "f32")
SEQUENCES, CHANNELS = ((16, 1024, 1024), (2, 16, 5)), ((1024,), (5,))
LAYERS = normal((8, 2048, 1024), (2, 9, 5))
CUBE = normal((127, 513, 1023), (5, 9, 13))


@corner("rnn.lstm_gates", normal((16384, 4092), (33, 68)), normal((16384, 1023), (33, 17)), vjp=("bf16", 0, 1))
def lstm_gates(z, c):
    i, f, g, o = jnp.split(z, 4, -1)
    c = nn.sigmoid(f + 1) * c + nn.sigmoid(i) * jnp.tanh(g)
    return nn.sigmoid(o) * jnp.tanh(c), c


@corner(
    "rnn.gru_gates",
    *[normal((8192, 3072), (33, 51))] * 2,
    normal((8192, 1024), (33, 17)),
    forward="bf16",
    vjp=("f32", 0, 1, 2),
)
def gru_gates(x, h, state):
    xr, xz, xn = jnp.split(x, 3, -1)
    hr, hz, hn = jnp.split(h, 3, -1)
    z = nn.sigmoid(xz + hz)
    return (1 - z) * jnp.tanh(xn + nn.sigmoid(xr + hr) * hn) + z * state


@corner("ssm.discretise", normal(*STATES), DECAY, OF_STATES, normal(*STATES))
def discretise(step, a, b, x):
    d = nn.softplus(f32(step))
    return jnp.exp(d[..., None] * -jnp.exp(a)), (d * f32(x))[..., None] * f32(b)[:, :, None]


@corner("ssm.step_output", normal(*STATES), DECAY, OF_STATES, normal(*STATES), OF_STATES, forward="bf16")
def step_output(step, a, b, x, c):
    p, q = discretise(step, a, b, x)
    h = p * 0.5 + q
    return h, (h * f32(c)[:, :, None]).sum(-1)


@corner("ssm.assoc_scan", uniform(*SEQUENCES), normal(*SEQUENCES))
def associative_scan(a, b):
    return lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b), axis=1)[1]


@corner("ssm.rg_lru_scan", *[normal((8, 2048, 1024), (2, 9, 5))] * 2, vjp=("f32", 0, 1))
def gated_recurrence(x, gate):
    def step(h, now):
        x, gate = now
        a = nn.sigmoid(gate)
        h = a * h + jnp.sqrt(1 - a * a) * x
        return h, h

    return lax.scan(step, jnp.zeros_like(x[:, 0]), (x.swapaxes(0, 1), gate.swapaxes(0, 1)))[1].swapaxes(0, 1)


@corner(
    "ssm.causal_conv4",
    *(normal((8, 4096, 1024), (2, 9, 5)), normal((4, 1024), (4, 5)), normal(*CHANNELS)),
    forward="bf16",
    vjp=("f32", 0, 1, 2),
)
def causal_convolution(x, w, b):
    p = jnp.pad(x, ((0, 0), (3, 0), (0, 0)))
    return nn.silu(sum(p[:, i : i + x.shape[1]] * w[i] for i in range(4)) + b)


@corner("ssm.causal_conv4_T", normal((8, 1024, 4096), (2, 5, 9)), normal((1024, 4), (5, 4)), vjp=("bf16", 0, 1))
def causal_convolution_transposed(x, w):
    def shifted(i):
        return jnp.pad(x, ((0, 0), (0, 0), (3, 0)))[:, :, i : i + x.shape[2]]

    return nn.silu(sum(shifted(i) * w[:, i, None] for i in range(4)))


@corner(
    "ssm.gated_delta",
    *(HEADS, HEADS, normal(*OF_HEADS), normal((16,), (3,), "f32"), normal(*OF_HEADS), normal((16,), (3,), "f32")),
    forward="bf16",
)
def gated_delta(q, k, a, bias, b, decay):
    unit_q, unit_k = (f32(z) * lax.rsqrt((f32(z) ** 2).sum(-1, keepdims=True) + 1e-6) for z in (q, k))
    g = -jnp.exp(decay) * nn.softplus(f32(a) + bias)
    scaled_k = unit_k * nn.sigmoid(f32(b))[..., None]
    chunks = g.reshape(g.shape[0], -1, min(64, g.shape[1]), g.shape[-1])
    return unit_q.astype(q.dtype), scaled_k.astype(q.dtype), jnp.cumsum(chunks, 2)


@corner("ssm.segsum", normal((64, 64, 128), (2, 3, 9)))
def segment_sums(x):
    c = jnp.cumsum(x, -1)
    d = c[..., :, None] - c[..., None, :]
    return jnp.exp(jnp.where(jnp.tril(jnp.ones((x.shape[-1],) * 2, bool)), d, -jnp.inf))


@corner("ssm.ema_scan", normal((64, 512, 1024), (9, 5, 7)))
def ema_scan(x):
    def step(h, x):
        h = 0.9 * h + 0.1 * x
        return h, h

    return lax.scan(step, jnp.zeros_like(x[0]), x)[1]


@corner("ssm.min_gru_log", normal(*SEQUENCES), normal(*SEQUENCES))
def min_gru(z, h):  # in logarithms
    log_z, log_coefficient = -nn.softplus(-z), -nn.softplus(z)
    a = jnp.cumsum(log_coefficient, 1)
    log_h = jnp.where(h >= 0, jnp.log(nn.relu(h) + 0.5), -nn.softplus(-h))
    return jnp.exp(a + lax.cumlogsumexp(log_z + log_h - a, 1))


@corner("ssm.rg_lru_gates", *[LAYERS] * 3, normal(*CHANNELS, "f32"), forward="bf16", vjp=("f32", 0, 1, 2, 3))
def rg_lru_gates(x, r, i, a):
    log_a = -8 * nn.sigmoid(f32(r)) * nn.softplus(a)
    return jnp.exp(log_a), jnp.sqrt(1 - jnp.exp(2 * log_a) + 1e-6) * nn.sigmoid(f32(i)) * f32(x)


@corner("ssm.rwkv_shift_mix", LAYERS, normal((5, 1024), (5, 5)), vjp=("bf16", 0, 1))
def shift_mix(x, m):
    before = jnp.concatenate([jnp.zeros_like(x[:, :1]), x[:, :-1]], 1)
    return tuple(x + (before - x) * m[i] for i in range(5))


@corner("ssm.retention_mask", SCORES, uniform(*SLOPES, "f32", low=0.9))
def retention_mask(s, decay):
    query, key = places(s)
    d = f32(query - key)
    return s * jnp.where(d >= 0, decay[:, None, None] ** jnp.maximum(d, 0), 0)


@corner("ssm.norm_gated", *[normal((16384, 2048), (33, 65))] * 2, normal((2048,), (65,)), vjp=("bf16", 0, 1, 2))
def gated_norm(x, z, w):
    return rms_norm(x * nn.silu(z), w)


corner("scan.cumsum0", CUBE, vjp="f32")(lambda x: jnp.cumsum(x, 0))
corner("scan.cumsum1", CUBE, vjp="f32")(lambda x: jnp.cumsum(x, 1))
corner("scan.cumsum2", CUBE, forward="bf16", vjp="f32")(lambda x: jnp.cumsum(x, 2))
corner("scan.cumsum_bool_i32", booleans((4096, 8191), (33, 65)))(lambda m: jnp.cumsum(m, 1) - 1)
corner("scan.cummax", normal((8191, 6143), (33, 65)))(lambda x: lax.cummax(x, 1))
corner("scan.cumlogsumexp", normal((8192, 2049), (33, 33)))(lambda x: lax.cumlogsumexp(x, 1))


@corner("scan.cumprod_alpha", normal((131072, 192), (33, 192)))
def cumulative_alpha(s):
    a = 1 - jnp.exp(-nn.relu(s))
    return jnp.concatenate([jnp.ones_like(a[:, :1]), jnp.cumprod(1 - a + 1e-10, 1)[:, :-1]], 1) * a


@corner(
    "scan.volume_render",
    normal((65536, 128), (33, 128)),
    normal((65536, 128, 3), (33, 128, 3)),
    uniform((65536, 128), (33, 128), high=0.1),
    vjp=("bf16", 0, 1),
)
def volume_render(s, colour, d):
    a = 1 - jnp.exp(-nn.relu(s) * d)
    through = jnp.exp(-jnp.cumsum(jnp.pad(nn.relu(s) * d, ((0, 0), (1, 0)))[:, :-1], 1))
    return ((through * a)[..., None] * nn.sigmoid(colour)).sum(1)
