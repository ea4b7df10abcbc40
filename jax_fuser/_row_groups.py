"""Where groups lie among rows: from extents (and starts) to clipped spans and to the group of each row."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


def spans(extents: jax.Array, starts: jax.Array | None, m: int) -> tuple[jax.Array, jax.Array]:
    """Return (starts, extents) of int32 `[.., groups]`, clipped so that every group lies within `m` rows."""
    extents = jnp.clip(extents, 0, m)
    if starts is None:
        ends = jnp.minimum(jnp.cumsum(extents, axis=-1, dtype=jnp.int32), m)
        starts = jnp.concatenate([jnp.zeros_like(ends[..., :1]), ends[..., :-1]], axis=-1)
        return starts, ends - starts
    starts = jnp.clip(starts, 0, m)
    return starts, jnp.minimum(extents, m - starts)


def ordered_starts(starts: jax.Array, extents: jax.Array, m: int) -> jax.Array:
    """Let empty groups start where the next group with rows does, so that they hide no row."""
    return jax.lax.cummin(jnp.where(extents > 0, starts, m), axis=extents.ndim - 1, reverse=True)


def row_groups(extents: jax.Array, starts: jax.Array | None, m: int) -> jax.Array:
    """Return the group of each row, int32 `[.., m]`; `groups` for padding."""
    if extents.ndim > 1:
        axes = (0, None if starts is None else 0)
        return jax.vmap(functools.partial(row_groups, m=m), in_axes=axes)(extents, starts)
    groups = extents.shape[0]
    rows = jnp.arange(m, dtype=jnp.int32)
    if groups == 0:
        return jnp.zeros_like(rows)
    starts, extents = spans(extents, starts, m)
    group = (
        jnp.searchsorted(ordered_starts(starts, extents, m), rows, side="right", method="scan_unrolled").astype(
            jnp.int32
        )
        - 1
    )
    inside = jnp.maximum(group, 0)
    owned = (group >= 0) & (rows < starts[inside] + extents[inside])
    return jnp.where(owned, group, groups)
