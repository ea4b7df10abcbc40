"""What follows a product of operands of few bits: the arguments of `scaled_grouped_matmul`, checked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser._activations import GATED, Activation, activation_of
from jax_fuser._grouped_tail import after_product, product_and_tail
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._tail_arguments import bias_of, check_even, row_scale_of

_FUNCTION = "scaled_grouped_matmul"


class ScaledTail:
    """Bias, activation and row scale."""

    def __init__(self, bias: Any, activation: Activation, row_scale: Any, nested: NestedTensor | None):
        self.activation = activation_of(_FUNCTION, activation)
        self.gated = isinstance(activation, str) and activation in GATED
        self.bias, self.scale, self.nested = bias, row_scale, nested

    def check(self, m: int, groups: int, n: int, extents: Any) -> None:
        """Compare with the product `(m, n)` of groups of these extents."""
        if self.gated:
            check_even(_FUNCTION, n)
        self.bias = bias_of(_FUNCTION, self.bias, (groups, n), jnp.float32)
        layout = self.nested
        if layout is None:
            layout = NestedTensor(jax.ShapeDtypeStruct((m, n), jnp.float32), extents)
        self.scale = row_scale_of(_FUNCTION, self.scale, layout, ((m,),), jnp.float32)

    def multiply(self, x: Any, rhs: Any, extents: Any, starts: Any, dtype: Any) -> jax.Array:
        """Return all of it: rows by an array or packed weights `(groups, n, k)`, in one kernel where there is one."""
        return product_and_tail(x, rhs, extents, starts, self.bias, self.scale, transpose_rhs=True,
                                activation=self.activation, gated=self.gated, dtype=jnp.dtype(dtype))  # fmt: skip

    def after(self, out: jax.Array, extents: Any, starts: Any) -> jax.Array:
        """Return what becomes of a product."""
        if self.bias is None and self.scale is None and self.activation is None:
            return out
        return after_product(out, extents, starts, self.bias, self.scale, self.activation, self.gated)
