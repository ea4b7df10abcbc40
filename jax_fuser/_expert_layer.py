"""What expert layers of one device and of many have in common: arguments, the sum of a token's rows, statistics."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser import _arguments
from jax_fuser._accumulator import at_least_float32
from jax_fuser._activations import GATED, Activation, activation_of
from jax_fuser._automatic import automatically, names_of
from jax_fuser._expert_rows import NAMED, expert_rows
from jax_fuser._grouped_matmul import grouped_matmul
from jax_fuser._nested import order_rows
from jax_fuser._nested_checks import INT32_MAX
from jax_fuser._nested_moves import move_rows
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._route import spell
from jax_fuser._static_sizes import check_sizes
from jax_fuser._sum_rows import sum_rows


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
        clipped: int32, those of them that found no room; 0 without a capacity.
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
    fn: str, x: Any, experts: Any, weights: Any, w13: Any, w2: Any, activation: Activation, local: str = ""
) -> Any:
    """Return the arguments of a whole layer as arrays that fit each other, and its activation.

    `local`: what the names of the weights end with.
    """
    first, second = f"w13{local}", f"w2{local}"
    named = {"x": x, "experts": experts, "weights": weights, first: w13, second: w2}
    x, experts, weights, w13, w2 = (_arguments.array(fn, name, value) for name, value in named.items())
    check_sizes(fn, **dict(zip(named, (x, experts, weights, w13, w2))))
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
        if given.ndim != 3:
            raise ValueError(f"{fn}: {name} must be (num_experts, d, columns), got {given.shape}")
    if w13.shape[1] != x.shape[-1] or w13.shape[0] != w2.shape[0]:
        raise ValueError(
            f"{fn}: {first} must be (num_experts, d, columns) and {second} (num_experts, f, d) for x (.., d), "
            f"got {w13.shape}, {w2.shape} and {x.shape}"
        )
    if not (isinstance(activation, str) and activation in NAMED):
        activation = activation_of(fn, activation)
    width = w2.shape[1] * (2 if isinstance(activation, str) and activation in GATED else 1)
    if w13.shape[2] != width:
        what = (
            f"activation {activation!r}"
            if activation is None or isinstance(activation, str)
            else "a pointwise function"
        )
        raise ValueError(
            f"{fn}: {first} must have {width} columns for {what} and {second} {w2.shape} as (num_experts, f, d), "
            f"got {w13.shape}"
        )
    return x, experts, weights, w13, w2, activation


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
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    w13: jax.Array,
    w2: jax.Array,
    activation: Activation,
    rows: int | None = None,
) -> jax.Array:
    """Return the layer `(tokens, n)` of `x` `(tokens, d)`; `rows`: so many at most are choices of an expert."""
    source, target, extents = order_choices(experts, w13.shape[0], rows)
    take = source // experts.shape[1]

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
