"""Weights of four bits in the order in which the kernels of GPUs of compute capability 9.0 read them.

`csrc/grouped/cuda/four_bit.cuh` describes pieces of 64 columns by 64 contraction indices. The order is the same for
every size, so that weights are put into it once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser import _arguments
from jax_fuser._fp4 import FORMATS, from_e2m1, unpack
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._quant import FORMATS as BLOCKS_OF
from jax_fuser._quant import ScaledTensor
from jax_fuser._static_sizes import check_sizes

_STATIC = {"static": True}
_COLUMNS, _DEPTH = 64, 64  # of a piece
# The rows of a product and their order in memory: warp, row of eight, which half of sixteen.
_ROWS = (4, 8, 2)
# Contraction indices likewise: product of sixteen, half of it, lane of four, which of two.
_INDICES = (4, 2, 4, 2)
_SCALES = {"nvfp4": ("float8_e4m3fn",), "mxfp4": ("float8_e8m0fnu",), "int4": ("bfloat16", "float16", "float32")}
_BLOCKS = {"nvfp4": (16,), "mxfp4": (32,), "int4": (32, 64)}  # of pieces
_NVFP4_EXPONENT = 8  # weights of nvfp4 reach the tensor cores divided by 2 to this
# Codes of int4 are in the lowest bits of bf16: numbers times 2 to minus this. Exponents of bf16 scales: the least moved
# one whose weights are normal, the largest of a group whose factor is finite.
_INT4_EXPONENT = 133
_INT4_LEAST, _INT4_LARGEST = _INT4_EXPONENT + 1, 248


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class PackedWeights:
    """Weights `(groups, n, k)` of four bits, ordered by `repack_weights`.

    Attributes:
        pieces: uint32 `(groups, columns, depths, words)`: codes and scales of 64 columns by 64 contraction indices.
        factors: float32 `(groups,)`, of all weights of a group.
        format: "nvfp4", "mxfp4" or "int4".
        block: weights of a scale, as the pieces have them.
        n, k: columns and contraction indices of the weights.

    Weights of several layers, stacked for a `jax.lax.scan` over them, have the layers in front of the groups.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.repack_weights(jf.quantize(jnp.ones((3, 200, 64)), "int4"))
        PackedWeights(int4 1x32, [3, 200, 64])
    """

    pieces: Any
    factors: Any
    format: str = field(metadata=_STATIC)
    block: int = field(metadata=_STATIC)
    n: int = field(metadata=_STATIC)
    k: int = field(metadata=_STATIC)

    @property
    def shape(self) -> tuple[int, ...]:
        """`(groups, n, k)`, or `(layers, groups, n, k)` of those that are stacked."""
        return *self.pieces.shape[:-3], self.n, self.k

    def __repr__(self) -> str:
        outer = self.pieces.shape[:-3] if hasattr(self.pieces, "shape") else "?"
        return f"PackedWeights({self.format} 1x{self.block}, [{', '.join(map(str, (*outer, self.n, self.k)))}])"


def check_packed(fn: str, name: str, weights: PackedWeights) -> None:
    """Refuse weights that `repack_weights` does not make, and those of several layers at once."""
    for part, value, dtype in (("pieces", weights.pieces, jnp.uint32), ("factors", weights.factors, jnp.float32)):
        if getattr(value, "dtype", None) != dtype:
            got = getattr(value, "dtype", f"a {type(value).__name__}")
            raise TypeError(
                f"{fn}: {name}.{part} must be an array of {jnp.dtype(dtype)}, got {got}; repack_weights makes them"
            )
        _arguments.check_stored(fn, f"{name}.{part}", value)
    if weights.format not in _BLOCKS or weights.block not in _BLOCKS[weights.format]:
        raise ValueError(
            f"{fn}: {name} has format {weights.format!r} and block {weights.block!r}, expected one of {_BLOCKS}; "
            "repack_weights makes them"
        )
    given = weights.pieces.shape, weights.factors.shape
    if len(given[0]) > 4 and len(given[1]) == len(given[0]) - 3:
        raise ValueError(
            f"{fn}: {name} must be the weights of one layer, (groups, n, k), got a stack of them, {weights.shape}; "
            "pass it to jax.lax.scan or jax.vmap, or take one with jax.tree.map(lambda a: a[i], weights)"
        )
    groups = given[1][:1]
    words = _COLUMNS * _DEPTH // 8 + _COLUMNS // 2 * _DEPTH // weights.block // (1 if weights.format == "int4" else 2)
    expected = (*groups, -(-weights.n // _COLUMNS), -(-weights.k // _DEPTH), words), groups
    if given != expected:
        raise ValueError(
            f"{fn}: {name} of n={weights.n} and k={weights.k} needs pieces {expected[0]} and factors {groups}, got "
            f"{given[0]} and {given[1]}; repack_weights makes them"
        )


def repack_weights(weights: ScaledTensor) -> PackedWeights:
    """Order weights of four bits as the kernel for GPUs of compute capability 9.0 reads them.

    Done once, when weights are loaded; gradients of the rows read the same. The bits stay as many; columns and
    contraction indices are filled up to a multiple of 64. Values stay the same, but for weights of "mxfp4" below 2^-126
    of the group's largest scale, which become zero, and scales of "int4": they are rounded to bfloat16, become zero
    below 2^-120 of the group's largest and NaN from 2^122 on.

    Args:
        weights: `ScaledTensor` `(groups, n, k)` of format "nvfp4", "mxfp4" or "int4"; its `global_scale` is a number or
            `(groups, 1, 1)`. Not differentiable.

    Returns:
        `PackedWeights`, which `scaled_grouped_matmul` takes as `rhs`.

    Raises:
        TypeError: no `ScaledTensor`, or of another format; its scales are differentiated.
        ValueError: not three axes, or scales that do not fit them.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.repack_weights(jf.quantize(jnp.ones((3, 200, 64)), "mxfp4")).shape
        (3, 200, 64)
    """
    if not isinstance(weights, ScaledTensor) or weights.format not in FORMATS:
        got = weights.format if isinstance(weights, ScaledTensor) else type(weights).__name__
        raise TypeError(f"repack_weights: expected a ScaledTensor of format {', '.join(FORMATS)}, got {got}")
    if weights.layout != "row_major":
        raise ValueError(f'repack_weights: expected scales of layout "row_major", got "{weights.layout}"')
    if isinstance(weights.data, NestedTensor) or weights.data.ndim != 3:
        raise ValueError(f"repack_weights: expected weights (groups, n, k), got {weights.shape}")
    check_sizes("repack_weights", weights=weights.data)
    groups, n, k = weights.shape
    block = weights.block[0] if len(weights.block) == 1 else None
    if block is None:
        raise ValueError(
            f"repack_weights: {weights.format} has blocks {list(BLOCKS_OF[weights.format].blocks)}, got {weights.block}"
        )
    fitting = (groups, n, k // block)
    if k % block or weights.scales.shape != fitting:
        raise ValueError(
            f"repack_weights: weights {weights.shape} with blocks of {block} need scales {fitting}, got "
            f"{weights.scales.shape}"
        )
    kinds = _SCALES[weights.format]
    if str(weights.scales.dtype) not in kinds:
        raise TypeError(
            f"repack_weights: scales of {weights.format} must be {' or '.join(kinds)}, got {weights.scales.dtype}; "
            f"bits of scales are scales.view(jnp.{kinds[0]})"
        )
    factor = weights.global_scale
    if factor is not None:
        factor = jnp.asarray(factor, jnp.float32)
        of_matrices = (weights.data.shape[0], 1, 1)
        if factor.size != 1 and factor.shape not in (of_matrices, of_matrices[:1]):
            raise ValueError(
                f"repack_weights: the global scale must be one number, or one for each matrix, {of_matrices}, got "
                f"{factor.shape}; quantize with such a global_scale"
            )
    return _repack(weights.data, weights.scales, factor, weights.format, block)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
@functools.partial(jax.jit, static_argnums=(3, 4))
def _repack(data: jax.Array, scales: jax.Array, global_scale: Any, format: str, block: int) -> PackedWeights:
    groups, n, k = *data.shape[:2], 2 * data.shape[2]
    factors = jnp.ones(groups, jnp.float32)
    if global_scale is not None:
        factors = jnp.broadcast_to(jnp.asarray(global_scale, jnp.float32).reshape(-1), (groups,))
    if format == "int4":
        fields, of_groups = _relative(scales)
        factors = factors * of_groups
        if block == 128:
            fields, block = jnp.repeat(fields, 2, axis=2), 64
    elif format == "mxfp4":
        exponents = jax.lax.bitcast_convert_type(scales, jnp.uint8).astype(jnp.int32)
        # Relative to the largest of the group, so that no scale leaves the range of bf16.
        largest = jnp.max(jnp.where(exponents == 255, 1, exponents), axis=(1, 2), initial=1)
        fields = jnp.where(exponents == 255, 255, (exponents - largest[:, None, None] + 253).clip(0))
        factors = factors * jax.lax.bitcast_convert_type(largest.astype(jnp.uint32) << 23, jnp.float32)
    else:
        fields = jnp.asarray(_E5M3)[jax.lax.bitcast_convert_type(scales, jnp.uint8)]
        factors = factors * np.float32(2**_NVFP4_EXPONENT)
    order = functools.partial(_order_group, format=format, block=block)
    pieces = jax.lax.map(lambda group: order(*group), (data, scales, fields))
    return PackedWeights(pieces, factors, format, block, n, k)


@_repack.defjvp
def _no_derivative(format: str, block: int, primals: Any, tangents: Any) -> Any:
    raise TypeError(
        f"repack_weights: has no derivative in the scales of {format}; take jax.lax.stop_gradient of them, or multiply "
        "by dequantize of the weights"
    )


def _relative(scales: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Scales of int4 as bf16 whose largest of a group is in [2^127, 2^128), and what sums are multiplied by in turn.

    The kernel makes a weight from a code that is a number times 2^-133.
    """
    bits = jax.lax.bitcast_convert_type(scales.astype(jnp.bfloat16), jnp.uint16).astype(jnp.int32)
    exponents = bits >> 7 & 255
    largest = jnp.where(exponents > _INT4_LARGEST, 1, exponents).max(axis=(1, 2), initial=1)
    moved = exponents + 254 - largest[:, None, None]
    fields = jnp.where((moved < _INT4_LEAST) | (exponents == 0), 0, bits + (moved - exponents << 7))
    fields = jnp.where(exponents > _INT4_LARGEST, 0x7FC0, fields)
    return fields, jax.lax.bitcast_convert_type(largest + 127 + _INT4_EXPONENT - 254 << 23, jnp.float32)


def _order_group(data: jax.Array, scales: jax.Array, fields: jax.Array, *, format: str, block: int) -> jax.Array:
    """Pieces `(columns, depths, words)` of one group."""
    codes = unpack(data)
    n, k = codes.shape
    across, down = -(-n // _COLUMNS), -(-k // _DEPTH)
    if format == "int4":
        codes = codes ^ 8  # plus 8
    else:
        wide = jnp.repeat(_code_change(scales), k // max(scales.shape[1], 1), axis=1)
        codes = (codes ^ (wide & 8)) & jnp.where(wide & 1, 0, 15).astype(jnp.uint8)
    codes = jnp.pad(codes, ((0, across * _COLUMNS - n), (0, down * _DEPTH - k))).astype(jnp.uint32)
    codes = codes.reshape(across, _ROWS[0], _ROWS[2], _ROWS[1], down, *_INDICES)
    # To columns, depths, warp, row, lane, product; summed over: half of rows, half of indices, which of two.
    codes = codes.transpose(0, 4, 1, 3, 7, 5, 2, 6, 8)
    words = jnp.zeros(codes.shape[:-3], jnp.uint32)
    for half in range(2):
        for far in range(2):
            for high in range(2):
                words |= _place(codes[..., half, far, high], half + 2 * far, high, format)
    return jnp.concatenate([jax.lax.collapse(words, 2), _order_scales(fields, across, down, block, format)], axis=2)


def _place(code: jax.Array, pair: int, high: int, format: str) -> jax.Array:
    """The bits of a word that hold a code of that pair, in its low or high half."""
    if format == "int4":
        return code << (4 * pair + 16 * high)
    sign, magnitude = code >> 3, code & 7
    if pair == 3:
        return (magnitude >> 1 | (magnitude & 1) << 4 | sign << 3) << (16 * high)
    return _rotate_left((magnitude << 6 | sign << 15) << (16 * high), 3 * pair)


def _order_scales(fields: jax.Array, across: int, down: int, block: int, format: str) -> jax.Array:
    blocks = _DEPTH // block
    fields = fields.astype(jnp.uint32)
    pad = ((0, across * _COLUMNS - fields.shape[0]), (0, down * blocks - fields.shape[1]))
    fields = jnp.pad(fields, pad).reshape(across, _ROWS[0], _ROWS[2], _ROWS[1], down, blocks)
    fields = fields.transpose(0, 4, 1, 3, 5, 2)  # columns, depths, warp, row, block, half
    shift = {"int4": 0, "mxfp4": 7, "nvfp4": 4}[format]
    words = fields[..., 0] << shift | fields[..., 1] << (shift + 16)
    if format != "int4":
        # Two blocks to a word, the second rotated by eight bits.
        words = words.reshape(*words.shape[:-1], blocks // 2, 2)
        words = words[..., 0] | _rotate_left(words[..., 1], 8)
    return jax.lax.collapse(words, 2)


def _rotate_left(word: jax.Array, bits: int) -> jax.Array:
    return word if bits == 0 else word << bits | word >> (32 - bits)


def _code_change(scales: jax.Array) -> jax.Array:
    """What a block's scale does to its codes: 8 turns their signs, 1 makes them zeros. Scales become positive, and one
    that is zero or NaN needs no code."""
    bits = jax.lax.bitcast_convert_type(scales, jnp.uint8)
    if scales.dtype == jnp.float8_e8m0fnu:
        return (bits == 255).astype(jnp.uint8)
    return ((bits & 127) % 127 == 0).astype(jnp.uint8) | (bits >> 7 << 3)


def _e5m3() -> np.ndarray:
    """For every e4m3 scale five bits of exponent and three of mantissa, without subnormals: 2^-21 is exponent 0."""
    table = np.zeros(128, np.uint8)
    for bits in range(1, 127):
        exponent, mantissa = bits >> 3, bits & 7
        value = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        power = int(np.floor(np.log2(value)))
        table[bits] = (power + 21) << 3 | int((value / 2.0**power - 1) * 8)
    table[127] = 255
    return np.concatenate([table, table])


_E5M3 = _e5m3()


def unpack_weights(weights: PackedWeights, dtype: Any) -> jax.Array:
    """The weights `(groups, n, k)`, as the kernel computes with them and then multiplied with their factor."""
    unpack_group = functools.partial(_unpack_group, weights=weights, dtype=dtype)
    return jax.lax.map(lambda group: unpack_group(*group), (weights.pieces, weights.factors))


def _unpack_group(pieces: jax.Array, factor: jax.Array, *, weights: PackedWeights, dtype: Any) -> jax.Array:
    across, down = pieces.shape[:2]
    if pieces.size == 0:
        return jnp.zeros((weights.n, weights.k), dtype)
    blocks = _DEPTH // weights.block
    codes, scales = jnp.split(pieces, [_COLUMNS * _DEPTH // 8], axis=2)
    codes = codes.reshape(across, down, *_ROWS[:2], _INDICES[2], _INDICES[0])
    parts = [[[_take(codes, half + 2 * far, high, weights.format) for high in range(2)] for far in range(2)]
             for half in range(2)]  # fmt: skip
    codes = jnp.stack([jnp.stack([jnp.stack(far, -1) for far in half], -2) for half in parts], -3)
    codes = codes.transpose(0, 2, 6, 3, 1, 5, 7, 4, 8).reshape(across * _COLUMNS, down * _DEPTH)
    if weights.format == "int4":
        values = codes.astype(jnp.float32) - 8
    else:
        values = from_e2m1(codes)

    if weights.format != "int4":
        scales = jnp.stack([scales, _rotate_left(scales, 24)], axis=-1)
    scales = scales.reshape(across, down, *_ROWS[:2], blocks)
    mask = {"int4": 0xFFFF, "mxfp4": 0x7F80, "nvfp4": 0x0FF0}[weights.format]
    halves = jnp.stack([scales & mask, scales >> 16 & mask], axis=-1)
    halves = halves.transpose(0, 2, 5, 3, 1, 4).reshape(across * _COLUMNS, down * blocks)
    if weights.format == "nvfp4":
        # 0x7000 less the exponent of 2^(126 - _NVFP4_EXPONENT), which e2m1 takes back: bf16 of the scale itself.
        exponent = (126 - _NVFP4_EXPONENT) << 7
        halves = jnp.where(halves == 0x0FF0, 0x7FC0, jnp.where(halves == 0, 0, halves + 0x7000 - exponent))
        factor = factor * np.float32(2.0**-_NVFP4_EXPONENT)
    elif weights.format == "mxfp4":
        halves = jnp.where(halves == 0x7F80, 0x7FC0, jnp.where(halves <= 126 << 7, 0, halves - (126 << 7)))
    else:
        finite = (halves & 0x7F80) != 0x7F80
        halves = jnp.where(finite & (halves != 0), halves - (_INT4_EXPONENT << 7), halves)
    wide = jax.lax.bitcast_convert_type(halves << 16, jnp.float32)
    values = values.reshape(*wide.shape, weights.block) * wide[..., None]
    values = values.reshape(across * _COLUMNS, down * _DEPTH)[: weights.n, : weights.k]
    if weights.format == "int4":
        values = values.astype(jnp.bfloat16).astype(jnp.float32)
    return (values * factor).astype(dtype)


def _take(words: jax.Array, pair: int, high: int, format: str) -> jax.Array:
    """The inverse of `_place`."""
    if format == "int4":
        return words >> (4 * pair + 16 * high) & 15
    if pair == 3:
        words = words >> (16 * high)
        return (words & 3) << 1 | words >> 4 & 1 | words & 8
    words = _rotate_left(words, (32 - 3 * pair) % 32) >> (16 * high)
    return words >> 6 & 7 | words >> 12 & 8
