"""What XLA fuses with the ops that it keeps: a kernel of ours between such ops would store what XLA never stores."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Literal

from jax_fuser import _random, _trace, _trace_writer

Equation = Any  # a JaxprEqn; its types do not say that the avals are arrays

_OF_COMPLEX = frozenset(["real", "imag", "complex", "conj"])
_JOINING = frozenset(["concatenate", "stack", "pad"])


def fuses(eqn: Equation) -> bool:
    """Whether an equation that has no kernel of ours is fused by XLA with what makes its operands and reads its result.

    Complex numbers, element by element, and windows that slide over an array.
    """
    name = eqn.primitive.name
    if name.startswith("reduce_window"):
        return True
    dtypes = [getattr(v.aval, "dtype", None) for v in (*eqn.invars, *eqn.outvars)]
    is_complex = any(dtype is not None and jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes)
    return is_complex and (name in _OF_COMPLEX or _trace.is_elementwise(eqn))


def is_simple(eqns: Sequence[Equation]) -> bool:
    """Whether XLA computes equations of a region as well as a kernel of ours.

    Element by element, and reductions whose result meets nothing larger again: one pass over what they read.
    """
    folded: set[Any] = set()
    for eqn in eqns:
        name, body = eqn.primitive.name, _trace.body_of(eqn)
        if _random.draws(_trace_writer.label(eqn)):
            return False
        folds = name in _trace.REDUCTIONS
        if not (is_simple(body[0].eqns) if body else folds or name in _JOINING or _trace.is_elementwise(eqn)):
            return False
        small = [v for v in eqn.invars if not isinstance(v, Literal) and v in folded]
        if small and _elements(eqn.outvars) > _elements(small):
            return False
        if small or folds:
            folded.update(eqn.outvars)
    return True


def _elements(values: Iterable[Any]) -> int:
    return max(math.prod(v.aval.shape) for v in values)


def beside(eqns: Sequence[Equation], cut: Sequence[bool]) -> set[int]:
    """Return the numbers of equations without a kernel that reach, over such equations, one that XLA fuses."""
    touching: dict[Any, list[int]] = defaultdict(list)
    for i, eqn in enumerate(eqns):
        for v in (*eqn.invars, *eqn.outvars):
            if not isinstance(v, Literal):
                touching[v].append(i)
    todo = [i for i, is_cut in enumerate(cut) if is_cut and fuses(eqns[i])]
    found: set[int] = set()
    while todo:
        eqn = eqns[todo.pop()]
        values = [v for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, Literal)]
        near = {j for v in values for j in touching[v] if not cut[j] and eqns[j].primitive.name != _trace.FUSED} - found
        found |= near
        todo += near
    return found
