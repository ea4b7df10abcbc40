"""What `fuse` made of a function: an overview on one screen."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Var

from jax_fuser import (
    _bodies,
    _core,
    _ffi,
    _fused_by_xla,
    _quantized_product,
    _random,
    _regions,
    _trace,
    _trace_updates,
    _trace_writer,
    _tuned,
)
from jax_fuser._fuse import Fused, fuse
from jax_fuser._lowered import fused_equations, inner_jaxprs, names_of, platform_of, program_of, stage_text
from jax_fuser._names import Names, arguments_of, identifiers, of_path, paths_of
from jax_fuser._report import CutReport, Explanation, Flow, KernelReport, RegionReport
from jax_fuser._reverse_only import once_p, operands_p

_ARGUMENT, _RESULT = "argument ", "result "


def explain(f: Callable[..., Any], *, platform: str | None = None) -> Callable[..., Explanation]:
    """Say which kernels a function becomes under `fuse`, and what stays with XLA and why.

    Args:
      f: a fused function, anything that calls some (`jax.grad` of one, say), or a plain function, which is then fused;
        static arguments are known of what is jitted or fused with them.
      platform: "cpu" or "cuda"; the default device's if None.

    Returns:
      A function of f's arguments (arrays or `jax.ShapeDtypeStruct`) that returns an `Explanation`. Nothing runs. Its
      repr is an overview; `print` draws the kernels and what flows between them, a notebook shows a picture, which
      `.save("file.svg")` writes; `.regions`, each with `.segments`, and `.cuts` are the facts.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_fuser as jf
      >>> report = jf.explain(lambda x, w: jnp.tanh(x @ w) * 2)(jnp.ones((8, 4)), jnp.ones((4, 8)))
      >>> [(cut.primitive, cut.reason) for cut in report.cuts]
      [('dot_general', 'a matrix product')]
    """
    if not callable(f):
        raise TypeError(f"explain: expected a function, got {type(f).__name__}; write jf.explain(f)(x)")

    @functools.wraps(f)
    def explained(*args: Any, **kwargs: Any) -> Explanation:
        where = platform_of(platform, "explain")
        trace = getattr(f, "trace", None)
        if not isinstance(f, Fused) and callable(trace):  # jitted: it knows its static arguments
            jaxpr = trace(*args, **kwargs).jaxpr
            fused = fuse(jax.extend.core.jaxpr_as_fun(jaxpr), name=getattr(f, "__name__", "function"))
            args, kwargs = tuple(map(_shaped, jaxpr.in_avals)), {}
        else:
            fused = f if isinstance(f, Fused) else fuse(f)
            fused.check(args, kwargs)
            jaxpr = (f.traced if isinstance(f, Fused) else jax.jit(f).trace)(*args, **kwargs).jaxpr
        info = jaxpr.jaxpr.debug_info
        # Those of few elements are ours, and would be part of what a caller fuses.
        if all(_trace.is_small(eqn.params, "") for eqn in fused_equations(jaxpr)):
            jaxpr = fused.traced(*args, **kwargs).jaxpr
        return _explanation(getattr(f, "__name__", "function"), where, jaxpr, info)

    return explained


def _shaped(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _explanation(name: str, platform: str, jaxpr: Any, info: Any) -> Explanation:
    calls = _calls(jaxpr, platform, info)
    keys = [program_of(call.eqn) or str(call.eqn) for call in calls]
    counts = Counter(keys)
    numbers = {key: i for i, key in enumerate(counts)}
    numbers_by_call = {id(call.eqn): numbers[key] for call, key in zip(calls, keys)}

    def label(end: Any) -> str:
        if isinstance(end, str):
            return end
        number = numbers_by_call.get(id(end))
        if number is not None:
            return f"[{number}]"
        return end.primitive.name + " of XLA" * (end.primitive.name not in _trace.OWN_CALLS)

    first = {key: call for key, call in reversed([*zip(keys, calls)])}
    regions = tuple(_region(first[key], counts[key], platform, label) for key in counts)
    cuts = Counter(_cuts(jaxpr, platform))
    return Explanation(
        name,
        platform,
        regions,
        tuple(CutReport(p, n, reason, p in _trace.OWN_CALLS) for (p, reason), n in cuts.items()),
        _ffi.memory_bandwidth(platform),
    )


def _region(call: _Call, count: int, platform: str, label: Callable[[Any], str]) -> RegionReport:
    eqn = call.eqn
    inner = eqn.params["jaxpr"].jaxpr
    program, names = program_of(eqn), _names_of(call)
    shown = program_of(eqn, names)
    inputs: list[str] = []
    segments: tuple[KernelReport, ...] = ()
    readers: dict[str, str] = {}
    if program is not None and shown is not None:
        inputs = re.findall(r"(\w+): ", shown.partition("\n")[0].partition("(")[2])
        target = _ffi.target_text(platform)
        chosen = _tuned.kept(program, target)
        choices = _tuned.choices_of(chosen)
        kernels = _core.facts(shown + chosen, target)
        places = [("output", i) for i in range(len(eqn.outvars))]
        if "program" not in eqn.params:
            places = _trace.write_program(inner, eqn.params["name"])[0].places
        shapes = {name: v.aval.shape for name, v in zip(inputs, inner.invars)}
        outputs = {i: v.aval.shape for (kind, i), v in zip(places, inner.outvars) if kind == "output"}
        shapes.update((value, outputs[i]) for k in kernels for i, value in k["results"])
        segments = tuple(_kernel(k, choices.get(k["name"], ""), shapes) for k in kernels)
        reading: dict[str, list[str]] = defaultdict(list)  # equal results of the function are one of the program
        for number, value in (result for k in kernels for result in k["results"]):
            for place, ends in zip(places, call.readers):
                reading[value] += map(label, ends if place == ("output", number) else ())
        readers = {value: ", ".join(dict.fromkeys(ends)) for value, ends in reading.items() if ends}
    return RegionReport(
        eqn.params["name"],
        len(inner.eqns),
        sum(_ffi.buffer_bytes(v.aval) for v in inner.invars),
        sum(_ffi.buffer_bytes(v.aval) for v in inner.outvars),
        stage_text(program, "segments", platform, shown) if program and shown else "scalars: run as plain XLA ops",
        count,
        tuple(_trace.reductions(inner)),
        segments,
        {value: label(origin) for value, origin in zip(inputs, call.origins)},
        readers,
        sum(_random.makes_bits(_trace_writer.label(e)) for e in inner.eqns),
    )


def _names_of(call: _Call) -> Names:
    """Return names for what a call reads and makes: the caller's, else those of the function that was fused."""
    own = names_of(call.eqn)

    def behind(prefix: str, end: Any) -> str:
        return end.removeprefix(prefix) if isinstance(end, str) and end.startswith(prefix) else ""

    arguments = identifiers(behind(_ARGUMENT, origin) for origin in call.origins)
    paths = [[of_path(behind(_RESULT, end)) for end in ends] for ends in call.readers]
    return Names(
        [given or name for given, name in zip(arguments, own.arguments)],
        [next(filter(None, [*given, name]), "") for given, name in zip(paths, own.results)],
    )


def _kernel(facts: dict[str, Any], tuned: str, shapes: dict[str, Any]) -> KernelReport:
    # Kernels take axes of arrays apart and store a concatenation in parts: what people know is the whole array.
    flows = {}
    for side in ("reads", "writes"):
        found: dict[str, Flow] = {}
        for v, t, shape, n in facts[side]:
            before = found[v].bytes if v in found else 0
            if t == "u4" and v in shapes:
                t = "u8"  # what they are two to
            found[v] = Flow(v, t, tuple(shapes.get(v, shape)), before + n)
        flows[side] = tuple(found.values())
    others = {key: value for key, value in facts.items() if key != "results"}
    return KernelReport(**{**others, **flows}, tuned=tuned)


@dataclass(frozen=True)
class _Call:
    """A fused equation, where each of its operands comes from and who reads each of its results."""

    eqn: Any
    origins: list[Any]  # an equation, or words
    readers: list[list[Any]]


def _is_fused(eqn: Any, platform: str) -> bool:
    """Whether an equation is kernels."""
    return eqn.primitive.name == _trace.FUSED and not _trace.is_small(eqn.params, platform)


def _calls(closed: Any, platform: str, info: Any) -> list[_Call]:
    """Return all fused equations, in order; `info` has the user's names."""
    jaxpr = getattr(closed, "jaxpr", closed)
    calls: list[_Call] = []
    count = len(jaxpr.outvars)
    paths = (path if path is not None else str(i) * (count > 1) for i, path in enumerate(paths_of(info, count)))
    reading = _reading(jaxpr, [[f"{_RESULT}{path}" if path else "the result"] for path in paths])
    origins = [f"{_ARGUMENT}{name or i}" for i, name in enumerate(arguments_of(info, len(jaxpr.invars)))]
    _walk(jaxpr, origins, reading, calls, platform)
    return calls


@dataclass(frozen=True)
class _Reading:
    """Who reads each value of a jaxpr, and the same of the bodies that its equations pass their operands to."""

    read_by: dict[Any, list[Any]]
    bodies: dict[tuple[int, int], _Reading]  # by the numbers of the equation and of the jaxpr in it


def _reading(jaxpr: Any, readers: list[list[Any]]) -> _Reading:
    """Return who reads the values of an open jaxpr, given who reads its results."""
    read_by: dict[Any, list[Any]] = defaultdict(list)
    bodies: dict[tuple[int, int], _Reading] = {}
    for v, own in zip(jaxpr.outvars, readers):
        if isinstance(v, Var):
            read_by[v] += own
    for i, eqn in reversed([*enumerate(jaxpr.eqns)]):
        if _is_passed(eqn):
            for v, out in zip(eqn.invars, eqn.outvars):
                read_by[v] = read_by[out] + read_by[v]
            continue
        inside: list[list[Any]] = [[] for _ in eqn.invars]
        for k, inner in enumerate(inner_jaxprs(eqn)):
            if _is_body(inner, eqn):
                body = bodies[i, k] = _reading(inner, [read_by[v] for v in eqn.outvars])
                for own, v in zip(inside, inner.invars if _has_kernels(inner) else ()):
                    own += body.read_by[v]
        for v, own in reversed([*zip(eqn.invars, inside if any(inside) else [[eqn]] * len(inside))]):
            if isinstance(v, Var):
                read_by[v] = own + read_by[v]
    return _Reading(read_by, bodies)


def _is_body(inner: Any, eqn: Any) -> bool:
    """Whether an equation's operands and results are those of a jaxpr in it."""
    return (len(inner.invars), len(inner.outvars)) == (len(eqn.invars), len(eqn.outvars))


def _walk(jaxpr: Any, origins: list[Any], reading: _Reading, calls: list[_Call], platform: str) -> list[Any]:
    """Add the fused equations of an open jaxpr whose arguments' origins are known; return those of its results."""
    made: dict[Any, Any] = dict(zip(jaxpr.invars, origins))

    def origin(atom: Any) -> Any:
        return made.get(atom, "a constant") if isinstance(atom, Var) else "a constant"

    for i, eqn in enumerate(jaxpr.eqns):
        before = [origin(v) for v in eqn.invars]
        if _is_passed(eqn):
            made.update(zip(eqn.outvars, before))
            continue
        made.update((v, eqn) for v in eqn.outvars)
        if _is_fused(eqn, platform):
            calls.append(_Call(eqn, before, [reading.read_by[v] for v in eqn.outvars]))
            continue
        for k, inner in enumerate(inner_jaxprs(eqn)):
            if _is_body(inner, eqn):
                made.update(zip(eqn.outvars, _walk(inner, before, reading.bodies[i, k], calls, platform)))
            else:
                body = f"the body of {eqn.primitive.name}"
                outside = _reading(inner, [[body]] * len(inner.outvars))
                _walk(inner, [body] * len(inner.invars), outside, calls, platform)
    return [origin(v) for v in jaxpr.outvars]


def _has_kernels(jaxpr: Any) -> bool:
    """Whether an open jaxpr, or one in it, has a fused equation or a call of ours."""
    return any(
        eqn.primitive.name == _trace.FUSED
        or eqn.primitive.name in _trace.OWN_CALLS
        or any(map(_has_kernels, inner_jaxprs(eqn)))
        for eqn in jaxpr.eqns
    )


def _is_passed(eqn: Any) -> bool:
    """Whether values go through an equation that is nothing in the program."""
    return eqn.primitive in (operands_p, once_p) and all(isinstance(v, Var) for v in eqn.invars)


def _cuts(jaxpr: Any, platform: str) -> Iterator[tuple[str, str]]:
    """Yield (primitive, reason) for every equation that is in no region."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    reasons = [_trace.unsupported(eqn) for eqn in jaxpr.eqns]
    cut = [reason is not None for reason in reasons]
    reduced = _regions.feeds_reductions(jaxpr.eqns, cut, {v for v in jaxpr.outvars if isinstance(v, Var)})
    beside = _fused_by_xla.beside(jaxpr.eqns, cut)
    for i, (eqn, reason) in enumerate(zip(jaxpr.eqns, reasons)):
        name = eqn.primitive.name
        if _is_fused(eqn, platform) or _is_passed(eqn):
            continue
        if name == _trace.FUSED:
            yield eqn.params["name"], "has few elements: ops of XLA"
            continue
        if name == _quantized_product.quantized_p.name:
            format = eqn.params["how"].format
            yield name, _quantized_product.kernels(eqn.params["jaxpr"], format, platform, _ffi.target_text(platform))
            continue
        if any(_has_kernels(inner) for inner in inner_jaxprs(eqn)):
            # Calls have no reason: their kernels are where those of their caller could be.
            if (
                reason is not None
                and name in _bodies.BODIES
                and (name not in _trace.CALLS or _trace.own_placement(eqn))
            ):
                yield name, reason
            for inner in inner_jaxprs(eqn):
                yield from _cuts(inner, platform)
            continue
        if reason is None and i in reduced:
            reason = "feeds only reductions, which compute it"
        elif reason is None and name in _trace_updates.UPDATES:
            reason = "writes into an array of XLA's, in place where it can"
        elif reason is None and (_trace.is_view(eqn) or name == "convert_element_type"):
            reason = "moves or casts data between ops of XLA"
        elif reason is None and any(0 in v.aval.shape for v in eqn.outvars):
            reason = "has no element"
        elif reason is None and i in beside:
            reason = "fused by XLA with complex numbers or windows beside it"
        elif reason is None and name in _trace.PRODUCTS:
            reason = "a grouped product whose result is needed as it is"
        elif reason is None:
            reason = "outside of the fused function; put jf.fuse around the transform to fuse it"
        yield name, reason
