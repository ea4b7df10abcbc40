"""The grouped product with packed weights of four bits, as one JAX primitive.

    lhs (m, k), pieces of weights (groups, n, k), factors (groups,)  ->  (m, n), or (m, n) -> (m, k)

On GPUs of compute capability 9.0 a kernel decodes the weights on their way to the tensor cores; elsewhere they become
an array of the dtype of lhs first. Differentiable in lhs: the two forms are each other's transpose.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from jax_fuser import _core, _ffi, _split, _trace
from jax_fuser._automatic import placed_as
from jax_fuser._eager import compile_when_eager
from jax_fuser._grouped_primitive import INT32_MAX, product
from jax_fuser._grouped_split import Layout, result_sharding, split
from jax_fuser._nested_checks import check_extents, check_groups, index_array, to_int32
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._packed_weights import PackedWeights, unpack_weights
from jax_fuser._ragged_dot import to_extents
from jax_fuser._row_groups import ordered_starts, spans
from jax_fuser._varying import same_varying

packed_p = _trace.own_call(_trace.PACKED_PRODUCT)
_FUNCTION = "scaled_grouped_matmul"
# Weights are pieces of 64 columns by 64 contraction indices; `transpose_rhs` as in `_grouped_primitive`.
_SIDE = 64
_LAYOUTS = {
    True: Layout(("mk", "gNKw", "g"), "mn", "kg", {"n": _SIDE, "k": _SIDE}, whole="w"),
    False: Layout(("mk", "gKNw", "g"), "mn", "kg", {"n": _SIDE, "k": _SIDE}, whole="w"),
}


def check_rows(fn: str, lhs: NestedTensor) -> None:
    """Refuse a nested `lhs` whose groups are no rows."""
    if lhs.ragged_dim or lhs.extents.ndim != 1:
        raise ValueError(
            f"{fn}: a nested lhs must have its rows ragged, [groups, ragged, k], got {lhs.shape}; dequantize, and see "
            "grouped_matmul, which sums over a ragged k and takes outer dimensions"
        )


def multiply_packed(lhs: Any, weights: PackedWeights, group_sizes: Any, multiply: Callable[..., Any], validate: bool
                    ) -> Any:  # fmt: skip
    """Check the operands of `scaled_grouped_matmul` with rows of floats and packed weights, and multiply them.

    `multiply(rows, weights, extents, starts)` does.
    """
    nested = lhs if isinstance(lhs, NestedTensor) else None
    starts = None
    if nested is not None:
        if group_sizes is not None:
            raise TypeError(
                f"{_FUNCTION}: group_sizes= needs lhs as an array of rows, got a NestedTensor; leave it out"
            )
        check_rows(_FUNCTION, nested)
        if validate:
            check_groups(_FUNCTION, nested)
        data, extents = nested.data, to_int32(nested.extents)
        if nested.gapped:
            starts = ordered_starts(nested.starts, extents, nested.capacity)
    else:
        if group_sizes is None:
            raise TypeError(f"{_FUNCTION}: lhs is an array, so group_sizes= is needed")
        data, extents = lhs, index_array(_FUNCTION, "group_sizes", group_sizes, validate)
    groups, _, k = weights.shape
    if data.ndim != 2 or extents.shape != (groups,) or data.shape[1] != k:
        raise ValueError(
            f"{_FUNCTION}: weights {weights.shape} as (groups, n, k) need lhs (m, {k}) and group_sizes ({groups},), "
            f"got {data.shape} and {extents.shape}; reshape the rows to these"
        )
    if nested is None:
        if validate:
            check_extents(_FUNCTION, extents, data.shape[0], 0, "group_sizes", "lhs")
        extents = to_extents(extents, data.shape[0])
    out = multiply(data, weights, extents, starts)
    return out if nested is None else nested.replace(data=out)


def packed_product(lhs: Any, weights: PackedWeights, extents: Any, starts: Any = None, *, dtype: Any,
                   transpose_rhs: bool = True) -> jax.Array:  # fmt: skip
    """Multiply the rows of each group by its weights `(n, k)`, transposed or not; rows of no group give zero."""
    operands = (lhs, weights.pieces, weights.factors, extents, *(() if starts is None else (starts,)))
    return packed_p.bind(
        *same_varying(*operands),
        format=weights.format,
        block=weights.block,
        n=weights.n if transpose_rhs else weights.k,
        transpose_rhs=transpose_rhs,
        dtype=np.dtype(dtype),
        mesh=_split.needs_devices(),
    )


def _plain(lhs: Any, pieces: Any, factors: Any, extents: Any, *starts: Any, format: str, block: int, n: int, dtype: Any,
           transpose_rhs: bool, **_: Any) -> jax.Array:  # fmt: skip
    shape = (n, lhs.shape[-1]) if transpose_rhs else (lhs.shape[-1], n)
    weights = unpack_weights(PackedWeights(pieces, factors, format, block, *shape), lhs.dtype)
    return product(lhs, weights, extents, *starts, mode="rows", dtype=dtype, transpose_rhs=transpose_rhs)


def _abstract_eval(lhs: Any, pieces: Any, factors: Any, extents: Any, *starts: Any, n: int, dtype: Any,
                   transpose_rhs: bool, **_: Any) -> Any:  # fmt: skip
    sides = (n, lhs.shape[-1]) if transpose_rhs else (lhs.shape[-1], n)
    pieces_of = tuple(-(-side // _SIDE) for side in sides)
    fits = lhs.ndim == 2 and pieces.ndim == 4 and extents.shape == factors.shape == pieces.shape[:1]
    fits = fits and pieces.shape[1:3] == pieces_of
    if not fits or any(i.dtype != jnp.int32 or i.shape != extents.shape for i in (extents, *starts)):
        got = ", ".join(f"{a.dtype}{list(a.shape)}" for a in (lhs, pieces, factors, extents, *starts))
        raise ValueError(
            f"scaled_grouped_matmul: operands do not fit packed weights {sides} of pieces {_SIDE} x {_SIDE}: {got}; "
            "repack_weights makes them"
        )
    sharding = result_sharding(_FUNCTION, _LAYOUTS[transpose_rhs], lhs)
    return lhs.update(shape=(lhs.shape[0], n), dtype=dtype, weak_type=False, sharding=sharding)


@functools.lru_cache(maxsize=4096)
def _program(
    types: tuple[tuple[str, tuple[int, ...]], ...], weights: str, n: int, dtype: str, transpose_rhs: bool = True
) -> str:
    builder = _core.Builder("packed_matmul")
    names = ("lhs", "weights", "factors", "extents", "starts")
    values = [builder.input(name, kind, list(shape)) for name, (kind, shape) in zip(names, types)]
    lhs, pieces, factors, extents, *starts = values
    builder.output(
        builder.grouped_matmul(lhs, pieces, extents, starts[0] if starts else None, "rows", transpose_rhs, dtype,
                               "packed_matmul", scales=[factors], weights=weights, columns=n)
    )  # fmt: skip
    return builder.finish()


_lower_plain = mlir.lower_fun(_plain, multiple_results=False)


def program_of(avals: Any, dtype: Any, *, format: str, block: int, n: int, transpose_rhs: bool, **_: Any) -> str:
    """Return the program of a product of operands of these types."""
    types = tuple((_ffi.known_dtype_name(a.dtype), a.shape) for a in avals)
    return _program(types, _kind(format, block), n, _ffi.known_dtype_name(dtype), transpose_rhs)


def _kind(format: str, block: int) -> str:
    return format if format != "int4" else f"int4x{block}"


def _in_fusion(w: Any, eqn: Any, x: Any) -> Any:
    p = eqn.params
    dtype, weights = _ffi.known_dtype_name(p["dtype"]), _kind(p["format"], p["block"])
    return [w.builder.grouped_product("rows", x, p["transpose_rhs"], dtype, p["n"], w.label(eqn), weights)]


def _refuse(eqn: Any) -> str | None:
    # As a product of arrays: only what a kernel ends with what follows is worth being part of a fusion.
    out = eqn.outvars[0].aval
    known = str(eqn.invars[0].aval.dtype) == "bfloat16" and str(out.dtype) in ("bfloat16", "float16", "float32")
    filled = all(math.prod(v.aval.shape) for v in (*eqn.invars, *eqn.outvars))
    return None if known and filled else "a grouped product of other types, or without elements"


def _lower(ctx: Any, *operands: Any, platform: str, **params: Any) -> Any:
    if params["mesh"] is not None and _split.is_on_a_mesh(ctx):

        def multiply(*arrays: Any) -> Any:
            aval = arrays[-1]
            return packed_p.bind(*arrays[:-1], **{**params, "n": aval.shape[1], "dtype": aval.dtype, "mesh": None})

        run = split(multiply, _LAYOUTS[params["transpose_rhs"]], ctx.avals_in, ctx.avals_out[0])
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
    if type(tangents[2]) is not ad.Zero:
        raise TypeError(
            f"{_FUNCTION}: has no derivative in the factors of PackedWeights; take jax.lax.stop_gradient of them, or "
            "multiply what follows by factors of your own"
        )
    out = packed_p.bind(*primals, **params)
    if type(tangents[0]) is ad.Zero:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, packed_p.bind(*same_varying(tangents[0], *primals[1:]), **params)


def _transpose(cotangent: Any, lhs: Any, pieces: Any, *rest: Any, transpose_rhs: bool, n: int, dtype: Any,
               **params: Any) -> list[Any]:  # fmt: skip
    nothing = [None] * (1 + len(rest))
    if type(cotangent) is ad.Zero:
        return [ad.Zero(lhs.aval.to_ct_aval()), *nothing]
    grad = packed_p.bind(*same_varying(cotangent, pieces, *rest), n=lhs.aval.shape[-1], dtype=lhs.aval.dtype,
                         transpose_rhs=not transpose_rhs, **params)  # fmt: skip
    return [placed_as(grad, lhs.aval.sharding), *nothing]


def _batch(args: Any, dims: Any, **params: Any) -> tuple[jax.Array, int]:
    lhs, pieces, factors, *indices = args
    if all(d is None for d in dims[1:]):
        # Contiguous groups stay contiguous when every row becomes as many as the batch has.
        lhs = jnp.moveaxis(lhs, dims[0], 1)
        m, size, k = lhs.shape
        if m * size > INT32_MAX:
            raise ValueError(f"{_FUNCTION}: vmap of {size} x {m} rows exceeds 2**31-1; use jax.lax.map over the batch")
        starts, extents = spans(indices[0], indices[1] if len(indices) > 1 else None, m)
        indices = [extents * size] if len(indices) == 1 else [extents * size, starts * size]
        out = packed_p.bind(lhs.reshape(m * size, k), pieces, factors, *indices, **params)
        return out.reshape(m, size, -1), 1
    return jax.vmap(functools.partial(_plain, **params), in_axes=tuple(dims))(*args), 0


compile_when_eager(packed_p, "format", "block", "n", "transpose_rhs", "dtype", "mesh")
packed_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[packed_p] = _jvp
ad.primitive_transposes[packed_p] = _transpose
batching.primitive_batchers[packed_p] = _batch
_trace.RULES[packed_p.name] = _trace.Rule(_in_fusion, refuse=_refuse, fits=False)
mlir.register_lowering(packed_p, _lower_plain)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(packed_p, functools.partial(_lower, platform=_platform), platform=_platform)
