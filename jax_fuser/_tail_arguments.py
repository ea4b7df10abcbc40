"""`bias` and `row_scale` of the grouped products, refused by name where they do not fit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser import _arguments
from jax_fuser._automatic import whole_along
from jax_fuser._nested_map import check_same_layout
from jax_fuser._nested_tensor import NestedTensor


def bias_of(fn: str, bias: Any, shape: tuple[int, int], dtype: Any) -> jax.Array | None:
    """Return the argument `bias` of a product that is computed in `dtype`; `shape`: (groups, columns before a gate)."""
    if bias is None:
        return None
    bias = _real(fn, "bias", _arguments.array(fn, "bias", bias), dtype)
    if bias.shape != shape:
        raise ValueError(
            f"{fn}: bias must be (groups, n)={shape}, got {bias.shape}; pass a row for each group of rhs: "
            "jnp.broadcast_to repeats one"
        )
    return whole_along(bias, 0)  # rows take theirs from any group


def row_scale_of(
    fn: str, scale: Any, layout: NestedTensor, shapes: tuple[tuple[int, ...], ...], dtype: Any
) -> jax.Array | None:
    """Return the argument `row_scale`, of one of the `shapes`; a nested one has the given layout."""
    if isinstance(scale, NestedTensor):
        check_same_layout(fn, layout, scale)
        scale = scale.data
    if scale is None:
        return None
    scale = _real(fn, "row_scale", _arguments.array(fn, "row_scale", scale), dtype)
    if scale.shape not in shapes:
        raise ValueError(
            f"{fn}: row_scale must have one value per row {shapes[0]}, got {scale.shape}; reshape it, or give padding "
            "rows some values, too"
        )
    return scale


def check_even(fn: str, n: int) -> None:
    """Refuse columns that have no halves, gate and up."""
    if n % 2:
        raise ValueError(
            f"{fn}: a gated activation needs an even number of columns in rhs, got {n}; pass gate before up, "
            "each of half of them"
        )


def _real(fn: str, name: str, value: jax.Array, dtype: Any) -> jax.Array:
    """Refuse what the product's dtype cannot hold."""
    if jnp.issubdtype(value.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"{fn}: {name} must be real, got {value.dtype}; pass its real part")
    if jnp.issubdtype(value.dtype, jnp.inexact) and not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(
            f"{fn}: {name} must hold integers for a product of {jnp.dtype(dtype).name}, got {value.dtype}; convert the "
            "operands to floats, or it with astype"
        )
    if not jnp.issubdtype(value.dtype, jnp.number) and value.dtype != bool:
        raise TypeError(f"{fn}: {name} must hold numbers, got {value.dtype}; convert it with astype")
    return value
