"""Meshes of explicit axes: what moves rows runs with automatic ones, where the compiler says how.

Results are placed by one rule: what stands for rows, and each column, stays where the operand has it, as far as that
divides the result and no mesh axis is used twice; the rest is whole on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType

from jax_fuser import _split

Names = Sequence[Any]  # of the mesh axes that each axis of an array is split over


def names_of(x: Any) -> list[Any]:
    """Return the explicit mesh axes of each axis of an array."""
    return [*jax.typeof(x).sharding.spec]


def placed_as(grad: Any, sharding: Any) -> Any:
    """On a mesh of explicit axes a gradient lies where its operand does, whose type has `sharding`."""
    same = sharding.mesh.empty or jax.typeof(grad).sharding.spec == sharding.spec
    return grad if same else jax.sharding.reshard(grad, sharding)


def whole_along(x: Any, axis: int) -> Any:
    """Return an array that no explicit mesh axis splits along one of its axes."""
    split = _explicit(x)
    names = [] if split is None else [*split.spec]
    if not names or names[axis] is None:
        return x
    names[axis] = None
    return jax.sharding.reshard(x, split.update(spec=jax.P(*names)))


def automatically(
    f: Callable[..., Any], *args: Any, like: Callable[[Any], Sequence[Names]], keeps: Sequence[int] = ()
) -> Any:
    """Call `f(*args)`, with the mesh automatic inside where an argument is split over explicit axes.

    Where some mesh axes are manual JAX cannot take derivatives of that: there `f` gets whole arguments, but for those
    numbered in `keeps`, which it can multiply as they lie.

    `like(results)` is where the leaves of the results shall lie; those that it has none for are whole.
    """
    split = next(filter(None, map(_explicit, jax.tree.leaves(args))), None)
    if split is None:
        return f(*args)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:  # nobody set one: that of the arrays
        with jax.sharding.use_abstract_mesh(split.mesh):
            return automatically(f, *args, like=like, keeps=keeps)
    if mesh.manual_axes:
        results = f(*(arg if i in keeps else _whole(arg) for i, arg in enumerate(args)))
    else:
        axes = dict.fromkeys(mesh.explicit_axes, AxisType.Auto)
        with jax.sharding.use_abstract_mesh(mesh.update_axis_types(axes)):
            results = f(*_whole(args))
    leaves, tree = jax.tree.flatten(results)
    wanted = [*like(results)]
    wanted += [()] * (len(leaves) - len(wanted))
    specs = [_spec(leaf.shape, names, mesh) for leaf, names in zip(leaves, wanted)]
    return jax.sharding.reshard(results, jax.tree.unflatten(tree, specs))


def _whole(args: Any) -> Any:
    """Return arrays that no explicit axis of the mesh splits; on automatic ones the compiler says where they are."""
    return jax.tree.map(lambda x: jax.sharding.reshard(x, jax.P(*[None] * jax.numpy.ndim(x))), args)


def _explicit(leaf: Any) -> Any:
    """Return the sharding of an array's type if explicit mesh axes split it."""
    if not isinstance(leaf, jax.Array):
        return None
    # An eager array says sooner than its type where it is.
    if not isinstance(leaf, jax.core.Tracer) and not isinstance(leaf.sharding, jax.sharding.NamedSharding):
        return None
    of_type = jax.typeof(leaf).sharding
    return of_type if not of_type.mesh.empty and any(of_type.spec) else None


def _spec(shape: Sequence[int], wanted: Names, mesh: Any) -> jax.P:
    used: set[str] = set()
    over: list[Any] = []
    for size, names in zip(shape, wanted):
        taken = (names,) if isinstance(names, str) else names or ()
        fits = used.isdisjoint(taken) and size % _split.mesh_size(mesh, taken) == 0
        over.append(names if fits else None)
        used.update(taken if fits else ())
    return jax.P(*over)
