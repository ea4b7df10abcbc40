"""Data that moves: concatenations, transposes, rolls, slices, gathers (move)."""

import math

import jax.numpy as jnp
from jax import nn

from ..fuse import rms_norm
from .attention import GAIN, HEADS
from .cases import corner, integers, normal

GRID, ROWS = normal((8192, 8192), (34, 65)), normal((16384, 2047), (33, 21))
PIECES, ODD = [normal((1024, 2049), (9, 7))] * 16, normal((4096, 4097), (9, 16))


@corner("move.rms_then_transpose", HEADS, GAIN, vjp=("bf16", 0, 1))
def rms_then_transpose(x, w):
    return rms_norm(x, w).transpose(0, 2, 1, 3)


@corner("move.roll_rows_reshape", GRID, forward="bf16")
def roll_rows_reshape(x):
    return (jnp.roll(x, 5, 0) * 2).reshape(-1, math.gcd(128, x.shape[0]), x.shape[1])


@corner("move.concat_reshaped", normal((65536, 8), (9, 8)), normal((65536, 64), (9, 64)), vjp=("bf16", 1))
def concat_reshaped(x, y):
    return jnp.concatenate([y, jnp.sin(x[..., None] * y[:, None]).reshape(x.shape[0], -1)], -1)


corner("move.roll_both", GRID, forward="bf16")(lambda x: jnp.roll(x, (3, -5), (0, 1)) + 1)
corner("move.flip_last_sum", normal((8191, 6143), (33, 65)))(lambda x: (x * x[:, ::-1]).sum(1))
corner("move.tile", normal((2048, 4097), (33, 65)), forward="bf16", vjp="f32")(lambda x: jnp.tile(x, (2, 3)))
corner("move.repeat_last", normal((4096, 2049), (33, 65)), vjp="bf16")(lambda x: jnp.repeat(x, 3, -1))
corner("move.stack16_last", *PIECES, forward="bf16")(lambda *a: jnp.stack(a, -1))
corner("move.stack16_first_tanh", *PIECES)(lambda *a: jnp.tanh(jnp.stack(a, 0)))


@corner(
    "move.concat_many_last",
    *[normal((8192, n), (9, m)) for n, m in zip((1024, 63, 511, 1, 2048, 640, 32, 96), (8, 63, 7, 1, 16, 5, 32, 9))],
    forward="bf16",
    vjp=("f32", *range(8)),
)
def concat_many(*a):
    return nn.relu(jnp.concatenate(a, -1))


@corner(
    "move.concat_densenet_bn",
    *[normal((64, 56, 56, n), (2, 4, 5, n)) for n in (128, 32, 32)],
    *[normal((192,))] * 2,
    vjp=("bf16", 0, 1, 2, 3, 4),
)
def dense_block(a, b, c, s, t):
    return nn.relu(jnp.concatenate([a, b, c], -1) * s + t)


@corner(
    "move.concat_columns_norm",
    *(normal((8192, 2048), (9, 16)), normal((8192, 1023), (9, 7)), normal((3071,), (23,))),
    forward="bf16",
    vjp=("f32", 0, 1, 2),
)
def concat_columns_norm(a, b, w):
    return rms_norm(jnp.concatenate([a, b], -1), w)


@corner("move.concat_rows_sum0", normal((6000, 4096), (9, 16)), normal((2191, 4096), (7, 16)))
def concat_rows_sum(a, b):
    return jnp.concatenate([a, b], 0).sum(0)


@corner("move.interleave_rows", ODD, ODD, forward="bf16")
def interleave_rows(a, b):
    return jnp.stack([a, b], 1).reshape(-1, a.shape[1])


corner("move.tril_mul", normal((8, 2048, 2049), (2, 33, 32)), vjp="bf16")(lambda x: jnp.tril(x) * 2)
corner("move.symmetrise", normal((8, 2048, 2048), (2, 33, 33)), forward="bf16")(
    lambda x: 0.5 * (x + x.swapaxes(-1, -2))
)
corner("move.T_softmax", normal((4096, 8191), (33, 65)), forward="bf16")(lambda x: nn.softmax(x.T, -1))
corner("move.transpose_3210", normal((33, 65, 127, 129), (3, 5, 7, 9)))(lambda x: x.transpose(3, 2, 1, 0))


@corner("move.outer_sum", normal((4096,), (33,)), normal((4095,), (31,)), normal((4096, 4095), (33, 31)))
def outer_sum(a, b, c):
    return nn.relu(a[:, None] + b[None] + c)


@corner("move.T_add_bias_T", normal((8191, 4096), (33, 65)), normal((8191,), (33,)))
def bias_of_transposed(x, b):
    return jnp.tanh(x.T + b).T.astype(jnp.bfloat16)


@corner("move.transpose_0213_scale", normal((32, 63, 257, 128), (2, 5, 9, 128)), GAIN, forward="bf16")
def transpose_scale(x, s):
    return x.transpose(0, 2, 1, 3) * s


@corner("move.slice_stride3", normal((8192, 6147), (33, 63)), forward="bf16", vjp="f32")
def slice_stride3(x):
    return x[:, ::3] + x[:, 1::3] * x[:, 2::3]


@corner("move.diag_scale", normal((8191, 8191), (33, 33)), normal((8191,), (33,)), vjp=("f32", 0, 1))
def add_diagonal(x, d):
    return x + jnp.diag(d)


@corner("move.at_set_column", ROWS, normal((16384,), (33,)), forward="bf16", vjp=("f32", 0, 1))
def set_column(x, v):
    return x.at[:, 7].set(v) * 2


corner("move.take_along_perm", ROWS, integers(0, (16384, 33), (16384,), (33,)))(lambda x, p: x[p] * 2)
corner("move.take_columns", normal((8192, 4096), (33, 21)), integers(0, (4096, 21), (4096,), (21,)), forward="bf16")(
    lambda x, p: x[:, p]
)
corner("move.reshape_odd_sum", normal((8192, 4095), (33, 189)))(lambda x: x.reshape(-1, 7 * 9).sum(-1))
