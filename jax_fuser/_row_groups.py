"""Where groups lie among rows: from extents (and starts) to clipped spans and to the group of each row."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_fuser._search import search

_INT32_MAX = 2**31 - 1


def spans(extents: jax.Array, starts: jax.Array | None, m: int) -> tuple[jax.Array, jax.Array]:
    """Return (starts, extents) of int32 `[.., groups]`, clipped so that every group lies within `m` rows.

    Without `starts` each group has the rows that those before it leave, whatever the extents hold.
    """
    extents = _clipped(extents, m)
    if starts is None:
        # Without a shift, which would be a kernel of its own.
        starts = _up_to(m, jnp.cumsum(extents, axis=-1, dtype=jnp.int32) - extents)
    else:
        starts = _clipped(starts, m)
    return starts, jnp.minimum(extents, m - starts)


def _clipped(values: jax.Array, m: int) -> jax.Array:
    """Return int32 in [0, m] of wider and unsigned integers, too, which are compared as they are."""
    return jnp.clip(values, 0, m).astype(jnp.int32)


def rows_used(extents: jax.Array, m: int) -> jax.Array:
    """Return how many of `m` rows the groups have that lie one after another, int32 `[..]`."""
    if extents.shape[-1] * m > _INT32_MAX:
        return jnp.sum(spans(extents, None, m)[1], axis=-1, dtype=jnp.int32)
    return jnp.minimum(jnp.sum(_clipped(extents, m), axis=-1, dtype=jnp.int32), m)


def _up_to(m: int, sums: jax.Array) -> jax.Array:
    """Return running sums of int32 in [0, m], exact below `m` and `m` from there on."""
    if sums.shape[-1] * m <= _INT32_MAX:
        return jnp.minimum(sums, m)
    # The first one that is too large is less than 2 * m, so negative if it wrapped; later ones may be anything.
    return jax.lax.cummax(jnp.where(sums < 0, m, jnp.minimum(sums, m)), axis=sums.ndim - 1)


def ordered_starts(starts: jax.Array, extents: jax.Array, m: int) -> jax.Array:
    """Let empty groups start where the next group with rows does, so that they hide no row."""
    return jax.lax.cummin(jnp.where(extents > 0, starts, m), axis=extents.ndim - 1, reverse=True)


def row_groups(extents: jax.Array, starts: jax.Array | None, m: int, ordered: bool = True) -> jax.Array:
    """Return the group of each row, int32 `[.., m]`; `groups` for padding.

    Unless `ordered`, groups may lie in any order: their starts are sorted.
    """
    outer, groups = extents.shape[:-1], extents.shape[-1]
    rows = jax.lax.broadcasted_iota(jnp.int32, (*outer, m), len(outer))
    if groups == 0 or m == 0:
        return jnp.zeros_like(rows)
    along = range(len(outer))
    if starts is None:
        ends = _up_to(m, jnp.cumsum(_clipped(extents, m), axis=-1, dtype=jnp.int32))
        return search(ends, rows, along=along)
    starts, extents = spans(extents, starts, m)
    ends = starts + extents
    if ordered:
        number = None
        first = ordered_starts(starts, extents, m)
    else:
        # Empty groups come last, so that they hide no row.
        number = jax.lax.broadcasted_iota(jnp.int32, extents.shape, len(outer))
        first, ends, number = jax.lax.sort((jnp.where(extents > 0, starts, m), ends, number), num_keys=1)
    place = search(first, rows, along=along) - 1
    inside = jnp.maximum(place, 0)
    owned = (place >= 0) & (rows < jnp.take_along_axis(ends, inside, axis=-1, mode="clip"))
    owner = inside if number is None else jnp.take_along_axis(number, inside, axis=-1, mode="clip")
    return jnp.where(owned, owner, groups)
