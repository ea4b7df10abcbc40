"""A grouped product, with what follows it, whose result is quantized: in one kernel where the GPU has it.

The primitive's jaxpr is the product with everything after it, up to the floats that are quantized. On GPUs of compute
capability 9.0 it is one kernel, and those floats are never stored; elsewhere it is that product, then `quantize`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_fuser import _by_hand, _core, _ffi, _fp4, _fused_primitive, _split, _trace
from jax_fuser._activations import jit_of_given
from jax_fuser._eager import compile_when_eager
from jax_fuser._grouped_tail import product_and_tail
from jax_fuser._quant import FORMATS, ScaledTensor, columns_of_scale, quantize
from jax_fuser._varying import same_varying

# Formats that the kernel makes: dtypes of elements and of scales, those of e8m0 as bits. "fp8_row" is none: the scale
# of a row waits for all its columns, which many blocks compute.
IN_KERNEL = {
    "fp8_block": ("float8_e4m3fn", "float32"),
    "mxfp8": ("float8_e4m3fn", "uint8"),
    "nvfp4": ("uint8", "float8_e4m3fn"),
    "mxfp4": ("uint8", "uint8"),
}
_NARROW = ("bfloat16", "float16")
quantized_p = _trace.own_call("jax_fuser_quantized_product", "a grouped product whose result is quantized")
quantized_p.multiple_results = True


def check_format(fn: str, format: Any, dtype: Any, columns: int) -> None:
    """Raise where results of this dtype and so many columns do not become this format."""
    if not isinstance(format, str) or format not in FORMATS:
        raise ValueError(f"{fn}: output_format must be None or one of {sorted(FORMATS)}, got {format!r}")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"{fn}: output_format={format!r} quantizes floats, the result is {dtype}; pass preferred_element_type="
            "jnp.bfloat16"
        )
    (block,) = FORMATS[format].blocks[0] or (None,)
    if format in _fp4.FORMATS and block is not None and columns % block:
        raise ValueError(
            f"{fn}: output_format={format!r} needs a result with columns in multiples of {block}, got {columns}; pad "
            "rhs with columns of zeros, or take a format of 8 bits"
        )


@dataclass(frozen=True)
class _How:
    """What is computed of (x, rhs, extents[, starts][, bias][, scale]); `given`: which in brackets there are."""

    given: tuple[bool, ...]
    transpose_rhs: bool
    activation: Callable[[jax.Array], jax.Array] | None
    gated: bool
    dtype: Any
    format: str

    def product(self, x: Any, rhs: Any, extents: Any, *rest: Any) -> jax.Array:
        values = iter(rest)
        starts, bias, scale = (next(values) if is_given else None for is_given in self.given)
        return product_and_tail(
            x, rhs, extents, starts, bias, scale, transpose_rhs=self.transpose_rhs, activation=self.activation,
            gated=self.gated, dtype=self.dtype,
        )  # fmt: skip

    def in_two_steps(self, *operands: Any, **_: Any) -> list[jax.Array]:
        made = quantize(self.product(*operands), self.format)
        return [made.data, made.scales.view(IN_KERNEL[self.format][1])]


def product_and_quantize(
    x: Any,
    rhs: Any,
    extents: Any,
    starts: Any,
    bias: Any,
    scale: Any,
    *,
    transpose_rhs: bool,
    activation: Callable[[jax.Array], jax.Array] | None,
    gated: bool,
    dtype: Any,
    format: str,
) -> ScaledTensor:
    """Return what `quantize` makes of what `product_and_tail` returns, in a format of `IN_KERNEL`."""
    optional = (starts, bias if bias is None else jnp.asarray(bias), scale)
    how = _How(tuple(a is not None for a in optional), transpose_rhs, activation, gated, jnp.dtype(dtype), format)
    operands = [a for a in (x, rhs, extents, *optional) if a is not None]
    columns = rhs.shape[1 if transpose_rhs else 2] // (2 if gated else 1)
    narrow = all(jnp.dtype(d).name in _NARROW for d in (x.dtype, rhs.dtype, dtype))
    mesh = jax.typeof(x).sharding.mesh
    explicit = not mesh.empty and jax.sharding.AxisType.Explicit in mesh.axis_types
    whole = columns % columns_of_scale(FORMATS[format].blocks[0]) == 0
    has_kernel = narrow and x.dtype == rhs.dtype and whole and 0 not in (*x.shape, *rhs.shape)
    if not has_kernel or explicit or _fused_primitive.jit_is_off():
        data, scales = how.in_two_steps(*operands)
    else:
        data, scales = _bound(*same_varying(*operands), how=how)
    if scales.dtype == jnp.uint8:
        scales = scales.view(jnp.float8_e8m0fnu)
    return ScaledTensor(data, scales, None, format, FORMATS[format].blocks[0])


@jit_of_given("how")
def _bound(*operands: Any, how: _How) -> list[jax.Array]:
    closed = jax.make_jaxpr(how.product)(*operands)
    # An activation that closes over arrays, or prints, is no part of a kernel.
    if closed.consts or closed.effects:
        return how.in_two_steps(*operands)
    return quantized_p.bind(*operands, jaxpr=closed, how=how, mesh=_split.needs_devices())


def _abstract_eval(*_: Any, jaxpr: Any, how: _How, **__: Any) -> list[Any]:
    (out,) = jaxpr.out_avals
    m, n = out.shape
    widths = n // 2 if how.format in _fp4.FORMATS else n, n // columns_of_scale(FORMATS[how.format].blocks[0])
    return [
        out.update(shape=(m, width), dtype=jnp.dtype(dtype), weak_type=False)
        for width, dtype in zip(widths, IN_KERNEL[how.format])
    ]


def _no_derivative(*_: Any, **__: Any) -> Any:
    raise TypeError(
        "grouped_matmul: output_format= has no derivative (rounding to few bits is flat almost everywhere); leave it "
        "out, and pass floats and format= to scaled_grouped_matmul, take jax.lax.stop_gradient of the arguments, or "
        "give what you compute a jax.custom_vjp"
    )


def _batch(args: Any, dims: Any, *, how: _How, **_: Any) -> tuple[list[Any], list[int]]:
    return jax.vmap(how.in_two_steps, in_axes=tuple(dims))(*args), [0, 0]


def program_of(jaxpr: Any, format: str) -> str:
    """Return what the kernel computes as a fusion, and the line that stores it quantized; UserError where none can."""
    _, program = _by_hand.one_fusion(jaxpr, "grouped_matmul", "grouped_matmul")
    return f"{program.text}\nquantized {format}\n"


def kernels(jaxpr: Any, format: str, platform: str, target: str) -> str:
    """Say which kernels it becomes, for people."""
    why = f"platform {platform} has no such kernel"
    if platform == "cuda":
        why = _ffi.can_compile(platform) or _ffi.why_no_kernel(lambda: program_of(jaxpr, format), target) or ""
    if why:
        return f"two steps, the product and then quantize: {why}"
    [facts] = _core.facts(program_of(jaxpr, format), target)
    return f"one kernel multiplies and quantizes: {facts['parameters']}"


def _is_exported(ctx: Any) -> bool:
    exported: bool = ctx.module_context.lowering_parameters.for_export
    return exported


def _lower_for_cuda(ctx: Any, *operands: Any, jaxpr: Any, how: _How, mesh: Any) -> Sequence[Any]:
    # What is exported may run on a GPU without the kernel: of another kind, or with more processors, where k is split.
    if not _is_exported(ctx) and not _split.is_on_a_mesh(ctx) and _ffi.can_compile("cuda") is None:
        target = _ffi.target_text("cuda")
        program = functools.partial(program_of, jaxpr, how.format)
        if _ffi.why_no_kernel(program, target) is None:
            return _ffi.emit_program(ctx, operands, program(), platform="cuda")
    return _lower_in_two_steps(ctx, *operands, jaxpr=jaxpr, how=how, mesh=mesh)


def _in_two_steps(*operands: Any, how: _How, **_: Any) -> list[jax.Array]:
    return how.in_two_steps(*operands)


def _lower_in_two_steps(ctx: Any, *operands: Any, **params: Any) -> Sequence[Any]:
    # JAX lowers a jitted function inside once, for the platforms that it meets first: for all of them, then.
    ctx = ctx.replace(platforms=None) if _is_exported(ctx) else ctx
    return mlir.lower_fun(_in_two_steps, multiple_results=True)(ctx, *operands, **params)


compile_when_eager(quantized_p, "jaxpr", "how", "mesh")
quantized_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[quantized_p] = _no_derivative
batching.primitive_batchers[quantized_p] = _batch
mlir.register_lowering(quantized_p, _lower_in_two_steps)
mlir.register_lowering(quantized_p, _lower_for_cuda, platform="cuda")
