"""The one custom call of the package: `jax_fuser.program`, for CPU and CUDA."""

from __future__ import annotations

import atexit
import functools
import glob
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from . import _core, _tuned

_TARGET_NAME = "jax_fuser.program"
_PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}
_EXPLICIT = getattr(jax.stages.Traced.lower, "__code__", None)

_DTYPE_NAMES = {
    "bool": "pred",
    "int8": "s8",
    "int16": "s16",
    "int32": "s32",
    "int64": "s64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2",
    "float8_e8m0fnu": "u8",  # bytes, that are moved and no more
}


@functools.cache
def dtype_name(dtype: Any) -> str | None:
    """Return the compiler's name of a dtype ("bf16"), or None where the compiler does not know it."""
    return _DTYPE_NAMES.get(str(jnp.dtype(dtype))) if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else None


def known_dtype_name(dtype: Any) -> str:
    """Return the compiler's name of a dtype that it knows."""
    name = dtype_name(dtype)
    assert name is not None, dtype
    return name


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype that the compiler calls `name`; of u4 that of the bytes that hold two each."""
    if name == "u4":
        return jnp.dtype("uint8")
    return jnp.dtype(next(dtype for dtype, own in _DTYPE_NAMES.items() if own == name))


def array_type(name: str, shape: Sequence[int]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of the array that holds a value of this dtype and shape."""
    packed = (*shape[:-1], shape[-1] // 2) if name == "u4" else tuple(shape)
    return packed, dtype_named(name)


def register() -> None:
    """Register the custom call with JAX. Called once, when the package is imported."""
    for directory in _nvrtc_dirs():
        _core.add_nvrtc_dir(directory)
    spec = importlib.util.find_spec("ziglang")
    if spec is not None and spec.submodule_search_locations:
        _core.set_zig(os.path.join(spec.submodule_search_locations[0], "zig"))
    for platform, xla_platform in _PLATFORMS.items():
        jax.ffi.register_ffi_target(_TARGET_NAME, _core.handlers(platform), platform=xla_platform)
    atexit.register(_core.end_background)


def _nvrtc_dirs() -> list[str]:
    """Return the folders of installed NVRTC wheels; JAX's own plugin finds the same ones."""
    found: list[str] = []
    for root in sys.path:
        wheels = os.path.join(glob.escape(root), "nvidia")
        found += sorted(glob.glob(os.path.join(wheels, "cu1[0-9]", "lib")), reverse=True)
        found += glob.glob(os.path.join(wheels, "cuda_nvrtc", "lib"))
    return found


@functools.cache
def target_text(platform: str) -> str:
    """Return the target that programs of this process are compiled for.

    Without a CUDA device (an export from a CPU machine) this is a Hopper target; the machine that runs the program
    plans it again for its own device.
    """
    if platform == "cpu":
        return _core.host_target()
    return _core.cuda_target(0) or _core.cuda_target_for(90)


def memory_bandwidth(platform: str) -> float | None:
    """Return the bytes per second of the memory that programs of this process use, where its driver tells."""
    bandwidth: float = _core.memory_bandwidth(0) if platform == "cuda" else 0.0
    return bandwidth or None


@functools.cache
def can_compile(platform: str) -> str | None:
    """Return None where generated kernels can be compiled and run, otherwise the reason why not."""
    if platform == "cpu":
        path, reason = _core.host_compiler()
        return None if path else reason
    # Without a device this is an export: the machine that loads it compiles.
    target = _core.cuda_target(0)
    if target is None:
        return None
    capability = int(target.split()[1].removeprefix("sm="))
    if capability < 80:
        return f"compute capability {capability / 10} is below 8.0"
    path, reason = _core.nvrtc()
    return None if path else reason


def why_no_kernel(make_program: Callable[[], str], target: str) -> str | None:
    """Return in one line why a target has no kernel for a program, or there is no such program, or None."""
    try:
        _core.workspace_bytes(make_program(), target)
    except _core.UserError as error:
        return str(error).splitlines()[0]
    return None


def _is_only_lowered() -> bool:
    """Return whether the caller lowers by `jax.jit(f).lower` or to export, which need not lead to compiling."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _EXPLICIT:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def emit_program(
    ctx: mlir.LoweringRuleContext, operands: Sequence[Any], program: str, *, platform: str, shown: str = ""
) -> Sequence[Any]:
    """Emit the custom call that runs `program` on `operands`; results have the types of ctx.avals_out.

    The program's shapes are those of the buffers: XLA must not split this call by itself. `shown`: the same program
    with the user's names, for JAX_FUSER_DUMP.
    """
    target = target_text(platform)
    module = id(ctx.module_context.module)
    # What is exported may run on another device, which keeps more between its kernels, and has parameters of its own.
    portable = ctx.module_context.lowering_parameters.for_export
    if not portable:
        plain, program = program, _tuned.with_choices(program, target)
        shown = shown and shown + program[len(plain) :]
    workspace = _core.workspace_bytes(program, target, portable, module, not _is_only_lowered(), shown)
    avals_out = list(ctx.avals_out)
    if workspace:
        avals_out.append(jax.core.ShapedArray((workspace,), np.dtype(np.uint8)))
    ctx = ctx.replace(avals_out=avals_out)
    # XLA makes equal calls one, and drops those whose results nobody reads: not where they are timed.
    lowering = jax.ffi.build_ffi_lowering_function(_TARGET_NAME, has_side_effect=_tuned.is_trial())
    call = lowering(ctx, *operands, program=program, target=target, abi=np.int64(_core.ABI))
    results = list(call.results)
    return results[:-1] if workspace else results


def buffer_bytes(aval: Any) -> int:
    """Return the bytes of one array of this type."""
    return math.prod(aval.shape) * jnp.dtype(aval.dtype).itemsize
