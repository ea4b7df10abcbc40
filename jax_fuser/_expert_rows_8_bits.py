"""The rows of an expert layer by products of 8-bit floats, of weights that are quantized before or in every call.

rows      quantize(x), moved               tokens are quantized once, and move as bytes
before    rows * w13                       8 bits, sums over d
h         scale * activation(before)       one kernel, which quantizes it, too
out       h * w2                           8 bits, sums over f

d_h       quantize(dout) * w2'             8 bits; weights are quantized along their other axis
d_before, d_scale, h                       one kernel, which quantizes d_before, too
d_rows    d_before * w13'                  8 bits
d_w13, d_w2                                sums over rows, of floats or in 8 bits: see `_scaled_floats`
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser import _scaled_floats
from jax_fuser._accumulator import at_least_float32
from jax_fuser._activations import MOST_GIVEN, is_of_one_call
from jax_fuser._automatic import placed_as
from jax_fuser._fuse import fuse
from jax_fuser._grouped_tail import tail
from jax_fuser._quant import Block, is_large, quantize_floats, quantize_halves
from jax_fuser._quantize_matrices import ALIGNMENT
from jax_fuser._reverse_only import differentiated_once, reverse_only
from jax_fuser._scaled_floats import FORMATS, filled_up, multiply_rows, rows_of, sums_over_rows, weights_of
from jax_fuser._scaled_primitive import BLOCKS
from jax_fuser._sum_rows import sum_rows
from jax_fuser._varying import same_varying

_DTYPE = "float8_e4m3fn"
# Of each of the two matrices: elements and scales as the product takes them, then as the gradient of its rows does; or
# none, and they are made.
Copies = tuple[tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True)
class How:
    """What is computed, beside the arrays: for whom, activation, formats, dtype of results and cotangents."""

    function: str
    activation: Callable[[jax.Array], jax.Array] | None
    gated: bool
    format: str
    dtype: Any
    dw_format: str | None = None

    @property
    def block(self) -> Block:
        """Elements of a row that share a scale."""
        block: Block = BLOCKS[FORMATS[self.format][0]][0]
        return block

    def multiply(self, left: Any, right: Any, extents: Any) -> jax.Array:
        return multiply_rows(left, right, (extents,), self.format, self.dtype)

    def quantized(self, x: Any) -> tuple[Any, Any]:
        """Return elements and scales, as a part of what computes `x`."""
        return quantize_floats(filled_up(x), _DTYPE, self.block)

    def tail(self, before: Any, scale: Any, extents: Any) -> jax.Array:
        return tail(before, None, scale, extents, None, activation=self.activation, gated=self.gated,
                    scaled_by_zero=True)  # fmt: skip

    def between(self, before: Any, scale: Any, extents: Any) -> tuple[Any, Any]:
        """Return what the second product takes."""
        return self.quantized(self.tail(before, scale, extents))

    def between_backward(self, d_h: Any, before: Any, scale: Any, extents: Any) -> tuple[Any, ...]:
        """Return the cotangents of `before` and `scale`, `h`, and what the product for the rows' cotangent takes."""
        if not self.gated:
            h, back = jax.vjp(lambda before, scale: self.tail(before, scale, extents), before, scale)
            d_before, d_scale = back(d_h)
            return d_before, d_scale, h, *self.quantized(d_before)

        def of_halves(gate: Any, up: Any, scale: Any) -> jax.Array:
            assert self.activation is not None
            gate, up = (a.astype(at_least_float32(a.dtype)) for a in (gate, up))
            h: jax.Array = (self.activation(gate) * up * scale[:, None]).astype(before.dtype)
            return h

        # Kernels fold and store halves, where they would read the whole again for what folds both.
        h, back = jax.vjp(of_halves, *jnp.split(before, 2, axis=1), scale)
        d_gate, d_up, d_scale = back(d_h)
        d_before = jnp.concatenate([d_gate, d_up], axis=1)
        if d_before.shape[1] % ALIGNMENT:
            return d_before, d_scale, h, *self.quantized(d_before)
        return d_before, d_scale, h, *quantize_halves(d_gate, d_up, _DTYPE, self.block)


def _fused(how: How, backward: bool) -> Callable[..., Any]:
    return (_fuse if is_of_one_call(how) else _fused_before)(how, backward)


def _fuse(how: How, backward: bool) -> Callable[..., Any]:
    return fuse(how.between_backward if backward else how.between, name="expert_rows")


_fused_before = functools.lru_cache(maxsize=MOST_GIVEN)(_fuse)


def multiply_quantized(
    how: How, x: Any, take: Any, back: Any, w13: Any, w2: Any, scale: Any, extents: Any
) -> jax.Array:
    """Return `(m, n)`, with zeros in rows of no group: `expert_rows` of weights that are quantized.

    Args:
        how: what else is computed.
        x, take, back, scale, extents: as in `expert_rows`.
        w13: elements `(groups, f, d)`, twice as many columns for a gated activation, and scales.
        w2: elements `(groups, n, f)`, and scales.
    """
    take, back, scale, extents, x, *weights = same_varying(take, back, scale, extents, x, *w13, *w2)

    def run(x: Any, scale: Any, take: Any, back: Any, extents: Any, *weights: Any) -> jax.Array:
        return _forward(how, x, take, back, weights[:2], weights[2:], scale, extents)[0]

    operands: tuple[Any, ...] = (x, scale, take, back, extents, *weights)
    held: list[Any] = []
    if is_of_one_call(how):  # what the activation closes over has no derivative, either
        run, held = jax.closure_convert(run, *operands)
    return _without_derivative(how.function, how.format, run, *operands, *held)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _without_derivative(fn: str, format: str, run: Callable[..., jax.Array], *operands: Any) -> jax.Array:
    del fn, format
    return run(*operands)


@_without_derivative.defjvp
def _refuse(fn: str, format: str, run: Any, primals: Any, tangents: Any) -> Any:
    raise TypeError(
        f"{fn}: a layer of weights that are quantized in 8 bits has no derivative; pass the floats, and "
        f"format={format!r}, to train"
    )


def multiply_floats(
    how: How, x: Any, take: Any, back: Any, w13: Any, w2: Any, scale: Any, extents: Any, copies: Copies
) -> jax.Array:
    """Return the same of floats `(groups, d, f)` and `(groups, f, n)`, with derivatives."""
    x, w13, w2, scale, *indices = same_varying(x, w13, w2, scale, extents, take, back)
    x, w13, w2, scale = reverse_only(how.function, x, w13, w2, scale)
    if is_of_one_call(how):  # what the activation closes over has derivatives, too
        return _apart(how, x, w13, w2, scale, copies, indices)
    return _multiply(how, x, w13, w2, scale, copies, tuple(indices))


def _apart(how: How, x: Any, w13: Any, w2: Any, scale: Any, copies: Copies, indices: Any) -> jax.Array:
    """Return the same by products with derivatives of their own."""
    extents, take, back = indices
    multiply = functools.partial(
        _scaled_floats.multiply_floats, how.function, extents=extents, starts=None, format=how.format,
        drhs_format=how.dw_format, transpose_rhs=False, dtype=how.dtype,
    )  # fmt: skip
    before = multiply(sum_rows(x, take[:, None], back), w13, copies[0])
    return multiply(how.tail(before, scale, extents), w2, copies[1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(how: How, x: Any, w13: Any, w2: Any, scale: Any, copies: Copies, indices: Any) -> jax.Array:
    return _keep(how, x, w13, w2, scale, copies, indices)[0]


def _keep(how: How, x: Any, w13: Any, w2: Any, scale: Any, copies: Copies, indices: Any) -> tuple[jax.Array, Any]:
    extents, take, back = indices
    x, w13, w2, scale = differentiated_once(how.function, x, w13, w2, scale)
    first, second = (own[:2] or weights_of(w, how.format, True) for w, own in zip((w13, w2), copies))
    out, before = _forward(how, x, take, back, first, second, scale, extents)
    return out, (x, w13, w2, scale, copies, indices, before)


def _backward(how: How, kept: Any, dout: Any) -> tuple[Any, ...]:
    *kept, copies, (extents, take, back), before = kept
    x, w13, w2, scale, before, dout = differentiated_once(how.function, *kept, before, dout)
    first, second = (own[2:] or weights_of(w, how.format, False) for w, own in zip((w13, w2), copies))
    d_h = how.multiply(rows_of(dout, how.format), second, extents)
    between = _fused(how, True) if is_large(before) else how.between_backward
    d_before, d_scale, h, *quantized = between(d_h, before, scale, extents)
    d_rows = how.multiply(quantized, first, extents)
    rows = sum_rows(x, take[:, None], back)

    def sums(rows: Any, cotangents: Any, w: Any) -> jax.Array:
        made = sums_over_rows(rows, cotangents, (extents,), how.dw_format, w.dtype)
        return placed_as(made, jax.typeof(w).sharding)

    none = jax.tree.map(lambda _: None, (copies, (extents, take, back)))
    return sum_rows(d_rows, back, take[:, None]), sums(rows, d_before, w13), sums(h, dout, w2), d_scale, *none


_multiply.defvjp(_keep, _backward)


def _forward(how: How, x: Any, take: Any, back: Any, w13: Any, w2: Any, scale: Any, extents: Any) -> tuple[Any, Any]:
    """Return the result and the first product."""
    before = how.multiply(_moved(rows_of(x, how.format), take, back), w13, extents)
    between = _fused(how, False) if is_large(before) else how.between
    return how.multiply(between(before, scale, extents), w2, extents), before


def _moved(quantized: Any, take: Any, back: Any) -> tuple[jax.Array, jax.Array]:
    """Return elements and scales of the rows that tokens become; four elements move as one."""
    data, scales = quantized
    tokens, columns = data.shape
    words = jax.lax.bitcast_convert_type(data.reshape(tokens, columns // 4, 4), jnp.uint32)
    words = sum_rows(words, take[:, None], back)
    moved = jax.lax.bitcast_convert_type(words, data.dtype)
    return moved.reshape(take.shape[0], columns), sum_rows(scales, take[:, None], back)
