"""A batch of rows by group as the rows of one product, in one of three orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser._group_order import group_order
from jax_fuser._row_groups import row_groups, spans
from jax_fuser._sum_rows import sum_rows


@dataclass(frozen=True)
class BatchedRows:
    """Where the rows of a batch's entries are in one product.

    `join(array, dim)`: an array with rows, and with its batch at `dim` (None: the same for all entries), as rows of
    that. `part(array)`: such rows as those of the entries, and where the batch is then.
    """

    extents: jax.Array
    starts: jax.Array | None
    join: Callable[[Any, int | None], jax.Array]
    part: Callable[[jax.Array], tuple[jax.Array, int]]


def front(a: Any, dim: int | None, size: int) -> jax.Array:
    """Return an array with its batch in front; the same for all entries where it has none."""
    return jnp.broadcast_to(a, (size, *a.shape)) if dim is None else jnp.moveaxis(a, dim, 0)


def side_by_side(extents: Any, starts: Any, size: int, m: int) -> BatchedRows:
    """Every row of a layout that all entries share becomes `size` rows: contiguous groups stay so."""

    def join(a: Any, dim: int | None) -> jax.Array:
        each = jnp.repeat(a[:, None], size, 1) if dim is None else jnp.moveaxis(a, dim, 1)
        return each.reshape(m * size, *each.shape[2:])

    first, count = spans(extents, starts, m)
    firsts = None if starts is None else first * size
    return BatchedRows(count * size, firsts, join, lambda a: (a.reshape(m, size, *a.shape[1:]), 1))


def end_to_end(first: jax.Array, count: jax.Array, m: int, results: int | None = None) -> BatchedRows:
    """One long axis for weights of each entry: group g of entry b starts at row b * m + `first[b, g]`.

    `results`: so many of what comes out are an entry's; its `m` rows by default.
    """
    size = first.shape[0]
    starts = first + m * jnp.arange(size, dtype=jnp.int32)[:, None]

    def join(a: Any, dim: int | None) -> jax.Array:
        each = front(a, dim, size)
        return each.reshape(size * each.shape[1], *each.shape[2:])

    def part(a: jax.Array) -> tuple[jax.Array, int]:
        return a.reshape(size, m if results is None else results, *a.shape[1:]), 0

    return BatchedRows(count.reshape(-1), starts.reshape(-1), join, part)


def by_group(first: jax.Array, count: jax.Array, m: int) -> BatchedRows:
    """Rows of all entries, of which each has sizes of its own, sorted by group for weights that all share.

    End to end the weights would be copied once for each entry; this copies rows.
    """
    long = end_to_end(first, count, m)
    order, place, extents = group_order(row_groups(count, first, m).reshape(-1), count.shape[1])
    order, place = order[:, None], place[:, None]
    return BatchedRows(
        extents,
        None,
        lambda a, dim: sum_rows(long.join(a, dim), order, place),
        lambda a: long.part(sum_rows(a, place, order)),
    )
