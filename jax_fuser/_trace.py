"""From a jaxpr to the text of a fusion: one rule for each JAX primitive, in one table.

A rule says which op of csrc/ir/ops.def the primitive becomes, whether it only moves or renames values (a view), and
which parameters it refuses. What has no rule, or is refused, stays with XLA; `unsupported` gives the reason.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend
import numpy as np
from jax.extend.core import Literal

from jax_fuser import (
    _axes,
    _core,
    _ffi,
    _fp4,
    _random,
    _trace_folds,
    _trace_groups,
    _trace_moves,
    _trace_ops,
    _trace_updates,
)
from jax_fuser._names import NONE, Names
from jax_fuser._static_sizes import symbolic_size
from jax_fuser._trace_writer import Equation, Ids, Rule, Writer, label

# Reasons for the primitives that people meet most; any other one "has no op of its own".
_REASONS = {
    "folds by a function of its own": "reduce",
    "a matrix product": "dot_general ragged_dot_general conv_general_dilated",
    "moves data between positions": "sort tile",
    "carries a value along an axis": "reduce_window reduce_window_sum",
    "control flow; what is inside fuses by itself": "scan while cond",
    "has a derivative rule of its own, for the whole call": "custom_vjp_call custom_vjp_call_jaxpr",
    "marks what may be recomputed; what is inside fuses by itself": "remat checkpoint remat2",
    "a collective operation": "psum psum_invariant all_gather all_to_all ppermute reduce_scatter pmax pmin axis_index",
    "draws random bits: few, of another generator, or on a device's part of a mesh": "random_bits threefry2x32",
    "makes keys of random numbers, of a few words": " ".join(_random.KEY_OPS),
    "asked for by name, as a barrier": "optimization_barrier",
    "a value that a checkpoint policy may save": "name",
    "a mesh of its own": "shard_map",
}
_REASON = {name: reason for reason, names in _REASONS.items() for name in names.split()}
_FOLDS = "reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor"
REDUCTIONS = frozenset(("reduce argmax argmin " + _FOLDS).split())
SCANS = frozenset(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "jax_fuser_recurrence"])
FUSED = "jax_fuser_fused"
PRODUCT = "jax_fuser_grouped_matmul"
PACKED_PRODUCT = "jax_fuser_packed_matmul"
PRODUCTS = {PRODUCT, PACKED_PRODUCT}
PRODUCT_TAIL = "jax_fuser_grouped_tail"
# What is a custom call of ours where it is part of no fusion, as `own_call` makes it; why it never is, if so.
OWN_CALLS: dict[str, str | None] = {}
# What takes and makes 8-bit floats: casts, and what moves values.
_FLOAT8 = ("f8e4m3fn", "f8e5m2")
_MOVES = (
    "convert_element_type bitcast_convert_type select_n broadcast_in_dim reshape transpose squeeze slice rev split "
    "stack unstack concatenate pad gather dynamic_slice custom_jvp_call copy copy_p stop_gradient pvary pcast "
    "pbroadcast jax_fuser_stored"
)
_OF_FLOAT8 = frozenset(_MOVES.split())
# Powers of two, which have no zero: bytes, that are only moved.
_POWERS = "float8_e8m0fnu"
_OF_POWERS = _OF_FLOAT8 - {"convert_element_type", "pad"}
# What reads a part of a value, or puts parts together; then how many ops a program of those may have.
_SLICING = frozenset(["slice", "rev", "split", "unstack", "pad", "concatenate", "stack"])
_FEW_OPS, _OPS_OF_AN_EQUATION = 512, 8
# Primitives that only call a jaxpr, and the parameter that holds it.
CALLS: dict[str, str] = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    FUSED: "jaxpr",
}
CALLS[PRODUCT_TAIL] = "jaxpr"
# Elements of a region that may be left to XLA where there are few.
_LEAST_ON_CPUS = 512


def own_call(name: str, why_apart: str | None = None) -> jax.extend.core.Primitive:
    """Return a new primitive that is a custom call of ours; `why_apart`: why no fusion has it, where none does."""
    OWN_CALLS[name] = why_apart
    return jax.extend.core.Primitive(name)


def write_program(jaxpr: Any, name: str, names: Names = NONE) -> tuple[_axes.Program, _axes.Builder]:
    """Translate an open jaxpr into a program that makes its outputs, and the builder that knows its axes.

    `names` are the user's, in a program to be read.
    """
    writer = Writer(name, RULES)
    _write(writer, jaxpr.invars, jaxpr.eqns, names.arguments)
    results = [writer.result(var) for var in jaxpr.outvars]
    for value, result in zip(results, names.results):
        if result:
            writer.builder.set_name(value, result)
    return writer.builder.finish(results), writer.builder


def grows(invars: Sequence[Any], eqns: Sequence[Equation]) -> bool:
    """Whether slices of slices would make a program of very many more ops than equations.

    Each slice of a computed value computes it again: of values that are cut and put together in every one of n steps
    there may be 4**n.
    """
    if not any(eqn.primitive.name in _SLICING for eqn in eqns):
        return False
    writer = Writer("size", RULES, _FEW_OPS + _OPS_OF_AN_EQUATION * _count(eqns))
    try:
        _write(writer, invars, eqns)
    except _core.UserError:
        if not writer.builder.is_full:
            raise
        return True
    return False


def _count(eqns: Sequence[Equation]) -> int:
    bodies = (body_of(eqn) for eqn in eqns)
    return sum(1 if body is None else _count(body[0].eqns) for body in bodies)


def _write(writer: Writer, invars: Sequence[Any], eqns: Sequence[Equation], names: Sequence[str] = ()) -> None:
    for i, var in enumerate(invars):
        name = (names[i] if names else "") or f"x{i}"
        writer.values[var] = writer.builder.input(name, _ffi.known_dtype_name(var.aval.dtype), list(var.aval.shape))
    writer.run(eqns)


# Rules.


def _always(eqn: Equation) -> bool:
    return True


def opens(f: Callable[..., Any]) -> Rule:
    """Return the rule of a primitive that is what `f` of its operands and parameters computes."""

    def emit(w: Writer, eqn: Equation, x: Ids) -> Ids:
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        closed = jax.make_jaxpr(functools.partial(f, **eqn.params))(*avals)
        return w.call(closed.jaxpr, closed.consts, x)

    return Rule(emit, fits=False)


def _pack(w: Writer, eqn: Equation, x: Ids) -> Ids:
    codes = eqn.invars[0].aval
    stored = w.builder.pack(x[0], label(eqn))
    w.packed[stored] = x[0], jax.make_jaxpr(_fp4.pack_by_slices)(jax.ShapeDtypeStruct(codes.shape, codes.dtype))
    return [stored]


def _pointwise(op: str) -> Rule:
    return Rule(lambda w, eqn, x: [w.op(op, x, eqn)])


def _of_rounded(op: str) -> Rule:
    # The derivative of a maximum asks where it is, a loss scale whether f16 became infinite.
    return Rule(lambda w, eqn, x: [w.op(op, [w.rounded(i, eqn.invars[0].aval.dtype) for i in x], eqn)])


def _broadcast(w: Writer, eqn: Equation, x: Ids) -> Ids:
    return [w.builder.broadcast(x[0], list(eqn.params["shape"]), list(eqn.params["broadcast_dimensions"]))]


def _refuse_dynamic(eqn: Equation) -> str | None:
    return "its shape is not static" if len(eqn.invars) > 1 else None


def _iota(w: Writer, eqn: Equation, x: Ids) -> Ids:
    return [
        w.builder.iota(_ffi.known_dtype_name(eqn.params["dtype"]), list(eqn.params["shape"]), eqn.params["dimension"])
    ]


def _refuse_iota(eqn: Equation) -> str | None:
    return "its shape is not static" if eqn.invars else None


def body_of(eqn: Equation) -> tuple[Any, Sequence[Any]] | None:
    """Return the open jaxpr and the constants of a call or a custom derivative, None for other equations."""
    rule = RULES.get(eqn.primitive.name)
    if rule is None or rule.body is None:
        return None
    body = eqn.params[rule.body]
    return getattr(body, "jaxpr", body), getattr(body, "consts", ())


def _open(w: Writer, eqn: Equation, x: Ids) -> Ids:
    body = body_of(eqn)
    assert body is not None
    return w.call(*body, x)


def _refuse_body(eqn: Equation) -> str | None:
    body = body_of(eqn)
    assert body is not None
    if any(np.ndim(c) for c in body[1]):
        return "its body holds an array constant"
    for inner in body[0].eqns:
        reason = unsupported(inner)
        if reason is not None:
            return f"its body has {inner.primitive.name}: {reason}"
    return None


def own_placement(eqn: Equation) -> str | None:
    """Return why a call must stay a call: shardings, layouts, donation or options that belong to it."""
    p = eqn.params
    if "program" in p:
        return "a fused call with a schedule of its own"
    shardings = (*p.get("in_shardings", ()), *p.get("out_shardings", ()))
    if any(type(s).__name__ != "UnspecifiedValue" for s in shardings):
        return "a jit with shardings of its own"
    if any(x is not None for x in (*p.get("in_layouts", ()), *p.get("out_layouts", ()))):
        return "a jit with layouts of its own"
    if any(p.get("donated_invars", ())):
        return "a jit that donates its arguments"
    if p.get("compiler_options_kvs"):
        return "a jit with compiler options of its own"
    return None


def _refuse_call(eqn: Equation) -> str | None:
    return own_placement(eqn) or _refuse_body(eqn)


_SAME_NAME = (
    "neg abs sign square population_count floor ceil exp exp2 expm1 log log2 log1p logistic sqrt rsqrt cbrt sin "
    "cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erf_inv lgamma digamma add sub mul div rem max "
    "min atan2 nextafter shift_left shift_right_logical shift_right_arithmetic lt le gt ge"
)
_OTHER_NAME = {"add_any": "add", "not": "not_", "and": "and_", "or": "or_", "xor": "xor_", "clz": "count_leading_zeros"}
_SAME_VALUE = "copy copy_p stop_gradient pvary pcast pbroadcast jax_fuser_stored"

RULES: dict[str, Rule] = {
    **{name: _pointwise(name) for name in _SAME_NAME.split()},
    **{name: _pointwise(op) for name, op in _OTHER_NAME.items()},
    **{name: Rule(lambda w, eqn, x: x, is_view=_always) for name in _SAME_VALUE.split()},
    **{name: Rule(_open, refuse=_refuse_call, body=body, fits=False) for name, body in CALLS.items()},
    **{name: Rule(_trace_folds.reduction(name), refuse=_trace_folds.refuse, fits=False) for name in _FOLDS.split()},
    **{name: _of_rounded(name) for name in ("eq", "ne", "is_finite")},
    "cumsum": Rule(_trace_folds.scan("scan_sum")),
    "cumprod": Rule(_trace_folds.scan("scan_prod")),
    "cummax": Rule(_trace_folds.scan("scan_max")),
    "cummin": Rule(_trace_folds.scan("scan_min")),
    "cumlogsumexp": Rule(_trace_folds.scan("scan_logsumexp")),
    "jax_fuser_recurrence": Rule(_trace_folds.recurrence),
    "top_k": Rule(_trace_folds.top_k, refuse=_trace_folds.refuse_top_k, fits=False),
    "argmax": Rule(_trace_folds.argument("reduce_max"), refuse=_trace_folds.refuse_argument, fits=False),
    "argmin": Rule(_trace_folds.argument("reduce_min"), refuse=_trace_folds.refuse_argument, fits=False),
    "custom_jvp_call": Rule(_open, refuse=_refuse_body, body="call_jaxpr", fits=False),
    "jax_fuser_known": Rule(lambda w, eqn, x: x[-eqn.params["count"] :], is_view=_always, fits=False),
    "jax_fuser_reciprocal": _pointwise("reciprocal"),
    "jax_fuser_e2m1": _pointwise("e2m1"),
    "jax_fuser_pack": Rule(_pack, fits=False),
    "integer_pow": Rule(_trace_ops.integer_pow),
    "pow": Rule(_trace_ops.power),
    "one_minus_square": Rule(_trace_ops.one_minus_square),
    "polynomial": Rule(_trace_ops.polynomial),
    "round": Rule(_trace_ops.round_),
    "select_n": Rule(_trace_ops.select_n),
    "clamp": Rule(lambda w, eqn, x: [w.op("clamp", x, eqn)], refuse=_trace_ops.refuse_clamp),
    "convert_element_type": Rule(_trace_ops.convert, refuse=_trace_ops.refuse_convert, is_view=_trace_ops.widens),
    "bitcast_convert_type": Rule(_trace_ops.bitcast, refuse=_trace_ops.refuse_bitcast, is_view=_always),
    "reduce_precision": Rule(
        _trace_ops.reduce_precision, refuse=_trace_ops.refuse_precision, is_view=_trace_ops.keeps_precision
    ),
    "broadcast_in_dim": Rule(_broadcast, refuse=_refuse_dynamic, is_view=_always),
    "iota": Rule(_iota, refuse=_refuse_iota, is_view=_always),
    "reshape": Rule(_trace_moves.reshape, refuse=_trace_moves.refuse_reshape, is_view=_always),
    "transpose": Rule(_trace_moves.transpose, is_view=_always),
    "squeeze": Rule(_trace_moves.squeeze, is_view=_always),
    "slice": Rule(_trace_moves.slice, is_view=_always),
    "rev": Rule(_trace_moves.rev, is_view=_always),
    "concatenate": Rule(_trace_moves.concatenate, fits=False),
    PRODUCT: Rule(_trace_ops.grouped_product, refuse=_trace_ops.refuse_product, fits=False),
    "jax_fuser_search": Rule(_trace_moves.search, refuse=_trace_moves.refuse_taking, fits=False),
    "jax_fuser_spread_groups": Rule(_trace_groups.spread_groups, refuse=_trace_groups.refuse, fits=False),
    "jax_fuser_sum_groups": Rule(_trace_groups.sum_groups, refuse=_trace_groups.refuse, fits=False),
    "jax_fuser_multiply_groups": Rule(_trace_groups.multiply_groups, refuse=_trace_groups.refuse, fits=False),
    "jax_fuser_extreme_groups": Rule(_trace_groups.extreme_groups, refuse=_trace_groups.refuse, fits=False),
    "jax_fuser_extreme_hits": Rule(_trace_groups.extreme_hits, refuse=_trace_groups.refuse, fits=False),
    "gather": Rule(_trace_moves.gather, refuse=_trace_moves.refuse_gather, fits=False),
    "dynamic_slice": Rule(_trace_moves.dynamic_slice, refuse=_trace_moves.refuse_taking, fits=False),
    "dynamic_update_slice": Rule(_trace_updates.dynamic_update_slice, refuse=_trace_updates.refuse, fits=False),
    **{name: Rule(_trace_updates.scatter, refuse=_trace_updates.refuse, fits=False) for name in _trace_updates.JOINS},
    "pad": Rule(_trace_moves.pad, is_view=_trace_moves.pads_by_a_constant, fits=False),
    "split": Rule(_trace_moves.split, is_view=_always),
    "stack": Rule(_trace_moves.stack, fits=False),
    "unstack": Rule(_trace_moves.unstack, is_view=_always),
}


def unsupported(eqn: Equation) -> str | None:
    """Return why an equation cannot be part of a fusion, or None where it can."""
    name = eqn.primitive.name
    rule = RULES.get(name)
    if rule is None:
        return _REASON.get(name) or OWN_CALLS.get(name) or "has no op of its own"
    if eqn.effects:
        return "has side effects"
    size = symbolic_size(*(getattr(atom.aval, "shape", ()) for atom in (*eqn.invars, *eqn.outvars)))
    if size is not None:
        return f"has the size {size}, which only a call of the exported program knows"
    for atom in (*eqn.invars, *eqn.outvars):
        dtype = getattr(atom.aval, "dtype", None)
        own_name = None if dtype is None else _ffi.dtype_name(dtype)
        if own_name is None:
            return f"works on {dtype if dtype is not None else atom.aval}"
        moves = _OF_POWERS if str(dtype) == _POWERS else _OF_FLOAT8 if own_name in _FLOAT8 else None
        if moves is not None and (name not in moves and name not in CALLS):
            return f"computes with {dtype}"
        if isinstance(atom, Literal) and str(dtype) == _POWERS:
            return f"holds a constant of {dtype}"
        if isinstance(atom, Literal) and np.ndim(atom.val):
            return "holds an array constant"
    if eqn.ctx.compute_type is not None or eqn.ctx.xla_metadata:
        return "runs under compute_on or xla_metadata"
    # Kernels compute to a few units in the last place, which is what JAX's modes ask for.
    if not isinstance(eqn.params.get("accuracy"), (jax.lax.AccuracyMode, type(None))):
        return "asks for a tolerance"
    return rule.refuse(eqn)


def is_view(eqn: Equation) -> bool:
    """Whether a supported equation computes nothing: it moves axes, repeats, renames or widens a value."""
    return RULES[eqn.primitive.name].is_view(eqn)


def is_elementwise(eqn: Equation) -> bool:
    """Whether each element of an equation's result is a function of few elements of its operands; views are, too."""
    rule, body = RULES.get(eqn.primitive.name), body_of(eqn)
    if body is not None:
        return all(map(is_elementwise, body[0].eqns))
    return rule is not None and rule.fits and eqn.primitive.name not in SCANS


def reductions(jaxpr: Any) -> list[str]:
    """Return the names of the reductions and scans of an open jaxpr and of the bodies it calls."""
    found: list[str] = []
    for eqn in jaxpr.eqns:
        body = body_of(eqn)
        if body is not None:
            found += reductions(body[0])
        elif eqn.primitive.name in REDUCTIONS | SCANS | {"top_k"}:
            found.append(eqn.primitive.name)
    return found


def has_product(jaxpr: Any) -> bool:
    """Whether an open jaxpr has a grouped product among its own equations."""
    return any(eqn.primitive.name in PRODUCTS for eqn in jaxpr.eqns)


def needs_kernel(jaxpr: Any) -> bool:
    """Whether an open jaxpr has any array of more than one element: less is no work for a kernel."""
    return _most_elements(jaxpr) > 1


def is_small(params: Any, platform: str) -> bool:
    """Whether a fused equation with these parameters has so few elements that it is no kernel on a platform."""
    least = params["min_elements"]
    if platform == "cpu":  # a kernel costs no launch, but 0.1 s to compile
        least = min(least, _LEAST_ON_CPUS)
    return "program" not in params and _most_elements(params["jaxpr"].jaxpr) < least


def _most_elements(jaxpr: Any) -> int:
    values = [*jaxpr.invars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)]
    return max((math.prod(v.aval.shape) for v in values), default=0)
