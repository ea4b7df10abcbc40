"""Fusion compiler, nested tensors and grouped matmuls for ragged JAX code, as XLA custom calls."""

from . import _export_types, _ffi, _lax_products, ir, moe, nested, parallel  # noqa: F401 (`fuse` finds _lax_products)
from ._autotune import autotune
from ._core import InternalError, UserError
from ._doctor import counters, doctor
from ._explain import explain
from ._fuse import fuse
from ._grouped_matmul import grouped_matmul, ragged_dot, ragged_dot_general
from ._nested import NestedTensor, as_flattened, as_nested, debug_checks
from ._packed_weights import PackedWeights, repack_weights
from ._quant import ScaledTensor, dequantize, quantize
from ._scale_layout import block_scale_starts, preprocess_grouped_matmul_input_sf
from ._scaled_matmul import scaled_grouped_matmul

__version__ = "0.2.0"

__all__ = [
    "InternalError",
    "NestedTensor",
    "PackedWeights",
    "ScaledTensor",
    "UserError",
    "as_flattened",
    "as_nested",
    "autotune",
    "block_scale_starts",
    "counters",
    "debug_checks",
    "dequantize",
    "doctor",
    "explain",
    "fuse",
    "grouped_matmul",
    "ir",
    "moe",
    "nested",
    "parallel",
    "preprocess_grouped_matmul_input_sf",
    "quantize",
    "ragged_dot",
    "ragged_dot_general",
    "repack_weights",
    "scaled_grouped_matmul",
]

_ffi.register()
_export_types.register()
