"""Open the calls of a jaxpr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import DropVar, JaxprEqn, Literal, Var, gensym, new_jaxpr_eqn

from jax_fuser import _batch_indices, _linear_scans, _random, _trace, _unroll


def _opened_branch(eqn: JaxprEqn) -> Any | None:
    """Return the branch of `lax.platform_dependent` that is taken wherever XLA compiles; None where there are several.

    `jnp.diagonal` has one for Mosaic, which is no platform of XLA's.
    """
    branch: Any = eqn.params["branches"][-1]
    is_default = eqn.params.get("branches_platforms") == (("mosaic",), None)
    return branch if is_default and not branch.consts and not eqn.effects else None


def _opened_scan(eqn: JaxprEqn) -> Any | None:
    return _linear_scans.opened(eqn) or _unroll.opened(eqn)


# Primitives that we compute in another way: what makes a closed jaxpr without constants, of the last operands of an
# equation, or None.
OPENED: dict[str, Callable[[JaxprEqn], Any | None]] = {
    "random_bits": _random.opened,
    "scan": _opened_scan,
    "cond": _opened_branch,
}


@dataclass
class Flat:
    """A jaxpr without calls and without constants: those are inputs, `consts`, in front of the others."""

    invars: list[Var]
    outvars: list[Any]
    eqns: list[JaxprEqn]
    consts: list[Any]
    # Inputs of fused calls that were linear in these values.
    linear: set[Var] = field(default_factory=set)


def flatten(closed: Any, *, constants: bool = True) -> Flat:
    """Open every call without side effects or placement of its own; the rest is kept as it is.

    Without `constants`, calls that hold some are kept, too, so that `consts` has no more than `closed` has.
    """
    jaxpr = closed.jaxpr
    flat = Flat([], [], [], list(closed.consts))
    constvars = list(jaxpr.constvars)
    new_var = gensym()

    def open_call(jaxpr: Any, env: dict[Var, Any], scopes: Sequence[Any]) -> list[Any]:
        def read(atom: Any) -> Any:
            return atom if isinstance(atom, Literal) else env[atom]

        for eqn in jaxpr.eqns:
            info = eqn.source_info
            for scope in scopes:
                info = info.replace(name_stack=scope + info.name_stack)
            invars = [read(v) for v in eqn.invars]
            name = eqn.primitive.name
            body = _trace.body_of(eqn) if name in _trace.CALLS else None
            if body and (constants or not body[1]) and not eqn.effects and _trace.own_placement(eqn) is None:
                inner = body[0]
                consts = [new_var(v.aval) for v in inner.constvars]
                constvars.extend(consts)
                flat.consts.extend(body[1])
                inner_env = dict(zip([*inner.constvars, *inner.invars], [*consts, *invars]))
                if name == _trace.FUSED:
                    marks = zip(invars, eqn.params["linear"])
                    flat.linear.update(v for v, is_linear in marks if is_linear and isinstance(v, Var))
                stack = info.name_stack
                inside = stack.extend(eqn.params["name"]) if name in ("jit", "pjit") else stack
                results = open_call(inner, inner_env, [inside])
                env.update(zip(eqn.outvars, results))
                continue
            opened = OPENED[name](eqn) if name in OPENED else None
            if opened is not None:
                inner = opened.jaxpr
                operands = invars[len(invars) - len(inner.invars) :]
                env.update(zip(eqn.outvars, open_call(inner, dict(zip(inner.invars, operands)), [info.name_stack])))
                continue
            outvars = [v if isinstance(v, DropVar) else new_var(v.aval) for v in eqn.outvars]
            env.update(zip(eqn.outvars, outvars))
            flat.eqns.append(new_jaxpr_eqn(invars, outvars, eqn.primitive, eqn.params, eqn.effects, info, eqn.ctx))
        return [read(v) for v in jaxpr.outvars]

    flat.outvars = open_call(jaxpr, {v: v for v in (*jaxpr.constvars, *jaxpr.invars)}, [])
    flat.eqns = _batch_indices.batched(flat.eqns)
    flat.invars = [*constvars, *jaxpr.invars]
    return flat
