"""Losses, most with their gradients (loss)."""

import jax.numpy as jnp
from jax import lax, nn

from .cases import booleans, corner, f32, integers, normal, positive, uniform

LOGITS, LABELS = normal((2048, 32000), (9, 333)), integers(0, (32000, 333), (2048,), (9,))
ODD_LOGITS, ODD_LABELS = normal((1023, 50257), (9, 333)), integers(0, (50257, 333), (1023,), (9,))
SEQUENCES, TOKENS = normal((4, 256, 32000), (2, 4, 99)), integers(0, (32000, 99), (4, 256), (2, 4))
OF_SEQUENCES = normal((4,), (2,), "f32")
TEN_LOGITS, TEN_LABELS = normal((2097152, 10), (9999, 10)), integers(0, 10, (2097152,), (9999,))
PIXELS = ((32, 512, 512), (2, 9, 7))
PIXEL_LABELS = integers(0, 21, *PIXELS)


def at_labels(x, labels):
    return jnp.take_along_axis(x, labels[..., None], -1)[..., 0]


def surprise(logits, labels):
    return nn.logsumexp(logits, -1) - at_labels(logits, labels)


def log_softmax(logits, axis=-1):
    return nn.log_softmax(f32(logits), axis)


@corner("loss.xent", LOGITS, LABELS, forward="bf16", vag="f32")
def cross_entropy(logits, labels):
    return surprise(f32(logits), labels).mean()


@corner("loss.xent_odd_z", ODD_LOGITS, ODD_LABELS, vag="bf16")
def cross_entropy_z(logits, labels):
    return cross_entropy(logits, labels) + 1e-4 * (nn.logsumexp(f32(logits), -1) ** 2).mean()


@corner("loss.xent_onehot_smooth", LOGITS, LABELS, forward="bf16", vag="f32")
def smooth_cross_entropy(logits, labels):
    n = logits.shape[-1]
    return -((nn.one_hot(labels, n) * 0.9 + 0.1 / n) * log_softmax(logits)).sum(-1).mean()


@corner("loss.xent_masked_softcap", LOGITS, LABELS, vag="bf16")
def masked_softcap_cross_entropy(logits, labels):
    capped, mask = 30 * jnp.tanh(f32(logits) / 30), (labels > 5).astype(jnp.float32)
    return (surprise(capped, labels) * mask).sum() / mask.sum()


@corner("loss.kl", LOGITS, LOGITS, forward="bf16", vag=("f32", 1))
def kl(a, b):
    p, q = nn.log_softmax(a, -1), nn.log_softmax(b, -1)
    return (jnp.exp(p) * (p - q)).sum(-1).mean()


@corner("loss.distill_T", ODD_LOGITS, ODD_LOGITS, vag=("f32", 1))
def distill(a, b):
    return -(nn.softmax(a / 2, -1) * nn.log_softmax(b / 2, -1)).sum(-1).mean() * 4


@corner("loss.infonce", normal((6144, 6144), (40, 40)), forward="bf16", vag="f32")
def infonce(s):
    return -(jnp.diagonal(nn.log_softmax(s, 0)) + jnp.diagonal(nn.log_softmax(s, 1))).mean()


@corner("loss.token_logp", SEQUENCES, TOKENS, forward="bf16", vjp="f32")
def token_log_probability(logits, labels):
    return at_labels(log_softmax(logits), labels)


@corner("loss.dpo", *(SEQUENCES, SEQUENCES, TOKENS, TOKENS, OF_SEQUENCES, OF_SEQUENCES), vag=("bf16", 0, 1))
def dpo(chosen, rejected, chosen_labels, rejected_labels, chosen_reference, rejected_reference):
    better = token_log_probability(chosen, chosen_labels).sum(-1) - chosen_reference
    worse = token_log_probability(rejected, rejected_labels).sum(-1) - rejected_reference
    return -nn.log_sigmoid(0.1 * (better - worse)).mean()


@corner(
    "loss.contrastive_margin",
    *[normal((65536, 256), (33, 256))] * 2,
    booleans((65536,), (33,)),
    forward="bf16",
    vag=("f32", 0, 1),
)
def contrastive_margin(a, b, same):
    d = jnp.sqrt(((a - b) ** 2).sum(-1) + 1e-9)
    return jnp.where(same, d**2, jnp.maximum(1 - d, 0) ** 2).mean()


@corner("loss.ctc_alphas", normal((64, 2048, 257), (9, 5, 257)))
def ctc_alphas(log_p):
    def step(a, x):
        shifted = [jnp.pad(a[:, :-i], ((0, 0), (i, 0)), constant_values=-1e30) for i in (1, 2)]
        return nn.logsumexp(jnp.stack([a, *shifted]), 0) + x, None

    return lax.scan(step, log_p[0], log_p[1:])[0]


@corner("loss.huber_cosine", *[normal((32768, 1024), (33, 1024))] * 2, forward="bf16", vag="f32")
def huber_cosine(a, b):
    huber = jnp.where(jnp.abs(a - b) < 1, 0.5 * (a - b) ** 2, jnp.abs(a - b) - 0.5).mean()
    lengths = jnp.linalg.norm(a, axis=-1) * jnp.linalg.norm(b, axis=-1)
    return huber + (1 - (a * b).sum(-1) / (lengths + 1e-6)).mean()


@corner(
    "loss.bce_pos_weight",
    *(normal((16384, 2049), (33, 29)), booleans((16384, 2049), (33, 29)), positive((2049,), (29,))),
    vag="bf16",
)
def weighted_binary_cross_entropy(logits, y, w):
    return (-(w * y * nn.log_sigmoid(logits) + (1 - y) * nn.log_sigmoid(-logits))).mean()


@corner("loss.barlow", normal((6145, 6145), (40, 40)), vag="f32")
def barlow_twins(c):
    return ((jnp.diagonal(c) - 1) ** 2).sum() + 5e-3 * ((c * (1 - jnp.eye(c.shape[0]))) ** 2).sum()


@corner("loss.quantile_huber", *[normal((8192, 64), (9, 64))] * 2, uniform((8192, 64), (9, 64)), vjp="f32")
def quantile_huber(a, b, t):
    d = b[:, None, :] - a[:, :, None]
    huber = jnp.where(jnp.abs(d) < 1, 0.5 * d * d, jnp.abs(d) - 0.5)
    return (jnp.abs(t[:, :, None] - (d < 0)) * huber).mean(2).sum(1)


@corner("loss.xent_10_classes", TEN_LOGITS, TEN_LABELS, vag="f32")
def cross_entropy_of_ten(logits, labels):
    return surprise(logits, labels).mean()


@corner("loss.xent_onehot_10", TEN_LOGITS, TEN_LABELS, vag="bf16")
def one_hot_cross_entropy(logits, labels):
    return -(nn.one_hot(labels, logits.shape[-1]) * log_softmax(logits)).sum(-1).mean()


corner("loss.xent_onehot_100", normal((1048576, 100), (99, 100)), integers(0, 100, (1048576,), (99,)), vag="f32")(
    one_hot_cross_entropy
)


@corner("loss.segmentation", normal((*PIXELS[0], 21), (*PIXELS[1], 21)), PIXEL_LABELS, forward="bf16", vag="bf16")
def segmentation(logits, labels):
    return -token_log_probability(logits, labels).mean()


@corner("loss.segmentation_nchw", normal((32, 21, 512, 512), (2, 21, 9, 7)), PIXEL_LABELS, forward="bf16", vag="bf16")
def segmentation_nchw(logits, labels):
    return -(nn.one_hot(labels, 21, axis=1) * log_softmax(logits, 1)).sum(1).mean()


@corner("loss.cosine_rows", *[normal((1048576, 64), (99, 64))] * 2, vag=("f32", 0, 1))
def cosine_rows(a, b):
    return 1 - ((a * b).sum(-1) * lax.rsqrt((a * a).sum(-1)) * lax.rsqrt((b * b).sum(-1))).mean()


@corner("loss.points_l2", *[normal((8388608, 3), (99, 3))] * 2, vag="f32")
def point_distance(a, b):
    return jnp.sqrt(((a - b) ** 2).sum(-1) + 1e-9).mean()
