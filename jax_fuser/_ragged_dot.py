"""`ragged_dot` and `ragged_dot_general`: `jax.lax`'s signatures on the grouped product.

Any arrangement of dimensions reduces to the three two-operand forms by merging neighbours and by `vmap` over what is
left; the batching rules of the primitive then fold those dimensions into one kernel call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser import _arguments
from jax_fuser._accumulator import at_least_float32
from jax_fuser._automatic import whole_along
from jax_fuser._grouped_primitive import product
from jax_fuser._nested_checks import debug_check, readable, to_int32
from jax_fuser._row_groups import spans
from jax_fuser._static_sizes import check_sizes

_BASIC = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (1,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
) -> jax.Array:
    """Multiply each group of rows of `lhs` by its own matrix; takes the arguments of `jax.lax.ragged_dot`.

    Rows past `sum(group_sizes)` are never read and give zero; sizes that sum to more than `m` are clipped. Sizes are
    not checked, as in `jax.lax`; `grouped_matmul` checks them.

    Args:
        lhs: `(m, k)`, float, complex or integer. Differentiable.
        rhs: `(g, k, n)`. Differentiable; the gradient of an empty group is exactly zero.
        group_sizes: `(g,)`, any integer dtype, on the device.
        precision: accepted for compatibility. float32 is always multiplied as float32; 16-bit floats are exact products
            summed in float32.
        preferred_element_type: dtype of the result; by default that of `jax.lax.ragged_dot`, of operands of one dtype
            theirs, of float16 and bfloat16 bfloat16.
        group_offset: integer scalar or `(1,)`, may be traced: `rhs` holds only the groups from this one on, and
            `group_sizes` may be longer than `rhs`. Rows of the other groups give zero.

    Returns:
        `(m, n)`.

    Raises:
        TypeError: shapes or dtypes do not fit (the errors of `jax.lax`), or an operand is fp8 or fp4.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> out = jf.ragged_dot(jnp.ones((3, 2)), jnp.ones((2, 2, 1)), jnp.array([1, 1]))
        >>> out[:, 0].tolist()
        [2.0, 2.0, 0.0]
    """
    return _dispatch("ragged_dot", lhs, rhs, group_sizes, _BASIC, precision, preferred_element_type, group_offset)


def ragged_dot_general(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    ragged_dot_dimension_numbers: jax.lax.RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
) -> jax.Array:
    """Multiply with one ragged dimension; takes the arguments of `jax.lax.ragged_dot_general`.

    The ragged dimension of `lhs` is a free one (`[b,m,k], [g,b,k,n] -> [b,m,n]`), a contracted one
    (`[b,m,k], [b,k,n] -> [g,b,m,n]`) or a batch one (`[b,m,k], [b,k,n] -> [b,m,n]`), with any number and order of
    batch, contracted and free dimensions. All three are differentiable to any order, and batch with any `in_axes`.
    Inside of `fuse` what follows elementwise, such as `total + ragged_dot_general(..)` in float32, is the end of the
    product's kernel where one has ends (compute capability 9.0, 16-bit operands).

    Args:
        lhs: array with one ragged dimension. Differentiable.
        rhs: array. Differentiable.
        group_sizes: integers `(g,)`, or one row per dimension outside the ragged one, as in `jax.lax`.
        ragged_dot_dimension_numbers: see `jax.lax.RaggedDotDimensionNumbers`.
        precision: see `ragged_dot`.
        preferred_element_type: dtype of the result.
        group_offset: see `ragged_dot`. Without a group dimension in `rhs`, earlier groups count as empty.

    Returns:
        The result of `jax.lax.ragged_dot_general`; entries of a ragged batch dimension past the total are zero.

    Raises:
        TypeError: shapes or dtypes do not fit, or an operand is fp8 or fp4.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> dims = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
        >>> jf.ragged_dot_general(jnp.ones((3, 2)), jnp.ones((3, 4)), jnp.array([1, 2]), dims).shape
        (2, 2, 4)
    """
    if not isinstance(ragged_dot_dimension_numbers, jax.lax.RaggedDotDimensionNumbers):
        raise TypeError(
            "ragged_dot_general: ragged_dot_dimension_numbers must be jax.lax.RaggedDotDimensionNumbers, got a "
            f"{type(ragged_dot_dimension_numbers).__name__}"
        )
    return _dispatch(
        "ragged_dot_general",
        lhs,
        rhs,
        group_sizes,
        ragged_dot_dimension_numbers,
        precision,
        preferred_element_type,
        group_offset,
    )


def check_dtypes(function: str, lhs: Any, rhs: Any) -> None:
    """Refuse element types that need scales."""
    for dtype in (lhs.dtype, rhs.dtype):
        if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 1:
            raise TypeError(
                f"{function}: {lhs.dtype} x {rhs.dtype} not supported; supported pairs: any two of float16, bfloat16, "
                f"float32, float64 and integers; convert the operands first, or quantize them for scaled_grouped_matmul"
            )


def check_result(function: str, dtype: Any, lhs: Any, rhs: Any) -> None:
    """Refuse types of results that XLA has no products of."""
    whole = jnp.issubdtype(dtype, jnp.integer)
    if not whole and not jnp.issubdtype(dtype, jnp.floating):
        return
    bits = int(jnp.iinfo(dtype).bits if whole else jnp.finfo(dtype).bits)
    of_floats = any(jnp.issubdtype(x.dtype, jnp.inexact) for x in (lhs, rhs))
    if bits in (2, 6) or (whole and bits == 4 and of_floats):
        raise TypeError(
            f"{function}: preferred_element_type={jnp.dtype(dtype).name} not supported for {lhs.dtype} x {rhs.dtype}; "
            "take a type of 8 bits or more, and convert the result with astype"
        )


def to_extents(sizes: Any, m: int) -> jax.Array:
    """Return group sizes of any integer dtype as int32, clipped to `[0, m]` before they could wrap."""
    sizes = whole_along(jnp.asarray(sizes), -1)
    if sizes.dtype.itemsize >= 4 and sizes.dtype != jnp.int32:
        sizes = jnp.clip(sizes, 0, m)
    return sizes.astype(jnp.int32)


def local_groups(
    function: str, extents: jax.Array, starts: jax.Array | None, m: int, offset: Any, groups: int | None
) -> Any:
    """Return (extents, starts) of the `groups` groups from `offset` on; with None, of all, the earlier ones empty."""
    # A slice from a later offset would begin earlier without a word.
    total = extents.shape[-1]
    offset = _arguments.array(function, "group_offset", offset)
    if offset.size != 1 or not jnp.issubdtype(offset.dtype, jnp.integer):
        raise TypeError(f"{function}: group_offset must be one integer, got {offset.dtype}{list(offset.shape)}")
    known = readable(offset)
    if groups is not None and known is not None and not 0 <= known.item() <= total - groups:
        raise ValueError(
            f"{function}: group_offset={known.item()} and the {groups} groups of rhs exceed {total} groups in all; "
            f"pass an offset from 0 to {total - groups}, or sizes of more groups"
        )
    given = to_int32(offset).reshape(())  # bounds would wrap in a narrower dtype
    if groups is not None:
        debug_check(
            lambda: (given >= 0) & (given <= total - groups),
            f"{function}: group_offset and the {groups} groups of rhs exceed {total} groups in all",
        )
    most = total if groups is None else max(total - groups, 0)
    offset = jnp.clip(given, 0, most)
    first, count = spans(extents, starts, m)
    if groups is None:
        return jnp.where(jnp.arange(count.shape[-1], dtype=jnp.int32) >= offset, count, 0), first
    take = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=offset, slice_size=groups, axis=-1)
    return take(count), take(first)


@functools.lru_cache(maxsize=1024)
def _result_dtype(lhs: Any, rhs: Any, sizes: Any, dims: Any, precision: Any, preferred: Any) -> Any:
    """Apply the shape and dtype rules of `jax.lax`, errors included; each argument is (shape, dtype)."""
    structs = [jax.ShapeDtypeStruct(*x) for x in (lhs, rhs, sizes)]
    call = functools.partial(
        jax.lax.ragged_dot_general,
        ragged_dot_dimension_numbers=dims,
        precision=precision,
        preferred_element_type=preferred,
    )
    # Outside any mesh: on explicit axes jax.lax would ask for a sharding, which says nothing about shapes.
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return jax.eval_shape(call, *structs).dtype


def _dispatch(
    function: str, lhs: Any, rhs: Any, sizes: Any, dims: Any, precision: Any, preferred: Any, offset: Any
) -> jax.Array:
    lhs, rhs = _arguments.array(function, "lhs", lhs), _arguments.array(function, "rhs", rhs)
    sizes = _arguments.array(function, "group_sizes", sizes)
    preferred = _arguments.dtype(function, "preferred_element_type", preferred)
    check_sizes(function, lhs=lhs, rhs=rhs, group_sizes=sizes)
    check_dtypes(function, lhs, rhs)
    (lhs_contract, _), (lhs_batch, _) = dims.dot_dimension_numbers
    sizes_shape = sizes.shape
    local = None
    if offset is not None and len(dims.rhs_group_dimensions) == 1 and sizes.ndim:
        local = rhs.shape[dims.rhs_group_dimensions[0]]
        if local > sizes.shape[-1]:
            raise TypeError(
                f"{function}: rhs has {local} groups, more than the {sizes.shape[-1]} of group_sizes; pass its own "
                "part of rhs, or the sizes of all groups"
            )
        sizes_shape = (*sizes.shape[:-1], local)
    types = [(x.shape, x.dtype) for x in (lhs, rhs)] + [(sizes_shape, sizes.dtype)]
    try:
        dtype = _result_dtype(*types, dims, precision, preferred)
    except TypeError as error:
        raise TypeError(f"{function}: {str(error).rstrip('.')}; {_expected(dims, lhs, rhs, sizes)}") from None
    except ValueError as error:  # of the precision
        raise ValueError(f"{function}: {error}") from None
    check_result(function, dtype, lhs, rhs)
    ragged = dims.lhs_ragged_dimensions[0]
    rows = lhs.shape[ragged]
    extents, starts = to_extents(sizes, rows), None
    if offset is not None:
        extents, starts = local_groups(function, extents, None, rows, offset, local)
    if ragged in lhs_contract:
        form: Callable[..., jax.Array] = _contraction
    else:
        form = _batch if ragged in lhs_batch else _rows
    return form(lhs, rhs, (extents, starts), dims, dtype)


def _expected(dims: Any, *arrays: jax.Array) -> str:
    lhs, rhs, sizes = (f"{x.dtype}{list(x.shape)}" for x in arrays)
    got = f"got lhs {lhs}, rhs {rhs} and group_sizes {sizes}"
    if dims == _BASIC:
        form = "lhs (m, k), rhs (g, k, n) and integer group_sizes (g,)"
        return f"expected {form}, {got}; transpose or reshape them (grouped_matmul takes rhs (g, n, k), too)"
    return f"{got} with {dims}; change the dimension numbers or the arrays"


def _permute(x: jax.Array, *parts: Sequence[int]) -> jax.Array:
    """Bring dimensions into the order of `parts`, each part merged into one."""
    order = [d for part in parts for d in part]
    return jnp.transpose(x, order).reshape([math.prod(x.shape[d] for d in part) for part in parts])


def _rest(x: jax.Array, *taken: Sequence[int]) -> list[int]:
    used = {d for part in taken for d in part}
    return [d for d in range(x.ndim) if d not in used]


def _contracted(lhs_dims: Sequence[int], rhs_dims: Sequence[int]) -> tuple[list[int], list[int]]:
    """Order the pairs as they lie in lhs, so that lhs need not be transposed."""
    pairs = sorted(zip(lhs_dims, rhs_dims))
    return [a for a, _ in pairs], [b for _, b in pairs]


def _indices(indices: Any, scale: int, lead: tuple[int, ...]) -> tuple[list[Any], int | None]:
    """Scale extents and starts to merged rows; `[.., g]` is reshaped to `lead + (g,)`. Also the in_axes for `vmap`."""
    extents, starts = indices
    shape = (extents.shape[-1],) if extents.ndim == 1 else (*lead, extents.shape[-1])
    scaled = [None if a is None else (a if scale == 1 else a * scale).reshape(shape) for a in (extents, starts)]
    return scaled, None if extents.ndim == 1 else 0


def _rows(lhs: jax.Array, rhs: jax.Array, indices: Any, dims: Any, dtype: Any) -> jax.Array:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims.dot_dimension_numbers
    ragged, group = dims.lhs_ragged_dimensions[0], dims.rhs_group_dimensions
    free = _rest(lhs, lhs_contract, lhs_batch)
    at = free.index(ragged)
    outer, inner = free[:at], free[at + 1 :]
    rhs_free = _rest(rhs, rhs_contract, rhs_batch, group)
    result = [*(lhs.shape[d] for d in (*lhs_batch, *free)), *(rhs.shape[d] for d in rhs_free)]

    lhs_contract, rhs_contract = _contracted(lhs_contract, rhs_contract)
    # Both layouts of the weights are read in place; prefer the one that they have.
    transpose = bool(rhs_free) and bool(rhs_contract) and max(rhs_free) < min(rhs_contract)
    last = (rhs_free, rhs_contract) if transpose else (rhs_contract, rhs_free)
    a = _permute(lhs, lhs_batch, outer, [ragged, *inner], lhs_contract)
    b = _permute(rhs, rhs_batch, group, *last)
    index, axis = _indices(indices, math.prod(lhs.shape[d] for d in inner), a.shape[:2])
    multiply = _mapped(functools.partial(product, mode="rows", dtype=dtype, transpose_rhs=transpose))
    if outer:
        multiply = jax.vmap(multiply, in_axes=(0, None, axis))
    else:
        a, index = a[:, 0], [i if i is None or axis is None else i[:, 0] for i in index]
    return _over_batch(multiply, lhs_batch, a, b, index, axis, 0).reshape(result)


def _contraction(lhs: jax.Array, rhs: jax.Array, indices: Any, dims: Any, dtype: Any) -> jax.Array:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims.dot_dimension_numbers
    at = lhs_contract.index(dims.lhs_ragged_dimensions[0])
    lhs_free, rhs_free = _rest(lhs, lhs_contract, lhs_batch), _rest(rhs, rhs_contract, rhs_batch)
    result = [lhs.shape[d] for d in (*lhs_batch, *lhs_free)] + [rhs.shape[d] for d in rhs_free]
    per_outer = indices[0].ndim > 1 and at > 0
    lead = (math.prod(lhs.shape[d] for d in lhs_batch), math.prod(lhs.shape[d] for d in lhs_contract[:at]))

    def merged(x: jax.Array, batch: Any, contract: Any, free: Any) -> jax.Array:
        outer, ragged, inner = contract[:at], contract[at : at + 1], contract[at + 1 :]
        if per_outer:
            return _permute(x, batch, outer, [*ragged, *inner], free)
        # Equal groups for every outer index: the outer dimensions are more rows of the same group.
        return _permute(x, batch, [*ragged, *outer, *inner], free)

    a = merged(lhs, lhs_batch, lhs_contract, lhs_free)
    b = merged(rhs, rhs_batch, rhs_contract, rhs_free)
    scale = math.prod(lhs.shape[d] for d in lhs_contract[at + 1 :]) * (1 if per_outer else lead[1])
    index, axis = _indices(indices, scale, lead if per_outer else lead[:1])
    wide = dtype
    if per_outer and jnp.issubdtype(dtype, jnp.floating):
        wide = np.dtype(at_least_float32(dtype))
    multiply = _mapped(functools.partial(product, mode="contraction", dtype=wide))
    if per_outer:
        each = jax.vmap(multiply, in_axes=(0, 0, 0))

        def multiply(a: Any, b: Any, index: Any) -> jax.Array:
            return jnp.sum(each(a, b, index), axis=0).astype(dtype)

    out = _over_batch(multiply, lhs_batch, a, b, index, axis, 1)
    return out.reshape(indices[0].shape[-1], *result)


def _batch(lhs: jax.Array, rhs: jax.Array, indices: Any, dims: Any, dtype: Any) -> jax.Array:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims.dot_dimension_numbers
    at = lhs_batch.index(dims.lhs_ragged_dimensions[0])
    lhs_free, rhs_free = _rest(lhs, lhs_contract, lhs_batch), _rest(rhs, rhs_contract, rhs_batch)
    result = [*(lhs.shape[d] for d in (*lhs_batch, *lhs_free)), *(rhs.shape[d] for d in rhs_free)]
    lhs_contract, rhs_contract = _contracted(lhs_contract, rhs_contract)
    transpose = bool(rhs_free) and bool(rhs_contract) and max(rhs_free) < min(rhs_contract)
    last = (rhs_free, rhs_contract) if transpose else (rhs_contract, rhs_free)
    a = _permute(lhs, lhs_batch[:at], lhs_batch[at:], lhs_free, lhs_contract)
    b = _permute(rhs, rhs_batch[:at], rhs_batch[at:], *last)
    index, axis = _indices(indices, math.prod(lhs.shape[d] for d in lhs_batch[at + 1 :]), a.shape[:1])
    multiply = _mapped(functools.partial(product, mode="batch", dtype=dtype, transpose_rhs=transpose))
    return _over_batch(multiply, lhs_batch[:at], a, b, index, axis, 0).reshape(result)


def _mapped(multiply: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda a, b, index: multiply(a, b, *index)


def _over_batch(
    multiply: Callable[..., jax.Array], batch: Any, a: Any, b: Any, index: Any, axis: int | None, out_axis: int
) -> jax.Array:
    """Map over the leading (batch) dimension, or drop it where there is none."""
    if not batch:
        return multiply(a[0], b[0], [i if i is None or axis is None else i[0] for i in index])
    return jax.vmap(multiply, in_axes=(0, 0, axis), out_axes=out_axis)(a, b, index)
