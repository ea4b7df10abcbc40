"""Rows of groups as transposed e4m3 with a scale for each column of each group: what sums over a group's rows take.

x (m, k), groups of rows    data (k, rows), groups one after the other, each filled up with zeros to ROWS of them
                            scales (groups, k)
                            extents (groups,), with the zeros
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser._automatic import automatically
from jax_fuser._extreme_groups import extreme_groups
from jax_fuser._fuse import Fused, fuse
from jax_fuser._quant import is_large
from jax_fuser._quantize_groups import DTYPE, plain, quantize_groups
from jax_fuser._reciprocal import reciprocal
from jax_fuser._row_groups import row_groups, spans
from jax_fuser._search import search

ROWS = 32  # that the tensor cores sum at once


def padded_rows(m: int, groups: int) -> int:
    """Rows that `groups` of up to `m` rows take at most when they are filled up."""
    # Rows of the transposed array are read in 16 bytes and stored in 128.
    return -(-(m + (ROWS - 1) * min(groups, m)) // 128) * 128


def quantize_columns(x: Any, extents: Any, starts: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return data, scales and extents."""
    indices = (extents,) if starts is None else (extents, starts)
    made: tuple[jax.Array, jax.Array, jax.Array] = automatically(_quantize, x, *indices, like=lambda _: [])
    return made


def _quantize(x: Any, extents: Any, starts: Any = None) -> tuple[jax.Array, jax.Array, jax.Array]:
    m, groups = x.shape[0], extents.shape[0]
    first, count = spans(extents, starts, m)
    padded = -(-count // ROWS) * ROWS
    ends = jnp.cumsum(padded, dtype=jnp.int32)
    place = jnp.arange(padded_rows(m, groups), dtype=jnp.int32)
    group = jnp.minimum(search(ends, place), groups - 1)
    within = place - (ends - padded)[group]
    row = jnp.where(within < count[group], first[group] + within, m)
    # Kernels of our own where they are worth compiling.
    largest, stored = (_fused(_largest), quantize_groups) if is_large(x) else (_largest, plain)
    most = largest(x, row_groups(extents, starts, m), first, count)
    inverse = np.float32(1) / np.float32(jnp.finfo(DTYPE).max)
    scales = jnp.where(most == 0, 1, jnp.maximum(most * inverse, jnp.finfo(jnp.float32).tiny))
    return stored(x, row, group, reciprocal(scales)), scales, padded


def _largest(x: Any, ids: Any, first: Any, count: Any) -> Any:
    """Return the largest magnitude of each column of each group, 0 in a group without rows."""
    return jnp.maximum(extreme_groups(jnp.abs(x), ids, first, count, True), 0).astype(jnp.float32)


@functools.cache
def _fused(f: Any) -> Fused:
    return fuse(f, name="quantize_columns")
