"""The largest or smallest row of each group: one primitive, which `fuse` makes part of its kernels.

Its derivative goes to all rows that hold the extreme value, in equal parts, and is made of `spread_groups` and
`sum_groups`, so every transform nests. All rows of a group with a NaN get NaN, as by the rule of `jnp.max`, where no
row equals it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from jax_fuser._eager import compile_when_eager
from jax_fuser._spread_sum import (
    front,
    fuse_groups,
    group_shape,
    last_rows,
    over_outer,
    sum_groups_once,
    take_rows,
    trailing,
)
from jax_fuser._varying import same_varying

extreme_p = jax.extend.core.Primitive("jax_fuser_extreme_groups")
hits_p = jax.extend.core.Primitive("jax_fuser_extreme_hits")


def extreme_groups(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array, largest: bool) -> jax.Array:
    """Return `[*outer, groups, ..]`, the largest (or smallest) of each group's rows.

    An empty group gets the value that every other exceeds: -inf for `largest`, the lowest integer or float where there
    is no infinity. Arguments as in `spread_groups`.
    """
    return _fold(largest)(*same_varying(rows, ids, starts, extents))


@functools.cache
def _fold(largest: bool) -> Any:
    return fuse_groups(functools.partial(extreme_p.bind, largest=largest), "max_groups" if largest else "min_groups")


def lowest(dtype: Any, largest: bool) -> jax.Array:
    """Return the value that loses against every other when the largest (smallest) is sought."""
    if dtype == jnp.bool_:
        return jnp.asarray(not largest)
    if jnp.issubdtype(dtype, jnp.inexact):
        if np.isinf(np.asarray(np.inf).astype(dtype)):
            return jnp.asarray(-jnp.inf if largest else jnp.inf, dtype)
        return jnp.asarray(jnp.finfo(dtype).min if largest else jnp.finfo(dtype).max, dtype)
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
    hit = hits_p.bind(found, *layout, rows, largest=largest)
    count = sum_groups_once(hit.astype(moved.dtype), *layout)
    total = sum_groups_once(jnp.where(hit, moved, jnp.zeros((), moved.dtype)), *layout)
    return found, total / _shares(found, jnp.maximum(count, 1))


def _shares(found: jax.Array, count: jax.Array) -> jax.Array:
    """Return among how many rows a derivative is shared; NaN where the extreme value is, for all of its rows."""
    return jnp.where(jnp.isnan(found), jnp.asarray(jnp.nan, count.dtype), count)


def _hits_of_one(
    found: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array, rows: jax.Array, *, largest: bool
) -> jax.Array:
    """Return which rows hold the extreme value of their group, at least one of each; all rows where it is NaN.

    XLA may compute rows once to fold them and again to compare them, and rounds differently then: none would be equal.
    """
    inside, own = trailing(ids < extents.shape[0], rows.ndim), take_rows(found, ids)
    if rows.shape[0] == 0 or jnp.issubdtype(rows.dtype, jnp.complexfloating):
        return ((rows == own) | jnp.isnan(own)) & inside

    def beats(left: Any, right: Any) -> Any:
        more = right[0] > left[0] if largest else right[0] < left[0]
        return more | (jnp.isnan(right[0]) & ~jnp.isnan(left[0]))

    def first(left: Any, right: Any) -> Any:
        take = beats(left, right)
        return tuple(jnp.where(take, b, a) for a, b in zip(left, right))

    places = jax.lax.broadcasted_iota(jnp.int32, rows.shape, 0)
    _, place = last_rows(first, (rows, places), ids, starts, extents)
    return ((rows == own) | (places == take_rows(place, ids)) | jnp.isnan(own)) & inside


def _lower_hits(*operands: Any, largest: bool) -> jax.Array:
    return over_outer(functools.partial(_hits_of_one, largest=largest))(*operands)


def _jvp_hits(primals: Any, tangents: Any, *, largest: bool) -> tuple[Any, Any]:
    del tangents
    hit = hits_p.bind(*primals, largest=largest)
    return hit, ad.Zero(jax.typeof(hit).to_tangent_aval())


def _batch_hits(args: Any, dims: Any, *, largest: bool) -> tuple[jax.Array, int]:
    return hits_p.bind(*front(args, dims), largest=largest), 0


def extreme_of_all(rows: jax.Array, axis: int, largest: bool) -> jax.Array:
    """Return the largest (smallest) along an axis, with a derivative that at least one of its rows gets."""
    start = lowest(rows.dtype, largest)
    if rows.shape[axis] and jnp.issubdtype(rows.dtype, jnp.floating):
        return _extreme_of_all(rows, axis, largest)
    return (jnp.max if largest else jnp.min)(rows, axis=axis, initial=start)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _extreme_of_all(rows: jax.Array, axis: int, largest: bool) -> jax.Array:
    return (jnp.max if largest else jnp.min)(rows, axis=axis)


@_extreme_of_all.defjvp
def _extreme_of_all_jvp(axis: int, largest: bool, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    [rows], [moved] = primals, tangents
    found = _extreme_of_all(rows, axis, largest)
    place = (jnp.argmax if largest else jnp.argmin)(rows, axis, keepdims=True)
    own = jnp.expand_dims(found, axis)
    hit = (rows == own) | (jax.lax.broadcasted_iota(place.dtype, rows.shape, axis) == place) | jnp.isnan(own)
    count = _shares(found, jnp.sum(hit.astype(moved.dtype), axis))
    return found, jnp.sum(jnp.where(hit, moved, jnp.zeros((), moved.dtype)), axis) / count


def _batch(args: Any, dims: Any, *, largest: bool) -> tuple[jax.Array, int]:
    rows, ids, starts, extents = front(args, dims)
    return extreme_groups(rows, ids, starts, extents, largest), 0


compile_when_eager(extreme_p, "largest")
extreme_p.def_abstract_eval(lambda *operands, largest: group_shape(2)(*operands))
ad.primitive_jvps[extreme_p] = _jvp
batching.primitive_batchers[extreme_p] = _batch
mlir.register_lowering(extreme_p, mlir.lower_fun(_lower, multiple_results=False))

compile_when_eager(hits_p, "largest")
hits_p.def_abstract_eval(
    lambda found, ids, starts, extents, rows, largest: rows.update(dtype=jnp.dtype(bool), weak_type=False)
)
ad.primitive_jvps[hits_p] = _jvp_hits
batching.primitive_batchers[hits_p] = _batch_hits
mlir.register_lowering(hits_p, mlir.lower_fun(_lower_hits, multiple_results=False))
