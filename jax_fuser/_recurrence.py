"""Linear recurrences along an axis: one primitive, which `fuse` makes part of its kernels.

What stands before each element: h[i + 1] = values[i] + factors[i] * h[i], from 0 on. So the derivative is a recurrence
with the same factors, and its transpose is that from the other end. With resets, a factor of NaN forgets what stands
before: h[i + 1] = values[i]. XLA's lowering is a loop.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

from jax_fuser._eager import compile_when_eager
from jax_fuser._varying import same_varying

recurrence_p = jax.extend.core.Primitive("jax_fuser_recurrence")


def recurrence(values: jax.Array, factors: jax.Array, axis: int, reverse: bool, resets: bool = False) -> jax.Array:
    """Return h, what stands before each element: 0, then h[i + 1] = values[i] + factors[i] * h[i] along an axis.

    Args:
        values: integers or floats, any shape with at least one axis.
        factors: as `values`; the last one does not matter, of the first one only that 0 times infinity is NaN.
        axis: not negative.
        reverse: from the last element on, h[i - 1] = values[i] + factors[i] * h[i].
        resets: a factor of NaN forgets what stands before, even infinities and NaN; floats alone.
    """
    return recurrence_p.bind(*same_varying(values, factors), axis=axis, reverse=reverse, resets=resets)


def _where_reset(resets: bool, factors: jax.Array, reset: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(factors), reset, other) if resets else other


def _abstract_eval(values: Any, factors: Any, *, axis: int, reverse: bool, resets: bool) -> Any:
    del reverse, resets
    if values.shape != factors.shape or values.dtype != factors.dtype or not 0 <= axis < values.ndim:
        raise ValueError(f"recurrence: {values.str_short()} and {factors.str_short()} do not fit along axis {axis}")
    return values.update(weak_type=False)


def _jvp(primals: Any, tangents: Any, *, axis: int, reverse: bool, resets: bool) -> tuple[Any, Any]:
    values, factors = primals
    moved, moved_factors = tangents
    out = recurrence(values, factors, axis, reverse, resets)
    parts = [] if type(moved) is ad.Zero else [moved]
    if type(moved_factors) is not ad.Zero:
        parts.append(_where_reset(resets, factors, jnp.zeros_like(out), lax.mul(moved_factors, out)))
    if not parts:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, recurrence(sum(parts[1:], parts[0]), factors, axis, reverse, resets)


def _transpose(
    cotangent: Any, values: Any, factors: Any, *, axis: int, reverse: bool, resets: bool
) -> tuple[Any, None]:
    if ad.is_undefined_primal(factors):
        raise TypeError("recurrence: it is not linear in its factors")
    if type(cotangent) is ad.Zero:
        return ad.Zero(values.aval), None
    return recurrence(cotangent, factors, axis, not reverse, resets), None


def _batch(args: Any, dims: Any, *, axis: int, reverse: bool, resets: bool) -> tuple[Any, int]:
    size = next(x.shape[d] for x, d in zip(args, dims) if d is not None)
    values, factors = (
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims)
    )
    return recurrence(values, factors, axis + 1, reverse, resets), 0


def _loop(values: Any, factors: Any, *, axis: int, reverse: bool, resets: bool) -> Any:
    def step(before: Any, now: Any) -> tuple[Any, Any]:
        value, factor = now
        return _where_reset(resets, factor, value, value + factor * before), before

    rows = [jnp.moveaxis(x, axis, 0) for x in (values, factors)]
    zero = jnp.zeros_like(rows[0][0])
    return jnp.moveaxis(lax.scan(step, zero, tuple(rows), reverse=reverse)[1], 0, axis)


compile_when_eager(recurrence_p, "axis", "reverse", "resets")
recurrence_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[recurrence_p] = _jvp
ad.primitive_transposes[recurrence_p] = _transpose
batching.primitive_batchers[recurrence_p] = _batch
mlir.register_lowering(recurrence_p, mlir.lower_fun(_loop, multiple_results=False))
