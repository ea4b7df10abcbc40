"""`jax.lax.ragged_dot` inside of `fuse` is our grouped product: `ragged_dot_general` equations are opened into it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_fuser import _flatten
from jax_fuser._ragged_dot import ragged_dot_general
from jax_fuser._static_sizes import symbolic_size


def opened(eqn: Any) -> Any | None:
    """Return the closed jaxpr that computes a `ragged_dot_general` equation by grouped products.

    None where XLA must: the result is placed on a mesh, or operands are 8-bit floats. So it must along a ragged batch
    dimension, where XLA multiplies what is past the last group, too.
    """
    if eqn.params.get("out_sharding") is not None:
        return None
    dims = eqn.params["ragged_dot_dimension_numbers"]
    if dims.lhs_ragged_dimensions[0] in dims.dot_dimension_numbers[1][0]:
        return None
    avals = tuple(v.aval for v in eqn.invars)
    if symbolic_size(*(a.shape for a in avals)) is not None:
        return None  # sizes that only an exported call knows
    if any(a.dtype.itemsize == 1 and jnp.issubdtype(a.dtype, jnp.floating) for a in avals):
        return None
    params = {k: eqn.params[k] for k in ("ragged_dot_dimension_numbers", "precision", "preferred_element_type")}
    return _product(avals, jax.sharding.get_abstract_mesh(), **params)


@functools.lru_cache(maxsize=256)
def _product(avals: tuple[Any, ...], mesh: Any, **params: Any) -> Any:
    del mesh  # the types of a shard_map's values hold in its mesh alone
    closed = jax.make_jaxpr(functools.partial(ragged_dot_general, **params))(*avals)
    return None if closed.consts else closed


_flatten.OPENED["ragged_dot_general"] = opened
