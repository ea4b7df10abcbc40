"""How the primitive of a fused region is lowered: as one program of kernels, or as XLA's own ops."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jax_fuser import _ffi, _flatten, _names, _random, _split, _trace, _trace_writer


def plain(*args: Any, jaxpr: Any, **_: Any) -> list[Any]:
    """Evaluate a region by JAX."""
    with np.errstate(over="ignore"):  # of literals, which JAX casts here and now
        return jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *args)


_lower_as_xla = mlir.lower_fun(plain, multiple_results=True)

_REMEDY = {
    "cpu": "install g++ or clang++, or `pip install jax-fuser[compiler]`",
    "cuda": "`pip install jax-fuser[cuda]`",
}


@functools.cache
def _warn_no_compiler(platform: str, reason: str) -> None:
    warnings.warn(
        f"fuse: fused functions run as plain XLA ops on {platform}: {reason}; {_REMEDY[platform]}; "
        "jax_fuser.doctor() shows what was found",
        RuntimeWarning,
        stacklevel=2,
    )


def _lacks_a_kernel(jaxpr: Any, name: str, platform: str) -> bool:
    """Whether a region has packed weights that no kernel of the platform takes."""
    if not any(eqn.primitive.name == _trace.PACKED_PRODUCT for eqn in jaxpr.eqns):
        return False
    text = _trace.write_program(jaxpr, name)[0].text
    return platform != "cuda" or _ffi.why_no_kernel(lambda: text or "", _ffi.target_text(platform)) is not None


def _lower_as_program(ctx: Any, *operands: Any, platform: str, fused_jaxpr: Callable[..., Any], **params: Any) -> Any:
    jaxpr = params["jaxpr"].jaxpr
    given: str | None = params.get("program")
    if given is None and not _trace.needs_kernel(jaxpr):
        return _lower_as_xla(ctx, *operands, **params)
    reason = _ffi.can_compile(platform)
    if _trace.is_small(params, platform if reason is None else ""):
        return _lower_as_xla(ctx, *operands, **params)
    if reason is not None:
        _warn_no_compiler(platform, reason)
        return _lower_as_xla(ctx, *operands, **params)
    on_a_mesh = _split.is_on_a_mesh(ctx)
    if given is not None and not on_a_mesh:
        return _ffi.emit_program(ctx, operands, given, platform=platform)
    draws = any(_random.draws(_trace_writer.label(eqn)) for eqn in jaxpr.eqns)
    if (on_a_mesh and (draws or _trace.has_product(jaxpr))) or _lacks_a_kernel(jaxpr, params["name"], platform):
        # The numbers of elements are those of the whole array; XLA knows which of them a device has. And it splits
        # what reads a product by itself. Packed weights that no kernel takes are unpacked where they are multiplied.
        linear = [v for v, is_linear in zip(jaxpr.invars, params["linear"]) if is_linear]
        flat = _flatten.Flat(jaxpr.invars, jaxpr.outvars, jaxpr.eqns, [])
        inner = fused_jaxpr(flat, params["name"], linear, "left" if draws else "apart", leave_products=True)
        return mlir.lower_fun(functools.partial(jax.core.eval_jaxpr, inner, ()), multiple_results=True)(ctx, *operands)
    if on_a_mesh and not operands:
        return _lower_as_xla(ctx, *operands, **params)  # nothing says how to split it
    program, axes = _trace.write_program(jaxpr, params["name"])
    results: Sequence[Any] = ()
    if program.text is not None:
        avals = [ctx.avals_out[i] for i in program.first]
        ctx = ctx.replace(avals_out=avals)
        if on_a_mesh:
            lower = mlir.lower_fun(_split.split(axes, program.text, avals), multiple_results=True)
            results = lower(ctx, *operands)
        else:
            shown = _shown(jaxpr, params["name"]) if os.environ.get("JAX_FUSER_DUMP") else ""
            results = _ffi.emit_program(ctx, operands, program.text, platform=platform, shown=shown)
    return program.results(operands, results)


def _shown(jaxpr: Any, name: str) -> str:
    """Return a region's program with the user's names."""
    names = _names.of(jaxpr.debug_info, len(jaxpr.invars), len(jaxpr.outvars))
    return _trace.write_program(jaxpr, name, names)[0].text or ""


def register_lowerings(primitive: Any, fused_jaxpr: Callable[..., Any]) -> None:
    """Register how `primitive` is lowered on each platform; `fused_jaxpr` cuts a jaxpr into regions."""
    mlir.register_lowering(primitive, _lower_as_xla)
    for platform in _REMEDY:
        lower = functools.partial(_lower_as_program, platform=platform, fused_jaxpr=fused_jaxpr)
        mlir.register_lowering(primitive, lower, platform=platform)
