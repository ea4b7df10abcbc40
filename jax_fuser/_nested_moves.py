"""Row movements whose derivatives are row movements: no scatter-add, so every result is repeatable.

They take one ragged dimension in front (`[rows, ..]`); callers `vmap` over outer dimensions. `move_rows` has every
derivative; `spread_groups` and `sum_groups`, each the other's transpose, have reverse mode to any order.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

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


def spread_groups(values: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    """Return `[rows, ..]` with the value of each row's group, zero for padding rows.

    Args:
        values: `[groups, ..]`.
        ids: int32 `[rows]`, the group of each row; `groups` for padding.
        starts: int32 `[groups]`, first row of each group; the rows of a group are consecutive.
        extents: int32 `[groups]`, rows of each group.
    """
    return _spread_groups(*same_varying(values, ids, starts, extents))


def sum_groups(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    """Return `[groups, ..]`, the sum of each group's rows; zero for an empty group.

    Adds in a fixed order, in float32 for narrower floats. Arguments as in `spread_groups`.
    """
    return _sum_groups(*same_varying(rows, ids, starts, extents))


@jax.custom_vjp
def _spread_groups(values: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    del starts, extents
    return take_rows(values, ids)


@jax.custom_vjp
def _sum_groups(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    groups = extents.shape[0]
    inside = _trailing(ids < groups, rows.ndim)
    wide = jnp.where(inside, rows, jnp.zeros((), rows.dtype)).astype(accumulator(rows.dtype))
    return last_rows(jnp.add, wide, ids, starts, extents).astype(rows.dtype)


def _spread_groups_fwd(values: jax.Array, *layout: jax.Array) -> tuple[jax.Array, Any]:
    return _spread_groups(values, *layout), layout


def _spread_groups_bwd(layout: Any, ct: jax.Array) -> tuple[Any, ...]:
    return _sum_groups(ct, *layout), None, None, None


def _sum_groups_fwd(rows: jax.Array, *layout: jax.Array) -> tuple[jax.Array, Any]:
    return _sum_groups(rows, *layout), layout


def _sum_groups_bwd(layout: Any, ct: jax.Array) -> tuple[Any, ...]:
    return _spread_groups(ct, *layout), None, None, None


_spread_groups.defvjp(_spread_groups_fwd, _spread_groups_bwd)
_sum_groups.defvjp(_sum_groups_fwd, _sum_groups_bwd)


def extreme_groups(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array, largest: bool) -> jax.Array:
    """Return `[groups, ..]`, the largest (or smallest) of each group's rows.

    An empty group gets the value that every other exceeds: -inf for `largest`, the lowest integer. The gradient goes
    to all rows that hold the extreme value, in equal parts. Arguments as in `spread_groups`.
    """
    return _extreme_groups(*same_varying(rows, ids, starts, extents), largest)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _extreme_groups(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array, largest: bool) -> jax.Array:
    found = last_rows(jnp.maximum if largest else jnp.minimum, rows, ids, starts, extents)
    return jnp.where(_trailing(extents > 0, found.ndim), found, lowest(rows.dtype, largest))


def _extreme_groups_fwd(rows: jax.Array, ids: Any, starts: Any, extents: Any, largest: bool) -> tuple[jax.Array, Any]:
    found = _extreme_groups(rows, ids, starts, extents, largest)
    return found, (rows, found, (ids, starts, extents))


def _extreme_groups_bwd(largest: bool, residuals: Any, ct: jax.Array) -> tuple[Any, ...]:
    del largest
    rows, found, layout = residuals
    hit = (rows == _spread_groups(found, *layout)) & _trailing(layout[0] < found.shape[0], rows.ndim)
    count = _sum_groups(hit.astype(ct.dtype), *layout)
    share = _spread_groups(ct / jnp.maximum(count, 1), *layout)
    return jnp.where(hit, share, jnp.zeros((), ct.dtype)), None, None, None


_extreme_groups.defvjp(_extreme_groups_fwd, _extreme_groups_bwd)


def lowest(dtype: Any, largest: bool) -> jax.Array:
    """Return the value that loses against every other when the largest (smallest) is sought."""
    if dtype == jnp.bool_:
        return jnp.asarray(not largest)
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(-jnp.inf if largest else jnp.inf, dtype)
    return jnp.asarray(jnp.iinfo(dtype).min if largest else jnp.iinfo(dtype).max, dtype)


@functools.partial(jax.jit, static_argnums=0)
def last_rows(combine: Any, rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    """Reduce each group with the associative `combine`; zero for an empty group. Values never cross groups.

    A scan that restarts where the group changes: its tree depends on the number of rows alone.
    """
    if rows.shape[0] == 0:
        return jnp.zeros_like(rows, shape=(*extents.shape, *rows.shape[1:]))
    restart = jnp.concatenate([jnp.ones_like(ids[:1], jnp.bool_), ids[1:] != ids[:-1]])

    def step(left: Any, right: Any) -> Any:
        fresh = _trailing(right[1], rows.ndim)
        return jnp.where(fresh, right[0], combine(left[0], right[0])), left[1] | right[1]

    running, _ = jax.lax.associative_scan(step, (rows, restart))
    return take_rows(running, jnp.where(extents > 0, starts + extents - 1, rows.shape[0]))


def take_rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """Return `x[index]`, zero where the index is past the end."""
    if x.shape[0] == 0:
        return jnp.zeros_like(x, shape=(*index.shape, *x.shape[1:]))
    return jnp.take(x, index, axis=0, mode="fill", fill_value=0)


def accumulator(dtype: Any) -> Any:
    """Return the dtype to add in: float32 for narrower floats, else the dtype itself."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32) if narrow else jnp.dtype(dtype)


def _trailing(mask: jax.Array, ndim: int) -> jax.Array:
    return mask.reshape(*mask.shape, *(1,) * (ndim - mask.ndim))
