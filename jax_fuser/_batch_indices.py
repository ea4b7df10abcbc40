"""Updates at (i, j[i]): an index that counts the entries of its batch is written as the axis of that batch.

`x[i, i]` and `x[arange(n), labels]` have an index for each axis, and their derivatives are scatters to many places.
With the counted axis as a batch each of its entries has one place, which the rule of `_trace_updates` fuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from jax_fuser import _trace_updates

Equation = Any  # a JaxprEqn; its types do not say that the avals are arrays
Makers = dict[Var, Equation]


def batched(eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Return the equations with a batch axis in place of a counted index, for scatters of two indices."""
    if not any(eqn.primitive.name in _trace_updates.JOINS for eqn in eqns):
        return [*eqns]
    maker: Makers = {v: eqn for eqn in eqns for v in eqn.outvars}
    return [_batched(eqn, maker) if eqn.primitive.name in _trace_updates.JOINS else eqn for eqn in eqns]


def _batched(eqn: Equation, maker: Makers) -> JaxprEqn:
    operand, indices, *rest = eqn.invars
    numbers = eqn.params["dimension_numbers"]
    axes = numbers.scatter_dims_to_operand_dims
    apart = _made_by(indices, "concatenate", maker)
    if apart is None or apart.params["dimension"] != indices.aval.ndim - 1 or not len(axes) == len(apart.invars) == 2:
        return eqn
    dims = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims))
    for k, axis in enumerate(axes):
        batch = _counted(apart.invars[k], maker)
        if batch is None or batch in dims.values() or axis not in numbers.inserted_window_dims:
            continue
        if indices.aval.shape[batch] != operand.aval.shape[axis]:
            continue
        dims[axis] = batch
        own = lax.ScatterDimensionNumbers(
            update_window_dims=numbers.update_window_dims,
            inserted_window_dims=tuple(a for a in numbers.inserted_window_dims if a != axis),
            scatter_dims_to_operand_dims=(axes[1 - k],),
            operand_batching_dims=tuple(sorted(dims)),
            scatter_indices_batching_dims=tuple(dims[a] for a in sorted(dims)),
        )
        params = {**eqn.params, "dimension_numbers": own}
        return eqn.replace(invars=[operand, apart.invars[1 - k], *rest], params=params)
    return eqn


def _made_by(v: Any, primitive: str, maker: Makers) -> Equation | None:
    eqn = None if isinstance(v, Literal) else maker.get(v)
    return eqn if eqn is not None and eqn.primitive.name == primitive else None


def _counted(v: Any, maker: Makers) -> int | None:
    """Return the axis along which a value counts from 0; None if it is no such value."""
    if v.aval.dtype.kind not in "iu" or max(v.aval.shape, default=0) > np.iinfo(v.aval.dtype).max:
        return None
    if eqn := _made_by(v, "iota", maker):
        return int(eqn.params["dimension"])
    if eqn := _made_by(v, "broadcast_in_dim", maker):
        of, axis = eqn.invars[0], _counted(eqn.invars[0], maker)
        to = None if axis is None else int(eqn.params["broadcast_dimensions"][axis])
        return to if to is None or of.aval.shape[axis] == v.aval.shape[to] else None
    if eqn := _made_by(v, "select_n", maker):  # indices from the end on, where x < 0
        negative, x, _ = eqn.invars
        less = _made_by(negative, "lt", maker)
        known = less and less.invars[0] is x and isinstance(less.invars[1], Literal) and less.invars[1].val == 0
        return _counted(x, maker) if known else None
    eqn = _made_by(v, "convert_element_type", maker)
    return _counted(eqn.invars[0], maker) if eqn else None
