"""Split a grouped product over a mesh under plain `jit`: each device multiplies its rows, columns or groups.

What each mode's axes allow (see `_grouped_primitive`):

    rows          m, n: a device has its part of the result    k, g: parts are summed (a device's groups give the rows
    batch         m, r, n                                      k     of the others zeros, so the sum is exact)
    contraction   g, k, n                                      m

Products of quantized operands are of mode rows, and a device's part of k or n is whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule, custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_fuser import _split
from jax_fuser._accumulator import at_least_float32
from jax_fuser._row_groups import spans

# By mode: axes of lhs, of rhs with and without transpose_rhs, of the result; axes that are summed over.
_AXES: dict[str, tuple[str, dict[bool, str], str, str]] = {
    "rows": ("mk", {False: "gkn", True: "gnk"}, "mn", "kg"),
    "contraction": ("mk", {False: "mn"}, "gkn", "m"),
    "batch": ("mrk", {False: "mkn", True: "mnk"}, "mrn", "k"),
}


@dataclass(frozen=True)
class Layout:
    """The axes of a product, by letters: of its operands, of its result, and those that are summed over.

    A small letter counts elements, its capital blocks of them: `blocks` says of how many, where only whole ones may be
    on one device. What is in `whole` every device needs.
    """

    operands: tuple[str, ...]
    result: str
    summed: str
    blocks: dict[str, int] = field(default_factory=dict)
    whole: str = ""


def layout(mode: str, transpose_rhs: bool) -> Layout:
    """Return the axes of a grouped product."""
    lhs, forms, result, summed = _AXES[mode]
    return Layout((lhs, forms[transpose_rhs]), result, summed)


def split(multiply: Callable[..., Any], axes: Layout, avals: Sequence[Any], out: Any) -> Callable[..., Any]:
    """Return the product of operands `avals`, then group sizes and starts, as a function that a mesh may split.

    `multiply(*operands, aval)` is the product on one device; `out` is the type of the result, and `aval` that of its
    part.
    """
    given = len(axes.operands)
    arrays = [*zip(axes.operands, avals), (axes.result, out)]
    extent = {letter: size for letters, aval in arrays for letter, size in zip(letters, aval.shape)}
    m, groups = extent["m"], avals[given].shape[0]
    extent["g"] = groups
    # What can be cut, in elements or blocks.
    units = {a: size // axes.blocks.get(a, 1) for a, size in extent.items() if a.islower() and a not in axes.whole}
    units = {a: count for a, count in units.items() if count * axes.blocks.get(a, 1) == extent[a]}

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        over = _placed(mesh, [(axes.result, result), *zip(axes.operands, operands)], units)
        sums = tuple(name for axis in axes.summed for name in over.get(axis, ()))
        # Parts that round would not add up to what one device has; a device's groups are whole.
        rounds = any(axis in over for axis in axes.summed if axis != "g")

        def run(*operands: Any) -> Any:
            arrays, extents, starts = operands[:given], operands[given], operands[given + 1 :]
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
                indices = (count, first) if starts or "g" in over else (count,)
                wide = rounds and jnp.issubdtype(out.dtype, jnp.floating)
                shape = tuple(extent[a] // _split.mesh_size(mesh, over.get(a, ())) for a in axes.result)
                kind = at_least_float32(out.dtype) if wide else out.dtype
                part = multiply(*arrays, *indices, jax.ShapeDtypeStruct(shape, np.dtype(kind)))
                return (jax.lax.psum(part, sums) if sums else part).astype(out.dtype)

        def sharding(letters: str) -> NamedSharding:
            return NamedSharding(mesh, P(*(over.get(a.lower()) for a in letters)))

        whole = [NamedSharding(mesh, P(None))] * (len(avals) - given)
        return mesh, run, sharding(axes.result), (*map(sharding, axes.operands), *whole)

    f = custom_partitioning(lambda *operands: multiply(*operands, out))
    f.def_partition(partition, sharding_rule=lambda mesh, *_: _rule(axes, extent, units, len(avals) - given, mesh))
    return f


def _rule(axes: Layout, extent: dict[str, int], units: dict[str, int], indices: int, mesh: Any) -> SdyShardingRule:
    """Return how shardings pass through the product."""
    # One block is no factor beside its elements.
    kept = {a for a in axes.blocks if a in units and (units[a] == 1 or _split.cuts_a_mesh_axis(mesh, units[a]))}
    cut = {a: size for a, size in axes.blocks.items() if a in units and a not in kept}
    whole = {"sizes", *(f"{a}x" for a in cut), *(a for a in extent if a.lower() not in units.keys() - kept)}
    summed = {a.upper() if a in cut else a for a in axes.summed} - whole
    factors: dict[str, tuple[str, ...]] = {a: (a.upper(), f"{a}x") if a in cut else (a,) for a in extent}
    # Group sizes are small and every device wants them all.
    letters = (*axes.operands, *["s"] * indices, axes.result)
    factors["s"] = ("sizes",)
    arrays = [[factors[a] for a in each] for each in letters]
    ordered = list(dict.fromkeys(name for array in arrays for names in array for name in names))
    # A size that some array shows must not be given.
    shown = {names[0] for array in arrays for names in array if len(names) == 1}
    sizes = {a.upper(): units[a] for a in cut} | {f"{a}x": size for a, size in cut.items()}
    given: dict[str, Any] = {name: size for name, size in sizes.items() if name not in shown}
    mapped = [ArrayMapping(*(CompoundFactor(*n) if len(n) > 1 else n[0] for n in array)) for array in arrays]
    return SdyShardingRule(
        tuple(mapped[:-1]),
        tuple(mapped[-1:]),
        reduction_factors=tuple(name for name in ordered if name in summed),
        need_replication_factors=tuple(name for name in ordered if name in whole),
        **given,
    )


def result_sharding(function: str, axes: Layout, *avals: Any) -> Any:
    """Return the sharding of the result's type: on a mesh of explicit axes rows and columns stay where they are.

    Where one mesh axis splits both, the rows do. Groups and what is summed are whole.
    """
    check_summed(function, *avals)
    over: dict[str, Any] = {}
    used: set[str] = set()
    for letters, aval in zip(axes.operands, avals):
        for axis, names in zip(letters, aval.sharding.spec):
            taken = set(_names(names))
            if axis in axes.result and axis not in axes.summed and axis not in over and used.isdisjoint(taken):
                over[axis] = names
                used |= taken
    base = next((a.sharding for a in avals if not a.sharding.mesh.empty), avals[0].sharding)
    return base.update(spec=P(*(over.get(axis) for axis in axes.result)))


def check_summed(function: str, *avals: Any) -> None:
    """Refuse what a mesh of explicit axes still has in parts that are not summed."""
    for aval in avals:
        spec = aval.sharding.spec
        if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
            raise ValueError(
                f"{function}: operands must be neither unreduced nor reduced over mesh axes, got {aval}; "
                "jax.sharding.reshard them first"
            )


def _names(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _position(mesh: Any, over: Sequence[str]) -> Any:
    """Return a device's number along the mesh axes that one axis of an array is split over."""
    number: Any = 0
    for name in over:
        number = number * mesh.shape[name] + jax.lax.axis_index(name)
    return number


def _placed(mesh: Any, arrays: Any, units: dict[str, int]) -> dict[str, tuple[str, ...]]:
    """Return the mesh axes of each axis: those of the first array that has it split, where that divides it."""
    over: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for letters, array in arrays:
        for axis, names in zip(letters.lower(), array.sharding.spec):
            wanted = _names(names)
            if not wanted or axis in over or axis not in units or not used.isdisjoint(wanted):
                continue
            if units[axis] % _split.mesh_size(mesh, wanted) == 0:
                over[axis] = wanted
                used.update(wanted)
    return over
