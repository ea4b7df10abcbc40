"""From nested tensors to plain arrays and back out of storage: flatten, pad, select.

Every function builds, per outer index, the map from result rows to storage rows and its inverse, and hands both to
`move_rows`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser import _arguments
from jax_fuser._automatic import automatically, names_of
from jax_fuser._nested_checks import INT32_MAX, concrete, debug_check, first, readable, spell
from jax_fuser._nested_moves import move_rows
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._spread_sum import spread_groups
from jax_fuser._static_sizes import check_sizes


def as_flattened(nt: NestedTensor) -> jax.Array:
    """Return the rows of all groups, one group after another: `[.., capacity, ..]`.

    Contiguous storage comes back as it is, without a copy, padding included. Gapped storage is compacted; rows past
    the total are then zero.

    Args:
        nt: nested tensor `[.., groups, ragged, ..]`.

    Returns:
        Array of the dtype and capacity of `nt.data`; group `g` holds rows `nt.offsets[g]` to `nt.offsets[g + 1]`.
        Differentiable.

    Raises:
        TypeError: `nt` is no nested tensor.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.arange(3.0), extents=[2, 1])
        >>> jf.as_flattened(nt).tolist()
        [0.0, 1.0, 2.0]
    """
    require_nested("as_flattened", nt)
    return compact(nt) if nt.gapped else nt.data


def compact(nt: NestedTensor, parts: Sequence[jax.Array] = ()) -> jax.Array:
    """Return the rows of all groups, one group after another; `parts`: see `relocate`."""
    return relocate(nt, nt.offsets[..., :-1], nt.capacity, parts)


def relocate(nt: NestedTensor, starts: jax.Array, capacity: int, parts: Sequence[jax.Array] = ()) -> jax.Array:
    """Return storage of `capacity` rows where each group begins at the new `starts`; rows between are zero.

    `parts`: what `nt.data` puts together along its rows, to be read instead.
    """
    move = functools.partial(_relocate, capacity=capacity)
    moved: jax.Array = automatically(move, nt, starts, tuple(parts), like=lambda _: [names_of(nt.data)])
    return moved


@functools.partial(jax.jit, static_argnames="capacity")
def _relocate(nt: NestedTensor, starts: jax.Array, parts: tuple[jax.Array, ...], capacity: int) -> jax.Array:
    def move(data: jax.Array, extents: jax.Array, old: jax.Array, ids: jax.Array, new: jax.Array) -> jax.Array:
        new_rows, old_rows = (jnp.arange(n, dtype=jnp.int32) for n in (capacity, data.shape[0]))
        new_ids = NestedTensor(new_rows, extents, new).row_ids()
        # Outer dimensions batch the whole alone.
        x = data if nt.ragged_dim or not parts else parts
        return move_rows(x, _translate(new_rows, new_ids, new, old), _translate(old_rows, ids, old, new))

    return over_outer(nt, move, starts)


def _translate(rows: jax.Array, ids: jax.Array, own: jax.Array, other: jax.Array) -> jax.Array:
    """Return where each row lies when its group starts at `other[g]` instead of `own[g]`; -1 for padding."""
    if own.shape[0] == 0:
        return jnp.full_like(rows, -1)
    shift = jnp.take(other - own, ids, mode="clip")
    return jnp.where(ids < own.shape[0], rows + shift, -1)


def over_rows(mask: jax.Array, ndim: int, row_dim: int) -> jax.Array:
    """Reshape a row mask so that it broadcasts against an array with rows in dimension `row_dim`."""
    return mask.reshape(*mask.shape, *(1,) * (ndim - 1 - row_dim))


def over_outer(nt: NestedTensor, fn: Callable[..., Any], *more: jax.Array) -> Any:
    """Call `fn(data, extents, starts, row_ids, *more)` for each outer index, rows in front, and stack the results.

    Extents and starts are those of `nt._spans()`. `more` has the outer dimensions of extents.
    """
    starts, extents = nt._spans()
    layout = (extents, starts, nt.row_ids(), *more)
    axis = None if nt.extents.ndim == 1 else 0
    for _ in range(nt.ragged_dim):
        fn = jax.vmap(fn, in_axes=(0, *(axis for _ in layout)))
    return fn(nt.data, *layout)


def spread(nt: NestedTensor, values: jax.Array) -> jax.Array:
    """Return per-group values `[.., groups, ..]` as rows `[.., capacity, ..]`; `..` as the dense dimensions of `nt`."""
    dense = nt.data.ndim - 1 - nt.ragged_dim
    lead = values.ndim - 1 - dense
    fn: Callable[..., Any] = spread_groups
    layout_axis = None
    if nt.extents.ndim > 1:
        outer = nt.extents.shape[:-1]
        values = jnp.broadcast_to(values, (*outer, *values.shape[lead:]))
        lead, layout_axis = len(outer), 0
    for _ in range(lead):
        fn = jax.vmap(fn, in_axes=(0, layout_axis, layout_axis, layout_axis))
    return fn(values, nt.row_ids(), *nt._spans())


def to_padded(nt: NestedTensor, max_extent: int | None = None, fill: Any = 0) -> jax.Array:
    """Return every group in a block of the same length: `[.., groups, max_extent, ..]`.

    Args:
        nt: nested tensor.
        max_extent: static length of the blocks. Without it the longest extent is read, which needs concrete extents.
            Under `jit` longer groups are cut.
        fill: value of the places past a group's extent, a scalar.

    Returns:
        Array of the dtype of `nt`. Differentiable in `nt.data`.

    Raises:
        TypeError: `max_extent` is missing and extents are traced.
        ValueError: a concrete extent exceeds `max_extent`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.arange(3.0), extents=[2, 1])
        >>> jf.nested.to_padded(nt, fill=-1).tolist()
        [[0.0, 1.0], [2.0, -1.0]]
    """
    require_nested("to_padded", nt)
    value = _fill(fill, nt.dtype)
    pad = functools.partial(_pad, size=_static_extent("to_padded", nt, max_extent))
    out: jax.Array = automatically(pad, nt, value, like=lambda _: [_without_rows(nt, None, None)])
    return out


def _fill(fill: Any, dtype: Any) -> jax.Array:
    if fill is None or isinstance(fill, (str, bytes)):
        raise TypeError(f"to_padded: fill must be a number, got {fill!r:.80}")
    value = _arguments.array("to_padded", "fill", fill, None if hasattr(fill, "dtype") else dtype)
    if value.ndim:
        raise ValueError(f"to_padded: fill must be a scalar, got an array {value.shape}")
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        _arguments.check_real("to_padded", "fill", value)
    known = np.asarray(fill) if isinstance(fill, float) else concrete(value)
    is_fraction = known is not None and jnp.issubdtype(known.dtype, jnp.floating) and known != np.floor(known)
    if jnp.issubdtype(dtype, jnp.integer) and is_fraction:
        raise TypeError(f"to_padded: fill must be an integer for {dtype}, got {known}")
    return value.astype(dtype)


@functools.partial(jax.jit, static_argnames="size")
def _pad(nt: NestedTensor, fill: jax.Array, size: int) -> jax.Array:
    groups, rows = nt.num_groups, jnp.arange(nt.capacity, dtype=jnp.int32)
    place = jnp.arange(size, dtype=jnp.int32)[None]

    def pad(data: jax.Array, extents: jax.Array, starts: jax.Array, ids: jax.Array) -> jax.Array:
        inside = place < extents[:, None]
        source = jnp.where(inside, starts[:, None] + place, -1).reshape(-1)
        # A row that is cut off has no place: the next block begins there.
        within = _translate(rows, ids, starts, jnp.zeros_like(starts))
        block = _translate(rows, ids, starts, jnp.arange(groups, dtype=jnp.int32) * size)
        out = move_rows(data, source, jnp.where(within < size, block, -1), fill=fill)
        return out.reshape(groups, size, *data.shape[1:])

    return over_outer(nt, pad)


def select(nt: NestedTensor, i: Any, max_extent: int | None = None) -> jax.Array:
    """Return the rows of group `i`: `[.., max_extent, ..]`, zero past the group's extent.

    Args:
        nt: nested tensor.
        i: group index, a Python int or an integer scalar on the device (clamped to the groups). Negative ints count
            from the end.
        max_extent: static number of rows. Without it the group's extent is read, which needs concrete extents;
            where outer indices have different extents, the longest.

    Returns:
        Array of the dtype of `nt`. Differentiable in `nt.data`.

    Raises:
        IndexError: a Python int out of range.
        TypeError: `max_extent` is missing and extents (or `i`) are traced.
        ValueError: the concrete extent exceeds `max_extent`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.arange(3.0), extents=[2, 1])
        >>> jf.nested.select(nt, 0).tolist(), jf.nested.select(nt, 1, max_extent=2).tolist()
        ([0.0, 1.0], [2.0, 0.0])
    """
    require_nested("select", nt)
    if nt.num_groups == 0:
        raise IndexError("select: the nested tensor has no groups")
    if isinstance(i, jax.Array) and (i.ndim or not jnp.issubdtype(i.dtype, jnp.integer)):
        raise TypeError(f"select: the group index must be one integer, got {i.dtype}{list(i.shape)}")
    group = i if isinstance(i, jax.core.Tracer) else _arguments.integer("select", "the group index", i)
    if isinstance(group, int):
        if not -nt.num_groups <= group < nt.num_groups:
            raise IndexError(f"select: group index {group} out of range, the size is {nt.num_groups}")
        group %= nt.num_groups
    if max_extent is None and (isinstance(group, jax.Array) or concrete(nt.extents) is None):
        raise TypeError(_needs_size(i))
    size = _static_extent("select", nt, max_extent, None if isinstance(group, jax.Array) else group)
    pick = functools.partial(_pick, size=size)
    rows: jax.Array = automatically(pick, nt, group, like=lambda _: [_without_rows(nt, None)])
    return rows


def _without_rows(nt: NestedTensor, *instead: None) -> list[Any]:
    names = names_of(nt.data)
    return [*names[: nt.ragged_dim], *instead, *names[nt.ragged_dim + 1 :]]


@functools.partial(jax.jit, static_argnames="size")
def _pick(nt: NestedTensor, group: Any, size: int) -> jax.Array:
    rows, place = jnp.arange(nt.capacity, dtype=jnp.int32), jnp.arange(size, dtype=jnp.int32)

    def pick(data: jax.Array, extents: jax.Array, starts: jax.Array, ids: jax.Array) -> jax.Array:
        start, extent = (jnp.take(x, group, mode="clip") for x in (starts, extents))
        source = jnp.where(place < extent, start + place, -1)
        target = rows - start
        inside = (target >= 0) & (target < jnp.minimum(extent, size))
        return move_rows(data, source, jnp.where(inside, target, -1))

    return over_outer(nt, pick)


def getitem(nt: NestedTensor, index: Any) -> Any:
    """Index the first dimension: an outer index gives a nested tensor, a group index the rows of that group."""
    if isinstance(index, tuple):
        for position, one in enumerate(index):
            nt = nt[one]
            if not isinstance(nt, NestedTensor):
                rest = index[position + 1 :]
                return nt[rest] if rest else nt
        return nt
    if nt.ragged_dim:
        at = _index("outer index", index, nt.data.shape[0])
        shared = nt.extents.ndim == 1
        children = (nt.data, nt.extents, nt._starts)
        picked = [x if x is None or (shared and x is not nt.data) else x[at] for x in children]
        return NestedTensor.tree_unflatten(nt._layout, picked)
    if isinstance(index, jax.core.Tracer):
        raise TypeError(_needs_size(index))
    group = _index("group index", index, nt.num_groups)
    extents, starts = concrete(nt.extents), concrete(nt._starts)
    if extents is None or (nt.gapped and starts is None):
        raise TypeError(_needs_size(index))
    before = extents[:group].clip(0, nt.capacity).sum(dtype=np.int64) if starts is None else starts[group]
    start = int(before.clip(0, nt.capacity))
    # The start is an operand, so that groups of one length share a compiled slice.
    return jax.lax.dynamic_slice_in_dim(nt.data, start, int(extents[group].clip(0, nt.capacity - start)))


def _needs_size(i: Any) -> str:
    name = "i" if isinstance(i, jax.core.Tracer) else i
    return f"nt[{name}]: indexing a ragged group under jit needs a static size; use select(nt, {name}, max_extent=...)"


def _index(kind: str, index: Any, size: int) -> int:
    try:
        at = operator.index(index)
        if isinstance(index, bool):
            raise TypeError
    except TypeError:
        raise TypeError(f"nt[...]: expected an int {kind}, got {type(index).__name__}; slice nt.data instead") from None
    if not -size <= at < size:
        raise IndexError(f"nt[{at}]: {kind} out of range, the size is {size}")
    return at % size


def _static_extent(fn: str, nt: NestedTensor, max_extent: Any, group: int | None = None) -> int:
    """Return the block length to use: `max_extent`, or the longest concrete extent."""
    traced = f"{fn}: max_extent must be a Python int under jit (extents are traced); pass e.g. max_extent=capacity"
    part = slice(None) if group is None else slice(group, group + 1)
    if max_extent is None:
        values = concrete(nt.extents)
        if values is None:
            raise TypeError(traced)
        return int(values[..., part].max(initial=0))
    if isinstance(max_extent, jax.core.Tracer):
        raise TypeError(traced)
    size = _arguments.integer(fn, "max_extent", max_extent)
    if not 0 <= size <= INT32_MAX:
        raise ValueError(f"{fn}: max_extent must be in 0..{INT32_MAX}, got {size}")
    values = readable(nt.extents)
    if values is not None:
        over = np.zeros(values.shape, bool)
        over[..., part] = values[..., part] > size
        if over.any():
            at = first(over)
            raise ValueError(f"{fn}: extents[{spell(at)}]={values[at]} exceeds max_extent={size}")
    else:
        debug_check(lambda: jnp.all(nt.extents[..., part] <= size), f"{fn}: an extent exceeds max_extent={size}")
    return size


def require_nested(fn: str, nt: Any) -> None:
    if not isinstance(nt, NestedTensor):
        raise TypeError(f"{fn}: expected a NestedTensor, got {type(nt).__name__}; build one with as_nested")
    nt.ragged_dim  # noqa: B018 (raises for leaves that are no arrays)
    check_sizes(fn, data=nt.data, extents=nt.extents)
