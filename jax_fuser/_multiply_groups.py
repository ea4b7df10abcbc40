"""The product of the rows of each group: one primitive, which `fuse` makes part of its kernels.

Its derivative multiplies the other rows of a group, those before each row and those behind it: nothing is divided, so
it is right beside zeros and where the whole product is too small to hold.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_fuser._eager import compile_when_eager
from jax_fuser._spread_sum import (
    front,
    fuse_groups,
    group_shape,
    last_rows,
    over_outer,
    sum_groups_once,
    trailing,
)
from jax_fuser._varying import same_varying

multiply_p = jax.extend.core.Primitive("jax_fuser_multiply_groups")


def multiply_groups(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    """Return `[*outer, groups, ..]`, the product of each group's rows; one for an empty group.

    Multiplies in a fixed order, in the dtype of `rows`. Arguments as in `spread_groups`.
    """
    return _fused(*same_varying(rows, ids, starts, extents))


_fused = fuse_groups(multiply_p.bind, "multiply_groups")


def _one(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    return last_rows(jnp.multiply, rows, ids, starts, extents, jnp.ones((), rows.dtype))


def _before(rows: jax.Array, ids: jax.Array) -> jax.Array:
    """Return the product of what stands before each row in its group; neither it nor its derivative crosses groups."""
    n = rows.shape[0]
    if n == 0:
        return rows
    one, number = jnp.ones((), rows.dtype), jnp.arange(n, dtype=ids.dtype)
    first = jnp.concatenate([jnp.ones_like(ids[:1], jnp.bool_), ids[1:] != ids[:-1]])
    place = trailing(number - jax.lax.cummax(jnp.where(first, number, 0)), rows.ndim)

    def behind(x: jax.Array, shift: Any) -> jax.Array:
        """Return `x` moved by some rows; one where the row so far before is of another group."""
        moved = jax.lax.dynamic_slice_in_dim(jnp.concatenate([jnp.ones_like(x), x]), n - shift, n)
        return jnp.where(place >= shift, moved, one)

    # After each step a row is the product of twice as many; one body of a loop compiles faster than a tree.
    shifts = jnp.asarray([1 << k for k in range((n - 1).bit_length())], ids.dtype)
    product, _ = jax.lax.scan(lambda x, shift: (behind(x, shift) * x, None), behind(rows, 1), shifts)
    return product


@jax.jit
def _others(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    """Return for each row the product of all other rows of its group; one in padding."""

    def each(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
        del starts
        rows = jnp.where(trailing(ids < extents.shape[0], rows.ndim), rows, jnp.ones((), rows.dtype))
        return _before(rows, ids) * jnp.flip(_before(jnp.flip(rows, 0), jnp.flip(ids, 0)), 0)

    return over_outer(each)(rows, ids, starts, extents)


def _jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    rows, *layout = primals
    found = multiply_p.bind(rows, *layout)
    moved = tangents[0]
    if type(moved) is ad.Zero:
        return found, ad.Zero(jax.typeof(found).to_tangent_aval())
    return found, sum_groups_once(moved * _others(rows, *layout), *layout)


def _batch(args: Any, dims: Any) -> tuple[jax.Array, int]:
    return multiply_groups(*front(args, dims)), 0


compile_when_eager(multiply_p)
multiply_p.def_abstract_eval(group_shape(2))
ad.primitive_jvps[multiply_p] = _jvp
batching.primitive_batchers[multiply_p] = _batch
mlir.register_lowering(multiply_p, mlir.lower_fun(over_outer(_one), multiple_results=False))
