"""The grouped product of 8-bit floats with scales, as one JAX primitive.

lhs (m, k), rhs (groups, n, k), scales of lhs, scales of rhs, extents[, starts]  ->  (m, n)

scaled    scales of lhs      scales of rhs
rows      (m,)               (groups, n)
blocks    (m, k / 128)       (groups, n / 128, k / 128), rounded up

Or the sums over the rows of each group, of operands and group sizes as `quantize_columns` makes them:

lhs (k, m), rhs (n, m), scales of lhs, scales of rhs, extents  ->  (groups, k, n)

columns   (groups, k)        (groups, n)
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from jax_fuser import _core, _ffi, _split, _trace
from jax_fuser._eager import compile_when_eager
from jax_fuser._grouped_primitive import product
from jax_fuser._grouped_split import Layout, result_sharding, split
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._quant import ScaledTensor, for_leading_axes, spread
from jax_fuser._varying import same_varying

DTYPE_NAMES = {"float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2"}
BLOCKS = {"rows": ((None,), (None,)), "blocks": ((128,), (128, 128))}
_LAYOUTS = {
    "rows": Layout(("mk", "gnk", "m", "gn"), "mn", "kg", {"k": 16, "n": 16}),
    "blocks": Layout(("mk", "gnk", "mK", "gNK"), "mn", "kg", {"k": 128, "n": 128}),
    "columns": Layout(("km", "nm", "gk", "gn"), "gkn", "m"),
}
scaled_p = _trace.own_call("jax_fuser_scaled_grouped_matmul", "a grouped product of quantized operands")


def block_count(size: int) -> int:
    """Blocks of 128 along an axis of `size` elements."""
    return -(-size // 128)


def whole_scales(fn: str, x: ScaledTensor, scaled: str) -> jax.Array:
    """Return the scales of rows `(m, k)`, or of `(groups, n, k)`, as the product takes them: "rows" or "blocks"."""
    data = x.data.data if isinstance(x.data, NestedTensor) else x.data
    shape = data.shape[:-1]
    if scaled == "blocks":
        shape = (data.shape[0], *map(block_count, data.shape[1:]))
    scales = jnp.asarray(x.scales, jnp.float32)
    if not x.block and scales.shape == shape[: scales.ndim]:
        scales = for_leading_axes(scales, len(shape))  # one for each matrix, where `vmap` quantized them
    elif scales.ndim and scales.shape != shape:
        raise ValueError(f"{fn}: {x.format} scales must be {shape}, got {scales.shape}; quantize makes them")
    scales = scales if x.global_scale is None else scales * x.global_scale
    return jnp.broadcast_to(scales, shape)


def scaled_product(lhs: Any, rhs: Any, extents: Any, starts: Any, lhs_scales: Any, rhs_scales: Any, *, scaled: str,
          dtype: Any) -> jax.Array:  # fmt: skip
    operands = (lhs, rhs, lhs_scales, rhs_scales, extents, *(() if starts is None else (starts,)))
    return scaled_p.bind(*same_varying(*operands), scaled=scaled, dtype=dtype, mesh=_split.needs_devices())


def _abstract_eval(lhs: Any, rhs: Any, *others: Any, scaled: str, dtype: Any, mesh: Any) -> Any:
    del mesh
    groups = others[0].shape[:1] if scaled == "columns" else ()
    sharding = result_sharding("scaled_grouped_matmul", _LAYOUTS[scaled], lhs, rhs)
    columns = rhs.shape[0 if groups else 1]
    return lhs.update(shape=(*groups, lhs.shape[0], columns), dtype=dtype, weak_type=False, sharding=sharding)


def dequantized(lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, *indices: Any, scaled: str, dtype: Any,
                **_: Any) -> jax.Array:  # fmt: skip
    """Convert the operands to wider floats and multiply them: right everywhere, with more memory and time."""
    if scaled == "columns":
        # bfloat16 holds the elements as they are.
        left, right = lhs.T.astype(jnp.bfloat16), rhs.T.astype(jnp.bfloat16)
        sums = product(left, right, *indices, mode="contraction", dtype=np.dtype(np.float32))
        return (sums * (lhs_scales[:, :, None] * rhs_scales[:, None, :])).astype(dtype)

    def wide(x: Any, scales: Any, block: Any) -> jax.Array:
        return x.astype(jnp.float32) * spread(scales, block, x.shape)

    blocks = BLOCKS[scaled]
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
        "scaled_grouped_matmul: has no derivative in quantized operands: its gradients take them quantized along "
        "another axis; pass floats and format=, which quantizes for forward and backward (reverse mode, once)"
    )


@functools.lru_cache(maxsize=4096)
def _program(types: tuple[tuple[str, tuple[int, ...]], ...], scaled: str, dtype: str) -> str:
    builder = _core.Builder("scaled_grouped_matmul")
    names = ("lhs", "rhs", "extents", *(("starts",) if len(types) == 6 else ()), "lhs_scales", "rhs_scales")
    values = [builder.input(name, kind, list(shape)) for name, (kind, shape) in zip(names, types)]
    starts = values[3] if len(types) == 6 else None
    mode, scales = ("contraction", "rows") if scaled == "columns" else ("rows", scaled)
    lhs, rhs, extents = values[:3]
    builder.output(
        builder.grouped_matmul(
            lhs, rhs, extents, starts, mode, mode == "rows", dtype, "scaled_grouped_matmul", scales, values[-2:]
        )
    )
    text: str = builder.finish()
    return text


_lower_as_product = mlir.lower_fun(dequantized, multiple_results=False)


def _lower(ctx: Any, *operands: Any, platform: str, **params: Any) -> Any:
    if params["mesh"] is not None and _split.is_on_a_mesh(ctx):
        if params["scaled"] == "columns":
            return _lower_as_product(ctx, *operands, **params)

        def multiply(*arrays: Any) -> Any:
            return scaled_p.bind(*arrays[:-1], **{**params, "dtype": arrays[-1].dtype, "mesh": None})

        run = split(multiply, _LAYOUTS[params["scaled"]], ctx.avals_in, ctx.avals_out[0])
        mesh = ctx.module_context.axis_context.abstract_mesh

        def placed(*arrays: Any) -> Any:
            """Scales that the compiler has made may lie on parts of a mesh axis, of which it cannot tell `split`."""
            scales = (_split.off_parts_of_axes(a, mesh) for a in arrays[2:4])
            return run(*arrays[:2], *scales, *arrays[4:])

        return mlir.lower_fun(placed, multiple_results=False)(ctx, *operands)
    return (_lower_for_cuda if platform == "cuda" else _lower_as_product)(ctx, *operands, **params)


def _lower_for_cuda(ctx: Any, lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, *indices: Any, scaled: str,
                    dtype: Any, **_: Any) -> Any:  # fmt: skip
    avals = [*ctx.avals_in[:2], *ctx.avals_in[4:], *ctx.avals_in[2:4]]
    if any(a.size == 0 for a in (*avals, *ctx.avals_out)):
        why: str | None = None
    elif (why := _ffi.can_compile("cuda")) is None:
        kinds = [DTYPE_NAMES.get(str(a.dtype)) or _ffi.known_dtype_name(a.dtype) for a in avals]
        types = tuple((kind, a.shape) for kind, a in zip(kinds, avals))
        program = functools.partial(_program, types, scaled, _ffi.known_dtype_name(dtype))
        why = _ffi.why_no_kernel(program, _ffi.target_text("cuda"))
        if why is None:
            operands = (lhs, rhs, *indices, lhs_scales, rhs_scales)
            return _ffi.emit_program(ctx.replace(avals_in=avals), operands, program(), platform="cuda")
    if why is not None:
        warnings.warn(f"scaled_grouped_matmul: converts its operands to wider floats: {why}", stacklevel=2)
    return _lower_as_product(ctx, lhs, rhs, lhs_scales, rhs_scales, *indices, scaled=scaled, dtype=dtype)


compile_when_eager(scaled_p, "scaled", "dtype", "mesh")
scaled_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[scaled_p] = _jvp
batching.primitive_batchers[scaled_p] = _batch
mlir.register_lowering(scaled_p, _lower_as_product)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(scaled_p, functools.partial(_lower, platform=_platform), platform=_platform)
