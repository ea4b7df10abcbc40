"""Choosing experts: scores, weights, and the losses that keep the load even."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp


def spell(x: Any) -> str:
    """Spell a small array; traced values have none."""
    if isinstance(x, jax.core.Tracer) or not hasattr(x, "tolist"):
        return "?"
    values = x.tolist()
    if isinstance(values, list) and len(values) > 16:
        return "[" + ",".join(str(v) for v in values[:16]) + ",..]"
    return str(values).replace(" ", "") if isinstance(values, list) else f"{values:.4g}"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Routing:
    """What a router should be told besides its weights; see `route`.

    Attributes:
        load_balance: float32 scalar, 1 when the load is even, up to `experts`.
        z_loss: float32 scalar.
        load: int32 `(experts,)`, choices per expert.
    """

    load_balance: jax.Array
    z_loss: jax.Array
    load: jax.Array

    def __repr__(self) -> str:
        return f"Routing(load_balance={spell(self.load_balance)}, z_loss={spell(self.z_loss)}, load={spell(self.load)})"


def route(
    logits: Any,
    top_k: int,
    *,
    scores: str = "softmax",
    normalize: bool = True,
    bias: Any = None,
    scale: float = 1.0,
    mask: Any = None,
) -> tuple[jax.Array, jax.Array, Routing]:
    """Choose `top_k` experts for each token.

    With `s` the scores, `C` the chosen experts and `P` the scores normalised over all experts:

    - "softmax": `s = softmax(logits)`, weights `s[C]`, divided by their sum with `normalize` (Switch Transformer, OLMoE
      without; Mixtral, Qwen3 with).
    - "topk_softmax": the same choice, weights `softmax(logits[C])` (gpt-oss). Equal to "softmax" normalised, unless
      `bias` or `scale` is given.
    - "sigmoid": `s = sigmoid(logits)`, weights `s[C]`, divided by their sum with `normalize` (DeepSeek-V3).
    - load balance: `experts * sum_e f_e P_e`, `f_e` the fraction of choices that went to expert `e` and `P_e` averaged
      over tokens (Switch Transformer, eq. 4; `f` has no gradient).
    - z loss: mean over tokens of `logsumexp(logits) ** 2` (ST-MoE, eq. 5).

    Args:
        logits: `(.., experts)`, any float dtype; computed in float32. Differentiable.
        top_k: choices per token, `1 <= top_k <= experts`.
        scores: "softmax", "topk_softmax" or "sigmoid".
        normalize: whether weights sum to `scale`.
        bias: `(experts,)`, added to the scores (to the logits for "topk_softmax") for the choice only, without gradient
            (the balance without a loss of DeepSeek-V3).
        scale: factor of the weights.
        mask: bool `(..)`; tokens where it is False choose no expert (index `experts`) and count in no loss.

    Returns:
        weights: float32 `(.., top_k)`, largest score first.
        experts: int32 `(.., top_k)`.
        aux: `Routing` with `load_balance`, `z_loss` and `load`. Differentiable.

    Raises:
        ValueError: unknown `scores`, or `top_k` out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> weights, experts, aux = jf.moe.route(jnp.array([[0.0, 2.0, 1.0]]), top_k=2)
        >>> experts.tolist(), aux.load.tolist()
        ([[1, 2]], [0, 1, 1])
    """
    logits = jnp.asarray(logits)
    if logits.ndim == 0 or not 1 <= top_k <= logits.shape[-1]:
        raise ValueError(f"route: top_k must be between 1 and the number of experts, got {top_k} for {logits.shape}")
    if scores not in ("softmax", "topk_softmax", "sigmoid"):
        raise ValueError(f"route: scores must be softmax, topk_softmax or sigmoid, got {scores!r}")
    return _route(logits, bias, mask, top_k=top_k, scores=scores, normalize=normalize, scale=scale)


@functools.partial(jax.jit, static_argnames=("top_k", "scores", "normalize"))
def _route(
    logits: jax.Array, bias: Any, mask: Any, *, top_k: int, scores: str, normalize: bool, scale: float
) -> tuple[jax.Array, jax.Array, Routing]:
    # One compilation when called eagerly.
    num_experts = logits.shape[-1]
    if mask is not None:
        # What a masked token holds reaches no gradient either.
        mask = jnp.asarray(mask, bool)
        logits = jnp.where(mask[..., None], logits, 0)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    score = jax.nn.sigmoid(logits) if scores == "sigmoid" else jax.nn.softmax(logits, axis=-1)
    choice = logits if scores == "topk_softmax" else score
    if bias is not None:
        choice = choice + jnp.asarray(bias, choice.dtype)
    experts = jax.lax.top_k(jax.lax.stop_gradient(choice), top_k)[1].astype(jnp.int32)
    chosen = experts[..., None] == jnp.arange(num_experts, dtype=jnp.int32)

    def pick(values: jax.Array) -> jax.Array:
        # A masked sum: its derivative is elementwise, where that of an index would scatter.
        return jnp.sum(jnp.where(chosen, values[..., None, :], 0), axis=-1)

    if scores == "topk_softmax":
        weights = jax.nn.softmax(pick(logits), axis=-1)
    else:
        weights = pick(score)
        if normalize:
            weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
    weights = weights * scale

    mean_score = score / (jnp.sum(score, axis=-1, keepdims=True) + 1e-20) if scores == "sigmoid" else score
    z = jnp.square(jax.nn.logsumexp(logits, axis=-1))
    if mask is not None:
        chosen = chosen & mask[..., None, None]
        weights = jnp.where(mask[..., None], weights, 0)
        experts = jnp.where(mask[..., None], experts, num_experts)
        mean_score, z = jnp.where(mask[..., None], mean_score, 0), jnp.where(mask, z, 0)
        tokens = jnp.maximum(jnp.sum(mask, dtype=z.dtype), 1)
    else:
        tokens = jnp.asarray(max(z.size, 1), z.dtype)
    load = jnp.sum(chosen.reshape(-1, num_experts), axis=0, dtype=jnp.int32)
    per_expert = jnp.sum(mean_score.reshape(-1, num_experts), axis=0) / tokens
    balance = num_experts * jnp.sum(load.astype(z.dtype) / (tokens * top_k) * per_expert)
    return weights, experts, Routing(balance, jnp.sum(z) / tokens, load)
