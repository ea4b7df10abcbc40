"""The grouped product of floats in 8 bits: quantized in every call, with gradients for both operands.

    out     quantize(lhs) * quantize(rhs)       8 bits, sums over k
    dlhs    quantize(dout) * quantize(rhs')     8 bits, sums over n: rhs is quantized along its other axis
    drhs    dout' * lhs                         floats, sums over rows

The tensor cores of compute capability 9.0 take 8-bit operands along the summed axis alone, so that drhs would need both
operands transposed, group by group; and the sum over all rows of a group is where rounding to 8 bits hurts most.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser._grouped_primitive import product
from jax_fuser._quant import quantize
from jax_fuser._scaled_primitive import ALIGNMENT, scaled_product
from jax_fuser._varying import same_varying

# Which scales the kernel takes, and the blocks of weights.
FORMATS: dict[str, tuple[str, tuple[int, int] | None]] = {
    "fp8_row": ("rows", None),
    "fp8_block": ("blocks", (128, 128)),
}


def multiply_floats(lhs: Any, rhs: Any, extents: Any, starts: Any, *, format: str, transpose_rhs: bool,
                    dtype: Any) -> jax.Array:  # fmt: skip
    """Multiply rows `(m, k)` by `(groups, n, k)`, or `(groups, k, n)` without `transpose_rhs`, both quantized."""
    operands = same_varying(lhs, rhs, extents, *(() if starts is None else (starts,)))
    return _multiply(operands[0], operands[1], operands[2:], format, transpose_rhs, np.dtype(dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _multiply(lhs: Any, rhs: Any, indices: Any, format: str, transpose_rhs: bool, dtype: Any) -> jax.Array:
    return _quantized(lhs, _swapped(rhs, not transpose_rhs), indices, format, dtype)


def _forward(lhs: Any, rhs: Any, indices: Any, format: str, transpose_rhs: bool, dtype: Any) -> tuple[Any, Any]:
    return _multiply(lhs, rhs, indices, format, transpose_rhs, dtype), (lhs, rhs, indices)


def _backward(format: str, transpose_rhs: bool, dtype: Any, kept: Any, dout: Any) -> tuple[Any, ...]:
    del dtype
    lhs, rhs, indices = kept
    d_lhs = _quantized(dout, _swapped(rhs, transpose_rhs), indices, format, lhs.dtype)
    sides = (dout.astype(lhs.dtype), lhs) if transpose_rhs else (lhs, dout.astype(lhs.dtype))
    d_rhs = product(*sides, *indices, mode="contraction", dtype=rhs.dtype)
    return d_lhs, d_rhs, tuple(None for _ in indices)


_multiply.defvjp(_forward, _backward)


def _swapped(rhs: Any, swap: bool) -> Any:
    return jnp.swapaxes(rhs, 1, 2) if swap else rhs


def _quantized(lhs: Any, rhs: Any, indices: Any, format: str, dtype: Any) -> jax.Array:
    """The product of `lhs` `(m, k)` and `rhs` `(groups, n, k)`, both quantized along k."""
    scaled, block = FORMATS[format]
    lhs, rhs = (_filled(x) for x in (lhs, rhs))
    left, right = quantize(lhs, format), quantize(rhs, format, block=block)
    starts = indices[1] if len(indices) > 1 else None
    return scaled_product(
        left.data, right.data, indices[0], starts, left.scales, right.scales, scaled=scaled, dtype=np.dtype(dtype)
    )


def _filled(x: Any) -> Any:
    """Zeros behind the last axis, up to a length that the product takes."""
    missing = -x.shape[-1] % ALIGNMENT
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
