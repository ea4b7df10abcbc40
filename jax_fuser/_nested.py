"""Constructors of nested tensors, with the checks of what the user passes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser import _arguments
from jax_fuser import _nested_checks as checks
from jax_fuser._automatic import automatically, names_of, whole_along
from jax_fuser._group_order import count_sorted, group_order
from jax_fuser._nested_checks import debug_checks as debug_checks
from jax_fuser._nested_moves import move_rows
from jax_fuser._nested_rows import as_flattened, over_rows, require_nested
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._static_sizes import check_sizes


def as_nested(
    data: Any,
    offsets: Any = None,
    *,
    extents: Any = None,
    ragged_dim: int = 0,
    validate: bool = True,
    like: NestedTensor | None = None,
) -> NestedTensor:
    """View rows as groups: `[.., rows, ..]` becomes `[.., groups, ragged, ..]`, without a copy.

    Args:
        data: array of any dtype. Differentiable.
        offsets: integers `[groups + 1]`: 0, then the end of each group. Or `[d0, .., groups + 1]`, matched
            positionally with the dimensions of `data` before `ragged_dim`.
        extents: integers `[groups]` or `[d0, .., groups]`: rows of each group (JAX's `group_sizes`). Exactly one of
            `offsets` and `extents`. 1-D ones apply to every outer index. Rows past their sum are padding.
        ragged_dim: dimension of `data` that holds the rows.
        validate: check concrete values, at the cost of one small read.
        like: take the layout of this nested tensor instead of `offsets` or `extents`.

    Returns:
        `NestedTensor` with int32 extents.

    Raises:
        TypeError: none or several of `offsets`, `extents`, `like`; not integers.
        ValueError: a shape that does not match the data; concrete values that are negative, decreasing or exceed the
            rows. Traced values are not checked (see `debug_checks`).
        NotImplementedError: `data` is nested already.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.ones((325, 512), jnp.bfloat16), [0, 127, 127, 325])
        >>> nt
        NestedTensor(bf16[expert=3, ragged=[127,0,198], 512], rows 325/325)
        >>> jf.as_nested(jnp.ones((325, 4)), like=nt).shape
        (3, ragged, 4)
    """
    if like is not None:
        if offsets is not None or extents is not None:
            raise TypeError("as_nested: like= already gives the layout; drop offsets= and extents=")
        return _as_nested_like(data, like)
    return _build("as_nested", data, offsets, extents, ragged_dim, validate)


def partition(x: Any, axis: int, offsets: Any = None, *, extents: Any = None, validate: bool = True) -> NestedTensor:
    """Split dimension `axis` of an array into (group, ragged): `as_nested` with the axis first.

    Args:
        x: array `[.., rows, ..]` of any dtype. Differentiable.
        axis: dimension of `x` that holds the rows.
        offsets: as for `as_nested`.
        extents: as for `as_nested`.
        validate: as for `as_nested`.

    Returns:
        `NestedTensor` `[.., groups, ragged, ..]` with int32 extents, no copy.

    Raises:
        TypeError, ValueError, NotImplementedError: as `as_nested`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.partition(jnp.ones((2, 5)), 1, [0, 2, 5]).shape
        (2, 2, ragged)
    """
    return _build("partition", _as_rows("partition", "x", x), offsets, extents, axis, validate, "axis")


def combine(nt: NestedTensor) -> jax.Array:
    """Merge (group, ragged) back into one dimension: `as_flattened`.

    Args:
        nt: nested tensor `[.., groups, ragged, ..]`.

    Returns:
        Array `[.., capacity, ..]` of the dtype of `nt`. Differentiable. Without gaps no copy, padding included.

    Raises:
        TypeError: `nt` is no nested tensor.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.combine(jf.as_nested(jnp.ones((5, 2)), extents=[2, 3])).shape
        (5, 2)
    """
    require_nested("combine", nt)
    return as_flattened(nt)


def _build(
    fn: str, data: Any, offsets: Any, extents: Any, ragged_dim: Any, validate: bool, name: str = "ragged_dim"
) -> NestedTensor:
    if (offsets is None) == (extents is None):
        raise TypeError(f"{fn}: pass exactly one of offsets= or extents=")
    data, validate = _as_rows(fn, "data", data), _arguments.flag(fn, "validate", validate)
    check_sizes(fn, data=data, offsets=offsets, extents=extents)
    dim = _dimension(fn, name, ragged_dim, data)
    rows = data.shape[dim]
    if rows > checks.INT32_MAX:
        raise ValueError(f"{fn}: data.shape[{dim}]={rows} does not fit in int32")
    if offsets is not None:
        given = checks.index_array(fn, "offsets", offsets, validate)
        checks.check_layout_shape(fn, "offsets", given, data.shape, dim)
        if validate:
            checks.check_offsets(fn, given, rows, dim)
        given = np.diff(given, axis=-1) if isinstance(given, np.ndarray) else jnp.diff(checks.to_int32(given), axis=-1)
    else:
        given = checks.index_array(fn, "extents", extents, validate)
        checks.check_layout_shape(fn, "extents", given, data.shape, dim)
        if validate:
            checks.check_extents(fn, given, rows, dim)
    return _poison_padding(NestedTensor(data, whole_along(checks.to_int32(given), -1), ragged_dim=dim))


def _as_rows(fn: str, name: str, data: Any) -> jax.Array:
    if isinstance(data, NestedTensor):
        raise NotImplementedError(
            f"{fn}: {name} is a NestedTensor already and multi-level nesting is not supported; "
            f"flatten it first with as_flattened, or keep the inner groups in N-D extents"
        )
    return _arguments.array(fn, name, data)


def _dimension(fn: str, name: str, ragged_dim: Any, data: jax.Array) -> int:
    dim = _arguments.integer(fn, name, ragged_dim)
    if not -data.ndim <= dim < data.ndim:
        raise ValueError(f"{fn}: {name}={dim} is out of range for data of shape {data.shape}")
    return dim % data.ndim


def _as_nested_like(data: Any, like: NestedTensor) -> NestedTensor:
    if not isinstance(like, NestedTensor):
        raise TypeError(f"as_nested: like must be a NestedTensor, got {type(like).__name__}")
    data, dim = _as_rows("as_nested", "data", data), like.ragged_dim
    check_sizes("as_nested", data=data, like=like.data)
    outer = like.extents.shape[:-1]
    if data.ndim <= dim or data.shape[dim] != like.capacity or (outer and data.shape[:dim] != outer):
        wanted = [str(n) for n in outer] or ["..."] * dim
        raise ValueError(
            f"as_nested: data of shape {data.shape} does not fit like=, which needs "
            f"[{', '.join([*wanted, str(like.capacity)])}, ...]"
        )
    return _poison_padding(NestedTensor(data, like.extents, like._starts, dim))


def _poison_padding(nt: NestedTensor) -> NestedTensor:
    """In debug mode, write NaN where no one may read."""
    if not (checks.debug_enabled() and jnp.issubdtype(nt.dtype, jnp.inexact)):
        return nt
    mask = over_rows(nt.row_mask(), nt.data.ndim, nt.ragged_dim)
    return nt.replace(data=jnp.where(mask, nt.data, jnp.asarray(jnp.nan, nt.dtype)))


def _group_count(fn: str, num_groups: Any) -> int:
    return _arguments.integer(fn, "num_groups", num_groups, least=0, most=checks.INT32_MAX)


def from_segment_ids(data: Any, ids: Any, num_groups: int, *, validate: bool = True) -> NestedTensor:
    """Build a nested tensor from sorted group ids, one per row: the inverse of `nt.row_ids()`.

    Args:
        data: rows `[rows, ..]`. Differentiable.
        ids: integers `[rows]`, non-decreasing. Ids of `num_groups` or more mark padding at the end.
        num_groups: number of groups, static.
        validate: check concrete ids (a read of all of them).

    Returns:
        `NestedTensor` `[num_groups, ragged, ..]`, no copy of the data.

    Raises:
        TypeError: ids are not integers, `num_groups` is not an int.
        ValueError: shape of ids; concrete ids negative or not sorted (use `sort_by_group`).

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.from_segment_ids(jnp.ones((4, 2)), [0, 0, 2, 3], num_groups=3)
        NestedTensor(f32[expert=3, ragged=[2,0,1], 2], rows 3/4)
    """
    fn = "from_segment_ids"
    data, groups = _as_rows(fn, "data", data), _group_count(fn, num_groups)
    check_sizes(fn, data=data, ids=ids)
    validate = _arguments.flag(fn, "validate", validate)
    ids = checks.index_array(fn, "ids", ids, validate)
    if ids.ndim != 1 or data.ndim < 1 or ids.shape[0] != data.shape[0]:
        raise ValueError(f"{fn}: ids need shape [rows] with rows={data.shape[:1]}; got {ids.shape}")
    values = checks.concrete(ids) if validate else None
    if values is not None and values.size:
        falls = values[1:] < values[:-1]  # unsigned ids have no negative differences
        if falls.any():
            (at,) = checks.first(falls)
            raise ValueError(
                f"{fn}: ids must be sorted; ids[{at}]={values[at]} > ids[{at + 1}]={values[at + 1]}; use sort_by_group"
            )
        if values[0] < 0:
            raise ValueError(f"{fn}: ids must be non-negative; ids[0]={values[0]}")
    elif validate and values is None:
        checks.debug_check(lambda: jnp.all(ids[1:] >= ids[:-1]), f"{fn}: ids must be sorted; use sort_by_group")
        checks.debug_check(lambda: jnp.all(ids >= 0), f"{fn}: ids must be non-negative")
    return _poison_padding(NestedTensor(data, count_sorted(checks.to_int32(ids), groups)))


def from_list(arrays: Sequence[Any], *, capacity: int | None = None) -> NestedTensor:
    """Join arrays `[n_g, ..]` into one nested tensor, one group each (a copy).

    Args:
        arrays: arrays with equal dtypes and equal shapes but for the first dimension. Differentiable.
        capacity: rows of storage; the sum of the lengths by default. More rows are zero padding.

    Returns:
        `NestedTensor` `[len(arrays), ragged, ..]` of their dtype.

    Raises:
        ValueError: no arrays, shapes that differ, a capacity that is too small.
        TypeError: dtypes that differ.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.from_list([jnp.ones((2, 4)), jnp.ones((0, 4)), jnp.ones((1, 4))])
        NestedTensor(f32[expert=3, ragged=[2,0,1], 4], rows 3/3)
    """
    if (
        not isinstance(arrays, Iterable)
        or isinstance(arrays, (str, dict, NestedTensor))
        or getattr(arrays, "ndim", 1) == 0
    ):
        raise TypeError(f"from_list: expected a list of arrays, got a {type(arrays).__name__}")
    capacity = (
        None if capacity is None else _arguments.integer("from_list", "capacity", capacity, most=checks.INT32_MAX)
    )
    arrays = list(arrays)
    if len(arrays) == 0:
        raise ValueError("from_list: needs at least one array; use as_nested(data, extents=[]) for no groups")
    parts = [_as_rows("from_list", f"arrays[{i}]", x) for i, x in enumerate(arrays)]
    check_sizes("from_list", **{f"array {i}": x for i, x in enumerate(parts)})
    head = parts[0]
    for i, part in enumerate(parts):
        if part.ndim < 1 or part.shape[1:] != head.shape[1:]:
            wanted = ", ".join(["n", *(str(n) for n in head.shape[1:])])
            raise ValueError(f"from_list: array {i} has shape {part.shape}, expected [{wanted}]")
        if part.dtype != head.dtype:
            raise TypeError(f"from_list: array {i} has dtype {part.dtype}, expected {head.dtype} as array 0")
    lengths = [part.shape[0] for part in parts]
    total = sum(lengths)
    if capacity is not None and capacity < total:
        raise ValueError(f"from_list: capacity={capacity} is less than the {total} rows given")
    if capacity is not None and capacity > total:
        parts.append(jnp.zeros((capacity - total, *head.shape[1:]), head.dtype))
    return _build("from_list", jnp.concatenate(parts), None, np.asarray(lengths), 0, True)


def from_padded(padded: Any, extents: Any, *, validate: bool = True) -> NestedTensor:
    """Drop the padding of blocks `[groups, length, ..]`: the inverse of `to_padded` (a copy).

    Args:
        padded: blocks `[groups, length, ..]`. Differentiable; places past an extent are not read.
        extents: integers `[groups]`, valid rows of each block. Traced ones are clamped to the length.
        validate: check concrete extents.

    Returns:
        Contiguous `NestedTensor` with capacity `groups * length`; rows past the total are zero.

    Raises:
        TypeError: extents are not integers.
        ValueError: shapes; a concrete extent is negative or exceeds the length.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.from_padded(jnp.array([[1.0, 0.0], [2.0, 3.0]]), [1, 2]).data.tolist()
        [1.0, 2.0, 3.0, 0.0]
    """
    fn = "from_padded"
    padded, validate = _as_rows(fn, "padded", padded), _arguments.flag(fn, "validate", validate)
    check_sizes(fn, padded=padded, extents=extents)
    extents = checks.index_array(fn, "extents", extents, validate)
    if padded.ndim < 2 or extents.ndim != 1 or extents.shape[0] != padded.shape[0]:
        raise ValueError(
            f"{fn}: need blocks [groups, length, ..] and extents [groups]; got {padded.shape} and {extents.shape}"
        )
    groups, length = padded.shape[:2]
    values = checks.readable(extents) if validate else None
    if values is not None:
        bad = (values < 0) | (values > length)
        if bad.any():
            at = checks.first(bad)
            raise ValueError(f"{fn}: extents[{checks.spell(at)}]={values[at]} is not in 0..{length}")
    elif validate:
        inside = f"{fn}: extents must be in 0..{length}"
        counts = checks.to_int32(extents)
        checks.debug_check(lambda: jnp.all((counts >= 0) & (counts <= length)), inside)
    extents = jnp.clip(checks.to_int32(extents), 0, length)
    starts = jnp.arange(groups, dtype=jnp.int32) * length
    names = names_of(padded)
    reshape = functools.partial(jnp.reshape, shape=(groups * length, *padded.shape[2:]))
    data = automatically(reshape, padded, like=lambda _: [[names[0], *names[2:]]])
    blocks = NestedTensor(data, extents, starts)
    return _poison_padding(NestedTensor(as_flattened(blocks), extents))


def sort_by_group(x: Any, ids: Any, num_groups: int, *, validate: bool = True) -> tuple[NestedTensor, jax.Array]:
    """Bring the rows of each group together, keeping their order inside a group.

    Args:
        x: rows `[t, ..]`. Differentiable; forward and backward are both gathers, so gradients are repeatable.
        ids: integers `[t]`, the group of each row, or `[t, k]`: row `i` goes to `k` groups. Ids outside
            `0..num_groups-1`, such as -1, mean that the row is dropped, also where they are concrete: it is sorted
            behind all groups and reads as zero.
        num_groups: number of groups, static.
        validate: check that concrete ids of 64 bits, or of uint32, fit in int32.

    Returns:
        The nested tensor `[num_groups, ragged, ..]` with capacity `t` (or `t * k`), and int32 `perm` of that length:
        row `j` of the result is entry `perm[j]` of `ids.reshape(-1)`, so row `perm[j] // k` of `x`.

    Raises:
        TypeError: ids are not integers, `num_groups` is not an int.
        ValueError: shape of ids.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt, perm = jf.nested.sort_by_group(jnp.array([10.0, 11.0, 12.0]), [1, 0, 1], num_groups=2)
        >>> nt.data.tolist(), nt.extents.tolist(), perm.tolist()
        ([11.0, 10.0, 12.0], [1, 2], [1, 0, 2])
    """
    fn = "sort_by_group"
    x, groups = _as_rows(fn, "x", x), _group_count(fn, num_groups)
    check_sizes(fn, x=x, ids=ids)
    ids = checks.index_array(fn, "ids", ids, _arguments.flag(fn, "validate", validate))
    ids = checks.to_int32(ids) if isinstance(ids, np.ndarray) else ids
    if x.ndim < 1 or ids.ndim not in (1, 2) or ids.shape[0] != x.shape[0]:
        raise ValueError(f"{fn}: ids need shape [t] or [t, k] with t={x.shape[:1]}; got {ids.shape}")
    if ids.shape[1:] == (0,):
        raise ValueError(f"{fn}: ids [t, k] need k >= 1; got {ids.shape}")
    nt, perm, *_ = sort_rows(x, ids, groups)
    return nt, perm


def sort_rows(x: jax.Array, ids: jax.Array, groups: int) -> tuple[NestedTensor, jax.Array, jax.Array, jax.Array]:
    """Return what `sort_by_group` does; then `perm` with -1 for padding, and its inverse with -1 for dropped rows."""
    sort = functools.partial(_sort_rows, groups=groups)
    data, perm, source, target, extents = automatically(sort, x, ids, like=lambda _: [names_of(x)])
    return _poison_padding(NestedTensor(data, extents)), perm, source, target


@functools.partial(jax.jit, static_argnums=1)
def order_rows(ids: jax.Array, groups: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return `perm`, the same with -1 for padding, its inverse with -1 for dropped rows, and the extents."""
    perm, place, extents = group_order(ids.reshape(-1), groups)
    total = jnp.sum(extents, dtype=jnp.int32)
    source = jnp.where(jnp.arange(perm.shape[0], dtype=jnp.int32) < total, perm, -1)
    target = jnp.where(place < total, place, -1)
    return perm, source, target, extents


@functools.partial(jax.jit, static_argnames="groups")
def _sort_rows(x: jax.Array, ids: jax.Array, groups: int) -> tuple[jax.Array, ...]:
    perm, source, target, extents = order_rows(ids, groups)
    copies = ids.shape[1] if ids.ndim == 2 else 1
    return move_rows(x, source, target, copies), perm, source, target, extents
