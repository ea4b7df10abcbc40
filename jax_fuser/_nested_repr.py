"""How nested tensors show: one line of text, a picture in notebooks, load statistics."""

from __future__ import annotations

import math
from html import escape
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser import _nested_picture
from jax_fuser._nested_checks import concrete
from jax_fuser._nested_tensor import NestedTensor

# Longer lists keep this many entries at each end.
_ENDS = 3


def text(nt: NestedTensor) -> str:
    """Return the type, the extents where they can be read, and how many rows are in use."""
    try:
        dim = nt.ragged_dim
        rows = math.prod(nt.extents.shape[:-1]) * nt.capacity
    except (AttributeError, TypeError, ValueError):
        return f"NestedTensor(data={nt.data!r}, extents={nt.extents!r}, starts={nt._starts!r})"
    values = concrete(nt.extents)
    listed = f"?<={nt.capacity}" if values is None else _listed(values)
    sizes = [*nt.data.shape[:dim], f"expert={nt.num_groups}", f"ragged={listed}", *nt.data.shape[dim + 1 :]]
    kind = f"{_short_dtype(nt.dtype)}[{', '.join(str(s) for s in sizes)}]"
    if values is None:
        return f"NestedTensor({kind})"
    # What does not fit is no row, as for `total`.
    used = np.minimum(np.maximum(values.astype(np.int64), 0).sum(axis=-1), nt.capacity).sum()
    return f"NestedTensor({kind}, rows {used}/{rows})"


def _listed(values: np.ndarray) -> str:
    entries = [_listed(v) if v.ndim else str(v) for v in values]
    if len(entries) > 2 * _ENDS + 2:
        entries = [*entries[:_ENDS], "...", *entries[-_ENDS:]]
    return f"[{','.join(entries)}]"


def _short_dtype(dtype: Any) -> str:
    name = np.dtype(dtype).name
    for long, short in (("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        name = name.replace(long, short)
    return name


def html(nt: NestedTensor) -> str:
    """Return a picture of the storage and a bar per group, empty groups flagged, padding hatched."""
    extents = concrete(nt.extents) if hasattr(nt.extents, "shape") else None
    if extents is None or extents.ndim == 0 or (nt.gapped and concrete(nt._starts) is None):
        return f"<code>{escape(text(nt))}</code>"
    starts, extents = (np.asarray(x) for x in nt._spans())
    return _nested_picture.html(text(nt), extents, starts, nt.capacity)


class Stats(NamedTuple):
    """Load of the groups; every field is an array `[..]` over the outer dimensions of extents."""

    total: jax.Array
    """int32: valid rows."""
    max: jax.Array
    """int32: rows of the longest group."""
    mean: jax.Array
    """float32: mean rows of a group."""
    imbalance: jax.Array
    """float32: max over mean; 1 is even, 0 means no rows."""
    empty: jax.Array
    """int32: groups without rows."""
    padding: jax.Array
    """float32: share of the storage that holds no valid row."""


def stats(nt: NestedTensor) -> Stats:
    """Return the load of the groups: longest, mean, imbalance, empty groups, padding.

    Nothing is read: the fields of `Stats` are arrays on the device, also under `jit`. Not differentiable.

    Args:
        nt: nested tensor; only its extents are used.

    Returns:
        `Stats`, every field an array over the outer dimensions of the extents.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> s = jf.nested.stats(jf.as_nested(jnp.ones((8, 2)), extents=[4, 0, 2]))
        >>> int(s.max), float(s.mean), int(s.empty), float(s.padding)
        (4, 2.0, 1, 0.25)
    """
    if not isinstance(nt, NestedTensor):
        raise TypeError(f"stats: expected a NestedTensor, got {type(nt).__name__}; build one with as_nested")
    nt.ragged_dim  # noqa: B018 (raises for leaves that are no arrays)
    _, extents = nt._spans()
    total = nt.total
    longest = jnp.max(extents, axis=-1, initial=0)
    mean = total.astype(jnp.float32) / max(nt.num_groups, 1)
    return Stats(
        total=total,
        max=longest,
        mean=mean,
        imbalance=jnp.where(total > 0, longest.astype(jnp.float32) / jnp.maximum(mean, 1e-30), 0.0),
        empty=jnp.sum(extents == 0, axis=-1, dtype=jnp.int32),
        padding=1 - total.astype(jnp.float32) / max(nt.capacity, 1),
    )
