"""Moving rows by index, so that both directions of differentiation are gathers.

`sum_rows(x, take, back)[i] = sum over j of x[take[i, j]]` is a product with a sparse 0/1 matrix, given twice: `take`
lists the source rows of each result row, `back` lists the result rows that each source row went to. Its transpose is
the same op with the two swapped, so no scatter-add (slow, and in no fixed order on a GPU) ever runs. Rows are added in
the order of `j`, in float32 for 16-bit floats. An index outside the array stands for a row of zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_fuser import _by_hand, _ffi, _flatten, _split
from jax_fuser._accumulator import accumulator
from jax_fuser._automatic import placed_as
from jax_fuser._eager import compile_when_eager
from jax_fuser._fuse import fuse
from jax_fuser._group_order import group_order
from jax_fuser._spread_sum import spread_groups, take_rows, trailing
from jax_fuser._varying import same_varying

# Above this many terms the sum is one reduction instead of a chain of additions.
_UNROLLED_TERMS = 16
# A kernel reads a row of each array that may have it, still faster than putting twelve of them together first.
_MOST_PARTS = 16
# On CPUs a kernel for fewer elements saves some microseconds, and takes 0.1 s to compile.
_FEW_ELEMENTS = 1 << 12
# On GPUs moves of fewer elements take no longer than a launch.
_FUSED_ELEMENTS = 1 << 20

sum_rows_p = jax.extend.core.Primitive("jax_fuser_sum_rows")


def sum_rows(
    x: jax.Array | tuple[jax.Array, ...],
    take: jax.Array,
    back: jax.Array,
    *,
    fill: jax.Array | None = None,
    leaves: bool = False,
    back_leaves: bool = False,
    by_xla: bool = False,
) -> jax.Array:
    """Add rows of `x` named by index.

    Args:
        x: `(sources, ...)`, any dtype. Or arrays that have these rows one after another. Differentiable.
        take: int32 `(results, terms)`, source rows of each result row.
        back: int32 `(sources, uses)`, the same relation from the other side: `s in take[i]` as often as `i in back[s]`.
            Only differentiation reads it.
        fill: scalar, what results of no row hold instead of zero, where `take` has one term. Differentiable.
        leaves: nobody reads a result of no row: where `take` has one term, which is a row or -1, it may hold anything.
        back_leaves: the same of the derivative, by `back`.
        by_xla: `x`, or what reads the result, is little arithmetic, which XLA makes part of the moves; of derivatives
            too.

    Returns:
        `(results, ...)`, dtype of `x`.
    """
    parts = x if isinstance(x, tuple) else (x,)
    how = {"leaves": leaves, "back_leaves": back_leaves, "by_xla": by_xla}
    return _bind(parts, take, back, [] if fill is None else [fill], how)


def _bind(parts: Sequence[Any], take: Any, back: Any, fill: Sequence[Any], how: dict[str, bool]) -> jax.Array:
    operands = same_varying(*parts, take, back, *fill)
    result: jax.Array = sum_rows_p.bind(*operands, parts=len(parts), mesh=_split.needs_devices(), **how)
    return result


def _abstract_eval(*operands: Any, parts: int, **_: Any) -> Any:
    x, take, back = operands[0], *operands[parts : parts + 2]
    sources = sum(part.shape[0] for part in operands[:parts])
    if take.ndim != 2 or back.ndim != 2 or back.shape[0] != sources:
        raise ValueError(
            f"sum_rows: x of {sources} rows needs take (results, terms) and back ({sources}, uses), got "
            f"{take.shape} and {back.shape}"
        )
    sharding = x.sharding.update(spec=jax.P(*[None] * x.ndim))
    return x.update(shape=(take.shape[0], *x.shape[1:]), weak_type=False, sharding=sharding)


def gathered_sum(x: jax.Array, take: jax.Array) -> jax.Array:
    """Return the sums of `sum_rows` where nothing differentiates them."""
    return sum_rows(x, take, jnp.zeros((x.shape[0], 0), jnp.int32))


def gather_rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """Return rows of `x`, zero for -1, where nothing differentiates them."""
    return gathered_sum(x, index[:, None])


@jax.custom_jvp
def rows_at(x: jax.Array, index: jax.Array) -> jax.Array:
    """Return rows of `x`, `(rows, ...)`, each any number of times; zero where the unsigned index is past the end.

    The derivative adds what a row's uses give in their order, in float32 for 16-bit floats: a scatter-add would round
    after each.
    """
    return take_rows(x, index)


@rows_at.defjvp
def _rows_at_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    x, index = primals
    return rows_at(x, index), _rows_in_order(tangents[0], index)


def _rows_in_order(x: jax.Array, index: jax.Array) -> jax.Array:
    """Return the same as `rows_at`, from rows that lie in groups of those of one index."""
    if 0 in (x.shape[0], index.shape[0]):
        return take_rows(x, index)
    order, place, extents = group_order(index, x.shape[0])
    ids = jnp.minimum(index, x.shape[0]).astype(jnp.int32)[order]
    rows = spread_groups(x, ids, jnp.cumsum(extents) - extents, extents)
    return sum_rows(rows, place[:, None], order[:, None])


def is_worth_a_kernel(rows: Any) -> bool:
    """Return whether rows are so many that moving them takes longer than a launch."""
    return bool(rows.size >= _FUSED_ELEMENTS)


def _gather_and_add(x: jax.Array, take: jax.Array, back: jax.Array) -> jax.Array:
    del back
    return added_rows(x, take, x.dtype)


def _gather_from_parts(*operands: jax.Array, parts: int) -> jax.Array:
    """Return the same of rows that lie in several arrays, or with what there is for no row."""
    take, _, *fill = operands[parts:]
    out = fill[0] if fill else jnp.zeros((), operands[0].dtype)
    begin = 0
    for x in operands[:parts]:
        is_here = (take >= begin) & (take < begin + x.shape[0])
        rows = added_rows(x, jnp.where(is_here, take - begin, -1), x.dtype)
        out = jnp.where(trailing(is_here[:, 0], rows.ndim), rows, out)
        begin += x.shape[0]
    return out


def _step_by_step(*operands: jax.Array, parts: int, **how: Any) -> jax.Array:
    """Return the same of one array, then filled."""
    take, back, *fill = operands[parts:]
    x = operands[0] if parts == 1 else jnp.concatenate(operands[:parts])
    out: jax.Array = sum_rows_p.bind(x, take, back, parts=1, **how)
    return jnp.where(_are_of_rows(take, back, out.ndim), out, fill[0]) if fill else out


def _are_of_rows(take: jax.Array, back: jax.Array, ndim: int) -> jax.Array:
    """Return which results are rows: the others may be filled."""
    return trailing((take[:, 0] >= 0) & (take[:, 0] < back.shape[0]), ndim)


def added_rows(x: jax.Array, take: jax.Array, dtype: Any) -> jax.Array:
    """Return the sums of `sum_rows`, of another dtype, as XLA computes them."""

    def rows(index: jax.Array) -> jax.Array:
        # Negative indices would wrap; unsigned ones are out of range, hence zero.
        return jnp.take(x, index.astype(jnp.uint32), axis=0, mode="fill", fill_value=0)

    terms = take.shape[1]
    if terms == 0 or x.shape[0] == 0:
        return jnp.zeros_like(x, shape=(take.shape[0], *x.shape[1:]), dtype=dtype)
    if terms == 1:
        return rows(take[:, 0]).astype(dtype)
    wide = accumulator(x.dtype)
    if terms > _UNROLLED_TERMS:
        return jnp.sum(rows(take).astype(wide), axis=1).astype(dtype)
    total = rows(take[:, 0]).astype(wide)
    for j in range(1, terms):
        total = total + rows(take[:, j]).astype(wide)
    return total.astype(dtype)


_fused = fuse(_gather_and_add, name="move_rows")


@functools.cache
def _fused_parts(parts: int) -> Any:
    return fuse(functools.partial(_gather_from_parts, parts=parts), name="move_rows")


def _lower_simply(ctx: Any, *operands: Any, parts: int, **how: Any) -> Any:
    is_simple = len(operands) == 3
    f = _gather_and_add if is_simple else functools.partial(_step_by_step, parts=parts, **how)
    return mlir.lower_fun(f, multiple_results=False)(ctx, *operands)


def _lower(ctx: Any, *operands: Any, platform: str, **params: Any) -> Any:
    """On GPUs each row that goes to several places is read once, and of sums only rows that there are: own kernels.

    XLA's gather of long 16-bit rows takes 1.3 times as long as the fused one on GPUs, that into new memory 2.4 times on
    CPUs, and sums of two to eight rows there 1.1 to 3.
    """
    parts, is_simple = params["parts"], len(operands) == 3
    if platform == "cpu":
        worthwhile = parts <= _MOST_PARTS and sum(a.size for a in ctx.avals_in[:parts]) >= _FEW_ELEMENTS
    else:
        worthwhile = is_simple and is_worth_a_kernel(ctx.avals_in[0]) and not params["by_xla"]
    if not worthwhile or _ffi.can_compile(platform) is not None:
        return _lower_simply(ctx, *operands, **params)
    if not is_simple:
        return mlir.lower_fun(_fused_parts(parts), multiple_results=False)(ctx, *operands)
    _, take, back = ctx.avals_in
    terms = take.shape[1]
    if platform == "cuda" and not _split.is_on_a_mesh(ctx):
        kernel = "add" if terms > 1 else "spread" if params["leaves"] else "place" if back.shape[1] > 1 else None
        avals = ctx.avals_in[: 2 if kernel == "add" else 3]
        program = _program(kernel, tuple((a.dtype, a.shape) for a in avals)) if kernel else ""
        if kernel and _ffi.why_no_kernel(lambda: program, _ffi.target_text(platform)) is None:
            ctx = ctx.replace(avals_in=avals)
            return _ffi.emit_program(ctx, operands[: len(avals)], program, platform=platform)
    f = _fused if terms == 1 or platform == "cpu" else _gather_and_add
    return mlir.lower_fun(f, multiple_results=False)(ctx, *operands)


@functools.lru_cache(maxsize=4096)
def _program(kernel: str, types: tuple[tuple[Any, tuple[int, ...]], ...]) -> str:
    """What it computes, as the compiler could, and the name of the kernel that does."""

    def f(x: jax.Array, take: jax.Array, back: Any = None) -> jax.Array:
        return _gather_and_add(x, take, back)

    closed = jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in types))
    _, program = _by_hand.one_fusion(closed, "move_rows", "sum_rows")
    return f"{program.text}\nkernel {kernel}_rows\n"


def _jvp(primals: Any, tangents: Any, *, mesh: Any, parts: int, **how: bool) -> tuple[Any, Any]:
    """Linear in the rows, and in what fills: the indices keep their values in tangents and cotangents."""
    del mesh
    take, back, *fill = primals[parts:]
    out = _bind(primals[:parts], take, back, fill, how)
    if all(type(t) is ad.Zero for t in tangents):
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    moved = _bind([ad.instantiate_zeros(t) for t in tangents[:parts]], take, back, [], how)
    if fill and type(tangents[-1]) is not ad.Zero:
        moved = jnp.where(_are_of_rows(take, back, out.ndim), moved, tangents[-1])
    return out, moved


def _opened(eqn: Any) -> Any:
    """Let `fuse` make filling part of what follows."""
    avals = [v.aval for v in eqn.invars]
    return None if len(avals) == 3 else jax.make_jaxpr(functools.partial(_step_by_step, **eqn.params))(*avals)


def _transpose(
    cotangent: Any, *operands: Any, parts: int, leaves: bool, back_leaves: bool, by_xla: bool, mesh: Any
) -> list[Any]:
    del mesh
    *rows, take, back = operands
    found: list[Any] = []
    begin = 0
    for x in rows:
        end = begin + x.aval.shape[0]
        if not ad.is_undefined_primal(x):
            found.append(None)
        elif isinstance(cotangent, ad.Zero):
            found.append(ad.Zero(x.aval))
        else:
            own = take if parts == 1 else jnp.where((take >= begin) & (take < end), take - begin, -1)
            out = sum_rows(cotangent, back[begin:end], own, leaves=back_leaves, back_leaves=leaves, by_xla=by_xla)
            found.append(placed_as(out, x.aval.sharding))
        begin = end
    return [*found, None, None]


def _batch(args: Any, dims: Any, *, mesh: Any, parts: int, **how: bool) -> tuple[Any, int]:
    """Fold the batch into the rows: index arithmetic on integers, no copy of `x`."""
    if parts > 1 or any(d is not None for d in dims[3:]):
        return jax.vmap(functools.partial(_step_by_step, parts=parts, mesh=mesh, **how), dims)(*args), 0
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    x, take, back, *fill = args
    x_dim, take_dim, back_dim, *_ = dims

    def front(a: Any, d: int | None) -> Any:
        return jnp.broadcast_to(a, (size, *a.shape)) if d is None else jnp.moveaxis(a, d, 0)

    take, back = front(take, take_dim), front(back, back_dim)
    results, sources = take.shape[1], back.shape[1]
    number = jnp.arange(size, dtype=jnp.int32)[:, None, None]

    def shift(index: Any, bound: int) -> Any:
        return jnp.where((index >= 0) & (index < bound), index + number * bound, -1)

    back = shift(back, results)
    if x_dim is None:
        # One source row serves every batch entry: its uses lie side by side.
        back = jnp.moveaxis(back, 0, 1).reshape(sources, size * back.shape[2])
    else:
        x = jnp.moveaxis(x, x_dim, 0)
        x = x.reshape(size * sources, *x.shape[2:])
        take = shift(take, sources)
        back = back.reshape(size * sources, back.shape[2])
    out = _bind([x], take.reshape(size * results, take.shape[2]), back, fill, how)
    return out.reshape(size, results, *out.shape[1:]), 0


compile_when_eager(sum_rows_p, "parts", "leaves", "back_leaves", "by_xla", "mesh")
sum_rows_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[sum_rows_p] = _jvp
ad.primitive_transposes[sum_rows_p] = _transpose
batching.primitive_batchers[sum_rows_p] = _batch
_flatten.OPENED[sum_rows_p.name] = _opened
mlir.register_lowering(sum_rows_p, _lower_simply)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(sum_rows_p, functools.partial(_lower, platform=_platform), platform=_platform)
