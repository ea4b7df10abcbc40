"""Manual mesh axes of `shard_map`: which of them a value varies over, and making operands agree on it."""

from __future__ import annotations

from typing import Any

import jax


def varying_axes(x: Any) -> frozenset[Any]:
    """Return the manual axes that `x` varies over; the attribute's name differs among JAX versions."""
    return axes_of(jax.typeof(x))


def axes_of(aval: Any) -> frozenset[Any]:
    """Return the manual axes that values of a type vary over."""
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset(kind.varying if kind is not None else getattr(aval, "vma", ()))


def same_varying(*operands: Any) -> tuple[Any, ...]:
    """Return the operands, each marked as varying over every axis that any of them varies over.

    A primitive takes the type of its result from one operand; differentiation then sums the cotangents of replicated
    operands, since marking transposes to `psum`.
    """
    axes = [varying_axes(x) for x in operands]
    union = frozenset().union(*axes)
    if not union:
        return operands
    missing = [tuple(sorted(union - own, key=str)) for own in axes]
    return tuple(jax.lax.pcast(x, need, to="varying") if need else x for x, need in zip(operands, missing))
