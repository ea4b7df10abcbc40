"""`grouped_matmul`: the grouped product on nested tensors, with what usually follows it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser import _arguments
from jax_fuser._activations import GATED, Activation, activation_of
from jax_fuser._automatic import automatically, names_of
from jax_fuser._grouped_primitive import common_dtype
from jax_fuser._grouped_tail import product_and_tail
from jax_fuser._nested_checks import check_extents, check_groups, check_stored, index_array, to_int32
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._packed_weights import PackedWeights
from jax_fuser._quant import ScaledTensor, quantize
from jax_fuser._quantized_product import IN_KERNEL, check_format, product_and_quantize
from jax_fuser._ragged_dot import (
    check_dtypes,
    check_result,
    local_groups,
    ragged_dot,
    ragged_dot_general,
    to_extents,
)
from jax_fuser._row_groups import ordered_starts
from jax_fuser._static_sizes import check_sizes
from jax_fuser._sum_rows import rows_at
from jax_fuser._tail_arguments import bias_of, check_even, row_scale_of

__all__ = ["grouped_matmul", "ragged_dot", "ragged_dot_general"]


def grouped_matmul(
    lhs: Any,
    rhs: Any,
    group_sizes: Any = None,
    *,
    transpose_rhs: bool = False,
    bias: Any = None,
    activation: Activation = None,
    row_scale: Any = None,
    row_index: Any = None,
    group_offset: Any = None,
    preferred_element_type: Any = None,
    output_format: str | None = None,
    validate: bool = True,
) -> Any:
    """Multiply the rows of each group by the group's matrix, then add, activate and scale.

    `row_scale * activation(lhs @ rhs[group] + bias[group])`. For 16-bit floats the product is summed in float32 and
    rounded to the result's dtype, and what follows it is computed in float32; where all of it is one kernel (GPUs of
    compute capability 9.0), only the result is rounded. Group sizes need no alignment and stay on
    the device. Padding rows are never read and give zero; a NaN stays in its group, and the gradient of an empty group
    is exactly zero.

    Args:
        lhs: nested tensor `[.., groups, ragged, .., k]`, or rows `(m, k)` with `group_sizes`. Differentiable. Groups of
            gapped storage must lie in ascending order.
        rhs: `(groups, k, n)`, or `(groups, n, k)` with `transpose_rhs`. Differentiable.
        group_sizes: integers `(groups,)`; only with rows.
        transpose_rhs: whether `k` is the last axis of `rhs`; read in place.
        bias: `(groups, n)`, one row per group. Differentiable.
        activation: "silu", "gelu", "relu", a pointwise function of JAX arrays, or "swiglu", "geglu": then `rhs` has
            `2 n` columns, gate before up, and the result has `n`. A function gets all rows, padding among them, and
            must compute each element from that element alone: what mixes rows, such as a softmax along axis 0, mixes
            groups and padding.
        row_scale: `(m,)`, or nested with the layout of `lhs`. Differentiable.
        row_index: integers `(m,)`: row `i` of the product is `lhs[row_index[i]]`; rows `lhs` is then an array of any
            length. An index outside `lhs` stands for a row of zeros. On GPUs of compute capability 9.0 the kernel of
            a 16-bit product with an activation and up to 768 columns, 1024 if it is gated, gathers rows as it reads
            them; others have them copied first.
        group_offset: integer, may be traced: `rhs` (and `bias`) hold only the groups from this one on; rows of the
            other groups give zero.
        preferred_element_type: dtype of the result; by default what `jnp.promote_types` makes of those of the
            operands: float32 for float16 and bfloat16, of which `ragged_dot` makes bfloat16 as `jax.lax` does.
        output_format: returns `quantize(result, output_format)` instead, with the same bits; a name of a format.
            "fp8_block" is what `scaled_grouped_matmul` takes next. On GPUs of compute capability 9.0 "fp8_block",
            "mxfp8", "nvfp4" and "mxfp4" are one kernel with the product of 16-bit rows, where the result has columns in
            multiples of their blocks, 128, 32, 16 and 32: nothing else is stored. Elsewhere, in exported programs, for
            gathered or inner rows, and for other formats ("fp8_row" has a scale for all columns of a row, which no
            block of the kernel has together), the product is stored and then quantized; `explain` says which. Not
            differentiable: see `quantize`.
        validate: whether to check concrete `group_sizes`, or where the groups of a nested `lhs` lie.

    Returns:
        Nested tensor of the same layout for a nested `lhs`, otherwise `(m, n)`; with `output_format` a `ScaledTensor`
        that holds it.

    Raises:
        ValueError: shapes do not fit, concrete sizes are negative or sum to more than `m`, nested groups overlap or
            reach past the rows, or layouts differ; `output_format` is unknown, or the columns are none for it.
        TypeError: an argument has the wrong type or an unsupported dtype; what is quantized is differentiated.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt = jf.as_nested(jnp.ones((5, 4)), extents=[2, 0, 3])
        >>> jf.grouped_matmul(nt, jnp.ones((3, 4, 6)), activation="swiglu").shape
        (3, ragged, 3)
        >>> jf.grouped_matmul(nt, jnp.ones((3, 4, 256)), activation="swiglu", output_format="fp8_block")
        ScaledTensor(fp8_block 1x128, float8_e4m3fn[3, ragged, 128], scales float32[5, 1])
    """
    if isinstance(rhs, NestedTensor):
        raise TypeError(
            "grouped_matmul: rhs must be an array (groups, k, n), got a NestedTensor; to sum over ragged rows use "
            "ragged_dot_general with a contracted ragged dimension"
        )
    for operand in (lhs, rhs):
        if isinstance(operand, (ScaledTensor, PackedWeights)):
            hint = ", or convert them with dequantize" if isinstance(operand, ScaledTensor) else ""
            raise TypeError(f"grouped_matmul: {operand.format} operands not supported; use scaled_grouped_matmul{hint}")
    rhs, numbers = _arguments.array("grouped_matmul", "rhs", rhs), None
    transpose_rhs = _arguments.flag("grouped_matmul", "transpose_rhs", transpose_rhs)
    validate = _arguments.flag("grouped_matmul", "validate", validate)
    function = activation_of("grouped_matmul", activation)
    preferred_element_type = _arguments.dtype("grouped_matmul", "preferred_element_type", preferred_element_type)
    rows = lhs.data if isinstance(lhs, NestedTensor) else lhs
    check_sizes("grouped_matmul", lhs=rows, rhs=rhs, group_sizes=group_sizes, row_index=row_index)
    if isinstance(lhs, NestedTensor):
        if group_sizes is not None or row_index is not None:
            name = "group_sizes" if group_sizes is not None else "row_index"
            raise TypeError(f"grouped_matmul: {name}= needs lhs as an array of rows, got a NestedTensor; pass lhs.data")
        data, dim = lhs.data, lhs.ragged_dim
        check_stored("grouped_matmul", lhs)
        if validate:
            check_groups("grouped_matmul", lhs)
        extents = to_int32(lhs.extents)
        starts = ordered_starts(lhs.starts, extents, lhs.capacity) if lhs.gapped else None
    else:
        data, dim, starts = _arguments.array("grouped_matmul", "lhs", lhs), 0, None
        tokens = data
        if group_sizes is None:
            raise TypeError(
                "grouped_matmul: lhs is an array, so group_sizes= is needed; or pass as_nested(lhs, extents=)"
            )
        if row_index is not None:
            index = _row_index(row_index, tokens)
            placed = [*names_of(index), *names_of(data)[1:]]
            if any([*placed, *names_of(data)]):
                data = automatically(rows_at, data, index, like=lambda _: [placed])
            else:
                numbers, data = index, jax.ShapeDtypeStruct((*index.shape, *data.shape[1:]), data.dtype)
        sizes = index_array("grouped_matmul", "group_sizes", group_sizes, validate)
        if sizes.ndim != 1 or data.ndim != 2:
            raise ValueError(
                f"grouped_matmul: rows need lhs (m, k) and group_sizes (groups,), got {data.shape} and {sizes.shape}; "
                f"wrap other shapes with as_nested"
            )
        if validate:
            rows_of = "lhs" if row_index is None else "row_index"
            check_extents("grouped_matmul", sizes, data.shape[0], 0, "group_sizes", rows_of)
        extents = to_extents(sizes, data.shape[0])
    check_dtypes("grouped_matmul", data, rhs)
    gated = isinstance(activation, str) and activation in GATED
    _check_shapes(data, dim, rhs, extents.shape[-1], transpose_rhs, group_offset)
    dtype = jnp.dtype(preferred_element_type or common_dtype(data.dtype, rhs.dtype))
    check_result("grouped_matmul", dtype, data, rhs)
    columns = rhs.shape[1 if transpose_rhs else 2]
    if isinstance(activation, str) and activation != "relu" and not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(
            f"grouped_matmul: activation {activation!r} is of floats, the result is {dtype}; pass "
            "preferred_element_type=jnp.float32, or convert the operands"
        )
    if gated:
        check_even("grouped_matmul", columns)
    if output_format is not None:
        check_format("grouped_matmul", output_format, dtype, columns // 2 if gated else columns)
    bias = bias_of("grouped_matmul", bias, (rhs.shape[0], columns), dtype)
    row_shapes = data.shape[: dim + 1], data.shape[:-1]
    nested = lhs if isinstance(lhs, NestedTensor) else NestedTensor(data, extents)
    row_scale = row_scale_of("grouped_matmul", row_scale, nested, row_shapes, dtype)

    inner = data.shape[dim + 1 : -1]
    rows = int(np.prod([data.shape[dim], *inner]))
    how: dict[str, Any] = {"transpose_rhs": transpose_rhs, "activation": function, "gated": gated, "dtype": dtype}
    multiply: Callable[..., jax.Array] = functools.partial(product_and_tail, **how)

    def run(data: Any, rhs: Any, extents: Any, starts: Any, bias: Any, scale: Any, offset: Any) -> jax.Array:
        if scale is not None and inner:
            scale = jnp.broadcast_to(scale.reshape(*scale.shape, *[1] * (data.ndim - 1 - scale.ndim)), data.shape[:-1])
            scale = scale.reshape(*data.shape[:dim], -1)

        def one(x: Any, extents: Any, starts: Any, scale: Any) -> jax.Array:
            if offset is not None:
                extents, starts = local_groups("grouped_matmul", extents, starts, data.shape[dim], offset, rhs.shape[0])
            each = rows // max(data.shape[dim], 1)
            if each != 1:
                extents, starts = extents * each, None if starts is None else starts * each
            return multiply(x, rhs, extents, starts, bias, scale)

        # Outer dimensions have their own extents, or share 1-D ones.
        own = 0 if extents.ndim > 1 else None
        for _ in range(dim):
            one = jax.vmap(one, in_axes=(0, own, own, 0))
        out = one(data.reshape(*data.shape[:dim], rows, data.shape[-1]), extents, starts, scale)
        return out.reshape(*data.shape[:-1], out.shape[-1])

    operands = data, rhs, extents, starts, bias, row_scale
    quantizes = output_format in IN_KERNEL and data.ndim == 2 and numbers is None
    if (numbers is not None or quantizes) and group_offset is not None:
        extents, starts = local_groups("grouped_matmul", extents, starts, rows, group_offset, rhs.shape[0])
    if numbers is not None:
        return _stored(multiply(tokens, rhs, extents, starts, bias, row_scale, index=numbers), output_format)
    if quantizes:
        made = product_and_quantize(data, rhs, extents, starts, bias, row_scale, **how, format=str(output_format))
        return dataclasses.replace(made, data=lhs.replace(data=made.data)) if isinstance(lhs, NestedTensor) else made
    if data.ndim == 2:
        out = run(*operands, group_offset)
    else:
        # A static offset is checked.
        static = {"offset": group_offset} if isinstance(group_offset, int) else {}
        others = () if static else (group_offset,)
        placed = [*names_of(data)[:-1], None]
        out = automatically(functools.partial(run, **static), *operands, *others, like=lambda _: [placed])
    return _stored(lhs.replace(data=out) if isinstance(lhs, NestedTensor) else out, output_format)


def _stored(out: Any, format: str | None) -> Any:
    return out if format is None else quantize(out, format)


def _row_index(row_index: Any, rows: jax.Array) -> jax.Array:
    index = jnp.asarray(index_array("grouped_matmul", "row_index", row_index))
    if index.ndim != 1 or rows.ndim != 2:
        raise ValueError(
            f"grouped_matmul: row_index must be (m,) for lhs (rows, k), got {index.shape} and {rows.shape}; "
            "flatten both first"
        )
    if index.dtype.itemsize > 4:  # what is outside stays there
        index = jnp.where((index >= 0) & (index < rows.shape[0]), index, -1 % 2**32)
    return index.astype(jnp.uint32)


def _check_shapes(data: Any, dim: int, rhs: Any, groups: int, transpose_rhs: bool, offset: Any) -> None:
    form = "(groups, n, k)" if transpose_rhs else "(groups, k, n)"
    if rhs.ndim != 3:
        raise ValueError(f"grouped_matmul: rhs must be {form}, got {rhs.shape}; reshape it")
    if data.ndim < dim + 2:
        raise ValueError(f"grouped_matmul: lhs needs a last axis k after the rows, got data of shape {data.shape}")
    k = rhs.shape[2 if transpose_rhs else 1]
    if data.shape[-1] != k:
        raise ValueError(
            f"grouped_matmul: lhs has k={data.shape[-1]} but rhs {rhs.shape} as {form} has k={k}; pass transpose_rhs="
            f"{not transpose_rhs} if its other axis is k"
        )
    if offset is None and rhs.shape[0] != groups:
        raise ValueError(
            f"grouped_matmul: rhs has {rhs.shape[0]} groups but lhs has {groups}; for local experts pass group_offset="
        )
    if rhs.shape[0] > groups:
        raise ValueError(
            f"grouped_matmul: rhs has {rhs.shape[0]} groups, more than the {groups} of lhs; pass its own part of rhs"
        )
