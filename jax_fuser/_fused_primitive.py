"""The primitive that each fused region is one call of, and what JAX's transforms make of it.

A jaxpr is cut into regions (`_regions`), each of which becomes one equation of `fused_p`. The primitive's rules trace
the derivative, transpose or batch of a region's jaxpr and cut that into regions again, so every transform nests, and
what it brings (the sum of a broadcast's cotangent, say) is fused like all else. A region's derivative takes the
region's inputs: nothing else is kept for the backward pass, its kernel computes the rest again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.extend
from jax.experimental import jet
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, Var, new_jaxpr_eqn
from jax.interpreters import ad, batching
from jax.interpreters import partial_eval as pe

from jax_fuser import _bodies, _flatten, _names, _random, _regions, _split, _trace, _trace_writer
from jax_fuser._eager import one_operation
from jax_fuser._fused_lowering import plain, register_lowerings

fused_p = jax.extend.core.Primitive(_trace.FUSED)
fused_p.multiple_results = True


def run(
    closed: Any,
    args: Sequence[Any],
    name: str,
    linear: Iterable[int] = (),
    min_elements: int = 0,
    info: DebugInfo | None = None,
) -> list[Any]:
    """Evaluate a closed jaxpr with its regions fused; it is linear in the arguments numbered `linear`.

    `min_elements`: regions of fewer stay with XLA, on CPUs of very few: see `_trace.is_small`. `info`: the user's names
    of the arguments and results.
    """
    flat = _flatten.flatten(closed)
    arguments = flat.invars[len(flat.consts) :]
    jaxpr = fused_jaxpr(flat, name, [arguments[i] for i in linear], min_elements=min_elements, info=info)
    return jax.core.eval_jaxpr(jaxpr, (), *flat.consts, *args)


def run_program(jaxpr: Any, args: Sequence[Any], name: str, program: str) -> list[Any]:
    """Run a flat closed jaxpr as exactly this program, whose inputs and outputs are those of the jaxpr in order."""
    linear = (False,) * len(args)
    results: list[Any] = fused_p.bind(
        *args, jaxpr=jaxpr, name=name, linear=linear, mesh=_split.needs_devices(), min_elements=0, program=program
    )
    return results


def fused_jaxpr(
    flat: _flatten.Flat,
    name: str,
    linear: Sequence[Var],
    draws: _regions.Draws = "with readers",
    leave_products: bool = False,
    min_elements: int = 0,
    info: DebugInfo | None = None,
) -> Jaxpr:
    """Return the jaxpr in which each region is one equation of `fused_p`; the rest is as for `_regions.partition`."""
    depends = _regions.dependent(flat.eqns, {*linear, *flat.linear})
    how = (draws, leave_products, min_elements)
    given = (flat.invars[len(flat.consts) :], flat.outvars)

    def fuse_body(body: _flatten.Flat) -> Jaxpr:
        return fused_jaxpr(body, name, (), *how)

    eqns = []
    for step in _regions.partition(flat, linear, draws, leave_products):
        if isinstance(step, _regions.Region):
            params = {
                "jaxpr": ClosedJaxpr(_jaxpr(step.invars, step.outvars, step.eqns, info, given), ()),
                "name": name,
                "linear": tuple(v in depends for v in step.invars),
                "mesh": _split.needs_devices(),
                "min_elements": min_elements,
            }
            last = step.eqns[-1]
            step = new_jaxpr_eqn(step.invars, step.outvars, fused_p, params, frozenset(), last.source_info, last.ctx)
        elif _trace.unsupported(step) is not None:  # else XLA fuses it with its neighbours
            step = _bodies.fused(step, fuse_body)
        eqns.append(step)
    return _jaxpr(flat.invars, flat.outvars, eqns)


def _jaxpr(invars: Any, outvars: Any, eqns: Any, info: Any = None, given: tuple[Any, Any] = ((), ())) -> Jaxpr:
    """Return a jaxpr with what is known of the names of what is `given`, the arguments and results of a whole."""
    own = DebugInfo("fuse", "fuse", None, None) if info is None else _names.debug_info(info, given, invars, outvars)
    return Jaxpr((), invars, outvars, eqns, debug_info=own)


def jit_is_off() -> bool:
    config: Any = jax.config
    return config.jax_disable_jit


@functools.lru_cache(maxsize=4096)
def _compiled(**params: Any) -> Callable[..., list[Any]]:
    return jax.jit(one_operation(lambda *args: fused_p.bind(*args, **params), params["name"]))


def _impl(*args: Any, **params: Any) -> list[Any]:
    if jit_is_off():
        return plain(*args, **params)
    try:
        return _compiled(**params)(*args)
    except FloatingPointError:  # jax.debug_nans: the operation of the region at fault has a better name
        plain(*args, **params)
        raise


def _abstract_eval(*_: Any, jaxpr: Any, **__: Any) -> list[Any]:
    # Traced in place: sharding and manual axes are those of this call.
    return list(jaxpr.out_avals)


# Transforms. Each traces the transformed jaxpr and runs it with regions of its own.


def _merged(size: int, *parts: tuple[Sequence[int], Sequence[Any]]) -> list[Any]:
    """Return `size` values, each part being (positions, values)."""
    merged: list[Any] = [None] * size
    for positions, values in parts:
        for i, value in zip(positions, values):
            merged[i] = value
    return merged


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    jaxpr, name = params["jaxpr"], params["name"]
    has_product = _trace.has_product(jaxpr.jaxpr) and "program" not in params
    zeros: list[Any] = [ad.Zero(aval.to_tangent_aval()) for aval in jaxpr.out_avals]
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    reached = _regions.dependent(jaxpr.jaxpr.eqns, {jaxpr.jaxpr.invars[i] for i in moving})
    outvars = enumerate(jaxpr.jaxpr.outvars)
    changing = [k for k, v in outvars if v in reached and zeros[k].aval.dtype != jax.dtypes.float0]
    if not changing:
        return fused_p.bind(*primals, **params), zeros
    rest = [i for i in range(len(primals)) if i not in moving]

    def tangents_out(*args: Any) -> Any:
        fixed = [args[i] for i in rest]

        def f(*moved: Any) -> list[Any]:
            out = plain(*_merged(len(primals), (rest, fixed), (moving, moved)), jaxpr=jaxpr)
            return [out[k] for k in (range(len(zeros)) if has_product else changing)]

        results, out = jax.jvp(f, tuple(args[i] for i in moving), args[len(primals) :])
        # A product is computed once, for the results and for their tangents.
        return [*results, *(out[k] for k in changing)] if has_product else out

    args = (*primals, *(tangents[i] for i in moving))
    closed = jax.make_jaxpr(tangents_out)(*args)
    apart = None if has_product else _with_draws_apart(closed.jaxpr, params)
    if apart is not None:
        fixed = [primals[i] for i in rest]

        def of_moving(*moved: Any) -> list[Any]:
            return jax.core.eval_jaxpr(apart, (), *_merged(len(primals), (rest, fixed), (moving, moved)))

        results, out = jax.jvp(of_moving, [primals[i] for i in moving], [tangents[i] for i in moving])
        return results, _merged(len(zeros), (range(len(zeros)), zeros), (changing, [out[k] for k in changing]))
    results = [] if has_product else fused_p.bind(*primals, **params)
    moved = range(len(primals), len(args))
    out = run(closed, args, f"{name}_jvp", moved, params["min_elements"])
    if has_product:
        results, out = out[: len(zeros)], out[len(zeros) :]
    return results, _merged(len(zeros), (range(len(zeros)), zeros), (changing, out))


def _with_draws_apart(tangents: Jaxpr, params: Any) -> Jaxpr | None:
    """Return a region as several, that of random bits for itself, where its tangents need what is made of them.

    They would be drawn a second time; None where there is nothing to part.
    """
    needed = _regions.live(tangents.eqns, tangents.outvars)
    if "program" in params or not any(_random.draws(_trace_writer.label(eqn)) for eqn in needed):
        return None
    jaxpr = params["jaxpr"].jaxpr
    flat = _flatten.Flat(jaxpr.invars, jaxpr.outvars, jaxpr.eqns, [])
    linear = [v for v, is_linear in zip(jaxpr.invars, params["linear"]) if is_linear]
    apart = fused_jaxpr(flat, params["name"], linear, "apart", min_elements=params["min_elements"])
    return apart if len(apart.eqns) > 1 else None


def _transpose(cotangents: Any, *args: Any, jaxpr: Any, name: str, min_elements: int, **_: Any) -> list[Any]:
    invars, outvars = jaxpr.jaxpr.invars, jaxpr.jaxpr.outvars
    unknown = [i for i, a in enumerate(args) if ad.is_undefined_primal(a)]
    known = [i for i in range(len(args)) if i not in unknown]
    given = [k for k, ct in enumerate(cotangents) if type(ct) is not ad.Zero]
    live = _regions.live(jaxpr.jaxpr.eqns, [outvars[k] for k in given])
    needed = {v for eqn in live for v in _regions.variables(eqn)}
    wanted = [i for i in unknown if invars[i] in needed]
    zeros = [ad.Zero(args[i].aval.to_ct_aval()) for i in unknown]
    if not wanted:
        return _merged(len(args), (unknown, zeros))

    def cotangents_in(*values: Any) -> Any:
        points = [ad.instantiate_zeros(ad.Zero(args[i].aval)) for i in unknown]

        def f(*moved: Any) -> list[Any]:
            merged = _merged(len(args), (known, values), (unknown, points), (wanted, moved))
            out = plain(*merged, jaxpr=jaxpr)
            return [out[k] for k in given]

        return jax.vjp(f, *(points[unknown.index(i)] for i in wanted))[1](list(values[len(known) :]))

    values = (*(args[i] for i in known), *(cotangents[k] for k in given))
    given_last = range(len(known), len(values))
    out = run(jax.make_jaxpr(cotangents_in)(*values), values, f"{name}_transpose", given_last, min_elements)
    return _merged(len(args), (unknown, zeros), (wanted, out))


def _batch(
    args: Any, dims: Any, *, jaxpr: Any, name: str, linear: Any, min_elements: int, **_: Any
) -> tuple[list[Any], list[int | None]]:
    batched = [i for i, d in enumerate(dims) if d is not None]
    reached = _regions.dependent(jaxpr.jaxpr.eqns, {jaxpr.jaxpr.invars[i] for i in batched})
    follows = [v in reached for v in jaxpr.jaxpr.outvars]
    # A batch axis stays where it is, as far as the rank allows; moving it would be a transpose in the kernel.
    places = {dims[i] for i in batched}
    place = places.pop() if len(places) == 1 else 0
    out_dims = [min(place, len(aval.shape)) if f else None for aval, f in zip(jaxpr.out_avals, follows)]
    mapped = jax.vmap(functools.partial(plain, jaxpr=jaxpr), in_axes=tuple(dims), out_axes=out_dims)
    marks = [i for i, is_linear in enumerate(linear) if is_linear]
    info = jaxpr.jaxpr.debug_info
    return run(jax.make_jaxpr(mapped)(*args), args, name, marks, min_elements, info), out_dims


def _jet(primals: Any, series: Any, *, jaxpr: Any, name: str, min_elements: int, **_: Any) -> tuple[Any, Any]:
    """Taylor series of a result from those of the operands, all of one order."""
    order = len(series[0])

    def taylor(*args: Any) -> Any:
        terms = args[len(primals) :]
        own = [list(terms[i * order : (i + 1) * order]) for i in range(len(primals))]
        f = functools.partial(plain, jaxpr=jaxpr)
        return jet.jet(f, args[: len(primals)], own, factorial_scaled=False)

    args = (*primals, *itertools.chain.from_iterable(series))
    out = run(jax.make_jaxpr(taylor)(*args), args, f"{name}_jet", (), min_elements)
    count = len(jaxpr.out_avals)
    return out[:count], [out[count + i * order : count + (i + 1) * order] for i in range(count)]


def _with_results(params: Any, wanted: Sequence[bool]) -> tuple[list[bool], Any]:
    """Return which inputs some results need, and the parameters of the call that has these results only."""
    jaxpr = params["jaxpr"].jaxpr
    outvars = _kept(jaxpr.outvars, wanted)
    eqns = _regions.live(jaxpr.eqns, outvars)
    needed = {v for e in eqns for v in _regions.variables(e)} | {*outvars}
    used = [v in needed for v in jaxpr.invars]
    given = (jaxpr.invars, jaxpr.outvars)
    closed = ClosedJaxpr(_jaxpr(_kept(jaxpr.invars, used), outvars, eqns, jaxpr.debug_info, given), ())
    return used, {**params, "jaxpr": closed, "linear": tuple(_kept(params["linear"], used))}


def _kept(values: Iterable[Any], wanted: Iterable[bool]) -> list[Any]:
    return [value for value, is_wanted in zip(values, wanted) if is_wanted]


def _part(eqn: Any, wanted: Sequence[bool]) -> tuple[list[bool], Any]:
    used, params = _with_results(eqn.params, wanted)
    invars, outvars = _kept(eqn.invars, used), _kept(eqn.outvars, wanted)
    return used, new_jaxpr_eqn(invars, outvars, fused_p, params, frozenset(), eqn.source_info, eqn.ctx)


def _drop_unused(used_outputs: Sequence[bool], *rest: Any) -> tuple[list[bool], Any]:
    eqn = rest[-1]  # JAX 0.12 passes which inputs are live before it
    if not any(used_outputs):
        return [False] * len(eqn.invars), None
    if "program" in eqn.params:
        return [True] * len(eqn.invars), eqn
    return _part(eqn, used_outputs)


# Partial evaluation. In a function that is linear in some arguments only, as a `jvp` is, nothing marks what depends on
# them: a region may make that together with what does not. The latter is known, or its transpose would be wrong.


def _unknown_results(unknown: Sequence[bool], params: Any) -> list[bool]:
    jaxpr = params["jaxpr"].jaxpr
    reached = _regions.dependent(jaxpr.eqns, _kept(jaxpr.invars, unknown))
    return [(any(unknown) if "program" in params else v in reached) for v in jaxpr.outvars]


def _partial_eval(trace: Any, *tracers: Any, **params: Any) -> list[Any]:
    unknown = _unknown_results([not t.is_known() for t in tracers], params)
    if all(unknown) or not any(unknown):
        results: list[Any] = trace.default_process_primitive(fused_p, tracers, params)
        return results
    known = [not u for u in unknown]
    parts = []
    for wanted in (known, unknown):
        used, part = _with_results(params, wanted)
        parts.append(trace.default_process_primitive(fused_p, _kept(tracers, used), part))
    numbers = range(len(unknown))
    return _merged(len(unknown), (_kept(numbers, known), parts[0]), (_kept(numbers, unknown), parts[1]))


def _partial_eval_of_checkpoint(policy: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> Any:
    unknown_out = _unknown_results(unknown, eqn.params)
    known_eqn = None
    if not all(unknown_out):
        known_eqn = _part(eqn, [not u for u in unknown_out])[1] if any(unknown_out) else eqn
    is_saved = policy(fused_p, *(v.aval for v in eqn.invars), **eqn.params)
    # A policy answers with a bool or with an object of one of JAX's classes.
    is_saved = is_saved is not False and type(is_saved).__name__ != "RecomputeType"
    if not is_saved or all(unknown_out):
        stored = [v for v, has in zip(eqn.invars, instantiated) if not has and isinstance(v, Var)]
        return known_eqn, eqn, unknown_out, [True] * len(unknown_out), stored
    if not any(unknown_out):
        return known_eqn, None, unknown_out, unknown_out, []
    used, rest = _part(eqn, unknown_out)
    stored = [v for v, has in zip(rest.invars, _kept(instantiated, used)) if not has and isinstance(v, Var)]
    return known_eqn, rest, unknown_out, unknown_out, stored


fused_p.def_impl(_impl)
fused_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[fused_p] = _jvp
ad.primitive_transposes[fused_p] = _transpose
batching.primitive_batchers[fused_p] = _batch
jet.jet_rules[fused_p] = _jet  # type: ignore[assignment]
pe.dce_rules[fused_p] = _drop_unused
pe.custom_partial_eval_rules[fused_p] = _partial_eval
pe.partial_eval_jaxpr_custom_rules[fused_p] = _partial_eval_of_checkpoint
register_lowerings(fused_p, fused_jaxpr)
