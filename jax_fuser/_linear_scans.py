"""`lax.scan`s whose carries are linear recurrences, as whole arrays: `fuse` then has one kernel for all steps.

Exponential moving averages, returns and advantages of reinforcement learning, linear recurrent layers, and what their
derivatives are: each carry is what it was before times a factor, plus a value, which know no carry but those found
before. Steps of matrix products, or whose carries nobody keeps for each step, stay loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax import lax
from jax.extend.core import DebugInfo, DropVar, Jaxpr, Literal

from jax_fuser import _trace
from jax_fuser._recurrence import recurrence
from jax_fuser._unroll import placed, scan_parts


class _NotLinearError(Exception):
    """A value that is not linear in the carry at hand, or reads one that is not known."""


@dataclass(frozen=True)
class _Linear:
    """`factor` times the carry before the step, plus `value`; None for 1, and for 0.

    With `keeps`, `value` alone where that does not hold, even where the carry is infinite or NaN.
    """

    factor: Any
    value: Any
    keeps: Any = None

    def parts(self) -> list[Any]:
        return [part for part in (self.factor, self.value, self.keeps) if isinstance(part, jax.Array)]

    def of(self, arrays: Sequence[Any]) -> _Linear:
        """Return it with other `parts`."""
        left = iter(arrays)
        return _Linear(*(next(left) if isinstance(x, jax.Array) else x for x in (self.factor, self.value, self.keeps)))

    def behind(self, before: Any) -> Any:
        """Return what it makes of a carry."""
        result = _sum(before if self.factor is None else self.factor * before, self.value)
        return result if self.keeps is None else jnp.where(self.keeps, result, self.value)


def opened(eqn: Any) -> Any | None:
    """Return what a `scan` equation is without a loop, as a closed jaxpr; None where it must stay one."""
    length, body = eqn.params["length"], eqn.params["jaxpr"]
    if not isinstance(length, int) or length < 2 or eqn.effects or body.consts or placed(eqn):
        return None
    carries = len(scan_parts(eqn.params, eqn.invars)[1])
    kept = [v.aval for v in body.jaxpr.outvars]
    most = max((math.prod(a.shape) for a in kept[carries:]), default=0)
    fits = all(math.prod(a.shape) <= most and not jnp.issubdtype(a.dtype, jnp.complexfloating) for a in kept[:carries])
    if not carries or not fits or not all(map(_trace.is_elementwise, body.jaxpr.eqns)):
        return None
    avals = [v.aval for v in eqn.invars]
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals]
    try:
        closed = jax.make_jaxpr(lambda *args: _as_weak(_Steps(eqn.params, args).results(), eqn))(*given)
    except _NotLinearError:
        return None
    return None if closed.consts else closed


def _as_weak(results: list[Any], eqn: Any) -> list[Any]:
    """Return them with the weak types of an equation's results."""
    avals = [v.aval for v in eqn.outvars]
    return [
        lax.convert_element_type_p.bind(x, new_dtype=a.dtype, weak_type=True, sharding=None)
        if getattr(a, "weak_type", False)
        else x
        for x, a in zip(results, avals)
    ]


class _Steps:
    """All steps of a scan at once."""

    def __init__(self, params: Any, args: Sequence[Any]):
        self.length, self.reverse, self.jaxpr = params["length"], params["reverse"], params["jaxpr"].jaxpr
        self.consts, self.first, self.xs = scan_parts(params, args)
        self.count = len(self.first)
        self.before: dict[int, Any] = {}  # by carry: its values before all steps, and behind them
        self.behind: dict[int, Any] = {}

    def results(self) -> list[Any]:
        left = set(range(self.count))
        while left:
            found = {i for i in sorted(left) if self._find(i)}
            if not found:
                raise _NotLinearError
            left -= found
        last = 0 if self.reverse else self.length - 1
        ends = [lax.index_in_dim(self.behind[i], last, keepdims=False) for i in range(self.count)]
        made = self._of_all(lambda step: [step.array(v) for v in self.jaxpr.outvars[self.count :]])
        return [*ends, *made]

    def _find(self, carry: int) -> bool:
        """Whether all values of a carry are known now."""
        out = self.jaxpr.outvars[carry]
        forms: list[_Linear] = []

        def parts(step: _Step) -> list[Any]:
            form = step.read(out)
            forms.append(form if isinstance(form, _Linear) else _Linear(0, form))
            return [jnp.broadcast_to(part, self.first[carry].shape) for part in forms[-1].parts()]

        try:
            arrays = self._of_all(parts, carry)
        except _NotLinearError:
            return False
        form, first = forms[-1].of(arrays), self.first[carry]
        shape, dtype = (self.length, *first.shape), first.dtype
        if form.factor is None and form.value is None:
            self.before[carry] = self.behind[carry] = jnp.broadcast_to(first, shape)
            return True
        if isinstance(form.factor, int):
            self.behind[carry], self.before[carry] = form.value, _moved_on(form.value, first[None], self.reverse)
            return True
        if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
            return False
        is_first = lax.broadcasted_iota(jnp.int32, shape, 0) == (self.length - 1 if self.reverse else 0)
        begun = jnp.where(is_first, form.behind(first), 0 if form.value is None else form.value).astype(dtype)
        if form.factor is None:
            self.behind[carry] = lax.cumsum(begun, 0, self.reverse)
            self.before[carry] = _moved_on(self.behind[carry], first[None], self.reverse)
            return True
        factors, resets = form.factor.astype(dtype), form.keeps is not None and jnp.issubdtype(dtype, jnp.floating)
        if resets:  # a NaN of their own is one of the result
            begun = jnp.where(form.keeps & jnp.isnan(factors), jnp.nan, begun)
        if form.keeps is not None:
            factors = jnp.where(form.keeps, factors, jnp.nan if resets else 0)
        before = jnp.where(is_first, first, recurrence(begun, factors, 0, self.reverse, resets))
        self.before[carry], self.behind[carry] = before, form.behind(before).astype(dtype)
        return True

    def _of_all(self, f: Callable[[_Step], list[Any]], carry: int = -1) -> list[Any]:
        """Return what `f` gives of every step, in arrays; `carry` is the one that values may be linear in."""
        known, dtype = [*self.behind], self.first[carry].dtype

        def one(_: Any, before: Any, behind: Any, xs: Any) -> list[Any]:
            env = dict(zip(self.jaxpr.invars, [*self.consts, *([None] * self.count), *xs]))
            carries = self.jaxpr.invars[len(self.consts) :][: self.count]
            if carry >= 0:
                env[carries[carry]] = _Linear(None, None)
            for i, old, new in zip(known, before, behind):
                env[carries[i]] = old
                if not isinstance(self.jaxpr.outvars[i], Literal):
                    env.setdefault(self.jaxpr.outvars[i], new)
            return f(_Step(self.jaxpr, env, dtype))

        before, behind = [self.before[i] for i in known], [self.behind[i] for i in known]
        results: list[Any] = jax.vmap(one)(jnp.arange(self.length), before, behind, list(self.xs))
        return results


def _moved_on(x: jax.Array, first: jax.Array, reverse: bool) -> jax.Array:
    """Return what comes before each row; `first`, of one row, before the first one."""
    if reverse:
        return lax.concatenate([x[1:], first], 0)
    return lax.concatenate([first, x[:-1]], 0)


class _Step:
    """The values of one step, each computed where it is asked for."""

    def __init__(self, jaxpr: Any, env: dict[Any, Any], dtype: Any):
        self.made_by = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        self.env, self.dtype = env, dtype

    def array(self, atom: Any) -> Any:
        value = self.read(atom)
        if isinstance(value, _Linear):
            raise _NotLinearError
        return value

    def read(self, atom: Any) -> Any:
        if isinstance(atom, Literal):
            aval: Any = atom.aval
            return jnp.asarray(atom.val, aval.dtype)
        if atom not in self.env:
            eqn = self.made_by[atom]
            for var, value in zip(eqn.outvars, _computed(eqn, [self.read(v) for v in eqn.invars], self.dtype)):
                self.env.setdefault(var, value)
        value = self.env[atom]
        if value is None:
            raise _NotLinearError
        return value


def _computed(eqn: Any, operands: list[Any], dtype: Any) -> list[Any]:
    """Return the results of an equation, some of whose operands may be linear in the carry, which has the dtype."""
    if not any(isinstance(x, _Linear) for x in operands):
        return _bound(eqn, operands)
    name, body = eqn.primitive.name, _trace.body_of(eqn)
    if body is not None and not name.startswith("custom_"):  # whose derivative is another one
        inner = _Step(body[0], dict(zip([*body[0].constvars, *body[0].invars], [*body[1], *operands])), dtype)
        return [inner.read(v) for v in body[0].outvars]
    linear = [v.aval for v, x in zip(eqn.invars, operands) if isinstance(x, _Linear)]
    moves = any(aval.shape != eqn.outvars[0].aval.shape for aval in linear)
    if name not in _RULES or moves or not _is_exact(eqn, dtype):
        raise _NotLinearError
    return [_RULES[name](eqn, *operands)]


def _bound(eqn: Any, operands: list[Any]) -> list[Any]:
    given = {v: x for v, x in zip(eqn.invars, operands) if not isinstance(v, Literal)}
    kept = [v for v in eqn.outvars if not isinstance(v, DropVar)]
    jaxpr = Jaxpr((), [*given], kept, [eqn], debug_info=DebugInfo("linear scan", "step", None, None))
    made = dict(zip(kept, jax.core.eval_jaxpr(jaxpr, (), *given.values())))
    return [made.get(v) for v in eqn.outvars]


def _is_exact(eqn: Any, dtype: Any) -> bool:
    """Whether an operation on the carry means what its linear form does: other numbers are rounded on the way."""
    given, params = eqn.invars[-1].aval.dtype, eqn.params
    match eqn.primitive.name:
        case "convert_element_type":
            new = params["new_dtype"]
            floats = jnp.issubdtype(new, jnp.floating) and jnp.issubdtype(given, jnp.floating)
            return floats and jnp.promote_types(new, dtype) == new
        case "div":  # by a number of which the reciprocal is as good
            by = eqn.invars[1]
            return isinstance(by, Literal) and jnp.issubdtype(given, jnp.floating) and 2.0**-99 < abs(by.val) < 2.0**99
        case "reshape":
            return params["dimensions"] is None
    return True


# Of what is linear in the carry, by primitives that keep it so.


def _map(f: Callable[[Any], Any], x: Any) -> Any:
    return None if x is None else f(x)


def _linear(x: Any) -> _Linear:
    return x if isinstance(x, _Linear) else _Linear(0, x)


def _one(factor: Any, dtype: Any) -> Any:
    return jnp.ones((), dtype) if factor is None else factor


def _sum(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return lax.add(*jnp.broadcast_arrays(a, b))


def _where(which: Any, a: Any, b: Any) -> Any:
    return a if which is None else lax.select_n(*jnp.broadcast_arrays(which, jnp.asarray(b, a.dtype), a))


def _add(eqn: Any, a: Any, b: Any) -> _Linear:
    x, y = _linear(a), _linear(b)
    if isinstance(x.factor, int) or isinstance(y.factor, int):
        one = y if isinstance(x.factor, int) else x
        return _Linear(one.factor, _sum(x.value, y.value), one.keeps)
    factors = [_where(part.keeps, _one(part.factor, eqn.outvars[0].aval.dtype), 0) for part in (x, y)]
    keeps = None if x.keeps is None or y.keeps is None else lax.bitwise_or(*jnp.broadcast_arrays(x.keeps, y.keeps))
    return _Linear(_sum(*factors), _sum(x.value, y.value), keeps)


def _neg(eqn: Any, a: Any) -> _Linear:
    return _Linear(-_one(a.factor, eqn.outvars[0].aval.dtype), _map(lax.neg, a.value), a.keeps)


def _sub(eqn: Any, a: Any, b: Any) -> _Linear:
    return _add(eqn, a, _neg(eqn, b) if isinstance(b, _Linear) else lax.neg(b))


def _mul(eqn: Any, a: Any, b: Any) -> _Linear:
    if isinstance(a, _Linear) and isinstance(b, _Linear):
        raise _NotLinearError
    x, y = (a, b) if isinstance(a, _Linear) else (b, a)
    return _Linear(y if x.factor is None else x.factor * y, _map(lambda value: value * y, x.value), x.keeps)


def _div(eqn: Any, a: Any, b: Any) -> _Linear:
    if isinstance(b, _Linear):
        raise _NotLinearError
    return _Linear(_one(a.factor, eqn.outvars[0].aval.dtype) / b, _map(lambda value: value / b, a.value), a.keeps)


def _select(eqn: Any, which: Any, *cases: Any) -> _Linear:
    if isinstance(which, _Linear):
        raise _NotLinearError
    shape, dtype = eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype
    parts = [_linear(case) for case in cases]
    factors = [_one(part.factor, dtype) for part in parts]
    values = [0 if part.value is None else part.value for part in parts]

    kept = [not isinstance(part.factor, int) if part.keeps is None else part.keeps for part in parts]

    def chosen(of_cases: list[Any], dtype: Any) -> Any:
        return lax.select_n(which, *(jnp.broadcast_to(jnp.asarray(x, dtype), shape) for x in of_cases))

    keeps = None if all(keep is True for keep in kept) else chosen(kept, bool)
    return _Linear(chosen(factors, dtype), chosen(values, dtype), keeps)


def _convert(eqn: Any, a: _Linear) -> _Linear:
    new = eqn.params["new_dtype"]
    return _Linear(_map(lambda x: x.astype(new), a.factor), _map(lambda x: x.astype(new), a.value), a.keeps)


def _same(eqn: Any, a: _Linear) -> _Linear:
    return a


_RULES: dict[str, Callable[..., _Linear]] = {
    "add": _add,
    "add_any": _add,
    "sub": _sub,
    "neg": _neg,
    "mul": _mul,
    "div": _div,
    "select_n": _select,
    "convert_element_type": _convert,
    "copy": _same,
    "copy_p": _same,
    "broadcast_in_dim": _same,
    "reshape": _same,
}
