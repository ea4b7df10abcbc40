"""Run a program on a mesh under plain `jit` with sharded arguments: each device runs its part.

A custom call's text has the shapes of whole arrays, so XLA by itself would gather them on every device. The call is
wrapped in `custom_partitioning`: Shardy propagates shardings through it by a rule made of the program's axes, and the
partitioner then asks for the program on one device's part. Where that folds a split axis, each device folds its part
and the parts are joined across the mesh. Inside `shard_map` and on one device nothing is wrapped.
JAX's persistent compilation cache does not keep what is wrapped: that is so for every `custom_partitioning`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from jax.interpreters import mlir
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_fuser import _axes, _ffi

# How the parts of a reduction join across devices. A reduction without an entry needs its axes whole.
_COLLECTIVES = {"reduce_sum": jax.lax.psum, "reduce_max": jax.lax.pmax, "reduce_min": jax.lax.pmin}
_LOGICAL_COLLECTIVES = {
    "reduce_max": jax.lax.pmax,
    "reduce_or": jax.lax.pmax,
    "reduce_min": jax.lax.pmin,
    "reduce_and": jax.lax.pmin,
}

NO_MESH = jax.sharding.AbstractMesh((), ())

part_p = jax.extend.core.Primitive("jax_fuser_part")
part_p.multiple_results = True
part_p.def_abstract_eval(lambda *_, text, shapes: [jax.core.ShapedArray(*shape) for shape in shapes])


def _lower_part(ctx: Any, *operands: Any, text: str, shapes: Any, platform: str) -> Sequence[Any]:
    return _ffi.emit_program(ctx, operands, text, platform=platform)


for _platform in ("cpu", "cuda"):
    mlir.register_lowering(part_p, functools.partial(_lower_part, platform=_platform), platform=_platform)


@functools.cache
def needs_devices() -> Any:
    """Return a jaxpr that tells JAX to name the devices when it lowers an equation that has this as a parameter."""
    same = custom_partitioning(lambda x: x)
    same.def_partition(lambda *_: None, sharding_rule="->")
    return jax.make_jaxpr(same)(0.0)


needs_devices()  # now, so that no first call waits for it; it starts no backend


def is_on_a_mesh(ctx: Any) -> bool:
    """Whether the compiler will split the program that is being lowered, over a mesh that is known by name."""
    if ctx.module_context.lowering_parameters.for_export:
        return False  # the partitioner's question needs this process
    context = ctx.module_context.axis_context
    devices = getattr(context, "device_assignment", None)
    mesh = getattr(context, "abstract_mesh", None)
    return devices is not None and len(devices) > 1 and mesh is not None and not mesh.empty


def split(builder: _axes.Builder, text: str, avals: Sequence[Any]) -> Callable[..., list[Any]]:
    """Return a program as a function of whole arrays that a mesh may split; `avals` are those of its outputs."""
    inputs = [builder.axes(v) for v in builder.inputs]
    outputs = [builder.axes(v) for v in builder.outputs]
    classes = list(dict.fromkeys(axis for axes in (*inputs, *outputs) for axis in axes))
    names = {axis: f"i{n}" for n, axis in enumerate(classes)}
    whole = {axis for axis in classes if builder.extent(axis) == 1} | builder.counted()
    whole.update(a for v, fold in builder.folds.items() if _collective(fold) is None for a in builder.folded(v))
    dtypes = {
        **{value: fold.dtype for value, fold in builder.folds.items()},
        **{value: aval.dtype for value, aval in zip(builder.outputs, avals)},
    }

    def bind(text: str, values: Sequence[int], extents: dict[int, int], operands: Sequence[Any]) -> list[Any]:
        shapes = tuple((builder.shape(v, extents), dtypes[v]) for v in values)
        return part_p.bind(*operands, text=text, shapes=shapes)

    def partition(mesh: Any, operands: Any, results: Any) -> Any:
        placed = place(mesh, [*zip(outputs, results), *zip(inputs, operands)])
        extents = {axis: builder.extent(axis) // mesh_size(mesh, over) for axis, over in placed.items()}

        def sharding(axes: list[int]) -> NamedSharding:
            return NamedSharding(mesh, P(*(placed.get(axis) for axis in axes)))

        def run(*operands: Any) -> list[Any]:
            made: dict[int, Any] = {}
            known: dict[int, Any] = {}
            for stage in builder.stages(placed):
                wanted = [*stage.folds, *stage.outputs]
                program = builder.part(extents, [*known], wanted)
                arguments = (*operands, *known.values())
                results: list[Any] = []
                # A device's part is no array of the explicit mesh that may be set here.
                with jax.sharding.use_abstract_mesh(NO_MESH):
                    if program.text is not None:
                        results = bind(program.text, [wanted[i] for i in program.first], extents, arguments)
                    made.update(zip(wanted, program.results(arguments, results)))
                    for value in stage.folds:
                        over = tuple(name for axis in builder.folded(value) for name in placed.get(axis, ()))
                        known[value] = made[value] = _join(builder.folds[value], made[value], over)
            return [made[value] for value in builder.outputs]

        return mesh, run, [*map(sharding, outputs)], tuple(map(sharding, inputs))

    def place(mesh: Any, arrays: Any) -> dict[int, tuple[str, ...]]:
        """Return the mesh axes of each class: the first sharding that an array brings for it, where that divides."""
        placed: dict[int, tuple[str, ...]] = {}
        used: set[str] = set()
        for axes, array in arrays:
            for axis, names in zip(axes, array.sharding.spec):
                over = (names,) if isinstance(names, str) else tuple(names or ())
                if not over or axis in placed or axis in whole or not used.isdisjoint(over):
                    continue
                if builder.extent(axis) % mesh_size(mesh, over) == 0:
                    placed[axis] = over
                    used.update(over)
        return placed

    f = custom_partitioning(lambda *operands: bind(text, builder.outputs, {}, operands))
    f.def_partition(partition, sharding_rule=lambda mesh, *_: _rule(builder, names, whole, mesh))
    return f


def _rule(builder: _axes.Builder, names: dict[int, str], whole: set[int], mesh: Any) -> SdyShardingRule:
    """Return how shardings pass through a program whose axes have these names; those in `whole` are not split."""
    sizes: dict[str, int] = {}
    kept_whole: dict[str, bool] = {}  # by name, in the order in which the rule mentions them

    def factor(axis: int, extent: int, copy: int) -> Any:
        """Return the class's name, another one for each further axis of an array; where an axis is longer, with a
        second factor for the rest of it, or as a whole.
        """
        name = names[axis] + f"c{copy}" * (copy > 0)
        own = builder.extent(axis)
        rest = f"{name}x{extent // own}"
        if extent != own and cuts_a_mesh_axis(mesh, own):
            kept_whole[rest] = True
            return rest
        kept_whole.setdefault(name, axis in whole)
        if extent == own:
            return name
        sizes.update({name: own, rest: extent // own})
        kept_whole[rest] = True
        return CompoundFactor(name, rest)

    def mapping(values: Sequence[int]) -> tuple[ArrayMapping, ...]:
        arrays = []
        for v in values:
            axes = builder.axes(v)
            copies = [axes[:i].count(axis) for i, axis in enumerate(axes)]
            arrays.append(ArrayMapping(*map(factor, axes, builder.shape(v, {}), copies)))
        return tuple(arrays)

    operands, results = mapping(builder.inputs), mapping(builder.outputs)
    needed_whole = tuple(name for name, is_whole in kept_whole.items() if is_whole)
    # A size that some array shows must not be given.
    shown = {name for array in (*operands, *results) for name in array if isinstance(name, str)}
    given: dict[str, Any] = {name: size for name, size in sizes.items() if name not in shown}
    return SdyShardingRule(operands, results, need_replication_factors=needed_whole, **given)


def off_parts_of_axes(x: Any, mesh: Any) -> Any:
    """Return an array whose axes lie whole on every device where a part of a mesh axis, nameless, might split them."""
    over = [None if cuts_a_mesh_axis(mesh, size) else P.UNCONSTRAINED for size in x.shape]
    automatic = all(kind == jax.sharding.AxisType.Auto for kind in mesh.axis_types)  # others are split whole
    if None not in over or not automatic:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*over)))


def cuts_a_mesh_axis(mesh: Any, blocks: int) -> bool:
    """Whether blocks over a mesh would go over a part of one of its axes, which has no name in JAX."""
    return any(1 < math.gcd(blocks, size) < size for size in mesh.shape.values())


def _collective(fold: _axes.Fold) -> Callable[..., Any] | None:
    return (_LOGICAL_COLLECTIVES if fold.dtype == bool else _COLLECTIVES).get(fold.op)


def _join(fold: _axes.Fold, part: Any, over: tuple[str, ...]) -> Any:
    collective = _collective(fold)
    assert collective is not None
    if fold.dtype == bool:
        return collective(part.astype("int32"), over).astype(bool)
    return collective(part, over)


def mesh_size(mesh: Any, axes: Sequence[str]) -> int:
    """Return the number of devices along some axes of a mesh."""
    size = 1
    for axis in axes:
        size *= mesh.shape[axis]
    return size
