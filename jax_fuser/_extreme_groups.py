"""The largest or smallest row of each group: one primitive, which `fuse` makes part of its kernels.

Its derivative goes to all rows that hold the extreme value, in equal parts, and is made of `spread_groups` and
`sum_groups`, so every transform nests.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_fuser import _fuse
from jax_fuser._eager import compile_when_eager
from jax_fuser._spread_sum import (
    fold_groups,
    front,
    group_shape,
    last_rows,
    over_outer,
    spread_groups,
    sum_groups_once,
    trailing,
)

extreme_p = jax.extend.core.Primitive("jax_fuser_extreme_groups")


def extreme_groups(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array, largest: bool) -> jax.Array:
    """Return `[*outer, groups, ..]`, the largest (or smallest) of each group's rows.

    An empty group gets the value that every other exceeds: -inf for `largest`, the lowest integer. Arguments as in
    `spread_groups`.
    """
    return fold_groups(*_fold(largest), rows, ids, starts, extents)


@functools.cache
def _fold(largest: bool) -> tuple[Any, _fuse.Fused]:
    bind = functools.partial(extreme_p.bind, largest=largest)
    return bind, _fuse.fuse(bind, name="max_groups" if largest else "min_groups")


def lowest(dtype: Any, largest: bool) -> jax.Array:
    """Return the value that loses against every other when the largest (smallest) is sought."""
    if dtype == jnp.bool_:
        return jnp.asarray(not largest)
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(-jnp.inf if largest else jnp.inf, dtype)
    return jnp.asarray(jnp.iinfo(dtype).min if largest else jnp.iinfo(dtype).max, dtype)


def _one(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array, *, largest: bool) -> jax.Array:
    combine = jnp.maximum if largest else jnp.minimum
    return last_rows(combine, rows, ids, starts, extents, lowest(rows.dtype, largest))


def _lower(*operands: Any, largest: bool) -> jax.Array:
    return over_outer(functools.partial(_one, largest=largest))(*operands)


def _jvp(primals: Any, tangents: Any, *, largest: bool) -> tuple[Any, Any]:
    rows, *layout = primals
    found = extreme_p.bind(rows, *layout, largest=largest)
    moved = tangents[0]
    if type(moved) is ad.Zero:
        return found, ad.Zero(jax.typeof(found).to_tangent_aval())
    hit = (rows == spread_groups(found, *layout)) & trailing(layout[0] < layout[2].shape[-1], rows.ndim)
    count = sum_groups_once(hit.astype(moved.dtype), *layout)
    total = sum_groups_once(jnp.where(hit, moved, jnp.zeros((), moved.dtype)), *layout)
    return found, total / jnp.maximum(count, 1)


def _batch(args: Any, dims: Any, *, largest: bool) -> tuple[jax.Array, int]:
    rows, ids, starts, extents = front(args, dims)
    return extreme_groups(rows, ids, starts, extents, largest), 0


compile_when_eager(extreme_p, "largest")
extreme_p.def_abstract_eval(lambda *operands, largest: group_shape(2)(*operands))
ad.primitive_jvps[extreme_p] = _jvp
batching.primitive_batchers[extreme_p] = _batch
mlir.register_lowering(extreme_p, mlir.lower_fun(_lower, multiple_results=False))
