"""Searching sorted tables of integers: one primitive, which `fuse` makes part of its kernels.

XLA's lowering is a binary search of all numbers together. Nothing differentiates: places are integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_fuser._eager import compile_when_eager
from jax_fuser._varying import same_varying

search_p = jax.extend.core.Primitive("jax_fuser_search")


def search(table: jax.Array, numbers: jax.Array, side: str = "right", along: Sequence[int] = ()) -> jax.Array:
    """Return how many elements of a table are <= each number, or < it with side="left".

    Args:
        table: integers `[.., n]`, ascending along the last axis; where they are not, results are in `[0, n]` still.
        numbers: integers of the dtype of `table`, any shape.
        side: "right" or "left".
        along: for each axis of `table` but the last, the axis of `numbers` that it goes along, increasing.

    Returns:
        int32, the shape of `numbers`.
    """
    return search_p.bind(*same_varying(table, numbers), side=side, along=tuple(along))


def binary_search(table: Any, numbers: Any, side: str, along: Sequence[int]) -> Any:
    """Return the same by XLA's ops."""
    if not along:
        return _halve(table, numbers, side)
    inner = [d - 1 for d in along[1:]]
    return jax.vmap(lambda t, x: binary_search(t, x, side, inner), (0, along[0]), along[0])(table, numbers)


def _halve(table: Any, numbers: Any, side: str) -> Any:
    """Search one table. JAX 0.10's `searchsorted` fails where some axes of a mesh are manual and others are not."""
    low, high = (jnp.full_like(numbers, end, jnp.uint32) for end in (0, table.shape[0]))
    for _ in range(table.shape[0].bit_length()):
        middle = low + (high - low) // 2
        found = jnp.take(table, middle, mode="clip")
        before = found > numbers if side == "right" else found >= numbers
        low, high = jnp.where(before, low, middle), jnp.where(before, middle, high)
    return high.astype(jnp.int32)


def _abstract_eval(table: Any, numbers: Any, *, side: str, along: tuple[int, ...]) -> Any:
    del side
    fits = table.ndim == len(along) + 1 and table.dtype == numbers.dtype
    if not fits or any(n != numbers.shape[d] for n, d in zip(table.shape, along)):
        raise ValueError(f"search: a table {table.str_short()} along axes {along} does not fit {numbers.str_short()}")
    return numbers.update(dtype=jnp.dtype(jnp.int32), weak_type=False)


def _batch(args: Any, axes: Any, *, side: str, along: tuple[int, ...]) -> tuple[Any, int]:
    (table, numbers), (table_axis, axis) = args, axes
    if axis is None:
        numbers = jnp.broadcast_to(numbers, (table.shape[table_axis], *numbers.shape))
    else:
        numbers = jnp.moveaxis(numbers, axis, 0)
    along = tuple(d + 1 for d in along)
    if table_axis is None:
        return search(table, numbers, side, along), 0
    return search(jnp.moveaxis(table, table_axis, 0), numbers, side, (0, *along)), 0


def _lower(table: Any, numbers: Any, *, side: str, along: tuple[int, ...]) -> Any:
    return binary_search(table, numbers, side, along)


compile_when_eager(search_p, "side", "along")
search_p.def_abstract_eval(_abstract_eval)
ad.defjvp(search_p, None, None)
batching.primitive_batchers[search_p] = _batch
mlir.register_lowering(search_p, mlir.lower_fun(_lower, multiple_results=False))
