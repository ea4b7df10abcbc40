"""Weights that were quantized once for many products: two copies, for the product and for the gradient of its rows."""

from __future__ import annotations

from typing import Any

from jax_fuser._packed_weights import PackedWeights
from jax_fuser._quant import ScaledTensor
from jax_fuser._quantize_matrices import ALIGNMENT
from jax_fuser._scaled_floats import FORMATS
from jax_fuser._scaled_primitive import BLOCKS, block_count


def check_copies(name: str, copies: Any, format: str, shape: tuple[int, int, int]) -> None:
    """Raise where `copies`, if any, are not what `format` makes of weights `(groups, n, k)`, along k and along n."""
    if copies is None:
        return
    groups, n, k = shape
    if (
        not isinstance(copies, (tuple, list))
        or len(copies) != 2
        or not all(isinstance(c, ScaledTensor) for c in copies)
    ):
        got = " and ".join(map(kind_of, copies)) if isinstance(copies, (tuple, list)) else kind_of(copies)
        raise TypeError(
            f"{name} must be two ScaledTensors, of (groups, n, k) and (groups, k, n), got {got}; quantize makes them "
            "of the weights and of jnp.swapaxes(weights, 1, 2)"
        )
    if k % ALIGNMENT or n % ALIGNMENT:
        raise ValueError(f"{name} needs k and n in multiples of {ALIGNMENT}, got {k} and {n}; leave it out")
    for copy, (rows, columns) in zip(copies, ((n, k), (k, n))):
        scales: tuple[int, ...] = (groups, rows)
        if format == "fp8_block":
            scales = groups, block_count(rows), block_count(columns)
        fits = copy.format == format and copy.block == BLOCKS[FORMATS[format][0]][1] and copy.global_scale is None
        if not fits or copy.data.shape != (groups, rows, columns) or copy.scales.shape != scales:
            raise ValueError(
                f"{name} must hold {format} {(groups, rows, columns)} with scales {scales}, got {copy!r}; "
                "quantize makes it"
            )


def kind_of(x: Any) -> str:
    """Return how messages name what an operand is."""
    if isinstance(x, ScaledTensor):
        layout = "" if x.layout == "row_major" else f" {x.layout}"
        return f"{x.format} {x.block}" if x.format == "fp8_block" else x.format + layout
    if isinstance(x, PackedWeights):
        return x.format
    return str(getattr(x, "dtype", type(x).__name__))
