"""Arrays of few bits with the scales that restore them: `ScaledTensor`, `quantize`, `dequantize`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser import _arguments, _fp4, _scale_layout
from jax_fuser import _nested_checks as checks
from jax_fuser._automatic import automatically, names_of
from jax_fuser._fuse import Fused, fuse
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._reciprocal import reciprocal

# Elements along the last axes that share a scale; None is the whole axis.
Block = tuple[int | None, ...]
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
MANY = 1 << 16  # elements, from which on a kernel is worth compiling
_IN_TILES = ("mxfp8", "nvfp4", "mxfp4")  # formats whose scales layout "block128x4" takes


@dataclasses.dataclass(frozen=True)
class Format:
    """How a format stores elements. `dtypes` of data and `blocks`: the first of each is what `quantize` takes."""

    dtypes: tuple[str, ...]
    blocks: tuple[Block, ...]
    about: str


FORMATS = {
    "fp8_row": Format(_FLOAT8, ((None,),), "one f32 scale for each row of the last axis"),
    "fp8_tensor": Format(_FLOAT8, ((),), "one f32 scale"),
    "fp8_block": Format(_FLOAT8, ((128,), (128, 128)), "an f32 scale for each block of the last axis, or last two"),
    "mxfp8": Format(_FLOAT8, ((32,),), "an e8m0 scale for each block of the last axis"),
    "nvfp4": Format(("e2m1",), ((16,),), "an e4m3 scale for each 16 elements, two elements to a byte"),
    "mxfp4": Format(("e2m1",), ((32,),), "an e8m0 scale for each 32 elements, two elements to a byte"),
    "int4": Format(("int4",), ((32,), (64,), (128,)), "a bf16 scale for each block, two elements to a byte"),
}


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["data", "scales", "global_scale", "extents"],
    meta_fields=["format", "block", "layout"],
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ScaledTensor:
    """Elements of few bits and their scales: `dequantize` multiplies each element by the scale of its block.

    A pytree of `data`, `scales`, `global_scale` and `extents`; checks nothing, so that it can carry axes or specs.

    Args:
        data: elements, or a NestedTensor of them; those of four bits two to a byte, the first in the low half.
        scales: float32 (e8m0 for "mxfp8"; float8 or bfloat16 for elements of four bits), one for each block of the last
            axes of `data`: blocks count along those axes, except that an axis within one block is left out.
        global_scale: a factor of all elements, or None.
        format: name of the format, a key of `FORMATS`.
        block: elements along the last axes that share a scale; `(None,)` is a whole row, `()` everything.
        layout: order of the scales, see `quantize`.
        extents: of layout "block128x4", int32 `(groups,)`: the groups whose scales are filled up each; or None.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.quantize(jnp.ones((5, 32)), "fp8_row")
        ScaledTensor(fp8_row, float8_e4m3fn[5, 32], scales float32[5])
    """

    data: Any
    scales: Any
    global_scale: Any = None
    format: str = "fp8_row"
    block: Block = (None,)
    layout: str = "row_major"
    extents: Any = None

    @property
    def shape(self) -> Any:
        """Shape of the elements."""
        if self.format not in _fp4.FORMATS:
            return self.data.shape
        return *self.data.shape[:-1], 2 * self.data.shape[-1]

    def __bool__(self) -> bool:
        raise TypeError("ScaledTensor has no truth value; dequantize it, or take its data and scales")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("ScaledTensor is not one array; use dequantize(x), or its data and scales")

    def __eq__(self, other: object) -> bool:
        raise TypeError("ScaledTensor has no ==; dequantize it, or compare data and scales")

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        def kind(x: Any) -> str:
            return f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else repr(x)

        whole = not isinstance(self.block, tuple) or None in self.block or not self.block
        block = "" if whole else " " + "x".join(map(str, (1, *self.block)[-2:]))
        extra = "" if self.global_scale is None else f", global {kind(self.global_scale)}"
        extra += "" if self.layout == "row_major" else f", {self.layout}"
        return f"ScaledTensor({self.format}{block}, {kind(self.data)}, scales {kind(self.scales)}{extra})"


def quantize(
    x: Any,
    format: str,
    *,
    dtype: Any = None,
    block: Block | None = None,
    extents: Any = None,
    global_scale: Any = None,
    layout: str = "row_major",
) -> ScaledTensor:
    """Store floating-point numbers in few bits, with a scale for each block of them.

    The scale is the block's largest magnitude over that of the format, so that it is stored exactly or nearly so, and
    elements are `x * (1 / scale)`, rounded to nearest even; all in float32. "mxfp8" and
    "mxfp4" round scales up to powers of two. The scale of zeros is 1, for "nvfp4" and "int4" 0, for powers of two the
    smallest. A block with a NaN or an infinity becomes NaN.

    Elements of four bits are e2m1 floats or integers from -7 to 7. A scale is rounded to its type before elements are
    divided by it: to nearest for "nvfp4", whose scales are those of `x * global_scale`, up for "mxfp4", and to nearest
    for "int4", a seventh of the largest magnitude.

    Large arrays become kernels of ours, which read them once; inside of `fuse` it is a part of the kernel that computes
    `x`.

    Not differentiable: rounding is flat almost everywhere, and no other derivative is assumed. Differentiating raises
    an error; to train, `scaled_grouped_matmul` quantizes floats by itself with `format`. Else take
    `jax.lax.stop_gradient` of `x`, or give what you compute a rule by `jax.custom_vjp`.

    Args:
        x: floats `[.., k]`, or a NestedTensor with them (its padding counts for no other row).
        format: "fp8_row" (a scale for each row `[..]`), "fp8_tensor" (one scale), or "fp8_block" (a scale for each 128
            elements of the last axis) with float32 scales; "mxfp8" (a power of two for each 32 elements), which
            products take as weights of floats; of four bits "nvfp4", "mxfp4" or "int4".
        dtype: of the elements: float8_e4m3fn, the default, or float8_e5m2.
        block: of "fp8_block": `(128,)`, the default, for activations, or `(128, 128)` of the last two axes for weights.
            Of "int4": `(32,)`, the default, `(64,)` or `(128,)`; the last axis is a multiple of a block of four bits.
        global_scale: of "nvfp4": number that brings scales into the range of e4m3, such as `448 * 6 / max(abs(x))`;
            the result holds its inverse.
        extents: of layout "block128x4", integers `(groups,)`: rows `x` `(m, k)` are those of groups, and the scales of
            each group begin in a tile of their own; those of a NestedTensor do by themselves.
        layout: order of the scales. "row_major": as the axes of `x`. "block128x4", of "mxfp8", "nvfp4" and "mxfp4":
            tiles of 128 rows by 4 scales, filled up with zeros, as the tensor cores of compute capability 10 read them;
            no product of this library takes it.

    Returns:
        `ScaledTensor` with `data` of the shape of `x`.

    Raises:
        ValueError: unknown format or layout, block that it does not have, or too few axes; extents that do not fit.
        TypeError: `x` holds no floats, or the format has no such dtype; `x` is differentiated.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> w = jf.quantize(jnp.ones((3, 256, 300)), "fp8_block", block=(128, 128))
        >>> w.scales.shape
        (3, 2, 3)
    """
    if not isinstance(format, str) or format not in FORMATS:
        raise ValueError(f"quantize: format {format!r} is unknown; expected one of {sorted(FORMATS)}")
    row = FORMATS[format]
    block = row.blocks[0] if block is None else tuple(block) if isinstance(block, Sequence) else block
    if block not in row.blocks:
        raise ValueError(f"quantize: {format} has blocks {list(row.blocks)}, got {block}")
    if global_scale is not None and format != "nvfp4":
        raise ValueError(f"quantize: global_scale= is for nvfp4, got {format}")
    if dtype is None:
        name = row.dtypes[0]
    elif isinstance(dtype, str):  # "e2m1" is no dtype of JAX
        name = str(dtype)
    else:
        name = np.dtype(_arguments.dtype("quantize", "dtype", dtype)).name
    if name not in row.dtypes:
        raise TypeError(f"quantize: {format} has elements {list(row.dtypes)}, got {name}")
    if isinstance(x, ScaledTensor):
        raise TypeError(f"quantize: x is a ScaledTensor of format {x.format} already; dequantize it first")
    nested = x if isinstance(x, NestedTensor) else None
    data = _arguments.array("quantize", "x", x if nested is None else nested.data)
    if layout != "row_major" or extents is not None:
        extents = _groups_of_tiles(data, nested, format, extents, layout)
        made = quantize(x, format, dtype=dtype, block=block, global_scale=global_scale)
        in_tiles = _scale_layout.to_blocks if extents is None else _scale_layout.group_to_blocks
        scales = in_tiles(made.scales, *(() if extents is None else (extents,)))
        return dataclasses.replace(made, scales=scales, layout=layout, extents=extents)
    four_bits = format in _fp4.FORMATS
    if not jnp.issubdtype(data.dtype, jnp.floating):
        raise TypeError(f"quantize: x must hold floats, got {data.dtype}")
    if data.ndim < max(len(block), 1):
        raise ValueError(
            f"quantize: {format} with blocks {block} needs {max(len(block), 1)} axes or more, got {data.shape}"
        )
    ragged_last = nested is not None and nested.ragged_dim == data.ndim - 1
    if four_bits:
        if ragged_last:
            raise ValueError(
                f"quantize: {format} stores two elements of the last axis in a byte, which must not be ragged, got "
                f"{x.shape}; take a format of 8 bits"
            )
        if data.shape[-1] % columns_of_scale(block):
            raise ValueError(
                f"quantize: the last axis must be a multiple of the block of {columns_of_scale(block)}, got "
                f"{data.shape[-1]}; pad it with zeros"
            )
        if global_scale is not None:
            _check_global_scale(_arguments.array("quantize", "global_scale", global_scale), data.shape)
        elements, scales = _quantize_four_bits(data, global_scale, format, columns_of_scale(block))
        factor = None if global_scale is None else 1 / jnp.asarray(global_scale, jnp.float32)
        if factor is not None and factor.ndim:
            # Aligned at the front, as scales are: `vmap` puts its axis there.
            factor = factor.reshape((1,) * (data.ndim - factor.ndim) + factor.shape)
        packed = elements if nested is None else nested.replace(data=elements)
        return ScaledTensor(packed, scales, factor, format, block)
    if nested is not None and (len(block) != 1 or ragged_last):
        # Blocks reach over several rows: those of no component must not count.
        keep = nested.row_mask()
        keep = keep.reshape(*keep.shape, *[1] * (data.ndim - nested.ragged_dim - 1))
        if len(block) > 1:
            raise ValueError("quantize: blocks of several rows would mix components; use blocks (128,)")
        data = jnp.where(keep, data, 0)
    names = names_of(data)
    elements, scales = automatically(
        lambda x: _quantize(x, name, block, format == "mxfp8"), data, like=lambda _: [names, names]
    )
    return ScaledTensor(elements if nested is None else nested.replace(data=elements), scales, None, format, block)


def _check_global_scale(scale: jax.Array, shape: tuple[int, ...]) -> None:
    _arguments.check_real("quantize", "global_scale", scale)
    given, of_rows = scale.shape, (*shape[:-1], 1)
    if len(given) > len(of_rows) or any(g not in (1, n) for g, n in zip(reversed(given), reversed(of_rows))):
        raise ValueError(
            f"quantize: global_scale must be one number, or numbers that broadcast to {of_rows}, got {given}"
        )
    values = checks.concrete(scale)
    if values is not None and not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"quantize: global_scale must be above 0 and finite, got {np.ravel(values)[:4].tolist()}")


def _groups_of_tiles(data: Any, nested: NestedTensor | None, format: str, extents: Any, layout: Any) -> Any:
    """Check what layout "block128x4" needs, and return the groups of the rows, or None."""
    if layout not in _scale_layout.LAYOUTS:
        raise ValueError(f"quantize: layout {layout!r} is unknown; expected one of {list(_scale_layout.LAYOUTS)}")
    if layout == "row_major":
        raise ValueError('quantize: extents= is for layout="block128x4", got "row_major"; leave it out')
    if format not in _IN_TILES:
        raise ValueError(f"quantize: layout {layout!r} is for {', '.join(_IN_TILES)}, got {format}")
    if nested is not None and nested.ragged_dim:
        raise ValueError(f"quantize: layout {layout!r} needs x with ragged rows, got {nested.shape}")
    if data.ndim < 2 or ((extents is not None or nested is not None) and data.ndim != 2):
        raise ValueError(
            f"quantize: layout {layout!r} needs matrices (.., m, k), of groups rows (m, k), got {data.shape}"
        )
    if nested is None:
        return None if extents is None else _scale_layout.extents_of_rows(extents, data.shape[0])
    if extents is not None:
        raise TypeError("quantize: extents= needs x as an array of rows, got a NestedTensor, which has its own")
    if nested.gapped:
        raise ValueError(f"quantize: layout {layout!r} needs groups that follow each other, got gapped storage")
    return nested.extents


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _quantize(x: jax.Array, dtype: str, block: Block, powers_of_two: bool) -> tuple[jax.Array, jax.Array]:
    if not is_large(x):
        return quantize_floats(x, dtype, block, powers_of_two)
    return quantize_fused(x, dtype, block, powers_of_two)


def is_large(x: jax.Array) -> bool:
    """Whether kernels of our own are worth compiling; they need sizes that are known."""
    return isinstance(x.size, int) and x.size >= MANY


def quantize_fused(x: jax.Array, dtype: str, block: Block, powers_of_two: bool = False) -> tuple[jax.Array, jax.Array]:
    """Return elements and scales, by kernels of our own."""
    data, scales = _kernels(dtype, block, powers_of_two)(x)
    return data, scales


@functools.cache
def _kernels(dtype: str, block: Block, powers_of_two: bool) -> Fused:
    how = functools.partial(quantize_floats, dtype=dtype, block=block, powers_of_two=powers_of_two)
    return fuse(how, name="quantize")


def quantize_floats(x: jax.Array, dtype: str, block: Block, powers_of_two: bool = False) -> tuple[jax.Array, jax.Array]:
    """Return elements and scales, in jax.numpy."""
    wide = x.astype(jnp.float32)
    # Compilers divide by a constant in either way.
    inverse = np.float32(1) / np.float32(jnp.finfo(dtype).max)
    if powers_of_two:
        scales, inverses = _fp4.scales_above(_largest_magnitude(wide, block) * inverse)
        return (wide * spread(inverses, block, x.shape)).astype(dtype), scales
    scales = _scales_of(_largest_magnitude(wide, block), inverse)
    return (wide * spread(reciprocal(scales), block, x.shape)).astype(dtype), scales


def _scales_of(most: jax.Array, inverse: np.float32) -> jax.Array:
    # Not below the normal numbers, which may count as zero.
    return jnp.where(most == 0, 1, jnp.maximum(most * inverse, jnp.finfo(jnp.float32).tiny))


def quantize_halves(left: jax.Array, right: jax.Array, dtype: str, block: Block) -> tuple[jax.Array, jax.Array]:
    """Return what `quantize_floats` makes of both, side by side: kernels then need not fold over what they join."""
    halves = [x.astype(jnp.float32) for x in (left, right)]
    if block == (None,):
        inverse = np.float32(1) / np.float32(jnp.finfo(dtype).max)
        most = functools.reduce(jnp.maximum, (_largest_magnitude(x, block) for x in halves))
        scales = _scales_of(most, inverse)
        inverses = spread(reciprocal(scales), block, left.shape)
        return jnp.concatenate([(x * inverses).astype(dtype) for x in halves], axis=-1), scales
    if left.shape[-1] % columns_of_scale(block):
        return quantize_floats(jnp.concatenate(halves, axis=-1), dtype, block)
    made = [quantize_floats(x, dtype, block) for x in halves]
    return jnp.concatenate([m[0] for m in made], axis=-1), jnp.concatenate([m[1] for m in made], axis=-1)


@_quantize.defjvp
def _no_derivative(dtype: str, block: Block, powers_of_two: bool, primals: Any, tangents: Any) -> Any:
    raise TypeError(
        f"quantize: has no derivative (rounding to {dtype} is flat almost everywhere); pass floats and format= to "
        "scaled_grouped_matmul, take jax.lax.stop_gradient of the argument, or give what you compute a jax.custom_vjp"
    )


def columns_of_scale(block: Block) -> int:
    (size,) = block
    assert size is not None
    return size


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
@functools.partial(jax.jit, static_argnums=(2, 3))
def _quantize_four_bits(x: jax.Array, global_scale: Any, format: str, block: int) -> tuple[jax.Array, jax.Array]:
    if is_large(x):
        made: tuple[jax.Array, jax.Array] = _kernels_of_four_bits(format, block)(x, global_scale)
        return made
    return four_bits_of_floats(x, global_scale, format, block)


@functools.cache
def _kernels_of_four_bits(format: str, block: int) -> Fused:
    return fuse(functools.partial(four_bits_of_floats, format=format, block=block), name="quantize")


def four_bits_of_floats(x: jax.Array, global_scale: Any, format: str, block: int) -> tuple[jax.Array, jax.Array]:
    """Return packed codes and scales, in jax.numpy."""
    largest = _largest_magnitude(x.astype(jnp.float32), (block,))
    return _fp4.quantize_four_bits(x, largest, format, global_scale, block)


@_quantize_four_bits.defjvp
def _no_derivative_of_four_bits(format: str, block: int, primals: Any, tangents: Any) -> Any:
    return _no_derivative(format, (block,), False, primals, tangents)


def _largest_magnitude(x: jax.Array, block: Block) -> jax.Array:
    """Return the largest magnitude of each block, NaN where there is one: on CPUs XLA's maximum loses some.

    Bits of magnitudes have the order of the numbers, with NaN behind infinity. Our kernels' maximum keeps it by itself.
    """
    if is_large(x):
        return _largest(jnp.abs(x), block)
    bits = jax.lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
    return jax.lax.bitcast_convert_type(_largest(bits, block), jnp.float32)


def _largest(x: jax.Array, block: Block) -> jax.Array:
    if block in ((), (None,)):
        return jnp.max(x, axis=-1 if block else None, initial=0)
    lengths = [length for length in block if length is not None]
    outer, last = x.shape[: x.ndim - len(lengths)], x.shape[x.ndim - len(lengths) :]
    counts = [-(-size // length) for size, length in zip(last, lengths)]
    padding = [(0, 0)] * len(outer) + [(0, c * b - size) for c, b, size in zip(counts, lengths, last)]
    parts = jnp.pad(x, padding).reshape(*outer, *(n for pair in zip(counts, lengths) for n in pair))
    return jnp.max(parts, axis=tuple(len(outer) + 1 + 2 * i for i in range(len(lengths))), initial=0)


def spread(scales: jax.Array, block: Block, shape: tuple[int, ...]) -> jax.Array:
    """Return scales that broadcast to the elements."""
    if not block:
        return for_leading_axes(scales, len(shape))
    if block == (None,):
        return scales[..., None]
    for i, length in enumerate(block):
        assert length is not None, block
        axis = len(shape) - len(block) + i
        scales = jax.lax.slice_in_dim(jnp.repeat(scales, length, axis=axis), 0, shape[axis], axis=axis)
    return scales


def for_leading_axes(factors: jax.Array, ndim: int) -> jax.Array:
    """Return factors of all elements, one for each entry of a batch where `vmap` made them, to multiply by."""
    return factors.reshape(factors.shape + (1,) * (ndim - factors.ndim))


def _broadcasts_in_front(given: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(given) <= len(shape) and all(g in (1, n) for g, n in zip(given, shape))


def _check_scales(x: ScaledTensor, stored: tuple[int, ...], given: tuple[int, ...]) -> None:
    """Refuse scales that are not one for each block of elements `stored`."""
    shape = stored if x.format not in _fp4.FORMATS else (*stored[:-1], 2 * stored[-1])
    whole = not x.block or (x.block == (None,) and not given)
    if whole or len(x.block) > len(shape):
        expected, fits = (*shape[:-1], 1), whole and _broadcasts_in_front(given, (*shape[:-1], 1))
    else:
        first = len(shape) - len(x.block)
        counts = (-(-n // b) for n, b in zip(shape[first:], x.block) if b is not None)
        expected = (*shape[:first], *counts)
        if x.layout == "block128x4":
            expected = _scale_layout.filled_shape(expected)
            if x.extents is not None:  # each group is filled up, which no shape tells
                expected = (*expected[:-2], *given[-2:-1], expected[-1])
        fits = given == expected
    if not fits:
        what = f"broadcast to {expected} from the front" if whole else f"be {expected}"
        raise ValueError(
            f"dequantize: {x.format} scales of elements {shape} must {what}, got {given}; quantize makes them"
        )


def dequantize(x: ScaledTensor, dtype: Any = jnp.float32) -> Any:
    """Return the numbers that a `ScaledTensor` stands for: its elements times their scales, computed in float32.

    Args:
        x: of any format.
        dtype: of the result, a floating-point one.

    Returns:
        Array of the shape of the data; a NestedTensor where that is one. Differentiable in `x.scales`, but for those of
        "mxfp8" and "mxfp4", powers of two.

    Raises:
        TypeError: `x` is no `ScaledTensor`, or `dtype` no floating-point dtype; scales that are powers of two are
            differentiated.
        ValueError: its format is unknown, or its scales do not fit its data.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> jf.dequantize(jf.quantize(jnp.full((1, 2), 3.0), "fp8_row"), jnp.bfloat16)
        Array([[3, 3]], dtype=bfloat16)
    """
    if not isinstance(x, ScaledTensor):
        packed = type(x).__name__ == "PackedWeights"
        hint = "take what repack_weights got" if packed else "make one with quantize"
        raise TypeError(f"dequantize: expected a ScaledTensor, got {type(x).__name__}; {hint}")
    dtype = jnp.float32 if dtype is None else _arguments.dtype("dequantize", "dtype", dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dequantize: dtype must be a floating-point dtype, got {jnp.dtype(dtype).name}")
    nested = x.data if isinstance(x.data, NestedTensor) else None
    data = x.data if nested is None else nested.data
    if x.format not in FORMATS:
        raise ValueError(f"dequantize: format {x.format!r} is unknown; expected one of {sorted(FORMATS)}")
    if not isinstance(x.block, tuple):
        blocks = [*FORMATS[x.format].blocks]
        raise TypeError(f"dequantize: block must be a tuple, of {x.format} one of {blocks}, got {x.block!r}")
    scales = _arguments.array("dequantize", "scales", x.scales)
    if x.format in _fp4.FORMATS and data.dtype != jnp.uint8:
        raise TypeError(
            f"dequantize: {x.format} has two elements in a byte of uint8, got {data.dtype}; quantize makes them"
        )
    if x.layout not in _scale_layout.LAYOUTS:
        raise ValueError(f"dequantize: layout {x.layout!r} is unknown; expected one of {list(_scale_layout.LAYOUTS)}")
    if not jnp.issubdtype(scales.dtype, jnp.floating):
        hint = "; those that are bits are scales.view(jnp.float8_e8m0fnu)" if scales.dtype == jnp.uint8 else ""
        raise TypeError(f"dequantize: scales must be floats, got {scales.dtype}{hint}")
    _check_scales(x, data.shape, scales.shape)
    if x.layout == "block128x4":
        columns = data.shape[-1] * (2 if x.format in _fp4.FORMATS else 1)
        shape = (*data.shape[:-1], -(-columns // columns_of_scale(x.block)))
        if x.extents is None:
            scales = _scale_layout.from_blocks(scales, shape)
        else:
            outer = x.extents.ndim - 1  # of `vmap`
            from_tiles = lambda scales, extents: _scale_layout.group_from_blocks(scales, extents, shape[outer:])  # noqa: E731
            for _ in range(outer):
                from_tiles = jax.vmap(from_tiles)
            scales = from_tiles(scales, x.extents)
    if x.format in _fp4.FORMATS:
        wide = _fp4.dequantize_four_bits(data, scales, x.format)
    else:

        def times_scales(data: Any, scales: Any) -> Any:
            return data.astype(jnp.float32) * spread(_fp4.scale_values(scales), x.block, data.shape)

        wide = automatically(times_scales, data, scales, like=lambda _: [names_of(data)])
    if x.global_scale is not None:
        factor = _arguments.array("dequantize", "global_scale", x.global_scale)
        if not _broadcasts_in_front(factor.shape, (*wide.shape[:-1], 1)):
            expected = f"one number, or numbers that broadcast to {(*wide.shape[:-1], 1)} from the front"
            raise ValueError(f"dequantize: global_scale must be {expected}, got {factor.shape}; quantize makes them")
        wide = wide * for_leading_axes(factor, wide.ndim)
    wide = wide.astype(dtype)
    return wide if nested is None else nested.replace(data=wide)
