"""A function as exactly one fusion, and the schedule that a person gives for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr

from jax_fuser import _axes, _flatten, _ir_text, _names, _trace, _words
from jax_fuser._core import Fusion, Schedule, Scheduler, UserError

# What `fuse(schedule=...)` takes.
Given: TypeAlias = "Callable[[Scheduler], Any] | Schedule | Scheduler | str"


def check(schedule: Any) -> None:
    """Raise where this cannot be a schedule."""
    if not callable(schedule) and not isinstance(schedule, (Schedule, Scheduler, str)):
        raise TypeError(
            "fuse: schedule must be a function of a jax_fuser.ir.Scheduler, a jax_fuser.ir.Schedule or its text, "
            f"got {type(schedule).__name__}"
        )


def one_fusion(closed: Any, name: str, function: str) -> tuple[ClosedJaxpr, _axes.Program]:
    """Return a function's flat jaxpr and its program, whose inputs are all arguments and outputs all results."""
    flat = _flatten.flatten(closed)
    if flat.consts:
        raise UserError(f"{function}: {name} closes over {len(flat.consts)} arrays; pass them as arguments")
    for eqn in flat.eqns:
        reason = _trace.unsupported(eqn)
        if reason is not None:
            raise UserError(
                f"{function}: {eqn.primitive.name} in {name} is not an op of a fusion: {reason}; leave it outside"
            )
    if not flat.outvars:
        raise UserError(f"{function}: {name} returns no array; return what it computes")
    jaxpr = Jaxpr((), flat.invars, flat.outvars, flat.eqns, debug_info=DebugInfo("trace", name, None, None))
    names = _names.of(closed.jaxpr.debug_info, len(flat.invars), len(flat.outvars))
    program, _ = _trace.write_program(jaxpr, name, names)
    if program.text is None or program.places != [("output", i) for i in range(len(flat.outvars))]:
        raise UserError(
            f"{function}: a result of {name} is an argument or another result; return computed values, once"
        )
    return ClosedJaxpr(jaxpr, ()), program


def scheduled(closed: Any, name: str, schedule: Given) -> tuple[ClosedJaxpr, str]:
    """Return a function's flat jaxpr, and the text of its fusion with the schedule that a person gives for it."""
    jaxpr, program = one_fusion(closed, name, "fuse with schedule=")
    assert program.text is not None
    own = Fusion(program.text)
    made = _schedule(own, schedule)
    _check_types(name, own, made.fusion)
    if not _ir_text.compute_the_same(own, made.fusion):
        raise UserError(
            f"fuse: the schedule given for {name} is for another function:\n{made.fusion}\nexpected one of, or made "
            f"from,\n{own}\nmake it from jax_fuser.ir.trace({name}, ...); inputs and results keep their order, which "
            "propose may change"
        )
    return jaxpr, f"{made.fusion}{made}"


def _schedule(own: Fusion, given: Given) -> Schedule:
    if isinstance(given, Scheduler):
        return given.schedule
    if isinstance(given, Schedule):
        return given
    if isinstance(given, str):
        fusion, mark, text = given.rpartition("schedule {")
        if not mark:
            raise UserError("fuse: the text of a schedule begins with 'schedule {', as print(schedule) writes it")
        of = Fusion(fusion) if fusion.strip() else own
        try:
            return Schedule(of, f"{mark}{text}")
        except UserError as error:
            raise UserError(
                f"fuse: the schedule given for {own.name} does not fit these arguments: {error}\nthe fusion is\n{own}"
            ) from None
    scheduler = Scheduler(own)
    returned = given(scheduler)
    if returned is not None and not isinstance(returned, (Schedule, Scheduler)):
        raise TypeError(
            f"fuse: the function given as schedule edits its scheduler or returns a Schedule; it returned {returned!r}"
        )
    if isinstance(returned, Scheduler):
        return returned.schedule
    return scheduler.schedule if returned is None else returned


def _check_types(name: str, own: Fusion, other: Fusion) -> None:
    def types(f: Fusion) -> str:
        return ", ".join(_words.array(f.dtype(v), f.shape(v)) for v in f.inputs)

    if types(own) != types(other):
        raise UserError(
            f"fuse: the schedule given for {name} is for arguments ({types(other)}), got ({types(own)}); "
            "pass a function of the scheduler, which is called for each combination of shapes"
        )
