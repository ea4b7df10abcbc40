"""Nested values in plain jnp: arrays as long as a component can be, of which a mask says what exists.

What does not exist is 1 where a partition makes it, so that few functions of it, or their derivatives, are not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_fuser import _ir_text


def mask(ragged: Sequence[_ir_text.Ragged], shape: tuple[int, ...], extents: Sequence[Any]) -> Any:
    """Return which elements of a nested value exist, as an array that broadcasts to its shape."""
    exists: Any = True
    for one, own in zip(ragged, extents, strict=True):
        count = _along(own, one, shape)
        exists = exists & (_index(one, shape, count.dtype) < count)
    return exists


def _along(values: Any, ragged: _ir_text.Ragged, shape: tuple[int, ...]) -> Any:
    """Return one integer for each component with the axes of a nested value, each of extent 1 or the value's."""
    order = sorted(range(len(ragged.by)), key=ragged.by.__getitem__)
    return lax.transpose(values, order).reshape([n if i in ragged.by else 1 for i, n in enumerate(shape)])


def _index(ragged: _ir_text.Ragged, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the index along a ragged axis, with the axes of a nested value."""
    return jnp.arange(shape[ragged.axis], dtype=dtype).reshape(
        [-1 if i == ragged.axis else 1 for i in range(len(shape))]
    )


def _rows(ragged: _ir_text.Ragged, shape: tuple[int, ...], starts: Any, rows: int) -> Any:
    """Return the row of the array in which each element of a nested value stands."""
    first = _along(jnp.clip(starts, 0, rows), ragged, shape)
    return first + _index(ragged, shape, first.dtype)


def partition(op: _ir_text.Op, x: Any, starts: Sequence[Any], extents: Sequence[Any]) -> Any:
    components = [*range(int(op.attributes["axis"]), op.ragged[0].axis), *(one.by[-1] for one in op.ragged[1:])]
    if 0 in op.shape:
        return jnp.zeros(op.shape, x.dtype)
    kept = [a for a in range(len(op.shape)) if a not in components]
    place: list[Any] = [lax.broadcasted_iota(jnp.int32, op.shape, a) for a in kept]
    for one, own in zip(op.ragged, starts, strict=True):
        axis = kept.index(one.axis)
        place[axis] = jnp.minimum(_rows(one, op.shape, own, x.shape[axis]), x.shape[axis] - 1)
    rows = x.at[tuple(place)].get(mode="promise_in_bounds")
    return jnp.where(mask(op.ragged, op.shape, extents), rows, jnp.ones((), x.dtype))


def combine(
    op: _ir_text.Op, ragged: Sequence[_ir_text.Ragged], x: Any, starts: Sequence[Any], extents: Sequence[Any]
) -> Any:
    count = int(op.attributes.get("components", 1))
    components = [by for one in ragged for by in one.by[-count:]]
    kept = [a for a in range(x.ndim) if a not in components]
    place: list[Any] = [lax.broadcasted_iota(jnp.int32, x.shape, a) for a in kept]
    exists = mask(ragged, x.shape, extents)
    for one, own in zip(ragged, starts, strict=True):
        axis = kept.index(one.axis)
        row = _rows(one, x.shape, own, op.shape[axis])
        place[axis] = jnp.where(exists, row, op.shape[axis])
    return jnp.zeros(op.shape, x.dtype).at[tuple(place)].set(x, mode="drop")
