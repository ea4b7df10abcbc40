"""Reads and checks the integer arrays of nested tensors.

Policy: shapes and dtypes are always checked. Values are checked when they are concrete (one small read); traced
values are not, unless `debug_checks` is on, which turns the same rules into `checkify.debug_check`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from jax_fuser import _arguments
from jax_fuser._row_groups import spans

INT32_MAX = 2**31 - 1

# Above this many groups the read is no longer small.
_MAX_VALUES_READ = 100_000

# Part of the key of JAX's compilation cache: a function traced outside is traced again inside.
_debug = jax.make_user_context(False)


@contextlib.contextmanager
def debug_checks() -> Iterator[None]:
    """Check traced extents too, and fill padding rows of nested tensors with NaN.

    Inside, every rule about values that a function checks eagerly (offsets, extents, sorted ids, the order of gapped
    groups, equal layouts, `max_extent`, `group_offset`) becomes a `checkify.debug_check` where the values are traced;
    run the function through `jax.experimental.checkify.checkify` to see the errors (otherwise they do nothing). Padding
    rows that constructors take in or operators write become NaN in floating dtypes, so that a wrong reader shows.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> with jf.debug_checks():
        ...     nt = jf.as_nested(jnp.ones((3,)), extents=[1, 1])
        >>> nt.data.tolist()
        [1.0, 1.0, nan]
    """
    with _debug(True):
        yield


def debug_enabled() -> bool:
    return bool(_debug.value)


def concrete(x: Any) -> np.ndarray | None:
    """Return the values of `x` where they can be read without tracing or communication, else None."""
    if isinstance(x, np.ndarray):
        return x
    if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer):
        return None
    return np.asarray(x) if x.is_fully_addressable and not x.is_deleted() else None


def readable(x: Any) -> np.ndarray | None:
    """Return the values to check, as int64, or None for traced, distributed or large arrays."""
    values = concrete(x) if x.size <= _MAX_VALUES_READ else None
    return None if values is None else values.astype(np.int64)


def index_array(fn: str, name: str, value: Any, validate: bool = True) -> Any:
    """Return `value` as an integer array (NumPy or JAX) whose values fit in int32."""
    if isinstance(value, (jax.Array, np.ndarray)):
        _arguments.check_stored(fn, name, value)
        array: Any = value
    elif hasattr(value, "extents"):
        raise TypeError(f"{fn}: {name} must be an integer array, got a {type(value).__name__}; pass one of its arrays")
    else:
        try:
            array = _from_list(value)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"{fn}: {name} must be an integer array, got {value!r:.80}") from None
        if array.size == 0:
            array = array.astype(np.int32)
        if array.dtype == object:
            _refuse_objects(fn, name, value, array)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{fn}: {name} must be an integer array, got {array.dtype}")
    # Converting 64-bit values to int32 would wrap without a word.
    wide = np.iinfo(array.dtype).max > INT32_MAX
    values = concrete(array) if wide and (validate or isinstance(array, np.ndarray)) else None
    if values is not None and values.size:
        bad = (values > INT32_MAX) | (values < -INT32_MAX - 1)
        if bad.any():
            at = first(bad)
            raise ValueError(f"{fn}: {name}[{spell(at)}]={values[at]} does not fit in int32")
    return array


def _from_list(value: Any) -> Any:
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError:
        return jnp.asarray(value)


def _refuse_objects(fn: str, name: str, value: Any, array: np.ndarray) -> None:
    """Say what NumPy makes objects of: integers that no dtype holds, and what is no number."""
    for at, entry in np.ndenumerate(array):
        if not isinstance(entry, int):
            raise TypeError(f"{fn}: {name} must be an integer array, got {value!r:.80}")
        if not -INT32_MAX - 1 <= entry <= INT32_MAX:
            raise ValueError(f"{fn}: {name}[{spell(at)}]={str(entry)[:60]} does not fit in int32")


def to_int32(array: Any) -> jax.Array:
    """Return integers as int32; traced ones that do not fit become the nearest that do."""
    if isinstance(array, np.ndarray):
        return jnp.asarray(array.astype(np.int32))
    info = jnp.iinfo(array.dtype)
    if info.max > INT32_MAX:
        array = jnp.clip(array, max(int(info.min), -INT32_MAX - 1), INT32_MAX)
    return array if array.dtype == jnp.int32 else array.astype(jnp.int32)


def first(mask: np.ndarray) -> tuple[int, ...]:
    """Return the first index where `mask` holds."""
    return tuple(int(i) for i in np.argwhere(mask)[0])


def spell(index: tuple[Any, ...]) -> str:
    return ", ".join(str(i) for i in index)


def check_layout_shape(fn: str, name: str, array: Any, data_shape: tuple[int, ...], ragged_dim: int) -> None:
    """Check that offsets or extents are 1-D or match the outer dimensions of the data positionally."""
    last = "G+1" if name == "offsets" else "G"
    if array.ndim == 1:
        if name == "offsets" and array.shape[0] == 0:
            raise ValueError(f"{fn}: offsets needs at least one entry (G+1); got shape (0,)")
        return
    wanted = ", ".join([*(f"d{i}" for i in range(ragged_dim)), last])
    message = f"{fn}: {array.ndim}-D {name} for ragged_dim={ragged_dim} need shape [{wanted}]; got {array.shape}"
    if array.ndim - 1 != ragged_dim:
        fits = data_shape[: array.ndim - 1] == array.shape[:-1] and array.ndim - 1 < len(data_shape)
        raise ValueError(message + f"; pass ragged_dim={array.ndim - 1}" * fits)
    outer = data_shape[:ragged_dim]
    if array.shape[:-1] != outer:
        raise ValueError(message + f", data has [{', '.join(f'd{i}={n}' for i, n in enumerate(outer))}]")
    if name == "offsets" and array.shape[-1] == 0:
        raise ValueError(f"{fn}: offsets needs at least one entry (G+1); got shape {array.shape}")


def check_offsets(fn: str, offsets: Any, rows: int, dim: int) -> None:
    """Check values: offsets start at 0, never fall, and end within the rows."""
    values = readable(offsets)
    if values is None:
        # Narrow integers do not hold the rows to compare with, and unsigned ones no differences.
        offsets = to_int32(offsets)
        debug_check(lambda: jnp.all(offsets[..., 0] == 0), f"{fn}: offsets[0] must be 0")
        rising = f"{fn}: offsets must be non-decreasing"
        debug_check(lambda: jnp.all(offsets[..., 1:] >= offsets[..., :-1]), rising)
        debug_check(lambda: jnp.all(offsets[..., -1] <= rows), f"{fn}: offsets[-1] exceeds data.shape[{dim}]={rows}")
        return
    nonzero, falls, over = values[..., 0] != 0, np.diff(values, axis=-1) < 0, values[..., -1] > rows
    if not (nonzero.any() or falls.any() or over.any()):
        return
    if (values >= 0).all() and (values.sum(axis=-1) == rows).all():
        raise ValueError(
            f"{fn}: offsets has {values.shape[-1]} entries summing to data.shape[{dim}]={rows}; "
            f"these look like group sizes, use extents="
        )
    if nonzero.any():
        at = (*first(nonzero), 0)
        raise ValueError(f"{fn}: offsets[{spell(at)}] must be 0, got {values[at]}; for group sizes use extents=")
    if falls.any():
        at = first(falls)
        after = (*at[:-1], at[-1] + 1)
        raise ValueError(
            f"{fn}: offsets must be non-decreasing; "
            f"offsets[{spell(at)}]={values[at]} > offsets[{spell(after)}]={values[after]}"
        )
    at = (*first(over), -1)
    raise ValueError(f"{fn}: offsets[{spell(at)}]={values[at]} exceeds data.shape[{dim}]={rows}")


def check_extents(fn: str, extents: Any, rows: int, dim: int, name: str = "extents", of: str = "data") -> None:
    """Check values: extents are non-negative and sum to at most the rows.

    `name` and `of`: what the caller calls them and the array that has the rows.
    """
    _check_signs(fn, name, extents)
    values = readable(extents)
    if values is None:
        extents = to_int32(extents)
        # A sum may wrap.
        fit = f"{fn}: {name} exceed {of}.shape[{dim}]={rows}"
        debug_check(lambda: jnp.all(spans(extents, None, rows)[1] >= extents), fit)
        return
    sums = values.sum(axis=-1)
    if (sums > rows).any():
        at = first(sums > rows)
        where = f"{name}[{spell(at)}]" if at else name
        raise ValueError(
            f"{fn}: {where} sum to {sums[at]}, which exceeds {of}.shape[{dim}]={rows}; lower them, or pass more rows "
            f"in {of}"
        )


def _check_signs(fn: str, name: str, extents: Any) -> None:
    values = readable(extents)
    if values is None:
        debug_check(lambda: jnp.all(to_int32(extents) >= 0), f"{fn}: {name} must be non-negative")
    elif (values < 0).any():
        at = first(values < 0)
        raise ValueError(
            f"{fn}: {name} must be non-negative; {name}[{spell(at)}]={values[at]}; pass how many rows each group has"
        )


def check_groups(fn: str, lhs: Any) -> None:
    """Check values of a nested `lhs`: its class checks none."""
    if not lhs.gapped:
        check_extents(fn, lhs.extents, lhs.capacity, lhs.ragged_dim, "lhs.extents", "lhs.data")
        return
    starts = lhs.starts
    _check_signs(fn, "lhs.extents", lhs.extents)
    check_starts(fn, starts, lhs.extents, lhs.capacity)
    check_order(fn, starts, lhs.extents)


def check_stored(fn: str, lhs: Any) -> None:
    """Refuse a nested `lhs` whose memory is gone."""
    for name in ("data", "extents", "_starts"):
        _arguments.check_stored(fn, f"lhs.{name.lstrip('_')}", getattr(lhs, name))


def check_starts(fn: str, starts: Any, extents: Any, rows: int | None) -> None:
    """Check the shape, and values: groups with rows lie inside of the storage."""
    if starts.shape != extents.shape:
        raise ValueError(
            f"{fn}: starts must have the shape of extents, {tuple(extents.shape)}, got {tuple(starts.shape)}"
        )
    known_starts, known_extents = readable(starts), readable(extents)
    if rows is None or known_starts is None or known_extents is None:
        return
    outside = (known_extents > 0) & ((known_starts < 0) | (known_starts + known_extents > rows))
    if outside.any():
        at = first(outside)
        raise ValueError(
            f"{fn}: group {spell(at)} begins at row {known_starts[at]} and has {known_extents[at]} of the {rows} rows; "
            f"it must lie inside of the data"
        )


def check_order(fn: str, starts: Any, extents: Any) -> None:
    """Check values: groups with rows begin at or past the end of every earlier one."""
    known_starts, known_extents = readable(starts), readable(extents)
    if known_starts is None or known_extents is None:
        debug_check(
            lambda: jnp.logical_not(jnp.any(_begins_early(jnp, jax.lax.cummax, starts, extents))),
            f"{fn}: groups of gapped storage must lie in ascending order",
        )
        return
    late = _begins_early(np, lambda x, axis: np.maximum.accumulate(x, axis=axis), known_starts, known_extents)
    if late.any():
        group = first(late)[-1] + 1
        raise ValueError(
            f"{fn}: groups of gapped storage must lie in ascending order, but group {group} starts before "
            f"the end of an earlier one; pass as_nested(as_flattened(lhs), extents=lhs.extents)"
        )


def _begins_early(xp: Any, running_max: Any, starts: Any, extents: Any) -> Any:
    """Return for each group but the first whether it has rows and begins before the end of an earlier one."""
    filled = extents > 0
    ends = running_max(xp.where(filled, starts + extents, 0), axis=extents.ndim - 1)
    return filled[..., 1:] & (starts[..., 1:] < ends[..., :-1])


def debug_check(holds: Callable[[], Any], message: str) -> None:
    """Inside `debug_checks`, emit the check of a value that cannot be read at trace time."""
    if debug_enabled():
        checkify.debug_check(holds(), message)
