"""Rules of jax_fuser/_trace.py for what moves elements: views, slices, padding, concatenations and gathers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import Literal

from jax_fuser import _axes

if TYPE_CHECKING:
    from jax_fuser._trace_writer import Writer

Ids = list[int]
Equation = Any


def reshape(w: Writer, eqn: Equation, x: Ids) -> Ids:
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if [n for n in old if n != 1] != [n for n in new if n != 1]:
        return [w.builder.reshape(x[0], new)]
    # Drop the ones of the operand, then insert those of the result.
    core = w.builder.squeeze(x[0], [i for i, n in enumerate(old) if n == 1])
    return [w.builder.broadcast(core, list(new), [i for i, n in enumerate(new) if n != 1])]


def refuse_reshape(eqn: Equation) -> str | None:
    if len(eqn.invars) > 1 or eqn.params["dimensions"] is not None:
        return "not a plain reshape"
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return None if _axes.cuts_evenly(old, new) else f"cuts axes unevenly, {old} to {new}"


def transpose(w: Writer, eqn: Equation, x: Ids) -> Ids:
    return [w.builder.transpose(x[0], list(eqn.params["permutation"]))]


def slice(w: Writer, eqn: Equation, x: Ids) -> Ids:
    counts = eqn.outvars[0].aval.shape
    strides = eqn.params["strides"] or (1,) * len(counts)
    strides = [s if n > 1 else 1 for s, n in zip(strides, counts)]  # may be longer than the axis
    return [w.builder.slice(x[0], eqn.params["start_indices"], strides, counts)]


def rev(w: Writer, eqn: Equation, x: Ids) -> Ids:
    counts = eqn.outvars[0].aval.shape
    steps = [-1 if axis in eqn.params["dimensions"] else 1 for axis in range(len(counts))]
    starts = [max(n - 1, 0) if step < 0 else 0 for n, step in zip(counts, steps)]
    return [w.builder.slice(x[0], starts, steps, counts)]


def split(w: Writer, eqn: Equation, x: Ids) -> Ids:
    axis, begin, parts = eqn.params["axis"], 0, []
    for var in eqn.outvars:
        starts = [0] * len(var.aval.shape)
        starts[axis] = begin
        parts.append(w.builder.slice(x[0], starts, [1] * len(starts), var.aval.shape))
        begin += var.aval.shape[axis]
    return parts


def pad(w: Writer, eqn: Equation, x: Ids) -> Ids:
    value, shape = x[0], list(eqn.invars[0].aval.shape)
    low, high, between = map(list, zip(*eqn.params["padding_config"])) if shape else ([], [], [])
    for axis, more in enumerate(between):
        if more == 0 or shape[axis] == 0:
            continue
        # Each element becomes as many, of which it is one: the axis of these is padded, and goes into the other.
        before = low[axis] if 0 <= low[axis] <= more else 0
        apart = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
        value = w.builder.broadcast(value, apart, [i for i in range(len(apart)) if i != axis + 1])
        first, last = ([n if i == axis + 1 else 0 for i in range(len(apart))] for n in (before, more - before))
        apart[axis + 1] = 1 + more
        value = w.builder.pad(value, first, last, x[1], apart)
        shape[axis] *= 1 + more
        value = w.builder.reshape(value, shape)
        low[axis], high[axis] = low[axis] - before, high[axis] - (more - before)
    if not any((*low, *high)):
        return [value]
    return [w.builder.pad(value, low, high, x[1], eqn.outvars[0].aval.shape)]


def pads_by_a_constant(eqn: Equation) -> bool:
    return isinstance(eqn.invars[1], Literal)


def gather(w: Writer, eqn: Equation, x: Ids) -> Ids:
    aval, indices, out = eqn.invars[0].aval, eqn.invars[1].aval, eqn.outvars[0].aval
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    batch = [i for i in range(len(out.shape)) if i not in numbers.offset_dims]
    dims = [-1] * len(aval.shape)
    for axis, dim in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims):
        dims[axis] = batch[dim]
    left = [a for a in range(len(dims)) if a not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)]
    for axis, dim in zip(left, numbers.offset_dims):
        dims[axis] = dim
    taken, inside = [], None
    for k, axis in enumerate(numbers.start_index_map):
        last = len(indices.shape) - 1
        index = w.builder.slice(x[1], [0] * last + [k], [1] * (last + 1), [*indices.shape[:-1], 1])
        index = w.builder.squeeze(index, [last])
        if eqn.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP:
            bound = min(aval.shape[axis] - sizes[axis], np.iinfo(indices.dtype).max)
            flat = indices.update(shape=indices.shape[:-1])
            within = w.op("le", [index, w.full(flat, bound)], eqn)
            if np.issubdtype(indices.dtype, np.signedinteger):
                within = w.op("and_", [within, w.op("ge", [index, w.full(flat, 0)], eqn)], eqn)
            inside = within if inside is None else w.op("and_", [inside, within], eqn)
        taken.append(w.builder.broadcast(index, list(out.shape), batch))
    result = w.builder.take(x[0], taken, numbers.start_index_map, [int(d) for d in dims], out.shape)
    if inside is None:
        return [result]
    inside = w.builder.broadcast(inside, list(out.shape), batch)
    return [w.op("select", [inside, result, w.full(out, fill_value(eqn))], eqn)]


def search(w: Writer, eqn: Equation, x: Ids) -> Ids:
    return [w.builder.search(x[0], x[1], eqn.params["side"], eqn.params["along"], w.label(eqn))]


def fill_value(eqn: Equation) -> Any:
    value, dtype = eqn.params["fill_value"], eqn.outvars[0].aval.dtype
    if value is not None:
        return value
    if jax.numpy.issubdtype(dtype, np.inexact):
        return np.nan
    if dtype == np.bool_:
        return True
    return np.iinfo(dtype).min if np.issubdtype(dtype, np.signedinteger) else np.iinfo(dtype).max


def refuse_gather(eqn: Equation) -> str | None:
    modes = jax.lax.GatherScatterMode
    if eqn.params["mode"] not in (modes.CLIP, modes.FILL_OR_DROP, modes.PROMISE_IN_BOUNDS):
        return f"gathers in mode {eqn.params['mode']}"
    return refuse_taking(eqn) or (None if eqn.params["dimension_numbers"].start_index_map else "has no index")


def dynamic_slice(w: Writer, eqn: Equation, x: Ids) -> Ids:
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    axes = [a for a, (n, size) in enumerate(zip(shape, sizes)) if n != size]
    if not axes:
        return [x[0]]
    starts = [w.builder.broadcast(x[1 + a], list(sizes), []) for a in axes]
    return [w.builder.take(x[0], starts, axes, range(len(shape)), sizes)]


def refuse_taking(eqn: Equation) -> str | None:
    return "reads no element" if 0 in (*eqn.invars[0].aval.shape, *eqn.outvars[0].aval.shape) else None


def concatenate(w: Writer, eqn: Equation, x: Ids) -> Ids:
    return [w.builder.concat(x, eqn.params["dimension"], eqn.outvars[0].aval.shape)]


def stack(w: Writer, eqn: Equation, x: Ids) -> Ids:
    to, axis = eqn.outvars[0].aval.shape, eqn.params["axis"]
    one, dims = [1 if i == axis else n for i, n in enumerate(to)], [i for i in range(len(to)) if i != axis]
    return [w.builder.concat([w.builder.broadcast(v, one, dims) for v in x], axis, to)]


def unstack(w: Writer, eqn: Equation, x: Ids) -> Ids:
    shape, axis = eqn.invars[0].aval.shape, eqn.params["axis"]
    one = [1 if i == axis else n for i, n in enumerate(shape)]
    starts = ([n if i == axis else 0 for i in range(len(shape))] for n in range(shape[axis]))
    return [w.builder.squeeze(w.builder.slice(x[0], at, [1] * len(shape), one), [axis]) for at in starts]


def squeeze(w: Writer, eqn: Equation, x: Ids) -> Ids:
    rank = len(eqn.invars[0].aval.shape)
    return [w.builder.squeeze(x[0], sorted(d % rank for d in eqn.params["dimensions"]))]
