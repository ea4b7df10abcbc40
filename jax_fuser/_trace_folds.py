"""Rules of jax_fuser/_trace.py for folds of axes and scans along one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_fuser import _ffi, _top_k

if TYPE_CHECKING:
    from jax_fuser._trace_writer import Writer

Ids = list[int]
Equation = Any
Emit = Callable[["Writer", Equation, Ids], Ids]


def reduction(op: str) -> Emit:
    def emit(w: Writer, eqn: Equation, x: Ids) -> Ids:
        dtype = eqn.outvars[0].aval.dtype
        operand = w.rounded(x[0], dtype) if op in ("reduce_max", "reduce_min") else x[0]
        return [w.builder.reduce(op, operand, sorted(eqn.params["axes"]), dtype, w.label(eqn))]

    return emit


def scan(op: str) -> Emit:
    def emit(w: Writer, eqn: Equation, x: Ids) -> Ids:
        p, dtype = eqn.params, eqn.outvars[0].aval.dtype
        operand = w.rounded(x[0], dtype) if op in ("scan_max", "scan_min") else x[0]
        return [w.builder.scan(op, operand, p["axis"], p["reverse"], w.label(eqn))]

    return emit


def recurrence(w: Writer, eqn: Equation, x: Ids) -> Ids:
    p = eqn.params
    op = "scan_linear_resets" if p["resets"] else "scan_linear"
    return [w.builder.scan(op, x[0], p["axis"], p["reverse"], w.label(eqn), x[1])]


def argument(op: str) -> Emit:
    def emit(w: Writer, eqn: Equation, x: Ids) -> Ids:
        # The first index at which the operand is its maximum; a NaN is one.
        aval, result = eqn.invars[0].aval, eqn.outvars[0].aval
        (axis,) = eqn.params["axes"]
        extent = aval.shape[axis]
        if extent == 1:
            return [w.full(result, 0)]
        value, shape, name = w.rounded(x[0], aval.dtype), list(aval.shape), w.label(eqn)
        best = w.builder.reduce(op, value, [axis], aval.dtype, name)
        kept = [i for i in range(len(shape)) if i != axis]
        is_best = w.op("eq", [value, w.builder.broadcast(best, shape, kept)], eqn)
        if np.dtype(aval.dtype).kind not in "iub":  # numpy knows bf16 as no float
            is_best = w.op("or_", [is_best, w.op("ne", [value, value], eqn)], eqn)
        index = np.dtype("int32" if extent < 2**31 else "int64")
        none = w.builder.broadcast(w.constant(index, extent), shape, [])
        at = w.op("select", [is_best, w.builder.iota(_ffi.known_dtype_name(index), shape, axis), none], eqn)
        return [
            w.builder.convert(
                w.builder.reduce("reduce_min", at, [axis], index, name), _ffi.known_dtype_name(result.dtype), name
            )
        ]

    return emit


def top_k(w: Writer, eqn: Equation, x: Ids) -> Ids:
    p, index = eqn.params, eqn.outvars[1].aval.dtype
    return [*_top_k.emit(w, eqn.invars[0].aval, p["axis"], p["k"], x[0], index, w.label(eqn))]


def refuse_top_k(eqn: Equation) -> str | None:
    return _top_k.refuse(eqn.invars[0].aval, eqn.params["axis"], eqn.params["k"])


def refuse(eqn: Equation) -> str | None:
    return "asks for a sharding of its result" if eqn.params.get("out_sharding") is not None else None


def refuse_argument(eqn: Equation) -> str | None:
    return refuse(eqn) or ("folds no element" if 0 in eqn.invars[0].aval.shape else None)
