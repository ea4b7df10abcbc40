"""Row movements whose derivatives are row movements: no scatter-add, so every result is repeatable.

They take one ragged dimension in front (`[rows, ..]`); callers `vmap` over outer dimensions.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser._spread_sum import last_rows, spread_groups, sum_groups, trailing
from jax_fuser._sum_rows import sum_rows
from jax_fuser._varying import same_varying


def move_rows(x: jax.Array, source: jax.Array, target: jax.Array, copies: int = 1) -> jax.Array:
    """Return `y` with `y[j] = x[source[j] // copies]`, and zero where `source[j]` is -1.

    Args:
        x: `[rows, ..]`.
        source: int32 `[n]`, index into the rows of `x`, each repeated `copies` times; every index at most once.
        target: int32 `[rows * copies]`, the inverse: where a row of `x` went, or -1.
        copies: how often each row of `x` is repeated; the gradient adds them up in this order, in float32.
    """
    return sum_rows(x, (source // copies)[:, None], target.reshape(x.shape[0], copies))


def extreme_groups(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array, largest: bool) -> jax.Array:
    """Return `[groups, ..]`, the largest (or smallest) of each group's rows.

    An empty group gets the value that every other exceeds: -inf for `largest`, the lowest integer. The gradient goes
    to all rows that hold the extreme value, in equal parts. Arguments as in `spread_groups`.
    """
    return _extreme_groups(*same_varying(rows, ids, starts, extents), largest)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _extreme_groups(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array, largest: bool) -> jax.Array:
    found = last_rows(jnp.maximum if largest else jnp.minimum, rows, ids, starts, extents)
    return jnp.where(trailing(extents > 0, found.ndim), found, lowest(rows.dtype, largest))


def _extreme_groups_fwd(rows: jax.Array, ids: Any, starts: Any, extents: Any, largest: bool) -> tuple[jax.Array, Any]:
    found = _extreme_groups(rows, ids, starts, extents, largest)
    return found, (rows, found, (ids, starts, extents))


def _extreme_groups_bwd(largest: bool, residuals: Any, ct: jax.Array) -> tuple[Any, ...]:
    del largest
    rows, found, layout = residuals
    hit = (rows == spread_groups(found, *layout)) & trailing(layout[0] < found.shape[0], rows.ndim)
    count = sum_groups(hit.astype(ct.dtype), *layout)
    share = spread_groups(ct / jnp.maximum(count, 1), *layout)
    return jnp.where(hit, share, jnp.zeros((), ct.dtype)), None, None, None


_extreme_groups.defvjp(_extreme_groups_fwd, _extreme_groups_bwd)


def lowest(dtype: Any, largest: bool) -> jax.Array:
    """Return the value that loses against every other when the largest (smallest) is sought."""
    if dtype == jnp.bool_:
        return jnp.asarray(not largest)
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(-jnp.inf if largest else jnp.inf, dtype)
    return jnp.asarray(jnp.iinfo(dtype).min if largest else jnp.iinfo(dtype).max, dtype)
