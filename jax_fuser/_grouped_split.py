"""Split a grouped product over a mesh under plain `jit`: each device multiplies its rows, columns or groups.

What each mode's axes allow (see `_grouped_primitive`):

    rows          m, n: a device has its part of the result    k, g: parts are summed (a device's groups give the rows
    batch         m, r, n                                      k     of the others zeros, so the sum is exact)
    contraction   g, k, n                                      m
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_fuser import _split
from jax_fuser._row_groups import spans

# By mode: axes of lhs, of rhs with and without transpose_rhs, of the result; axes that are summed over.
_AXES: dict[str, tuple[str, dict[bool, str], str, str]] = {
    "rows": ("mk", {False: "gkn", True: "gnk"}, "mn", "kg"),
    "contraction": ("mk", {False: "mn"}, "gkn", "m"),
    "batch": ("mrk", {False: "mkn", True: "mnk"}, "mrn", "k"),
}


def split(multiply: Callable[..., Any], avals: Sequence[Any], params: Any) -> Callable[..., Any]:
    """Return the product of operands `avals` as a function of whole arrays that a mesh may split.

    `multiply(*operands, **params)` is the product on one device.
    """
    mode = params["mode"]
    lhs, forms, result, summed = _AXES[mode]
    rhs = forms[params["transpose_rhs"]]
    m, groups = avals[0].shape[0], avals[2].shape[0]
    extent = {**dict(zip(lhs, avals[0].shape)), **dict(zip(rhs, avals[1].shape)), "g": groups}

    def partition(mesh: Any, operands: Any, out: Any) -> Any:
        over = _placed(mesh, [(result, out), (lhs, operands[0]), (rhs, operands[1])], extent)
        sums = tuple(name for axis in summed for name in over.get(axis, ()))
        # Parts that round would not add up to what one device has; a device's groups are whole.
        rounds = any(axis in over for axis in summed if axis != "g")

        def run(lhs: Any, rhs: Any, extents: Any, *starts: Any) -> Any:
            # A device's part is no array of the explicit mesh that may be set here.
            with jax.sharding.use_abstract_mesh(_split.NO_MESH):
                first, count = spans(extents, starts[0] if starts else None, m)
                if "m" in over:
                    rows = m // _split.mesh_size(mesh, over["m"])
                    begin = rows * _position(mesh, over["m"])
                    end = jnp.clip(first + count - begin, 0, rows)
                    first = jnp.clip(first - begin, 0, rows)
                    count = end - first
                if "g" in over:
                    here = groups // _split.mesh_size(mesh, over["g"])
                    at = here * _position(mesh, over["g"])
                    first, count = (jax.lax.dynamic_slice_in_dim(x, at, here) for x in (first, count))
                # Groups that follow each other from row 0 on need no starts; rows of a device do so, too.
                given = bool(starts) or "g" in over
                dtype = params["dtype"]
                wide = rounds and jnp.issubdtype(dtype, jnp.floating)
                part_dtype = np.dtype(jnp.promote_types(dtype, jnp.float32) if wide else dtype)
                local = {**params, "dtype": part_dtype, "has_starts": given}
                part = multiply(lhs, rhs, count, *([first] if given else []), **local)
                return (jax.lax.psum(part, sums) if sums else part).astype(dtype)

        def sharding(axes: str) -> NamedSharding:
            return NamedSharding(mesh, P(*(over.get(axis) for axis in axes)))

        whole = [NamedSharding(mesh, P(None))] * (len(avals) - 2)
        return mesh, run, sharding(result), (sharding(lhs), sharding(rhs), *whole)

    f = custom_partitioning(functools.partial(multiply, **params))
    # Group sizes are small and every device wants them all.
    index = [ArrayMapping("sizes")] * (len(avals) - 2)
    rule = SdyShardingRule(
        (ArrayMapping(*lhs), ArrayMapping(*rhs), *index),
        (ArrayMapping(*result),),
        reduction_factors=tuple(summed),
        need_replication_factors=("sizes",),
    )
    f.def_partition(partition, sharding_rule=rule)
    return f


def result_sharding(mode: str, transpose_rhs: bool, lhs: Any, rhs: Any) -> Any:
    """Return the sharding of the result's type: on a mesh of explicit axes rows and columns stay where they are.

    Where one mesh axis splits both, the rows do. Groups and what is summed are whole.
    """
    check_summed("grouped_matmul", lhs, rhs)
    lhs_axes, forms, result, summed = _AXES[mode]
    over: dict[str, Any] = {}
    used: set[str] = set()
    for axes, aval in ((lhs_axes, lhs), (forms[transpose_rhs], rhs)):
        for axis, names in zip(axes, aval.sharding.spec):
            taken = set(_names(names))
            if axis in result and axis not in summed and axis not in over and used.isdisjoint(taken):
                over[axis] = names
                used |= taken
    base = rhs.sharding if lhs.sharding.mesh.empty else lhs.sharding
    return base.update(spec=P(*(over.get(axis) for axis in result)))


def check_summed(function: str, *avals: Any) -> None:
    """Refuse what a mesh of explicit axes still has in parts that are not summed."""
    for aval in avals:
        spec = aval.sharding.spec
        if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
            raise ValueError(
                f"{function}: operands must be neither unreduced nor reduced over mesh axes, got {aval}; "
                "jax.sharding.reshard them first"
            )


def placed_as(grad: Any, sharding: Any) -> Any:
    """On a mesh of explicit axes a gradient lies where its operand does, whose type has `sharding`."""
    same = sharding.mesh.empty or jax.typeof(grad).sharding.spec == sharding.spec
    return grad if same else jax.sharding.reshard(grad, sharding)


def _names(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _position(mesh: Any, over: Sequence[str]) -> Any:
    """Return a device's number along the mesh axes that one axis of an array is split over."""
    number: Any = 0
    for name in over:
        number = number * mesh.shape[name] + jax.lax.axis_index(name)
    return number


def _placed(mesh: Any, arrays: Any, extent: dict[str, int]) -> dict[str, tuple[str, ...]]:
    """Return the mesh axes of each axis: those of the first array that has it split, where that divides it."""
    over: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for axes, array in arrays:
        for axis, names in zip(axes, array.sharding.spec):
            wanted = _names(names)
            if not wanted or axis in over or not used.isdisjoint(wanted):
                continue
            if extent[axis] % _split.mesh_size(mesh, wanted) == 0:
                over[axis] = wanted
                used.update(wanted)
    return over
