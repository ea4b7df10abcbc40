"""Sizes that only a call of an exported program knows (`jax.export.symbolic_shape`): kernels are for numbers."""

from __future__ import annotations

from typing import Any

from jax import export

from jax_fuser._core import UserError


def symbolic_size(*shapes: Any) -> Any | None:
    """Return the first symbolic size, or None; the ragged one in shapes of NestedTensors is none."""
    return next(
        (size for shape in shapes for size in shape if not isinstance(size, int) and export.is_symbolic_dim(size)), None
    )


def check_sizes(function: str, **arrays: Any) -> None:
    """Refuse arrays with a symbolic size."""
    for name, array in arrays.items():
        size = symbolic_size(getattr(array, "shape", ()))
        if size is not None:
            raise UserError(
                f"{function}: {name} has the shape {tuple(array.shape)}, expected numbers: kernels are compiled for "
                f"them, and {size} is symbolic; export the function for the sizes it will be called with, or for the "
                "largest one and pad"
            )
