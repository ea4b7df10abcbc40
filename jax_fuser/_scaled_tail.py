"""What follows a product of operands of few bits: the arguments of `scaled_grouped_matmul`, checked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser import _arguments
from jax_fuser._grouped_tail import GATED, Activation, activation_of, after_product, product_and_tail
from jax_fuser._nested_map import check_same_layout
from jax_fuser._nested_tensor import NestedTensor

_FUNCTION = "scaled_grouped_matmul"


class ScaledTail:
    """Bias, activation and row scale."""

    def __init__(self, bias: Any, activation: Activation, row_scale: Any, nested: NestedTensor | None):
        self.activation = activation_of(_FUNCTION, activation)
        self.gated = isinstance(activation, str) and activation in GATED
        self.bias = None if bias is None else _arguments.array(_FUNCTION, "bias", bias)
        if isinstance(row_scale, NestedTensor):
            if nested is not None:
                check_same_layout(_FUNCTION, nested, row_scale)
            row_scale = row_scale.data
        self.scale = None if row_scale is None else _arguments.array(_FUNCTION, "row_scale", row_scale)
        for name, value in (("bias", self.bias), ("row_scale", self.scale)):
            if value is not None and jnp.issubdtype(value.dtype, jnp.complexfloating):
                raise TypeError(f"{_FUNCTION}: {name} must be real, got {value.dtype}; pass its real part")

    def check(self, m: int, groups: int, n: int) -> None:
        """Compare shapes with those of the product `(m, n)`."""
        if self.gated and n % 2:
            raise ValueError(f"{_FUNCTION}: a gated activation needs an even number of columns in rhs, got {n}")
        if self.bias is not None and self.bias.shape != (groups, n):
            raise ValueError(f"{_FUNCTION}: bias must be (groups, n)={(groups, n)}, got {self.bias.shape}")
        if self.scale is not None and self.scale.shape != (m,):
            raise ValueError(f"{_FUNCTION}: row_scale must have one value per row {(m,)}, got {self.scale.shape}")

    def multiply(self, x: Any, rhs: Any, extents: Any, starts: Any, dtype: Any) -> jax.Array:
        """Return all of it: rows by an array or packed weights `(groups, n, k)`, in one kernel where there is one."""
        return product_and_tail(x, rhs, extents, starts, self.bias, self.scale, transpose_rhs=True,
                                activation=self.activation, gated=self.gated, dtype=jnp.dtype(dtype))  # fmt: skip

    def after(self, out: jax.Array, extents: Any, starts: Any) -> jax.Array:
        """Return what becomes of a product."""
        if self.bias is None and self.scale is None and self.activation is None:
            return out
        return after_product(out, extents, starts, self.bias, self.scale, self.activation, self.gated)
