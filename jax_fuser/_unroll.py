"""Scans with `unroll`: as many steps of the body as it says become straight code, which is one kernel where it can be.

XLA unrolls only later, when each step has become a call with its operands and results in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax import lax

from jax_fuser._varying import axes_of

# Equations of the steps that are written out.
_MOST = 512


def opened(eqn: Any) -> Any | None:
    """Return what a `scan` equation is without `unroll`, as a closed jaxpr; None where it must stay as it is."""
    length, unroll, body = (eqn.params[name] for name in ("length", "unroll", "jaxpr"))
    if not isinstance(length, int) or length < 1 or eqn.effects or body.consts:
        return None
    unroll = min(int(unroll), length)
    if unroll < 2 or unroll * len(body.jaxpr.eqns) > _MOST or placed(eqn):
        return None
    avals = [v.aval for v in eqn.invars]
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals]
    closed = jax.make_jaxpr(lambda *args: _run(eqn.params, unroll, args))(*given)
    return None if closed.consts else closed


def placed(eqn: Any) -> bool:
    """Whether operands are parts of arrays on a mesh, or split over one."""
    avals = [v.aval for v in eqn.invars]
    return any(axes_of(a) or any(a.sharding.spec) for a in avals)


def scan_parts(params: Any, args: Sequence[Any]) -> list[list[Any]]:
    """Return constants, what is carried, and what has an element for each step; parameters differ by JAX version."""
    if "ft_in" in params:
        return [[*part] for part in params["ft_in"].update(args).unpack()]
    consts, carry = params["num_consts"], params["num_carry"]
    return [[*args[:consts]], [*args[consts:][:carry]], [*args[consts + carry :]]]


def _run(params: Any, unroll: int, args: Sequence[Any]) -> list[Any]:
    length, reverse, jaxpr = (params[name] for name in ("length", "reverse", "jaxpr"))
    consts, carry, xs = scan_parts(params, args)
    body = jax.extend.core.jaxpr_as_fun(jaxpr)

    def steps(carry: Sequence[Any], xs: Sequence[Any], count: int) -> tuple[list[Any], list[Any]]:
        """Take steps with each of the first elements of `xs`, from the last one on if `reverse`."""
        results: list[Any] = [None] * count
        for i in reversed(range(count)) if reverse else range(count):
            out = body(*consts, *carry, *(lax.index_in_dim(x, i, keepdims=False) for x in xs))
            carry, results[i] = out[: len(carry)], out[len(carry) :]
        return [*carry], [jnp.stack(parts) for parts in zip(*results)]

    times, rest = divmod(length, unroll)
    begin, end = (rest, length) if reverse else (0, length - rest)
    first = [lax.slice_in_dim(x, begin, end) for x in xs]
    if times == 1:
        carry, made = steps(carry, first, unroll)
    else:
        cut = [x.reshape(times, unroll, *x.shape[1:]) for x in first]
        carry, made = lax.scan(lambda carry, xs: steps(carry, xs, unroll), [*carry], cut, times, reverse)
        made = [y.reshape(times * unroll, *y.shape[2:]) for y in made]
    if rest:
        begin, end = (0, rest) if reverse else (length - rest, length)
        carry, last = steps(carry, [lax.slice_in_dim(x, begin, end) for x in xs], rest)
        made = [lax.concatenate([b, a] if reverse else [a, b], 0) for a, b in zip(made, last)]
    return [*carry, *made]
