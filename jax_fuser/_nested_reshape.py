"""Other groupings of the same rows: merge and split dimensions, align groups, concatenate."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser import _arguments
from jax_fuser._automatic import automatically, names_of
from jax_fuser._nested_checks import INT32_MAX, first, readable
from jax_fuser._nested_exchange import clip, exchange
from jax_fuser._nested_map import check_same_layout, spell_shape
from jax_fuser._nested_rows import as_flattened, compact, relocate, require_nested, to_padded
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._row_groups import spans


def merge(
    nt: NestedTensor, i: int | str, j: int | str, *, axis_name: Any = None, capacity: int | None = None
) -> jax.Array | NestedTensor:
    """Merge two dimensions of `nt.shape` into one.

    - (group, ragged): all rows in one dimension, `as_flattened`.
    - (ragged, the dense dimension after it, of size k): rows become k times as many; extents are multiplied by k.
    - (an outer dimension of N-D extents, ragged): the groups of all outer indices join, `extents.sum` over it. Rows
      move: group by group, in each the outer indices in order. The capacity is that of all outer indices together.
    - The same inside of `jax.shard_map`, where the mesh axis `axis_name` splits the outer dimension: the groups of all
      devices join, and each device gets its share of them, the first `groups / devices` for the first device. Rows
      travel in one all-to-all of blocks of static size.

    Dimensions have names, too: "ragged", "group" (also "expert"), and "outer" (also "gpu") where there is one. Inside
    of `jax.shard_map` the name of a mesh axis stands for the one outer dimension that it splits, and is `axis_name`.

    Args:
        nt: nested tensor of any dtype.
        i: first dimension of `nt.shape`, by number or name; negative ones count from the end.
        j: second dimension.
        axis_name: the mesh axis, or a tuple of them, that splits dimension `i`, an outer one.
        capacity: most rows of the result along the ragged dimension, where outer indices join; later rows are cut off,
            and extents say so. By default no row can be.

    Returns:
        An array `[.., capacity, ..]` for (group, ragged), otherwise a nested tensor with one dimension less.
        Differentiable in `nt.data`.

    Raises:
        TypeError: `nt` is no nested tensor.
        ValueError: another pair of dimensions, more rows than int32 holds, a negative capacity, or groups that devices
            cannot share evenly.
        NameError: no such mesh axis here.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.ones((2, 100, 8)), extents=[[30, 20, 40, 10], [25, 15, 25, 35]], ragged_dim=1)
        >>> jf.nested.merge(nt, 0, 2)
        NestedTensor(f32[expert=4, ragged=[55,35,65,45], 8], rows 200/200)
    """
    require_nested("merge", nt)
    dim, ndim = nt.ragged_dim, nt.ndim
    first, second = dimension("merge", nt, i), dimension("merge", nt, j)
    if isinstance(i, str) and axis_name is None and _is_bound(i):
        axis_name = i
    if capacity is not None and _arguments.integer("merge", "capacity", capacity) < 0:
        raise ValueError(f"merge: capacity must not be negative, got {capacity}")
    if 0 <= first < dim and second == dim + 1:
        nt = _with_own_extents(nt)
        placed = [names for axis, names in enumerate(names_of(nt.data)) if axis != first]
        merged: NestedTensor = automatically(functools.partial(_merge_outer, axis=first), nt, like=lambda _: [placed])
        if axis_name is not None:
            merged = _merge_outer(exchange(merged, axis_name), dim - 1)
        return merged if capacity is None else clip(merged, capacity)
    if axis_name is not None or capacity is not None:
        raise ValueError(
            f"merge: dims ({i}, {j}) are not (outer extents dim, ragged); those alone take axis_name= and capacity="
        )
    if (first, second) == (dim, dim + 1):
        return as_flattened(nt)
    if first == dim + 1 and second == dim + 2 < ndim:
        return _merge_dense(nt)
    raise ValueError(
        f"merge: dims ({i}, {j}) are neither (component, ragged), (ragged, next regular) nor "
        f"(outer extents dim, ragged)"
    )


def _with_own_extents(nt: NestedTensor) -> NestedTensor:
    """Return it with extents for each outer index, also where all of them share some."""
    shape = (*nt.data.shape[: nt.ragged_dim], nt.num_groups)
    extents, starts = (x if x is None or x.ndim > 1 else jnp.broadcast_to(x, shape) for x in (nt.extents, nt._starts))
    return NestedTensor(nt.data, extents, starts, nt.ragged_dim)


def _merge_dense(nt: NestedTensor) -> NestedTensor:
    dim, shape = nt.ragged_dim, nt.data.shape
    size = shape[dim + 1]
    if nt.capacity * size > INT32_MAX:
        raise ValueError(f"merge: {nt.capacity} rows times {size} do not fit in int32")
    names = names_of(nt.data)
    placed = names[: dim + 1] + names[dim + 2 :]
    reshape = functools.partial(jnp.reshape, shape=(*shape[:dim], nt.capacity * size, *shape[dim + 2 :]))
    data = automatically(reshape, nt.data, like=lambda _: [placed])
    starts, extents = nt._spans()
    return NestedTensor(data, extents * size, starts * size if nt.gapped else None, dim)


def _merge_outer(nt: NestedTensor, axis: int) -> NestedTensor:
    dim, capacity = nt.ragged_dim, nt.capacity
    outer = nt.data.shape[axis]
    if outer * capacity > INT32_MAX:
        raise ValueError(f"merge: {outer} times {capacity} rows do not fit in int32")
    data = jnp.moveaxis(nt.data, axis, dim - 1)
    data = data.reshape(*data.shape[: dim - 1], outer * capacity, *data.shape[dim + 1 :])
    starts, extents = (jnp.moveaxis(x, axis, -1) for x in nt._spans())
    begins = jax.lax.broadcast_to_rank(jnp.arange(outer, dtype=jnp.int32) * capacity, starts.ndim)
    return _join(data, extents, starts + begins, dim - 1)


def _join(
    data: jax.Array, extents: jax.Array, starts: jax.Array, dim: int, parts: Sequence[jax.Array] = ()
) -> NestedTensor:
    """Return groups made of chunks of rows: extents and starts are `[.., groups, chunks]`."""
    flat_extents, flat_starts = (jax.lax.collapse(x, x.ndim - 2) for x in (extents, starts))
    chunks = NestedTensor(data, flat_extents, flat_starts, dim)
    return NestedTensor(compact(chunks, parts), jnp.sum(extents, axis=-1, dtype=jnp.int32), ragged_dim=dim)


def split(
    nt: NestedTensor,
    axis: int | str,
    factor: int | None = None,
    *,
    num: int | None = None,
    capacity: int | None = None,
    blocks: bool = False,
) -> NestedTensor:
    """Split the group dimension in two, or pad the groups along the ragged one.

    - The group dimension: `[.., groups]` becomes `[.., groups / factor, factor]`, or `[.., num, groups / num]`.
      Each of the parts gets storage of its own, `capacity` rows (by default that of `nt`; a part with more rows is
      cut and extents say so, or refused where extents are concrete).
    - The ragged dimension: `align(nt, factor)`. With `blocks` the blocks of `factor` rows have a dimension of their
      own, `[.., groups, ragged, factor, ..]`; group `g` has `ceil(extents[g] / factor)` of them, the last one filled up
      with zero rows that count as rows from then on.

    Args:
        nt: nested tensor of any dtype.
        axis: the group or the ragged dimension of `nt.shape`, by number or name as for `merge`.
        factor: groups of each part, or the multiple of rows to pad to.
        num: number of parts.
        capacity: rows of storage of each part.
        blocks: whether the padded rows get a dimension of their own.

    Returns:
        A nested tensor `[parts, groups, ragged, ..]`, or one like `nt` with gaps. Differentiable in `nt.data`.

    Raises:
        TypeError: not exactly one of `factor` and `num`.
        ValueError: groups not divisible, or another dimension.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.ones((200, 8)), extents=[55, 35, 65, 45])
        >>> jf.nested.split(nt, 0, num=2)
        NestedTensor(f32[2, expert=2, ragged=[[55,35],[65,45]], 8], rows 200/400)
        >>> nt = jf.as_nested(jnp.ones((10, 8)), extents=[3, 5, 2])
        >>> jf.nested.split(nt, 1, factor=2, blocks=True).extents.tolist()
        [2, 3, 1]
    """
    require_nested("split", nt)
    if (factor is None) == (num is None):
        raise TypeError("split: pass exactly one of factor= or num=")
    name, given = ("num", num) if factor is None else ("factor", factor)
    size = _arguments.integer("split", name, given, least=1, most=INT32_MAX)
    if capacity is not None:
        _arguments.integer("split", "capacity", capacity, least=0, most=INT32_MAX)
    blocks = _arguments.flag("split", "blocks", blocks)
    dim, at = nt.ragged_dim, dimension("split", nt, axis)
    if not 0 <= at < nt.ndim:
        raise ValueError(f"split: axis {axis} is out of range for {nt.ndim} dimensions")
    if at == dim + 1:
        if factor is None or capacity is not None:
            raise ValueError("split: the ragged dimension takes factor=, the multiple to pad to, and no capacity=")
        aligned = align(nt, size)
        return _in_blocks(aligned, size) if blocks else aligned
    if blocks:
        raise ValueError(f"split: blocks= is for the ragged dimension, {dim + 1}; got axis {axis}")
    if at != dim:
        raise ValueError(
            f"split: axis {axis} is neither the group dimension, {dim}, nor the ragged one, {dim + 1}, of {nt!r}; "
            f"reshape other dimensions with nested.map"
        )
    if nt.num_groups % size:
        raise ValueError(f"split: {nt.num_groups} experts not divisible by {size}")
    parts = (nt.num_groups // size, size) if num is None else (size, nt.num_groups // size)
    return _split_groups(_with_own_extents(nt) if dim else nt, parts, capacity)


def _split_groups(nt: NestedTensor, parts_and_groups: tuple[int, int], capacity: int | None) -> NestedTensor:
    if nt.ragged_dim:

        def one(data: jax.Array, extents: jax.Array, starts: jax.Array | None) -> NestedTensor:
            return _split_groups(NestedTensor(data, extents, starts, nt.ragged_dim - 1), parts_and_groups, capacity)

        each = jax.vmap(one)(nt.data, nt.extents, nt._starts)
        return NestedTensor(each.data, each.extents, each._starts, nt.ragged_dim + 1)
    extents = nt._spans()[1].reshape(parts_and_groups)
    parts = NestedTensor(as_flattened(nt), jnp.sum(extents, axis=1, dtype=jnp.int32))
    sums = None if capacity is None else readable(parts.extents)
    if sums is not None and (sums > capacity).any():
        part = first(sums > capacity)[0]
        raise ValueError(f"split: part {part} has {sums[part]} rows, which exceed capacity={capacity}")
    made = NestedTensor(to_padded(parts, nt.capacity if capacity is None else capacity), extents, ragged_dim=1)
    return made if capacity is None else clip(made, made.capacity)


def dimension(fn: str, nt: NestedTensor, axis: int | str) -> int:
    """Return which dimension of `nt.shape` a number or a name is; numbers from the end become those from the start."""
    dim = nt.ragged_dim
    if not isinstance(axis, str):
        at = _arguments.integer(fn, "a dimension", axis)
        return at + nt.ndim if at < 0 else at
    names = {"ragged": dim + 1, "group": dim, "expert": dim}
    if axis in names:
        return names[axis]
    if axis not in ("outer", "gpu") and not _is_bound(axis):
        raise ValueError(f"{fn}: no dimension {axis!r}; names are 'ragged', 'group' and 'outer', or pass its number")
    if dim != 1:
        raise ValueError(f"{fn}: {axis!r} is the only outer dimension, of which {nt!r} has {dim}; pass its number")
    return 0


def _is_bound(name: str) -> bool:
    """Whether a mesh axis of this name is manual here."""
    try:
        jax.lax.axis_index(name)
    except NameError:
        return False
    return True


def _in_blocks(nt: NestedTensor, size: int) -> NestedTensor:
    dim, shape, names = nt.ragged_dim, nt.data.shape, names_of(nt.data)
    placed = [*names[: dim + 1], None, *names[dim + 1 :]]
    reshape = functools.partial(jnp.reshape, shape=(*shape[:dim], nt.capacity // size, size, *shape[dim + 1 :]))
    data = automatically(reshape, nt.data, like=lambda _: [placed])
    return NestedTensor(data, (nt.extents + (size - 1)) // size, nt.starts // size, dim)


def align(nt: NestedTensor, multiple: int) -> NestedTensor:
    """Pad the storage of each group to a multiple of rows: gapped storage, zero in the gaps.

    The capacity grows to the static bound `capacity + groups * (multiple - 1)`, rounded up to the multiple; every
    group then starts at a multiple. Extents stay.

    Args:
        nt: nested tensor of any dtype.
        multiple: rows, at least 1.

    Returns:
        A nested tensor of the shape and dtype of `nt`, with `starts`. Differentiable in `nt.data`.

    Raises:
        TypeError: `nt` is no nested tensor.
        ValueError: `multiple` is less than 1, or the storage has more rows than int32 holds.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.nested.align(jf.as_nested(jnp.ones((5, 2)), extents=[3, 0, 2]), 4)
        >>> nt.starts.tolist(), nt.capacity
        ([0, 4, 4], 16)
    """
    require_nested("align", nt)
    multiple = _arguments.integer("align", "multiple", multiple, least=1, most=INT32_MAX)
    bound = nt.capacity + nt.num_groups * (multiple - 1)
    capacity = -(-bound // multiple) * multiple
    if capacity > INT32_MAX:
        raise ValueError(f"align: {capacity} rows do not fit in int32")
    _, extents = nt._spans()
    starts, _ = spans((extents + (multiple - 1)) // multiple * multiple, None, capacity)
    return NestedTensor(relocate(nt, starts, capacity), extents, starts, nt.ragged_dim)


def _apart_from(axis: int, dim: int, nt: NestedTensor) -> tuple[int, ...]:
    """Return the dense dimensions but `axis`, with their number."""
    dense = nt.data.shape[dim + 1 :]
    return (len(dense), *(n for i, n in enumerate(dense, dim + 2) if i != axis))


def concat(nts: Sequence[NestedTensor], axis: int | str = 0) -> NestedTensor:
    """Join nested tensors along a dense dimension, or one tensor's groups (or each group's rows) after the other's.

    Args:
        nts: nested tensors. Along a dense dimension they share one layout; along the group and the ragged dimension
            the dense dimensions agree, and capacities add up.
        axis: dimension of `nt.shape`, by number or name as for `merge`.

    Returns:
        A contiguous nested tensor (along a dense dimension: the layout of the first). Differentiable.

    Raises:
        ValueError: no tensors, layouts or dense dimensions that differ, or an outer axis.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> a = jf.as_nested(jnp.ones((3, 2)), extents=[1, 1])
        >>> jf.nested.concat([a, a * 2], axis=0)
        NestedTensor(f32[expert=4, ragged=[1,1,1,1], 2], rows 4/6)
        >>> jf.nested.concat([a, a * 2], axis=1)
        NestedTensor(f32[expert=2, ragged=[2,2], 2], rows 4/6)
        >>> jf.nested.concat([a, a * 2], axis=-1).shape
        (2, ragged, 4)
    """
    if not isinstance(nts, list | tuple):
        raise TypeError(f"concat: expected a list of NestedTensors, got a {type(nts).__name__}")
    if not nts:
        raise ValueError("concat: needs at least one NestedTensor")
    for nt in nts:
        require_nested("concat", nt)
    head, dim = nts[0], nts[0].ragged_dim
    at = dimension("concat", head, axis)
    if not 0 <= at < head.ndim:
        raise ValueError(f"concat: axis {axis} is out of range for {head.ndim} dimensions")
    axis = at
    for other in nts[1:]:
        if axis > dim + 1:
            check_same_layout("concat", head, other)
        if _apart_from(axis, dim, head) != _apart_from(axis, dim, other):
            raise ValueError(f"concat: dense dimensions differ: {spell_shape(head)} vs {spell_shape(other)}")
    if axis > dim + 1:
        return head.replace(data=jnp.concatenate([nt.data for nt in nts], axis=axis - 1))
    if axis < dim:
        raise ValueError(f"concat: axis {axis} is outer; join the groups (axis {dim}), their rows or a dense dimension")
    kept = slice(None) if axis > dim else slice(-1)
    shapes = [(nt.ragged_dim, nt.extents.shape[kept]) for nt in nts]
    for shape in shapes[1:]:
        if shape != shapes[0]:
            what = "shapes" if axis > dim else "outer dimensions"
            raise ValueError(f"concat: ragged_dim or {what} of extents differ: {shapes[0]} vs {shape}")
    return _concat(tuple(nts), axis > dim)


@functools.partial(jax.jit, static_argnums=1)
def _concat(nts: tuple[NestedTensor, ...], of_rows: bool) -> NestedTensor:
    # As one function: eagerly the padding of each would be read.
    dim = nts[0].ragged_dim
    bases = [0, *np.cumsum([nt.capacity for nt in nts])]
    all_spans = [nt._spans() for nt in nts]
    all_starts = [starts + np.int32(base) for (starts, _), base in zip(all_spans, bases)]
    all_extents = [extents for _, extents in all_spans]
    data = jnp.concatenate([nt.data for nt in nts], axis=dim)
    parts = [nt.data.astype(data.dtype) for nt in nts]
    if of_rows:
        return _join(data, jnp.stack(all_extents, axis=-1), jnp.stack(all_starts, axis=-1), dim, parts)
    starts = jnp.concatenate(all_starts, axis=-1)
    extents = jnp.concatenate(all_extents, axis=-1)
    return NestedTensor(compact(NestedTensor(data, extents, starts, dim), parts), extents, ragged_dim=dim)
