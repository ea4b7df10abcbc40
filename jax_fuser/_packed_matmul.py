"""The grouped product with packed weights of four bits, as one JAX primitive.

    lhs (m, k), pieces of weights (groups, n, k)  ->  (m, n)

On GPUs of compute capability 9.0 a kernel decodes the weights on their way to the tensor cores; elsewhere they become
an array of the dtype of lhs first. Differentiable in lhs; its cotangent is the product with that array.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from jax_fuser import _core, _ffi, _split
from jax_fuser._eager import compile_when_eager
from jax_fuser._grouped_primitive import INT32_MAX, product
from jax_fuser._grouped_split import Layout, placed_as, result_sharding, split
from jax_fuser._nested_checks import check_extents, check_order, index_array
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._packed_weights import PackedWeights, unpack_weights
from jax_fuser._ragged_dot import to_extents
from jax_fuser._row_groups import ordered_starts, spans
from jax_fuser._varying import same_varying

packed_p = jax.extend.core.Primitive("jax_fuser_packed_matmul")
_FUNCTION = "scaled_grouped_matmul"
# Weights are pieces of 128 columns by 64 contraction indices.
_LAYOUT = Layout(("mk", "gNKw"), "mn", "kg", {"n": 128, "k": 64}, whole="w")


def multiply_packed(lhs: Any, weights: PackedWeights, group_sizes: Any, dtype: Any, validate: bool) -> Any:
    """Check the operands of `scaled_grouped_matmul` with rows of floats and packed weights, and multiply them."""
    nested = lhs if isinstance(lhs, NestedTensor) else None
    starts = None
    if nested is not None:
        if group_sizes is not None:
            raise TypeError(f"{_FUNCTION}: group_sizes= needs lhs as an array of rows, got a NestedTensor")
        data, extents = nested.data, nested.extents
        if nested.gapped and extents.ndim == 1:
            if validate:
                check_order(_FUNCTION, nested.starts, extents)
            starts = ordered_starts(nested.starts, extents, nested.capacity)
    else:
        if group_sizes is None:
            raise TypeError(f"{_FUNCTION}: lhs is an array, so group_sizes= is needed")
        data, extents = jnp.asarray(lhs), index_array(_FUNCTION, "group_sizes", group_sizes, validate)
    groups, _, k = weights.shape
    if data.ndim != 2 or extents.shape != (groups,) or data.shape[1] != k:
        raise ValueError(
            f"{_FUNCTION}: weights {weights.shape} as (groups, n, k) need lhs (m, {k}) and group_sizes ({groups},), "
            f"got {data.shape} and {extents.shape}"
        )
    if nested is None:
        if validate:
            check_extents(_FUNCTION, extents, data.shape[0], 0)
        extents = to_extents(extents, data.shape[0])
    out = packed_product(data, weights, extents, starts, dtype=np.dtype(dtype))
    return out if nested is None else nested.replace(data=out)


def packed_product(lhs: Any, weights: PackedWeights, extents: Any, starts: Any = None, *, dtype: Any) -> jax.Array:
    """Multiply the rows of each group by its weights; rows of no group give zero."""
    operands = (lhs, weights.pieces, extents) if starts is None else (lhs, weights.pieces, extents, starts)
    return packed_p.bind(
        *same_varying(*operands),
        format=weights.format,
        block=weights.block,
        n=weights.n,
        dtype=np.dtype(dtype),
        mesh=_split.needs_devices(),
    )


def _weights(lhs: Any, pieces: Any, params: Any) -> PackedWeights:
    return PackedWeights(pieces, params["format"], params["block"], params["n"], lhs.shape[-1])


def _plain(lhs: Any, pieces: Any, extents: Any, *starts: Any, **params: Any) -> jax.Array:
    weights = unpack_weights(_weights(lhs, pieces, params), lhs.dtype)
    return product(lhs, weights, extents, *starts, mode="rows", dtype=params["dtype"], transpose_rhs=True)


def _abstract_eval(lhs: Any, pieces: Any, extents: Any, *starts: Any, n: int, dtype: Any, **_: Any) -> Any:
    fits = lhs.ndim == 2 and pieces.ndim == 4 and extents.shape == pieces.shape[:1]
    if not fits or any(i.dtype != jnp.int32 or i.shape != extents.shape for i in (extents, *starts)):
        got = ", ".join(f"{a.dtype}{list(a.shape)}" for a in (lhs, pieces, extents, *starts))
        raise ValueError(f"scaled_grouped_matmul: operands do not fit packed weights: {got}")
    sharding = result_sharding(_FUNCTION, _LAYOUT, lhs)
    return lhs.update(shape=(lhs.shape[0], n), dtype=dtype, weak_type=False, sharding=sharding)


@functools.lru_cache(maxsize=4096)
def _program(types: tuple[tuple[str, tuple[int, ...]], ...], weights: str, n: int, dtype: str) -> str:
    builder = _core.Builder("packed_matmul")
    names = ("lhs", "weights", "extents", "starts")
    values = [builder.input(name, kind, list(shape)) for name, (kind, shape) in zip(names, types)]
    starts = values[3] if len(values) == 4 else None
    label = "packed_matmul"
    builder.output(builder.grouped_matmul(*values[:3], starts, "rows", False, dtype, label, weights=weights, columns=n))
    return builder.finish()


_lower_plain = mlir.lower_fun(_plain, multiple_results=False)


def program_of(avals: Any, dtype: Any, *, format: str, block: int, n: int, **_: Any) -> str:
    """Return the program of a product of operands of these types."""
    types = tuple((_ffi.known_dtype_name(a.dtype), a.shape) for a in avals)
    weights = format if format != "int4" else f"int4x{block}"
    return _program(types, weights, n, _ffi.known_dtype_name(dtype))


def _lower(ctx: Any, *operands: Any, platform: str, **params: Any) -> Any:
    if params["mesh"] is not None and _split.is_on_a_mesh(ctx):

        def multiply(*arrays: Any) -> Any:
            aval = arrays[-1]
            return packed_p.bind(*arrays[:-1], **{**params, "n": aval.shape[1], "dtype": aval.dtype, "mesh": None})

        run = split(multiply, _LAYOUT, ctx.avals_in, ctx.avals_out[0])
        return mlir.lower_fun(run, multiple_results=False)(ctx, *operands)
    return (_lower_cuda if platform == "cuda" else _lower_plain)(ctx, *operands, **params)


def _lower_cuda(ctx: Any, *operands: Any, **params: Any) -> Any:
    avals = ctx.avals_in
    if any(a.size == 0 for a in (*avals, *ctx.avals_out)):
        return _lower_plain(ctx, *operands, **params)
    program = functools.partial(program_of, avals, **params)
    why = _ffi.can_compile("cuda") or _ffi.why_no_kernel(program, _ffi.target_text("cuda"))
    if why is not None:
        warnings.warn(f"{_FUNCTION}: unpacks its weights of four bits: {why}", stacklevel=2)
        return _lower_plain(ctx, *operands, **params)
    return _ffi.emit_program(ctx, operands, program(), platform="cuda")


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    out = packed_p.bind(*primals, **params)
    if type(tangents[0]) is ad.Zero:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, packed_p.bind(*same_varying(tangents[0], *primals[1:]), **params)


def _transpose(cotangent: Any, lhs: Any, pieces: Any, *indices: Any, **params: Any) -> list[Any]:
    nothing = [None] * (1 + len(indices))
    if type(cotangent) is ad.Zero:
        return [ad.Zero(lhs.aval.to_ct_aval()), *nothing]
    weights = unpack_weights(_weights(lhs.aval, pieces, params), lhs.aval.dtype)
    grad = product(cotangent, weights, *indices, mode="rows", dtype=lhs.aval.dtype)
    return [placed_as(grad, lhs.aval.sharding), *nothing]


def _batch(args: Any, dims: Any, **params: Any) -> tuple[jax.Array, int]:
    lhs, pieces, *indices = args
    if all(d is None for d in dims[1:]):
        # Contiguous groups stay contiguous when every row becomes as many as the batch has.
        lhs = jnp.moveaxis(lhs, dims[0], 1)
        m, size, k = lhs.shape
        if m * size > INT32_MAX:
            raise ValueError(f"{_FUNCTION}: vmap of {size} x {m} rows exceeds 2**31-1; use jax.lax.map over the batch")
        starts, extents = spans(indices[0], indices[1] if len(indices) > 1 else None, m)
        indices = [extents * size] if len(indices) == 1 else [extents * size, starts * size]
        out = packed_p.bind(lhs.reshape(m * size, k), pieces, *indices, **params)
        return out.reshape(m, size, -1), 1
    return jax.vmap(functools.partial(_plain, **params), in_axes=tuple(dims))(*args), 0


compile_when_eager(packed_p, "format", "block", "n", "dtype", "mesh")
packed_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[packed_p] = _jvp
ad.primitive_transposes[packed_p] = _transpose
batching.primitive_batchers[packed_p] = _batch
mlir.register_lowering(packed_p, _lower_plain)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(packed_p, functools.partial(_lower, platform=_platform), platform=_platform)
