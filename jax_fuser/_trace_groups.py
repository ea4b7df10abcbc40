"""Rules of jax_fuser/_trace.py for groups of rows: per-group values to rows, and rows folded for each group.

Both ops state the group of each row twice, as its id and as the first row and the number of rows of each group. Values
spread to rows are read by id; folds go over the rows of each group, where a value that was spread by the same layout is
the group's own value and no row of it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jax_fuser import _trace_moves

if TYPE_CHECKING:
    from jax_fuser._trace_writer import Writer

Ids = list[int]
Equation = Any


def spread_groups(w: Writer, eqn: Equation, x: Ids) -> Ids:
    return [_spread(w, eqn, x, eqn.outvars[0].aval)]


def _spread(w: Writer, eqn: Equation, x: Ids, out: Any) -> int:
    """Return per-group values at the rows; `eqn` has the ids and the extents as operands 1 and 3."""
    at, to = len(eqn.invars[1].aval.shape) - 1, list(out.shape)
    index = w.builder.broadcast(x[1], to, range(at + 1))
    dims = [-1 if a == at else a for a in range(len(to))]
    taken = w.builder.take(x[0], [index], [at], dims, to)
    w.spread.setdefault((x[1], x[2], x[3]), {})[taken] = x[0]
    return w.op("select", [w.builder.broadcast(_owned(w, eqn, x[1]), to, range(at + 1)), taken, w.full(out, 0)], eqn)


def _owned(w: Writer, eqn: Equation, ids: int) -> int:
    """Return which rows belong to a group."""
    return w.op("lt", [ids, w.full(eqn.invars[1].aval, eqn.invars[3].aval.shape[-1])], eqn)


def sum_groups(w: Writer, eqn: Equation, x: Ids) -> Ids:
    return [_fold(w, eqn, "reduce_sum", x)]


def multiply_groups(w: Writer, eqn: Equation, x: Ids) -> Ids:
    return [_fold(w, eqn, "reduce_prod", x)]


def extreme_groups(w: Writer, eqn: Equation, x: Ids) -> Ids:
    dtype, largest = eqn.outvars[0].aval.dtype, eqn.params["largest"]
    if dtype == np.bool_:
        return [_fold(w, eqn, "reduce_or" if largest else "reduce_and", x)]
    return [_fold(w, eqn, "reduce_max" if largest else "reduce_min", [w.rounded(x[0], dtype), *x[1:]])]


def extreme_hits(w: Writer, eqn: Equation, x: Ids) -> Ids:
    *of_groups, rows = x
    out = eqn.invars[4].aval
    rows, found = (w.rounded(value, out.dtype) for value in (rows, _spread(w, eqn, of_groups, out)))
    hit = w.op("or_", [w.op("eq", [rows, found], eqn), w.op("ne", [found, found], eqn)], eqn)
    at = len(eqn.invars[1].aval.shape)
    owned = w.builder.broadcast(_owned(w, eqn, of_groups[1]), list(out.shape), range(at))
    return [w.op("and_", [hit, owned], eqn)]


def _fold(w: Writer, eqn: Equation, op: str, x: Ids) -> int:
    rows, ids, starts, extents = x
    shape = eqn.invars[3].aval.shape
    own = w.builder.iota("s32", list(shape), len(shape) - 1)
    always = w.builder.broadcast(w.constant(np.bool_, True), list(shape), [])
    known = {ids: own, _owned(w, eqn, ids): always, **w.spread.get((ids, starts, extents), {})}
    for at_rows, of_groups in known.items():
        w.builder.note_groups(at_rows, of_groups, starts, extents)
    return w.builder.fold_groups(op, rows, starts, extents, w.label(eqn))


refuse = _trace_moves.refuse_taking
