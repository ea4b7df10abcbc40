"""The kernels of a program and the arrays between them as SVG, without a drawing library.

Kernels and groups of arrays stand in rows by turns, so that every edge goes from a row to the next one; an edge that
skips rows passes each through a gap of its own.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_fuser._report import Flow, RegionReport

_FONT, _LINE, _LETTER = 12, 16, 7.4  # pixels: of the font, a line, a letter of a monospaced font
_PAD, _GAP, _ROW_GAP, _MARGIN, _PASS = 10, 24, 44, 20, 14
_WIDTH = 56  # letters of a line in a box
_MAX_ARRAYS = 10  # listed in one group
_FILL = {
    "pointwise": "#dbeafe",
    "transpose": "#fde9d0",
    "reduction": "#d9f2e1",
    "grouped": "#eadcf8",
    "nested": "#f8dce6",
}
_OTHER_FILL, _ARRAY_FILL, _INK, _EDGE = "#eeeeee", "#ffffff", "#1f2430", "#8a93a5"


@dataclass
class _Node:
    title: str
    lines: list[str]
    fill: str
    row: int = 0
    before: list[_Node] = field(default_factory=list)
    after: list[_Node] = field(default_factory=list)
    x: float = 0  # the left edge
    is_pass: bool = False  # a gap for an edge that goes through this row

    @property
    def width(self) -> float:
        if self.is_pass:
            return _PASS
        return max(len(line) for line in [self.title, *self.lines]) * _LETTER + 2 * _PAD

    @property
    def height(self) -> float:
        return 0 if self.is_pass else (len(self.lines) + bool(self.title)) * _LINE + 2 * _PAD - 4

    @property
    def center(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True)
class Graph:
    """A drawn graph and the room that it takes."""

    body: str
    width: float
    height: float


def graph(region: RegionReport, bandwidth: float | None) -> Graph:
    """Draw the kernels of a program, the arrays that they read and write, and where those come from and go to."""
    return _draw(_rows(_nodes(region, bandwidth)))


def page(head: Sequence[str], graphs: Iterable[tuple[str, Graph | None]], foot: Sequence[str]) -> str:
    """Put graphs under their titles on one picture, between lines of text."""
    y: float = _MARGIN
    body: list[str] = []
    width: float = 0

    def write(lines: Sequence[str], bold: bool = False) -> None:
        nonlocal y, width
        for line in lines:
            y += _LINE
            body.append(_text(_MARGIN, y, line, bold))
            width = max(width, len(line) * _LETTER)

    write(head, bold=True)
    for title, drawn in graphs:
        y += _LINE
        write([title], bold=True)
        if drawn is None:
            write(["  scalars: run as plain XLA ops"])
            continue
        y += _PAD
        body.append(f'<g transform="translate({_MARGIN},{y:.0f})">{drawn.body}</g>')
        width = max(width, drawn.width)
        y += drawn.height
    y += _LINE if foot else 0
    write(foot)
    full, tall = width + 2 * _MARGIN, y + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{full:.0f}" height="{tall:.0f}" '
        f'viewBox="0 0 {full:.0f} {tall:.0f}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" '
        f'font-size="{_FONT}" fill="{_INK}"><rect width="100%" height="100%" fill="#ffffff"/>{"".join(body)}</svg>'
    )


def _nodes(region: RegionReport, bandwidth: float | None) -> list[_Node]:
    """Return kernels, and arrays in groups that one kernel makes and the same kernels read."""
    kernels: dict[str, _Node] = {}
    for segment in region.segments:
        wrapped = [w for line in segment.lines(bandwidth) for w in textwrap.wrap(line, _WIDTH, subsequent_indent="  ")]
        fill = _FILL.get(segment.strategy, _OTHER_FILL)
        kernels[segment.name] = _Node(f"{segment.name}: {segment.strategy}", wrapped, fill)
    makers = region.makers()
    arrays: dict[str, Flow] = {flow.value: flow for s in region.segments for flow in (*s.reads, *s.writes)}
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = defaultdict(list)
    for value, flow in arrays.items():
        made_by = tuple(s.name for s in region.segments if any(f.value == value for f in s.writes))
        where = region.readers.get(value, "") if value in makers else region.origins.get(value, "")
        note = f", {'to' if value in makers else 'from'} {where}" if where else ""
        groups[made_by, tuple(region.takers(value))].append(f"{flow}{note}")
    nodes = list(kernels.values())
    for (made_by, read_by), lines in groups.items():
        shown = lines[:_MAX_ARRAYS] + ([f"... {len(lines) - _MAX_ARRAYS} more arrays"] * (len(lines) > _MAX_ARRAYS))
        node = _Node("", shown, _ARRAY_FILL)
        for name in made_by:
            _connect(kernels[name], node)
        for name in read_by:
            _connect(node, kernels[name])
        nodes.append(node)
    return nodes


def _rows(nodes: list[_Node]) -> list[list[_Node]]:
    """Give every node its row and place in it, with passes where edges skip rows."""
    for _ in nodes:  # longest paths: as many rounds as a chain has nodes, at most
        for node in nodes:
            node.row = max((b.row + 1 for b in node.before), default=node.row)
    for node in nodes:
        if not node.before and node.after:
            node.row = min(a.row for a in node.after) - 1
    lowest = min(node.row for node in nodes)
    rows: dict[int, list[_Node]] = defaultdict(list)
    for node in nodes:
        node.row -= lowest
        rows[node.row].append(node)
    edges = [(node, after) for node in nodes for after in node.after]
    for node in nodes:
        node.before, node.after = [], []
    for node, after in edges:
        last = node
        for between in range(node.row + 1, after.row):
            gap = _Node("", [], _ARRAY_FILL, between, is_pass=True)
            rows[between].append(gap)
            _connect(last, gap)
            last = gap
        _connect(last, after)
    ordered = [rows[i] for i in sorted(rows)]
    for _ in range(4):
        for row in ordered:
            _place(row)
        for row in ordered[1:]:
            row.sort(key=lambda n: _mean([b.center for b in n.before], n.center))
            _place(row)
        for row in ordered[-2::-1]:
            row.sort(key=lambda n: _mean([a.center for a in n.after], n.center))
            _place(row)
    for node in (node for row in ordered for node in row):
        node.before.sort(key=lambda n: n.center)
        node.after.sort(key=lambda n: n.center)
    return ordered


def _connect(above: _Node, below: _Node) -> None:
    above.after.append(below)
    below.before.append(above)


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _place(row: list[_Node]) -> None:
    """Put the nodes of a row side by side, around 0."""
    x = -(sum(n.width for n in row) + _GAP * (len(row) - 1)) / 2
    for node in row:
        node.x = x
        x += node.width + _GAP


def _draw(rows: list[list[_Node]]) -> Graph:
    left = min(node.x for row in rows for node in row)
    width = max(node.x + node.width for row in rows for node in row) - left
    boxes, edges = [], []
    top: dict[int, float] = {}
    y: float = 0
    heights = [max(node.height for node in row) for row in rows]
    for i, height in enumerate(heights):
        top[i] = y
        y += height + _ROW_GAP
    for row in rows:
        for node in row:
            node.x -= left
    for i, row in enumerate(rows):
        for node in row:
            if node.is_pass:
                edges.append(f"M{node.center:.1f} {top[i]:.1f}V{top[i] + heights[i]:.1f}")
            else:
                boxes.append(_box(node, top[i]))
            for k, after in enumerate(node.after):
                # From the box down to the end of its row, then to the next row.
                begin = _port(node, k, len(node.after))
                end = _port(after, after.before.index(node), len(after.before))
                start, stop = top[i] + heights[i], top[i + 1]
                half = (start + stop) / 2
                edges.append(
                    f"M{begin:.1f} {top[i] + node.height:.1f}V{start:.1f}"
                    f"C{begin:.1f} {half:.1f} {end:.1f} {half:.1f} {end:.1f} {stop:.1f}"
                )
                if not after.is_pass:
                    edges.append(f"M{end - 4:.1f} {stop - 6:.1f}L{end:.1f} {stop:.1f}L{end + 4:.1f} {stop - 6:.1f}")
    lines = f'<path d="{"".join(edges)}" fill="none" stroke="{_EDGE}" stroke-width="1.4"/>'
    return Graph(lines + "".join(boxes), width, y - _ROW_GAP)


def _port(node: _Node, i: int, count: int) -> float:
    """Return where edge i of `count` meets a side of a node."""
    return node.x + node.width * (i + 1) / (count + 1)


def _box(node: _Node, top: float) -> str:
    radius = 4 if node.title else 12
    text = (
        f'<rect x="{node.x:.1f}" y="{top:.1f}" width="{node.width:.1f}" height="{node.height:.1f}" rx="{radius}" '
        f'fill="{node.fill}" stroke="{_EDGE}"/>'
    )
    lines = [node.title, *node.lines] if node.title else node.lines
    for i, line in enumerate(lines):
        text += _text(node.x + _PAD, top + _PAD + _LINE * i + _FONT - 2, line, bold=bool(node.title) and i == 0)
    return text


def _text(x: float, y: float, line: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" xml:space="preserve"{weight}>{escape(line)}</text>'
