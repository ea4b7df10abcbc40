"""Matrices of weights as e4m3, along either of their axes: read once by one kernel, where the GPU has it.

x (matrices, rows, columns)   block None         scales (matrices, columns), only transposed
                              block (128, 128)   scales for blocks of the result, rounded up
data (matrices, rows, columns), or transposed (matrices, columns, rows), rows filled up with zeros to 16 elements
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching, mlir

from jax_fuser import _by_hand, _core, _ffi, _split, _trace
from jax_fuser._automatic import automatically, names_of
from jax_fuser._eager import compile_when_eager
from jax_fuser._quant import Block, is_large, quantize_floats, quantize_fused

_DTYPE = "float8_e4m3fn"
_FLOATS = ("bfloat16", "float16", "float32")
ALIGNMENT = 16  # bytes of rows that the products' kernels read at once
quantize_p = _trace.own_call("jax_fuser_quantize_matrices", "quantizes arrays for a product")
quantize_p.multiple_results = True


def quantize_matrices(x: Any, block: Block, transpose: bool) -> tuple[jax.Array, jax.Array]:
    """Return elements and scales; `block` is that of the result: `(None,)` or `(128, 128)`."""
    mesh = jax.typeof(x).sharding.mesh
    explicit = not mesh.empty and jax.sharding.AxisType.Explicit in mesh.axis_types
    has_kernel = x.ndim == 3 and str(x.dtype) in _FLOATS and (transpose or block != (None,))
    if explicit or not has_kernel or not is_large(x):
        *outer, rows, columns = names_of(x)
        names = [*outer, columns, rows] if transpose else [*outer, rows, columns]
        made: tuple[jax.Array, jax.Array] = automatically(
            functools.partial(plain, block=block, transpose=transpose), x, like=lambda _: [names, names]
        )
        return made
    data, scales = quantize_p.bind(x, block=block, transpose=transpose, mesh=_split.needs_devices())
    return data, scales


def plain(x: Any, *, block: Block, transpose: bool, fuses: bool = True) -> tuple[jax.Array, jax.Array]:
    """Return the same without the kernel."""
    x = jnp.swapaxes(x, -1, -2) if transpose else x
    missing = -x.shape[-1] % ALIGNMENT
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
    # Kernels of the fuser store the columns of what they fold one by one.
    if fuses and not transpose and is_large(x):
        return quantize_fused(x, _DTYPE, block)
    return quantize_floats(x, _DTYPE, block)


def _abstract_eval(x: Any, *, block: Block, transpose: bool, mesh: Any) -> list[Any]:
    del mesh
    results = jax.eval_shape(functools.partial(plain, block=block, transpose=transpose, fuses=False), x)
    kinds = [x.update(shape=r.shape, dtype=r.dtype, weak_type=False) for r in results]
    return [k.update(sharding=x.sharding.update(spec=jax.P(*[None] * len(k.shape)))) for k in kinds]


def _batch(args: Any, axes: Any, **params: Any) -> tuple[list[jax.Array], list[int]]:
    x = jnp.moveaxis(args[0], axes[0], 0)
    results = quantize_p.bind(x.reshape(-1, *x.shape[2:]), **params)
    return [r.reshape(*x.shape[:2], *r.shape[1:]) for r in results], [0, 0]


@functools.lru_cache(maxsize=4096)
def _program(dtype: Any, shape: tuple[int, ...], block: Block, transpose: bool) -> str:
    """What it computes, as the compiler could, and the name of the kernel that does."""
    f = functools.partial(plain, block=block, transpose=transpose, fuses=False)
    closed = jax.make_jaxpr(f)(jax.ShapeDtypeStruct(shape, dtype))
    _, program = _by_hand.one_fusion(closed, "quantize_matrices", "quantize")
    return f"{program.text}\nkernel quantize columns={int(block == (None,))} transpose={int(transpose)}\n"


def program_of(x: Any, block: Block, transpose: bool, target: str) -> str | None:
    """Return the program of the kernel, or None where the target has none for `x`."""
    try:
        program = _program(x.dtype, x.shape, block, transpose)
        _core.workspace_bytes(program, target)
    except _core.UserError:
        return None
    return program


def _lower_for_cuda(ctx: Any, x: Any, *, block: Block, transpose: bool, mesh: Any) -> Sequence[Any]:
    (aval,) = ctx.avals_in
    if not _split.is_on_a_mesh(ctx) and aval.size > 0 and _ffi.can_compile("cuda") is None:
        program = program_of(aval, block, transpose, _ffi.target_text("cuda"))
        if program is not None:
            return _ffi.emit_program(ctx, (x,), program, platform="cuda")
    return _lower_plain(ctx, x, block=block, transpose=transpose, mesh=mesh)


def _without_kernel(x: Any, *, block: Block, transpose: bool, mesh: Any) -> tuple[jax.Array, jax.Array]:
    del mesh
    return plain(x, block=block, transpose=transpose)


_lower_plain = mlir.lower_fun(_without_kernel, multiple_results=True)

compile_when_eager(quantize_p, "block", "transpose", "mesh")
quantize_p.def_abstract_eval(_abstract_eval)
batching.primitive_batchers[quantize_p] = _batch
mlir.register_lowering(quantize_p, _lower_plain)
mlir.register_lowering(quantize_p, _lower_for_cuda, platform="cuda")
