"""Rows from device to device inside `shard_map`, as many for each pair as the devices know: slabs of one static size.

Each pair of devices has a stream of rows, which travel in rounds (see `_rounds.py`). Rows leave their array by a gather
and arrive by a gather or sums of rows, those of further rounds by a scatter or further sums. Seen from both ends a
stream is the same kind of list, so the transpose of an exchange is the exchange back.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_fuser._accumulator import accumulator
from jax_fuser._eager import compile_when_eager
from jax_fuser._fuse import fuse
from jax_fuser._rounds import Rounds, further_rounds, rounds_of
from jax_fuser._spread_sum import front, take_rows, trailing
from jax_fuser._sum_rows import added_rows, gather_rows, gathered_sum, is_worth_a_kernel
from jax_fuser._varying import same_varying

exchange_p = jax.extend.core.Primitive("jax_fuser_exchange")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class End:
    """This device's end of its streams: which rows of an array they are, in slices that follow one another.

    Attributes:
        starts: int32 `(peers, slices)`, first row of each slice.
        sizes: int32 `(peers, slices)`, rows of each slice.
        owner: int32 `(rows,)`, the slice that each row of the array belongs to, peer * slices + slice, or -1. Rows of
            other slices are not sent, and zeros where they arrive nowhere.
        shared: rows belong to every slice that has them, whatever `owner` says; those that arrive there are added, in
            float32 for narrower floats within a round.
    """

    starts: jax.Array
    sizes: jax.Array
    owner: jax.Array
    shared: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def places(self) -> jax.Array:
        """int32 `(peers, slices)`: where each slice begins in its stream."""
        return jnp.cumsum(self.sizes, axis=1, dtype=jnp.int32) - self.sizes


def axis_size(fn: str, axis_name: Any, batched: bool = False) -> int:
    """Return the number of devices along a manual mesh axis, or several of them; `batched`: one of `vmap` will do."""
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    try:
        size = jax.lax.axis_size(axis_name)
    except (NameError, TypeError, ValueError):  # numbers are taken for dimensions, lists cannot be hashed
        size = None
    manual = tuple(jax.sharding.get_abstract_mesh().manual_axes)
    if size is None or not names or not (batched or all(name in manual for name in names)):
        raise NameError(f"{fn}: axis {axis_name!r} is not bound; call inside jax.shard_map over a mesh with that axis")
    if len({*names}) < len(names):
        raise ValueError(f"{fn}: axis_name must name each axis once, got {axis_name!r}")
    return size


def longest_stream(sizes: jax.Array, axis_name: Any) -> jax.Array:
    """Return the rows of the longest stream of all devices, int32, from `sizes` of this device's end."""
    return jax.lax.pmax(jnp.max(jnp.sum(sizes, axis=1, dtype=jnp.int32), initial=0), axis_name)


def exchange(
    x: jax.Array,
    sender: End,
    receiver: End,
    longest: jax.Array,
    kept: jax.Array | None = None,
    *,
    axis_name: Any,
    width: int,
    balanced: int,
) -> jax.Array:
    """Return `(rows, ..)`, what other devices sent to each row; `kept`, or zero, where none did.

    Args:
        x: `(n, ..)`, any dtype. Differentiable, to any order.
        sender: streams of rows of `x`.
        receiver: streams of rows of the result, of the lengths that the peers' ends have. Not `shared`.
        longest: int32, from `longest_stream`.
        kept: `(rows, ..)`, of the dtype of `x`. Differentiable.
        axis_name: one manual mesh axis or several.
        width: rows of the longest stream that may be, static; what is behind is lost.
        balanced: rows of a stream where all are equal, static.
    """
    arrays = [x] if kept is None else [x, kept]
    operands = same_varying(*_arrays(sender), *_arrays(receiver), longest, *arrays)
    if width == 0 or 0 in (*x.shape, *receiver.owner.shape):
        zeros = jnp.zeros_like(operands[_LAYOUT], shape=(receiver.owner.shape[0], *x.shape[1:]))
        return zeros if kept is None else _where_none(receiver.owner, operands[-1])
    row_bytes = math.prod(x.shape[1:]) * x.dtype.itemsize
    rounds = rounds_of(width, balanced, row_bytes * sender.sizes.shape[0])
    result: jax.Array = exchange_p.bind(
        *operands, axis_name=axis_name, rounds=rounds, shared=(sender.shared, receiver.shared)
    )
    return result


_LAYOUT = 7  # operands that are no arrays to move: both ends and the length of the longest stream


def _arrays(end: End) -> tuple[jax.Array, ...]:
    return end.starts, end.sizes, end.owner


def _exchange(*operands: Any, axis_name: Any, rounds: Rounds, shared: tuple[bool, bool]) -> jax.Array:
    starts, sizes, owner, to_starts, to_sizes, to_owner, longest, x, *kept = operands
    sender, receiver = End(starts, sizes, owner, shared[0]), End(to_starts, to_sizes, to_owner, shared[1])
    peers = sender.sizes.shape[0]

    def arrived(begin: Any, size: int) -> jax.Array:
        positions = begin + jnp.arange(size, dtype=jnp.int32)
        slabs = gather_rows(x, _rows_at(sender, positions).reshape(-1)).reshape(peers, size, *x.shape[1:])
        return jax.lax.all_to_all(slabs, axis_name, 0, 0, tiled=True).reshape(peers * size, *x.shape[1:])

    first = arrived(0, rounds.first)
    if receiver.shared:
        run = functools.partial(_add, receiver, arrived)
        out = gathered_sum(first, _terms(receiver, 0, rounds.first))
    else:
        run = functools.partial(_put, receiver, arrived)
        out = _first_of(receiver, first, rounds.first, *kept)
    return further_rounds(run, out, longest, rounds) if rounds.most_further else out


def _rows_at(end: End, positions: jax.Array) -> jax.Array:
    """Return the row at each position of each stream, int32 `(peers, positions)`; -1 where there is none."""
    peers, slices = end.sizes.shape
    positions = jnp.broadcast_to(positions, (peers, positions.shape[0]))
    ends = end.places + end.sizes
    number = jnp.sum(ends[:, :, None] <= positions[:, None, :], axis=1, dtype=jnp.int32)
    inside, number = number < slices, jnp.minimum(number, slices - 1)
    rows = jnp.take_along_axis(end.starts - end.places, number, axis=1) + positions
    if not end.shared:
        number += slices * jax.lax.broadcasted_iota(jnp.int32, (peers, 1), 0)
        owner = jnp.take(end.owner, rows.astype(jnp.uint32), mode="fill", fill_value=-1)
        inside &= owner == number
    return jnp.where(inside, rows, -1)


def _first_of(end: End, arrived: jax.Array, size: int, kept: jax.Array | None = None) -> jax.Array:
    """Return the rows of the first round where they belong, zeros for others, and rows of no slice as they were."""
    slices = end.sizes.shape[1]
    owner = jnp.maximum(end.owner, 0)
    place = jnp.arange(end.owner.shape[0], dtype=jnp.int32) + (end.places - end.starts).reshape(-1)[owner]
    here = (end.owner >= 0) & (place >= 0) & (place < size)
    index = jnp.where(here, owner // slices * size + place, -1)
    if kept is None:
        return gather_rows(arrived, index)
    return (_fused_rows_or if is_worth_a_kernel(arrived) else _rows_or)(arrived, index, end.owner < 0, kept)


def _rows_or(rows: jax.Array, index: jax.Array, is_kept: jax.Array, kept: jax.Array) -> jax.Array:
    # Negative indices would wrap; unsigned ones are out of range, hence zero.
    return jnp.where(trailing(is_kept, kept.ndim), kept, take_rows(rows, index.astype(jnp.uint32)))


_fused_rows_or = fuse(_rows_or, name="place_rows")


def _put(end: End, arrived: Callable[..., jax.Array], begin: Any, size: int, out: jax.Array) -> jax.Array:
    """Put the rows of a further round where they belong."""
    rows = _rows_at(end, begin + jnp.arange(size, dtype=jnp.int32)).reshape(-1)
    # Negative indices would wrap; unsigned ones are out of range, hence dropped.
    return out.at[rows.astype(jnp.uint32)].set(arrived(begin, size), mode="drop", unique_indices=True)


def _terms(end: End, begin: Any, size: int) -> jax.Array:
    """Return which row of a round each row gets from each slice that it belongs to, int32 `(rows, slices)`, or -1."""
    starts, sizes, places = (a.reshape(1, -1) for a in (end.starts, end.sizes, end.places))
    row = jnp.arange(end.owner.shape[0], dtype=jnp.int32)[:, None]
    position = row - starts + places - begin
    here = (row >= starts) & (row < starts + sizes) & (position >= 0) & (position < size)
    peer = jnp.arange(starts.size, dtype=jnp.int32) // end.sizes.shape[1]
    return jnp.where(here, peer * size + position, -1)


def _add(end: End, arrived: Callable[..., jax.Array], begin: Any, size: int, out: jax.Array) -> jax.Array:
    """Add the rows of a further round to every slice they belong to."""
    wide = accumulator(out.dtype)
    return (out.astype(wide) + added_rows(arrived(begin, size), _terms(end, begin, size), wide)).astype(out.dtype)


def _batched(*operands: Any, **params: Any) -> jax.Array:
    """Do the same for operands with outer dimensions; all have the longest stream's length in common."""
    longest = operands[_LAYOUT - 1]

    def one(*others: Any) -> jax.Array:
        return _exchange(*others[: _LAYOUT - 1], longest, *others[_LAYOUT - 1 :], **params)

    for _ in range(operands[0].ndim - 2):
        one = jax.vmap(one)
    return one(*operands[: _LAYOUT - 1], *operands[_LAYOUT:])


def _abstract_eval(*operands: Any, **_: Any) -> Any:
    x, owner = operands[_LAYOUT], operands[5]
    outer = owner.ndim - 1
    shape = (*x.shape[:outer], owner.shape[-1], *x.shape[outer + 1 :])
    return x.update(shape=shape, weak_type=False, sharding=x.sharding.update(spec=jax.P(*[None] * x.ndim)))


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    """What is moved and what is kept are linear, each by itself; the ends keep their values."""
    layout = primals[:_LAYOUT]
    moved, *kept = tangents[_LAYOUT:]
    parts = [] if type(moved) is ad.Zero else [exchange_p.bind(*layout, moved, **params)]
    parts += [_where_none(layout[5], t) for t in kept if type(t) is not ad.Zero]
    out = exchange_p.bind(*primals, **params)
    return out, functools.reduce(jnp.add, parts) if parts else ad.Zero(jax.typeof(out).to_tangent_aval())


def _where_none(owner: jax.Array, a: jax.Array) -> jax.Array:
    """Return the rows of no slice, zeros for others."""
    return jnp.where(trailing(owner < 0, a.ndim), a, jnp.zeros((), a.dtype))


def _transpose(cotangent: Any, *operands: Any, shared: tuple[bool, bool], **params: Any) -> list[Any]:
    layout, [x] = operands[:_LAYOUT], operands[_LAYOUT:]
    if type(cotangent) is ad.Zero:
        return [*[None] * _LAYOUT, ad.Zero(x.aval.to_ct_aval())]
    back = exchange_p.bind(*layout[3:6], *layout[:3], layout[6], cotangent, shared=shared[::-1], **params)
    return [*[None] * _LAYOUT, back]


def _batch(args: Any, dims: Any, **params: Any) -> tuple[jax.Array, int]:
    longest, dim = args[_LAYOUT - 1], dims[_LAYOUT - 1]
    if dim is not None:
        longest = jnp.max(longest, initial=0)
    others = front(*([*a[: _LAYOUT - 1], *a[_LAYOUT:]] for a in (args, dims)))
    return exchange_p.bind(*others[: _LAYOUT - 1], longest, *others[_LAYOUT - 1 :], **params), 0


def _in_one_part(*operands: Any, rounds: Rounds, **params: Any) -> jax.Array:
    return _batched(*operands, rounds=rounds.of_cpus(), **params)


compile_when_eager(exchange_p, "axis_name", "rounds", "shared")
exchange_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[exchange_p] = _jvp
ad.primitive_transposes[exchange_p] = _transpose
batching.primitive_batchers[exchange_p] = _batch
mlir.register_lowering(exchange_p, mlir.lower_fun(_batched, multiple_results=False))
mlir.register_lowering(exchange_p, mlir.lower_fun(_in_one_part, multiple_results=False), platform="cpu")
