"""Detection: boxes, anchors, masks and their losses (det)."""

import jax.numpy as jnp
from jax import nn

from .cases import booleans, boxes, corner, normal, positive, uniform

MANY, OFFSETS = boxes(4000000, 999), normal((4000001, 4), (999, 4))
MASKS = ((128, 512, 511), (2, 9, 7))


def overlap(a, b):
    """Return the areas of intersection and union."""
    wh = jnp.clip(jnp.minimum(a[..., 2:], b[..., 2:]) - jnp.maximum(a[..., :2], b[..., :2]), 0)
    both = wh[..., 0] * wh[..., 1]
    areas = [(z[..., 2] - z[..., 0]) * (z[..., 3] - z[..., 1]) for z in (a, b)]
    return both, areas[0] + areas[1] - both


@corner("det.iou_pairs", boxes(8192, 37), boxes(6001, 41))
def iou_pairs(a, b):
    both, union = overlap(a[:, None], b[None])
    return both / union


@corner("det.iou_best", boxes(200000, 300), boxes(100, 7))
def iou_best(a, b):
    q = iou_pairs(a, b)
    return q.max(1), q.argmax(1)


@corner("det.giou_loss", MANY, MANY, vag="f32")
def giou_loss(a, b):
    both, union = overlap(a, b)
    wh = jnp.maximum(a[..., 2:], b[..., 2:]) - jnp.minimum(a[..., :2], b[..., :2])
    hull = wh[..., 0] * wh[..., 1]
    return (1 - (both / union - (hull - union) / hull)).mean()


@corner("det.nms_matrix", boxes(12000, 90), uniform((12000,), (90,)))
def suppressed(a, score):
    return ((iou_pairs(a, a) > 0.5) & (score[:, None] < score[None])).any(1)


@corner("det.decode_boxes", normal((32, 120087, 4), (2, 77, 4)), positive((120087, 4), (77, 4)), vjp="bf16")
def decode_boxes(d, anchor):
    cx, cy = d[..., 0] * 0.1 * anchor[:, 2] + anchor[:, 0], d[..., 1] * 0.1 * anchor[:, 3] + anchor[:, 1]
    w = jnp.exp(jnp.clip(d[..., 2] * 0.2, None, 4.0)) * anchor[:, 2]
    h = jnp.exp(jnp.clip(d[..., 3] * 0.2, None, 4.0)) * anchor[:, 3]
    return jnp.clip(jnp.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1), 0, 1)


@corner("det.anchors", positive((9,)), normal((1024, 1000), (8, 9)))
def anchors(size, image):  # of the image only its shape is used
    grid = jnp.stack(jnp.meshgrid(*[jnp.arange(n) + 0.5 for n in image.shape], indexing="ij"), -1)
    sizes = jnp.broadcast_to(jnp.stack([size, 1 / size], -1), (*image.shape, size.shape[0], 2))
    return jnp.concatenate([grid[:, :, None] + 0 * size[:, None], sizes], -1).reshape(-1, 4)


@corner("det.focal", normal((100000, 90), (99, 90)), booleans((100000, 90), (99, 90), p=0.1), vag="bf16")
def focal(logits, t):
    p = nn.sigmoid(logits)
    ce = jnp.maximum(logits, 0) - logits * t + jnp.log1p(jnp.exp(-jnp.abs(logits)))
    pt = p * t + (1 - p) * (1 - t)
    return ((0.25 * t + 0.75 * (1 - t)) * ce * (1 - pt) ** 2).sum()


@corner("det.smooth_l1", OFFSETS, OFFSETS, uniform((4000001,), (999,)), forward="bf16", vag="f32")
def smooth_l1(a, b, w):
    d = jnp.abs(a - b)
    return (jnp.where(d < 0.1, 0.5 * d * d / 0.1, d - 0.05) * w[:, None]).sum() / w.sum()


@corner(
    "det.heatmap",
    *(uniform((128, 8, 2), (2, 8, 2), high=(512.0, 9.0)), positive((128, 8), (2, 8)), normal((512, 512), (9, 7))),
)
def heatmap(centre, radius, image):  # of the image only its shape is used
    y, x = jnp.arange(image.shape[0])[None, None, :, None], jnp.arange(image.shape[1])[None, None, None]
    square = (y - centre[..., 0, None, None]) ** 2 + (x - centre[..., 1, None, None]) ** 2
    return jnp.exp(-square / (2 * radius[..., None, None] ** 2)).max(1)


@corner("det.dice", normal(*MASKS), booleans(*MASKS), forward="bf16", vjp="f32")
def dice(logits, t):
    p = nn.sigmoid(logits)
    return 1 - (2 * (p * t).sum((1, 2)) + 1) / (p.sum((1, 2)) + t.sum((1, 2)) + 1)
