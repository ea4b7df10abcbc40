"""Weights of four bits: `nvfp4`, `mxfp4` and `int4`, how they are made from floats and what they stand for.

Codes travel two to a byte along the last axis, the first in the low half; blocks of a scale lie along that axis too.

    format   code                          block        scale            value
    nvfp4    e2m1                          16           e4m3             code * scale * a factor
    mxfp4    e2m1                          32           e8m0             code * scale
    int4     two's complement              32, 64, 128  bf16 or f32      code * scale
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from jax_fuser._reciprocal import reciprocal

FORMATS = ("nvfp4", "mxfp4", "int4")
_FLT_MAX, _TINY = float(np.finfo(np.float32).max), np.finfo(np.float32).tiny
_MOST = {"nvfp4": 6, "mxfp4": 6, "int4": 7}  # the largest code
_E4M3_MAX = 448.0
_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)  # of the eight codes of e2m1


pack_p = jax.extend.core.Primitive("jax_fuser_pack")
stored_p = jax.extend.core.Primitive("jax_fuser_stored")
e2m1_p = jax.extend.core.Primitive("jax_fuser_e2m1")


def pack(codes: jax.Array) -> jax.Array:
    """Put codes `(.., k)` of four bits, the last ones of integers, two to a byte: uint8 `(.., k / 2)`."""
    result: jax.Array = pack_p.bind(codes)
    return result


def pack_by_slices(codes: jax.Array) -> jax.Array:
    """Return the same by ops that any compiler has."""
    low, high = codes[..., 0::2], codes[..., 1::2]
    return (low.astype(jnp.uint8) & 15) | (high.astype(jnp.uint8) << 4)


def unpack(data: jax.Array) -> jax.Array:
    """Take bytes apart: codes `(.., k)`, uint8."""
    return jnp.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], 2 * data.shape[-1])


def quantize_four_bits(
    x: jax.Array, largest: jax.Array, format: str, global_scale: Any, block: int
) -> tuple[jax.Array, jax.Array]:
    """Return the packed codes `(.., k / 2)` and the scales `(.., k / block)` of `x` `(.., k)`.

    `largest`: magnitudes of the blocks. A scale is rounded before values are multiplied by its inverse, so that codes
    are the nearest under the scale that is stored.
    """
    blocks = x.astype(jnp.float32).reshape(*largest.shape, block)
    # Of an infinity no scale is finite. A factor, since compilers divide by a constant in either way.
    wanted = jnp.where(jnp.isfinite(largest), largest, np.float32(np.nan)) * np.float32(1 / _MOST[format])
    if format == "nvfp4":
        if global_scale is not None:
            wanted = wanted * global_scale
        scales = _clip(wanted, _E4M3_MAX).astype(jnp.float8_e4m3fn)
        factors = _stored(scales) if global_scale is None else _stored(scales) * (1 / global_scale)
        codes = to_e2m1(blocks * _inverse(factors, _FLT_MAX)[..., None])
    elif format == "mxfp4":
        scales, inverses = scales_above(wanted)
        codes = to_e2m1(blocks * inverses[..., None])
    else:
        scales = wanted.astype(jnp.bfloat16)
        # Rounding may have made the scale smaller than a seventh of the largest value.
        numbers = jnp.clip(blocks * _inverse(_stored(scales), 1)[..., None], -7, 7)
        codes = _bits(numbers + np.float32(3 * 2**22))  # rounded, in the last bits
    return pack(codes.reshape(x.shape)), scales


def _stored(x: jax.Array) -> jax.Array:
    """Return narrow floats as float32. On GPUs XLA takes what they were rounded from, unless something keeps it."""
    rounded: jax.Array = stored_p.bind(x)
    return rounded.astype(jnp.float32)


def _inverse(x: jax.Array, of_zero: float) -> jax.Array:
    return jnp.where(x == 0, np.float32(of_zero), reciprocal(jnp.maximum(x, _TINY)))


def dequantize_four_bits(data: jax.Array, scales: jax.Array, format: str) -> jax.Array:
    """Return codes times their scales, float32 `(.., k)`."""
    codes = unpack(data)
    if format == "int4":
        values = ((codes ^ 8).astype(jnp.int8) - 8).astype(jnp.float32)
    else:
        values = from_e2m1(codes)
    wide = scale_values(scales)
    size = values.shape[-1] // scales.shape[-1] if scales.shape[-1] else 1
    return (values.reshape(*scales.shape, size) * wide[..., None]).reshape(values.shape)


def to_e2m1(x: jax.Array) -> jax.Array:
    """Return the codes, uint32, of the nearest e2m1 values; ties go to the even code, what is too large, or NaN, to 6.

    Not differentiable.
    """
    result: jax.Array = e2m1_p.bind(x.astype(jnp.float32))
    return result


def to_e2m1_by_sums(x: jax.Array) -> jax.Array:
    """Return the same, of float32, by XLA's ops.

    Floats round as e2m1 does where their last bit counts as much: 1/2 below 2^23, 1 from there on. So a magnitude up to
    4 is rounded by what is added to it, and larger ones, halved, by another sum. Both have the code in their last bits.
    """
    zero, magnitude = np.float32(2**23 - 2), jnp.abs(x)
    first, most = int(zero.view(np.uint32)), 7
    below, above = (_bits(v) for v in (magnitude + zero, magnitude * np.float32(0.5) + np.float32(2**23)))
    code = jnp.minimum(jnp.minimum(below, above), np.uint32(first + most)) - np.uint32(first)
    return code | (_bits(x) >> 28 & 8)


def _bits(x: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.uint32)


def from_e2m1(codes: jax.Array) -> jax.Array:
    """Return the values of e2m1 codes, float32."""
    table = np.concatenate([_MAGNITUDES, -_MAGNITUDES])
    return jnp.asarray(table)[codes]


def scales_above(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the smallest e8m0 scales that are not below `x` >= 0, and their inverses; of what is not finite NaN."""
    exponent = _exponent_above(jnp.where(jnp.isfinite(x), x, np.float32(np.nan)))
    return exponent.astype(jnp.uint8).view(jnp.float8_e8m0fnu), _power(254 - exponent)


def scale_values(scales: jax.Array) -> jax.Array:
    """Return scales as float32, e8m0 without a detour through numbers that a backend flushes to zero."""
    if scales.dtype != jnp.float8_e8m0fnu:
        return scales.astype(jnp.float32)
    return _powers_of_two(scales)


@jax.custom_jvp
def _powers_of_two(scales: jax.Array) -> jax.Array:
    exponent = scales.view(jnp.uint8).astype(jnp.int32)
    return jnp.where(exponent == 255, jnp.float32(np.nan), _power(exponent))


@_powers_of_two.defjvp
def _no_derivative(primals: Any, tangents: Any) -> Any:
    # A cotangent would be e8m0, too, which has neither zero nor negative numbers.
    raise TypeError(
        "dequantize: has no derivative in scales of float8_e8m0fnu; take jax.lax.stop_gradient of them, or multiply by "
        "factors of your own"
    )


def _clip(x: jax.Array, most: float) -> jax.Array:
    return jnp.where(x > most, jnp.float32(most), x)  # a NaN stays one


def _power(exponent: jax.Array) -> jax.Array:
    """2 to the exponent less 127, exact from 2^-126 on; that of 0 is 2^-127."""
    exponent = exponent.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(jnp.where(exponent == 0, 1 << 22, exponent << 23), jnp.float32)


def _exponent_above(x: jax.Array) -> jax.Array:
    """The exponent, biased by 127, of the smallest power of two that is not below `x` >= 0; 255 for a NaN."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) > 0).astype(jnp.uint32)
    exponent = jnp.where(bits <= 1 << 22, 0, exponent)
    return jnp.where(jnp.isnan(x), 255, jnp.minimum(exponent, 254))


def _abstract_eval(codes: Any) -> Any:
    return codes.update(shape=(*codes.shape[:-1], codes.shape[-1] // 2), dtype=jnp.dtype("uint8"), weak_type=False)


def _batch(args: Any, axes: Any) -> tuple[Any, int]:
    return pack(jnp.moveaxis(args[0], axes[0], 0)), 0


e2m1_p.def_impl(jax.jit(to_e2m1_by_sums))
e2m1_p.def_abstract_eval(lambda x: x.update(dtype=jnp.dtype("uint32"), weak_type=False))
ad.defjvp(e2m1_p, None)
batching.defvectorized(e2m1_p)
mlir.register_lowering(e2m1_p, mlir.lower_fun(to_e2m1_by_sums, multiple_results=False))
stored_p.def_impl(jax.lax.optimization_barrier)
stored_p.def_abstract_eval(lambda x: x)
ad.defjvp(stored_p, None)
batching.defvectorized(stored_p)
mlir.register_lowering(stored_p, mlir.lower_fun(jax.lax.optimization_barrier, multiple_results=False))
pack_p.def_impl(jax.jit(pack_by_slices))
pack_p.def_abstract_eval(_abstract_eval)
ad.defjvp(pack_p, None)
batching.primitive_batchers[pack_p] = _batch
mlir.register_lowering(pack_p, mlir.lower_fun(pack_by_slices, multiple_results=False))
