"""What expert layers of one device and of many have in common: arguments, the sum of a token's rows, statistics."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jax_fuser import _arguments, _expert_rows_8_bits
from jax_fuser._accumulator import at_least_float32
from jax_fuser._activations import GATED, Activation, activation_of
from jax_fuser._automatic import automatically, names_of
from jax_fuser._expert_rows import NAMED, expert_rows
from jax_fuser._grouped_matmul import grouped_matmul
from jax_fuser._grouped_tail import product_and_tail
from jax_fuser._nested import order_rows
from jax_fuser._nested_checks import INT32_MAX
from jax_fuser._nested_moves import move_rows
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._packed_weights import PackedWeights, check_packed
from jax_fuser._quant import ScaledTensor
from jax_fuser._quantize_matrices import ALIGNMENT
from jax_fuser._quantized_copies import check_copies
from jax_fuser._route import spell
from jax_fuser._scaled_floats import FLOATS, FORMATS, check_format_of_sums
from jax_fuser._scaled_primitive import DTYPE_NAMES, whole_scales
from jax_fuser._static_sizes import check_sizes
from jax_fuser._sum_rows import sum_rows

# Floats (experts, k, n), or four or eight bits, whose shape is (experts, n, k).
Matrices: TypeAlias = jax.Array | PackedWeights | ScaledTensor
_FORMAT_OF = {"fp8_row": "fp8_row", "fp8_tensor": "fp8_row", "fp8_block": "fp8_block"}  # of rows, by that of weights


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Stats:
    """How evenly rows are spread over experts.

    Attributes:
        load: int32 `(experts,)`, rows per expert.
        mean: float32, rows per expert on average.
        max: int32, rows of the fullest expert.
        imbalance: float32, max / mean; 0 without rows.
        empty: int32, experts without rows.
        dropped: int32, choices that are no row: they named no expert, or found no room.
        clipped: int32, those of them that found no room; 0 without a capacity where a token's experts are distinct.
    """

    load: jax.Array
    mean: jax.Array
    max: jax.Array
    imbalance: jax.Array
    empty: jax.Array
    dropped: jax.Array
    clipped: jax.Array

    def __repr__(self) -> str:
        fields = (f"{field.name}={spell(getattr(self, field.name))}" for field in dataclasses.fields(self))
        return f"Stats({', '.join(fields)})"


def stats_of(load: jax.Array, choices: int, clipped: Any) -> Stats:
    """Return the statistics of a load, int32 `(.., experts)`, that was made of so many choices for each batch."""
    total = jnp.sum(load, axis=-1, dtype=jnp.int32)
    mean = total.astype(jnp.float32) / max(load.shape[-1], 1)
    largest = jnp.max(load, axis=-1, initial=0)
    return Stats(
        load=load,
        mean=mean,
        max=largest,
        imbalance=jnp.where(total > 0, largest.astype(jnp.float32) / jnp.maximum(mean, 1e-9), 0.0),
        empty=jnp.sum(load == 0, axis=-1, dtype=jnp.int32),
        dropped=choices - total,
        clipped=jnp.zeros_like(total) + clipped,
    )


def dispatch_arguments(fn: str, x: Any, experts: Any, num_experts: Any) -> tuple[jax.Array, jax.Array, int]:
    """Return tokens, their experts as `(tokens, top_k)`, and the number of experts, after checks."""
    x, experts = _arguments.array(fn, "x", x), _arguments.array(fn, "experts", experts)
    num_experts = _arguments.integer(fn, "num_experts", num_experts, least=0, most=INT32_MAX)
    check_sizes(fn, x=x, experts=experts)
    _check_integers(fn, experts)
    if x.ndim < 1 or experts.ndim not in (1, 2) or experts.shape[:1] != x.shape[:1]:
        raise ValueError(
            f"{fn}: experts must be (tokens, top_k) or (tokens,) for x (tokens, ..), got {experts.shape} and {x.shape}"
        )
    return x, experts[:, None] if experts.ndim == 1 else experts, num_experts


def _check_integers(fn: str, experts: jax.Array) -> None:
    if not jnp.issubdtype(experts.dtype, jnp.integer):
        raise TypeError(f"{fn}: experts must be integers, got {experts.dtype}")


def layer_arguments(
    fn: str,
    x: Any,
    experts: Any,
    weights: Any,
    w13: Any,
    w2: Any,
    activation: Activation,
    format: str | None,
    dw_format: str | None,
    copies: tuple[Any, Any],
    local: str = "",
) -> Any:
    """Return the arguments of a whole layer as arrays that fit each other, its activation and its 8-bit formats.

    `copies`: the arguments `quantized_w13` and `quantized_w2`. `local`: what the names of the weights end with.
    """
    first, second = names = f"w13{local}", f"w2{local}"
    named = {"x": x, "experts": experts, "weights": weights}
    x, experts, weights = (_arguments.array(fn, name, value) for name, value in named.items())
    w13, w2 = (_matrices_of(fn, name, value) for name, value in ((first, w13), (second, w2)))
    check_sizes(fn, x=x, experts=experts, weights=weights, **{first: array_of(w13), second: array_of(w2)})
    _check_integers(fn, experts)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise TypeError(f"{fn}: x must be floats, got {x.dtype}; convert it, x.astype(jnp.float32)")
    _arguments.check_real(fn, "weights", weights)
    if not x.ndim or not experts.ndim or experts.shape[:-1] != x.shape[:-1] or weights.shape != experts.shape:
        raise ValueError(
            f"{fn}: experts and weights must be (.., top_k) for x (.., d), "
            f"got {experts.shape}, {weights.shape} and {x.shape}"
        )
    for name, given in ((first, w13), (second, w2)):
        if len(given.shape) != 3:
            raise ValueError(f"{fn}: {name} must be (num_experts, d, columns), got {given.shape}")
        if isinstance(given, jax.Array) and not jnp.issubdtype(x.dtype, jnp.complexfloating):
            _arguments.check_real(fn, name, given)
    (experts_of_13, depth, columns), (experts_of_2, inner, _) = matrix_shape(w13), matrix_shape(w2)
    if depth != x.shape[-1] or experts_of_13 != experts_of_2:
        raise ValueError(
            f"{fn}: {first} must be {_as_given(w13, 'num_experts', 'd', 'columns')} and {second} "
            f"{_as_given(w2, 'num_experts', 'f', 'd')} for x (.., d), got {w13.shape}, {w2.shape} and {x.shape}"
        )
    if not (isinstance(activation, str) and activation in NAMED):
        activation = activation_of(fn, activation)
    width = inner * (2 if isinstance(activation, str) and activation in GATED else 1)
    if columns != width:
        what = (
            f"activation {activation!r}"
            if activation is None or isinstance(activation, str)
            else "a pointwise function"
        )
        raise ValueError(
            f"{fn}: {first} must have {width} columns for {what} and {second} {w2.shape} as "
            f"{_as_given(w2, 'num_experts', 'f', 'd')}, got {w13.shape}"
        )
    _check_eight_bits(fn, x, names, (w13, w2), format)
    return x, experts, weights, w13, w2, activation, _eight_bits_of(fn, format, dw_format, (w13, w2), copies)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EightBits:
    """The arguments `format` and `dw_format`, and the weights that are quantized already: see `_expert_rows_8_bits`."""

    copies: _expert_rows_8_bits.Copies
    format: str | None = dataclasses.field(metadata={"static": True})
    dw_format: str | None = dataclasses.field(metadata={"static": True})


def _eight_bits_of(
    fn: str, format: str | None, dw_format: str | None, matrices: tuple[Matrices, Matrices], copies: tuple[Any, Any]
) -> EightBits:
    check_format_of_sums(fn, "dw_format", dw_format, format)

    def arrays(name: str, w: Matrices, own: Any) -> tuple[jax.Array, ...]:
        if own is None:
            return ()
        if format is None:
            raise ValueError(f"{fn}: quantized_{name}= needs format= and floats; pass quantized weights as {name}")
        groups, k, n = matrix_shape(w)
        check_copies(f"{fn}: quantized_{name}", own, format, (groups, n, k))
        return tuple(jnp.asarray(a) for copy in own for a in (copy.data, copy.scales))

    return EightBits((arrays("w13", matrices[0], copies[0]), arrays("w2", matrices[1], copies[1])), format, dw_format)


def _matrices_of(fn: str, name: str, value: Any) -> Matrices:
    if not isinstance(value, ScaledTensor):
        if isinstance(value, PackedWeights):
            check_packed(fn, name, value)
            return value
        return _arguments.array(fn, name, value)
    data = value.data
    known = value.format in _FORMAT_OF and (value.format != "fp8_block" or len(value.block) == 2)
    if not known or isinstance(data, NestedTensor) or str(getattr(data, "dtype", "")) not in DTYPE_NAMES:
        raise TypeError(
            f"{fn}: {name} must be an array, PackedWeights, or a ScaledTensor of fp8_row, fp8_tensor, or fp8_block "
            f"with blocks (128, 128), got {value!r}; repack_weights takes four bits, dequantize makes floats"
        )
    return value


def _check_eight_bits(
    fn: str, x: jax.Array, names: tuple[str, str], pair: tuple[Matrices, Matrices], format: str | None
) -> None:
    """Check what products of 8-bit floats need, if any of them is asked for."""
    scaled = [isinstance(w, ScaledTensor) for w in pair]
    if format is not None:
        if not isinstance(format, str) or format not in FORMATS:
            raise ValueError(f"{fn}: format must be one of {sorted(FORMATS)} or None, got {format!r}")
        for name, w in zip(names, pair):
            if not isinstance(w, jax.Array):
                raise TypeError(
                    f"{fn}: format= quantizes floats, got {name} as {type(w).__name__}; leave it out for weights that "
                    "are quantized"
                )
    if not any(scaled) and format is None:
        return
    for name, w in zip(("x", *names), (x, *(pair if format is not None else ()))):
        if str(w.dtype) not in FLOATS:
            raise TypeError(f"{fn}: 8-bit products take {name} of {', '.join(FLOATS)}, got {w.dtype}; convert it")
    if not any(scaled):
        return
    kinds = [_FORMAT_OF[w.format] if isinstance(w, ScaledTensor) else None for w in pair]
    if kinds[0] != kinds[1]:
        first, second = (w.format if isinstance(w, (PackedWeights, ScaledTensor)) else str(w.dtype) for w in pair)
        raise TypeError(
            f"{fn}: where one of {names[0]} and {names[1]} has eight bits both must, with scales for rows or for "
            f"blocks, got {first} and {second}; quantize both, or dequantize"
        )
    for name, w in zip(names, pair):
        if w.shape[2] % ALIGNMENT:
            raise ValueError(
                f"{fn}: the last axis of {name} in eight bits must be a multiple of {ALIGNMENT}, got {w.shape}; pass "
                "floats and format=, which fills it up"
            )


def array_of(matrices: Matrices) -> jax.Array:
    """Return what holds the matrices' numbers."""
    if isinstance(matrices, ScaledTensor):
        data: jax.Array = matrices.data
        return data
    return matrices.pieces if isinstance(matrices, PackedWeights) else matrices


def matrix_shape(matrices: Matrices) -> tuple[int, ...]:
    """Return `(num_experts, k, n)`."""
    if not isinstance(matrices, (PackedWeights, ScaledTensor)):
        return matrices.shape
    experts, n, k = matrices.shape
    return experts, k, n


def _as_given(matrices: Matrices, experts: str, k: str, n: str) -> str:
    """How their shape is written."""
    kind = (
        "packed " if isinstance(matrices, PackedWeights) else "quantized " if isinstance(matrices, ScaledTensor) else ""
    )
    return f"{kind}({experts}, {n}, {k})" if kind else f"({experts}, {k}, {n})"


def weights_of(fn: str, weights: Any, target: jax.Array) -> jax.Array:
    """Return the weights of `combine` as `(tokens, top_k)`, after checks."""
    weights = _arguments.array(fn, "weights", weights)
    check_sizes(fn, weights=weights)
    _arguments.check_real(fn, "weights", weights)
    if weights.shape not in (target.shape, target.shape[:1] if target.shape[1] == 1 else None):
        raise ValueError(f"{fn}: weights must be (tokens, top_k)={target.shape}, got {weights.shape}")
    return weights.reshape(target.shape)


def weighted_sum(rows: jax.Array, weights: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    """Return each token's rows, weighted and added in the order of its choices, in float32."""
    # Backward gathers again instead of keeping float32 copies of the rows.
    weigh = jax.checkpoint(_weigh_and_add, prevent_cse=False)
    place = [[names_of(weights)[0], *names_of(rows)[1:]]]
    out: jax.Array = automatically(weigh, rows, weights, source, target, like=lambda _: place)
    return out


@jax.jit
def _weigh_and_add(rows: jax.Array, weights: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    wide = at_least_float32(rows.dtype)
    per_row = sum_rows(weights.reshape(-1), source[:, None], target.reshape(-1, 1)).astype(wide)
    weighted = rows.astype(wide) * per_row.reshape(-1, *[1] * (rows.ndim - 1))
    return sum_rows(weighted, target, (source // target.shape[1])[:, None], by_xla=True).astype(rows.dtype)


def order_choices(experts: jax.Array, groups: int, rows: int | None = None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return which choice each row is, -1 for none, the row of each choice, -1 for none, and the rows of each expert.

    Args:
        experts: int32 `(tokens, top_k)`.
        groups: number of experts.
        rows: so many choices at most are of an expert.
    """
    _, source, target, extents = order_rows(experts, groups)
    return source[:rows], target.reshape(experts.shape), extents


def rows_of_choices(x: jax.Array, source: jax.Array, target: jax.Array, extents: jax.Array) -> NestedTensor:
    """Return the tokens `x` `(tokens, ..)` as rows, in the order of `order_choices`."""
    return NestedTensor(move_rows(x, source, target.reshape(-1), target.shape[1]), extents)


def run_layer(
    fn: str,
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    w13: Matrices,
    w2: Matrices,
    activation: Activation,
    eight: EightBits,
    rows: int | None = None,
) -> jax.Array:
    """Return the layer `(tokens, n)` of `x` `(tokens, d)`; `rows`: so many at most are choices of an expert."""
    source, target, extents = order_choices(experts, w13.shape[0], rows)
    take = source // experts.shape[1]
    if eight.format is not None or not (isinstance(w13, jax.Array) and isinstance(w2, jax.Array)):
        scale = sum_rows(weights.reshape(-1), source[:, None], target.reshape(-1, 1))
        args = x, take, target, w13, w2, scale.astype(at_least_float32(x.dtype)), extents
        if isinstance(w13, PackedWeights) or isinstance(w2, PackedWeights):
            return sum_rows(_packed_rows(*args, activation), target, take[:, None])
        return sum_rows(_eight_bit_rows(fn, *args, activation, eight), target, take[:, None])

    def composed(x: jax.Array, w13: jax.Array, w2: jax.Array) -> NestedTensor:
        nt = rows_of_choices(x, source, target, extents)
        multiply = functools.partial(grouped_matmul, preferred_element_type=x.dtype)
        return multiply(multiply(nt, w13, activation=activation), w2)

    if not (isinstance(activation, str) and activation in NAMED):
        return weighted_sum(composed(x, w13, w2).data, weights, source, target)
    jax.eval_shape(composed, x, w13, w2)  # for its words on what does not fit
    # Weigh rows between the products, and only add them afterwards.
    scale = sum_rows(weights.reshape(-1), source[:, None], target.reshape(-1, 1))
    out = expert_rows(x, take, target, w13, w2, scale, extents, activation=activation, dtype=x.dtype)
    return sum_rows(out, target, take[:, None], back_leaves=True)


def _packed_rows(
    x: jax.Array,
    take: jax.Array,
    back: jax.Array,
    w13: Matrices,
    w2: Matrices,
    scale: jax.Array,
    extents: jax.Array,
    activation: Activation,
) -> jax.Array:
    """Return what `expert_rows` does, with zeros in rows of no group, for weights of which some have four bits."""
    first, second = (
        functools.partial(product_and_tail, transpose_rhs=isinstance(w, PackedWeights), dtype=x.dtype)
        for w in (w13, w2)
    )
    h = first(x, w13, extents, None, None, scale,
              activation=activation_of("mlp", activation), gated=isinstance(activation, str) and activation in GATED,
              index=take.astype(jnp.uint32), back=back)  # fmt: skip
    return second(h, w2, extents, None, None, None, activation=None, gated=False)


def _eight_bit_rows(
    fn: str,
    x: jax.Array,
    take: jax.Array,
    back: jax.Array,
    w13: Matrices,
    w2: Matrices,
    scale: jax.Array,
    extents: jax.Array,
    activation: Activation,
    eight: EightBits,
) -> jax.Array:
    """Return the same by products of 8-bit floats."""
    gated = isinstance(activation, str) and activation in GATED
    if not isinstance(w13, ScaledTensor) or not isinstance(w2, ScaledTensor):
        assert eight.format is not None
        how = _expert_rows_8_bits.How(fn, activation_of(fn, activation), gated, eight.format, x.dtype, eight.dw_format)
        return _expert_rows_8_bits.multiply_floats(how, x, take, back, w13, w2, scale, extents, eight.copies)
    how = _expert_rows_8_bits.How(fn, activation_of(fn, activation), gated, _FORMAT_OF[w13.format], x.dtype)
    first, second = ((w.data, whole_scales(fn, w, FORMATS[how.format][0])) for w in (w13, w2))
    return _expert_rows_8_bits.multiply_quantized(how, x, take, back, first, second, scale, extents)
