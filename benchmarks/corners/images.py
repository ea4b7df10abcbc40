"""Images: layouts, pixels, pooling, windows (img, pool, conv)."""

import math

import jax
import jax.numpy as jnp
from jax import lax, nn

from .cases import bits, booleans, corner, f32, integers, normal, positive, uniform

IMAGES = bits("u8", (96, 512, 512, 3), (2, 16, 18, 3))
FLIPPED = normal((64, 512, 512, 3), (2, 8, 7, 3))
MIXED = normal((64, 512, 512, 3), (3, 12, 7, 3))
COLOURS = uniform((64, 512, 512, 3), (2, 6, 7, 3))
PADDED = normal((64, 254, 250, 16), (2, 6, 9, 16))
FEATURES = normal((64, 112, 112, 64), (2, 6, 8, 4))
PLANES = normal((32, 1024, 1024), (2, 9, 7))
OF_EACH = positive((64, 1, 1, 1), (2, 1, 1, 1))


@corner("img.normalise", IMAGES)
def normalise(q):
    return (q.astype(jnp.float32) / 255 - jnp.array([0.485, 0.456, 0.406])) / jnp.array([0.229, 0.224, 0.225])


@corner("img.normalise_bf16_nchw", IMAGES)
def normalise_bf16_nchw(q):
    return normalise(q).transpose(0, 3, 1, 2).astype(jnp.bfloat16)


corner("img.nhwc_nchw", normal((64, 112, 112, 64), (2, 6, 5, 8)))(lambda x: x.transpose(0, 3, 1, 2))
corner("img.nhwc_nchw_odd", normal((65, 113, 111, 63), (2, 7, 5, 3)), forward="bf16")(
    lambda x: x.transpose(0, 3, 1, 2) * 2
)
corner("img.nchw_nhwc_rgb", normal((64, 3, 512, 511), (2, 3, 8, 7)))(lambda x: x.transpose(0, 2, 3, 1))


@corner("img.pixel_shuffle", normal((32, 128, 128, 64), (2, 4, 6, 8)), forward="bf16", vjp="f32")
def pixel_shuffle(x):
    n, h, w, _ = x.shape
    return x.reshape(n, h, w, 2, 2, -1).transpose(0, 1, 3, 2, 4, 5).reshape(n, 2 * h, 2 * w, -1)


@corner("img.pixel_unshuffle_nchw", normal((32, 16, 256, 256), (2, 16, 6, 8)))
def pixel_unshuffle_nchw(x):
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(n, -1, h // 2, w // 2)


@corner("img.patchify16", normal((64, 512, 512, 3), (1, 32, 48, 3)), forward="bf16", vjp="f32")
def patchify(x, p=16):
    n, h, w, c = x.shape
    return x.reshape(n, h // p, p, w // p, p, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h * w // p // p, p * p * c)


@corner("img.patchify14_u8", bits("u8", (96, 518, 518, 3), (1, 28, 42, 3)))
def patchify_bytes(q):
    return patchify(normalise(q), 14).astype(jnp.bfloat16)


@corner("img.unpatchify_nchw", normal((64, 1024, 768), (2, 16, 768)), forward="bf16")
def unpatchify_nchw(x):
    n, side = x.shape[0], math.isqrt(x.shape[1])
    return x.reshape(n, side, side, 16, 16, 3).transpose(0, 5, 1, 3, 2, 4).reshape(n, 3, 16 * side, 16 * side)


corner("img.flip_lr", FLIPPED)(lambda x: x[:, :, ::-1])
corner("img.flip_ud_normalise", IMAGES)(lambda q: normalise(jnp.flip(q, 1)))


@corner("img.random_flip", FLIPPED, booleans((64,), (2,)))
def random_flip(x, flipped):
    return jnp.where(flipped[:, None, None, None], x[:, :, ::-1], x) * 2


@corner("img.crop_normalise", IMAGES, floor=lambda written: written + written // 4)
def crop_normalise(q):
    m = q.shape[1] // 16
    return normalise(q[:, m:-m, m:-m])


@corner("img.random_crop", IMAGES, integers(0, 6, (96, 2), (2, 2)), floor=lambda written: written + written // 4)
def random_crop(q, places):
    size = (q.shape[1] * 7 // 8, q.shape[2] * 7 // 8, 3)
    cropped = jax.vmap(lambda q, place: lax.dynamic_slice(q, (place[0], place[1], 0), size))(q, places)
    return cropped.astype(jnp.float32) / 255


@corner("img.pad_reflect", PADDED, forward="bf16", vjp="f32")
def pad_reflect(x, mode="reflect"):
    return jnp.pad(x, ((0, 0), (1, 1), (3, 3), (0, 0)), mode=mode)


corner("img.pad_edge", PADDED, vjp="f32")(lambda x: pad_reflect(x, "edge"))
corner("img.pad_wrap", PADDED)(lambda x: pad_reflect(x, "wrap"))
corner("img.pad_constant", PADDED)(lambda x: pad_reflect(x, "constant"))


@corner("img.nearest2x_repeat", normal((32, 128, 128, 32), (2, 4, 5, 3)), forward="bf16", vjp="f32")
def nearest2x_repeat(x):
    return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)


@corner("img.nearest1.5x_index", normal((32, 192, 192, 24), (2, 4, 6, 3)))
def nearest_index(x):
    h, w = x.shape[1:3]
    return x[:, jnp.arange(h * 3 // 2) * 2 // 3][:, :, jnp.arange(w * 3 // 2) * 2 // 3]


@corner("img.bilinear1.75x", normal((32, 128, 132, 32), (2, 4, 8, 3)), forward="bf16")
def bilinear(x):
    for axis in (1, 2):
        n = x.shape[axis]
        place = (jnp.arange(n * 7 // 4) + 0.5) * 4 / 7 - 0.5
        low = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, n - 1)
        high = jnp.minimum(low + 1, n - 1)
        t = jnp.clip(place - low, 0, 1).astype(x.dtype).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        x = jnp.take(x, low, axis) * (1 - t) + jnp.take(x, high, axis) * t
    return x


@corner("img.bilinear2x_shift", normal((32, 128, 127, 32), (2, 4, 5, 3)), vjp="bf16")
def bilinear_shift(x):
    for axis in (1, 2):
        n = x.shape[axis]
        first, last = (lax.slice_in_dim(x, i, i + 1, axis=axis) for i in (0, n - 1))
        before = jnp.concatenate([first, lax.slice_in_dim(x, 0, n - 1, axis=axis)], axis)
        behind = jnp.concatenate([lax.slice_in_dim(x, 1, None, axis=axis), last], axis)
        both = jnp.stack([0.25 * before + 0.75 * x, 0.75 * x + 0.25 * behind], axis + 1)
        x = both.reshape(*x.shape[:axis], 2 * n, *x.shape[axis + 1 :])
    return x


corner("img.gray", COLOURS)(lambda x: x @ jnp.array([0.299, 0.587, 0.114], x.dtype))
corner("img.gray_sum", COLOURS)(lambda x: (x * jnp.array([0.299, 0.587, 0.114], x.dtype)).sum(-1))


@corner("img.ycbcr", COLOURS, forward="bf16", vjp="f32")
def ycbcr(x):
    r, g, b = x[..., 0], x[..., 1], x[..., 2]
    y = 0.299 * r + 0.587 * g + 0.114 * b
    return jnp.stack([y, (b - y) * 0.564 + 0.5, (r - y) * 0.713 + 0.5], -1)


@corner("img.hsv", COLOURS)
def hsv(x):
    r, g, b = x[..., 0], x[..., 1], x[..., 2]
    v, d = x.max(-1), x.max(-1) - x.min(-1)
    of_green_or_blue = jnp.where(v == g, (b - r) / (d + 1e-6) + 2, (r - g) / (d + 1e-6) + 4)
    h = jnp.where(v == r, (g - b) / (d + 1e-6) % 6, of_green_or_blue) / 6
    return jnp.stack([h, d / (v + 1e-6), v], -1)


@corner("img.srgb_linear", COLOURS, forward="bf16", vjp="f32")
def srgb_linear(x):
    return jnp.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)


@corner("img.jitter", COLOURS, OF_EACH, OF_EACH)
def jitter(x, brightness, contrast):
    y = x * brightness
    mean = y.mean((1, 2, 3), keepdims=True)
    return jnp.clip((y - mean) * contrast + mean, 0, 1)


@corner("img.total_variation", normal((16, 1024, 1023, 3), (2, 9, 7, 3)), vag="f32")
def total_variation(x):
    return jnp.abs(x[:, 1:] - x[:, :-1]).mean() + jnp.abs(x[:, :, 1:] - x[:, :, :-1]).mean()


@corner("img.mixup", MIXED, uniform((64, 1, 1, 1), (3, 1, 1, 1)), forward="bf16")
def mixup(x, share):
    return share * x + (1 - share) * jnp.roll(x, 1, 0)


@corner("img.cutout", MIXED, integers(0, 12, (64, 2), (3, 2)))
def cutout(x, place):
    y, z = jnp.arange(x.shape[1])[None, :, None], jnp.arange(x.shape[2])[None, None, :]
    inside = (jnp.abs(y - place[:, 0, None, None]) < 5) & (jnp.abs(z - place[:, 1, None, None]) < 5)
    return jnp.where(inside[..., None], 0.5, x)


@corner("img.channel_shuffle", normal((64, 64, 64, 128), (2, 5, 3, 128)), forward="bf16")
def channel_shuffle(x):
    return x.reshape(*x.shape[:3], 4, -1).swapaxes(3, 4).reshape(x.shape)


@corner("img.psnr", IMAGES, IMAGES)
def psnr(a, b):
    return -10 * jnp.log10(jnp.square(f32(a) / 255 - f32(b) / 255).mean((1, 2, 3)))


@corner("img.im2col3x3", normal((16, 112, 112, 32), (2, 5, 6, 4)), forward="bf16", vjp="f32")
def im2col(x):
    p = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return jnp.concatenate([p[:, i : i + x.shape[1], j : j + x.shape[2]] for i in range(3) for j in range(3)], -1)


@corner("img.swin_shift_windows", normal((64, 64, 64, 192), (2, 16, 8, 5)), vjp="bf16")
def shift_windows(x):
    n, h, w, c = x.shape
    x = jnp.roll(x, (-4, -4), (1, 2)).reshape(n, h // 8, 8, w // 8, 8, c)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, 64, c)


@corner("img.weight_standardise", normal((3, 3, 2048, 2047), (3, 3, 8, 9)), vjp="f32")
def weight_standardise(w):
    return (w - w.mean((0, 1, 2))) * lax.rsqrt(w.var((0, 1, 2)) + 1e-5)


def squares(x):
    return x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1)


corner("pool.max_reshape", FEATURES, vjp="bf16")(lambda x: squares(x).max((2, 4)))
corner("pool.avg_reshape", FEATURES, forward="bf16", vjp="f32")(lambda x: squares(x).mean((2, 4)))
corner("pool.global_nhwc", FEATURES, forward="bf16", vjp="f32")(lambda x: x.mean((1, 2)))


@corner("pool.avg_reshape_nchw", normal((64, 64, 112, 112), (2, 4, 6, 8)))
def average_reshape_nchw(x):
    return x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2).mean((3, 5))


@corner("pool.max_window", FEATURES, forward="bf16", vjp="f32")
def max_window(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


@corner("pool.avg_window_relu", FEATURES, vjp="f32")
def average_window_relu(x):
    return lax.reduce_window(nn.relu(x), 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


@corner("pool.squeeze_excite", FEATURES, normal((64, 64), (2, 4)), vjp=("bf16", 0, 1))
def squeeze_excite(x, s):
    return nn.relu(x * nn.sigmoid(s)[:, None, None, :])


@corner(
    "conv.depthwise3x3",
    *(normal((32, 112, 112, 64), (2, 5, 6, 4)), normal((3, 3, 64), (3, 3, 4))),
    forward="bf16",
    vjp=("f32", 0, 1),
)
def depthwise(x, w):
    p = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return sum(p[:, i : i + x.shape[1], j : j + x.shape[2]] * w[i, j] for i in range(3) for j in range(3))


@corner("conv.gauss5_separable", normal((32, 1024, 1023), (2, 9, 7)))
def blur(x):
    weights = list(enumerate((1, 4, 6, 4, 1)))
    x = jnp.pad(x, ((0, 0), (2, 2), (2, 2)), mode="edge")
    for axis in (1, 2):
        n = x.shape[axis] - 4
        x = sum(c * lax.slice_in_dim(x, i, i + n, axis=axis) for i, c in weights) / 16
    return x


@corner("conv.sobel", PLANES, vjp="f32")
def sobel(x):
    p = jnp.pad(x, ((0, 0), (1, 1), (1, 1)))

    def s(i, j):
        return p[:, i : i + x.shape[1], j : j + x.shape[2]]

    gx = s(0, 2) + 2 * s(1, 2) + s(2, 2) - s(0, 0) - 2 * s(1, 0) - s(2, 0)
    gy = s(2, 0) + 2 * s(2, 1) + s(2, 2) - s(0, 0) - 2 * s(0, 1) - s(0, 2)
    return jnp.sqrt(gx * gx + gy * gy + 1e-6)
