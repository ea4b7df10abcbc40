"""How nested tensors show: one line of text, a bar per group in notebooks, load statistics."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser._nested_checks import concrete
from jax_fuser._nested_tensor import NestedTensor

# Longer lists keep this many entries at each end.
_ENDS = 3
_MAX_BARS = 64


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
    return f"NestedTensor({kind})" if values is None else f"NestedTensor({kind}, rows {values.sum()}/{rows})"


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
    """Return a picture of the groups: bars of their rows, empty groups flagged, padding hatched."""
    title = f"<code>{_escape(text(nt))}</code>"
    values = concrete(nt.extents) if hasattr(nt.extents, "shape") else None
    if values is None or values.ndim == 0:
        return title
    tables = [_bars(extents, nt.capacity) for extents in values.reshape(-1, values.shape[-1])]
    return f"<div>{title}{''.join(tables)}</div>"


def _bars(extents: np.ndarray, capacity: int) -> str:
    height, width, left = 14, 320, 48
    padding = max(capacity - int(extents.sum()), 0)
    longest = max([int(n) for n in extents] + [padding, 1])
    rows = [(str(g), int(n), "#4c78a8") for g, n in enumerate(extents[:_MAX_BARS])]
    if len(extents) > _MAX_BARS:
        hidden = extents[_MAX_BARS:]
        rows.append((f"+{len(hidden)}", int(hidden.sum() // len(hidden)), "#9ecae9"))
    if padding:
        rows.append(("pad", padding, "url(#jf-hatch)"))
    lines = []
    for i, (label, n, fill) in enumerate(rows):
        y = i * height
        empty = n == 0
        note = "empty" if empty else str(n)
        if label.startswith("+"):
            note = f"mean {n} of {label[1:]} more groups"
        lines.append(
            f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{label}</text>'
            f'<rect x="{left}" y="{y + 2}" width="{max(n * width / longest, 1):.1f}" height="{height - 4}" '
            f'fill="{"#e45756" if empty else fill}"/>'
            f'<text x="{left + n * width / longest + 6:.1f}" y="{y + 11}" '
            f'fill="{"#e45756" if empty else "currentColor"}">{note}</text>'
        )
    hatch = (
        '<defs><pattern id="jf-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="2" height="6" fill="#999"/></pattern></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 180}" height="{height * len(rows) + 2}" '
        f'font-family="monospace" font-size="10" fill="currentColor" style="display:block">'
        f"{hatch}{''.join(lines)}</svg>"
    )


def _escape(s: str) -> str:
    return s.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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
    """Return the load of the groups: longest, mean, imbalance, empty groups, padding. Works under `jit`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> s = jf.nested.stats(jf.as_nested(jnp.ones((8, 2)), extents=[4, 0, 2]))
        >>> int(s.max), float(s.mean), int(s.empty), float(s.padding)
        (4, 2.0, 1, 0.25)
    """
    extents, total = nt.extents, nt.total
    longest = jnp.max(extents, axis=-1, initial=0)
    mean = total.astype(jnp.float32) / max(nt.num_groups, 1)
    return Stats(
        total=total,
        max=longest,
        mean=mean,
        imbalance=jnp.where(total > 0, longest / jnp.maximum(mean, 1e-30), 0.0),
        empty=jnp.sum(extents == 0, axis=-1, dtype=jnp.int32),
        padding=1 - total.astype(jnp.float32) / max(nt.capacity, 1),
    )
