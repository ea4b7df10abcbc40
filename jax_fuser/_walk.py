"""Evaluates a function and shows every call of our primitives with the values that it has there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, Literal

from jax_fuser import _trace

Note = Callable[[Any, Sequence[Any], dict[str, Any]], None]
_OURS = "jax_fuser_"
_INLINE = {**_trace.CALLS, "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat2": "jaxpr"}


def walk(f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], note: Note) -> None:
    """Evaluate `f(*args, **kwargs)` op by op; call `note(primitive, operands, params)` for each primitive of ours.

    Loops are gone into once, with the values of their first turn; of branches the one that is taken is seen. What is
    inside of `shard_map` is not. Arguments that are no arrays stay what they are: `f` may be static in them.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = {i: x for i, x in enumerate(leaves) if isinstance(x, (jax.Array, np.ndarray))}

    def flat(*values: Any) -> Any:
        now = dict(zip(arrays, values))
        given, named = jax.tree.unflatten(tree, [now.get(i, x) for i, x in enumerate(leaves)])
        return f(*given, **named)

    closed = jax.make_jaxpr(flat)(*arrays.values())
    _evaluate(closed, list(arrays.values()), note)


def _evaluate(body: ClosedJaxpr | Jaxpr, args: Sequence[Any], note: Note) -> list[Any]:
    jaxpr: Any = getattr(body, "jaxpr", body)
    values = dict(zip(jaxpr.constvars, getattr(body, "consts", ())))
    values.update(zip(jaxpr.invars, args))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    last = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not isinstance(v, Literal)}
    kept = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for i, eqn in enumerate(jaxpr.eqns):
        values.update(zip(eqn.outvars, _results(eqn, [read(v) for v in eqn.invars], note)))
        for v in eqn.invars:  # gives memory back
            if not isinstance(v, Literal) and last[v] == i and v not in kept:
                values.pop(v, None)
        for v in eqn.outvars:  # and what nobody reads
            if v not in last and v not in kept:
                values.pop(v, None)
    return [read(v) for v in jaxpr.outvars]


def _results(eqn: Any, operands: list[Any], note: Note) -> Sequence[Any]:
    name = eqn.primitive.name
    if name.startswith(_OURS):
        note(eqn.primitive, operands, eqn.params)
    body = eqn.params.get(_INLINE.get(name, ""))
    if body is not None and len(getattr(body, "jaxpr", body).invars) == len(operands):
        return _evaluate(body, operands, note)
    if name == "scan":
        if eqn.params["length"] > 0:
            body = eqn.params["jaxpr"]
            # Which operands are sliced: versions of JAX name their number differently.
            shapes = [v.aval.shape for v in body.jaxpr.invars]
            _evaluate(body, [x if np.shape(x) == s else x[0] for x, s in zip(operands, shapes)], note)
    elif name == "while":
        tests, turns = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        _evaluate(eqn.params["cond_jaxpr"], [*operands[:tests], *operands[tests + turns :]], note)
        _evaluate(eqn.params["body_jaxpr"], operands[tests:], note)
    elif name == "cond":
        branches = eqn.params["branches"]
        taken = min(max(int(operands[0]), 0), len(branches) - 1)
        return _evaluate(branches[taken], operands[1:], note)
    # How an equation is bound differs among JAX versions, how a jaxpr is evaluated does not.
    given = {v: x for v, x in zip(eqn.invars, operands) if not isinstance(v, Literal)}
    alone = Jaxpr((), list(given), eqn.outvars, [eqn], debug_info=DebugInfo("walk", name, None, None))
    results: Sequence[Any] = jax.core.eval_jaxpr(alone, (), *given.values())
    return results
