"""Complex numbers, integers, bits (cplx, bits)."""

import jax.numpy as jnp
from jax import lax

from .cases import bits, corner, integers, normal, positive

PLANE = ((4096, 4097), (33, 65))
COMPLEX, WORDS = normal(*PLANE, "c64"), bits("u32", (8192, 4097), (33, 65))


corner("cplx.mul_conj", COMPLEX, COMPLEX)(lambda a, b: a * jnp.conj(b))
corner("cplx.abs2_real_only", COMPLEX)(lambda z: jnp.sum(z.real**2 + z.imag**2, -1))


@corner("cplx.from_polar_mul", normal(*PLANE), normal(*PLANE), COMPLEX)
def from_polar(m, p, z):
    return z * (m * jnp.exp(1j * p))


@corner("cplx.mag_loss", COMPLEX, positive(*PLANE, "f32"), vag="f32")
def magnitude_loss(z, m):
    return ((jnp.abs(z) - m) ** 2).mean()


@corner("cplx.mandelbrot8", COMPLEX)
def mandelbrot(c):
    z = c
    for _ in range(8):
        z = jnp.where(jnp.abs(z) < 4, z * z + c, z)
    return jnp.abs(z)


@corner("bits.quat_to_matrix", normal((3000001, 4), (99, 4)), vjp="f32")
def quaternion_to_matrix(q):
    q = q * lax.rsqrt((q * q).sum(-1, keepdims=True))
    w, x, y, z = [q[..., i] for i in range(4)]
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
    rows += [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
    rows += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    return jnp.stack(rows, -1).reshape(*q.shape[:-1], 3, 3)


corner("bits.popcount_xor_rows", WORDS, WORDS)(lambda a, b: lax.population_count(a ^ b).sum(1))


def spread_bits(x):
    x = x & 0xFFFF
    for s, m in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        x = (x | (x << s)) & jnp.uint32(m)
    return x


corner("bits.morton", WORDS, WORDS)(lambda a, b: spread_bits(a) | (spread_bits(b) << 1))


@corner("bits.mod_floor_div", *[integers(i, j, (8192, 2049), (33, 65)) for i, j in ((-100000, 100000), (1, 999))])
def divide(a, b):
    return a // b, a % b


@corner("bits.fast_rsqrt", positive((8192, 4097), (33, 65), "f32"))
def fast_rsqrt(x):
    y = lax.bitcast_convert_type(jnp.int32(0x5F3759DF) - (lax.bitcast_convert_type(x, jnp.int32) >> 1), jnp.float32)
    return y * (1.5 - 0.5 * x * y * y)


@corner("bits.u8_saturate", *[bits("u8", (16384, 8191), (33, 65))] * 2)
def saturating_sum(a, b):
    return jnp.minimum(a.astype(jnp.uint16) + b.astype(jnp.uint16), 255).astype(jnp.uint8)


@corner("bits.bytes_of_u32", WORDS)
def bytes_of_words(a):
    return jnp.stack([(a >> (8 * i)).astype(jnp.uint8) for i in range(4)], -1)


@corner("bits.bitcast_u8_u32", bits("u8", (16384, 8192), (33, 260)))
def words_of_bytes(a):
    return lax.bitcast_convert_type(a.reshape(a.shape[0], -1, 4), jnp.uint32) & 0xFFFFFF
