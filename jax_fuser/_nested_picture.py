"""A nested tensor in a notebook: where its groups lie in storage, and a bar for each group.

Plain SVG without ids or styles, so that any number of pictures stand on one page, light or dark.
"""

from __future__ import annotations

import math
from html import escape

import numpy as np

_WIDTH, _LEFT, _RIGHT = 420, 56, 230  # pixels: of the longest bar, and the room for words beside it
_ROW, _BAR, _STRIP = 15, 10, 18  # pixels: from bar to bar, of a bar, of the storage
_FILL, _NEXT, _REST, _WARN, _HATCH = "#4c78a8", "#7ea6cf", "#b6cce3", "#d1495b", "#9a9a9a"
_MAX_BARS, _MAX_PARTS, _MAX_OUTER = 64, 256, 8  # groups with a bar, groups in the storage, outer indices


def html(title: str, extents: np.ndarray, starts: np.ndarray, capacity: int) -> str:
    """Return a picture for each outer index of integer `extents` and `starts` `[.., groups]`."""
    outer = extents.shape[:-1]
    flat = [x.reshape(math.prod(outer), x.shape[-1]) for x in (extents, starts)]
    longest = max(int(extents.max(initial=0)), 1)
    parts = [f"<code>{escape(title)}</code>"]
    for at, (sizes, firsts) in enumerate(list(zip(*flat))[:_MAX_OUTER]):
        if outer:
            parts.append(f"<div>outer index {', '.join(map(str, np.unravel_index(at, outer)))}</div>")
        parts.append(_picture(sizes, firsts, capacity, longest))
    if len(flat[0]) > _MAX_OUTER:
        parts.append(f"<div>and {len(flat[0]) - _MAX_OUTER} more outer indices</div>")
    return f"<div>{''.join(parts)}</div>"


def _picture(extents: np.ndarray, starts: np.ndarray, capacity: int, longest: int) -> str:
    # Neighbours differ, where an empty group is between them, too.
    fills = np.where(np.cumsum(extents > 0) % 2, _FILL, _NEXT)
    body = _storage(extents, starts, capacity, fills)
    y = _STRIP + 8
    for group, n in enumerate(extents[:_MAX_BARS]):
        body += _bar(y, str(group), int(n), longest, fills[group])
        y += _ROW
    if len(extents) > _MAX_BARS:
        rest = extents[_MAX_BARS:]
        mean, empty = rest.mean(), int((rest == 0).sum())
        note = f"mean of {len(rest)} more groups: {mean:.4g}" + (f", {empty} empty" if empty else "")
        body += _text(_LEFT - 6, y, "...", end=True) + _rect(_LEFT, y, mean * _WIDTH / longest, _BAR, _REST)
        body += _text(_LEFT + mean * _WIDTH / longest + 6, y, note)
        y += _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + _RIGHT}" height="{y + 2}" '
        f'font-family="monospace" font-size="11" fill="currentColor" style="display:block">{body}</svg>'
    )


def _storage(extents: np.ndarray, starts: np.ndarray, capacity: int, fills: np.ndarray) -> str:
    """Draw the rows of storage in order; what no group covers is hatched."""
    scale = _WIDTH / max(capacity, 1)
    body = _text(_LEFT - 6, 4, "rows", end=True) + _hatch(_LEFT, 1, _WIDTH, _STRIP - 2)
    for group, (start, n) in enumerate(zip(starts[:_MAX_PARTS], extents[:_MAX_PARTS])):
        if n > 0:
            where = f"group {group}: rows {start} to {start + n - 1}"
            body += _rect(_LEFT + start * scale, 1, n * scale, _STRIP - 2, fills[group], where)
    rest = extents[_MAX_PARTS:] > 0
    if rest.any():
        first, last = starts[_MAX_PARTS:][rest], (starts + extents)[_MAX_PARTS:][rest]
        start, end = int(first.min()), int(last.max())
        body += _rect(_LEFT + start * scale, 1, (end - start) * scale, _STRIP - 2, _REST, "more groups")
    total = int(extents.sum())
    unused = 1 - total / capacity if capacity else 0.0
    note = f"{total} of {capacity} rows" + (f", {unused:.0%} padding" if total < capacity else "")
    return body + _text(_LEFT + _WIDTH + 8, 4, note)


def _bar(y: float, label: str, n: int, longest: int, fill: str) -> str:
    if n == 0:
        return (
            _text(_LEFT - 6, y, label, end=True, color=_WARN)
            + _rect(_LEFT, y, 3, _BAR, _WARN)
            + _text(_LEFT + 9, y, "empty", color=_WARN)
        )
    width = max(n * _WIDTH / longest, 1)
    words = _text(_LEFT - 6, y, label, end=True) + _text(_LEFT + width + 6, y, str(n))
    return words + _rect(_LEFT, y, width, _BAR, fill)


def _text(x: float, y: float, words: str, end: bool = False, color: str | None = None) -> str:
    anchor = ' text-anchor="end"' if end else ""
    fill = f' fill="{color}"' if color else ""
    return f'<text x="{x:.1f}" y="{y + 9:.1f}"{anchor}{fill}>{words}</text>'


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    inside = f"<title>{title}</title>" if title else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{fill}">{inside}</rect>'


def _hatch(x: float, y: float, width: float, height: float) -> str:
    """Draw a box of slanted lines; a pattern would need an id."""
    lines = []
    for at in range(6 - int(height), int(width), 6):
        begin, end = max(at, 0), min(at + height, width)
        lines.append(f"M{x + begin:.1f} {y + height - (begin - at):.1f}L{x + end:.1f} {y + height - (end - at):.1f}")
    box = f"M{x} {y}h{width}v{height}h{-width}z"
    return f'<path d="{box}{"".join(lines)}" fill="none" stroke="{_HATCH}"><title>padding</title></path>'
