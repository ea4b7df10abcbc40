"""Mixture of experts: route, dispatch, multiply, combine; or the whole layer with `mlp`.

    weights, experts, aux = moe.route(logits, top_k=2)
    nt, state = moe.dispatch(x, experts, num_experts=8)      # rows sorted by expert, a nested tensor
    y = jf.grouped_matmul(jf.grouped_matmul(nt, w13, activation="swiglu"), w2)
    out = moe.combine(y, state, weights)

`ep_dispatch`, `ep_combine` and `ep_mlp` are the same for experts that are spread over the devices of a mesh axis.

No token is dropped and no capacity is set, unless one is given to them; over devices a token's experts are distinct, as
`route` chooses them: see `capacity` of `ep_dispatch` for others. Rows move by gathers, forward and backward, and
are added in a fixed order in float32, so results and gradients are repeatable bit for bit. Every function works under
`jit`, `grad`, `vmap`, `scan`, `checkpoint` and `shard_map`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser._activations import Activation
from jax_fuser._automatic import automatically, names_of
from jax_fuser._expert_layer import (
    EightBits,
    Stats,
    dispatch_arguments,
    layer_arguments,
    run_layer,
    stats_of,
    weighted_sum,
    weights_of,
)
from jax_fuser._expert_parallel import EpState, ep_combine, ep_dispatch, ep_mlp
from jax_fuser._nested import sort_rows
from jax_fuser._nested_checks import debug_check, readable
from jax_fuser._nested_rows import require_nested
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._quant import ScaledTensor
from jax_fuser._route import Routing, route, spell

__all__ = [
    "DispatchState",
    "EpState",
    "Routing",
    "Stats",
    "combine",
    "dispatch",
    "ep_combine",
    "ep_dispatch",
    "ep_mlp",
    "mlp",
    "route",
]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DispatchState:
    """Where the rows of a dispatch came from; `combine` needs it.

    Attributes:
        source: int32 `(rows,)`, token * top_k + choice of each row; -1 for padding.
        target: int32 `(tokens, top_k)`, row of each choice; -1 where it was dropped.
        extents: int32 `(experts,)`, rows per expert.
    """

    source: jax.Array
    target: jax.Array
    extents: jax.Array

    def stats(self) -> Stats:
        """Return the load per expert and what can be read from it; stays on the device."""
        return stats_of(self.extents, math.prod(self.target.shape[-2:]), 0)

    def __repr__(self) -> str:
        if getattr(self.target, "ndim", 0) != 2:
            return f"DispatchState(source={self.source}, target={self.target}, extents={self.extents})"
        tokens, top_k = self.target.shape
        return f"DispatchState(tokens={tokens}, top_k={top_k}, load={spell(self.extents)})"


def dispatch(x: Any, experts: Any, *, num_experts: int) -> tuple[NestedTensor, DispatchState]:
    """Sort tokens by expert, one row per choice.

    The order inside an expert is that of the tokens. Forward and backward are gathers; no repeated copy of `x` is made.

    Args:
        x: tokens `(tokens, ..)`. Differentiable.
        experts: integers `(tokens, top_k)` or `(tokens,)`; a value outside `0..num_experts-1` drops that choice.
        num_experts: number of experts, static.

    Returns:
        The nested tensor `[num_experts, ragged, ..]` with `tokens * top_k` rows, and the state that `combine` needs.

    Raises:
        ValueError: shapes do not fit.
        TypeError: `experts` are not integers.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> nt, state = jf.moe.dispatch(jnp.ones((4, 8)), jnp.array([2, 0, 2, 1]), num_experts=3)
        >>> state
        DispatchState(tokens=4, top_k=1, load=[1,1,2])
    """
    return _dispatch(*dispatch_arguments("dispatch", x, experts, num_experts))


@functools.partial(jax.jit, static_argnums=2)
def _dispatch(x: jax.Array, experts: jax.Array, num_experts: int) -> tuple[NestedTensor, DispatchState]:
    # One compilation when called eagerly.
    nt, _, source, target = sort_rows(x, experts, num_experts)
    return nt, DispatchState(source, target.reshape(experts.shape), nt.extents)


def combine(nt: NestedTensor, state: DispatchState, weights: Any) -> jax.Array:
    """Bring rows back to their tokens and add each token's choices, weighted.

    Computed in float32, choices added in order. A dropped choice adds zero.

    Args:
        nt: rows `[experts, ragged, ..]`, in the layout that `dispatch` returned. Differentiable.
        state: from `dispatch`.
        weights: `(tokens, top_k)`, or `(tokens,)` for one choice. Differentiable.

    Returns:
        `(tokens, ..)` of the dtype of `nt`.

    Raises:
        TypeError: `nt` is not nested.
        ValueError: shapes do not fit; `nt` has other groups than `state`, where extents are concrete.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> x = jnp.arange(3.0)[:, None]
        >>> nt, state = jf.moe.dispatch(x, jnp.array([1, 0, 1]), num_experts=2)
        >>> jf.moe.combine(nt, state, jnp.ones(3))[:, 0].tolist()
        [0.0, 1.0, 2.0]
    """
    require_nested("combine", nt)
    if not isinstance(state, DispatchState):
        raise TypeError(f"combine: state must be what dispatch returned, got a {type(state).__name__}")
    weights = weights_of("combine", weights, state.target)
    if nt.gapped or nt.ragged_dim != 0 or nt.capacity != state.source.shape[0]:
        raise ValueError(
            f"combine: nt must have the {state.source.shape[0]} rows that dispatch returned, got data {nt.data.shape}"
        )
    if nt.extents.shape != state.extents.shape:
        raise ValueError(
            f"combine: nt must have the {state.extents.shape[-1]} groups that dispatch returned, got {nt.num_groups}"
        )
    if nt.extents is not state.extents:
        _check_same_extents(nt.extents, state.extents)
    return weighted_sum(nt.data, weights, state.source, state.target)


def _check_same_extents(got: jax.Array, expected: jax.Array) -> None:
    mine, theirs = readable(got), readable(expected)
    if mine is None or theirs is None:
        debug_check(lambda: jnp.all(got == expected), "combine: nt has other extents than dispatch returned")
    elif (mine != theirs).any():
        raise ValueError(
            f"combine: nt must have the extents that dispatch returned, {theirs.tolist()}, got {mine.tolist()}"
        )


def mlp(
    x: Any,
    experts: Any,
    weights: Any,
    w13: Any,
    w2: Any,
    *,
    activation: Activation = "swiglu",
    format: str | None = None,
    dw_format: str | None = None,
    quantized_w13: tuple[ScaledTensor, ScaledTensor] | None = None,
    quantized_w2: tuple[ScaledTensor, ScaledTensor] | None = None,
) -> jax.Array:
    """Run a whole expert layer: dispatch, two grouped products with the activation between them, combine.

    With a named activation the rows' weights come before the second product, so that no result of it is kept for
    their gradient, and the activation is made again in the backward pass. The forward pass by itself need not bring the
    rows together first: see `row_index` of `grouped_matmul`.

    With weights of eight bits, or `format`, both products multiply 8-bit floats as those of `scaled_grouped_matmul` do:
    a token is quantized once for all its experts, and what lies between the products is in the kernel that computes it.
    With `format` the layer is differentiable (reverse mode, once): cotangents of rows come from 8-bit floats, those of
    weights from floats, or with `dw_format` from 8-bit floats, too. Quantizing the weights takes as long as reading
    them twice, so that it pays where experts have many rows: from about a thousand on with `d` and `f` of thousands;
    micro-batches of one step share what `quantized_w13` and `quantized_w2` hold.

    Args:
        x: tokens `(.., d)`. Differentiable.
        experts: integers `(.., top_k)`; values outside `0..num_experts-1` are dropped.
        weights: `(.., top_k)`. Differentiable.
        w13: `(num_experts, d, 2 * f)`, gate columns before up columns; `(num_experts, d, f)` for an activation that is
            not gated. Differentiable. Or `(num_experts, 2 * f, d)` as `scaled_grouped_matmul` takes them:
            `PackedWeights` of four bits from `repack_weights`, or a `ScaledTensor` from `quantize`, "fp8_row",
            "fp8_tensor", or "fp8_block" with blocks `(128, 128)`, without a derivative, of the layer either.
        w2: `(num_experts, f, d)`. Differentiable. Or of few bits, `(num_experts, d, f)`: of eight, as `w13` is.
        activation: as in `grouped_matmul`.
        format: "fp8_row" or "fp8_block": quantize floats `w13` and `w2` in every call. `x` and they are bfloat16,
            float16 or float32.
        dw_format: with `format`, "fp8_row" quantizes what the gradients of `w13` and `w2` sum over rows, with a scale
            for each column of each expert's rows. Less exact; on an H100 a layer and its gradients take as long with
            it where experts have 2048 rows, and 5 % longer with 1024.
        quantized_w13: with `format`, what it would make of `w13` in every call, made once: `quantize` of
            `(num_experts, columns, d)` and of `(num_experts, d, columns)`, which is `w13`; both axes are multiples of
            16. Gradients go to `w13` alone.
        quantized_w2: likewise, of `(num_experts, d, f)` and of `(num_experts, f, d)`.

    Returns:
        `(.., d)` of the dtype of `x`.

    Raises:
        ValueError: shapes do not fit, or the format is unknown.
        TypeError: weights are not quantized alike, or are with `format`; a layer of weights of eight bits is
            differentiated.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> w13, w2 = jnp.ones((4, 8, 32)), jnp.ones((4, 16, 8))
        >>> experts = jnp.array([[0, 1], [1, 3]])
        >>> jf.moe.mlp(jnp.ones((2, 8)), experts, jnp.full((2, 2), 0.5), w13, w2).shape
        (2, 8)
    """
    x, experts, weights, w13, w2, activation, eight = layer_arguments(
        "mlp", x, experts, weights, w13, w2, activation, format, dw_format, (quantized_w13, quantized_w2)
    )
    run = functools.partial(_mlp, activation=activation)
    out: jax.Array = automatically(run, x, experts, weights, w13, w2, eight, like=lambda _: [names_of(x)], keeps=(3, 4))
    return out


def _mlp(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    w13: Any,
    w2: Any,
    eight: EightBits,
    activation: Activation,
) -> jax.Array:
    tokens, top_k = math.prod(x.shape[:-1]), experts.shape[-1]
    flat, experts, weights = (a.reshape(tokens, n) for a, n in ((x, x.shape[-1]), (experts, top_k), (weights, top_k)))
    out = run_layer("mlp", flat, experts, weights, w13, w2, activation, eight)
    return out.reshape(*x.shape[:-1], out.shape[-1])
