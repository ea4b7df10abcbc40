"""What follows a grouped product: bias, activation, scale. One primitive with it, so that they are one kernel.

`product_and_tail` binds `tail_p` where the product has 16-bit operands. Its jaxpr is the product with everything after
it, and with the gather of its rows, if there is one: `fuse` opens it, CUDA and the CPU compile it as one program, whose
planner makes the tail a part of the product's kernel where it can; elsewhere it is the product, then XLA's ops.
Where it is differentiated the same kernel stores the product, too, and a batch is folded into its rows or groups.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.extend.core import new_jaxpr_eqn
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from jax_fuser import _by_hand, _core, _ffi, _fused_primitive, _split, _trace
from jax_fuser._accumulator import at_least_float32
from jax_fuser._activations import GATED, PLAIN, jit_of_given
from jax_fuser._batched_rows import by_group, end_to_end, front, side_by_side
from jax_fuser._core import UserError
from jax_fuser._eager import compile_when_eager
from jax_fuser._grouped_primitive import INT32_MAX, product
from jax_fuser._packed_matmul import packed_product
from jax_fuser._packed_weights import PackedWeights, unpack_weights
from jax_fuser._row_groups import row_groups, spans
from jax_fuser._spread_sum import take_rows
from jax_fuser._sum_rows import rows_at, sum_rows
from jax_fuser._varying import same_varying

tail_p = jax.extend.core.Primitive(_trace.PRODUCT_TAIL)
tail_p.multiple_results = True


def product_and_tail(
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
    index: Any = None,
    back: Any = None,
    leaves_padding: bool = False,
    keeps: bool = False,
) -> Any:
    """Return `scale * activation(product + bias)` of rows `(m, k)`; with `keeps` that and the product.

    `rhs`: an array, or `PackedWeights` `(groups, n, k)` with `transpose_rhs`.
    `index`: uint32 `(m,)`, the rows of `x` that these are, zeros for those outside. `back`: int32 `(rows of x, uses)`,
    the rows that each row of `x` is; its derivative then is a gather, too.
    `leaves_padding`: as in `product`; not for `PackedWeights`. Only rows of no group have an index outside
    then.
    """
    packed = _Packed(rhs.format, rhs.block, rhs.n) if isinstance(rhs, PackedWeights) else None
    factors = None
    if isinstance(rhs, PackedWeights):
        rhs, factors = rhs.pieces, rhs.factors
    narrow = _is_narrow(x) and (packed is not None or _is_narrow(rhs))
    if index is not None and (not narrow or 0 in (*x.shape, *index.shape)):
        x, index, back = _rows(x, index, back, leaves_padding), None, None
    if bias is None and activation is None and scale is None and index is None and not keeps:
        return _product(x, rhs, factors, extents, starts, packed, dtype, transpose_rhs, leaves_padding)
    if bias is not None:
        bias = jnp.asarray(bias)
    optional = (starts, bias, scale, index, back, factors)
    how = _How(tuple(a is not None for a in optional), transpose_rhs, activation, gated, jnp.dtype(dtype), packed,
               leaves_padding, keeps)  # fmt: skip
    operands = [a for a in (x, rhs, extents, *optional) if a is not None]
    one = narrow or x.dtype == rhs.dtype == jnp.float32
    return how.compute(*operands) if not one or _fused_primitive.jit_is_off() else _bound(*operands, how=how)


def after_product(out: Any, extents: Any, starts: Any, bias: Any, scale: Any, activation: Any, gated: bool,
                  again: bool = True) -> jax.Array:  # fmt: skip
    """Return `scale * activation(out + bias)`; `again`: as in `_How.compute`."""
    if bias is not None:
        bias = _group_rows(bias, extents, starts, out.shape[0])
    rest_of: Callable[..., jax.Array] = functools.partial(tail, activation=activation, gated=gated)
    if again:
        rest_of = jax.checkpoint(rest_of, prevent_cse=False)
    return rest_of(out, bias, scale, extents, starts)


def _product(x: Any, rhs: Any, factors: Any, extents: Any, starts: Any, packed: _Packed | None, dtype: Any,
             transpose_rhs: bool, leaves_padding: bool) -> jax.Array:  # fmt: skip
    if packed is None:
        return product(x, rhs, extents, starts, mode="rows", dtype=dtype, transpose_rhs=transpose_rhs,
                       leaves_padding=leaves_padding)  # fmt: skip
    return packed_product(x, packed.weights(x, rhs, factors), extents, starts, dtype=dtype)


def _rows(x: Any, index: Any, back: Any, leaves: bool) -> jax.Array:
    if back is None:
        return rows_at(x, index.astype(jnp.uint32))
    return sum_rows(x, index.astype(jnp.int32)[:, None], back, leaves=leaves)


def _is_narrow(x: Any) -> bool:
    return jnp.dtype(x.dtype) in (jnp.bfloat16, jnp.float16)


@dataclass(frozen=True)
class _Packed:
    """What packed weights say beside their arrays."""

    format: str
    block: int
    n: int

    def weights(self, x: Any, pieces: Any, factors: Any) -> PackedWeights:
        """Return the weights that rows `x` are multiplied by."""
        return PackedWeights(pieces, factors, self.format, self.block, self.n, x.shape[-1])


@dataclass(frozen=True)
class _How:
    """What is computed of (x, rhs, extents[, starts][, bias][, scale][, index[, back]][, factors]).

    `given`: which of those in brackets there are.
    """

    given: tuple[bool, ...]
    transpose_rhs: bool
    activation: Callable[[jax.Array], jax.Array] | None
    gated: bool
    dtype: Any
    packed: _Packed | None = None
    leaves_padding: bool = False
    keeps: bool = False  # the product is a result, too

    def compute(self, x: Any, rhs: Any, extents: Any, *rest: Any, again: bool = True) -> Any:
        """Return the result, or it and the product.

        `again`: backward computes the tail again from the product, keeping none of its steps.
        """
        starts, bias, scale, index, back, factors = self.named(rest)
        if index is not None:
            x = _rows(x, index, back if again else None, self.leaves_padding)
        out = _product(x, rhs, factors, extents, starts, self.packed, self.dtype, self.transpose_rhs,
                       self.leaves_padding)  # fmt: skip
        result = out
        if bias is not None or self.activation is not None or scale is not None:
            result = after_product(out, extents, starts, bias, scale, self.activation, self.gated, again)
        return (result, out) if self.keeps else result

    def named(self, rest: Any) -> list[Any]:
        """Return all of those in brackets, of those that there are; None for each other."""
        values = iter(rest)
        return [next(values) if is_given else None for is_given in self.given]

    def bound(self, rows: Any, rhs: Any, extents: Any, *rest: Any) -> list[jax.Array]:
        """Return the results of rows in place, of (starts, bias, scale, factors) or None for each."""
        starts, bias, scale, factors = (*rest, None)[:4]
        all_of = (starts, bias, scale, None, None, factors)
        how = replace(self, given=tuple(a is not None for a in all_of))
        return jax.tree.leaves(_bound(rows, rhs, extents, *(a for a in all_of if a is not None), how=how))

    @property
    def gathers(self) -> bool:
        return self.given[3]

    def of_gathered(self, x: Any, rhs: Any, extents: Any, *rest: Any) -> Any:
        """Return the same by a gather of its own."""
        starts, bias, scale, index, back, factors = self.named(rest)
        rows = _rows(x, index, back, self.leaves_padding)
        results = self.bound(rows, rhs, extents, starts, bias, scale, factors)
        return tuple(results) if self.keeps else results[0]

    def of_unpacked(self, x: Any, pieces: Any, extents: Any, *rest: Any) -> Any:
        """Return the same by an array of the weights, of the dtype of `x`."""
        assert self.packed is not None
        weights = unpack_weights(self.packed.weights(x, pieces, rest[-1]), x.dtype)
        how = replace(self, given=(*self.given[:5], False), packed=None)
        return _bound(x, weights, extents, *rest[:-1], how=how)


@jit_of_given("how")
def _bound(*operands: Any, how: _How) -> Any:
    closed = jax.make_jaxpr(functools.partial(how.compute, again=False))(*operands)
    # The activation closes over arrays, with derivatives of their own, or prints: the primitive would hide both.
    if closed.consts or closed.effects:
        return how.compute(*operands)
    results = tail_p.bind(*operands, jaxpr=closed, how=how, mesh=_split.needs_devices())
    return tuple(results) if how.keeps else results[0]


def tail_backward(
    cotangent: Any,
    rhs: Any,
    extents: Any,
    before: Any,
    scale: Any,
    *,
    activation: Callable[[jax.Array], jax.Array],
    gated: bool,
    wanted: tuple[bool, bool, bool],
) -> list[jax.Array]:
    """Go back through `product(tail(before, scale), rhs)` up to `before`.

    One kernel where that is possible, with no derivative of the tail's result in memory. Rows of no group may hold
    anything, in what is given and in what is returned.

    Args:
        cotangent: of that product, `(m, n)`.
        rhs: `(groups, k, n)`.
        extents: int32 `(groups,)`.
        before: what the tail is made of, `(m, k)`, or `(m, 2 k)` if it is `gated`.
        scale: `(m,)`, float32, zero in rows of no group.
        activation: as in `product_and_tail`.
        gated: likewise.
        wanted: whether to return the derivative by `before`, that by `scale`, and the tail's result again.
    """
    how = _Backward(activation, gated, wanted)
    operands = (cotangent, rhs, extents, before, scale)
    narrow = all(jnp.dtype(a.dtype) in (jnp.bfloat16, jnp.float16) for a in (cotangent, rhs, before))
    return (
        how.compute(*operands) if not narrow or _fused_primitive.jit_is_off() else _bound_backward(*operands, how=how)
    )


@dataclass(frozen=True)
class _Backward:
    activation: Callable[[jax.Array], jax.Array]
    gated: bool
    wanted: tuple[bool, bool, bool]

    def compute(self, cotangent: Any, rhs: Any, extents: Any, before: Any, scale: Any) -> list[jax.Array]:
        def again(before: Any, scale: Any) -> jax.Array:
            return tail(before, None, scale, extents, None, activation=self.activation, gated=self.gated,
                        scaled_by_zero=True)  # fmt: skip

        out, pull = jax.vjp(again, before, scale)
        results: list[jax.Array]
        if self.wanted[0] or self.wanted[1]:
            back = product(cotangent, rhs, extents, mode="rows", dtype=before.dtype, transpose_rhs=True,
                           leaves_padding=True)  # fmt: skip
            results = [*pull(back), out]
        else:
            results = [out, out, out]
        return [result for result, is_wanted in zip(results, self.wanted) if is_wanted]


@jit_of_given("how")
def _bound_backward(*operands: Any, how: _Backward) -> list[jax.Array]:
    closed = jax.make_jaxpr(how.compute)(*operands)
    return tail_p.bind(*operands, jaxpr=closed, how=how, mesh=_split.needs_devices())


def _plain(*operands: Any, jaxpr: Any, **_: Any) -> list[Any]:
    return jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *operands)


def _jvp(primals: Any, tangents: Any, *, how: _How | _Backward, **_: Any) -> tuple[Any, Any]:
    if isinstance(how, _How) and how.packed is None:
        return _jvp_of_product(primals, tangents, how)
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def f(*moved: Any) -> Any:
        operands = list(primals)
        for i, value in zip(moving, moved):
            operands[i] = value
        return how.compute(*operands)

    out, tangent = jax.jvp(f, [primals[i] for i in moving], [tangents[i] for i in moving])
    return jax.tree.leaves(out), jax.tree.leaves(tangent)


def _jvp_of_product(primals: Any, tangents: Any, how: _How) -> tuple[list[Any], list[Any]]:
    """Keep the product, of which backward computes the tail again, from the kernel that has the result."""
    (x, rhs, extents, *rest), (d_x, d_rhs, _, *moved) = primals, (None if type(t) is ad.Zero else t for t in tangents)
    (starts, bias, scale, index, back, _), (_, d_bias, d_scale, *_) = how.named(rest), how.named(moved)
    if not jnp.issubdtype(how.dtype, jnp.inexact):  # floats may give integers
        results = jax.tree.leaves(_bound(*primals, how=how))
        return results, [ad.Zero(jax.typeof(r).to_tangent_aval()) for r in results]
    if index is not None:  # the derivative of rhs reads the rows again
        rows_of = functools.partial(_rows, index=index, back=back, leaves=how.leaves_padding)
        x, d_x = (rows_of(x), None) if d_x is None else jax.jvp(rows_of, (x,), (d_x,))
    keeping = replace(how, keeps=how.keeps or how.activation is not None or d_scale is not None)
    results = keeping.bound(x, rhs, extents, starts, bias, scale)

    terms = [(a, b) for a, b in ((d_x, rhs), (x, d_rhs)) if a is not None and b is not None]
    moves = [_product(a, b, None, extents, starts, None, how.dtype, how.transpose_rhs, how.leaves_padding)
             for a, b in terms]  # fmt: skip
    d_product = sum(moves[1:], moves[0]) if moves else None
    # Without the product: what is linear in all that moves has the same derivative everywhere.
    d_result = _tangent((results[-1], bias, scale), (d_product, d_bias, d_scale), extents, starts, how=how)
    if not how.keeps:
        return results[:1], [d_result]
    zero = ad.Zero(jax.typeof(results[1]).to_tangent_aval())
    return results, [d_result, zero if d_product is None else d_product]


@jit_of_given("how")
def _tangent(values: Any, tangents: Any, extents: Any, starts: Any, *, how: _How) -> jax.Array:
    """Return the tangent of `after_product` of (product, bias, scale), of which those with one move."""
    moving = [i for i, t in enumerate(tangents) if t is not None]

    def f(*moved: Any) -> jax.Array:
        given = list(values)
        for i, value in zip(moving, moved):
            given[i] = value
        out, bias, scale = given
        if bias is None and how.activation is None and scale is None:
            return out
        return after_product(out, extents, starts, bias, scale, how.activation, how.gated)

    return jax.jvp(f, [values[i] for i in moving], [tangents[i] for i in moving])[1]


def _drop_unused(used: list[bool], *given: Any) -> tuple[list[bool], Any]:
    """Store only what is read of a result and its product: JAX's rule for jaxprs that lose equations.

    `given`: the equation; since JAX 0.12 behind which operands are there.
    """
    eqn = given[-1]
    how, invars = eqn.params["how"], eqn.invars
    if not any(used):
        return [False] * len(invars), None
    if all(used) or not isinstance(how, _How):
        return [True] * len(invars), eqn
    operands = [True] * len(invars)
    if used[0]:
        how = replace(how, keeps=False)
    else:
        kept = [given and i not in (1, 2) for i, given in enumerate(how.given)]
        operands = [True] * 3 + [k for k, given in zip(kept, how.given) if given]
        how = replace(how, given=tuple(kept), activation=None, gated=False, keeps=False)
    left = [v for v, is_used in zip(invars, operands) if is_used]
    closed = jax.make_jaxpr(functools.partial(how.compute, again=False))(*(v.aval for v in left))
    params = {**eqn.params, "jaxpr": closed, "how": how}
    outvars = [v for v, is_used in zip(eqn.outvars, used) if is_used]
    return operands, new_jaxpr_eqn(left, outvars, tail_p, params, eqn.effects, eqn.source_info, eqn.ctx)


def _batch(args: Any, dims: Any, *, how: _How | _Backward, **_: Any) -> tuple[list[Any], list[int]]:
    if isinstance(how, _How) and how.packed is None and (folded := _fold_batch(args, dims, how)) is not None:
        return folded
    out = jax.tree.leaves(jax.vmap(how.compute, in_axes=tuple(dims))(*args))
    return out, [0] * len(out)


def _fold_batch(args: Any, dims: Any, how: _How) -> tuple[list[Any], list[int]] | None:
    """Fold a batch into the rows or the groups of one product, as its own rule does; None where it would do otherwise.

    A batch of weights alone joins their columns, which an activation cannot take apart.
    """
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    (x, rhs, extents, *rest), (x_dim, rhs_dim, extents_dim, *rest_dims) = args, dims
    starts, bias, scale, index, back, _ = how.named(rest)
    starts_dim, bias_dim, scale_dim, index_dim, back_dim, _ = how.named(rest_dims)
    if index is not None and any(d is not None for d in (x_dim, index_dim, back_dim)):
        rows_of = functools.partial(_rows, leaves=how.leaves_padding)
        x = jax.vmap(rows_of, (x_dim, index_dim, None if back is None else back_dim))(x, index, back)
        x_dim = 0
    if x_dim is None:
        return None
    m = x.shape[1 if x_dim == 0 else 0]
    shares_weights = rhs_dim is None and bias_dim is None
    if size * m > INT32_MAX or (rhs_dim is None and not shares_weights):
        return None
    if shares_weights and extents_dim is None and starts_dim is None:
        rows = side_by_side(extents, starts, size, m)
    else:
        starts = None if starts is None else front(starts, starts_dim, size)
        first, count = spans(front(extents, extents_dim, size), starts, m)
        rows = by_group(first, count, m) if shares_weights else end_to_end(first, count, m)
    if not shares_weights:
        rhs, bias = (None if a is None else rows.join(a, d) for a, d in ((rhs, rhs_dim), (bias, bias_dim)))
    scale = None if scale is None else rows.join(scale, scale_dim)
    results = how.bound(rows.join(x, x_dim), rhs, rows.extents, rows.starts, bias, scale)
    parts, places = zip(*(rows.part(r) for r in results))
    return [*parts], [*places]


def _transpose(cotangents: Any, *operands: Any, jaxpr: Any, **_: Any) -> list[Any]:
    """Of what is linear, as a product without an activation is."""
    moving = [i for i, operand in enumerate(operands) if ad.is_undefined_primal(operand)]

    def f(*moved: Any) -> Any:
        given = list(operands)
        for i, value in zip(moving, moved):
            given[i] = value
        return _plain(*given, jaxpr=jaxpr)

    back = jax.linear_transpose(f, *(operands[i].aval for i in moving))([ad.instantiate_zeros(c) for c in cotangents])
    results: list[Any] = [None] * len(operands)
    for i, value in zip(moving, back):
        results[i] = value
    return results


_lower_as_xla = mlir.lower_fun(_plain, multiple_results=True)


def _lower_as_program(ctx: Any, *operands: Any, jaxpr: Any, platform: str, how: _How | _Backward, **params: Any) -> Any:
    # Products of f32 have no epilogue on GPUs.
    apart = platform == "cuda" and not _is_narrow(ctx.avals_in[0])
    if apart or _split.is_on_a_mesh(ctx) or _ffi.can_compile(platform) is not None:
        return _lower_as_xla(ctx, *operands, jaxpr=jaxpr, **params)
    if isinstance(how, _How) and how.gathers and (platform == "cpu" or _copies_rows(how, jaxpr)):
        return mlir.lower_fun(how.of_gathered, multiple_results=how.keeps)(ctx, *operands)
    if platform == "cpu" and isinstance(how, _How) and how.packed is not None:
        return mlir.lower_fun(how.of_unpacked, multiple_results=how.keeps)(ctx, *operands)

    def run(*operands: Any) -> list[Any]:
        return _fused_primitive.run(jaxpr, operands, "grouped_matmul")

    return mlir.lower_fun(run, multiple_results=True)(ctx, *operands)


@functools.lru_cache(maxsize=4096)
def _copies_rows(how: _How, jaxpr: Any) -> bool:
    """Whether a program of its own would better copy the rows: no kernel takes them by index."""
    if not how.leaves_padding:
        return False
    try:
        _, program = _by_hand.one_fusion(jaxpr, "rows", "grouped_matmul")
    except UserError:
        return True
    return program.text is None or _core.copies_rows(program.text, _ffi.target_text("cuda"))


compile_when_eager(tail_p, "jaxpr", "how", "mesh")
tail_p.def_abstract_eval(lambda *_, jaxpr, **__: list(jaxpr.out_avals))
ad.primitive_jvps[tail_p] = _jvp
ad.primitive_transposes[tail_p] = _transpose
batching.primitive_batchers[tail_p] = _batch
pe.dce_rules[tail_p] = _drop_unused
mlir.register_lowering(tail_p, _lower_as_xla)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(tail_p, functools.partial(_lower_as_program, platform=_platform), platform=_platform)


@jit_of_given("activation", "gated", "scaled_by_zero")
def tail(out: Any, bias: Any, scale: Any, extents: Any, starts: Any, *, activation: Any, gated: bool,
         scaled_by_zero: bool = False) -> jax.Array:  # fmt: skip
    """Everything after the product: pointwise, one pass. Padding rows of `out` and `bias` that are zero stay zero.

    `scaled_by_zero`: so is `scale` there; it may be anything else.
    """
    dtype = out.dtype
    if jnp.issubdtype(dtype, jnp.floating):
        out = out.astype(at_least_float32(dtype))
    # Named activations map zero to zero; a function may not, and may have no derivative there.
    foreign = activation is not None and activation not in (*PLAIN.values(), *GATED.values())
    owned = jnp.zeros(())
    if foreign or (scale is not None and not scaled_by_zero):
        owned = row_groups(extents, starts, out.shape[0]) < extents.shape[0]
    if bias is not None:
        out = out + bias.astype(out.dtype)
    if gated:
        gate, up = jnp.split(out, 2, axis=1)
        out = activation(gate) * up
    elif activation is not None:
        out = activation(jnp.where(owned[:, None], out, 1) if foreign else out)
    if scale is not None:
        scale = scale if scaled_by_zero else jnp.where(owned, scale, 0)
        out = out * scale.astype(out.dtype)[:, None]
    if foreign:
        out = jnp.where(owned[:, None], out, 0)
    return out.astype(dtype)


# Rows of a per-group array: forward a gather, backward a sum over each group in fixed order, not a scatter-add.

_group_rows_p = jax.extend.core.Primitive("jax_fuser_group_rows")


def _group_rows(values: Any, extents: Any, starts: Any, m: int) -> jax.Array:
    """Return `(m, n)`: row i is `values[group of i]`, zero for padding."""
    layout = (extents,) if starts is None else (extents, starts)
    return _group_rows_p.bind(*same_varying(values, *layout), m=m)


def _take_group(values: Any, extents: Any, *starts: Any, m: int) -> jax.Array:
    return take_rows(values, row_groups(extents, starts[0] if starts else None, m))


def _group_rows_jvp(primals: Any, tangents: Any, *, m: int) -> tuple[Any, Any]:
    out = _group_rows_p.bind(*primals, m=m)
    if type(tangents[0]) is ad.Zero:
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, _group_rows_p.bind(*same_varying(tangents[0], *primals[1:]), m=m)


def _sum_groups(cotangent: Any, values: Any, *layout: Any, m: int) -> list[Any]:
    nothing = [None] * len(layout)
    if type(cotangent) is ad.Zero:
        return [ad.Zero(values.aval.to_ct_aval()), *nothing]
    ones = jnp.ones((m, 1), cotangent.dtype)
    sums = product(ones, cotangent, *layout, mode="contraction", dtype=values.aval.dtype)
    return [sums[:, 0], *nothing]


def _batch_group_rows(args: Any, dims: Any, *, m: int) -> tuple[jax.Array, int]:
    size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
    extents, *given = (front(a, d, size) for a, d in zip(args[1:], dims[1:]))
    rows = end_to_end(*spans(extents, given[0] if given else None, m), m)
    return rows.part(_group_rows(rows.join(args[0], dims[0]), rows.extents, rows.starts, size * m))


compile_when_eager(_group_rows_p, "m")
_group_rows_p.def_abstract_eval(lambda values, *_, m: values.update(shape=(m, values.shape[1]), weak_type=False))
ad.primitive_jvps[_group_rows_p] = _group_rows_jvp
ad.primitive_transposes[_group_rows_p] = _sum_groups
batching.primitive_batchers[_group_rows_p] = _batch_group_rows
_trace.RULES[_group_rows_p.name] = _trace.opens(_take_group)
mlir.register_lowering(_group_rows_p, mlir.lower_fun(_take_group, multiple_results=False))
