"""Bodies of what stays with XLA: loops, branches, checkpoints and custom derivatives get regions of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from jax_fuser import _trace
from jax_fuser._flatten import Flat, flatten

# By primitive: the parameters that hold what it runs. A derivative rule that a body brings is fused where it is traced.
BODIES = {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
    "remat2": ("jaxpr",),
    "checkpoint": ("jaxpr",),
    "shard_map": ("jaxpr",),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_vjp_call": ("call_jaxpr",),
    **{name: (key,) for name, key in _trace.CALLS.items() if name in ("jit", "pjit")},
}
# Their bodies cannot hold constants.
_OPEN = ("remat2", "checkpoint", "shard_map")


def fused(eqn: JaxprEqn, fuse: Callable[[Flat], Jaxpr]) -> JaxprEqn:
    """Return the equation with its bodies fused by `fuse`; the equation itself where it has none."""
    constants = eqn.primitive.name not in _OPEN

    def new(body: Any) -> Any:
        return tuple(map(new, body)) if isinstance(body, tuple) else _body(body, fuse, constants)

    with _mesh_inside(eqn):
        params = {key: new(eqn.params[key]) for key in BODIES.get(eqn.primitive.name, ())}
    return eqn.replace(params={**eqn.params, **params}) if params else eqn


def _mesh_inside(eqn: JaxprEqn) -> Any:
    """Return the context in which the types of the bodies' values can be used."""
    if eqn.primitive.name != "shard_map":
        return contextlib.nullcontext()
    mesh = eqn.params["mesh"]
    # The parameter's name differs among JAX versions.
    manual = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes", ()))
    mesh = getattr(mesh, "abstract_mesh", mesh)
    return jax.sharding.use_abstract_mesh(mesh.update_axis_types(dict.fromkeys(manual, jax.sharding.AxisType.Manual)))


def _body(body: Any, fuse: Callable[[Flat], Jaxpr], constants: bool) -> Any:
    is_closed = hasattr(body, "consts")  # in JAX 0.12 every jaxpr is
    flat = flatten(body if is_closed else ClosedJaxpr(body, ()), constants=constants)
    jaxpr = fuse(flat)
    count = len(flat.consts)
    parts = {"constvars": flat.invars[:count], "invars": flat.invars[count:], "outvars": jaxpr.outvars}
    consts = {"consts": flat.consts} if is_closed else {}
    if isinstance(body, Jaxpr):
        return body.replace(eqns=jaxpr.eqns, **parts, **consts)
    return body.replace(jaxpr=body.jaxpr.replace(eqns=jaxpr.eqns, **parts), **consts)
