"""Rules of jax_fuser/_trace.py for writes into a copy at one computed place: dynamic_update_slice, x.at[i].set and add.

The result is chosen element by element: inside the window it is the update, read at the element's place in the window,
outside it is the operand. A scatter fuses that has one index, or one for each entry of its batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import Var

if TYPE_CHECKING:
    from jax_fuser._trace_writer import Writer

Ids = list[int]
Equation = Any

# Scatters, and the pointwise op that joins the operand and the update; None: the update takes its place.
JOINS: dict[str, str | None] = {
    "scatter": None,
    **{f"scatter{dash}{op}": op for op in ("add", "sub", "mul", "min", "max") for dash in "-_"},
}
UPDATES = frozenset(("dynamic_update_slice", *JOINS))


@dataclass(frozen=True)
class _Window:
    """Where an update goes: `sizes` of the window along each axis of the operand, and `dims`, the update's axis there.

    `starts` maps axes to values of the operand's shape, of `_index_type`, from 0 to the last place where the window
    fits; `valid` tells, in that shape, whether the window is written at all.
    """

    sizes: Sequence[int]
    dims: Sequence[int | None]
    starts: dict[int, int]
    valid: int | None


def _emit(w: Writer, eqn: Equation, operand: int, update: int, window: _Window, join: str | None) -> Ids:
    aval, of = eqn.invars[0].aval, eqn.invars[-1 if eqn.primitive.name in JOINS else 1].aval
    shape = list(aval.shape)
    index = _index_type(shape)
    places = aval.update(dtype=index)
    inside, offsets = window.valid, {}
    for axis, start in window.starts.items():
        at = w.builder.iota(f"s{8 * index.itemsize}", shape, axis)
        if window.sizes[axis] == 1:
            within = w.op("eq", [at, start], eqn)
        else:
            offsets[axis] = w.op("sub", [at, start], eqn)
            within = w.op("ge", [at, start], eqn)
            fits = w.op("lt", [offsets[axis], w.full(places, window.sizes[axis])], eqn)
            within = w.op("and_", [within, fits], eqn)
        inside = within if inside is None else w.op("and_", [inside, within], eqn)

    # The update without its axes of one element, its axes in the operand's order.
    axes = [a for a, dim in enumerate(window.dims) if dim is not None and of.shape[dim] != 1]
    dims = [d for a in axes if (d := window.dims[a]) is not None]
    value = w.builder.squeeze(update, [d for d, n in enumerate(of.shape) if n == 1])
    order = sorted(dims)
    if order != dims:
        value = w.builder.transpose(value, [order.index(d) for d in dims])
    if offsets:
        to = [-1 if a in offsets else a for a in axes]
        value = w.builder.take(value, [*offsets.values()], [axes.index(a) for a in offsets], to, shape)
    elif len(axes) < len(shape):
        value = w.builder.broadcast(value, shape, axes)
    if join is not None:
        value = w.op(join, [operand, value], eqn)
    return [value if inside is None else w.op("select", [inside, value, operand], eqn)]


def _index_type(shape: Sequence[int]) -> np.dtype[Any]:
    """Return the type of places along any axis: int32 where that is long enough."""
    return np.dtype("int32" if max(shape, default=0) < 2**31 else "int64")


def dynamic_update_slice(w: Writer, eqn: Equation, x: Ids) -> Ids:
    shape, sizes = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    starts = {}
    for axis, (n, size) in enumerate(zip(shape, sizes)):
        if n != size:
            start = _start(w, eqn, x[2 + axis], eqn.invars[2 + axis].aval, n - size, shape)
            starts[axis] = w.builder.broadcast(start, list(shape), [])
    return _emit(w, eqn, x[0], x[1], _Window(sizes, range(len(shape)), starts, None), None)


def _start(w: Writer, eqn: Equation, start: int, aval: Any, last: int, shape: Sequence[int]) -> int:
    """Return an index clamped to `0..last`, of the type of places in `shape`."""
    last = min(last, np.iinfo(aval.dtype).max)
    clamped = w.op("clamp", [w.full(aval, 0), start, w.full(aval, last)], eqn)
    return w.builder.convert(clamped, f"s{8 * _index_type(shape).itemsize}")


def scatter(w: Writer, eqn: Equation, x: Ids) -> Ids:
    shape, indices, of = (v.aval.shape for v in eqn.invars)
    numbers, aval = eqn.params["dimension_numbers"], eqn.invars[1].aval
    dims: list[int | None] = [None] * len(shape)
    # Axes of the indices, but for the last, and of the update that is no window are the same, in order.
    batch = [d for d in range(len(of)) if d not in numbers.update_window_dims]
    axis_of = dict(zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims))
    for at, axis in axis_of.items():
        dims[axis] = batch[at]
    skipped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    for axis, dim in zip((a for a in range(len(shape)) if a not in skipped), numbers.update_window_dims):
        dims[axis] = int(dim)
    one = {*numbers.inserted_window_dims}
    sizes = [1 if a in one else n if dims[a] is None else of[dims[a]] for a, n in enumerate(shape)]

    starts: dict[int, int] = {}
    valid = None
    kept = [d for d in range(len(indices) - 1) if indices[d] != 1]
    flat = aval.update(shape=tuple(indices[d] for d in kept))
    for k, axis in enumerate(numbers.scatter_dims_to_operand_dims):
        last = shape[axis] - sizes[axis]
        index = w.builder.slice(x[1], [0] * (len(indices) - 1) + [k], [1] * len(indices), [*indices[:-1], 1])
        index = w.builder.squeeze(index, [d for d in range(len(indices)) if d not in kept])
        if eqn.params["mode"] != jax.lax.GatherScatterMode.CLIP:
            bound = w.full(flat, min(last, np.iinfo(aval.dtype).max))
            within = w.op("le", [index, bound], eqn)
            if np.issubdtype(aval.dtype, np.signedinteger):
                within = w.op("and_", [within, w.op("ge", [index, w.full(flat, 0)], eqn)], eqn)
            valid = within if valid is None else w.op("and_", [valid, within], eqn)
        if last:
            start = _start(w, eqn, index, flat, last, shape)
            starts[axis] = w.builder.broadcast(start, list(shape), [axis_of[d] for d in kept])
    for axis, (n, size) in enumerate(zip(shape, sizes)):
        if n != size and axis not in starts:
            starts[axis] = w.full(eqn.invars[0].aval.update(dtype=_index_type(shape)), 0)
    if valid is not None:
        valid = w.builder.broadcast(valid, list(shape), [axis_of[d] for d in kept])
    window = _Window(sizes, dims, starts, valid)
    return _emit(w, eqn, x[0], x[2], window, JOINS[eqn.primitive.name])


def refuse(eqn: Equation) -> str | None:
    """Return why an update stays with XLA, or None."""
    shapes = [v.aval.shape for v in eqn.invars]
    update = 2 if eqn.primitive.name in JOINS else 1
    if 0 in (*shapes[0], *shapes[update]):
        return "writes no element"
    if update == 1:
        return None
    if JOINS[eqn.primitive.name] is None and eqn.params["update_jaxpr"] is not None:
        return "applies a function of its own"
    numbers = eqn.params["dimension_numbers"]
    own = [n for d, n in enumerate(shapes[1][:-1]) if d not in numbers.scatter_indices_batching_dims]
    if math.prod(own) != 1:
        return "adds up what has one place" if JOINS[eqn.primitive.name] == "add" else "writes to several places"
    modes = jax.lax.GatherScatterMode
    if eqn.params["mode"] not in (modes.CLIP, modes.FILL_OR_DROP, modes.PROMISE_IN_BOUNDS):
        return f"scatters in mode {eqn.params['mode']}"
    return None


def in_place(
    eqns: Sequence[Equation], returned: Collection[Any], cut: Sequence[bool], is_view: Callable[[Equation], bool]
) -> set[int]:
    """Return the numbers of updates that XLA may do in place, touching no more than the window.

    Their operand is an argument or made by XLA, and XLA or the caller gets the result: a cache that a loop carries.
    """
    if not any(eqn.primitive.name in UPDATES for eqn in eqns):
        return set()

    def passes_on(i: int) -> Any:
        """Return the operand whose memory an update or a view may share."""
        first = next(iter(eqns[i].invars), None)
        shares = not cut[i] and (eqns[i].primitive.name in UPDATES or is_view(eqns[i]))
        return first if shares and isinstance(first, Var) else None

    fused: set[Any] = set()  # values whose memory is no argument's and not of XLA's making
    for i, eqn in enumerate(eqns):
        source = passes_on(i)
        if not cut[i] and (source is None or source in fused):
            fused.update(eqn.outvars)
    found: set[int] = set()
    wanted = {v for v in returned if isinstance(v, Var)}
    for i in reversed(range(len(eqns))):
        if cut[i]:
            wanted.update(v for v in eqns[i].invars if isinstance(v, Var))
        source = passes_on(i)
        if source is not None and not wanted.isdisjoint(eqns[i].outvars):
            wanted.add(source)
            if source not in fused and eqns[i].primitive.name in UPDATES:
                found.add(i)
    return found
