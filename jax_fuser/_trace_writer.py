"""What writes a fusion from equations, and the form of the rules by which it does; `_trace` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from jax_fuser import _axes, _core, _ffi

Ids = list[int]
Equation = Any  # a JaxprEqn; its types do not say that the avals are arrays

# What is folded on constants: the ops that numpy rounds as every machine does.
_FOLDED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _accepts(eqn: Equation) -> str | None:
    return None


def _never(eqn: Equation) -> bool:
    return False


@dataclass(frozen=True)
class Rule:
    """How one primitive becomes ops. `body` names the parameter that holds a jaxpr to open.

    `fits`: operands are stretched to the result's shape, where the rule is for no view.
    """

    emit: Callable[[Writer, Equation, Ids], Ids]
    refuse: Callable[[Equation], str | None] = _accepts
    is_view: Callable[[Equation], bool] = _never
    body: str | None = None
    fits: bool = True


class Writer:
    """One fusion being built, by a rule for each primitive.

    `values` maps the variables of the jaxpr at hand to value numbers of the builder.
    """

    def __init__(self, name: str, rules: Mapping[str, Rule], max_ops: int | None = None):
        self.rules = rules
        self.builder = _axes.Builder(_core.identifier(name), max_ops)
        self.values: dict[Any, int] = {}
        self.known: dict[int, Any] = {}  # scalar constants
        # Of codes of four bits, which are stored two to a byte: codes, and what computes bytes of them for other ops.
        self.packed: dict[int, tuple[int, Any]] = {}
        # By ids, starts and extents: what was taken for each row, and the per-group values that it was taken from.
        self.spread: dict[tuple[int, int, int], dict[int, int]] = {}

    def read(self, atom: Any) -> int:
        """Return the value of a variable or literal."""
        if not isinstance(atom, Literal):
            if (packed := self.packed.get(self.values[atom])) is not None:
                codes, in_bytes = packed
                [self.values[atom]] = self.call(in_bytes.jaxpr, in_bytes.consts, [codes])
            return self.values[atom]
        aval: Any = atom.aval
        return self.constant(aval.dtype, atom.val)

    def constant(self, dtype: Any, value: Any) -> int:
        """Add a scalar."""
        with np.errstate(over="ignore"):  # -1e9 is -inf in float16, as for XLA
            scalar = np.asarray(value, dtype)[()]
        integral = np.issubdtype(scalar.dtype, np.integer)
        python = bool(scalar) if scalar.dtype == np.bool_ else int(scalar) if integral else float(scalar)
        result = self.builder.constant(_ffi.known_dtype_name(dtype), python)
        self.known[result] = scalar
        return result

    def full(self, aval: Any, value: Any) -> int:
        """Add a constant of the shape and dtype of `aval`."""
        return self.builder.broadcast(self.constant(aval.dtype, value), list(aval.shape), [])

    def fit(self, value: int, shape: Sequence[int], to: Sequence[int]) -> int:
        """Stretch a scalar, or the axes of extent 1, to a shape: the broadcasting that JAX leaves implicit."""
        if tuple(shape) == tuple(to):
            return value
        return self.builder.broadcast(value, list(to), list(range(len(shape))))

    def op(self, name: str, inputs: Ids, eqn: Equation) -> int:
        """Add a pointwise op under the user's name for it."""
        return self.builder.pointwise(name, inputs, label(eqn))

    def label(self, eqn: Equation) -> str:
        """Return the user's name for an equation."""
        return label(eqn)

    def call(self, jaxpr: Any, consts: Sequence[Any], inputs: Ids) -> Ids:
        """Add the equations of an open jaxpr, with scalars and values for its variables."""
        outer, self.values = self.values, dict(zip(jaxpr.invars, inputs))
        for var, value in zip(jaxpr.constvars, consts):
            self.values[var] = self.constant(var.aval.dtype, value)
        self.run(jaxpr.eqns)
        results = [self.result(v) for v in jaxpr.outvars]
        self.values = outer
        return results

    def result(self, atom: Any) -> int:
        """Return the value of a variable or literal as it is stored."""
        return self.read(atom) if isinstance(atom, Literal) else self.values[atom]

    def fold(self, eqn: Equation, inputs: Ids) -> int | None:
        """Return the result of an equation on constants, or of a choice by a constant."""
        name, aval = eqn.primitive.name, eqn.outvars[0].aval
        if name == "select_n" and isinstance(self.known.get(inputs[0]), np.bool_):
            return inputs[1 + int(self.known[inputs[0]])]
        if name not in _FOLDED or not self.known.keys() >= {*inputs} or aval.shape:
            return None
        with np.errstate(all="ignore"):
            return self.constant(aval.dtype, _FOLDED[name](*(self.known[i] for i in inputs)))

    def rounded(self, value: int, dtype: Any) -> int:
        """Return a value as its dtype holds it: computed twice, in f32, it may be stored in between once."""
        if dtype not in (jax.numpy.bfloat16, np.float16) or value in self.builder.inputs:
            return value
        return self.builder.bitcast(self.builder.bitcast(value, "u16", ""), _ffi.known_dtype_name(dtype), "")

    def run(self, eqns: Sequence[Equation]) -> None:
        """Add equations in order."""
        for eqn in eqns:
            rule = self.rules[eqn.primitive.name]
            inputs = [self.read(v) for v in eqn.invars]
            folded = self.fold(eqn, inputs)
            if folded is not None:
                self.values[eqn.outvars[0]] = folded
                continue
            if rule.fits and not rule.is_view(eqn):
                to = eqn.outvars[0].aval.shape
                inputs = [self.fit(i, v.aval.shape, to) for i, v in zip(inputs, eqn.invars)]
            self.values.update(zip(eqn.outvars, rule.emit(self, eqn, inputs)))


def label(eqn: Equation) -> str:
    """Return the user's name for an equation: the innermost scope and the primitive. Lines would change cache keys."""
    scope = str(eqn.source_info.name_stack).rsplit("/", 1)[-1]
    scope = scope.rsplit("(", 1)[-1].rstrip(")")  # transpose(jvp(gelu)) is gelu
    return f"{scope}/{eqn.primitive.name}" if scope else eqn.primitive.name
