"""Quantization: casts, scales, packing (quant)."""

import jax.numpy as jnp
from jax import lax

from .cases import bits, corner, f32, normal, positive

MATRIX = ((8192, 8192), (32, 256))
ROW_SCALES, COLUMN_SCALES = ((8192,), (32,)), ((8192,), (256,))
GROUP_SCALES = ((8192, 256), (32, 8))


corner("quant.int8_rows", bits("i8", *MATRIX), positive(*ROW_SCALES, "bf16"))(
    lambda q, s: q.astype(jnp.bfloat16) * s[:, None]
)


@corner("quant.int8_cols", bits("i8", *MATRIX), positive(*COLUMN_SCALES, "f32"), normal(*COLUMN_SCALES, "f32"))
def int8_columns(q, s, zero):
    return ((f32(q) - zero) * s).astype(jnp.bfloat16)


@corner("quant.int8_cols_T", bits("i8", *MATRIX), positive(*COLUMN_SCALES, "f32"))
def int8_columns_transposed(q, s):
    return (f32(q) * s).astype(jnp.bfloat16).T


@corner("quant.row_absmax", normal(*MATRIX))
def row_absmax(x):
    s = jnp.abs(f32(x)).max(-1, keepdims=True) / 127
    return jnp.round(f32(x) / s).astype(jnp.int8), s


@corner("quant.col_absmax", normal(*MATRIX), forward="bf16")
def column_absmax(x):
    s = jnp.abs(f32(x)).max(0) / 127
    return jnp.round(f32(x) / s).astype(jnp.int8), s


@corner("quant.fake_ste_col", normal(*MATRIX), vjp="f32")
def straight_through(x):
    s = lax.stop_gradient(jnp.abs(x).max(0) / 127)
    q = jnp.clip(jnp.round(x / s), -128, 127) * s
    return x + lax.stop_gradient(q - x)


@corner("quant.lsq", normal(*MATRIX), positive((1,)), forward="bf16", vjp=("f32", 0, 1))
def learned_step_size(x, s):
    inside = (x / s > -128) & (x / s < 127)
    r = jnp.clip(x / s, -128, 127)
    return jnp.where(inside, r + lax.stop_gradient(jnp.round(r) - r), r) * s


@corner("quant.int4_unpack", bits("u8", *MATRIX), positive(*GROUP_SCALES, "bf16"))
def int4_unpack(p, s):
    low, high = (p & 15).astype(jnp.int8) - 8, (p >> 4).astype(jnp.int8) - 8
    w = jnp.stack([low, high], -1).reshape(p.shape[0], -1)
    return (w.reshape(p.shape[0], -1, 64).astype(jnp.bfloat16) * s[..., None]).reshape(w.shape)


@corner("quant.int4_unpack_u32", bits("u32", (8192, 1024), (32, 16)), positive(*ROW_SCALES, "f32"))
def int4_unpack_words(p, s):
    w = f32((p[..., None] >> (4 * jnp.arange(8, dtype=jnp.uint32))) & 15) - 8
    return (w.reshape(p.shape[0], -1) * s[:, None]).astype(jnp.bfloat16)


@corner("quant.int4_pack", normal(*MATRIX))
def int4_pack(x):
    q = (jnp.clip(jnp.round(x * 3), -8, 7) + 8).astype(jnp.uint8)
    return q[:, ::2] | (q[:, 1::2] << 4)


@corner("quant.fp8_cast", normal(*MATRIX), forward="bf16")
def fp8_cast(x):
    s = jnp.abs(f32(x)).max() / 448
    return (f32(x) / s).astype(jnp.float8_e4m3fn), s


@corner("quant.fp8_row_and_T", normal(*MATRIX), forward="bf16")
def fp8_and_transposed(x):
    q = (f32(x) * 16).astype(jnp.float8_e4m3fn)
    return q, q.T


@corner("quant.fp8_block128", normal(*MATRIX), forward="bf16")
def fp8_blocks(x):
    n = min(128, x.shape[0] // 2)
    b = f32(x).reshape(x.shape[0] // n, n, x.shape[1] // 128, 128)
    s = jnp.abs(b).max((1, 3), keepdims=True) / 448
    return (b / s).astype(jnp.float8_e4m3fn).reshape(x.shape), s[:, 0, :, 0]


@corner("quant.nf4_lookup", bits("u8", *MATRIX), normal((16,), None, "f32"), positive(*GROUP_SCALES, "f32"))
def nf4_lookup(p, table, s):
    w = table[jnp.stack([p >> 4, p & 15], -1).astype(jnp.int32)].reshape(p.shape[0], -1, 64)
    return (w * s[..., None]).reshape(p.shape[0], -1).astype(jnp.bfloat16)


@corner("quant.bitnet_ternary", normal(*MATRIX), forward="bf16")
def ternary(w):
    s = jnp.abs(w).mean() + 1e-5
    return w + lax.stop_gradient(jnp.clip(jnp.round(w / s), -1, 1) * s - w)


@corner("quant.sign_pack", normal(*MATRIX))
def sign_pack(x):
    positive_bits = (x > 0).reshape(x.shape[0], -1, 8).astype(jnp.uint8)
    return (positive_bits << jnp.arange(8, dtype=jnp.uint8)).sum(-1).astype(jnp.uint8)


@corner("quant.sign_unpack", bits("u8", (8192, 2048), (32, 33)))
def sign_unpack(p):
    signs = jnp.where((p[..., None] >> jnp.arange(8, dtype=jnp.uint8)) & 1, 1.0, -1.0)
    return signs.astype(jnp.bfloat16).reshape(p.shape[0], -1)


@corner("quant.split_hi_lo", normal(*MATRIX, "f32"))
def split_high_low(x):
    high = lax.reduce_precision(x, 8, 7)  # of two casts XLA may make none, and nothing would be left
    return high.astype(jnp.bfloat16), (x - high).astype(jnp.bfloat16)


@corner("quant.hadamard_block16", normal((8192, 4096), (32, 256)), forward="bf16")
def hadamard(x):
    for h in (1, 2, 4, 8):
        y = x.reshape(x.shape[0], -1, 2, h)
        x = jnp.concatenate([y[:, :, :1] + y[:, :, 1:], y[:, :, :1] - y[:, :, 1:]], 2).reshape(x.shape)
    return x
