"""`lax.top_k` as reductions: an integer holds an element and, below it, its index, and the k largest are the result.

First the largest of the row, then the largest one below it, and so on: k passes over a row in registers.

Floats count by their bits, which gives the total order of `lax.top_k`: NaN above infinity, 0 above -0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_fuser import _ffi

# Each of the k largest takes a reduction, and a kernel has no more than this.
MAX_K = 16
# What a block keeps in registers; XLA sorts longer rows faster.
MAX_ROW = 4096


def refuse(aval: Any, axis: int, k: int) -> str | None:
    """Return why the k largest elements along an axis are not found by a kernel, or None."""
    if not 0 < k <= MAX_K:
        return f"finds the {k} largest; up to {MAX_K} fuse"
    if aval.dtype == np.bool_ or aval.dtype.itemsize > 4:
        return f"orders {aval.dtype}"
    if not 0 < aval.shape[axis] <= MAX_ROW:
        return f"orders rows of {aval.shape[axis]} elements; up to {MAX_ROW} fuse"
    return None


class _Packing:
    """Integer dtypes: of an element alone, and of an element above an index of as many bits."""

    def __init__(self, dtype: Any):
        self.is_unsigned = np.dtype(dtype).kind == "u"
        self.is_float = np.dtype(dtype).kind not in "iu"  # numpy knows bf16 as no float
        sign = "u" * self.is_unsigned
        self.bits = 8 * dtype.itemsize
        self.element = np.dtype(f"{sign}int{self.bits}")
        self.index_bits = max(self.bits, 16)
        self.both = np.dtype(f"{sign}int{2 * self.index_bits}")
        self.largest_index = (1 << self.index_bits) - 1
        self.shift = "shift_right_logical" if self.is_unsigned else "shift_right_arithmetic"


def emit(w: Any, aval: Any, axis: int, k: int, x: int, index_dtype: Any, label: str) -> tuple[int, int]:
    """Add the k largest elements along an axis and their indices to a `Writer`; equal ones by their index."""
    packing, b, shape = _Packing(aval.dtype), w.builder, list(aval.shape)
    kept = [i for i in range(len(shape)) if i != axis]
    rows = [shape[i] for i in kept]

    def op(what: str, value: int, number: int, of: list[int], dtype: Any) -> int:
        other = b.broadcast(w.constant(dtype, number), of, []) if of else w.constant(dtype, number)
        return int(b.pointwise(what, [value, other], label))

    def ordered(value: int, of: list[int]) -> int:
        """Give the bits of a float the order of integers; again, the bits back."""
        sign = op("shift_right_arithmetic", value, packing.bits - 1, of, packing.element)
        flips = op("and_", sign, (1 << packing.bits - 1) - 1, of, packing.element)
        return int(b.pointwise("xor_", [value, flips], label))

    def convert(value: int, dtype: Any) -> int:
        return int(b.convert(value, _ffi.dtype_name(dtype), label))

    key = ordered(b.bitcast(x, _ffi.dtype_name(packing.element), label), shape) if packing.is_float else x
    key = op("shift_left", convert(key, packing.both), packing.index_bits, shape, packing.both)
    index = convert(b.iota("s32", shape, axis), packing.both)
    # The first index is the largest, all ones.
    key = b.pointwise("or_", [key, op("xor_", index, packing.largest_index, shape, packing.both)], label)
    lowest = b.broadcast(w.constant(packing.both, np.iinfo(packing.both).min), shape, [])

    columns: tuple[list[int], list[int]] = ([], [])
    one = [1 if i == axis else n for i, n in enumerate(shape)]
    best = None
    for _ in range(k):
        below = key
        if best is not None:
            is_below = b.pointwise("lt", [key, b.broadcast(best, shape, kept)], label)
            below = b.pointwise("select", [is_below, key, lowest], label)
        best = b.reduce("reduce_max", below, [axis], packing.both, label)
        value = convert(op(packing.shift, best, packing.index_bits, rows, packing.both), packing.element)
        if packing.is_float:
            value = b.bitcast(ordered(value, rows), _ffi.dtype_name(aval.dtype), label)
        place = op("xor_", best, packing.largest_index, rows, packing.both)
        place = op("and_", place, packing.largest_index, rows, packing.both)
        for found, part in zip(columns, (value, convert(place, index_dtype))):
            found.append(b.broadcast(part, one, kept))
    to = [k if i == axis else n for i, n in enumerate(shape)]
    values, indices = (b.concat(parts, axis, to) for parts in columns)
    return values, indices
