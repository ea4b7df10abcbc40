"""The functions between grouped products: their names, and those that callers give."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jax_fuser import _arguments

Activation = str | Callable[[jax.Array], jax.Array] | None


def _gelu(x: jax.Array) -> jax.Array:
    """Return `jax.nn.gelu(x)` by one exponential: (1 + tanh z) / 2 is sigmoid(2 z), z = sqrt(2 / pi) (x + c x^3)."""
    return x * jax.nn.sigmoid(x * (1.5957691216057308 + 0.07135481627260025 * (x * x)))


PLAIN: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": _gelu,
    "relu": jax.nn.relu,
}
# Applied to the first half of the columns, multiplied by the second half.
GATED = {"swiglu": jax.nn.silu, "geglu": _gelu}


@dataclass(frozen=True)
class _Pointwise:
    """A caller's function, whose results are looked at."""

    fn: str
    function: Callable[[jax.Array], jax.Array]

    def __call__(self, x: jax.Array) -> jax.Array:
        out = self.function(x)
        got = getattr(out, "shape", type(out).__name__)
        if got != x.shape:
            raise ValueError(
                f"{self.fn}: activation must return an array of the shape that it gets, {x.shape}, got {got}; pass a "
                "pointwise function"
            )
        return out


def activation_of(fn: str, activation: Activation) -> Callable[[jax.Array], jax.Array] | None:
    """Return the argument `activation` of a public function as what is called."""
    if activation is None:
        return None
    if not isinstance(activation, str):
        function = _arguments.function(fn, "activation", activation)
        try:
            hash(function)
        except TypeError:  # a module of arrays, say
            function = functools.partial(function)  # another for every call
        return _remembered(_Pointwise(fn, function))
    named = {**PLAIN, **GATED}
    if activation not in named:
        raise ValueError(f"{fn}: activation {activation!r} is unknown; pass a function or one of {sorted(named)}")
    return named[activation]


# What is compiled for a function stays as long as jit keeps the function. Outside of jit, one that is written anew for
# each call would fill memory, 1.5 MB a call: after so many all of it is forgotten.
MOST_GIVEN = 128
_given: set[_Pointwise] = set()
_compiled: list[Any] = []


def compiled_for_given(jitted: Any) -> Any:
    """Let a jitted function, which has activations among its static arguments, forget them in time."""
    _compiled.append(jitted)
    return jitted


def _remembered(activation: _Pointwise) -> _Pointwise:
    _given.add(activation)
    if len(_given) > MOST_GIVEN:
        _given.clear()
        for jitted in _compiled:
            jitted.clear_cache()
        _given.add(activation)
    return activation
