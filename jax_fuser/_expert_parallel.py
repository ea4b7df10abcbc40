"""Layers whose experts are spread over the devices of a mesh axis: rows go to the device of their expert and back."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_fuser._activations import Activation
from jax_fuser._automatic import automatically, names_of
from jax_fuser._exchange import axis_size
from jax_fuser._expert_layer import (
    EightBits,
    Stats,
    array_of,
    dispatch_arguments,
    layer_arguments,
    matrix_shape,
    order_choices,
    rows_of_choices,
    run_layer,
    stats_of,
    weighted_sum,
    weights_of,
)
from jax_fuser._nested import order_rows
from jax_fuser._nested_checks import INT32_MAX
from jax_fuser._nested_rows import require_nested
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._quant import ScaledTensor
from jax_fuser._rounds import rounds_of
from jax_fuser._route import spell
from jax_fuser._token_exchange import Streams, streams_of
from jax_fuser._varying import varying_axes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EpState:
    """Where the rows of an `ep_dispatch` came from; `ep_combine` needs it.

    Attributes:
        streams: which tokens of this device went to which.
        source: int32 `(rows,)`, place where the token landed * top_k + choice of each row; -1 for padding.
        target: int32 `(places, top_k)`, the row of each choice that landed here; -1 where it is of another device, or
            was dropped.
        load: int32 `(experts,)`, rows of each expert, from all devices.
        clipped: int32, choices of all devices that found no room.
    """

    streams: Streams
    source: jax.Array
    target: jax.Array
    load: jax.Array
    clipped: jax.Array

    def stats(self) -> Stats:
        """Return the load per expert of the whole axis and what can be read from it; the same on its devices."""
        choices = self.streams.take.shape[-2] * math.prod(self.streams.target.shape[-2:])
        return stats_of(self.load, choices, self.clipped)

    def __repr__(self) -> str:
        if getattr(self.target, "ndim", 0) != 2:
            return f"EpState(source={self.source}, target={self.target}, load={self.load})"
        tokens, top_k = self.streams.target.shape
        return f"EpState(tokens={tokens}, top_k={top_k}, axis={self.streams.axis_name!r}, load={spell(self.load)})"


def ep_dispatch(
    x: Any, experts: Any, *, num_experts: int, axis_name: Any, capacity: float | None = None
) -> tuple[NestedTensor, EpState]:
    """Send tokens to the devices of their experts, inside `jax.shard_map`: one row per choice, sorted by expert.

    The devices of the axis own equally many experts, in their order, and bring equally many tokens. The order inside an
    expert is that of the devices, then that of their tokens: that of `dispatch` on the tokens of all devices. A token
    travels once to each device that has experts of it, by dense `all_to_all` and gathers, forward and backward, in a
    fixed order. Where a device could send another many more tokens than it will on average, they go in rounds, as many
    as the longest pair of devices needs, mostly one.

    Args:
        x: tokens of this device, `(tokens, ..)`. Differentiable.
        experts: integers `(tokens, top_k)` or `(tokens,)`; a value outside `0..num_experts-1` drops that choice.
        num_experts: number of experts of all devices, static.
        axis_name: a mesh axis of the `shard_map` around the call, or a tuple of them.
        capacity: None to drop nothing; then the result has room for what may come at worst, `min(top_k, num_experts /
            devices)` rows from each token of the axis. A number bounds the rows from one device to another by so many
            times their equal share, `tokens * top_k / devices`; of more, the first stay, in the order of the tokens.
            In any case a token that names one expert several times may find no room for it.

    Returns:
        The nested tensor `[num_experts / devices, ragged, ..]` of this device's experts, and the state that
        `ep_combine` needs. `state.stats()` has the load of all experts and what was dropped.

    Raises:
        NameError: the axis is not bound.
        ValueError: shapes do not fit, the axis does not divide the experts, the capacity is not above 0.
        TypeError: `experts` are not integers, the capacity is no number.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> mesh = jax.make_mesh((1,), ("ep",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
        >>> def f(x, experts):
        ...     nt, state = jf.moe.ep_dispatch(x, experts, num_experts=3, axis_name="ep")
        ...     return jf.moe.ep_combine(nt * 2, state, jnp.ones(4)), state.stats().load
        >>> on_mesh = jax.shard_map(f, mesh=mesh, in_specs=jax.P("ep"), out_specs=(jax.P("ep"), jax.P()))
        >>> out, load = jax.jit(on_mesh)(jnp.arange(4.0)[:, None], jnp.array([2, 0, 2, 1]))
        >>> out[:, 0].tolist(), load.tolist()
        ([0.0, 2.0, 4.0, 6.0], [1, 1, 2])
    """
    fn = "ep_dispatch"
    x, experts, num_experts = dispatch_arguments(fn, x, experts, num_experts)

    def run(x: jax.Array, experts: jax.Array) -> tuple[NestedTensor, EpState]:
        plan = _plan(fn, x, experts, num_experts, axis_name, capacity)
        landed, local_experts = plan.send(x)
        local = num_experts // plan.devices
        source, target, extents = order_choices(local_experts, local, plan.rows)
        own = jax.lax.dynamic_update_slice_in_dim(
            jnp.zeros_like(extents, shape=(num_experts,)), extents, jax.lax.axis_index(axis_name) * local, 0
        )
        load, clipped = (jax.lax.psum(a, axis_name) for a in (own, plan.clipped))
        state = EpState(plan.streams, source, target, load, clipped)
        return rows_of_choices(landed, source, target, extents), state

    result: tuple[NestedTensor, EpState] = automatically(run, x, experts, like=lambda _: [names_of(x)])
    return result


def ep_combine(nt: NestedTensor, state: EpState, weights: Any) -> jax.Array:
    """Add each token's choices, weighted, and send the sums back to the devices of their tokens.

    Every device adds the choices that it has, in order, and the token's device adds what comes from them, in float32;
    between them is a rounding to the dtype of `nt`. A dropped choice adds zero.

    Args:
        nt: rows `[num_experts / devices, ragged, ..]`, in the layout that `ep_dispatch` returned. Differentiable.
        state: from `ep_dispatch`.
        weights: `(tokens, top_k)`, or `(tokens,)` for one choice. Differentiable.

    Returns:
        `(tokens, ..)` of the dtype of `nt`.

    Raises:
        TypeError: `nt` is not nested.
        ValueError: shapes do not fit.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> mesh = jax.make_mesh((1,), ("ep",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
        >>> def f(x, experts, weights):
        ...     nt, state = jf.moe.ep_dispatch(x, experts, num_experts=2, axis_name="ep", capacity=1.0)
        ...     return jf.moe.ep_combine(nt, state, weights)
        >>> on_mesh = jax.shard_map(f, mesh=mesh, in_specs=jax.P("ep"), out_specs=jax.P("ep"))
        >>> jax.jit(on_mesh)(jnp.arange(3.0)[:, None], jnp.array([1, 0, 1]), jnp.full(3, 0.5))[:, 0].tolist()
        [0.0, 0.5, 1.0]
    """
    require_nested("ep_combine", nt)
    if not isinstance(state, EpState):
        raise TypeError(f"ep_combine: state must be what ep_dispatch returned, got a {type(state).__name__}")
    weights = weights_of("ep_combine", weights, state.streams.target)
    local = state.load.shape[0] // axis_size("ep_combine", state.streams.axis_name)
    rows = state.source.shape[0]
    if nt.gapped or nt.ragged_dim != 0 or nt.capacity != rows:
        raise ValueError(
            f"ep_combine: nt must have the {rows} rows that ep_dispatch returned, got data {nt.data.shape}"
        )
    if nt.num_groups != local:
        raise ValueError(f"ep_combine: nt must have the {local} groups that ep_dispatch returned, got {nt.num_groups}")

    def run(rows: jax.Array, weights: jax.Array, state: EpState) -> jax.Array:
        (landed,) = state.streams.send(weights)
        return state.streams.add_back(weighted_sum(rows, landed, state.source, state.target))

    place = [names_of(weights)[0], *names_of(nt.data)[1:]]
    out: jax.Array = automatically(run, nt.data, weights, state, like=lambda _: [place])
    return out


def ep_mlp(
    x: Any,
    experts: Any,
    weights: Any,
    w13_local: Any,
    w2_local: Any,
    *,
    axis_name: Any,
    activation: Activation = "swiglu",
    format: str | None = None,
    dw_format: str | None = None,
    quantized_w13: tuple[ScaledTensor, ScaledTensor] | None = None,
    quantized_w2: tuple[ScaledTensor, ScaledTensor] | None = None,
    capacity: float | None = None,
) -> jax.Array:
    """Run a whole expert layer whose experts are spread over the devices of a mesh axis, inside `jax.shard_map`.

    The result is that of `mlp` on the tokens and experts of all devices, but for a rounding of what each device has of
    a token, as in `ep_combine`, and for choices that `capacity` of `ep_dispatch` drops: without one, those of tokens
    that name an expert twice. A token travels once to each device that has experts of it, and its sum there travels
    back. With a named activation the weights come before the second product, as in `mlp`.

    Args:
        x: tokens of this device, `(.., d)`. Differentiable.
        experts: integers `(.., top_k)`; values outside `0..num_experts-1` are dropped.
        weights: `(.., top_k)`. Differentiable.
        w13_local: this device's experts, `(num_experts / devices, d, 2 * f)`, gate columns before up columns, or `(..,
            d, f)` for an activation that is not gated. Differentiable. Or of four or eight bits, as in `mlp`.
        w2_local: `(num_experts / devices, f, d)`. Differentiable. Or of four or eight bits.
        axis_name: a mesh axis of the `shard_map` around the call, or a tuple of them.
        activation: as in `grouped_matmul`.
        format, dw_format, quantized_w13, quantized_w2: as in `mlp`, of this device's experts.
        capacity: as in `ep_dispatch`.

    Returns:
        `(.., d)` of the dtype of `x`.

    Raises:
        NameError: the axis is not bound.
        TypeError: as in `mlp`.
        ValueError: shapes do not fit, or every device has the same weights.

    Example:
        >>> import functools, jax, jax.numpy as jnp
        >>> import jax_fuser as jf
        >>> mesh = jax.make_mesh((1,), ("ep",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
        >>> layer = functools.partial(jf.moe.ep_mlp, axis_name="ep")
        >>> on_mesh = jax.shard_map(layer, mesh=mesh, in_specs=jax.P("ep"), out_specs=jax.P("ep"))
        >>> w13, w2 = jnp.ones((4, 8, 32)), jnp.ones((4, 16, 8))
        >>> experts = jnp.array([[0, 1], [1, 3]])
        >>> jax.jit(on_mesh)(jnp.ones((2, 8)), experts, jnp.full((2, 2), 0.5), w13, w2).shape
        (2, 8)
    """
    fn = "ep_mlp"
    devices = axis_size(fn, axis_name)
    x, experts, weights, w13, w2, activation, eight = layer_arguments(
        fn, x, experts, weights, w13_local, w2_local, activation, format, dw_format, (quantized_w13, quantized_w2),
        local="_local",
    )  # fmt: skip
    here = varying_axes(jax.lax.axis_index(axis_name))
    for name, given in (("w13_local", w13), ("w2_local", w2)):
        if devices > 1 and here - varying_axes(array_of(given)):
            raise ValueError(
                f"{fn}: {name} is the same on every device of axis {axis_name!r}, expected each device's own experts; "
                f"split it over the axis with in_specs"
            )

    def run(x: jax.Array, experts: jax.Array, weights: jax.Array, w13: Any, w2: Any, eight: EightBits) -> jax.Array:
        tokens = math.prod(x.shape[:-1])
        flat, experts, weights = (a.reshape(tokens, a.shape[-1]) for a in (x, experts, weights))
        plan = _plan(fn, flat, experts, devices * w13.shape[0], axis_name, capacity)
        if 0 in (*experts.shape, *w13.shape, *w2.shape):
            # JAX 0.11 crashes while it compiles a shard_map that reads an argument without elements.
            return jnp.zeros_like(x, shape=(*x.shape[:-1], matrix_shape(w2)[2]))
        landed, local_experts, landed_weights = plan.send(flat, weights)
        out = run_layer(fn, landed, local_experts, landed_weights, w13, w2, activation, eight, plan.rows)
        out = plan.streams.add_back(out)
        return out.reshape(*x.shape[:-1], out.shape[-1])

    out: jax.Array = automatically(run, x, experts, weights, w13, w2, eight, like=lambda _: [names_of(x)], keeps=(3, 4))
    return out


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Which tokens go where, the choices that go with them, and how many rows at most come of it."""

    streams: Streams
    experts: jax.Array
    num_experts: int
    rows: int
    clipped: jax.Array

    @property
    def devices(self) -> int:
        return self.streams.take.shape[0]

    def send(self, x: jax.Array, *others: jax.Array) -> list[jax.Array]:
        """Return what lands here: of `x`, the numbers of this device's experts, past them for none, and the others."""
        # Nothing lands as zero.
        landed, number, *landed_others = self.streams.send(x, self.experts + 1, *others)
        local = self.num_experts // self.devices
        number -= 1 + jax.lax.axis_index(self.streams.axis_name) * local
        return [landed, jnp.where((number >= 0) & (number < local), number, local), *landed_others]


def _plan(fn: str, x: jax.Array, experts: jax.Array, num_experts: int, axis_name: Any, capacity: Any) -> _Plan:
    """Decide which tokens go where."""
    devices = axis_size(fn, axis_name)
    if num_experts % devices:
        raise ValueError(f"{fn}: {num_experts} experts not divisible by the {devices} devices of axis {axis_name!r}")
    local, (tokens, top_k) = num_experts // devices, experts.shape
    room = _room(fn, capacity, tokens, top_k, local, devices)
    # Of random choices, so many tokens go to each device.
    balanced = tokens * (1 - (1 - 1 / devices) ** top_k)
    row_bytes = math.prod(x.shape[1:]) * x.dtype.itemsize
    rounds = rounds_of(min(tokens, room), balanced, devices * row_bytes)
    if devices * max(room, rounds.length * top_k) > INT32_MAX:
        raise ValueError(f"{fn}: {devices} times {room} rows do not fit in int32; give a capacity")
    # Before narrow integers are compared with numbers that they do not have.
    experts = experts.astype(jnp.int32) if experts.dtype.itemsize < 4 else experts
    experts = jnp.where((experts >= 0) & (experts < num_experts), experts, -1).astype(jnp.int32)
    asked = jnp.sum(experts >= 0, dtype=jnp.int32)
    device = jnp.where(experts >= 0, experts // max(local, 1), devices)
    if room < tokens * top_k:
        found_room = _first_of_each_device(device, devices, room)
        experts, device = jnp.where(found_room, experts, -1), jnp.where(found_room, device, devices)
    clipped = asked - jnp.sum(experts >= 0, dtype=jnp.int32)
    streams = streams_of(device, devices, axis_name, rounds)
    return _Plan(streams, experts, num_experts, devices * room, clipped)


def _room(fn: str, capacity: Any, tokens: int, top_k: int, local: int, devices: int) -> int:
    """Return how many rows fit from one device to another."""
    worst = tokens * min(top_k, local)
    if capacity is None:
        return worst
    if isinstance(capacity, (bool, np.bool_)) or not isinstance(capacity, (int, float, np.integer, np.floating)):
        raise TypeError(f"{fn}: capacity must be a number or None, got a {type(capacity).__name__}")
    if not capacity > 0:
        raise ValueError(f"{fn}: capacity must be above 0, times the rows of an equal share, got {capacity}")
    return min(worst, math.ceil(min(capacity, devices) * tokens * top_k / devices))


def _first_of_each_device(device: jax.Array, devices: int, room: int) -> jax.Array:
    """Return which choices are among the first `room` of their device, in the order of the tokens."""
    _, _, place, extents = order_rows(device, devices)
    starts = jnp.cumsum(extents, dtype=jnp.int32) - extents
    number = place.reshape(device.shape) - jnp.take(starts, device, mode="clip")
    return (device < devices) & (number < room)
