"""Elementwise work on nested tensors: operators, `map`, comparison of layouts.

Functions run on whole rows. Padding rows never reach them: they are replaced by ones before (so that neither a
value nor a gradient of garbage can spread) and written as zero after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser import _arguments
from jax_fuser._nested_checks import debug_check, debug_enabled, first, readable
from jax_fuser._nested_rows import as_flattened, over_rows, require_nested, spread
from jax_fuser._nested_tensor import NestedTensor, _Layout


def is_operand(x: Any) -> bool:
    return isinstance(x, (NestedTensor, jax.Array, np.ndarray, np.generic, bool, int, float, complex))


def check_number(name: str, x: Any) -> None:
    """Refuse operands that JAX has no dtype for: Python's integers of more bits, NumPy's strings and objects."""
    if isinstance(x, (np.generic, np.ndarray)):
        if x.dtype.kind in "OSUMm":
            raise TypeError(f"{name}: the other operand must be numbers, got {x.dtype}")
    elif isinstance(x, int):
        held = jnp.iinfo(jax.dtypes.canonicalize_dtype(np.int64))
        if not held.min <= x <= held.max:
            raise ValueError(f"{name}: {str(x)[:60]} does not fit in {held.dtype}; pass a float or an array")


def map_nested(f: Callable[..., Any], nt: NestedTensor, *others: Any) -> Any:
    """Apply `f` to the rows of `nt`, row by row.

    `f` gets the rows `[.., capacity, ..]` of `nt` and of each of `others`, and must keep the dimensions up to the
    rows; it may change dense dimensions and dtype, and may return a pytree of arrays. It must not mix rows: padding
    rows hold ones while it runs. Their results are written as zero and their cotangents are zero.

    Args:
        f: function of arrays, differentiable where the caller differentiates.
        nt: nested tensor.
        *others: scalars, arrays that broadcast over the dense dimensions (`[h]`), per-group arrays
            `[groups, 1, h]`, or nested tensors of the same layout.

    Returns:
        A nested tensor with the layout of `nt`, or a pytree of them.

    Raises:
        ValueError: layouts differ, or `f` changed the dimensions up to the rows.
        TypeError: another operand has a shape that does not fit, or `f` returned no arrays.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.ones((4, 6)), extents=[1, 2])
        >>> gate, up = jf.nested.map(lambda x: jnp.split(x, 2, axis=-1), nt)
        >>> gate.shape
        (2, ragged, 3)
    """
    require_nested("map", nt)
    _arguments.function("map", "f", f)
    for i, other in enumerate(others):
        if not is_operand(other) and (not hasattr(other, "shape") or isinstance(other, jax.ShapeDtypeStruct)):
            raise TypeError(f"map: others[{i}] must be an array, a number or a NestedTensor, got {other!r:.80}")
    return elementwise("map", f, nt, *others)


def elementwise(name: str, fn: Callable[..., Any], *operands: Any) -> Any:
    """Apply `fn` to the rows of `operands`, at least one of them nested; `name` is the word in messages."""
    nested = [x for x in operands if isinstance(x, NestedTensor)]
    nt = nested[0]
    for x in nested:
        require_nested(name, x)
    for other in nested[1:]:
        check_same_layout(name, nt, other)
    _check_dense_broadcast(name, nested)
    mask = nt.row_mask()
    result = fn(*(_rows(name, nt, x, mask) for x in operands))
    is_nested = lambda out: isinstance(out, NestedTensor)  # noqa: E731
    return jax.tree.map(lambda out: _wrap(name, nt, out, mask), result, is_leaf=is_nested)


def _rows(name: str, nt: NestedTensor, x: Any, mask: jax.Array) -> Any:
    if isinstance(x, NestedTensor):
        rows = x.data
    elif isinstance(x, (jax.Array, np.ndarray)) and (x.ndim or isinstance(x, jax.Array)):
        rows = _expand(name, nt, _arguments.array(name, "the other operand", x))
    else:
        return x
    # A Python literal keeps the dtype and weak type of the rows.
    one = True if rows.dtype == jnp.bool_ else 1
    dense = nt.data.ndim - 1 - nt.ragged_dim
    rows = jnp.where(mask.reshape(*mask.shape, *(1,) * dense), rows, one)
    # Of the rank of the rows, for who has JAX refuse to promote ranks.
    return jnp.expand_dims(rows, range(max(nt.data.ndim - rows.ndim, 0)))


def _expand(name: str, nt: NestedTensor, y: jax.Array) -> jax.Array:
    """Return `y` so that it broadcasts over the rows of `nt`."""
    dim, groups = nt.ragged_dim, nt.num_groups
    dense = nt.data.shape[dim + 1 :]
    row = y.ndim - 1 - len(dense)
    outer = y.shape[: max(row - 1, 0)]
    fits = (
        (row < 0 or y.shape[row] == 1)
        and (row < 1 or y.shape[row - 1] in (1, groups))
        and len(outer) <= dim
        and _broadcasts(outer, nt.data.shape[dim - len(outer) : dim])
        and _broadcasts(y.shape[max(row + 1, 0) :], dense)
    )
    if not fits:
        raise TypeError(_operand_message(name, nt, y))
    if row < 1:
        return y
    if y.shape[row - 1] == 1:
        return jnp.squeeze(y, row - 1)
    return spread(nt, jnp.squeeze(y, row))


def _operand_message(name: str, nt: NestedTensor, y: jax.Array) -> str:
    message = f"{name}: cannot combine NestedTensor {spell_shape(nt)} with array {y.shape}; "
    if y.ndim > nt.ragged_dim and y.shape[nt.ragged_dim] == nt.capacity:
        return message + "wrap it with as_nested(y, like=nt) or use nt.data"
    dense = [str(n) for n in nt.data.shape[nt.ragged_dim + 1 :]]
    per_group = ", ".join([str(nt.num_groups), "1", *dense])
    return message + f"expected a scalar, [{', '.join(dense)}], per-group [{per_group}], or the same layout"


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def _check_dense_broadcast(name: str, nested: list[NestedTensor]) -> None:
    nt = nested[0]
    for other in nested[1:]:
        if other.data.ndim != nt.data.ndim or not _broadcasts(other.data.shape, nt.data.shape):
            fewer = "nested.map(lambda x: x[..., None], nt) adds one to that with fewer"
            hint = fewer if other.data.ndim != nt.data.ndim else "each must be equal, or 1 in one of them"
            raise ValueError(
                f"{name}: dense dimensions do not broadcast: {spell_shape(nt)} vs {spell_shape(other)}; {hint}"
            )


def _wrap(name: str, nt: NestedTensor, out: Any, mask: jax.Array) -> NestedTensor:
    if not hasattr(out, "shape") or isinstance(out, NestedTensor):
        raise TypeError(f"{name}: the function must return arrays, it returned a {type(out).__name__}")
    if jnp.issubdtype(out.dtype, jax.dtypes.extended):
        raise TypeError(f"{name}: the function must return arrays of numbers, it returned {out.dtype}")
    dim = nt.ragged_dim
    lead = nt.data.shape[: dim + 1]
    # Shared extents let an operand add or widen outer dimensions; the rows themselves must stay.
    kept = out.shape[: dim + 1] == lead or (
        nt.extents.ndim == 1
        and out.ndim > dim
        and out.shape[dim] == nt.capacity
        and _broadcasts(out.shape[:dim], lead[:dim])
    )
    if not kept:
        raise ValueError(
            f"{name}: the function must keep the dimensions up to the rows {lead}; it returned {out.shape}"
        )
    tail = jnp.nan if debug_enabled() and jnp.issubdtype(out.dtype, jnp.inexact) else False
    fill = jnp.asarray(tail, out.dtype)
    data = jnp.where(over_rows(mask, out.ndim, dim), out, fill)
    return NestedTensor.tree_unflatten(_Layout(out.ndim - 1 - dim, tuple(data.shape)), (data, nt.extents, nt._starts))


# Layouts.


def spell_shape(nt: NestedTensor) -> str:
    return f"[{', '.join(str(n) for n in nt.shape)}]"


def same_layout(a: NestedTensor, b: NestedTensor) -> bool:
    """Return whether two nested tensors place the same groups in the same rows.

    Groups, capacity, ragged dimension and kind of storage are static. Values of extents (and starts) are compared
    only when both are concrete; traced ones are taken as equal. The result is a Python bool either way.

    Args:
        a: nested tensor.
        b: nested tensor; dtype and dense dimensions may differ from those of `a`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> a = jf.as_nested(jnp.ones((5, 2)), extents=[2, 3])
        >>> b = jf.as_nested(jnp.ones((5, 7)), extents=[3, 2])
        >>> jf.nested.same_layout(a, a * 2), jf.nested.same_layout(a, b)
        (True, False)
    """
    require_nested("same_layout", a)
    require_nested("same_layout", b)
    return _difference(a, b) is None


def check_same_layout(name: str, a: NestedTensor, b: NestedTensor) -> None:
    difference = _difference(a, b)
    if difference is not None:
        raise ValueError(f"{name}: operands have different ragged layouts: {difference}")
    for field, x, y in (("extents", a.extents, b.extents), ("starts", a._starts, b._starts)):
        if x is not y and (readable(x) is None or readable(y) is None):
            message = f"{name}: operands have different ragged layouts: {field} differ"
            debug_check(lambda x=x, y=y: jnp.all(x == y), message)  # type: ignore[misc]


def _difference(a: NestedTensor, b: NestedTensor) -> str | None:
    static = f"{_spell_layout(a, b)} vs {_spell_layout(b, a)}"
    if _static_layout(a) != _static_layout(b):
        return static
    for field, x, y in (("extents", a.extents, b.extents), ("starts", a._starts, b._starts)):
        if x is y:
            continue
        left, right = readable(x), readable(y)
        if left is None or right is None or (left == right).all():
            continue
        at = first(left != right)
        group = at[0] if len(at) == 1 else at
        return f"{static}; {field} differ at group {group}: {left[at]} vs {right[at]}"
    return None


def _static_layout(nt: NestedTensor) -> tuple[Any, ...]:
    return nt.extents.shape, nt.capacity, nt.ragged_dim, nt.gapped


def _spell_layout(nt: NestedTensor, other: NestedTensor) -> str:
    words = [f"{'x'.join(str(n) for n in nt.extents.shape)} groups", f"capacity {nt.capacity}"]
    if nt.ragged_dim != other.ragged_dim:
        words.append(f"ragged_dim {nt.ragged_dim}")
    if nt.gapped != other.gapped:
        words.append("gapped" if nt.gapped else "contiguous")
    return f"[{', '.join(words)}]"


def allclose(
    a: NestedTensor, b: NestedTensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> jax.Array:
    """Return whether two nested tensors have equal extents and close rows, as a bool scalar on the device.

    Padding is not compared, and gapped and contiguous storage of the same groups are close. Not differentiable.

    Args:
        a: nested tensor.
        b: nested tensor; another shape is not close.
        rtol: relative tolerance, as of `jnp.allclose`.
        atol: absolute tolerance.
        equal_nan: whether NaN is close to NaN.

    Returns:
        bool array `[]`. Works under `jit`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.ones((3, 2)), extents=[1, 1])
        >>> bool(jf.nested.allclose(nt, nt + 1e-9))
        True
    """
    require_nested("allclose", a)
    require_nested("allclose", b)
    rtol, atol = (_tolerance(name, value) for name, value in (("rtol", rtol), ("atol", atol)))
    equal_nan = _arguments.flag("allclose", "equal_nan", equal_nan)
    if a.shape != b.shape or a.extents.shape != b.extents.shape:
        return jnp.zeros((), jnp.bool_)
    if a.gapped or b.gapped or a.capacity != b.capacity:
        rows = min(a.capacity, b.capacity)
        left, right = (jax.lax.slice_in_dim(as_flattened(x), 0, rows, axis=x.ragged_dim) for x in (a, b))
    else:
        left, right = a.data, b.data
    total = a.total[..., None]
    valid = jax.lax.broadcast_to_rank(jnp.arange(left.shape[a.ragged_dim], dtype=jnp.int32), total.ndim) < total
    close = jnp.isclose(left, right, rtol=rtol, atol=atol, equal_nan=equal_nan)
    same_rows = jnp.all(close | ~over_rows(valid, left.ndim, a.ragged_dim))
    return jnp.all(a.extents == b.extents) & same_rows


def _tolerance(name: str, value: Any) -> Any:
    if isinstance(value, jax.Array) and value.ndim == 0:
        return value
    return _arguments.real("allclose", name, value)
