"""Reductions and normalisations of nested tensors.

`axis` is "ragged" (the rows of each group), "group" (all rows of all groups) or an int, a dense dimension of
`nt.shape`. Sums are taken in float32 for narrower floats and in a fixed order. Padding is never read, and a NaN stays
in its group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser._extreme_groups import extreme_groups, lowest
from jax_fuser._nested_map import elementwise
from jax_fuser._nested_rows import over_outer, over_rows, require_nested, spread
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._spread_sum import accumulator, sum_groups

Axis = int | str


def reduce_sum(nt: NestedTensor, axis: Axis = "ragged") -> Any:
    """Sum over an axis; 0 for an empty group.

    Args:
        nt: nested tensor `[.., groups, ragged, ..]`.
        axis: "ragged", "group" or a dense dimension of `nt.shape`.

    Returns:
        For "ragged" an array `[.., groups, ..]`, for "group" an array `[.., ..]`, for a dense dimension a nested
        tensor without it. Dtype as `jnp.sum`'s. Differentiable.

    Raises:
        ValueError: the group dimension alone, or an outer dimension.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.arange(1.0, 6.0), extents=[2, 0, 2])
        >>> jf.nested.sum(nt).tolist(), float(jf.nested.sum(nt, "group"))
        ([3.0, 0.0, 7.0], 10.0)
    """
    kind, at = _axis("sum", nt, axis)
    dtype = _sum_dtype(nt.dtype)
    if kind == "dense":
        return elementwise("sum", lambda x: jnp.sum(x, at, dtype=accumulator(dtype)).astype(dtype), nt)
    return _total(nt.replace(data=nt.data.astype(dtype)), kind).astype(dtype)


def reduce_mean(nt: NestedTensor, axis: Axis = "ragged") -> Any:
    """Mean over an axis; 0 for an empty group. Float32 for integers. Otherwise as `sum`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.mean(jf.as_nested(jnp.arange(1.0, 6.0), extents=[2, 0, 2])).tolist()
        [1.5, 0.0, 3.5]
    """
    kind, at = _axis("mean", nt, axis)
    nt = _floating(nt)
    dtype = nt.dtype
    wide = accumulator(dtype)
    if kind == "dense":
        return elementwise("mean", lambda x: jnp.mean(x, at, dtype=wide).astype(dtype), nt)
    return _mean(nt.replace(data=nt.data.astype(wide)), kind).astype(dtype)


def reduce_max(nt: NestedTensor, axis: Axis = "ragged") -> Any:
    """Largest value over an axis; -inf for an empty group (the lowest integer). Otherwise as `sum`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.max(jf.as_nested(jnp.arange(1.0, 6.0), extents=[2, 0, 2])).tolist()
        [2.0, -inf, 4.0]
    """
    kind, at = _axis("max", nt, axis)
    return elementwise("max", lambda x: jnp.max(x, at), nt) if kind == "dense" else _extreme(nt, kind, True)


def reduce_min(nt: NestedTensor, axis: Axis = "ragged") -> Any:
    """Smallest value over an axis; inf for an empty group (the highest integer). Otherwise as `sum`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.min(jf.as_nested(jnp.arange(1.0, 6.0), extents=[2, 0, 2])).tolist()
        [1.0, inf, 3.0]
    """
    kind, at = _axis("min", nt, axis)
    return elementwise("min", lambda x: jnp.min(x, at), nt) if kind == "dense" else _extreme(nt, kind, False)


def logsumexp(nt: NestedTensor, axis: Axis = "ragged") -> Any:
    """`log(sum(exp(x)))` over an axis, computed stably; -inf for an empty group. Otherwise as `mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.logsumexp(jf.as_nested(jnp.zeros(4), extents=[1, 0, 1])).tolist()
        [0.0, -inf, 0.0]
    """
    kind, at = _axis("logsumexp", nt, axis)
    nt = _floating(nt)
    if kind == "dense":
        return _in_wide("logsumexp", lambda x: jax.scipy.special.logsumexp(x, axis=at), nt)
    return _logsumexp(_wide(nt), kind).astype(nt.dtype)


def softmax(nt: NestedTensor, axis: Axis = "ragged") -> NestedTensor:
    """Softmax over an axis: a nested tensor like `nt`. Computed in float32 for narrower floats and integers.

    Differentiable. The result has the dtype of `nt`, float32 for integers.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.softmax(jf.as_nested(jnp.zeros(4), extents=[1, 0, 2])).data.tolist()
        [1.0, 0.5, 0.5, 0.0]
    """
    kind, at = _axis("softmax", nt, axis)
    nt = _floating(nt)
    if kind == "dense":
        return _in_wide("softmax", lambda x: jax.nn.softmax(x, axis=at), nt)
    return _like(nt, "softmax", jnp.exp, _log_softmax(_wide(nt), kind))


def log_softmax(nt: NestedTensor, axis: Axis = "ragged") -> NestedTensor:
    """Logarithm of `softmax`, computed stably; padding rows are zero.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.log_softmax(jf.as_nested(jnp.zeros(3), extents=[1, 0, 1])).data.tolist()
        [0.0, 0.0, 0.0]
    """
    kind, at = _axis("log_softmax", nt, axis)
    nt = _floating(nt)
    if kind == "dense":
        return _in_wide("log_softmax", lambda x: jax.nn.log_softmax(x, axis=at), nt)
    return _like(nt, "log_softmax", lambda x: x, _log_softmax(_wide(nt), kind))


def rms_norm(nt: NestedTensor, axis: Axis = -1, *, eps: float = 1e-6) -> NestedTensor:
    """Divide by the root of the mean square over an axis: a nested tensor like `nt`. Differentiable.

    Multiply by the weights after: `nested.rms_norm(nt) * weight`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.rms_norm(jf.as_nested(jnp.full((2, 3), 5.0), extents=[1]), eps=0.0).data.tolist()
        [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """
    return _normalise("rms_norm", nt, axis, eps, centre=False)


def layer_norm(nt: NestedTensor, axis: Axis = -1, *, eps: float = 1e-6) -> NestedTensor:
    """Subtract the mean and divide by the standard deviation over an axis. Otherwise as `rms_norm`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.layer_norm(jf.as_nested(jnp.array([[1.0, 3.0]]), extents=[1]), eps=0.0).data.tolist()
        [[-1.0, 1.0]]
    """
    return _normalise("layer_norm", nt, axis, eps, centre=True)


def _axis(fn: str, nt: NestedTensor, axis: Axis) -> tuple[str, int]:
    """Return "ragged", "group" or "dense", and for the last the dimension of `nt.data`, counted from the end."""
    require_nested(fn, nt)
    if axis in ("ragged", "group"):
        return str(axis), 0
    if isinstance(axis, str) or not -nt.ndim <= axis < nt.ndim:
        raise ValueError(f"{fn}: axis must be 'ragged', 'group' or a dimension of {nt.ndim}, got {axis!r}")
    at = axis % nt.ndim
    if at == nt.ragged_dim + 1:
        return "ragged", 0
    if at == nt.ragged_dim:
        raise ValueError(
            f"{fn}: axis {axis} is the group dimension alone, where rows do not line up; "
            f"use axis='ragged' for one result per group, or axis='group' for all rows"
        )
    if at < nt.ragged_dim:
        raise ValueError(f"{fn}: axis {axis} is an outer dimension; index or vmap over it, or reduce nt.data")
    return "dense", at - nt.ndim


def _floating(nt: NestedTensor) -> NestedTensor:
    return nt if jnp.issubdtype(nt.dtype, jnp.inexact) else nt.replace(data=nt.data.astype(jnp.float32))


def _wide(nt: NestedTensor) -> NestedTensor:
    return nt.replace(data=nt.data.astype(accumulator(nt.dtype)))


def _in_wide(fn: str, f: Callable[[jax.Array], jax.Array], nt: NestedTensor) -> NestedTensor:
    return elementwise(fn, lambda x: f(x.astype(accumulator(x.dtype))).astype(x.dtype), nt)


def _like(nt: NestedTensor, fn: str, f: Callable[[jax.Array], jax.Array], rows: jax.Array) -> NestedTensor:
    return elementwise(fn, lambda x: f(x).astype(nt.dtype), nt.replace(data=rows))


def _sum_dtype(dtype: Any) -> Any:
    """Return the dtype of `jnp.sum`: narrow integers and bool widen."""
    return jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((), dtype)).dtype


def _masked(nt: NestedTensor, fill: Any) -> jax.Array:
    mask = over_rows(nt.row_mask(), nt.data.ndim, nt.ragged_dim)
    return jnp.where(mask, nt.data, jnp.asarray(fill, nt.dtype))


@functools.partial(jax.jit, static_argnums=1)
def _total(nt: NestedTensor, kind: str) -> jax.Array:
    nt = _wide(nt)
    if kind == "group":
        return jnp.sum(_masked(nt, 0), axis=nt.ragged_dim, dtype=nt.dtype)
    return over_outer(nt, lambda rows, extents, starts, ids: sum_groups(rows, ids, starts, extents))


@functools.partial(jax.jit, static_argnums=1)
def _mean(nt: NestedTensor, kind: str) -> jax.Array:
    dense = nt.data.ndim - 1 - nt.ragged_dim
    count = jnp.maximum(nt.total if kind == "group" else nt.extents, 1)
    return _total(nt, kind) / count.reshape(*count.shape, *(1,) * dense).astype(nt.dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _extreme(nt: NestedTensor, kind: str, largest: bool) -> jax.Array:
    if kind == "group":
        start = lowest(nt.dtype, largest)
        rows, reduce = _masked(nt, start), jnp.max if largest else jnp.min
        return reduce(rows, axis=nt.ragged_dim, initial=start)
    return over_outer(nt, lambda rows, extents, starts, ids: extreme_groups(rows, ids, starts, extents, largest))


def _to_rows(nt: NestedTensor, values: jax.Array, kind: str) -> jax.Array:
    """Return per-group (or per-outer-index) values so that they broadcast against the rows."""
    return spread(nt, values) if kind == "ragged" else jnp.expand_dims(values, nt.ragged_dim)


@functools.partial(jax.jit, static_argnums=1)
def _logsumexp(nt: NestedTensor, kind: str) -> jax.Array:
    top = jax.lax.stop_gradient(_extreme(nt, kind, True))
    top = jnp.where(jnp.isfinite(top), top, 0)
    # Padding after the shift: its exponential stays finite.
    shifted = _masked(nt.replace(data=nt.data - _to_rows(nt, top, kind)), 0)
    total = _total(nt.replace(data=jnp.exp(shifted)), kind)
    return jnp.log(total) + top


@functools.partial(jax.jit, static_argnums=1)
def _log_softmax(nt: NestedTensor, kind: str) -> jax.Array:
    result = _logsumexp(nt, kind)
    # Empty groups have no rows to spread to; a finite value keeps their gradient finite.
    result = jnp.where(jnp.isneginf(result), 0, result)
    return nt.data - _to_rows(nt, result, kind)


def _normalise(fn: str, nt: NestedTensor, axis: Axis, eps: float, centre: bool) -> NestedTensor:
    kind, at = _axis(fn, nt, axis)
    nt = _floating(nt)

    def dense(x: jax.Array) -> jax.Array:
        if centre:
            x = x - jnp.mean(x, at, keepdims=True)
        return x * jax.lax.rsqrt(jnp.mean(x * x, at, keepdims=True) + eps)

    if kind == "dense":
        return _in_wide(fn, dense, nt)
    return _like(nt, fn, lambda x: x, _normalise_rows(_wide(nt), kind, eps, centre))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _normalise_rows(nt: NestedTensor, kind: str, eps: float, centre: bool) -> jax.Array:
    rows = _masked(nt, 0)
    if centre:
        rows = rows - _to_rows(nt, _mean(nt, kind), kind)
    square = _mean(nt.replace(data=rows * rows), kind)
    # An empty group has mean square 0; nothing is spread from it.
    return rows * _to_rows(nt, jax.lax.rsqrt(jnp.where(square + eps > 0, square + eps, 1)), kind)
