"""The order that brings the rows of each group together: how many rows precede each, counted instead of sorted.

The ids go in parts of a few. Each part counts its ids of each group; a running sum over the parts says how many ids of
a group the earlier parts have; comparing the ids of a part with one another says how many precede an id there. Each id
is then at a known place, the same on every machine: no sort, no atomics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.interpreters import batching, mlir

from jax_fuser import _ffi, _flatten
from jax_fuser._eager import compile_when_eager
from jax_fuser._fuse import fuse
from jax_fuser._search import binary_search

# Counting takes ids x (groups + part) comparisons. Up to so many groups it beats XLA's sort on CPUs: 65536 ids of 512
# groups take 2 ms instead of 12, of 1024 groups 3, of 2048 groups 13.
_MAX_COUNTED_GROUPS = 1024
# GPUs sort fewer ids in 0.2 ms. CPUs count 32 in as long as they sort them, and 1000 three times as fast.
_MIN_COUNTED_IDS, _LEAST_ON_CPUS = 2048, 128
_PART = 64

# Counts by fused kernels where they can be compiled, and sorts elsewhere. Its parameter `jaxpr` counts many ids; it
# sorts few, and is then part of what a caller fuses.
group_order_p = jax.extend.core.Primitive("jax_fuser_group_order")
group_order_p.multiple_results = True


@functools.partial(jax.jit, static_argnums=1)
def group_order(ids: jax.Array, groups: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the stable order of ids, and how many ids each group has.

    Args:
        ids: integers `[n]`; those outside `0..groups-1` come last, in their order.
        groups: number of groups.

    Returns:
        order: int32 `[n]`, the entry of `ids` that is at each place.
        place: int32 `[n]`, the place of each entry: the inverse of `order`.
        extents: int32 `[groups]`.
    """
    # Before wide integers are cut, which would wrap.
    ids = ids.astype(jnp.int32) if ids.dtype.itemsize < 4 else ids
    keys = jnp.where((ids >= 0) & (ids < groups), ids, groups).astype(jnp.int32)
    if keys.shape[0] == 0 or groups > _MAX_COUNTED_GROUPS:
        return _sorted(keys, groups)
    order, place, extents = _bind(keys, groups)
    return order, place, extents


def count_sorted(ids: jax.Array, groups: int) -> jax.Array:
    """Return how often each of `0..groups-1` occurs in sorted ids, int32 `[groups]`."""
    return jnp.diff(binary_search(ids, jnp.arange(groups + 1, dtype=jnp.int32), "left", ()))


def _sorted(keys: jax.Array, groups: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    rows = jnp.arange(keys.shape[0], dtype=jnp.int32)
    sorted_keys, order = jax.lax.sort_key_val(keys, rows, is_stable=True)
    return order, _inverse(order), count_sorted(sorted_keys, groups)


def _counted(keys: jax.Array, groups: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    place, extents = fuse(functools.partial(_places, groups=groups), name="group_order")(keys)
    return _inverse(place), place, extents


def _batched(f: Callable[..., Any], rank: int) -> Callable[..., Any]:
    for _ in range(rank - 1):
        f = jax.vmap(f)
    return f


def _bind(keys: jax.Array, groups: int) -> list[jax.Array]:
    """Keys are `[.., n]`."""
    f = _batched(functools.partial(_sorted if _are_few(keys) else _counted, groups=groups), keys.ndim)
    results: list[jax.Array] = group_order_p.bind(keys, jaxpr=jax.make_jaxpr(f)(keys), groups=groups)
    return results


def _are_few(keys: Any) -> bool:
    return bool(keys.shape[-1] < _MIN_COUNTED_IDS)


def _batch(args: Any, dims: Any, *, jaxpr: Any, groups: int) -> tuple[list[jax.Array], list[int]]:
    del jaxpr
    return _bind(jnp.moveaxis(args[0], dims[0], 0), groups), [0, 0, 0]


def _lower(ctx: Any, keys: Any, *, jaxpr: Any, groups: int, platform: str = "") -> Any:
    del jaxpr
    [own] = ctx.avals_in
    few = own.shape[-1] < _LEAST_ON_CPUS if platform == "cpu" else _are_few(own)
    counts = platform and not few and _ffi.can_compile(platform) is None
    f = _batched(functools.partial(_counted if counts else _sorted, groups=groups), own.ndim)
    return mlir.lower_fun(f, multiple_results=True)(ctx, keys)


def _opened(eqn: Any) -> Any:
    return eqn.params["jaxpr"] if _are_few(eqn.invars[0].aval) else None


compile_when_eager(group_order_p, "jaxpr", "groups")
group_order_p.def_abstract_eval(lambda keys, *, jaxpr, groups: list(jaxpr.out_avals))
batching.primitive_batchers[group_order_p] = _batch
mlir.register_lowering(group_order_p, _lower)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(group_order_p, functools.partial(_lower, platform=_platform), platform=_platform)
_flatten.OPENED[group_order_p.name] = _opened


def _places(keys: jax.Array, groups: int) -> tuple[jax.Array, jax.Array]:
    """Return the place of each key, and the extents; keys are in `0..groups`."""
    n = keys.shape[0]
    parts = -(-n // _PART)
    # What fills up the last part is behind everything.
    keys = jnp.pad(keys, (0, parts * _PART - n), constant_values=groups).reshape(parts, _PART)
    numbers = jnp.arange(groups + 1, dtype=jnp.int32)[None, None]
    counts = jnp.sum(keys[:, :, None] == numbers, axis=1, dtype=jnp.int32)
    earlier_parts = jnp.cumsum(counts, axis=0) - counts
    extents = earlier_parts[-1] + counts[-1]
    starts = jnp.cumsum(extents) - extents
    earlier = (jnp.arange(_PART)[:, None] > jnp.arange(_PART)[None])[None]
    rank = jnp.sum((keys[:, :, None] == keys[:, None, :]) & earlier, axis=-1, dtype=jnp.int32)
    place = starts[keys] + jnp.take_along_axis(earlier_parts, keys, axis=1, mode="clip") + rank
    return place.reshape(-1)[:n], extents[:groups]


def _inverse(permutation: jax.Array) -> jax.Array:
    rows = jnp.arange(permutation.shape[0], dtype=jnp.int32)
    return jnp.zeros_like(permutation).at[permutation].set(rows, unique_indices=True)
