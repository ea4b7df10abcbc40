"""Choosing experts: scores, weights, and the losses that keep the load even.

Two fused functions: `_choose` finds the experts and what follows from them in one pass over the logits; `_weigh` is the
same for experts that are known, and what is differentiated. So a derivative reads logits and choice, searches nothing
again, and has no scatter: a chosen score is a masked sum, whose derivative is elementwise.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser import _arguments
from jax_fuser._accumulator import at_least_float32
from jax_fuser._automatic import automatically, names_of
from jax_fuser._fuse import fuse
from jax_fuser._known import known
from jax_fuser._static_sizes import check_sizes

# Up to here each choice has a reduction of its own along the experts, in the kernel that makes the scores.
_UNROLLED_CHOICES = 16


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

    Scores, choice and losses are fused kernels (up to 16 choices among up to 4096 experts; XLA chooses beyond), as by
    `fuse`: compiled once for each shape, on any platform without a compiler plain XLA ops.

    Args:
        logits: `(.., experts)`, any float dtype; computed in float32, float64 in itself. Differentiable.
        top_k: choices per token, `1 <= top_k <= experts`.
        scores: "softmax", "topk_softmax" or "sigmoid".
        normalize: whether weights sum to `scale`.
        bias: `(experts,)`, added to the scores (to the logits for "topk_softmax") for the choice only, without gradient
            (the balance without a loss of DeepSeek-V3).
        scale: factor of the weights.
        mask: bool `(..)`; tokens where it is False choose no expert (index `experts`) and count in no loss.

    Returns:
        weights: float32 (float64 of float64) `(.., top_k)`, largest score first.
        experts: int32 `(.., top_k)`.
        aux: `Routing` with `load_balance`, `z_loss` and `load`. Differentiable.

    Raises:
        ValueError: unknown `scores`, `top_k` out of range, or another shape of `bias`, `scale` or `mask`.

    Example:
        >>> import jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> weights, experts, aux = jf.moe.route(jnp.array([[0.0, 2.0, 1.0]]), top_k=2)
        >>> experts.tolist(), aux.load.tolist()
        ([[1, 2]], [0, 1, 1])
    """
    logits, top_k = _arguments.array("route", "logits", logits), _arguments.integer("route", "top_k", top_k)
    check_sizes("route", logits=logits)
    _arguments.check_real("route", "logits", logits)
    if logits.ndim == 0 or not 1 <= top_k <= logits.shape[-1]:
        raise ValueError(f"route: top_k must be between 1 and the number of experts, got {top_k} for {logits.shape}")
    if not isinstance(scores, str) or scores not in ("softmax", "topk_softmax", "sigmoid"):
        raise ValueError(f"route: scores must be softmax, topk_softmax or sigmoid, got {scores!r}")
    normalize = _arguments.flag("route", "normalize", normalize)
    for name, given, shape in (
        ("bias", bias, logits.shape[-1:]),
        ("scale", scale, ()),
        ("mask", mask, logits.shape[:-1]),
    ):
        if given is None and name != "scale":
            continue
        array = _arguments.array("route", name, given)
        _arguments.check_real("route", name, array)
        if array.shape != shape:
            raise ValueError(f"route: {name} must be of shape {shape} for logits {logits.shape}, got {array.shape}")
    run = functools.partial(_route, _How(top_k, scores, normalize))
    tokens = names_of(logits)[:-1]
    result: tuple[jax.Array, jax.Array, Routing] = automatically(
        run, logits, bias, mask, scale, like=lambda _: [[*tokens, None]] * 2
    )
    return result


@functools.partial(jax.jit, static_argnums=0)
def _route(how: _How, logits: jax.Array, bias: Any, mask: Any, scale: Any) -> tuple[jax.Array, jax.Array, Routing]:
    # One compilation when called eagerly.
    wide = at_least_float32(logits.dtype)
    scale, bias = jnp.asarray(scale, wide), None if bias is None else jnp.asarray(bias, wide)
    mask = None if mask is None else jnp.asarray(mask, bool)
    choose = fuse(functools.partial(_choose, how), name="route")
    experts, load, *values = choose(*jax.lax.stop_gradient((logits, scale, bias, mask)))
    masks = [] if mask is None else [mask]
    weights, score_sums, z = known(_weighed, how, values, logits, scale, experts, *masks)
    tokens = jnp.asarray(max(z.size, 1), wide) if mask is None else jnp.maximum(jnp.sum(mask, dtype=wide), 1)
    shares = load.astype(wide) / (tokens * how.top_k)
    balance = logits.shape[-1] * jnp.sum(shares * (score_sums / tokens))
    return weights, experts, Routing(balance, jnp.sum(z) / tokens, load)


@dataclasses.dataclass(frozen=True)
class _How:
    """What is static about a router."""

    top_k: int
    scores: str
    normalize: bool

    def clean(self, logits: jax.Array, mask: Any) -> jax.Array:
        """Return logits in float32; what a masked token holds reaches no gradient either."""
        logits = logits if mask is None else jnp.where(mask[..., None], logits, 0)
        return logits.astype(at_least_float32(logits.dtype))

    def score(self, logits: jax.Array) -> jax.Array:
        """Return the scores of clean logits."""
        return jax.nn.sigmoid(logits) if self.scores == "sigmoid" else jax.nn.softmax(logits, axis=-1)

    def chooses(self, logits: jax.Array) -> jax.Array:
        """Return what the choice is made by, bias aside, and weights are made of."""
        return logits if self.scores == "topk_softmax" else self.score(logits)


def _weighed(how: _How, logits: jax.Array, scale: jax.Array, experts: jax.Array, *masks: Any) -> Any:
    """Return what `_weigh` does, in a kernel of its own."""
    [mask] = masks or [None]
    return fuse(functools.partial(_weigh, how), name="route")(logits, scale, mask, experts)


def _choose(how: _How, logits: jax.Array, scale: jax.Array, bias: Any, mask: Any) -> tuple[jax.Array, ...]:
    choice = how.chooses(how.clean(logits, mask))
    found, experts = jax.lax.top_k(
        choice if bias is None else choice + jax.lax.broadcast_to_rank(bias, choice.ndim), how.top_k
    )
    experts = experts.astype(jnp.int32)
    if mask is not None:
        experts = jnp.where(mask[..., None], experts, logits.shape[-1])
    numbers = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    is_chosen = experts[..., None] == jax.lax.broadcast_to_rank(numbers, experts.ndim + 1)
    load = jnp.sum(is_chosen, axis=tuple(range(experts.ndim)), dtype=jnp.int32)
    columns = _columns(found) if bias is None else None
    return experts, load, *_weigh(how, logits, scale, mask, experts, columns)


def _weigh(
    how: _How, logits: jax.Array, scale: jax.Array, mask: Any, experts: jax.Array, chosen: Any = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the weights, the sum over tokens of each expert's normalised scores, and the z loss of each token.

    `chosen`: the chosen scores, where they are known, choice by choice: what adds them up stays in one kernel.
    """
    logits = how.clean(logits, mask)
    score = how.score(logits)
    if chosen is None:
        # Any expert will do for a masked token, whose scores are finite: none has weight zero, which divides.
        known = experts if mask is None else jnp.where(mask[..., None], experts, 0)
        chosen = _pick(how.chooses(logits), known)
    if how.scores == "topk_softmax":
        largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, chosen))
        chosen = [jnp.exp(c - largest) for c in chosen]
    if how.scores == "topk_softmax" or how.normalize:
        total = functools.reduce(jnp.add, chosen) + 1e-20
        chosen = [c / total for c in chosen]
    weights = jnp.stack(chosen, axis=-1) * scale
    mean_score = score / (jnp.sum(score, axis=-1, keepdims=True) + 1e-20) if how.scores == "sigmoid" else score
    z = jnp.square(jax.nn.logsumexp(logits, axis=-1))
    if mask is not None:
        weights = jnp.where(mask[..., None], weights, 0)
        mean_score, z = jnp.where(mask[..., None], mean_score, 0), jnp.where(mask, z, 0)
    return weights, jnp.sum(mean_score, axis=tuple(range(z.ndim))), z


def _pick(values: jax.Array, experts: jax.Array) -> list[jax.Array]:
    """Return `values[.., experts]`, choice by choice, as masked sums."""
    numbers = jax.lax.broadcast_to_rank(jnp.arange(values.shape[-1], dtype=jnp.int32), values.ndim)
    if experts.shape[-1] > _UNROLLED_CHOICES:
        chosen = experts[..., None] == numbers[..., None, :]
        return _columns(jnp.sum(jnp.where(chosen, values[..., None, :], 0), axis=-1))
    return [jnp.sum(jnp.where(e[..., None] == numbers, values, 0), axis=-1) for e in _columns(experts)]


def _columns(x: jax.Array) -> list[jax.Array]:
    # XLA knows its top_k by a slice; a slice of that slice would leave it a sort, ten times slower.
    return list(jnp.moveaxis(x, -1, 0))
