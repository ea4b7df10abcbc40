"""Statistics, segments, distances and densities (stat, seg, dist)."""

import jax
import jax.numpy as jnp
from jax import lax, nn
from jax.random import wrap_key_data
from jax.scipy.special import gammaln

from .cases import KEY, bits, booleans, corner, f32, integers, normal, positive, segment_ids, uniform

MATRIX, ODD = normal((8192, 8192), (33, 65)), normal((8191, 6143), (33, 65))
CUBE = normal((127, 513, 1023), (5, 9, 13))
FOUR_AXES = normal((32, 129, 64, 255), (3, 5, 4, 7))
SEQUENCES = normal((64, 512, 1024), (3, 9, 7))
DENSITY, COMPONENTS = ((4096, 4097), (33, 65)), normal((65536, 20, 12), (33, 20, 12))


corner("stat.var0", MATRIX)(lambda x: x.var(0))
corner("stat.var1_odd", ODD, forward="bf16")(lambda x: x.var(1))
corner("stat.std_all", ODD, vag="bf16")(lambda x: x.std())
corner("stat.mean_var_mid", CUBE, forward="bf16")(lambda x: (x.mean(1), x.var(1)))
corner("stat.sum_nonadjacent", FOUR_AXES, forward="bf16")(lambda x: x.sum((1, 3)))
corner("stat.max_leading2", FOUR_AXES, vjp="bf16")(lambda x: x.max((0, 1)))
corner("stat.logsumexp0", MATRIX, forward="bf16")(lambda x: nn.logsumexp(x, 0))
corner("stat.argmax_last", ODD, forward="bf16")(lambda x: x.argmax(-1))
corner("stat.argmax0", MATRIX)(lambda x: x.argmax(0))
corner("stat.argmin_mid_value", CUBE)(lambda x: (x.argmin(1), x.min(1)))
corner("stat.minmax_norm", ODD, forward="bf16")(lambda x: (x - x.min()) / (x.max() - x.min()))
corner("stat.nanmean_rows", ODD)(lambda x: jnp.nanmean(jnp.where(x > 2, jnp.nan, x), 1))


@corner("stat.moments02", CUBE)
def moments(x):
    z = (x - x.mean((0, 2), keepdims=True)) / x.std((0, 2), keepdims=True)
    return (z**3).mean((0, 2)), (z**4).mean((0, 2))


@corner("stat.cov_diag", ODD, ODD)
def covariance(a, b):
    return ((a - a.mean(0)) * (b - b.mean(0))).sum(0) / (a.shape[0] - 1)


@corner("stat.corr_rows", ODD, ODD)
def correlation(a, b):
    u, v = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    return (u * v).sum(1) / jnp.sqrt((u * u).sum(1) * (v * v).sum(1))


@corner("stat.histogram", uniform((4096, 4097), (33, 65)))
def histogram(x):
    return (jnp.floor(x.reshape(-1)[:, None] * 16).astype(jnp.int32) == jnp.arange(16)).sum(0)


@corner("stat.histogram_rows", bits("u8", (8192, 4097), (9, 65)))
def row_histograms(q):
    return (q[:, :, None] // 16 == jnp.arange(16, dtype=jnp.uint8)).sum(1)


@corner("stat.minmax_channel", normal((64, 8192, 128), (4, 33, 5)))
def minmax_of_channels(x):
    return (x - x.min((0, 1))) / (x.max((0, 1)) - x.min((0, 1)))


@corner("stat.top1_gather", ODD, ODD, floor=lambda written: written * (1 + 6143))
def top1_gather(x, y):
    return jnp.take_along_axis(y, x.argmax(1)[:, None], 1)[:, 0]


@corner("stat.top2_margin", normal((65536, 1000), (33, 1000)), forward="bf16")
def top2_margin(x):
    t = lax.top_k(x, 2)[0]
    return t[:, 0] - t[:, 1]


@corner("stat.any_all", *[booleans((8192, 8191), (33, 65))] * 3)
def any_and_all(a, b, c):
    return ((a & ~b) | c).any(1), ((a ^ b) | ~c).all(0)


@corner("stat.median3x3", normal((2048, 2049), (33, 17)))
def median_3x3(x):
    p = jnp.pad(x, 1, mode="edge")
    near = [p[i : i + x.shape[0], j : j + x.shape[1]] for i in range(3) for j in range(3)]
    return jnp.sort(jnp.stack(near), 0)[4]


@corner("stat.median5_network", normal((4096, 8192), (33, 65)))
def median_of_5(x):
    most, least = jnp.maximum, jnp.minimum
    a, b, c, d, e = [x[:, i : x.shape[1] - 4 + i] for i in range(5)]
    low = most(least(a, b), least(c, d))
    high = least(most(a, b), most(c, d))
    return most(least(low, high), least(most(low, high), e))


@corner("stat.weighted_mean_masked", SEQUENCES, booleans((64, 512), (3, 9)), forward="bf16", vjp="f32")
def masked_mean(x, mask):
    return (f32(x) * mask[..., None]).sum(1) / jnp.maximum(mask.sum(1), 1)[:, None]


@corner("stat.vmap_softmax_in1", normal((1024, 32768), (33, 65)))
def vmapped_softmax(x):
    return jax.vmap(nn.softmax, in_axes=1, out_axes=1)(x)


@corner("stat.vmap_norm_mid", normal((513, 96, 1024), (9, 5, 13)))
def vmapped_norm(x):
    return jax.vmap(lambda m: m / jnp.sqrt((m * m).sum() + 1e-6), in_axes=1)(x)


@corner("seg.sum_onehot", SEQUENCES, integers(0, 8, (64, 512), (3, 9)))
def segment_sums(x, segment):
    return (nn.one_hot(segment, 8)[..., None] * x[:, :, None]).sum(1)


@corner("seg.positions", segment_ids(9, (4096, 8192), (9, 65)))
def positions(segment):
    first = jnp.concatenate([jnp.ones_like(segment[:, :1], bool), segment[:, 1:] != segment[:, :-1]], 1)
    i = jnp.arange(segment.shape[1])
    return i - lax.cummax(jnp.where(first, i, 0), 1)


@corner("seg.rank_in_group", integers(0, 64, (262144,), (99,)))
def rank_in_group(group):
    o = nn.one_hot(group, 64, dtype=jnp.int32)
    return (jnp.cumsum(o, 0) * o).sum(1) - 1


@corner("dist.l2_small_d", normal((8192, 3), (33, 3)), normal((8191, 3), (65, 3)))
def squared_distances(a, b):
    return ((a[:, None] - b[None]) ** 2).sum(-1)


@corner("dist.chamfer", normal((16, 2048, 3), (2, 33, 3)), normal((16, 2047, 3), (2, 35, 3)))
def chamfer(a, b):
    d = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)
    return d.min(1), d.min(2)


@corner(
    "dist.chamfer_loss", normal((4, 2048, 3), (2, 33, 3)), normal((4, 2048, 3), (2, 35, 3)), forward=None, vag="f32"
)
def chamfer_loss(a, b):
    of_b, of_a = chamfer(a, b)
    return of_b.mean() + of_a.mean()


@corner("dist.rbf_rows", normal((16384, 8), (33, 8)), normal((4096, 8), (65, 8)))
def rbf_sums(a, b):
    return jnp.exp(-squared_distances(a, b)).sum(1)


@corner("dist.vq_argmin", normal((65536, 16), (33, 16)), normal((1024, 16), (17, 16)))
def nearest_code(x, codes):
    d = (x * x).sum(-1, keepdims=True) - 2 * x @ codes.T + (codes * codes).sum(-1)
    return d.argmin(-1)


@corner(
    "dist.mdn",
    *(normal((65536, 20), (33, 20)), COMPONENTS, COMPONENTS, normal((65536, 12), (33, 12))),
    vag=("bf16", 0, 1, 2),
)
def mixture_of_normals(logits, mean, log_std, y):
    square = (0.5 * ((y[:, None] - mean) / jnp.exp(log_std)) ** 2 + log_std).sum(-1)
    return -nn.logsumexp(nn.log_softmax(logits, -1) - square, -1).mean()


@corner(
    "dist.mixture_logistic",
    *[normal((1000000, 10), (99, 10))] * 3,
    uniform((1000000,), (99,), low=-1.0),
    vag=("f32", 0, 1, 2),
)
def mixture_of_logistics(logits, mean, log_scale, x):
    inverse = jnp.exp(-log_scale)
    above, below = (nn.sigmoid((x[..., None] - mean + half) * inverse) for half in (1 / 255, -1 / 255))
    return -nn.logsumexp(nn.log_softmax(logits, -1) + jnp.log(jnp.maximum(above - below, 1e-12)), -1).sum()


@corner("dist.student_t", normal(*DENSITY), normal(*DENSITY), positive(*DENSITY), positive(*DENSITY))
def student_t(x, mean, s, n):
    constant = gammaln((n + 1) / 2) - gammaln(n / 2) - 0.5 * jnp.log(n * s)
    return constant - (n + 1) / 2 * jnp.log1p((x - mean) ** 2 / (n * s))


@corner("dist.gumbel_softmax", normal((131072, 256), (33, 256)), KEY, vjp="f32")
def gumbel_softmax(logits, key):
    return nn.softmax((logits + jax.random.gumbel(wrap_key_data(key), logits.shape, logits.dtype)) / 0.5, -1)
