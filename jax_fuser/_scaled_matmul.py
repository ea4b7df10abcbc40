"""`scaled_grouped_matmul`: the grouped product of `ScaledTensor` operands, as one JAX primitive."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from jax_fuser import _core, _ffi, _fp4
from jax_fuser._grouped_primitive import product
from jax_fuser._nested_checks import check_extents, check_order, index_array
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._packed_matmul import multiply_packed
from jax_fuser._packed_weights import PackedWeights, repack_weights
from jax_fuser._quant import ScaledTensor, spread
from jax_fuser._ragged_dot import to_extents
from jax_fuser._row_groups import ordered_starts
from jax_fuser._varying import same_varying

# Bytes of rows that kernels read at once.
_ALIGNMENT = 16
_RESULTS = ("bfloat16", "float16", "float32")
_DTYPE_NAMES = {"float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2"}
_ROWS = ("fp8_row", "fp8_tensor")
_FLOATS = ("bfloat16", "float16", "float32", "float64")  # that weights of four bits are multiplied by
_BLOCKS = {"rows": ((None,), (None,)), "blocks": ((128,), (128, 128))}
scaled_p = jax.extend.core.Primitive("jax_fuser_scaled_grouped_matmul")


def scaled_grouped_matmul(
    lhs: Any,
    rhs: Any,
    group_sizes: Any = None,
    *,
    transpose_rhs: bool = True,
    preferred_element_type: Any = jnp.bfloat16,
    validate: bool = True,
) -> Any:
    """Multiply the rows of each group by the group's matrix: 8-bit floats with scales, or weights of four bits.

    The product of what the operands stand for, `dequantize(lhs) @ dequantize(rhs)[group].T`. Groups need no alignment,
    padding rows are never read and give zero, and a NaN stays in its row or group.

    GPUs of compute capability 9.0 multiply the 8-bit floats in one kernel. Their tensor cores sum such products with
    about 14 bits: scales for rows leave it at that, as cuBLAS does with fast accumulation; scales for blocks are added
    in float32 after each 128 elements. The CPU, and GPUs without that kernel (a warning says why), convert the operands
    to float32 first.

    Weights of four bits, from `repack_weights`, take rows of ordinary floats. On those GPUs a kernel decodes them, for
    bfloat16 rows, on their way to the tensor cores: exactly, but that a product of "int4" and its scale is rounded to
    bfloat16. Elsewhere they become an array of the dtype of `lhs` first. This product is differentiable in `lhs`.

    8-bit floats are not differentiable and raise an error. The gradients take operands that are quantized along another
    axis; that of `lhs` is this function again,
    `scaled_grouped_matmul(quantize(dy, f), quantize(jnp.swapaxes(w, 1, 2), f), sizes)`. There is none yet for that of
    `rhs`, which sums over rows: use `grouped_matmul` on wider floats.

    Args:
        lhs: `ScaledTensor` of rows `(m, k)` with `group_sizes`, or of a NestedTensor `[groups, ragged, k]`; format
            "fp8_row", "fp8_tensor", or "fp8_block" with blocks `(128,)`. `k` is a multiple of 16.
        rhs: `ScaledTensor` `(groups, n, k)`: of format "fp8_row" or "fp8_tensor" for such `lhs`, or "fp8_block" with
            blocks `(128, 128)`. Either operand may be e4m3 or e5m2. Or `PackedWeights`, with `lhs` an array or
            NestedTensor of floats; a `ScaledTensor` of "nvfp4", "mxfp4" or "int4" is repacked first, in every call.
        group_sizes: integers `(groups,)`; only with rows.
        transpose_rhs: must be True: the tensor cores read 8-bit operands with `k` as the last axis alone.
        preferred_element_type: bfloat16, float16 or float32.
        validate: whether to check concrete `group_sizes`, or the order of gapped groups.

    Returns:
        NestedTensor of the same layout for a nested `lhs`, otherwise `(m, n)`.

    Raises:
        ValueError: shapes do not fit, `k` is no multiple of 16, `transpose_rhs` is False; sizes are negative or sum to
            more than `m`.
        TypeError: operands are no `ScaledTensor`, or their formats do not go together; an operand is differentiated.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> x = jf.quantize(jnp.ones((5, 32)), "fp8_row")
        >>> w = jf.quantize(jnp.ones((3, 8, 32)), "fp8_row")
        >>> jf.scaled_grouped_matmul(x, w, jnp.array([2, 0, 3])).shape
        (5, 8)
    """
    dtype = np.dtype(preferred_element_type) if preferred_element_type is not None else None
    if dtype is None or dtype.name not in _RESULTS:
        raise TypeError(f"scaled_grouped_matmul: the result must be one of {_RESULTS}, got {dtype}")
    scaled = _scaling(lhs, rhs)
    if scaled is None:
        if not transpose_rhs:
            raise ValueError("scaled_grouped_matmul: weights of four bits are (groups, n, k), got transpose_rhs=False")
        weights = rhs if isinstance(rhs, PackedWeights) else repack_weights(rhs)
        return multiply_packed(lhs, weights, group_sizes, dtype, validate)
    if not transpose_rhs:
        raise ValueError(
            "scaled_grouped_matmul: rhs must be (groups, n, k), got transpose_rhs=False: tensor cores read 8-bit "
            "operands with k as the last axis alone; quantize jnp.swapaxes(weights, 1, 2)"
        )
    if isinstance(rhs.data, NestedTensor):
        raise TypeError("scaled_grouped_matmul: rhs must hold an array (groups, n, k), got a NestedTensor")
    nested = lhs.data if isinstance(lhs.data, NestedTensor) else None
    data, starts = lhs.data if nested is None else nested.data, None
    for operand in (data, rhs.data):
        if str(operand.dtype) not in _DTYPE_NAMES:
            raise TypeError(f"scaled_grouped_matmul: 8-bit formats hold {list(_DTYPE_NAMES)}, got {operand.dtype}")
    if nested is not None:
        if group_sizes is not None:
            raise TypeError("scaled_grouped_matmul: group_sizes= needs lhs with an array of rows, got a NestedTensor")
        extents = nested.extents
        if nested.gapped and nested.ragged_dim == 0:
            if validate:
                check_order("scaled_grouped_matmul", nested.starts, extents)
            starts = ordered_starts(nested.starts, extents, nested.capacity)
    elif group_sizes is None:
        raise TypeError("scaled_grouped_matmul: lhs holds an array, so group_sizes= is needed")
    else:
        extents = index_array("scaled_grouped_matmul", "group_sizes", group_sizes, validate)
    if data.ndim != 2 or extents.ndim != 1 or rhs.data.ndim != 3 or rhs.data.shape[0] != extents.shape[0]:
        raise ValueError(
            f"scaled_grouped_matmul: needs lhs (m, k), rhs (groups, n, k) and group_sizes (groups,), got {data.shape}, "
            f"{rhs.data.shape} and {extents.shape}"
        )
    (m, k), (groups, n, rhs_k) = data.shape, rhs.data.shape
    if k != rhs_k:
        raise ValueError(
            f"scaled_grouped_matmul: lhs has k={k} but rhs {rhs.data.shape} as (groups, n, k) has k={rhs_k}"
        )
    if k % _ALIGNMENT:
        raise ValueError(
            f"scaled_grouped_matmul: k must be a multiple of {_ALIGNMENT}, got {k}; pad both operands with zeros"
        )
    if nested is None:
        if validate:
            check_extents("scaled_grouped_matmul", extents, m, 0)
        extents = to_extents(extents, m)
    shapes = ((m,), (groups, n)) if scaled == "rows" else ((m, _blocks(k)), (groups, _blocks(n), _blocks(k)))
    scales = [_whole(x, s) for x, s in zip((lhs, rhs), shapes)]
    out = _bind(data, rhs.data, extents, starts, *scales, scaled=scaled, dtype=dtype)
    return out if nested is None else nested.replace(data=out)


def _scaling(lhs: Any, rhs: Any) -> str | None:
    """Return which scales the kernel for 8-bit operands takes; None for floats and weights of four bits."""
    if isinstance(lhs, ScaledTensor) and isinstance(rhs, ScaledTensor):
        if lhs.format in _ROWS and rhs.format in _ROWS:
            return "rows"
        if lhs.format == rhs.format == "fp8_block" and (lhs.block, rhs.block) == _BLOCKS["blocks"]:
            return "blocks"
    elif _kind(lhs) in _FLOATS and _kind(rhs) in _fp4.FORMATS:
        return None
    raise TypeError(
        f"scaled_grouped_matmul: {_kind(lhs)} x {_kind(rhs)} not supported; supported pairs: fp8_row or fp8_tensor on "
        f"both sides, fp8_block (128,) x fp8_block (128, 128), {', '.join(_FLOATS)} x {' or '.join(_fp4.FORMATS)}; see "
        "quantize, or use grouped_matmul"
    )


def _kind(x: Any) -> str:
    if isinstance(x, ScaledTensor):
        return f"{x.format} {x.block}" if x.format == "fp8_block" else x.format
    if isinstance(x, PackedWeights):
        return x.format
    return str(getattr(x, "dtype", type(x).__name__))


def _blocks(size: int) -> int:
    return -(-size // 128)


def _whole(x: ScaledTensor, shape: tuple[int, ...]) -> jax.Array:
    scales = jnp.asarray(x.scales, jnp.float32)
    if scales.ndim and scales.shape != shape:
        raise ValueError(f"scaled_grouped_matmul: {x.format} scales must be {shape}, got {scales.shape}")
    scales = scales if x.global_scale is None else scales * x.global_scale
    return jnp.broadcast_to(scales, shape)


# The primitive: lhs, rhs, scales of lhs, of rhs, extents[, starts].


def _bind(lhs: Any, rhs: Any, extents: Any, starts: Any, lhs_scales: Any, rhs_scales: Any, *, scaled: str,
          dtype: Any) -> jax.Array:  # fmt: skip
    operands = (lhs, rhs, lhs_scales, rhs_scales, extents, *(() if starts is None else (starts,)))
    return scaled_p.bind(*same_varying(*operands), scaled=scaled, dtype=dtype)


def _abstract_eval(lhs: Any, rhs: Any, *others: Any, scaled: str, dtype: Any) -> Any:
    del others, scaled
    rows = lhs.sharding.spec[0]
    sharding = lhs.sharding.update(spec=jax.P(rows, None))
    return lhs.update(shape=(lhs.shape[0], rhs.shape[1]), dtype=dtype, weak_type=False, sharding=sharding)


def dequantized(lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, *indices: Any, scaled: str,
                dtype: Any) -> jax.Array:  # fmt: skip
    """Convert the operands to float32 and multiply them: right everywhere, with more memory and time."""

    def wide(x: Any, scales: Any, block: Any) -> jax.Array:
        return x.astype(jnp.float32) * spread(scales, block, x.shape)

    blocks = _BLOCKS[scaled]
    lhs, rhs = wide(lhs, lhs_scales, blocks[0]), wide(rhs, rhs_scales, blocks[1])
    return product(lhs, rhs, *indices, mode="rows", dtype=dtype, transpose_rhs=True)


def _batch(args: Any, dims: Any, **params: Any) -> tuple[jax.Array, int]:
    """One product after the other: each entry has its own groups."""
    moved = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims)]
    batched = [a for a, d in zip(moved, dims) if d is not None]

    def one(entry: list[Any]) -> jax.Array:
        rest = iter(entry)
        return scaled_p.bind(*same_varying(*(a if d is None else next(rest) for a, d in zip(moved, dims))), **params)

    return jax.lax.map(one, batched), 0


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    raise TypeError(
        "scaled_grouped_matmul: has no derivative: its gradients take operands quantized along another axis; write a "
        "jax.custom_vjp, where that of lhs is scaled_grouped_matmul of dy and swapaxes(weights, 1, 2), both quantized"
    )


@functools.lru_cache(maxsize=4096)
def _program(types: tuple[tuple[str, tuple[int, ...]], ...], scaled: str, dtype: str) -> str:
    builder = _core.Builder("scaled_grouped_matmul")
    names = ("lhs", "rhs", "extents", *(("starts",) if len(types) == 6 else ()), "lhs_scales", "rhs_scales")
    values = [builder.input(name, kind, list(shape)) for name, (kind, shape) in zip(names, types)]
    starts = values[3] if len(types) == 6 else None
    builder.output(
        builder.grouped_matmul(*values[:3], starts, "rows", True, dtype, "scaled_grouped_matmul", scaled, values[-2:])
    )
    return builder.finish()


def why_no_kernel(program: str, target: str) -> str | None:
    """Return why a target has no kernel for the program of a scaled product, or None."""
    try:
        _core.workspace_bytes(program, target)
    except _core.UserError as error:
        return str(error)
    return None


_lower_as_product = mlir.lower_fun(dequantized, multiple_results=False)


def _lower_for_cuda(ctx: Any, lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, *indices: Any, scaled: str,
                    dtype: Any) -> Any:  # fmt: skip
    avals = [*ctx.avals_in[:2], *ctx.avals_in[4:], *ctx.avals_in[2:4]]
    if any(a.size == 0 for a in (*avals, *ctx.avals_out)):
        why: str | None = None
    elif (why := _ffi.can_compile("cuda")) is None:
        kinds = [_DTYPE_NAMES.get(str(a.dtype)) or _ffi.known_dtype_name(a.dtype) for a in avals]
        types = tuple((kind, a.shape) for kind, a in zip(kinds, avals))
        program = _program(types, scaled, _ffi.known_dtype_name(dtype))
        why = why_no_kernel(program, _ffi.target_text("cuda"))
        if why is None:
            operands = (lhs, rhs, *indices, lhs_scales, rhs_scales)
            return _ffi.emit_program(ctx.replace(avals_in=avals), operands, program, platform="cuda")
    if why is not None:
        warnings.warn(f"scaled_grouped_matmul: converts its operands to float32: {why}", stacklevel=2)
    return _lower_as_product(ctx, lhs, rhs, lhs_scales, rhs_scales, *indices, scaled=scaled, dtype=dtype)


@functools.partial(jax.jit, static_argnames=("scaled", "dtype"))
def _run(*operands: Any, **params: Any) -> jax.Array:
    return scaled_p.bind(*operands, **params)


scaled_p.def_impl(_run)
scaled_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[scaled_p] = _jvp
batching.primitive_batchers[scaled_p] = _batch
mlir.register_lowering(scaled_p, _lower_as_product)
mlir.register_lowering(scaled_p, _lower_for_cuda, platform="cuda")
