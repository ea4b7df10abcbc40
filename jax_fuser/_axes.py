"""A builder of fusions that knows which axes are one index, and so how the fusion looks on a part of its arrays.

Every pointwise op joins the axes of its operands and its result; a broadcast joins the axes that it keeps. A mesh may
split a class of joined axes, unless an iota counts along it: its index would have to be shifted on each device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jax_fuser import _core


class Builder:
    """`_core.Builder` that notes the axes of each value. The program has `inputs` and `outputs`."""

    def __init__(self, name: str):
        self._name = name
        self._core = _core.Builder(name)
        # Calls in order, to make them again: (call on another builder with shape and operands, operands, result).
        self._calls: list[tuple[Callable[..., int], Sequence[int], int]] = []
        self._axes: dict[int, list[int]] = {}
        self._parent: list[int] = []
        self._extent: list[int] = []
        self._counted: list[int] = []
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

    def output(self, value: int) -> None:
        """Return a value from the program."""
        self._core.output(value)
        self.outputs.append(value)

    def finish(self) -> str:
        """Return the program's text."""
        return self._core.finish()

    def axes(self, value: int) -> list[int]:
        """Return the class of each axis of a value."""
        return [self._root(axis) for axis in self._axes[value]]

    def extent(self, axis: int) -> int:
        """Return the extent of a class."""
        return self._extent[axis]

    def counted(self) -> set[int]:
        """Return the classes that an iota counts along."""
        return {self._root(axis) for axis in self._counted}

    def part(self, extents: Mapping[int, int]) -> str:
        """Return the program's text for arrays on which these classes have other extents."""
        builder = _core.Builder(self._name)
        values: dict[int, int] = {}
        for call, operands, result in self._calls:
            shape = [extents.get(axis, self._extent[axis]) for axis in self.axes(result)]
            values[result] = call(builder, shape, *(values[x] for x in operands))
        for value in self.outputs:
            builder.output(values[value])
        return builder.finish()

    def _add(self, call: Callable[..., int], operands: Sequence[int], shape: Sequence[int]) -> int:
        value = call(self._core, list(shape), *operands)
        self._calls.append((call, operands, value))
        return value

    def _made(self, call: Callable[..., int], operands: Sequence[int], shape: Sequence[int]) -> int:
        value = self._add(call, operands, shape)
        # The builder returns an existing value for an equal op: that has its axes.
        if value not in self._axes:
            start = len(self._parent)
            self._parent += range(start, start + len(shape))
            self._extent += shape
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
        self._parent[self._root(b)] = self._root(a)
