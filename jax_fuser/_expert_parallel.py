"""Layers whose experts are spread over the devices of a mesh axis: rows go to the device of their expert and back."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser._activations import Activation
from jax_fuser._exchange import End, axis_size, exchange, longest_stream
from jax_fuser._expert_layer import Stats, dispatch_arguments, layer_arguments, stats_of, weighted_sum, weights_of
from jax_fuser._expert_rows import NAMED, expert_rows
from jax_fuser._grouped_matmul import grouped_matmul
from jax_fuser._nested import as_nested, order_rows
from jax_fuser._nested_checks import INT32_MAX
from jax_fuser._nested_moves import move_rows
from jax_fuser._nested_rows import require_nested
from jax_fuser._nested_tensor import NestedTensor
from jax_fuser._route import spell
from jax_fuser._row_groups import row_groups
from jax_fuser._sum_rows import sum_rows
from jax_fuser._varying import varying_axes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EpState:
    """Where the rows of an `ep_dispatch` came from and went to; `ep_combine` needs it.

    Attributes:
        source: int32 `(tokens * top_k,)`, token * top_k + choice of each row of this device, sorted by expert; -1 for
            those that were dropped.
        target: int32 `(tokens, top_k)`, the row of each choice; -1 where it was dropped.
        sender: which of these rows go to which device.
        receiver: which rows of this device's experts come from which device.
        longest: int32, rows of the pair of devices that has most.
        load: int32 `(experts,)`, rows of each expert, from all devices.
        clipped: int32, choices of all devices that found no room.
        axis_name: the mesh axis.
        room: rows that fit from one device to another.
    """

    source: jax.Array
    target: jax.Array
    sender: End
    receiver: End
    longest: jax.Array
    load: jax.Array
    clipped: jax.Array
    axis_name: Any = dataclasses.field(metadata={"static": True})
    room: int = dataclasses.field(metadata={"static": True})

    def stats(self) -> Stats:
        """Return the load per expert of the whole axis and what can be read from it; the same on its devices."""
        choices = self.sender.sizes.shape[-2] * math.prod(self.target.shape[-2:])
        return stats_of(self.load, choices, self.clipped)

    def send(self, rows: jax.Array) -> jax.Array:
        """Return the rows of this device's experts, from the sorted ones of every device."""
        return self._exchange(rows, self.sender, self.receiver)

    def send_back(self, rows: jax.Array) -> jax.Array:
        """Return this device's sorted rows, from those of its experts on every device."""
        return self._exchange(rows, self.receiver, self.sender)

    def _exchange(self, rows: jax.Array, sender: End, receiver: End) -> jax.Array:
        balanced = -(-self.target.size // self.sender.sizes.shape[0])
        return exchange(
            rows, sender, receiver, self.longest, axis_name=self.axis_name, width=self.room, balanced=balanced
        )

    def __repr__(self) -> str:
        if getattr(self.target, "ndim", 0) != 2:
            return f"EpState(source={self.source}, target={self.target}, load={self.load})"
        tokens, top_k = self.target.shape
        return f"EpState(tokens={tokens}, top_k={top_k}, axis={self.axis_name!r}, load={spell(self.load)})"


def ep_dispatch(
    x: Any, experts: Any, *, num_experts: int, axis_name: Any, capacity: float | None = None
) -> tuple[NestedTensor, EpState]:
    """Send tokens to the devices of their experts, inside `jax.shard_map`: one row per choice, sorted by expert.

    The devices of the axis own equally many experts, in their order, and bring equally many tokens. The order inside an
    expert is that of the devices, then that of their tokens: that of `dispatch` on the tokens of all devices. Rows move
    by dense `all_to_all` and gathers, forward and backward, in a fixed order. Without a capacity they go in rounds, as
    many as the longest pair of devices needs, mostly one.

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
    state = _plan(fn, experts, num_experts, axis_name, capacity)
    return _nested(state, x), state


def ep_combine(nt: NestedTensor, state: EpState, weights: Any) -> jax.Array:
    """Send rows back to the devices of their tokens and add each token's choices, weighted.

    Computed in float32, choices added in order, as `combine` does. A dropped choice adds zero.

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
    weights = weights_of("ep_combine", weights, state.target)
    axis_size("ep_combine", state.axis_name)
    rows = state.receiver.owner.shape[0]
    if nt.gapped or nt.ragged_dim != 0 or nt.capacity != rows:
        raise ValueError(
            f"ep_combine: nt must have the {rows} rows that ep_dispatch returned, got data {nt.data.shape}"
        )
    return weighted_sum(state.send_back(nt.data), weights, state.source, state.target)


def ep_mlp(
    x: Any,
    experts: Any,
    weights: Any,
    w13_local: Any,
    w2_local: Any,
    *,
    axis_name: Any,
    activation: Activation = "swiglu",
    capacity: float | None = None,
) -> jax.Array:
    """Run a whole expert layer whose experts are spread over the devices of a mesh axis, inside `jax.shard_map`.

    The result is that of `mlp` on the tokens and experts of all devices. With a named activation the rows' weights
    travel with them and come before the second product, as there.

    Args:
        x: tokens of this device, `(.., d)`. Differentiable.
        experts: integers `(.., top_k)`; values outside `0..num_experts-1` are dropped.
        weights: `(.., top_k)`. Differentiable.
        w13_local: this device's experts, `(num_experts / devices, d, 2 * f)`, gate columns before up columns, or `(..,
            d, f)` for an activation that is not gated. Differentiable.
        w2_local: `(num_experts / devices, f, d)`. Differentiable.
        axis_name: a mesh axis of the `shard_map` around the call, or a tuple of them.
        activation: as in `grouped_matmul`.
        capacity: as in `ep_dispatch`.

    Returns:
        `(.., d)` of the dtype of `x`.

    Raises:
        NameError: the axis is not bound.
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
    x, experts, weights, w13, w2, activation = layer_arguments(
        fn, x, experts, weights, w13_local, w2_local, activation, local="_local"
    )
    here = varying_axes(jax.lax.axis_index(axis_name))
    for name, given in (("w13_local", w13), ("w2_local", w2)):
        if devices > 1 and here - varying_axes(given):
            raise ValueError(
                f"{fn}: {name} is the same on every device of axis {axis_name!r}, expected each device's own experts; "
                f"split it over the axis with in_specs"
            )
    tokens = math.prod(x.shape[:-1])
    flat, experts, weights = (a.reshape(tokens, a.shape[-1]) for a in (x, experts, weights))
    state = _plan(fn, experts, devices * w13.shape[0], axis_name, capacity)
    nt = _nested(state, flat)
    if isinstance(activation, str) and activation in NAMED:
        out = _weighted_rows(nt, state, weights, w13, w2, activation)
    else:
        multiply = functools.partial(grouped_matmul, preferred_element_type=x.dtype)
        out = ep_combine(multiply(multiply(nt, w13, activation=activation), w2), state, weights)
    return out.reshape(*x.shape[:-1], out.shape[-1])


def _weighted_rows(
    nt: NestedTensor, state: EpState, weights: jax.Array, w13: jax.Array, w2: jax.Array, activation: str
) -> jax.Array:
    """Weigh rows between the products, and only add them afterwards."""
    target, top_k = state.target, state.target.shape[1]
    jax.eval_shape(lambda *a: grouped_matmul(grouped_matmul(a[0], a[1], activation=activation), a[2]), nt, w13, w2)
    scale = state.send(sum_rows(weights.reshape(-1), state.source[:, None], target.reshape(-1, 1)))
    rows = expert_rows(nt.data, None, None, w13, w2, scale, nt.extents, activation=activation, dtype=nt.dtype)
    return sum_rows(state.send_back(rows), target, (state.source // top_k)[:, None])


def _nested(state: EpState, x: jax.Array) -> NestedTensor:
    """Return the rows of this device's experts."""
    rows = state.send(move_rows(x, state.source, state.target.reshape(-1), state.target.shape[1]))
    return as_nested(rows, extents=jnp.sum(state.receiver.sizes, axis=0, dtype=jnp.int32), validate=False)


def _plan(fn: str, experts: jax.Array, num_experts: int, axis_name: Any, capacity: Any) -> EpState:
    """Decide which rows go where, and let the receivers know how many come."""
    devices = axis_size(fn, axis_name)
    if num_experts % devices:
        raise ValueError(f"{fn}: {num_experts} experts not divisible by the {devices} devices of axis {axis_name!r}")
    local, (tokens, top_k) = num_experts // devices, experts.shape
    room = _room(fn, capacity, tokens, top_k, local, devices)
    if devices * max(room, tokens * top_k) > INT32_MAX:
        raise ValueError(f"{fn}: {devices} times {room} rows do not fit in int32; give a capacity")
    # Before narrow integers are compared with numbers that they do not have.
    experts = experts.astype(jnp.int32) if experts.dtype.itemsize < 4 else experts
    asked = jnp.sum((experts >= 0) & (experts < num_experts), dtype=jnp.int32)
    if room < tokens * top_k:
        experts = _first_of_each_device(experts, num_experts, devices, room)
    _, source, target, extents = order_rows(experts, num_experts)

    sent = extents.reshape(devices, local)
    sizes = jax.lax.all_to_all(sent, axis_name, 0, 0, tiled=True)
    # By expert, then by device.
    extents_here = sizes.T.reshape(-1)
    starts = jnp.cumsum(extents_here, dtype=jnp.int32) - extents_here
    part = row_groups(extents_here, None, devices * room)
    owner = jnp.where(part < num_experts, part % devices * local + part // devices, -1)
    first = jnp.cumsum(extents, dtype=jnp.int32) - extents
    going = row_groups(extents, None, source.shape[0])
    return EpState(
        source,
        target.reshape(tokens, top_k),
        End(first.reshape(devices, local), sent, jnp.where(going < num_experts, going, -1)),
        End(starts.reshape(local, devices).T, sizes, owner),
        longest_stream(sent, axis_name),
        jax.lax.psum(extents, axis_name),
        jax.lax.psum(asked - jnp.sum(extents, dtype=jnp.int32), axis_name),
        axis_name,
        room,
    )


def _room(fn: str, capacity: Any, tokens: int, top_k: int, local: int, devices: int) -> int:
    """Return how many rows fit from one device to another."""
    worst = tokens * min(top_k, local)
    if capacity is None:
        return worst
    if isinstance(capacity, bool) or not isinstance(capacity, (int, float)):
        raise TypeError(f"{fn}: capacity must be a number or None, got a {type(capacity).__name__}")
    if not capacity > 0:
        raise ValueError(f"{fn}: capacity must be above 0, times the rows of an equal share, got {capacity}")
    return min(worst, math.ceil(min(capacity, devices) * tokens * top_k / devices))


def _first_of_each_device(experts: jax.Array, num_experts: int, devices: int, room: int) -> jax.Array:
    """Return the experts without the choices behind the first `room` of each device, in the order of the tokens."""
    valid = (experts >= 0) & (experts < num_experts)
    owner = jnp.where(valid, experts // (num_experts // devices), devices).astype(jnp.int32)
    _, _, place, extents = order_rows(owner, devices)
    starts = jnp.cumsum(extents, dtype=jnp.int32) - extents
    number = place.reshape(owner.shape) - starts[jnp.minimum(owner, devices - 1)]
    return jnp.where(valid & (number < room), experts, num_experts)
