"""Plain loops over groups in NumPy: the truth of every grouped test."""

import jax.numpy as jnp
import numpy as np

from jax_fuser._grouped_primitive import product

# Extents of the ragged edge cases, for 40 rows in storage.
ROWS = 40
EDGES = {
    "even": [10, 10, 10, 10],
    "first_empty": [0, 13, 7, 20],
    "last_empty": [13, 7, 20, 0],
    "several_empty": [0, 0, 17, 0, 23, 0],
    "all_empty": [0, 0, 0],
    "all_in_one": [0, 40, 0, 0],
    "one_group": [40],
    "below_capacity": [5, 0, 9, 1],
    "no_tile_fits": [1, 7, 3, 17, 9],
}


def groups(extents, starts, m):
    """Yield (group, slice of its rows), clipped to m."""
    first = 0
    for g, extent in enumerate(np.asarray(extents).tolist()):
        start = min(first if starts is None else int(starts[g]), m)
        yield g, slice(start, min(start + max(extent, 0), m))
        first += max(extent, 0)


def _wide(*arrays):
    wide = np.result_type(*(np.float64 if np.asarray(a).dtype.kind not in "iuc" else a.dtype for a in arrays))
    return [np.asarray(a).astype(wide) for a in arrays]


def rows(lhs, rhs, extents, starts=None, transpose_rhs=False):
    lhs, rhs = _wide(lhs, rhs)
    rhs = np.swapaxes(rhs, 1, 2) if transpose_rhs else rhs
    out = np.zeros((lhs.shape[0], rhs.shape[2]), lhs.dtype)
    for g, span in groups(extents, starts, lhs.shape[0]):
        out[span] = lhs[span] @ rhs[g]
    return out


def contraction(lhs, rhs, extents, starts=None):
    lhs, rhs = _wide(lhs, rhs)
    out = np.zeros((len(extents), lhs.shape[1], rhs.shape[1]), lhs.dtype)
    for g, span in groups(extents, starts, lhs.shape[0]):
        out[g] = lhs[span].T @ rhs[span]
    return out


def batch(lhs, rhs, extents, starts=None, transpose_rhs=False):
    lhs, rhs = _wide(lhs, rhs)
    rhs = np.swapaxes(rhs, 1, 2) if transpose_rhs else rhs
    out = np.zeros((*lhs.shape[:2], rhs.shape[2]), lhs.dtype)
    for _, span in groups(extents, starts, lhs.shape[0]):
        out[span] = lhs[span] @ rhs[span]
    return out


def owned_rows(extents, m, starts=None):
    mask = np.zeros(m, bool)
    for _, span in groups(extents, starts, m):
        mask[span] = True
    return mask


MODES = ["rows", "rows_t", "contraction", "batch", "batch_t"]


def make(mode, extents, m=ROWS, k=12, n=9, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    g, r = len(extents), 3
    shapes = {
        "rows": ((m, k), (g, k, n)),
        "rows_t": ((m, k), (g, n, k)),
        "contraction": ((m, k), (m, n)),
        "batch": ((m, r, k), (m, k, n)),
        "batch_t": ((m, r, k), (m, n, k)),
    }[mode]
    return tuple(rng.normal(size=s).astype(dtype) for s in shapes)


def run(mode, lhs, rhs, extents, starts=None, dtype=None):
    name, _, transposed = mode.partition("_")
    extents, starts = (None if i is None else jnp.asarray(i, jnp.int32) for i in (extents, starts))
    return product(lhs, rhs, extents, starts, mode=name, dtype=dtype or lhs.dtype, transpose_rhs=bool(transposed))


def truth(mode, lhs, rhs, extents, starts=None):
    name, _, transposed = mode.partition("_")
    options = {"transpose_rhs": True} if transposed else {}
    return {"rows": rows, "contraction": contraction, "batch": batch}[name](lhs, rhs, extents, starts, **options)
