"""Bodies of what stays with XLA: loops, branches, checkpoints and custom derivatives get regions of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn

from jax_fuser import _flatten

# By primitive: the parameters that hold what it runs. A derivative rule that a body brings is fused where it is traced.
BODIES = {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
    "remat2": ("jaxpr",),
    "checkpoint": ("jaxpr",),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_vjp_call": ("call_jaxpr",),
}


def fused(eqn: JaxprEqn, fuse: Callable[[_flatten.Flat], Jaxpr]) -> JaxprEqn:
    """Return the equation with its bodies fused by `fuse`; the equation itself where it has none."""
    params = {key: eqn.params[key] for key in BODIES.get(eqn.primitive.name, ())}
    if not params:
        return eqn
    new = {k: tuple(_body(b, fuse) for b in v) if isinstance(v, tuple) else _body(v, fuse) for k, v in params.items()}
    return eqn.replace(params={**eqn.params, **new})


def _body(body: Any, fuse: Callable[[_flatten.Flat], Jaxpr]) -> Any:
    flat = _flatten.flatten(_flatten.closed(body))
    count = len(flat.consts)
    jaxpr = fuse(flat)
    parts = {"constvars": flat.invars[:count], "invars": flat.invars[count:], "outvars": jaxpr.outvars}
    if not isinstance(body, Jaxpr):
        return body.replace(jaxpr=body.jaxpr.replace(eqns=jaxpr.eqns, **parts), consts=flat.consts)
    if hasattr(body, "consts"):  # JAX 0.12: open and closed ones are one type
        parts["consts"] = flat.consts
    return body.replace(eqns=jaxpr.eqns, **parts)
