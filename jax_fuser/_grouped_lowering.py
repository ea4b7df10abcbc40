"""How the grouped product reaches XLA: one custom call where there are kernels, plain ops elsewhere."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_fuser import _core, _ffi, _grouped_split, _split
from jax_fuser._accumulator import at_least_float32
from jax_fuser._row_groups import row_groups, spans

# Element types that the kernels multiply; XLA multiplies the others (complex).
_FLOATS = ("f16", "bf16", "f32", "f64")
_INTEGERS = ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")
_PLATFORMS = ("cpu", "cuda")


def plain_xla(lhs: Any, rhs: Any, extents: Any, *starts: Any, mode: str, transpose_rhs: bool, dtype: Any,
               has_starts: bool, **_: Any) -> jax.Array:  # fmt: skip
    """One dense product per group, masked: right everywhere, fast nowhere. For platforms without kernels."""
    del has_starts
    m, groups = lhs.shape[0], extents.shape[0]
    first, count = spans(extents, starts[0] if starts else None, m)
    wide = dtype
    if jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(lhs.dtype, jnp.floating):
        # Integers that floats become are sums of floats, too: XLA would cut off each bf16 term.
        wide = at_least_float32(dtype if jnp.issubdtype(dtype, jnp.inexact) else lhs.dtype)
    dot = functools.partial(jax.lax.dot_general, precision="highest", preferred_element_type=wide)
    if not np.issubdtype(lhs.dtype, np.inexact):
        lhs, rhs = lhs.astype(wide), rhs.astype(wide)
    if mode == "batch":
        owned = row_groups(extents, starts[0] if starts else None, m) < groups
        out = dot(lhs, rhs, (((2,), (2 if transpose_rhs else 1,)), ((0,), (0,))))
        return jnp.where(owned[:, None, None], out, 0).astype(dtype)
    row = jnp.arange(m, dtype=jnp.int32)[:, None]

    def rows_of(group: tuple[Any, Any]) -> jax.Array:
        return (row >= group[0]) & (row < group[0] + group[1])

    def add_group(out: jax.Array, group: Any) -> tuple[jax.Array, None]:
        part = dot(lhs, group[2], (((1,), (1 if transpose_rhs else 0,)), ((), ())))
        return jnp.where(rows_of(group), part, out), None

    def sum_group(_: None, group: Any) -> tuple[None, jax.Array]:
        inside = rows_of(group)
        return None, dot(jnp.where(inside, lhs, 0), jnp.where(inside, rhs, 0), (((0,), (0,)), ((), ())))

    if mode == "rows":
        if groups == 0:
            return jnp.zeros((m, rhs.shape[1 if transpose_rhs else 2]), dtype)
        # Zeros of the type (manual axes, sharding) that the products have.
        empty = jnp.where(False, dot(lhs, rhs[0], (((1,), (1 if transpose_rhs else 0,)), ((), ()))), 0)
        return jax.lax.scan(add_group, empty, (first, count, rhs))[0].astype(dtype)
    return jax.lax.scan(sum_group, None, (first, count))[1].astype(dtype)


_lower_as_xla = mlir.lower_fun(plain_xla, multiple_results=False)


@functools.lru_cache(maxsize=4096)
def _program(types: tuple[tuple[str, tuple[int, ...]], ...], mode: str, transpose_rhs: bool, dtype: str,
             leaves_padding: bool) -> str:  # fmt: skip
    builder = _core.Builder(f"grouped_matmul_{mode}")
    names = ("lhs", "rhs", "extents", "starts")
    values = [builder.input(name, kind, list(shape)) for name, (kind, shape) in zip(names, types)]
    starts = values[3] if len(values) == 4 else None
    lhs, rhs, extents = values[:3]
    builder.output(builder.grouped_matmul(lhs, rhs, extents, starts, mode, transpose_rhs, dtype, "grouped_matmul",
                                          leaves_padding=leaves_padding))  # fmt: skip
    text: str = builder.finish()
    return text


def _lower_as_program(ctx: Any, *operands: Any, primitive: Any, platform: str, **params: Any) -> Any:
    if params["mesh"] is not None and _split.is_on_a_mesh(ctx):
        # A device's part is not split again.
        def multiply(*arrays: Any) -> Any:
            local = {**params, "dtype": arrays[-1].dtype, "has_starts": len(arrays) == 5, "mesh": None}
            return primitive.bind(*arrays[:-1], **local)

        axes = _grouped_split.layout(params["mode"], params["transpose_rhs"])
        run = _grouped_split.split(multiply, axes, ctx.avals_in, ctx.avals_out[0])
        return mlir.lower_fun(run, multiple_results=False)(ctx, *operands)
    dtypes = [_ffi.dtype_name(a.dtype) for a in (*ctx.avals_in, *ctx.avals_out)]
    lhs, rhs, out = dtypes[0], dtypes[1], dtypes[-1]
    known = lhs == rhs and any(lhs in kind and out in kind for kind in (_FLOATS, _INTEGERS))
    known = known and (lhs == "f64") == (out == "f64")  # no kernel accumulates wider than its operands need
    empty = any(a.size == 0 for a in (*ctx.avals_in, *ctx.avals_out))
    # Kernels of the grouped product come compiled for CPU; for CUDA they are compiled at run time.
    if not known or empty or (platform == "cuda" and _ffi.can_compile(platform) is not None):
        return _lower_as_xla(ctx, *operands, **params)
    types = tuple((d, a.shape) for d, a in zip(dtypes, ctx.avals_in))
    program = _program(types, params["mode"], params["transpose_rhs"], dtypes[-1], params["leaves_padding"])
    return _ffi.emit_program(ctx, operands, program, platform=platform)


def register_lowerings(primitive: Any) -> None:
    """Register how `primitive` is lowered on each platform."""
    mlir.register_lowering(primitive, _lower_as_xla)
    for platform in _PLATFORMS:
        lower = functools.partial(_lower_as_program, primitive=primitive, platform=platform)
        mlir.register_lowering(primitive, lower, platform=platform)
