"""Groups of all devices brought to the devices that own them: what merging a dimension that a mesh splits sends."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser._exchange import axis_size
from jax_fuser._nested_checks import INT32_MAX
from jax_fuser._nested_rows import to_padded
from jax_fuser._nested_tensor import NestedTensor


def exchange(nt: NestedTensor, axis_name: Any) -> NestedTensor:
    """Return the groups that this device owns, as each device has them: `[.., devices, groups / devices, ragged, ..]`.

    Devices own equally many groups, in their order. Rows travel in blocks of the capacity of `nt`, one for each pair
    of devices: how many are in them is known on the devices alone.

    Args:
        nt: the groups of all devices, `[.., groups, ragged, ..]`, contiguous, with extents for each outer index.
        axis_name: an axis of the mesh of the `shard_map` around the call, or a tuple of them.
    """
    devices = axis_size("merge", axis_name, batched=True)
    dim, groups = nt.ragged_dim, nt.num_groups
    if groups % devices:
        raise ValueError(f"merge: {groups} experts not divisible by the {devices} devices of axis {axis_name!r}")
    if devices * nt.capacity > INT32_MAX:
        raise ValueError(f"merge: {devices} times {nt.capacity} rows do not fit in int32")
    extents = nt._spans()[1].reshape(*nt.extents.shape[:-1], devices, groups // devices)
    blocks = to_padded(nt.replace(extents=jnp.sum(extents, axis=-1, dtype=jnp.int32)), nt.capacity)

    def swap(x: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(x, axis_name, dim, dim, tiled=True)

    return NestedTensor(swap(blocks), swap(extents), ragged_dim=dim + 1)


def clip(nt: NestedTensor, capacity: int) -> NestedTensor:
    """Return the first `capacity` rows of contiguous groups, and what they hold of each group."""
    capacity = min(capacity, nt.capacity)
    data = jax.lax.slice_in_dim(nt.data, 0, capacity, axis=nt.ragged_dim)
    return NestedTensor(data, jnp.diff(jnp.minimum(nt.offsets, capacity), axis=-1), ragged_dim=nt.ragged_dim)
