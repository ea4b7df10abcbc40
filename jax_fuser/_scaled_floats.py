"""The grouped product of floats in 8 bits: quantized in every call, with gradients for both operands.

    out     quantize(lhs) * quantize(rhs)       8 bits, sums over k
    dlhs    quantize(dout) * quantize(rhs')     8 bits, sums over n: rhs is quantized along its other axis
    drhs    dout' * lhs                         floats, sums over rows; in 8 bits if asked for

The tensor cores of compute capability 9.0 take 8-bit operands along the summed axis alone, so that drhs in 8 bits needs
both operands transposed, group by group; and the sum over all rows of a group is where rounding to 8 bits hurts most.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser._automatic import placed_as
from jax_fuser._grouped_primitive import product
from jax_fuser._quant import quantize
from jax_fuser._quantize_columns import quantize_columns
from jax_fuser._quantize_matrices import ALIGNMENT, quantize_matrices
from jax_fuser._reverse_only import differentiated_once, reverse_only
from jax_fuser._scaled_primitive import scaled_product
from jax_fuser._varying import same_varying

FLOATS: tuple[str, ...] = ("bfloat16", "float16", "float32")
# Which scales the kernel takes, and the blocks of weights.
FORMATS: dict[str, tuple[str, tuple[int, int] | None]] = {
    "fp8_row": ("rows", None),
    "fp8_block": ("blocks", (128, 128)),
}


def multiply_floats(fn: str, lhs: Any, rhs: Any, copies: tuple[Any, ...], extents: Any, starts: Any, *, format: str,
                    drhs_format: str | None, transpose_rhs: bool, dtype: Any) -> jax.Array:  # fmt: skip
    """Multiply rows `(m, k)` by `(groups, n, k)`, or `(groups, k, n)` without `transpose_rhs`, both quantized.

    `copies`: elements and scales of `rhs` quantized along k, then along n, or none. `fn`: for whom.
    """
    lhs, rhs, extents, *others = same_varying(lhs, rhs, extents, *copies, *(() if starts is None else (starts,)))
    indices = (extents, *others[len(copies) :])
    lhs, rhs = reverse_only(fn, lhs, rhs)
    return _multiply(lhs, rhs, tuple(others[: len(copies)]), indices, fn, format, drhs_format, transpose_rhs,
                     np.dtype(dtype))  # fmt: skip


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7, 8))
def _multiply(lhs: Any, rhs: Any, copies: Any, indices: Any, fn: str, format: str, drhs_format: str | None,
              transpose_rhs: bool, dtype: Any) -> jax.Array:  # fmt: skip
    del fn, drhs_format
    right = copies[:2] or weights_of(rhs, format, not transpose_rhs)
    return multiply_rows(rows_of(lhs, format), right, indices, format, dtype)


def _forward(lhs: Any, rhs: Any, copies: Any, indices: Any, *static: Any) -> tuple[Any, Any]:
    return _multiply(lhs, rhs, copies, indices, *static), (lhs, rhs, copies, indices)


def _backward(fn: str, format: str, drhs_format: str | None, transpose_rhs: bool, dtype: Any, kept: Any,
              dout: Any) -> tuple[Any, ...]:  # fmt: skip
    del dtype
    lhs, rhs, copies, indices = kept
    lhs, rhs, dout = differentiated_once(fn, lhs, rhs, dout)
    right = copies[2:] or weights_of(rhs, format, transpose_rhs)
    d_lhs = multiply_rows(rows_of(dout, format), right, indices, format, lhs.dtype)
    rows, cotangents = lhs, dout
    if drhs_format is None:
        # float16 may not hold a cotangent of another type.
        kind = dout.dtype if lhs.dtype == np.float16 else lhs.dtype
        rows, cotangents = lhs.astype(kind), dout.astype(kind)
    sides = (cotangents, rows) if transpose_rhs else (rows, cotangents)
    d_rhs = sums_over_rows(*sides, indices, drhs_format, rhs.dtype)
    grads = (placed_as(grad, jax.typeof(x).sharding) for grad, x in ((d_lhs, lhs), (d_rhs, rhs)))
    return *grads, tuple(None for _ in copies), tuple(None for _ in indices)


_multiply.defvjp(_forward, _backward)


def sums_over_rows(lhs: Any, rhs: Any, indices: Any, format: str | None, dtype: Any) -> jax.Array:
    """Return sums `(groups, k, n)` over rows of `lhs` `(m, k)` and `rhs` `(m, n)`, as they are or quantized here."""
    if format is None or 0 in (lhs.shape[0], indices[0].shape[0]):
        return product(lhs, rhs, *indices, mode="contraction", dtype=dtype)
    starts = indices[1] if len(indices) > 1 else None
    (left, of_left, extents), (right, of_right, _) = (quantize_columns(x, indices[0], starts) for x in (lhs, rhs))
    return scaled_product(left, right, extents, None, of_left, of_right, scaled="columns", dtype=np.dtype(dtype))


def check_format_of_sums(fn: str, name: str, value: Any, format: str | None) -> None:
    """Refuse an argument that says how the gradient of weights is quantized, beside `format`, if it is none."""
    if value is None or (format is not None and value == "fp8_row"):
        return
    hint = "quantizes in 8 bits, too; None does not" if format is not None else "needs floats and format="
    raise ValueError(
        f"{fn}: {name} must be None, or 'fp8_row' beside format=, got {value!r} beside format={format!r}; 'fp8_row' "
        f"{hint}"
    )


def weights_of(rhs: Any, format: str, transpose: bool) -> tuple[Any, Any]:
    """Return elements and scales of `rhs` `(groups, n, k)`, or `(groups, k, n)` with `transpose`, for the product."""
    return quantize_matrices(rhs, FORMATS[format][1] or (None,), transpose)


def rows_of(x: Any, format: str) -> tuple[Any, Any]:
    """Return elements and scales, with zeros behind the last axis, up to a length that the product takes."""
    made = quantize(filled_up(x), format)
    return made.data, made.scales


def filled_up(x: Any) -> Any:
    """Return rows with zeros behind them, up to a length that the product takes."""
    missing = -x.shape[-1] % ALIGNMENT
    return jnp.pad(x, [(0, 0), (0, missing)]) if missing else x


def multiply_rows(left: Any, right: Any, indices: Any, format: str, dtype: Any) -> jax.Array:
    """Return the product of elements and scales of rows `(m, k)` and of `(groups, n, k)`."""
    starts = indices[1] if len(indices) > 1 else None
    return scaled_product(left[0], right[0], indices[0], starts, left[1], right[1], scaled=FORMATS[format][0],
                          dtype=np.dtype(dtype))  # fmt: skip
