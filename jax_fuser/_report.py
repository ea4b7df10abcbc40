"""What `explain` returns: programs, their kernels, what flows between them, and what stays with XLA."""

from __future__ import annotations

import html
import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from jax_fuser import _ffi, _picture, _words

_COUNTED = "FLOP: every op counts 1 for each element, conversions and moves 0, a multiply-add of a product 2"
_MAX_LINES = 40
_BOX = 78  # columns inside a box
_MAX_FLOWS = 8  # arrays listed on one side of a box


@dataclass(frozen=True)
class Flow:
    """An array that a kernel reads or writes, by its name in the program; `bytes` are what it reads of it, once."""

    value: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    def __str__(self) -> str:
        return f"{self.value} {_words.array(self.dtype, self.shape)} {_words.size(self.bytes)}"


@dataclass(frozen=True)
class KernelReport:
    """One kernel. `operations`: an op counts 1 for each element that it computes, a product with its sum 2.

    `parameters` are the strategy's, `launch` the tasks or the grid, `entry` the name that profilers show, `tuned` those
    of the parameters that `autotune` chose.
    """

    name: str
    strategy: str
    reason: str
    parameters: str
    reads: tuple[Flow, ...]
    writes: tuple[Flow, ...]
    operations: int
    launch: str
    entry: str
    tuned: str = ""

    @property
    def bytes_read(self) -> int:
        """Bytes of what it reads, each array once."""
        return sum(flow.bytes for flow in self.reads)

    @property
    def bytes_written(self) -> int:
        """Bytes of what it writes."""
        return sum(flow.bytes for flow in self.writes)

    def lines(self, bandwidth: float | None) -> list[str]:
        """Return what there is to say about it, under its name: how, how much and why."""
        # Names of a product's parameters mean what they do in its kernel, not in strategies.
        own = self.parameters if self.strategy == "grouped" else _words.parameters_in_words(self.parameters)
        how = ", ".join(filter(None, [own, self.launch]))
        work = f"reads {_words.size(self.bytes_read)}, writes {_words.size(self.bytes_written)}"
        work += f", {_words.operations(self.operations)}"
        if bandwidth:
            least = (self.bytes_read + self.bytes_written) / bandwidth
            work += f"; at least {_words.seconds(least)} at {bandwidth / 1e12:.2f} TB/s"
        tuned = f"tuned by measurement: {self.tuned}" if self.tuned else ""
        return [line for line in (how, tuned, work, f"why: {self.reason}") if line]


@dataclass(frozen=True)
class RegionReport:
    """One program: its kernels as text and as `segments`, the bytes of its inputs and outputs, its reductions and
    scans by the names of their primitives, and how many calls have this very text.

    `origins` and `readers` say, of its first call, where each input comes from and who reads each output.
    """

    name: str
    ops: int
    bytes_in: int
    bytes_out: int
    kernels: str
    count: int = 1
    reductions: tuple[str, ...] = ()
    segments: tuple[KernelReport, ...] = ()
    origins: dict[str, str] = field(default_factory=dict, hash=False)
    readers: dict[str, str] = field(default_factory=dict, hash=False)
    draws: int = 0  # of random bits, made in its kernels

    def title(self, number: int) -> str:
        """Return its overview on one line."""
        head = f"[{number}] {self.name}" + (f" x{self.count}" if self.count > 1 else "")
        text = f"{self.ops} op{'s' * (self.ops != 1)}, reads {_words.size(self.bytes_in)}, "
        text += f"writes {_words.size(self.bytes_out)}"
        found = Counter([*self.reductions, *["random_bits"] * self.draws]).items()
        text += f" ({', '.join(name + f' x{n}' * (n > 1) for name, n in found)})" * bool(found)
        tuned = sum(bool(k.tuned) for k in self.segments)
        return f"{head}: {text}" + f", {tuned} tuned kernel{'s' * (tuned != 1)}" * bool(tuned)

    def makers(self) -> dict[str, str]:
        """Return which kernel writes each value."""
        return {flow.value: segment.name for segment in self.segments for flow in segment.writes}

    def takers(self, value: str) -> list[str]:
        """Return the kernels that read a value."""
        return [s.name for s in self.segments if any(flow.value == value for flow in s.reads)]

    def drawing(self, bandwidth: float | None) -> Iterator[str]:
        """Yield the kernels as boxes in the order in which they run, with what flows in and out of each."""
        makers = self.makers()
        for k in self.segments:
            yield from _flows("  ", k.reads, lambda f: f"from {makers.get(f.value) or self.origins.get(f.value, '?')}")
            yield f"  ┌─ {k.name}: {k.strategy} ".ljust(_BOX + 5, "─") + "┐"
            for line in k.lines(bandwidth):
                for part in textwrap.wrap(line, _BOX, subsequent_indent="  "):
                    yield f"  │ {part.ljust(_BOX)} │"
            yield "  └─┬" + "─" * _BOX + "┘"
            yield from _flows("    ▼ ", k.writes, lambda f: f"to {self.destinations(f.value)}")

    def destinations(self, value: str) -> str:
        """Return who reads a value, inside and outside of the program."""
        outside = [self.readers[value]] if value in self.readers else []
        return ", ".join(self.takers(value) + outside) or "nobody"


def _flows(indent: str, flows: Sequence[Flow], where: Callable[[Flow], str]) -> Iterator[str]:
    for flow in flows[:_MAX_FLOWS]:
        yield f"{indent}{flow}, {where(flow)}"
    if len(flows) > _MAX_FLOWS:
        yield f"{indent}... {len(flows) - _MAX_FLOWS} more arrays"


@dataclass(frozen=True)
class CutReport:
    """A primitive that is part of no fusion, how often, and why; `own_call`: a custom call of ours all the same."""

    primitive: str
    count: int
    reason: str
    own_call: bool = False


@dataclass(frozen=True)
class Explanation:
    """What runs as kernels and what was left to XLA. Its repr is an overview; print it for a drawing.

    Notebooks show it as a picture, which `save` writes to a file.
    """

    name: str
    platform: str
    regions: tuple[RegionReport, ...]
    cuts: tuple[CutReport, ...]
    bandwidth: float | None = None  # bytes per second of the device's memory, where its driver tells

    def __repr__(self) -> str:
        lines = self._head()
        for i, r in enumerate(self.regions):
            lines.append(f"  {r.title(i)}")
            lines += [f"      {line}" for line in r.kernels.splitlines() if line.startswith(("segment", "scalars"))]
        lines += self._left()
        if len(lines) > _MAX_LINES:
            hidden = len(lines) - _MAX_LINES + 1
            lines = [*lines[: _MAX_LINES - 1], f"  ... {hidden} more lines; see .regions and .cuts"]
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = self._head()
        for i, r in enumerate(self.regions):
            lines += ["", r.title(i)]
            lines += [*r.drawing(self.bandwidth)] if r.segments else [f"  {r.kernels}"]
        lines += ["", *self._left()] if self.cuts else []
        if any(r.segments for r in self.regions):
            lines += ["", _COUNTED]
        return "\n".join(lines)

    def svg(self) -> str:
        """Return the drawing as SVG: a graph for every program, kernels as boxes and arrays between them."""
        drawings = [
            (region.title(i), _picture.graph(region, self.bandwidth) if region.segments else None)
            for i, region in enumerate(self.regions)
        ]
        return _picture.page(self._head(), drawings, self._left())

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{self.svg()}</div>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file, whose name ends with .svg or .html.

        Example:
          >>> import os, tempfile
          >>> import jax.numpy as jnp
          >>> import jax_fuser as jf
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     jf.explain(jnp.tanh)(jnp.ones(8)).save(os.path.join(folder, "tanh.svg"))
        """
        ending = os.path.splitext(path)[1]
        if ending not in (".svg", ".html"):
            raise ValueError(f"save: expected a file name that ends with .svg or .html, got {os.fspath(path)!r}")
        text = self.svg()
        if ending == ".html":
            title = html.escape(f"{self.name} on {self.platform}")
            text = f'<!doctype html><meta charset="utf-8"><title>{title}</title><body>{text}</body>\n'
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def _head(self) -> list[str]:
        calls = sum(r.count for r in self.regions)
        lines = [f"{self.name} on {self.platform}: {calls} fused call{'s' * (calls != 1)}"]
        reason = _ffi.can_compile(self.platform)
        return lines + ([f"  run as plain XLA ops here: {reason}"] if reason is not None else [])

    def _left(self) -> list[str]:
        width = max((len(f"{c.primitive} x{c.count}") for c in self.cuts), default=0)
        lines: list[str] = []
        for title, own in (("calls of their own", True), ("left to XLA", False)):
            cuts = [c for c in self.cuts if c.own_call == own]
            if cuts:
                lines += [f"  {title}:", *(f"    {f'{c.primitive} x{c.count}':<{width}}  {c.reason}" for c in cuts)]
        return lines
