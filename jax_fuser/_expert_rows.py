"""The two grouped products of an expert layer, so that what lies between them stays in their kernels, backward too.

`expert_rows` is `product(scale * activation(product(x, w13)), w2)`. The row weights come before the second product:
then their gradient is a sum over the columns of what the backward kernel has at hand, `<dy w2^T, activation>`, and
neither the layer's result nor its derivative is read for it. Backward keeps the first product alone and makes the
activation again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_fuser._accumulator import at_least_float32
from jax_fuser._activations import GATED, PLAIN
from jax_fuser._automatic import placed_as
from jax_fuser._grouped_primitive import product
from jax_fuser._grouped_split import layout, result_sharding
from jax_fuser._grouped_tail import product_and_tail, tail, tail_backward
from jax_fuser._sum_rows import sum_rows
from jax_fuser._varying import same_varying

NAMED = {**PLAIN, **GATED}


@dataclass(frozen=True)
class _How:
    activation: str
    dtype: Any

    @property
    def function(self) -> Callable[[jax.Array], jax.Array]:
        return NAMED[self.activation]

    @property
    def gated(self) -> bool:
        return self.activation in GATED

    def multiply(self, x: Any, rhs: Any, extents: Any) -> jax.Array:
        return product(x, rhs, extents, mode="rows", dtype=self.dtype, leaves_padding=True)

    def multiply_first(self, x: Any, w13: Any, extents: Any, scale: Any, **rows: Any) -> Any:
        return product_and_tail(x, w13, extents, None, None, scale, transpose_rhs=False, activation=self.function,
                                gated=self.gated, dtype=self.dtype, leaves_padding=True, **rows)  # fmt: skip

    def tail(self, before: Any, scale: Any, extents: Any) -> jax.Array:
        return tail(before, None, scale, extents, None, activation=self.function, gated=self.gated,
                    scaled_by_zero=True)  # fmt: skip


def expert_rows(
    x: Any, take: Any, back: Any, w13: Any, w2: Any, scale: Any, extents: Any, *, activation: str, dtype: Any
) -> jax.Array:
    """Return `(m, n)`, of `dtype`. Rows of no group may hold anything, there and in derivatives by `x` and `scale`.

    Args:
        x: tokens `(t, k)`. Differentiable.
        take: int32 `(m,)`, the token that each row is, -1 for a row of no group, and for no other.
        back: int32 `(t, uses)`, the rows that each token is.
        w13: `(groups, k, f)`, or `(groups, k, 2 f)` for a gated activation. Differentiable.
        w2: `(groups, f, n)`. Differentiable.
        scale: `(m,)`, zero in rows of no group. Differentiable.
        extents: int32 `(groups,)`.
        activation: a name that `grouped_matmul` knows.
        dtype: of the result, and of what is in memory on the way.
    """
    how = _How(activation, jnp.dtype(dtype))
    scale = scale.astype(at_least_float32(dtype))
    return _expert_rows(how, *same_varying(x, w13, w2, scale, extents, take, back))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _expert_rows(how: _How, x: Any, w13: Any, w2: Any, scale: Any, extents: Any, take: Any, back: Any) -> jax.Array:
    h = how.multiply_first(x, w13, extents, scale, index=take.astype(jnp.uint32), back=back)
    return how.multiply(h, w2, extents)


def _jvp(how: _How, primals: Any, tangents: Any) -> tuple[jax.Array, Any]:
    x, w13, w2, scale, extents, take, back = primals
    moved, *others = tangents
    # The derivative of w13 reads the rows again.
    x = sum_rows(x, take[:, None], back, leaves=True)
    if not isinstance(moved, jax.custom_derivatives.SymbolicZero):
        moved = sum_rows(moved, take[:, None], back, leaves=True)
    tangents = (moved, *others)
    h, before = how.multiply_first(x, w13, extents, scale, keeps=True)
    out = how.multiply(h, w2, extents)
    moving = tuple(i for i in range(4) if not isinstance(tangents[i], jax.custom_derivatives.SymbolicZero))
    if not moving:
        return out, jnp.zeros_like(out)
    given = [tangents[i] for i in moving]
    return out, tangent_p.bind(*same_varying(x, w13, w2, scale, extents, before, *given), how=how, moving=moving)


_expert_rows.defjvp(_jvp, symbolic_zeros=True)

# The tangent, linear in the last operands: those of x, w13, w2 and scale that `moving` lists.
tangent_p = jax.extend.core.Primitive("jax_fuser_expert_rows_tangent")
_FIXED = 6


def _tangent(*operands: Any, how: _How, moving: tuple[int, ...]) -> jax.Array:
    x, w13, w2, scale, extents, before = operands[:_FIXED]
    moved: list[Any] = [None] * 4
    for i, tangent in zip(moving, operands[_FIXED:]):
        moved[i] = tangent
    d_x, d_w13, d_w2, d_scale = moved
    d_before, d_scale = jnp.zeros_like(before), jnp.zeros_like(scale) if d_scale is None else d_scale
    if d_x is not None:
        d_before += how.multiply(d_x, w13, extents)
    if d_w13 is not None:
        d_before += how.multiply(x, d_w13, extents)
    h, d_h = jax.jvp(lambda b, s: how.tail(b, s, extents), (before, scale), (d_before, d_scale))
    out = how.multiply(d_h, w2, extents)
    return out if d_w2 is None else out + how.multiply(h, d_w2, extents)


def _abstract_eval(
    x: Any, w13: Any, w2: Any, scale: Any, extents: Any, before: Any, *_: Any, how: _How, **__: Any
) -> Any:
    sharding = result_sharding("mlp", layout("rows", False), before, w2)
    return x.update(shape=(x.shape[0], w2.shape[2]), dtype=how.dtype, weak_type=False, sharding=sharding)


def _transpose(cotangent: Any, *operands: Any, how: _How, moving: tuple[int, ...]) -> list[Any]:
    x, w13, w2, scale, extents, before = operands[:_FIXED]
    linear = operands[_FIXED:]
    nothing = [None] * _FIXED
    wanted = [i for i, tangent in zip(moving, linear) if ad.is_undefined_primal(tangent)]
    avals = {i: tangent.aval for i, tangent in zip(moving, linear) if i in wanted}
    if type(cotangent) is ad.Zero:
        return [*nothing, *(ad.Zero(avals[i].to_ct_aval()) if i in avals else None for i in moving)]
    asked = (0 in wanted or 1 in wanted, 3 in wanted, 2 in wanted)
    results = iter(tail_backward(cotangent, w2, extents, before, scale, activation=how.function, gated=how.gated,
                                 wanted=asked))  # fmt: skip
    d_before, d_scale, h = (next(results) if is_asked else None for is_asked in asked)
    found: dict[int, Any] = {3: d_scale}

    def times(a: Any, b: Any, i: int, mode: str) -> None:
        found[i] = product(a, b, extents, mode=mode, dtype=avals[i].dtype, transpose_rhs=mode == "rows",
                           leaves_padding=mode == "rows")  # fmt: skip

    if 0 in wanted:
        times(d_before, w13, 0, "rows")
    if 1 in wanted:
        times(x, d_before, 1, "contraction")
    if 2 in wanted:
        times(h, cotangent, 2, "contraction")
    return [*nothing, *(placed_as(found[i], avals[i].sharding) if i in wanted else None for i in moving)]


def _tangent_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    moves = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def f(*moved: Any) -> jax.Array:
        operands = list(primals)
        for i, value in zip(moves, moved):
            operands[i] = value
        return _tangent(*operands, **params)

    return jax.jvp(f, [primals[i] for i in moves], [tangents[i] for i in moves])


def _batch(args: Any, dims: Any, **params: Any) -> tuple[jax.Array, int]:
    return jax.vmap(functools.partial(_tangent, **params), in_axes=tuple(dims))(*args), 0


tangent_p.def_impl(jax.jit(_tangent, static_argnames=("how", "moving")))
tangent_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[tangent_p] = _tangent_jvp
ad.primitive_transposes[tangent_p] = _transpose
batching.primitive_batchers[tangent_p] = _batch
mlir.register_lowering(tangent_p, mlir.lower_fun(_tangent, multiple_results=False))
