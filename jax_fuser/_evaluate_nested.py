"""Nested values in plain jnp: arrays as long as a component can be, of which a mask says what exists.

What does not exist is 1 where a partition makes it, so that few functions of it, or their derivatives, are not finite.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jax_fuser import _ir_text


def mask(ragged: _ir_text.Ragged, shape: tuple[int, ...], extents: Any) -> Any:
    """Return which elements of a nested value exist, as an array that broadcasts to its shape."""
    count = _along(extents, ragged, shape)
    index = jnp.arange(shape[ragged.axis], dtype=count.dtype)
    return index.reshape([-1 if i == ragged.axis else 1 for i in range(len(shape))]) < count


def _along(values: Any, ragged: _ir_text.Ragged, shape: tuple[int, ...]) -> Any:
    """Return one integer for each component with the axes of a nested value, each of extent 1 or the value's."""
    order = sorted(range(len(ragged.by)), key=ragged.by.__getitem__)
    return lax.transpose(values, order).reshape([n if i in ragged.by else 1 for i, n in enumerate(shape)])


def _rows(op: _ir_text.Op, ragged: _ir_text.Ragged, shape: tuple[int, ...], starts: Any, rows: int) -> Any:
    """Return the row of the array in which each element of a nested value stands."""
    first = _along(jnp.clip(starts, 0, rows), ragged, shape)
    return first + jnp.arange(shape[ragged.axis], dtype=first.dtype).reshape(
        [-1 if i == ragged.axis else 1 for i in range(len(shape))]
    )


def partition(op: _ir_text.Op, x: Any, starts: Any, extents: Any) -> Any:
    assert op.ragged is not None
    axis, most = int(op.attributes["axis"]), int(op.attributes["most"])
    if most == 0 or 0 in op.shape:
        return jnp.zeros(op.shape, x.dtype)
    row = jnp.minimum(_rows(op, op.ragged, op.shape, starts, x.shape[axis]), x.shape[axis] - 1)
    components = range(axis, op.ragged.axis)
    kept = [a for a in range(len(op.shape)) if a not in components]
    place = [row if a == op.ragged.axis else lax.broadcasted_iota(row.dtype, op.shape, a) for a in kept]
    rows = x.at[tuple(place)].get(mode="promise_in_bounds")
    return jnp.where(mask(op.ragged, op.shape, extents), rows, jnp.ones((), x.dtype))


def combine(op: _ir_text.Op, ragged: _ir_text.Ragged, x: Any, starts: Any, extents: Any) -> Any:
    rows = int(op.attributes["rows"])
    row = _rows(op, ragged, x.shape, starts, rows)
    row = jnp.where(mask(ragged, x.shape, extents), row, rows)
    components = ragged.by[-int(op.attributes.get("components", 1)) :]
    kept = [a for a in range(x.ndim) if a not in components]
    place = [row if a == ragged.axis else lax.broadcasted_iota(row.dtype, x.shape, a) for a in kept]
    return jnp.zeros(op.shape, x.dtype).at[tuple(place)].set(x, mode="drop")
