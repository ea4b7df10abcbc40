"""Reductions and normalisations of nested tensors.

`axis` is "ragged" (the rows of each group), "group" (all rows of all groups) or an int, a dense dimension of
`nt.shape`. Sums are taken in float32 for narrower floats and in a fixed order. Padding is never read, and a NaN stays
in its group. Fused kernels fold the rows, as under `fuse`; without a compiler, and where there are few, XLA does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser import _arguments
from jax_fuser._accumulator import accumulator
from jax_fuser._automatic import automatically, names_of
from jax_fuser._extreme_groups import extreme_groups, extreme_of_all, lowest
from jax_fuser._multiply_groups import multiply_groups
from jax_fuser._nested_map import elementwise
from jax_fuser._nested_rows import over_outer, over_rows, require_nested, spread
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._spread_sum import fuse_groups, sum_groups

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
    return _sum(nt, *_axis("sum", nt, axis))


def reduce_mean(nt: NestedTensor, axis: Axis = "ragged") -> Any:
    """Mean over an axis; 0 for an empty group. Float32 for integers. Otherwise as `sum`.

    Rows are counted as they are summed: where traced extents lead past the array, those that it has.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.mean(jf.as_nested(jnp.arange(1.0, 6.0), extents=[2, 0, 2])).tolist()
        [1.5, 0.0, 3.5]
    """
    return _mean(nt, *_axis("mean", nt, axis))


def reduce_max(nt: NestedTensor, axis: Axis = "ragged") -> Any:
    """Largest value over an axis; -inf for an empty group (the lowest integer). Otherwise as `sum`.

    Rows that hold it share the gradient evenly. Where one is NaN, the result is, and so is the gradient of all rows.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.max(jf.as_nested(jnp.arange(1.0, 6.0), extents=[2, 0, 2])).tolist()
        [2.0, -inf, 4.0]
    """
    return _extreme(nt, *_axis("max", nt, axis), True)


def reduce_min(nt: NestedTensor, axis: Axis = "ragged") -> Any:
    """Smallest value over an axis; inf for an empty group (the highest integer). Otherwise as `max`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.min(jf.as_nested(jnp.arange(1.0, 6.0), extents=[2, 0, 2])).tolist()
        [1.0, inf, 3.0]
    """
    return _extreme(nt, *_axis("min", nt, axis), False)


def reduce_prod(nt: NestedTensor, axis: Axis = "ragged") -> Any:
    """Product over an axis; 1 for an empty group. Otherwise as `sum`.

    The derivative of each row is the product of the others, also where some of them are zero.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.prod(jf.as_nested(jnp.arange(1.0, 6.0), extents=[2, 0, 3])).tolist()
        [2.0, 1.0, 60.0]
    """
    return _prod(nt, *_axis("prod", nt, axis))


def logsumexp(nt: NestedTensor, axis: Axis = "ragged") -> Any:
    """`log(sum(exp(x)))` over an axis, computed stably; -inf for an empty group. Otherwise as `mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.logsumexp(jf.as_nested(jnp.zeros(4), extents=[1, 0, 1])).tolist()
        [0.0, -inf, 0.0]
    """
    return _logsumexp(nt, *_axis("logsumexp", nt, axis))


def softmax(nt: NestedTensor, axis: Axis = "ragged") -> NestedTensor:
    """Softmax over an axis: a nested tensor like `nt`. Computed in float32 for narrower floats and integers.

    Differentiable. The result has the dtype of `nt`, float32 for integers.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.softmax(jf.as_nested(jnp.zeros(4), extents=[1, 0, 2])).data.tolist()
        [1.0, 0.5, 0.5, 0.0]
    """
    result: NestedTensor = _softmax(nt, *_axis("softmax", nt, axis), False)
    return result


def log_softmax(nt: NestedTensor, axis: Axis = "ragged") -> NestedTensor:
    """Logarithm of `softmax`, computed stably; padding rows are zero.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.log_softmax(jf.as_nested(jnp.zeros(3), extents=[1, 0, 1])).data.tolist()
        [0.0, 0.0, 0.0]
    """
    result: NestedTensor = _softmax(nt, *_axis("log_softmax", nt, axis), True)
    return result


def rms_norm(nt: NestedTensor, axis: Axis = -1, *, eps: float = 1e-6) -> NestedTensor:
    """Divide by the root of the mean square over an axis: a nested tensor like `nt`. Differentiable.

    Multiply by the weights after: `nested.rms_norm(nt) * weight`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.rms_norm(jf.as_nested(jnp.full((2, 3), 5.0), extents=[1]), eps=0.0).data.tolist()
        [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """
    eps = _arguments.real("rms_norm", "eps", eps)
    result: NestedTensor = _normalise(nt, *_axis("rms_norm", nt, axis), eps, False)
    return result


def layer_norm(nt: NestedTensor, axis: Axis = -1, *, eps: float = 1e-6) -> NestedTensor:
    """Subtract the mean and divide by the standard deviation over an axis. Otherwise as `rms_norm`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.nested.layer_norm(jf.as_nested(jnp.array([[1.0, 3.0]]), extents=[1]), eps=0.0).data.tolist()
        [[-1.0, 1.0]]
    """
    eps = _arguments.real("layer_norm", "eps", eps)
    result: NestedTensor = _normalise(nt, *_axis("layer_norm", nt, axis), eps, True)
    return result


def _axis(fn: str, nt: NestedTensor, axis: Axis) -> tuple[str, int]:
    """Return "ragged", "group" or "dense", and for the last the dimension of `nt.data`, counted from the end."""
    require_nested(fn, nt)
    if isinstance(axis, str) and axis in ("ragged", "group"):
        return str(axis), 0
    if axis is None or isinstance(axis, (tuple, list)):
        raise TypeError(
            f"{fn}: axis must be 'ragged', 'group' or an int, one at a time, got {axis!r}; reduce the result again, or "
            "take axis='group' for all rows"
        )
    if not isinstance(axis, str):
        axis = _arguments.integer(fn, "axis", axis)
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


def _compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `f(nt, *static)` as one function."""

    @functools.cache
    def compiled(*static: Any) -> Callable[..., Any]:
        def run(nt: NestedTensor) -> Any:
            return f(nt, *static)

        return fuse_groups(run, f"nested{f.__name__}")

    @functools.wraps(f)
    def call(nt: NestedTensor, *static: Any) -> Any:
        run = compiled(*static)
        return run(nt) if static[0] not in ("ragged", "group") else automatically(run, nt, like=_placed_like(nt))

    return call


def _placed_like(nt: NestedTensor) -> Callable[[Any], list[Any]]:
    """Return where results of folds lie: rows and columns where those of `nt` do."""

    def like(result: Any) -> list[Any]:
        names = names_of(nt.data)
        if isinstance(result, NestedTensor):
            return [names]
        dense = names[nt.ragged_dim + 1 :]
        return [[None] * (result.ndim - len(dense)) + dense]

    return like


def _floating(nt: NestedTensor) -> NestedTensor:
    return nt if jnp.issubdtype(nt.dtype, jnp.inexact) else nt.replace(data=nt.data.astype(jnp.float32))


def _require_real(fn: str, nt: NestedTensor, instead: str) -> None:
    if jnp.issubdtype(nt.dtype, jnp.complexfloating):
        raise TypeError(f"{fn}: data must be real, got {nt.dtype}; take it of {instead}")


def _wide(nt: NestedTensor) -> NestedTensor:
    return nt.replace(data=nt.data.astype(accumulator(nt.dtype)))


def _in_wide(fn: str, f: Callable[[jax.Array], jax.Array], nt: NestedTensor) -> NestedTensor:
    return elementwise(fn, lambda x: f(x.astype(accumulator(x.dtype))).astype(x.dtype), nt)


def _sum_dtype(dtype: Any) -> Any:
    """Return the dtype of `jnp.sum` and `jnp.prod`: narrow integers and bool widen."""
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:  # which jnp.sum does not take
        dtype = jnp.int8 if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.uint8
    return jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((), dtype)).dtype


def _masked(nt: NestedTensor, kind: str, fill: Any) -> jax.Array:
    # By the group of each row, where that is needed anyway.
    mask = nt.row_ids() < nt.num_groups if kind == "ragged" else nt.row_mask()
    return jnp.where(over_rows(mask, nt.data.ndim, nt.ragged_dim), nt.data, jnp.asarray(fill, nt.dtype))


@_compiled
def _sum(nt: NestedTensor, kind: str, at: int) -> Any:
    dtype = _sum_dtype(nt.dtype)
    if kind == "dense":
        return elementwise("sum", lambda x: jnp.sum(x, at, dtype=accumulator(dtype)).astype(dtype), nt)
    return _total(nt.replace(data=nt.data.astype(accumulator(dtype))), kind).astype(dtype)


def _total(nt: NestedTensor, kind: str) -> jax.Array:
    if kind == "group":
        return jnp.sum(_masked(nt, kind, 0), axis=nt.ragged_dim, dtype=nt.dtype)
    return over_outer(nt, lambda rows, extents, starts, ids: sum_groups(rows, ids, starts, extents))


@_compiled
def _prod(nt: NestedTensor, kind: str, at: int) -> Any:
    dtype = _sum_dtype(nt.dtype)
    if kind == "dense":
        return elementwise("prod", lambda x: jnp.prod(x, at, dtype=accumulator(dtype)).astype(dtype), nt)
    nt = nt.replace(data=nt.data.astype(accumulator(dtype)))
    if kind == "group":
        return jnp.prod(_masked(nt, kind, 1), axis=nt.ragged_dim, dtype=nt.dtype).astype(dtype)
    return over_outer(nt, lambda rows, extents, starts, ids: multiply_groups(rows, ids, starts, extents)).astype(dtype)


@_compiled
def _mean(nt: NestedTensor, kind: str, at: int) -> Any:
    nt = _floating(nt)
    if kind == "dense":
        # Of no columns 0, as of no rows.
        columns = max(nt.data.shape[at], 1)
        return _in_wide("mean", lambda x: jnp.sum(x, at) / columns, nt)
    return _average(_wide(nt), kind).astype(nt.dtype)


def _average(nt: NestedTensor, kind: str) -> jax.Array:
    dense = nt.data.ndim - 1 - nt.ragged_dim
    count = jnp.maximum(nt.total if kind == "group" else nt._spans()[1], 1)
    return _total(nt, kind) / count.reshape(*count.shape, *(1,) * dense).astype(nt.dtype)


@_compiled
def _extreme(nt: NestedTensor, kind: str, at: int, largest: bool) -> Any:
    if kind == "dense":
        reduce = jnp.max if largest else jnp.min
        # Nothing else has to lose against it.
        initial = None if nt.data.shape[at] else lowest(nt.dtype, largest)
        return elementwise("max" if largest else "min", lambda x: reduce(x, at, initial=initial), nt)
    return _outermost(nt, kind, largest)


def _outermost(nt: NestedTensor, kind: str, largest: bool) -> jax.Array:
    if kind == "group":
        return extreme_of_all(_masked(nt, kind, lowest(nt.dtype, largest)), nt.ragged_dim, largest)
    return over_outer(nt, lambda rows, extents, starts, ids: extreme_groups(rows, ids, starts, extents, largest))


def _to_rows(nt: NestedTensor, values: jax.Array, kind: str) -> jax.Array:
    """Return per-group (or per-outer-index) values so that they broadcast against the rows."""
    return spread(nt, values) if kind == "ragged" else jnp.expand_dims(values, nt.ragged_dim)


@_compiled
def _logsumexp(nt: NestedTensor, kind: str, at: int) -> Any:
    nt = _floating(nt)
    if kind == "dense":
        return _in_wide("logsumexp", lambda x: jax.scipy.special.logsumexp(x, axis=at), nt)
    top, log_total = _log_total(_wide(nt), kind)
    return (log_total + top).astype(nt.dtype)


def _log_total(nt: NestedTensor, kind: str) -> tuple[jax.Array, jax.Array]:
    """Return the largest of each group, or 0 for one that is not finite, and logsumexp below it."""
    top = jax.lax.stop_gradient(_outermost(nt, kind, True))
    top = jnp.where(jnp.isfinite(top), top, 0)
    # Padding after the shift: its exponential stays finite.
    shifted = _masked(nt.replace(data=nt.data - _to_rows(nt, top, kind)), kind, 0)
    total = _total(nt.replace(data=jnp.exp(shifted)), kind)
    return top, jnp.log(total)


def _softmax(nt: NestedTensor, kind: str, at: int, log: bool) -> NestedTensor:
    _require_real("log_softmax" if log else "softmax", nt, "nested.map(jnp.abs, nt)")
    nt = _floating(nt)
    if kind == "dense":
        return _dense_softmax(nt, at, log)

    def rows(nt: NestedTensor) -> jax.Array:
        return _softmax_rows(nt.data, nt.extents, nt._starts, nt._layout, kind, log)

    return nt.replace(data=automatically(rows, nt, like=lambda _: [names_of(nt.data)]))


@_compiled
def _dense_softmax(nt: NestedTensor, at: int, log: bool) -> NestedTensor:
    f = jax.nn.log_softmax if log else jax.nn.softmax
    return _in_wide("log_softmax" if log else "softmax", lambda x: f(x, axis=at), nt)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4, 5))
def _softmax_rows(
    rows: jax.Array, extents: jax.Array, starts: jax.Array | None, layout: Any, kind: str, log: bool
) -> jax.Array:
    """Return softmax over the rows of a nested tensor, or its logarithm."""
    result: NestedTensor = _grouped_softmax(NestedTensor.tree_unflatten(layout, (rows, extents, starts)), kind, log)
    return result.data


@_softmax_rows.defjvp
def _softmax_rows_jvp(layout: Any, kind: str, log: bool, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # By the result, so that the derivative folds products alone and reads nothing else.
    rows, *rest = primals
    # Of the logarithm of a small share 16 bits hold few digits of that share.
    result = _softmax_rows(rows.astype(accumulator(rows.dtype)) if log else rows, *rest, layout, kind, log)
    nt = NestedTensor.tree_unflatten(layout, (result, *rest))
    change = _change(kind, log)(nt, tangents[0])
    return result.astype(rows.dtype), change.astype(rows.dtype)


@_compiled
def _grouped_softmax(nt: NestedTensor, kind: str, log: bool) -> NestedTensor:
    wide = _wide(nt)
    top, log_total = _log_total(wide, kind)
    # As of dense arrays: nothing has a share beside an infinity.
    log_total = jnp.where(jnp.isposinf(log_total), jnp.nan, log_total)
    # One after the other: beside the largest of huge numbers the logarithm would be lost.
    rows = wide.replace(data=wide.data - _to_rows(wide, top, kind) - _to_rows(wide, log_total, kind))
    name = "log_softmax" if log else "softmax"
    return elementwise(name, lambda x: (x if log else jnp.exp(x)).astype(nt.dtype), rows)


@functools.cache
def _change(kind: str, log: bool) -> Callable[..., Any]:
    """Return the derivative of softmax as a function of its result and of the change of its operand."""

    def change(result: NestedTensor, moved: jax.Array) -> jax.Array:
        nt = _wide(result)
        # What stands in padding is no change.
        wide = _masked(nt.replace(data=moved.astype(nt.dtype)), kind, 0)
        share = jnp.exp(nt.data) if log else nt.data
        part = wide - _to_rows(nt, _total(nt.replace(data=share * wide), kind), kind)
        if log and kind == "group":  # the whole value's total is padding's, too
            part = _masked(nt.replace(data=part), kind, 0)
        return (part if log else share * part).astype(result.dtype)

    return fuse_groups(change, "nested_softmax_change")


@_compiled
def _normalise(nt: NestedTensor, kind: str, at: int, eps: float, centre: bool) -> NestedTensor:
    def dense(x: jax.Array) -> jax.Array:
        if centre:
            x = x - jnp.mean(x, at, keepdims=True)
        return x * jax.lax.rsqrt(jnp.mean(x * x, at, keepdims=True) + eps)

    name = "layer_norm" if centre else "rms_norm"
    _require_real(name, nt, "the real and imaginary parts")
    nt = _floating(nt)
    if kind == "dense":
        return _in_wide(name, dense, nt)
    rows = _normalised(_wide(nt), kind, eps, centre)
    return elementwise(name, lambda x: x.astype(nt.dtype), nt.replace(data=rows))


def _normalised(nt: NestedTensor, kind: str, eps: float, centre: bool) -> jax.Array:
    rows = _masked(nt, kind, 0)
    if centre:
        rows = rows - _to_rows(nt, _average(nt.replace(data=rows), kind), kind)
    square = _average(nt.replace(data=rows * rows), kind)
    # An empty group has mean square 0; nothing is spread from it.
    return rows * _to_rows(nt, jax.lax.rsqrt(jnp.where(square + eps > 0, square + eps, 1)), kind)
