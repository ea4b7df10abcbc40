"""The grouped matrix product as one JAX primitive: shapes, derivatives, batching, lowering.

    mode          lhs            rhs                       result      ragged axis
    rows          (m, k)         (g, k, n) or (g, n, k)    (m, n)      rows of lhs and result
    contraction   (m, k)         (m, n)                    (g, k, n)   rows of lhs and rhs, summed
    batch         (m, r, k)      (m, k, n) or (m, n, k)    (m, r, n)   the batch axis m

`extents[g]` rows belong to group g, from `starts[g]` (ascending), or from the sum of the earlier extents. Rows of no
group are padding: never read, zero in the result, or anything with `leaves_padding`. The second form of rhs is
`transpose_rhs`.

The three modes are closed under differentiation: each derivative is again one of them, to any order. `vmap` folds the
batch into the rows, the groups or a dense axis, so that a batch is one kernel too.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching

from jax_fuser import _grouped_split, _split, _trace
from jax_fuser._automatic import placed_as
from jax_fuser._batched_rows import by_group, end_to_end, front, side_by_side
from jax_fuser._eager import compile_when_eager
from jax_fuser._grouped_lowering import register_lowerings
from jax_fuser._row_groups import spans
from jax_fuser._varying import same_varying

INT32_MAX = 2**31 - 1
grouped_p = _trace.own_call(_trace.PRODUCT)


def product(
    lhs: Any,
    rhs: Any,
    extents: Any,
    starts: Any = None,
    *,
    mode: str,
    dtype: Any,
    transpose_rhs: bool = False,
    leaves_padding: bool = False,
) -> jax.Array:
    """Multiply by groups: the only place that binds the primitive. Operands of two dtypes are promoted to one.

    `leaves_padding`: for mode rows where no one reads rows of no group: they may hold anything.
    """
    if lhs.dtype != rhs.dtype:
        common = common_dtype(lhs.dtype, rhs.dtype)
        lhs, rhs = lhs.astype(common), rhs.astype(common)
    operands = (lhs, rhs, extents) if starts is None else (lhs, rhs, extents, starts)
    return grouped_p.bind(
        *same_varying(*operands),
        mode=mode,
        transpose_rhs=transpose_rhs,
        dtype=np.dtype(dtype),
        has_starts=starts is not None,
        leaves_padding=leaves_padding,
        mesh=_split.needs_devices(),
    )


def common_dtype(*dtypes: Any) -> Any:
    """Return what the dtypes of two operands are promoted to.

    No rule of JAX's promotes floats of eight bits, cotangents of such results, and integers of four: they give way.
    """
    wide = [d for d in dtypes if not _gives_way(d)]
    if len(wide) == 2 or dtypes[0] == dtypes[1]:
        return jnp.promote_types(*dtypes)
    if wide:
        return wide[0]
    return jnp.int8 if all(jnp.issubdtype(d, jnp.integer) for d in dtypes) else jnp.float32


def _gives_way(dtype: Any) -> bool:
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).bits) < 8
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 1


def _abstract_eval(lhs: Any, rhs: Any, extents: Any, *starts: Any, mode: str, transpose_rhs: bool, dtype: Any,
                   has_starts: bool, **_: Any) -> Any:  # fmt: skip
    groups = extents.shape[0] if extents.ndim == 1 else -1
    k_axis, n_axis = (-1, -2) if transpose_rhs else (-2, -1)
    if mode == "rows":
        fits = lhs.ndim == 2 and rhs.ndim == 3 and rhs.shape[0] == groups and lhs.shape[1] == rhs.shape[k_axis]
        shape: tuple[int, ...] = (lhs.shape[0], rhs.shape[n_axis])
    elif mode == "contraction":
        fits = lhs.ndim == 2 and rhs.ndim == 2 and lhs.shape[0] == rhs.shape[0] and groups >= 0 and not transpose_rhs
        shape = (groups, lhs.shape[1], rhs.shape[1])
    elif mode == "batch":
        fits = lhs.ndim == 3 and rhs.ndim == 3 and lhs.shape[0] == rhs.shape[0] and lhs.shape[2] == rhs.shape[k_axis]
        shape = (lhs.shape[0], lhs.shape[1], rhs.shape[n_axis])
    else:
        raise ValueError(f"grouped_matmul: mode must be rows, contraction or batch, got {mode!r}")
    indices = (extents, *starts)
    fits = fits and lhs.dtype == rhs.dtype and len(starts) == has_starts and groups >= 0
    if not fits or any(i.dtype != jnp.int32 or i.shape != extents.shape for i in indices):
        got = ", ".join(f"{a.dtype}{list(a.shape)}" for a in (lhs, rhs, *indices))
        raise ValueError(f"grouped_matmul: operands do not fit mode {mode!r}: {got}")
    sharding = _grouped_split.result_sharding("grouped_matmul", _grouped_split.layout(mode, transpose_rhs), lhs, rhs)
    return lhs.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


# Derivatives.


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    lhs, rhs, *indices = primals
    d_lhs, d_rhs = tangents[:2]
    out = grouped_p.bind(*primals, **params)
    terms = []
    moves = jnp.issubdtype(out.dtype, jnp.inexact)  # floats may give integers
    if moves and type(d_lhs) is not ad.Zero:
        terms.append(product_like((d_lhs, rhs, *indices), params))
    if moves and type(d_rhs) is not ad.Zero:
        terms.append(product_like((lhs, d_rhs, *indices), params))
    if not terms:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, functools.reduce(jnp.add, terms)


def product_like(operands: Any, params: Any) -> jax.Array:
    """Bind with other operands of the same types."""
    return grouped_p.bind(*same_varying(*operands), **params)


def _transpose(cotangent: Any, lhs: Any, rhs: Any, *indices: Any, mode: str, transpose_rhs: bool, **_: Any
               ) -> list[Any]:  # fmt: skip
    for_lhs = ad.is_undefined_primal(lhs)
    aval = (lhs if for_lhs else rhs).aval
    nothing = [None] * len(indices)
    if type(cotangent) is ad.Zero:
        zero = ad.Zero(aval.to_ct_aval())
        return [zero, None, *nothing] if for_lhs else [None, zero, *nothing]

    def times(a: Any, b: Any, mode: str, transpose: bool = False) -> jax.Array:
        grad = product(a, b, *indices, mode=mode, dtype=aval.dtype, transpose_rhs=transpose)
        return placed_as(grad, aval.sharding)

    if for_lhs:
        if mode == "contraction":
            grad = times(rhs, cotangent, "rows", True)
        else:
            grad = times(cotangent, rhs, mode, not transpose_rhs)
        return [grad, None, *nothing]
    if mode == "rows":
        grad = times(cotangent, lhs, "contraction") if transpose_rhs else times(lhs, cotangent, "contraction")
    elif mode == "contraction":
        grad = times(lhs, cotangent, "rows")
    elif transpose_rhs:
        grad = times(jnp.swapaxes(cotangent, 1, 2), lhs, "batch")
    else:
        grad = times(jnp.swapaxes(lhs, 1, 2), cotangent, "batch")
    return [None, grad, *nothing]


# Batching.


def _batch(args: Any, dims: Any, **params: Any) -> tuple[jax.Array, int]:
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    lhs, rhs, extents, *starts = args
    lhs_dim, rhs_dim, *index_dims = dims
    mode = params["mode"]
    m = lhs.shape[0 if lhs_dim is None or lhs_dim > 0 else 1]
    if size * m > INT32_MAX:
        raise ValueError(f"grouped_matmul: vmap of {size} x {m} rows exceeds 2**31-1; use jax.lax.map over the batch")
    if all(d is None for d in index_dims):
        indices = (extents, *starts)
        if rhs_dim is None:
            return _merge_lhs(jnp.moveaxis(lhs, lhs_dim, 1), rhs, indices, params)
        if lhs_dim is None and not _cheaper_to_repeat_lhs(rhs, rhs_dim, m, params):
            return _merge_rhs(lhs, rhs, rhs_dim, indices, params)

    extents, *starts = (front(a, d, size) for a, d in zip((extents, *starts), index_dims))
    first, count = spans(extents, starts[0] if starts else None, m)
    shared = mode == "rows" and rhs_dim is None
    results = count.shape[1] if mode == "contraction" else m
    rows = by_group(first, count, m) if shared else end_to_end(first, count, m, results)
    rhs = rhs if shared else rows.join(rhs, rhs_dim)
    return rows.part(product(rows.join(lhs, lhs_dim), rhs, rows.extents, rows.starts, **_by_product(params)))


def _by_product(params: Any) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key not in ("has_starts", "mesh")}


def _merge_lhs(lhs: Any, rhs: Any, indices: Any, params: Any) -> tuple[jax.Array, int]:
    """Only lhs is batched, `(m, size, ...)`: the batch joins its rows (mode rows) or its next dense axis."""
    m, size = lhs.shape[:2]
    if params["mode"] == "rows":
        rows = side_by_side(indices[0], indices[1] if len(indices) > 1 else None, size, m)
        return rows.part(product(rows.join(lhs, 1), rhs, rows.extents, rows.starts, **_by_product(params)))
    out = product_like((lhs.reshape(m, size * lhs.shape[2], *lhs.shape[3:]), rhs, *indices), params)
    return out.reshape(out.shape[0], size, lhs.shape[2], *out.shape[2:]), 1


def _cheaper_to_repeat_lhs(rhs: Any, rhs_dim: int, m: int, params: Any) -> bool:
    """Weights stacked in front would have to be transposed; repeating few rows of lhs moves fewer bytes."""
    if params["mode"] != "rows" or rhs_dim != 0:
        return False
    n = rhs.shape[2 if params["transpose_rhs"] else 3]
    return m < 2 * rhs.shape[1] * n


def _merge_rhs(lhs: Any, rhs: Any, rhs_dim: int, indices: Any, params: Any) -> tuple[jax.Array, int]:
    """Only rhs is batched: the batch joins its n axis."""
    axis = 1 if params["transpose_rhs"] or params["mode"] == "contraction" else 2
    rhs = jnp.moveaxis(rhs, rhs_dim, axis)
    size, n = rhs.shape[axis : axis + 2]
    rhs = rhs.reshape(*rhs.shape[:axis], size * n, *rhs.shape[axis + 2 :])
    out = product_like((lhs, rhs, *indices), params)
    return out.reshape(*out.shape[:-1], size, n), out.ndim - 1


compile_when_eager(grouped_p, "mode", "transpose_rhs", "dtype", "has_starts", "leaves_padding", "mesh")
grouped_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[grouped_p] = _jvp
ad.primitive_transposes[grouped_p] = _transpose
batching.primitive_batchers[grouped_p] = _batch
register_lowerings(grouped_p)
