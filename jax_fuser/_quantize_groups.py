"""Rows of groups as transposed e4m3, with scales that are known: one kernel reads each row once, where the GPU has it.

x (m, k)    row, group (places,)    inverses of the scales (groups, k)    data (k, places)

Groups follow each other in the places, each filled up with zeros: places whose row is m. Four places from a multiple of
four on are of one group, and there are a multiple of 128.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching, mlir

from jax_fuser import _by_hand, _core, _ffi, _split, _trace
from jax_fuser._eager import compile_when_eager
from jax_fuser._fuse import Fused, fuse
from jax_fuser._varying import same_varying

DTYPE = "float8_e4m3fn"
_FLOATS = ("bfloat16", "float16", "float32")
quantize_p = _trace.own_call("jax_fuser_quantize_groups", "quantizes arrays for a product")


def quantize_groups(x: Any, row: Any, group: Any, inverses: Any) -> jax.Array:
    """Return the elements, by kernels of our own."""
    mesh = jax.typeof(x).sharding.mesh
    explicit = not mesh.empty and jax.sharding.AxisType.Explicit in mesh.axis_types
    if explicit or str(x.dtype) not in _FLOATS:
        return in_two_passes(x, row, group, inverses)
    result: jax.Array = quantize_p.bind(*same_varying(x, row, group, inverses), mesh=_split.needs_devices())
    return result


def plain(x: Any, row: Any, group: Any, inverses: Any) -> Any:
    """Return the same by ops of JAX."""
    return _turned(_filled(x, row, group, inverses))


def in_two_passes(x: Any, row: Any, group: Any, inverses: Any, *, mesh: Any = None) -> Any:
    """Return the same: as one function the compiler would read along the wrong axis."""
    del mesh
    return _fused(_turned)(_fused(_filled)(x, row, group, inverses))


def _filled(x: Any, row: Any, group: Any, inverses: Any) -> Any:
    """Return the rows, quantized; zeros for those past the last."""
    rows = x.at[row].get(mode="clip").astype(jnp.float32) * inverses[group]
    return jnp.where((row < x.shape[0])[:, None], rows, 0).astype(DTYPE)


def _turned(x: Any) -> Any:
    return x.T


@functools.cache
def _fused(f: Any) -> Fused:
    return fuse(f, name="quantize_groups")


def _abstract_eval(x: Any, row: Any, group: Any, inverses: Any, *, mesh: Any) -> Any:
    del group, inverses, mesh
    whole = x.sharding.update(spec=jax.P(None, None))
    return x.update(shape=(x.shape[1], row.shape[0]), dtype=jnp.dtype(DTYPE), weak_type=False, sharding=whole)


def _batch(args: Any, axes: Any, *, mesh: Any) -> tuple[jax.Array, int]:
    del mesh
    return jax.vmap(in_two_passes, in_axes=tuple(axes))(*args), 0


@functools.lru_cache(maxsize=4096)
def _program(types: tuple[tuple[Any, tuple[int, ...]], ...]) -> str:
    """What it computes, as the compiler could, and the name of the kernel that does."""
    closed = jax.make_jaxpr(plain)(*(jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in types))
    _, program = _by_hand.one_fusion(closed, "quantize_groups", "quantize")
    return f"{program.text}\nkernel quantize_groups\n"


def program_of(avals: Sequence[Any], target: str) -> str | None:
    """Return the program of the kernel, or None where the target has none for these operands."""
    try:
        program = _program(tuple((a.dtype, a.shape) for a in avals))
        _core.workspace_bytes(program, target)
    except _core.UserError:
        return None
    return program


def _lower_for_cuda(ctx: Any, *operands: Any, mesh: Any) -> Sequence[Any]:
    if not _split.is_on_a_mesh(ctx) and _ffi.can_compile("cuda") is None:
        program = program_of(ctx.avals_in, _ffi.target_text("cuda"))
        if program is not None:
            return _ffi.emit_program(ctx, operands, program, platform="cuda")
    return _lower_plain(ctx, *operands, mesh=mesh)


_lower_plain = mlir.lower_fun(in_two_passes, multiple_results=False)

compile_when_eager(quantize_p, "mesh")
quantize_p.def_abstract_eval(_abstract_eval)
batching.primitive_batchers[quantize_p] = _batch
mlir.register_lowering(quantize_p, _lower_plain)
mlir.register_lowering(quantize_p, _lower_for_cuda, platform="cuda")
