"""`scaled_grouped_matmul`: the grouped product of operands of few bits."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_fuser import _arguments, _fp4
from jax_fuser._activations import Activation
from jax_fuser._nested_checks import check_extents, check_groups, check_stored, index_array, to_int32
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._packed_matmul import check_rows, multiply_packed
from jax_fuser._packed_weights import PackedWeights, check_packed, repack_weights
from jax_fuser._quant import ScaledTensor, dequantize
from jax_fuser._quantize_matrices import ALIGNMENT
from jax_fuser._quantized_copies import check_copies, kind_of
from jax_fuser._ragged_dot import to_extents
from jax_fuser._row_groups import ordered_starts
from jax_fuser._scaled_floats import FLOATS, FORMATS, check_format_of_sums, multiply_floats
from jax_fuser._scaled_primitive import BLOCKS, DTYPE_NAMES, scaled_product, whole_scales
from jax_fuser._scaled_tail import ScaledTail
from jax_fuser._static_sizes import check_sizes

_ROWS = ("fp8_row", "fp8_tensor")
_OF_PACKED = (*FLOATS, "float64")  # that weights of few bits are multiplied by


def scaled_grouped_matmul(
    lhs: Any,
    rhs: Any,
    group_sizes: Any = None,
    *,
    format: str | None = None,
    quantized_rhs: tuple[ScaledTensor, ScaledTensor] | None = None,
    drhs_format: str | None = None,
    bias: Any = None,
    activation: Activation = None,
    row_scale: Any = None,
    transpose_rhs: bool = True,
    preferred_element_type: Any = jnp.bfloat16,
    validate: bool = True,
) -> Any:
    """Multiply the rows of each group by the group's matrix: 8-bit floats with scales, or weights of few bits.

    The product of what the operands stand for, `dequantize(lhs) @ dequantize(rhs)[group].T`, then `row_scale *
    activation(product + bias[group])` as `grouped_matmul` has it. Groups need no alignment,
    padding rows are never read and give zero, and a NaN stays in its row or group.

    GPUs of compute capability 9.0 multiply the 8-bit floats in one kernel. Their tensor cores sum such products with
    about 14 bits: scales for rows leave it at that, as cuBLAS does with fast accumulation; scales for blocks are added
    in float32 after each 128 elements. The CPU, and GPUs without that kernel (a warning says why), convert the operands
    to float32 first.

    To train, pass floats and `format`: both operands are quantized in every call, and the product is differentiable in
    both (reverse mode, once). The gradient of `lhs` is such a product again, of the quantized cotangent and `rhs`
    quantized along its other axis; that of `rhs`, which sums over rows, is `grouped_matmul`'s product of the cotangent
    and `lhs` as they are, in the dtype of `lhs` (of the cotangent where that is float16), or with `drhs_format` a
    product of 8-bit floats, too: rounding passes gradients on as if it were not there. `quantize` by itself, and
    products of operands that are quantized already, have no derivative and raise an error.

    Weights of four bits, from `repack_weights`, take rows of ordinary floats. On those GPUs a kernel decodes them, for
    bfloat16 rows, on their way to the tensor cores: exactly, but that a product of "int4" and its scale is rounded to
    bfloat16. Elsewhere they become an array of the dtype of `lhs` first, as weights of eight bits do that are
    multiplied by floats. This product is differentiable in `lhs`: the kernel reads the same packed weights for that,
    where the cotangent is bfloat16 as the result is by default.

    What follows the product is a part of its kernel for packed weights there (a gated one where the halves begin at
    multiples of 64 columns), and a pass over the result after products of 8-bit floats.

    Args:
        lhs: `ScaledTensor` of rows `(m, k)` with `group_sizes`, or of a NestedTensor `[groups, ragged, k]`; format
            "fp8_row", "fp8_tensor", or "fp8_block" with blocks `(128,)`. `k` is a multiple of 16. Or floats.
        rhs: `ScaledTensor` `(groups, n, k)`: of format "fp8_row" or "fp8_tensor" for such `lhs`, or "fp8_block" with
            blocks `(128, 128)`. Either operand may be e4m3 or e5m2. For `lhs` of floats: `PackedWeights`; a
            `ScaledTensor` of "nvfp4", "mxfp4" or "int4", repacked in every call, or of any format of eight bits; or
            floats with `format`.
        group_sizes: integers `(groups,)`; only with rows.
        format: "fp8_row" or "fp8_block" (blocks of 128 in rows, of 128 x 128 in weights): how to quantize floats on
            both sides, of bfloat16, float16 or float32, to e4m3. `k` and `n` are any.
        quantized_rhs: with `format`, what it would make of `rhs` in every call, made once for many (weights of several
            micro-batches): `quantize` of `(groups, n, k)` and of `(groups, k, n)`, which the gradient of `lhs` takes;
            then `k` and `n` are multiples of 16. Gradients go to `rhs` alone.
        drhs_format: with `format`, "fp8_row" quantizes cotangent and `lhs` for the gradient of `rhs` to e4m3, with a
            scale for each column of each group's rows: faster where groups have many rows, and less exact. None
            multiplies them as they are.
        bias: `(groups, n)`, one row per group. Differentiable.
        activation: as in `grouped_matmul`; a gated one halves the columns.
        row_scale: `(m,)`, or nested with the layout of `lhs`. Differentiable.
        transpose_rhs: False for floats `rhs` `(groups, k, n)`. Quantized weights are `(groups, n, k)`: the tensor cores
            read 8-bit operands with `k` as the last axis alone.
        preferred_element_type: bfloat16, float16 or float32; None is bfloat16.
        validate: whether to check concrete `group_sizes`, or where the groups of a nested `lhs` lie.

    Returns:
        NestedTensor of the same layout for a nested `lhs`, otherwise `(m, n)`.

    Raises:
        ValueError: shapes do not fit, `k` of quantized operands is no multiple of 16, or they are not transposed; the
            format is unknown; sizes are negative or sum to more than `m`, or nested groups overlap or reach past the
            rows.
        TypeError: operands do not go together; one that is quantized is differentiated.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> x = jf.quantize(jnp.ones((5, 32)), "fp8_row")
        >>> w = jf.quantize(jnp.ones((3, 8, 32)), "fp8_row")
        >>> jf.scaled_grouped_matmul(x, w, jnp.array([2, 0, 3])).shape
        (5, 8)
        >>> rows, sizes = jnp.ones((5, 32)), jnp.array([2, 0, 3])
        >>> loss = lambda w: jf.scaled_grouped_matmul(rows, w, sizes, format="fp8_row").sum()
        >>> jax.grad(loss)(jnp.ones((3, 8, 32)))[:, 0, 0]
        Array([2., 0., 3.], dtype=float32)
    """
    dtype = _result_dtype(preferred_element_type)
    transpose_rhs = _arguments.flag("scaled_grouped_matmul", "transpose_rhs", transpose_rhs)
    validate = _arguments.flag("scaled_grouped_matmul", "validate", validate)
    if quantized_rhs is not None and format is None:
        raise ValueError(
            "scaled_grouped_matmul: quantized_rhs= needs format= and floats; pass quantized weights as rhs"
        )
    check_format_of_sums("scaled_grouped_matmul", "drhs_format", drhs_format, format)
    for name, operand in (("lhs", lhs), ("rhs", rhs), ("group_sizes", group_sizes)):
        data = operand.data if isinstance(operand, ScaledTensor) else operand
        data = data.data if isinstance(data, NestedTensor) else data
        check_sizes("scaled_grouped_matmul", **{name: data})
    lhs, rhs = _operand("lhs", lhs), _operand("rhs", rhs)
    rows = lhs.data if isinstance(lhs, ScaledTensor) else lhs
    nested = rows if isinstance(rows, NestedTensor) else None
    tail = ScaledTail(bias, activation, row_scale, nested)
    scaled = _floats(lhs, rhs, format) if format is not None else _scaling(lhs, rhs)
    if scaled == "packed":
        if not transpose_rhs:
            raise ValueError(
                "scaled_grouped_matmul: weights of four bits are (groups, n, k), got transpose_rhs=False; leave it "
                "out, and quantize jnp.swapaxes(weights, 1, 2) if they were (groups, k, n)"
            )
        weights = rhs if isinstance(rhs, PackedWeights) else repack_weights(rhs)

        def multiply(x: Any, weights: PackedWeights, extents: Any, starts: Any) -> Any:
            groups, n, _ = weights.shape
            tail.check(x.shape[0], groups, n, extents)
            return tail.multiply(x, weights, extents, starts, dtype)

        return multiply_packed(lhs, weights, group_sizes, multiply, validate)
    if not transpose_rhs and scaled != "floats":
        raise ValueError(
            "scaled_grouped_matmul: rhs must be (groups, n, k), got transpose_rhs=False: tensor cores read 8-bit "
            "operands with k as the last axis alone; quantize jnp.swapaxes(weights, 1, 2)"
        )
    matrices = rhs.data if isinstance(rhs, ScaledTensor) else rhs
    if isinstance(matrices, NestedTensor):
        raise TypeError(
            "scaled_grouped_matmul: rhs must hold an array (groups, n, k), got a NestedTensor; quantize its data"
        )
    data = rows if nested is None else nested.data
    if scaled in BLOCKS:
        for operand in (data, matrices):
            if str(operand.dtype) not in DTYPE_NAMES:
                raise TypeError(
                    f"scaled_grouped_matmul: 8-bit formats hold {list(DTYPE_NAMES)}, got {operand.dtype}; quantize "
                    "makes them"
                )
    data, matrices = jnp.asarray(data), jnp.asarray(matrices)
    extents, starts = _groups(nested, group_sizes, validate)
    (m, k), (groups, n) = _sizes(data, matrices, extents, transpose_rhs)
    if k % ALIGNMENT and scaled in BLOCKS:
        raise ValueError(
            f"scaled_grouped_matmul: k must be a multiple of {ALIGNMENT}, got {k}; pad both operands with zeros"
        )
    tail.check(m, groups, n, extents)
    if nested is None:
        if validate:
            check_extents("scaled_grouped_matmul", extents, m, 0, "group_sizes", "lhs")
        extents = to_extents(extents, m)
    if scaled == "floats":
        assert format is not None
        check_copies("scaled_grouped_matmul: quantized_rhs", quantized_rhs, format, (groups, n, k))
        copies = tuple(jnp.asarray(a) for copy in quantized_rhs or () for a in (copy.data, copy.scales))
        out = multiply_floats(
            "scaled_grouped_matmul", data, matrices, copies, extents, starts, format=format, drhs_format=drhs_format,
            transpose_rhs=transpose_rhs, dtype=dtype,
        )  # fmt: skip
    elif scaled == "weights":
        out = tail.multiply(data, dequantize(rhs, data.dtype), extents, starts, dtype)
    else:
        scales = [whole_scales("scaled_grouped_matmul", x, scaled) for x in (lhs, rhs)]
        out = scaled_product(data, matrices, extents, starts, *scales, scaled=scaled, dtype=dtype)
    if scaled != "weights":
        out = tail.after(out, extents, starts)
    return out if nested is None else nested.replace(data=out)


def _operand(name: str, x: Any) -> Any:
    """Return an operand, or what a quantized one holds, as arrays."""
    fn = "scaled_grouped_matmul"
    if isinstance(x, PackedWeights):
        check_packed(fn, name, x)
    elif isinstance(x, NestedTensor):
        check_stored(fn, x)
    elif isinstance(x, ScaledTensor):
        data, scales = x.data, _arguments.array(fn, f"{name}.scales", x.scales)
        if not jnp.issubdtype(scales.dtype, jnp.floating):
            raise TypeError(f"{fn}: {name}.scales must be floats, got {scales.dtype}; quantize makes them")
        if isinstance(data, NestedTensor):
            check_stored(fn, data)
        else:
            data = _arguments.array(fn, f"{name}.data", data)
        if x.global_scale is not None:
            _arguments.array(fn, f"{name}.global_scale", x.global_scale)
        return dataclasses.replace(x, data=data, scales=scales)
    else:
        return _arguments.array(fn, name, x)
    return x


def _result_dtype(given: Any) -> np.dtype[Any]:
    try:
        dtype = np.dtype(jnp.bfloat16 if given is None else given)
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in FLOATS:
        raise TypeError(f"scaled_grouped_matmul: preferred_element_type must be one of {FLOATS}, got {given!r}")
    return dtype


def _groups(nested: NestedTensor | None, group_sizes: Any, validate: bool) -> tuple[Any, Any]:
    """Return the extents, unchecked for rows, and the starts of gapped groups."""
    if nested is None:
        if group_sizes is None:
            raise TypeError("scaled_grouped_matmul: lhs holds an array, so group_sizes= is needed")
        return index_array("scaled_grouped_matmul", "group_sizes", group_sizes, validate), None
    if group_sizes is not None:
        raise TypeError(
            "scaled_grouped_matmul: group_sizes= needs lhs with an array of rows, got a NestedTensor; leave it out"
        )
    check_rows("scaled_grouped_matmul", nested)
    if validate:
        check_groups("scaled_grouped_matmul", nested)
    extents = to_int32(nested.extents)
    if not nested.gapped:
        return extents, None
    return extents, ordered_starts(nested.starts, extents, nested.capacity)


def _sizes(lhs: Any, rhs: Any, extents: Any, transpose_rhs: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return `(m, k)` and `(groups, n)`."""
    form = "(groups, n, k)" if transpose_rhs else "(groups, k, n)"
    if lhs.ndim != 2 or extents.ndim != 1 or rhs.ndim != 3 or rhs.shape[0] != extents.shape[0]:
        raise ValueError(
            f"scaled_grouped_matmul: needs lhs (m, k), rhs {form} and group_sizes (groups,), got {lhs.shape}, "
            f"{rhs.shape} and {extents.shape}; reshape rows and weights to these"
        )
    groups, n, k = rhs.shape if transpose_rhs else (rhs.shape[0], rhs.shape[2], rhs.shape[1])
    if lhs.shape[1] != k:
        raise ValueError(
            f"scaled_grouped_matmul: lhs has k={lhs.shape[1]} but rhs {rhs.shape} as {form} has k={k}; weights of "
            "another order take jnp.swapaxes(weights, 1, 2)"
        )
    return lhs.shape, (groups, n)


def _floats(lhs: Any, rhs: Any, format: str) -> str:
    if not isinstance(format, str) or format not in FORMATS:
        raise ValueError(
            f"scaled_grouped_matmul: format must be one of {sorted(FORMATS)}, got {format!r}; quantize the operands "
            "yourself for others"
        )
    for operand in (lhs, rhs):
        if kind_of(operand) not in FLOATS:
            quantized = isinstance(operand, (ScaledTensor, PackedWeights))
            hint = "leave it out for operands that are quantized" if quantized else "convert them with astype"
            raise TypeError(
                f"scaled_grouped_matmul: format= quantizes floats, {', '.join(FLOATS)}; got {kind_of(lhs)} x "
                f"{kind_of(rhs)}; {hint}"
            )
    return "floats"


def _scaling(lhs: Any, rhs: Any) -> str:
    """Return which product it is: of 8-bit operands, the scales that its kernel takes."""
    if isinstance(lhs, ScaledTensor) and isinstance(rhs, ScaledTensor):
        if lhs.format in _ROWS and rhs.format in _ROWS:
            return "rows"
        if lhs.format == rhs.format == "fp8_block" and (lhs.block, rhs.block) == BLOCKS["blocks"]:
            return "blocks"
    elif kind_of(lhs) in _OF_PACKED:
        if kind_of(rhs) in _fp4.FORMATS:
            return "packed"
        if isinstance(rhs, ScaledTensor) and rhs.layout == "row_major":
            return "weights"
    floats = ", ".join(_OF_PACKED)
    raise TypeError(
        f"scaled_grouped_matmul: {kind_of(lhs)} x {kind_of(rhs)} not supported; supported pairs: fp8_row or fp8_tensor "
        f"on both sides, fp8_block (128,) x fp8_block (128, 128), {floats} x {' or '.join(_fp4.FORMATS)} or eight "
        "bits, floats on both sides with format=; see quantize, or use grouped_matmul"
    )
