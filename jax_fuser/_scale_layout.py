"""Scales in tiles of 128 rows by 4 columns, as the tensor cores of compute capability 10 read them: "block128x4".

Scale factors `(m, c)` of rows become `(rows, c')`: columns filled up to a multiple of 4, the rows of each group to one
of 128. A tile's 512 scales follow each other: by the row within a run of 32, by which of its four runs, by column.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser import _arguments
from jax_fuser._nested_checks import INT32_MAX, check_extents, index_array, readable, to_int32
from jax_fuser._ragged_dot import to_extents
from jax_fuser._row_groups import spans
from jax_fuser._search import search

LAYOUTS = ("row_major", "block128x4")
_ROWS, _RUN, _COLUMNS = 128, 32, 4  # of a tile; rows of a run


def block_scale_starts(extents: Any) -> jax.Array:
    """Return where the scales of each group begin in layout "block128x4": every group has a multiple of 128 rows.

    Args:
        extents: integers `(groups,)`, the rows of each group; may be traced.

    Returns:
        int32 `(groups,)`: the first row of each group. On the device; not differentiable.

    Raises:
        TypeError: no integers.
        ValueError: not one axis; concrete extents are negative, or need more rows than int32 counts.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.block_scale_starts(jnp.array([100, 0, 150, 262]))
        Array([  0, 128, 128, 384], dtype=int32)
    """
    sizes = index_array("block_scale_starts", "extents", extents, True)
    if sizes.ndim != 1:
        raise ValueError(f"block_scale_starts: extents must be (groups,), got {sizes.shape}")
    if (known := readable(sizes)) is not None:
        if (known < 0).any():
            raise ValueError(f"block_scale_starts: extents must be non-negative, got {known.tolist()}")
        if (total := int(_filled_up(known, _ROWS).sum())) > INT32_MAX:
            raise ValueError(f"block_scale_starts: the groups need {total} rows, more than int32 counts, {INT32_MAX}")
    most = INT32_MAX // _ROWS * _ROWS
    return spans(_filled_up(jnp.clip(to_int32(sizes), 0, most), _ROWS), None, most)[0]


def preprocess_grouped_matmul_input_sf(scales: Any, input_starts: Any, output_starts: Any) -> jax.Array:
    """Put the scales of the rows of groups into layout "block128x4".

    Args:
        scales: `(m, columns)`, real numbers, one row for each row of all groups.
        input_starts: integers `(groups,)`: the first row of each group in `scales`, ascending; the last group ends with
            `scales`. Rows before the first are left out.
        output_starts: integers `(groups,)`: the first row of each group in the result, multiples of 128, ascending; see
            `block_scale_starts`.

    Returns:
        Array `(rows, columns')` with as many rows as any groups of `m` rows in all may need: `m` and up to 127 for each
        group. What belongs to no row is zero. Differentiable in scales of 16 bits and
        more; no other argument has a derivative.

    Raises:
        TypeError: starts are no integers, or scales are complex.
        ValueError: shapes do not fit; concrete `input_starts` do not ascend or lie outside, concrete `output_starts`
            are no multiples of 128 or leave no room for a group.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> scales, starts = jnp.ones((512, 9)), jnp.array([0, 100, 250])
        >>> output_starts = jf.block_scale_starts(jnp.array([100, 150, 262]))
        >>> jf.preprocess_grouped_matmul_input_sf(scales, starts, output_starts).shape
        (768, 12)
    """
    name = "preprocess_grouped_matmul_input_sf"
    scales = _arguments.array(name, "scales", scales)
    first, to = (
        to_int32(index_array(name, label, starts, True))
        for label, starts in (("input_starts", input_starts), ("output_starts", output_starts))
    )
    if scales.ndim != 2 or first.ndim != 1 or first.shape != to.shape:
        raise ValueError(
            f"{name}: needs scales (m, columns), input_starts and output_starts (groups,), got {scales.shape}, "
            f"{first.shape} and {to.shape}"
        )
    if jnp.issubdtype(scales.dtype, jnp.complexfloating):
        raise TypeError(f"{name}: scales must be real, got {scales.dtype}; order the real and imaginary parts")
    known, begins = readable(to), readable(first)
    if known is not None and (known % _ROWS).any():
        raise ValueError(
            f"{name}: output_starts must be multiples of {_ROWS}, got {known.tolist()}; see block_scale_starts"
        )
    m = scales.shape[0]
    if begins is not None and (np.diff(begins, prepend=0, append=m) < 0).any():
        raise ValueError(
            f"{name}: input_starts must ascend from 0 to at most the {m} rows of scales, got {begins.tolist()}"
        )
    ends = jnp.concatenate([first[1:], jnp.full((1,), m, jnp.int32)]) if first.size else first
    if known is not None and begins is not None and known.size:
        sizes = np.maximum([*begins[1:], m] - begins, 0)
        least = _filled_up(sizes, _ROWS)
        most, filled = _most_rows(m, len(sizes)), known + least
        if ((filled > most) & (sizes > 0)).any() or (known[1:] < filled[:-1]).any():
            raise ValueError(
                f"{name}: output_starts must leave {least.tolist()} rows for the groups and end within {most}, got "
                f"{known.tolist()}; see block_scale_starts"
            )
    return _in_groups(scales, first, jnp.maximum(ends - first, 0), to)


def filled_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of scales `(.., m, c)` in tiles."""
    return *shape[:-2], _filled_up(shape[-2], _ROWS), _filled_up(shape[-1], _COLUMNS)


def to_blocks(scales: jax.Array) -> jax.Array:
    """Order scales `(.., m, c)` of whole matrices: `(.., m', c')`, filled up with zeros."""
    missing = [(0, filled - size) for size, filled in zip(scales.shape, filled_shape(scales.shape))]
    return _ordered(jnp.pad(_bits(scales), missing)).view(scales.dtype)


def group_to_blocks(scales: jax.Array, extents: jax.Array) -> jax.Array:
    """Order scales `(m, c)` of rows, group by group."""
    first, count = spans(extents, None, scales.shape[0])
    return _in_groups(scales, first, count, block_scale_starts(count))


def from_blocks(scales: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Take scales of whole matrices back to `shape` `(.., m, c)`."""
    return _unordered(scales)[..., : shape[-2], : shape[-1]]


def group_from_blocks(scales: jax.Array, extents: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Take scales of the rows of groups back to `shape` `(m, c)`; those of padding rows are any."""
    m = shape[0]
    first, count = spans(extents, None, m)
    rows = jnp.arange(m, dtype=jnp.int32)
    if extents.shape[0] == 0 or m == 0:
        return jnp.zeros(shape, scales.dtype)
    group = jnp.minimum(search(first + count, rows), extents.shape[0] - 1)
    place = block_scale_starts(count)[group] + rows - first[group]
    bits = _bits(_unordered(scales))[..., : shape[1]]
    return jnp.take(bits, place, axis=0, mode="clip").view(scales.dtype)


def extents_of_rows(extents: Any, m: int) -> jax.Array:
    """Check `extents=` of `quantize`."""
    sizes = index_array("quantize", "extents", extents, True)
    if sizes.ndim != 1:
        raise ValueError(f"quantize: extents must be (groups,), got {sizes.shape}")
    check_extents("quantize", sizes, m, 0, of="x")
    return to_extents(sizes, m)


def _in_groups(scales: jax.Array, first: jax.Array, count: jax.Array, to: jax.Array) -> jax.Array:
    m, columns = scales.shape
    groups = first.shape[0]
    most = _most_rows(m, groups)
    if most == 0 or groups == 0:
        return jnp.zeros((most, _filled_up(columns, _COLUMNS)), scales.dtype)
    rows = jnp.arange(most, dtype=jnp.int32)
    # Of groups that begin at the same row only the last has any.
    group = search(to, rows) - 1
    inside = jnp.maximum(group, 0)
    within = rows - to[inside]
    owned = (group >= 0) & (within < count[inside])
    place = jnp.where(owned, first[inside] + within, m)
    bits = jnp.take(_bits(scales), place, axis=0, mode="fill", fill_value=0)
    return _ordered(jnp.pad(bits, [(0, 0), (0, -columns % _COLUMNS)])).view(scales.dtype)


def _most_rows(m: int, groups: int) -> int:
    """Rows that any groups of `m` rows in all may need: each group with rows ends in a tile of its own."""
    return (m + (_ROWS - 1) * min(groups, m)) // _ROWS * _ROWS


def _bits(scales: jax.Array) -> jax.Array:
    """Zeros of any dtype are zero bits; e8m0 has no other. What is wider stays, with its derivative."""
    return scales.view(jnp.uint8) if scales.dtype.itemsize == 1 else scales


def _ordered(scales: jax.Array) -> jax.Array:
    *outer, m, columns = scales.shape
    tiles = scales.reshape(*outer, m // _ROWS, _ROWS // _RUN, _RUN, columns // _COLUMNS, _COLUMNS)
    return jnp.swapaxes(tiles, -4, -2).reshape(scales.shape)


def _unordered(scales: jax.Array) -> jax.Array:
    *outer, m, columns = scales.shape
    tiles = scales.reshape(*outer, m // _ROWS, columns // _COLUMNS, _RUN, _ROWS // _RUN, _COLUMNS)
    return jnp.swapaxes(tiles, -4, -2).reshape(scales.shape)


def _filled_up(size: Any, multiple: int) -> Any:
    return (size + multiple - 1) // multiple * multiple
