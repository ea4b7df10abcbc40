"""Tokens from device to device inside `shard_map`, each once to every device that needs it, and sums that come back.

Each pair of devices has a stream of tokens, as long as the devices know. Tokens land in a block of static length for
each device that sends, so that what reads them does so by index: no copy brings them into another order. A stream
travels by dense `all_to_all`, at once where it is short enough for that, otherwise in rounds, as many as the longest
stream of all devices needs. The two directions are each other's transpose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_fuser._accumulator import accumulator
from jax_fuser._eager import compile_when_eager
from jax_fuser._nested import order_rows
from jax_fuser._rounds import Rounds, further_rounds
from jax_fuser._spread_sum import front
from jax_fuser._sum_rows import added_rows, gathered_sum, sum_rows
from jax_fuser._varying import same_varying


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Streams:
    """Which tokens of this device go to which.

    Attributes:
        take: int32 `(peers, length)`, the token at each position of each stream, -1 behind the last.
        target: int32 `(tokens, uses)`, where each token is in a stream, peer * length + position, or -1.
        longest: int32, tokens of the longest stream of all devices.
        axis_name: one manual mesh axis or several.
        rounds: static lengths.
    """

    take: jax.Array
    target: jax.Array
    longest: jax.Array
    axis_name: Any = dataclasses.field(metadata={"static": True})
    rounds: Rounds = dataclasses.field(metadata={"static": True})

    def send(self, *arrays: jax.Array) -> list[jax.Array]:
        """Return what lands here of arrays `(tokens, ..)`: `(peers * length, ..)`, zeros behind the last of a stream.

        Differentiable, to any order.
        """
        return self._bind(send_p, arrays)

    def add_back(self, rows: jax.Array) -> jax.Array:
        """Return each token's sum `(tokens, ..)` of `rows`, which lie as `send` returned them, on every device.

        Rows of padding are not read. Added in the order of `target`, in float32 for narrower floats. Differentiable,
        to any order.
        """
        return self._bind(add_back_p, [rows])[0]

    def _bind(self, primitive: Any, arrays: Any) -> list[jax.Array]:
        # What lands differs between devices, also where all of them send the same: then the cotangents of what they
        # sent are added up before, not after, they travel.
        here = jax.lax.axis_index(self.axis_name)
        _, *operands = same_varying(here, self.take, self.target, self.longest, *arrays)
        results: list[jax.Array] = primitive.bind(*operands, axis_name=self.axis_name, rounds=self.rounds)
        return results


def streams_of(device: jax.Array, devices: int, axis_name: Any, rounds: Rounds) -> Streams:
    """Return the streams of tokens that go to `device`, int32 `(tokens, uses)`, `devices` for none: once to each."""
    uses = device.shape[1]
    earlier = jnp.tri(uses, k=-1, dtype=bool)[None]
    again = jnp.any((device[:, :, None] == device[:, None, :]) & earlier, axis=2)
    _, source, target, sizes = order_rows(jnp.where(again, devices, device), devices)
    first = jnp.cumsum(sizes, dtype=jnp.int32) - sizes
    position = jnp.arange(rounds.length, dtype=jnp.int32)[None]
    # One more, so that there is something to take.
    found = jnp.take(jnp.append(source, -1), first[:, None] + position, mode="clip")
    take = jnp.where(position < sizes[:, None], found // max(uses, 1), -1)
    target = target.reshape(device.shape)
    place = device * rounds.length + target - jnp.take(first, device, mode="clip")
    longest = jnp.max(sizes, initial=0)
    if rounds.most_further:
        longest = jax.lax.pmax(longest, axis_name)
    return Streams(take, jnp.where(target >= 0, place, -1), longest, axis_name, rounds)


send_p = jax.extend.core.Primitive("jax_fuser_send_tokens")
send_p.multiple_results = True
add_back_p = jax.extend.core.Primitive("jax_fuser_add_tokens_back")
add_back_p.multiple_results = True
_LAYOUT = 3  # operands of both that are no arrays to move: take, target, longest


def _send(take: Any, target: Any, longest: Any, *arrays: Any, axis_name: Any, rounds: Rounds) -> list[jax.Array]:
    peers, length = take.shape

    def landing(a: jax.Array, begin: Any, size: int) -> jax.Array:
        shape = (peers, size, *a.shape[1:])
        if a.size == 0:
            return jnp.zeros_like(a, shape=shape)
        index = jax.lax.dynamic_slice_in_dim(take, begin, size, axis=1).reshape(-1, 1)
        return _swap(sum_rows(a, index, _in_round(target, length, begin, size)).reshape(shape), axis_name)

    def one(a: jax.Array) -> jax.Array:
        if rounds.at_once(a):
            return landing(a, 0, length)

        def put(begin: Any, size: int, out: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(out, landing(a, begin, size), begin, 1)

        out = put(0, rounds.first, jnp.zeros_like(a, shape=(peers, length, *a.shape[1:])))
        return further_rounds(put, out, longest, rounds)

    return [one(a).reshape(peers * length, *a.shape[1:]) for a in arrays]


def _add_back(take: Any, target: Any, longest: Any, *arrays: Any, axis_name: Any, rounds: Rounds) -> list[jax.Array]:
    peers, length = take.shape

    def back(a: jax.Array, begin: Any, size: int) -> tuple[jax.Array, jax.Array]:
        """Return the rows of a round, and which of them each token adds."""
        block = jax.lax.dynamic_slice_in_dim(a.reshape(peers, length, *a.shape[1:]), begin, size, axis=1)
        return _swap(block, axis_name).reshape(peers * size, *a.shape[1:]), _in_round(target, length, begin, size)

    def one(a: jax.Array) -> jax.Array:
        if a.size == 0 or target.size == 0:
            return jnp.zeros_like(a, shape=(target.shape[0], *a.shape[1:]))
        if rounds.at_once(a):
            return gathered_sum(*back(a, 0, length))
        wide = accumulator(a.dtype)

        def add(begin: Any, size: int, out: jax.Array) -> jax.Array:
            return out + added_rows(*back(a, begin, size), wide)

        first = added_rows(*back(a, 0, rounds.first), wide)
        return further_rounds(add, first, longest, rounds).astype(a.dtype)

    return [one(a) for a in arrays]


def _in_round(target: Any, length: int, begin: Any, size: int) -> jax.Array:
    """Return where each token is in a round's part of the streams, peer * size + position, or -1."""
    place = target % length - begin
    return jnp.where((target >= 0) & (place >= 0) & (place < size), target // length * size + place, -1)


def _swap(blocks: jax.Array, axis_name: Any) -> jax.Array:
    return jax.lax.all_to_all(blocks, axis_name, 0, 0, tiled=True)


def _register(p: Any, other: Any, one: Callable[..., Any], rows_of: Callable[..., int]) -> None:
    """Register a direction, which `one` computes without outer dimensions; `rows_of` says how many rows it makes."""

    def batched(take: Any, target: Any, longest: Any, *arrays: Any, **params: Any) -> list[jax.Array]:
        def run(take: Any, target: Any, *arrays: Any) -> list[jax.Array]:
            return one(take, target, longest, *arrays, **params)

        for _ in range(take.ndim - 2):
            run = jax.vmap(run)
        return run(take, target, *arrays)

    def in_one_part(*operands: Any, axis_name: Any, rounds: Rounds) -> list[jax.Array]:
        return batched(*operands, axis_name=axis_name, rounds=rounds.of_cpus())

    def abstract_eval(take: Any, target: Any, longest: Any, *arrays: Any, **_: Any) -> list[Any]:
        outer = take.ndim - 2
        rows = rows_of(take, target)
        return [
            a.update(
                shape=(*a.shape[:outer], rows, *a.shape[outer + 1 :]),
                weak_type=False,
                sharding=a.sharding.update(spec=jax.P(*[None] * a.ndim)),
            )
            for a in arrays
        ]

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        layout, arrays = primals[:_LAYOUT], primals[_LAYOUT:]
        out = p.bind(*layout, *arrays, **params)
        moves = [i for i, t in enumerate(tangents[_LAYOUT:]) if type(t) is not ad.Zero]
        moved: list[Any] = [ad.Zero(jax.typeof(o).to_tangent_aval()) for o in out]
        if moves:
            given = p.bind(*layout, *(tangents[_LAYOUT + i] for i in moves), **params)
            for i, t in zip(moves, given):
                moved[i] = t
        return out, moved

    def transpose(cotangents: Any, *operands: Any, **params: Any) -> list[Any]:
        layout, arrays = operands[:_LAYOUT], operands[_LAYOUT:]
        found: list[Any] = [ad.Zero(a.aval.to_ct_aval()) if ad.is_undefined_primal(a) else None for a in arrays]
        moves = [i for i, c in enumerate(cotangents) if type(c) is not ad.Zero and found[i] is not None]
        if moves:
            given = other.bind(*layout, *(cotangents[i] for i in moves), **params)
            for i, c in zip(moves, given):
                found[i] = c
        return [*[None] * _LAYOUT, *found]

    def batch(args: Any, dims: Any, **params: Any) -> Any:
        take, target, longest, *arrays = args
        dim = dims[2]
        if dim is not None:
            longest = jnp.max(longest, axis=dim, initial=0)
        take, target, *arrays = front([take, target, *arrays], [*dims[:2], *dims[_LAYOUT:]])
        return p.bind(take, target, longest, *arrays, **params), [0] * len(arrays)

    compile_when_eager(p, "axis_name", "rounds")
    p.def_abstract_eval(abstract_eval)
    ad.primitive_jvps[p] = jvp
    ad.primitive_transposes[p] = transpose
    batching.primitive_batchers[p] = batch
    mlir.register_lowering(p, mlir.lower_fun(batched, multiple_results=True))
    mlir.register_lowering(p, mlir.lower_fun(in_one_part, multiple_results=True), platform="cpu")


_register(send_p, add_back_p, _send, lambda take, target: take.shape[-2] * take.shape[-1])
_register(add_back_p, send_p, _add_back, lambda take, target: target.shape[-2])
