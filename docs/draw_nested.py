"""Draws docs/nested.svg: rows of groups, the five index conventions, and storage with gaps.

`python docs/draw_nested.py` writes it again; a test compares.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

SIZES = (2, 3, 5)
FILLS = ("#4c78a8", "#7ea6cf", "#2f5d8a")
INK, FAINT = "#1f2430", "#8a93a5"
CELL, LEFT, WIDTH = 38, 120, 744  # pixels: of a row's box, before the first box, of the picture


def text(x: float, y: float, words: str, anchor: str = "middle", color: str = INK, weight: str = "normal") -> str:
    """Return words at a place."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}" font-weight="{weight}">{words}</text>'


def boxes(y: int, owners: Sequence[int | None]) -> str:
    """Return a box for each row, in the color of its group; a row of no group is crossed out."""
    body = ""
    for row, group in enumerate(owners):
        x = LEFT + row * CELL
        fill = "#ffffff" if group is None else FILLS[group]
        body += f'<rect x="{x}" y="{y}" width="{CELL}" height="30" fill="{fill}" stroke="{INK}"/>'
        if group is None:
            body += f'<path d="M{x} {y + 30}L{x + CELL} {y}" stroke="{FAINT}"/>'
        else:
            body += text(x + CELL / 2, y + 20, str(row), color="#ffffff")
    return body


def at_rows(y: int, name: str, values: Sequence[object]) -> str:
    """Return a line of values under the boxes."""
    words = "".join(text(LEFT + (row + 0.5) * CELL, y, str(v)) for row, v in enumerate(values))
    return text(LEFT - 12, y, name, "end", weight="bold") + words


def at_edges(y: int, name: str, values: Sequence[int]) -> str:
    """Return a line of values, each where its boundary is."""
    marks = "".join(
        f'<path d="M{LEFT + v * CELL} {y - 18}v5" stroke="{INK}"/>' + text(LEFT + v * CELL, y, str(v)) for v in values
    )
    return text(LEFT - 12, y, name, "end", weight="bold") + marks


def at_groups(y: int, name: str, starts: Sequence[int], sizes: Sequence[int]) -> str:
    """Return a line of values with a bracket over the rows of each group."""
    body = text(LEFT - 12, y, name, "end", weight="bold")
    for start, n in zip(starts, sizes):
        x, wide = LEFT + start * CELL, n * CELL
        body += f'<path d="M{x + 3} {y - 12}v-6h{wide - 6}v6" fill="none" stroke="{INK}"/>'
        body += text(x + wide / 2, y, str(n))
    return body


def picture() -> str:
    """Return the picture as SVG."""
    ends = [sum(SIZES[: g + 1]) for g in range(len(SIZES))]
    starts = [end - n for end, n in zip(ends, SIZES)]
    owners: list[int | None] = [g for g, n in enumerate(SIZES) for _ in range(n)]
    one_after_another = [*owners, None, None]
    first = [4 * g for g in range(len(SIZES))]
    gapped: list[int | None] = [None] * 16
    for g, n in enumerate(SIZES):
        gapped[first[g] : first[g] + n] = [g] * n
    body = text(LEFT, 24, "One after another: 3 groups of 2, 3 and 5 rows; 2 rows of padding", "start", weight="bold")
    body += boxes(40, one_after_another)
    body += at_groups(104, "extents", starts, SIZES)
    body += at_edges(140, "offsets", [0, *ends])
    body += at_edges(172, "starts", starts)
    body += at_edges(204, "ends", ends)
    body += at_rows(236, "row ids", [3 if g is None else g for g in one_after_another])
    body += text(LEFT, 286, "With gaps: each group begins at a multiple of 4, starts [0, 4, 8]", "start", weight="bold")
    body += boxes(302, gapped)
    body += at_groups(366, "extents", first, SIZES)
    body += at_edges(402, "starts", first)
    body += at_rows(434, "row ids", [3 if g is None else g for g in gapped])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="452" viewBox="0 0 {WIDTH} 452" '
        f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">'
        f'<rect width="{WIDTH}" height="452" fill="#ffffff"/>{body}</svg>\n'
    )


if __name__ == "__main__":
    pathlib.Path(__file__).with_name("nested.svg").write_text(picture())
