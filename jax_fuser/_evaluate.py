"""A fusion in plain jnp: the truth that kernels are compared with, and what JAX differentiates and batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_fuser import _arguments, _core, _evaluate_nested, _ffi, _fp4, _ir_text, _words
from jax_fuser._core import Fusion, UserError
from jax_fuser._recurrence import recurrence
from jax_fuser._row_groups import spans
from jax_fuser._search import search

# Low-precision floats are computed in f32 and rounded where they are stored or converted, as in kernels.
_COMPUTED = dict.fromkeys(("bf16", "f16", "f8e4m3fn", "f8e5m2"), jnp.float32)
_SAME_NAME = (
    "neg sign square population_count floor ceil is_finite exp exp2 expm1 log log1p logistic sqrt rsqrt cbrt sin "
    "cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erf_inv lgamma digamma add sub mul div rem max "
    "min pow atan2 shift_left shift_right_logical shift_right_arithmetic eq ne lt le gt ge select clamp"
)
_POINTWISE: dict[str, Callable[..., Any]] = {
    **{name: getattr(lax, name) for name in _SAME_NAME.split()},
    "abs": lambda x: x if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else lax.abs(x),
    "count_leading_zeros": lax.clz,
    "not_": lax.bitwise_not,
    "reciprocal": lambda x: 1 / x,
    "e2m1": _fp4.to_e2m1_by_sums,
    "log2": jnp.log2,
    "logaddexp": jnp.logaddexp,
    "and_": lax.bitwise_and,
    "or_": lax.bitwise_or,
    "xor_": lax.bitwise_xor,
    "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
}
_JOIN: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": lax.add,
    "reduce_prod": lax.mul,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_and": lax.bitwise_and,
    "reduce_or": lax.bitwise_or,
    "reduce_xor": lax.bitwise_xor,
}

_SCAN: dict[str, Callable[..., Any]] = {
    "scan_sum": lax.cumsum,
    "scan_prod": lax.cumprod,
    "scan_max": lax.cummax,
    "scan_min": lax.cummin,
    "scan_logsumexp": lax.cumlogsumexp,
    "scan_linear": recurrence,
    "scan_linear_resets": functools.partial(recurrence, resets=True),
}


def evaluate(fusion: Fusion, *arrays: Any) -> list[jax.Array]:
    """Compute a fusion op by op with `jax.numpy`, without a kernel: what `run` must give.

    bf16 and f16 values are computed in f32 and rounded where they are stored or converted. It works under every JAX
    transform and differentiates as its ops do.

    Args:
      fusion: what to compute.
      arrays: one for each of fusion.inputs, of its shape and dtype.

    Returns:
      One array for each of fusion.outputs, and one for neighbours among them that `place` makes parts of it.

    Raises:
      TypeError: for another number of arrays.
      ValueError: for an array of another shape or dtype.
      UserError: for an op that only kernels have, and for 64-bit values (those of `lax.top_k`, say) without
        `jax_enable_x64`: JAX would cut them to 32 bits.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_fuser as jf
      >>> fusion = jf.ir.trace(lambda x: jnp.tanh(x) + 1, jnp.ones(3))
      >>> jf.ir.evaluate(fusion, jnp.zeros(3))
      [Array([1., 1., 1.], dtype=float32)]
    """
    operands = checked_operands("evaluate", fusion, arrays)
    for value in fusion.values:
        wide = _ffi.dtype_named(fusion.dtype(value))
        if jax.dtypes.canonicalize_dtype(wide) != wide:
            raise UserError(
                f"evaluate: {value} of {fusion.name} is {fusion.dtype(value)}, which JAX computes with jax_enable_x64 "
                "alone; run the fusion instead"
            )
    values = {name: _computed(x, fusion.dtype(name)) for name, x in zip(fusion.inputs, operands)}
    ragged: dict[str, tuple[_ir_text.Ragged, ...]] = {}
    for op in _ir_text.ops(fusion):
        operands, ragged[op.result] = [values[v] for v in op.operands], op.ragged
        nested = ragged.get(op.operands[0], ()) if op.operands else ()
        extents = [values[one.extents] for one in nested]
        if op.kind == "partition":
            values[op.result] = _evaluate_nested.partition(op, operands[0], operands[1::2], operands[2::2])
            continue
        if op.kind == "combine":
            values[op.result] = _evaluate_nested.combine(op, nested, operands[0], operands[1:], extents)
            continue
        if nested and op.kind in _JOIN:
            exists = _evaluate_nested.mask(nested, operands[0].shape, extents)
            operands[0] = jnp.where(exists, operands[0], _neutral(op.kind, operands[0].dtype))
        values[op.result] = _op(fusion, op, operands)
    return [_joined(fusion, values, *result) for result in _core.results(fusion)]


def _joined(fusion: Fusion, values: dict[str, Any], parts: list[str], shape: list[int], _: int) -> jax.Array:
    """Return an array of the results, of its parts side by side where `place` makes values some of it."""
    own = fusion.shape(parts[0])
    axis = next((a for a, (n, whole) in enumerate(zip(own, shape)) if n != whole), 0)
    whole = values[parts[0]] if len(parts) == 1 else lax.concatenate([values[v] for v in parts], axis)
    dtype = fusion.dtype(parts[0])
    return _fp4.pack(whole) if dtype == "u4" else whole.astype(_ffi.dtype_named(dtype))


def checked_operands(function: str, fusion: Fusion, arrays: Sequence[Any]) -> list[jax.Array]:
    """Return the arguments as arrays of the types of the fusion's inputs, or raise."""
    if not isinstance(fusion, Fusion):
        raise TypeError(f"{function}: expected a Fusion, got {type(fusion).__name__}; make one with trace or Builder")
    if len(arrays) != len(fusion.inputs):
        names = ", ".join(fusion.inputs)
        raise TypeError(f"{function}: {fusion.name} takes {len(fusion.inputs)} arrays ({names}), got {len(arrays)}")
    operands = [_arguments.array(function, f"input {name}", a) for name, a in zip(fusion.inputs, arrays)]
    for name, operand in zip(fusion.inputs, operands):
        want = (fusion.dtype(name), tuple(fusion.shape(name)))
        got = (_ffi.dtype_name(operand.dtype) or str(operand.dtype), operand.shape)
        if want != got:
            raise ValueError(f"{function}: input {name} is {_words.array(*want)}, got {_words.array(*got)}")
    for parts, shape, missing in _core.results(fusion):
        if missing:
            part, whole = (_words.array(fusion.dtype(parts[0]), s) for s in (fusion.shape(parts[0]), shape))
            raise UserError(
                f"{function}: {parts[0]} ({part}) of {fusion.name} is a part of {whole}, of which other kernels store "
                f"the rest; pass the fusion that it was proposed for to {function}"
            )
    return operands


def _computed(x: Any, dtype: str) -> Any:
    return x.astype(_COMPUTED[dtype]) if dtype in _COMPUTED else x


def _op(fusion: Fusion, op: _ir_text.Op, x: list[Any]) -> Any:
    dtype = _ffi.dtype_named(op.dtype)
    attributes = op.attributes
    if op.kind in _POINTWISE:
        return _POINTWISE[op.kind](*x)
    if op.kind in _JOIN:
        return _reduce(op, x[0])
    if op.kind in _SCAN:
        return _SCAN[op.kind](*x, axis=int(attributes["axis"]), reverse="reverse" in attributes)
    if op.kind == "grouped_matmul":
        return _computed(
            _grouped(op, [v.astype(_ffi.dtype_named(fusion.dtype(n))) for v, n in zip(x, op.operands)]), op.dtype
        )
    match op.kind:
        case "constant":
            return _computed(lax.full((), _constant(attributes["value"], dtype)), op.dtype)
        case "iota":
            return _computed(lax.broadcasted_iota(dtype, op.shape, attributes["dims"][0]), op.dtype)
        case "broadcast":
            return lax.broadcast_in_dim(x[0], op.shape, attributes["dims"])
        case "transpose":
            return lax.transpose(x[0], attributes["dims"])
        case "squeeze":
            return lax.squeeze(x[0], attributes["dims"])
        case "slice":
            return _slice(x[0], attributes, op.shape)
        case "pad":
            ends = zip(attributes["low"], attributes["counts"], op.shape)
            inside = _slice(x[0], attributes, attributes["counts"])
            return lax.pad(inside, jnp.zeros((), inside.dtype), [(low, n - low - count, 0) for low, count, n in ends])
        case "take":
            return _take(x, attributes, op.shape)
        case "stretch":
            return jnp.broadcast_to(x[0], op.shape)
        case "search":
            return search(x[0], x[1], attributes["side"], attributes.get("dims", []))
        case "reshape":
            return x[0].reshape(op.shape)
        case "copy":
            return x[0]
        case "place":
            return x[0]  # its concat, or the outputs beside it, say where it goes
        case "concat":
            return lax.concatenate(x, attributes["dims"][0])
        case "convert":
            return _computed(x[0].astype(dtype), op.dtype)
        case "bitcast":
            stored = x[0].astype(_ffi.dtype_named(fusion.dtype(op.operands[0])))
            return _computed(lax.bitcast_convert_type(stored, dtype), op.dtype)
        case "nextafter":
            return _computed(lax.nextafter(*(v.astype(dtype) for v in x)), op.dtype)
    raise UserError(
        f"evaluate: {op.kind}, which makes {op.result} of {fusion.name}, has no rule; run the fusion instead"
    )


def _slice(x: Any, attributes: Any, counts: Sequence[int]) -> Any:
    starts, strides = attributes["starts"], attributes["strides"]
    backwards = [a for a, step in enumerate(strides) if step < 0]
    lasts = [s + max(n - 1, 0) * step for s, n, step in zip(starts, counts, strides)]
    firsts = [min(ends) for ends in zip(starts, lasts)]
    ends = [max(a, b) + 1 if n else low for a, b, n, low in zip(starts, lasts, counts, firsts)]
    return lax.rev(lax.slice(x, firsts, ends, [abs(step) for step in strides]), backwards)


def _take(x: list[Any], attributes: Any, shape: Sequence[int]) -> Any:
    """Read x[0] where x[1:] and the result's own indices say."""
    limits = dict(zip(attributes["axes"], zip(x[1:], attributes["limits"])))
    places = []
    for axis, (dim, start, stride) in enumerate(zip(attributes["dims"], attributes["starts"], attributes["strides"])):
        place = jnp.full(shape, start)
        if dim >= 0:
            place += stride * lax.broadcasted_iota(place.dtype, shape, dim)
        if axis in limits:
            index, limit = limits[axis]
            place += jnp.clip(index, 0, min(limit, jnp.iinfo(index.dtype).max)).astype(place.dtype)
        places.append(place)
    return x[0].at[tuple(places)].get(mode="promise_in_bounds")


def _constant(text: str, dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        bits = text.removeprefix("nan:")
        number = float(text) if bits == text else np.uint64(int(bits, 16)).view(np.float64)
        return np.asarray(number).astype(dtype)
    # Two's complement: an unsigned value may be written as a negative one.
    return np.asarray(int(text), np.int64).astype(dtype)


def _reduce(op: _ir_text.Op, x: Any) -> Any:
    dims, parts = list(op.attributes["dims"]), int(op.attributes.get("parts", 0))
    nothing = _neutral(op.kind, x.dtype)
    if parts:
        axis = dims[0]
        run = -(-x.shape[axis] // parts)
        padding = [(0, run * parts - n if i == axis else 0, 0) for i, n in enumerate(x.shape)]
        x = lax.pad(x, nothing, padding)
        turn = "in_turn" in op.attributes
        x = x.reshape(*x.shape[:axis], *((run, parts) if turn else (parts, run)), *x.shape[axis + 1 :])
        dims = [axis if turn else axis + 1, *(d + 1 for d in dims[1:])]
    return lax.reduce(x, nothing, _JOIN[op.kind], dims)


def _neutral(kind: str, dtype: Any) -> Any:
    """Return what a fold leaves unchanged; `lax.reduce` looks at its value."""
    if kind in ("reduce_max", "reduce_min"):
        if jnp.issubdtype(dtype, jnp.floating):
            return np.asarray(-np.inf if kind == "reduce_max" else np.inf, dtype)
        if dtype == np.bool_:
            return np.asarray(kind == "reduce_min")
        info = jnp.iinfo(dtype)
        return np.asarray(info.min if kind == "reduce_max" else info.max, dtype)
    if kind == "reduce_and":
        return np.bitwise_not(np.zeros((), dtype))
    return np.asarray(kind == "reduce_prod", dtype)


def _grouped(op: _ir_text.Op, x: list[Any]) -> Any:
    """A grouped product as one product for each group, between zeros where the rows are of other groups."""
    lhs, rhs, extents = x[:3]
    starts, extents = spans(extents, x[3] if len(x) == 4 else None, lhs.shape[0])
    mode, groups, rows = op.attributes["mode"], extents.shape[0], jnp.arange(lhs.shape[0])
    if "transpose_rhs" in op.attributes:
        rhs = rhs.swapaxes(1, 2)
    masks = [(rows >= starts[g]) & (rows < starts[g] + extents[g]) for g in range(groups)]

    def only(array: Any, mask: Any) -> Any:
        return jnp.where(mask.reshape(-1, *[1] * (array.ndim - 1)), array, jnp.zeros((), array.dtype))

    def product(spec: str, a: Any, b: Any) -> Any:
        return jnp.einsum(spec, a, b, precision="highest", preferred_element_type=_wide(op.dtype))

    if mode == "rows":
        parts = [product("mk,kn->mn", only(lhs, mask), rhs[g]) for g, mask in enumerate(masks)]
        return sum(parts, jnp.zeros(op.shape, _wide(op.dtype))).astype(_ffi.dtype_named(op.dtype))
    if mode == "contraction":
        parts = [product("mk,mn->kn", only(lhs, mask), only(rhs, mask)) for mask in masks]
        return jnp.stack(parts).astype(_ffi.dtype_named(op.dtype))
    some = jnp.any(jnp.stack(masks), axis=0)
    return product("mrk,mkn->mrn", only(lhs, some), only(rhs, some)).astype(_ffi.dtype_named(op.dtype))


def _wide(dtype: str) -> Any:
    return _COMPUTED.get(dtype, _ffi.dtype_named(dtype))
