"""A fusion's ops as Python reads them from its text, and whether two fusions compute the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax_fuser._core import Fusion

_OP = re.compile(r"^  (\w+): (\w+)\[([^\]]*)\] = (\w+)\(([^)]*)\)(?: \{(.*?)\})?(?:  # .*)?$")
_RAGGED = re.compile(r"ragged \d+ of (\w+) by([ \d]+)")
_ATTRIBUTE = re.compile(r"(\w+)(?:=(\[[^\]]*\]|[^,\s]+))?")


@dataclass(frozen=True)
class Ragged:
    """A nested value's ragged axis, the value that holds its extents, and the axes of the value that index that."""

    axis: int
    extents: str
    by: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """One line of a fusion: `result: dtype[shape] = kind(operands) {attributes}`.

    An attribute is a list of int, or its text; a flag is the empty text. The shape has a ragged axis at its longest.
    """

    result: str
    dtype: str
    shape: tuple[int, ...]
    kind: str
    operands: tuple[str, ...]
    attributes: dict[str, Any]
    ragged: tuple[Ragged, ...] = ()


def ops(fusion: Fusion) -> list[Op]:
    """Return the ops of a fusion, in order."""
    found = []
    for line in str(fusion).splitlines()[1:-1]:
        match = _OP.match(line)
        assert match is not None, line
        result, dtype, shape, kind, operands, attributes = match.groups()
        found.append(
            Op(
                result,
                dtype,
                tuple(int(re.findall(r"\d+", n)[0]) for n in shape.split(",") if n),
                kind,
                tuple(operands.split(", ")) if operands else (),
                {name: _value(text) for name, text in _ATTRIBUTE.findall(attributes or "")},
                _ragged(shape.split(",")),
            )
        )
    return found


def _ragged(axes: list[str]) -> tuple[Ragged, ...]:
    found = [(axis, _RAGGED.search(text)) for axis, text in enumerate(axes)]
    return tuple(Ragged(axis, m[1], tuple(int(n) for n in m[2].split())) for axis, m in found if m)


def _value(text: str) -> Any:
    return [int(n) for n in text[1:-1].split(",") if n] if text.startswith("[") else text


@dataclass(frozen=True)
class _Fold:
    """A reduction of `base` along some of its axes, however many ops it takes; `kept` are the axes of the result."""

    kind: str
    base: int
    folded: frozenset[int]
    kept: tuple[int, ...]
    part: tuple[int, int, bool] | None  # the axis that is folded in parts, how many, and whether in turn


def compute_the_same(a: Fusion, b: Fusion) -> bool:
    """Whether two fusions have the same inputs and outputs, apart from copies, repetition and split reductions.

    Those are what a schedule may add to the fusion that it is for.
    """

    def types(f: Fusion, names: Sequence[str]) -> list[Any]:
        return [(f.dtype(v), tuple(f.shape(v))) for v in names]

    if types(a, a.inputs) != types(b, b.inputs):
        return False
    numbers: dict[Any, int] = {}
    return _expressions(a, numbers) == _expressions(b, numbers)


def _expressions(fusion: Fusion, numbers: dict[Any, int]) -> list[int]:
    """Return for each output the number of its expression; equal expressions have one number."""
    folds: dict[int, _Fold] = {}

    def number(key: Any) -> int:
        return numbers.setdefault(key, len(numbers))

    values = {name: number(("input", i)) for i, name in enumerate(fusion.inputs)}
    for op in ops(fusion):
        operands = tuple(values[v] for v in op.operands)
        if op.kind == "copy":
            values[op.result] = operands[0]
        elif op.kind.startswith("reduce_"):
            fold = _joined(op, operands[0], folds.get(operands[0]), len(fusion.shape(op.operands[0])))
            values[op.result] = number(("fold", fold))
            folds[values[op.result]] = fold
        else:
            attributes = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in op.attributes.items())
            values[op.result] = number((op.kind, op.dtype, op.shape, operands, attributes))
    return [values[v] for v in fusion.outputs]


def _joined(op: Op, operand: int, before: _Fold | None, rank: int) -> _Fold:
    """Return a reduction, joined with the one that made its operand where both fold by the same op."""
    if before is None or before.kind != op.kind:
        before = _Fold(op.kind, operand, frozenset(), tuple(range(rank)), None)
    dims = op.attributes["dims"]
    gone = {before.kept[d] for d in dims}
    parts = int(op.attributes.get("parts", 0))
    part, kept = before.part, before.kept
    if parts:
        part = (kept[dims[0]], parts, "in_turn" in op.attributes)
        gone.discard(kept[dims[0]])
    elif part is not None and part[0] in gone:
        part = None
    return _Fold(op.kind, before.base, before.folded | gone, tuple(axis for axis in kept if axis not in gone), part)
