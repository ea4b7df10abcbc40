"""A function as exactly one fusion, and the schedule that a person gives for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr

from jax_fuser import _axes, _core, _ffi, _flatten, _ir_text, _names, _trace, _words
from jax_fuser._core import Fusion, Schedule, Scheduler, UserError
from jax_fuser._nested_tensor import NestedTensor

# What `fuse(schedule=...)` takes.
Given: TypeAlias = "Callable[[Scheduler], Any] | Schedule | Scheduler | str"


def check(schedule: Any) -> None:
    """Raise where this cannot be a schedule."""
    if not callable(schedule) and not isinstance(schedule, (Schedule, Scheduler, str)):
        raise TypeError(
            "fuse: schedule must be a function of a jax_fuser.ir.Scheduler, a jax_fuser.ir.Schedule or its text, "
            f"got {type(schedule).__name__}"
        )


def has_nested(*trees: Any) -> bool:
    """Whether there is a nested tensor among the arguments."""

    def is_nested(leaf: Any) -> bool:
        return isinstance(leaf, NestedTensor)

    return any(map(is_nested, jax.tree.leaves(trees, is_leaf=is_nested)))


def one_fusion(closed: Any, name: str, function: str, nested: bool = False) -> tuple[ClosedJaxpr, _axes.Program]:
    """Return a function's flat jaxpr and its program, whose inputs are all arguments and outputs all results.

    `nested`: arguments are parts of nested tensors.
    """
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
        hint = "return computed values, once"
        if nested:
            hint = "the extents of a NestedTensor are; take and return its data, and the extents as an argument"
        raise UserError(f"{function}: a result of {name} is an argument or another result; {hint}")
    return ClosedJaxpr(jaxpr, ()), program


def scheduled(closed: Any, name: str, schedule: Given, nested: bool) -> tuple[ClosedJaxpr, str] | None:
    """Return a function's flat jaxpr, and the text of its fusion with the schedule that a person gives for it.

    None where a result has no elements, so that there is nothing to schedule. `nested` as for `one_fusion`.
    """
    jaxpr, program = one_fusion(closed, name, "fuse with schedule=", nested)
    assert program.text is not None
    if any(aval.size == 0 for aval in jaxpr.out_avals):
        return None
    own: Fusion = _core.as_one_kernel(Fusion(program.text), "fuse with schedule=")
    made = _schedule(own, schedule)
    if not _ir_text.compute_the_same(own, made.fusion) and not _is_proposed(name, own, made.fusion):
        _check_types(name, own, made.fusion)
        raise UserError(
            f"fuse: the schedule given for {name} is for another function:\n{made.fusion}\nexpected one of, or made "
            f"from,\n{own}\nmake it from jax_fuser.ir.trace({name}, ...); inputs and results keep their order"
        )
    return jaxpr, f"{made.fusion}{made}"


def _is_proposed(name: str, own: Fusion, made: Fusion) -> bool:
    """Whether it is what the compiler makes of a fusion on some platform, where it may compute in other steps."""
    for platform in ("cpu", "cuda"):
        kernels = [s.fusion for s in _core.propose(own, _ffi.target_text(platform))]
        if len(kernels) == 1 and _ir_text.compute_the_same(kernels[0], made):
            return True
        if len(kernels) > 1 and made in kernels:
            raise UserError(
                f"fuse: the schedule given for {name} is that of {made.name}, one of the {len(kernels)} kernels that "
                f"the compiler makes on {platform}; a schedule is of a whole function: make a function of what "
                f"{made.name} computes"
            )
    return False


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
    # Whatever else it returns is of no meaning here: calls such as cache_after return a name.
    if isinstance(returned, Scheduler):
        return returned.schedule
    return returned if isinstance(returned, Schedule) else scheduler.schedule


def _check_types(name: str, own: Fusion, other: Fusion) -> None:
    def types(f: Fusion) -> str:
        return ", ".join(_words.array(f.dtype(v), f.shape(v)) for v in f.inputs)

    if types(own) != types(other):
        raise UserError(
            f"fuse: the schedule given for {name} is for arguments ({types(other)}), got ({types(own)}); "
            "pass a function of the scheduler, which is called for each combination of shapes"
        )
