"""A builder of fusions that knows which axes are one index, and so how the fusion looks on a part of its arrays.

Every pointwise op joins the axes of its operands and its result; a broadcast, a slice or a reduction joins the axes
that it keeps. A mesh may split a class of joined axes, unless an iota counts along it or a slice or concat cuts it, so
that its index would have to be shifted on each device, or one value has two axes of it. A reshape joins the slowest
axes of each run that it merges or takes apart, though their extents differ: what splits one into equal parts splits the
other. A reduction over a split class gives each device its own part of the result; `stages` cuts the program there, so
that the parts can be joined before they are read.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax_fuser import _core, _ffi


@dataclass(frozen=True)
class Fold:
    """A reduction: its op, the axes that it folds, and the dtype of its result."""

    op: str
    axes: Sequence[int]
    dtype: Any


@dataclass(frozen=True)
class Program:
    """A text, and for each wanted value where it is: ("output", i) or ("input", i).

    Equal values are computed once, and `first` numbers the wanted value that each output is; where every value is an
    input there is no text.
    """

    text: str | None
    places: list[tuple[str, int]]
    first: list[int]

    def results(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Return the wanted values, from those that the program takes and makes."""
        return [arguments[i] if kind == "input" else outputs[i] for kind, i in self.places]


def finished(builder: _core.Builder, arguments: Sequence[int], values: Sequence[int]) -> Program:
    """Finish a program that makes these values; the builder is empty after."""
    places: list[tuple[str, int]] = []
    outputs: dict[int, int] = {}
    first = []
    for n, value in enumerate(values):
        if value in arguments:
            places.append(("input", arguments.index(value)))
            continue
        if value not in outputs:
            outputs[value] = len(outputs)
            first.append(n)
            builder.output(value)
        places.append(("output", outputs[value]))
    return Program(builder.finish() if outputs else None, places, first)


def groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the axes of two shapes in the smallest runs that have equally many elements; those of extent 1 are left
    out.
    """
    found: list[tuple[list[int], list[int]]] = []
    here: tuple[list[int], list[int]] = ([], [])
    rest = ([i for i, n in enumerate(old) if n != 1], [i for i, n in enumerate(new) if n != 1])
    size = [1, 1]
    while rest[0] or rest[1]:
        side = 0 if rest[0] and (size[0] <= size[1] or not rest[1]) else 1
        axis = rest[side].pop(0)
        size[side] *= (old, new)[side][axis]
        here[side].append(axis)
        if size[0] == size[1]:
            found.append(here)
            here, size = ([], []), [1, 1]
    return found + [here] * bool(here[0] or here[1])


def cuts_evenly(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a reshape only merges axes and takes them apart: each end of an axis divides the next one."""
    for before, after in groups(old, new):
        ends = set()
        for shape, axes in ((old, before), (new, after)):
            inner = 1
            for axis in reversed(axes):
                inner *= shape[axis]
                ends.add(inner)
        ordered = sorted(ends)
        if any(b % a for a, b in itertools.pairwise(ordered) if a):
            return False
    return True


@dataclass(frozen=True)
class Stage:
    """What a program computes between two exchanges: parts of reductions, and outputs."""

    folds: list[int]
    outputs: list[int]


class Builder:
    """`_core.Builder` that notes the axes of each value. The program has `inputs` and `outputs`."""

    def __init__(self, name: str, max_ops: int | None = None):
        self._name = name
        self._core = _core.Builder(name) if max_ops is None else _core.Builder(name, max_ops)
        # In order, to make each value again: (call on another builder with shape and operands, operands).
        self._calls: dict[int, tuple[Callable[..., int], Sequence[int]]] = {}
        self._axes: dict[int, list[int]] = {}
        self._parent: list[int] = []
        self._extent: list[int] = []
        self._common: list[int] = []  # by class: a divisor of all its extents
        self._counted: list[int] = []
        self.folds: dict[int, Fold] = {}
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    def input(self, name: str, dtype: str, shape: Sequence[int]) -> int:
        """Add an input."""
        value = self._made(lambda b, to: b.input(name, dtype, to), [], shape)
        self.inputs.append(value)
        return value

    def constant(self, dtype: str, value: bool | int | float) -> int:
        """Add a scalar."""
        return self._made(lambda b, to: b.constant(dtype, value), [], ())

    def iota(self, dtype: str, shape: Sequence[int], dim: int) -> int:
        """Add the index along an axis."""
        value = self._made(lambda b, to: b.iota(dtype, to, dim), [], shape)
        self._counted.append(self._axes[value][dim])
        return value

    def pointwise(self, op: str, inputs: Sequence[int], label: str) -> int:
        """Add an op on operands of one shape."""
        return self._joined(lambda b, to, *x: b.pointwise(op, list(x), label), inputs)

    def convert(self, value: int, dtype: str, label: str = "") -> int:
        """Add a cast."""
        return self._joined(lambda b, to, x: b.convert(x, dtype, label), [value])

    def bitcast(self, value: int, dtype: str, label: str) -> int:
        """Add a cast that keeps the bits."""
        return self._joined(lambda b, to, x: b.bitcast(x, dtype, label), [value])

    def broadcast(self, value: int, shape: Sequence[int], dims: Sequence[int]) -> int:
        """Repeat a value: its axis i is the result's axis dims[i]."""
        result = self._made(lambda b, to, x: b.broadcast(x, to, list(dims)), [value], shape)
        for axis, dim in zip(self._axes[value], dims):
            if self._extent[axis] == shape[dim]:
                self._join(axis, self._axes[result][dim])
        return result

    def transpose(self, value: int, permutation: Sequence[int]) -> int:
        """Reorder axes: the result's axis i is the operand's axis permutation[i]."""
        axes = [self._axes[value][i] for i in permutation]
        return self._viewed(lambda b, to, x: b.transpose(x, list(permutation)), value, axes)

    def squeeze(self, value: int, dims: Sequence[int]) -> int:
        """Drop axes of extent 1."""
        axes = [axis for i, axis in enumerate(self._axes[value]) if i not in dims]
        return self._viewed(lambda b, to, x: b.squeeze(x, list(dims)), value, axes)

    def slice(self, value: int, starts: Sequence[int], strides: Sequence[int], counts: Sequence[int]) -> int:
        """Take `counts` elements of each axis, from `starts` on, `strides` apart (negative ones: backwards)."""
        old = self._axes[value]
        whole = [self._extent[axis] == n and start == 0 for axis, n, start in zip(old, counts, starts)]

        def call(b: _core.Builder, to: Sequence[int], x: int) -> int:
            return b.slice(x, list(starts), list(strides), list(to))

        result = self._made(call, [value], counts)
        for a, b, same in zip(old, self._axes[result], whole):
            if same:
                self._join(a, b)
            else:
                # Neither side can be split: a device would need what another one has.
                self._counted += [a, b]
        return result

    def reshape(self, value: int, shape: Sequence[int]) -> int:
        """Put the elements in their order under another shape; axes that are neither cut nor merged are the same."""
        old, to = self.shape(value, {}), list(shape)
        result = self._made(lambda b, to, x: b.reshape(x, to), [value], to)
        for before, after in groups(old, to):
            axes, made = [self._axes[value][i] for i in before], [self._axes[result][i] for i in after]
            if axes and made:  # not without elements
                self._join(axes[0], made[0])
            self._counted += [*axes[1:], *made[1:]]
        return result

    def pack(self, value: int, label: str) -> int:
        """Store the last four bits of integers, two to a byte: bytes that are only a result of the program."""
        *outer, last = self.shape(value, {})
        result = self._made(lambda b, to, x: b.convert(x, "u4", label), [value], [*outer, last // 2])
        for a, b in zip(self._axes[value], self._axes[result]):
            self._join(a, b)
        return result

    def pad(self, value: int, low: Sequence[int], high: Sequence[int], padding: int, shape: Sequence[int]) -> int:
        """Add `low` elements of a scalar before each axis and `high` behind it; fewer than none cut elements off."""

        def call(b: _core.Builder, to: Sequence[int], x: int, by: int) -> int:
            return b.pad(x, list(low), list(high), by)

        result = self._made(call, [value, padding], shape)
        for a, b, before, after in zip(self._axes[value], self._axes[result], low, high):
            if before == after == 0:
                self._join(a, b)
            else:
                self._counted += [a, b]
        return result

    def take(
        self, value: int, indices: Sequence[int], axes: Sequence[int], dims: Sequence[int], shape: Sequence[int]
    ) -> int:
        """Read a value at computed places: axis axes[k] at indices[k], of the result's shape, moving on with dims."""

        def call(b: _core.Builder, to: Sequence[int], x: int, *at: int) -> int:
            return b.take(x, list(at), list(axes), list(dims), list(to))

        result = self._made(call, [value, *indices], shape)
        for index in indices:
            self._note(result, self._axes[index])
        for i, (axis, dim) in enumerate(zip(self._axes[value], dims)):
            if i not in axes and dim >= 0 and self._extent[axis] == shape[dim]:
                self._join(axis, self._axes[result][dim])
                continue
            self._counted.append(axis)
            if dim >= 0:
                self._counted.append(self._axes[result][dim])
        return result

    def search(self, table: int, numbers: int, side: str, dims: Sequence[int], label: str) -> int:
        """Search numbers in a sorted table, whose axes but the last go along axes `dims` of the numbers."""
        value = self._add(lambda b, to, t, x: b.search(t, x, side, list(dims), label), [table, numbers], ())
        result = self._note(value, self._axes[numbers])
        *outer, along = self._axes[table]
        for axis, dim in zip(outer, dims):
            self._join(axis, self._axes[result][dim])
        self._counted.append(along)
        return result

    def concat(self, values: Sequence[int], axis: int, shape: Sequence[int]) -> int:
        """Put values side by side along an axis."""
        if len(values) == 1:
            return values[0]
        result = self._made(lambda b, to, *x: b.concat(list(x), axis), values, shape)
        for value in values:
            for i, (a, b) in enumerate(zip(self._axes[value], self._axes[result])):
                if i == axis:
                    self._counted += [a, b]
                else:
                    self._join(a, b)
        return result

    def reduce(self, op: str, value: int, dims: Sequence[int], dtype: Any, label: str) -> int:
        """Fold axes, given in increasing order."""
        axes = self._axes[value]
        kept = [axis for i, axis in enumerate(axes) if i not in dims]
        result = self._viewed(lambda b, to, x: b.reduce(op, x, list(dims), label), value, kept)
        folded = [axes[i] for i in dims]
        if any(self._extent[axis] != 1 for axis in folded):
            self.folds[result] = Fold(op, folded, dtype)
        return result

    def scan(self, op: str, value: int, axis: int, reverse: bool, label: str, *factors: int) -> int:
        """Carry a value along an axis, which no mesh may split; a linear recurrence has factors, too."""
        result = self._joined(lambda b, to, *x: b.scan(op, x[0], axis, reverse, label, *x[1:]), [value, *factors])
        self._counted.append(self._axes[result][axis])
        return result

    def grouped_product(
        self,
        mode: str,
        operands: Sequence[int],
        transpose_rhs: bool,
        dtype: str,
        n: int,
        label: str,
        weights: str = "",
        leaves_padding: bool = False,
    ) -> int:
        """Multiply the rows of each group by its matrix, or sum over them: (lhs, rhs[, factors], extents[, starts]).

        `weights`: of packed ones, which have factors. No mesh may split any axis.
        """

        def call(b: _core.Builder, to: Sequence[int], lhs: int, rhs: int, *rest: int) -> int:
            packed = 1 if weights else 0
            factors, extents, starts = rest[:packed], rest[packed], rest[packed + 1] if len(rest) > packed + 1 else None
            return b.grouped_matmul(lhs, rhs, extents, starts, mode, transpose_rhs, dtype, label,
                                    scales=list(factors), weights=weights, columns=n * packed,
                                    leaves_padding=leaves_padding)  # fmt: skip

        rows, k = (self._extent[axis] for axis in self._axes[operands[0]])
        groups = self._extent[self._axes[operands[2]][0]]
        result = self._made(call, operands, (groups, k, n) if mode == "contraction" else (rows, n))
        self._counted += [axis for value in (*operands, result) for axis in self._axes[value]]
        return result

    def note_groups(self, rows: int, values: int, starts: int, extents: int) -> None:
        """State that each row of a group, as `starts` and `extents` say, is the group's element of `values`."""
        axis, most = len(self._axes[extents]) - 1, self.shape(rows, {})
        before = [*most[:axis], self.shape(extents, {})[axis], *most[axis:]]
        by = list(range(axis + 1))

        def call(b: _core.Builder, to: Sequence[int], x: int, v: int, s: int, e: int) -> int:
            one = [1 if i == axis + 1 else n for i, n in enumerate(to)]
            dims = [i for i in range(len(to)) if i != axis + 1]
            nested = b.stretch(b.broadcast(v, one, dims), e, axis + 1, to[axis + 1], by)
            b.note_partition(x, s, e, axis, to[axis + 1], nested)
            return nested

        result = self._made(call, [rows, values, starts, extents], before)
        own = [a for i, a in enumerate(self._axes[result]) if i != axis + 1]
        self._join_groups(rows, starts, extents, axis, own)
        for a, b in zip(self._axes[values], own):
            self._join(a, b)
        self._counted.append(self._axes[result][axis + 1])

    def fold_groups(self, op: str, rows: int, starts: int, extents: int, label: str) -> int:
        """Fold the rows of each group along the axis that is the last one of `starts` and `extents`."""
        axis, most = len(self._axes[extents]) - 1, self.shape(rows, {})

        def call(b: _core.Builder, to: Sequence[int], x: int, s: int, e: int) -> int:
            return b.reduce(op, b.partition(x, s, e, axis, most[axis]), [axis + 1], label)

        shape = [*most[:axis], self.shape(extents, {})[axis], *most[axis + 1 :]]
        result = self._made(call, [rows, starts, extents], shape)
        self._join_groups(rows, starts, extents, axis, self._axes[result])
        return result

    def _join_groups(self, rows: int, starts: int, extents: int, axis: int, result: Sequence[int]) -> None:
        """Join the axes of rows, of their layout and of what has an element for each group; groups are whole."""
        for i, (a, b) in enumerate(zip(self._axes[rows], result)):
            if i == axis:
                self._counted += [a, b]
            else:
                self._join(a, b)
        for layout in (starts, extents):
            for a, b in zip(self._axes[layout], result):
                self._join(a, b)

    @property
    def is_full(self) -> bool:
        """Whether an op more is refused."""
        full: bool = self._core.is_full
        return full

    def set_name(self, value: int, name: str) -> None:
        """Say what a value is called in the program's text."""
        self._core.set_name(value, name)

    def finish(self, values: Sequence[int]) -> Program:
        """Return the program that makes these values; `outputs` are those that it computes."""
        program = self._program({}, [], values, (self._core, {value: value for value in self._calls}))
        self.outputs = [values[i] for i in program.first]
        return program

    def axes(self, value: int) -> list[int]:
        """Return the class of each axis of a value."""
        return [self._root(axis) for axis in self._axes[value]]

    def extent(self, axis: int) -> int:
        """Return the extent of a class: the largest number of equal parts that all its axes have."""
        return self._common[self._root(axis)]

    def counted(self) -> set[int]:
        """Return the classes that no mesh may split: an iota counts along them, or a value has two axes of one.

        Of all pairs of elements, `x[:, None] - x[None, :]`, a device would make those of its own part alone.
        """
        found = {self._root(axis) for axis in self._counted}
        for value in self._axes:
            seen = Counter(self.axes(value))
            found.update(axis for axis, times in seen.items() if times > 1)
        return found

    def folded(self, value: int) -> list[int]:
        """Return the classes that a reduction folds."""
        return [self._root(axis) for axis in self.folds[value].axes]

    def stages(self, split: Collection[int]) -> list[Stage]:
        """Return the stages of the program when these classes are split; a stage may read the folds of earlier ones."""
        joined = {value for value in self.folds if not {*split}.isdisjoint(self.folded(value))}
        level: dict[int, int] = {}
        for result, (_, operands) in self._calls.items():
            level[result] = max((level[x] for x in operands), default=0) + (result in joined)
        stages = []
        for n in range(max(level.values()) + 1):
            folds = [value for value in self.folds if value in joined and level[value] == n + 1]
            outputs = [value for value in self.outputs if value not in joined and level[value] == n]
            if folds or outputs:
                stages.append(Stage(folds, outputs))
        return stages

    def shape(self, value: int, extents: Mapping[int, int]) -> tuple[int, ...]:
        """Return a value's shape where these classes have other extents."""
        pairs = zip(self._axes[value], self.axes(value))
        return tuple(
            self._extent[axis] * extents[of] // self._common[of] if of in extents else self._extent[axis]
            for axis, of in pairs
        )

    def part(self, extents: Mapping[int, int], given: Sequence[int], wanted: Sequence[int]) -> Program:
        """Return the program that makes the `wanted` values of arrays on which these classes have other extents.

        Its arguments are the inputs and the `given` reductions.
        """
        return self._program(extents, given, wanted, self._again(extents, given))

    def _program(
        self,
        extents: Mapping[int, int],
        given: Sequence[int],
        wanted: Sequence[int],
        made: tuple[_core.Builder, dict[int, int]],
    ) -> Program:
        """Finish what was made; it is made again where some values are stored."""
        builder, values = made
        repeated = {*builder.repeated([*values.values()], [values[value] for value in wanted])}
        if repeated:
            builder, values = self._again(extents, given, {v for v in values if values[v] in repeated})
        arguments = [values[value] for value in (*self.inputs, *given)]
        return finished(builder, arguments, [values[value] for value in wanted])

    def _again(
        self, extents: Mapping[int, int], given: Sequence[int], stored: Collection[int] = ()
    ) -> tuple[_core.Builder, dict[int, int]]:
        """Make all values again on a new builder, which has them under other numbers; slices read the stored ones."""
        builder = _core.Builder(self._name)
        values: dict[int, int] = {}
        for value in self.inputs:
            values[value] = self._calls[value][0](builder, self.shape(value, extents))
        for i, value in enumerate(given):
            dtype = _ffi.known_dtype_name(self.folds[value].dtype)
            values[value] = builder.input(f"r{i}", dtype, self.shape(value, extents))
        for result, (call, operands) in self._calls.items():
            if result not in values:
                values[result] = call(builder, self.shape(result, extents), *(values[x] for x in operands))
            if result in stored:
                builder.store(values[result])
        return builder, values

    def _add(self, call: Callable[..., int], operands: Sequence[int], shape: Sequence[int]) -> int:
        value = call(self._core, list(shape), *operands)
        # The builder returns an existing value for an equal op, or for one that changes nothing.
        self._calls.setdefault(value, (call, operands))
        return value

    def _made(self, call: Callable[..., int], operands: Sequence[int], shape: Sequence[int]) -> int:
        value = self._add(call, operands, shape)
        if value not in self._axes:
            start = len(self._parent)
            self._parent += range(start, start + len(shape))
            self._extent += shape
            self._common += shape
            self._axes[value] = list(range(start, start + len(shape)))
        return value

    def _joined(self, call: Callable[..., int], operands: Sequence[int]) -> int:
        value = self._add(call, operands, ())
        for operand in operands:
            self._note(value, self._axes[operand])
        return value

    def _viewed(self, call: Callable[..., int], operand: int, axes: list[int]) -> int:
        return self._note(self._add(call, [operand], ()), axes)

    def _note(self, value: int, axes: list[int]) -> int:
        for a, b in zip(self._axes.setdefault(value, axes), axes):
            self._join(a, b)
        return value

    def _root(self, axis: int) -> int:
        while self._parent[axis] != axis:
            self._parent[axis] = axis = self._parent[self._parent[axis]]
        return axis

    def _join(self, a: int, b: int) -> None:
        a, b = self._root(a), self._root(b)
        self._common[a] = math.gcd(self._common[a], self._common[b])
        self._parent[b] = a
