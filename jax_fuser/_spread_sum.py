"""Per-group values to rows and rows to per-group sums: two linear primitives, each the other's transpose.

`fuse` makes both part of its kernels, and sums of rows are such kernels by themselves. No scatter-add runs: sums are
taken in a fixed order, of few elements, and without a compiler, by scans of XLA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_fuser import _fuse
from jax_fuser._accumulator import accumulator
from jax_fuser._eager import compile_when_eager
from jax_fuser._varying import same_varying

# On GPUs XLA's scans of fewer elements take less than a kernel's compilation for a long time. On CPUs kernels compile
# and run sooner: sums of 128 rows of 32 in 8 groups in 0.2 s and 9 us, scans in 1.2 s and 100 us.
_MIN_FUSED_ELEMENTS = 1 << 16

spread_p = jax.extend.core.Primitive("jax_fuser_spread_groups")
sum_p = jax.extend.core.Primitive("jax_fuser_sum_groups")


def spread_groups(values: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    """Return `[.., rows, ..]` with the value of each row's group, zero for padding rows.

    Args:
        values: `[*outer, groups, ..]`. Differentiable, to any order.
        ids: int32 `[*outer, rows]`, the group of each row; `groups` for padding.
        starts: int32 `[*outer, groups]`, first row of each group; the rows of a group are consecutive.
        extents: int32 `[*outer, groups]`, rows of each group: no group leads past the rows that there are.
    """
    return spread_p.bind(*same_varying(values, ids, starts, extents))


def sum_groups(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    """Return `[*outer, groups, ..]`, the sum of each group's rows; zero for an empty group.

    Adds in a fixed order, in float32 for narrower floats. Arguments as in `spread_groups`.
    """
    return _fused_sum(*same_varying(rows, ids, starts, extents))


def fuse_groups(f: Callable[..., Any], name: str) -> _fuse.Fused:
    """Fuse a function of the rows of groups; few elements are left to XLA, on CPUs only very few."""
    return _fuse.Fused(f, name, min_elements=_MIN_FUSED_ELEMENTS)


_fused_sum = fuse_groups(sum_p.bind, "sum_groups")


def sum_groups_once(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    """Return the same for rules of derivatives, as one equation: a fused call would differentiate itself."""
    return sum_p.bind(*same_varying(rows, ids, starts, extents))


def _spread_one(values: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    del starts, extents
    return take_rows(values, ids)


def _sum_one(rows: jax.Array, ids: jax.Array, starts: jax.Array, extents: jax.Array) -> jax.Array:
    inside = trailing(ids < extents.shape[0], rows.ndim)
    wide = jnp.where(inside, rows, jnp.zeros((), rows.dtype)).astype(accumulator(rows.dtype))
    return last_rows(jnp.add, wide, ids, starts, extents).astype(rows.dtype)


def over_outer(one: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return a function of operands with outer dimensions, from one without: the second are ids `[rows]`."""

    def all(x: Any, ids: Any, *others: Any) -> jax.Array:
        f = one
        for _ in range(ids.ndim - 1):
            f = jax.vmap(f)
        return f(x, ids, *others)

    return all


def group_shape(axis: int) -> Callable[..., Any]:
    """Return the rule of an op whose result has the last axis of its operand `axis` in place of its own."""

    def rule(x: Any, *layout: Any) -> Any:
        ids, starts, extents = layout
        outer = ids.ndim - 1
        own = x.shape[outer : outer + 1]
        expected = extents.shape[-1:] if axis == 0 else ids.shape[-1:]
        if starts.shape != extents.shape or x.shape[:outer] != ids.shape[:-1] or own != expected:
            shapes = ", ".join(str(a.shape) for a in (x, *layout))
            raise ValueError(f"spread_groups, sum_groups: operands do not fit each other, got {shapes}")
        shape = (*x.shape[:outer], layout[axis].shape[-1], *x.shape[outer + 1 :])
        return x.update(shape=shape, weak_type=False, sharding=x.sharding.update(spec=jax.P(*[None] * x.ndim)))

    return rule


def _transpose(other: Callable[..., jax.Array]) -> Callable[..., Any]:
    def rule(cotangent: Any, x: Any, *layout: Any) -> list[Any]:
        if type(cotangent) is ad.Zero:
            return [ad.Zero(x.aval.to_ct_aval()), None, None, None]
        return [other(cotangent, *layout), None, None, None]

    return rule


def front(args: Any, dims: Any) -> Any:
    """Return the operands with the batch in front. Repeated layouts and values are only indices in a kernel."""
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    return [jnp.broadcast_to(a, (size, *a.shape)) if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims)]


def _batch(own: Callable[..., jax.Array]) -> Callable[..., Any]:
    return lambda args, dims: (own(*front(args, dims)), 0)


def _register(p: Any, once: Any, own: Any, other: Any, one: Any, axis: int) -> None:
    compile_when_eager(p)
    p.def_abstract_eval(group_shape(axis))
    # Linear in the first operand alone: the layout keeps its values in tangents and cotangents.
    ad.defjvp(p, lambda tangent, x, *layout: once(tangent, *layout), None, None, None)
    ad.primitive_transposes[p] = _transpose(other)
    batching.primitive_batchers[p] = _batch(own)
    mlir.register_lowering(p, mlir.lower_fun(over_outer(one), multiple_results=False))


_register(spread_p, spread_groups, spread_groups, sum_groups, _spread_one, 0)
_register(sum_p, sum_groups_once, sum_groups, spread_groups, _sum_one, 2)


def take_rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """Return `x[index]`, zero where the index is outside."""
    if x.shape[0] == 0:
        return jnp.zeros_like(x, shape=(*index.shape, *x.shape[1:]))
    return x.at[index].get(mode="fill", fill_value=0, wrap_negative_indices=False)


@functools.partial(jax.jit, static_argnums=0)
def last_rows(combine: Any, rows: Any, ids: jax.Array, starts: jax.Array, extents: jax.Array, empty: Any = None) -> Any:
    """Reduce each group with the associative `combine`. Values never cross groups; one without rows has `empty`, or 0.

    Rows may be several arrays, which `combine` takes together. A scan that restarts where the group changes: its tree
    depends on the number of rows alone.
    """
    several = isinstance(rows, tuple)
    first: jax.Array = rows[0] if several else rows
    if first.shape[0] == 0:
        none = lambda x: jnp.full_like(x, 0 if empty is None else empty, shape=(*extents.shape, *x.shape[1:]))  # noqa: E731
        return jax.tree.map(none, rows)
    restart = jnp.concatenate([jnp.ones_like(ids[:1], jnp.bool_), ids[1:] != ids[:-1]])

    def step(left: Any, right: Any) -> Any:
        fresh = trailing(right[1], first.ndim)
        joined = combine(left[0], right[0])
        return jax.tree.map(lambda new, both: jnp.where(fresh, new, both), right[0], joined), left[1] | right[1]

    running, _ = jax.lax.associative_scan(step, (rows, restart))
    filled = extents > 0

    def of_groups(x: jax.Array) -> jax.Array:
        found = take_rows(x, jnp.where(filled, starts + extents - 1, first.shape[0]))
        return found if empty is None else jnp.where(trailing(filled, found.ndim), found, empty)

    return jax.tree.map(of_groups, running)


def trailing(mask: jax.Array, ndim: int) -> jax.Array:
    """Add axes of extent 1 behind, up to a rank."""
    return mask.reshape(*mask.shape, *(1,) * (ndim - mask.ndim))
