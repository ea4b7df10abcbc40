"""The functions between grouped products: their names, and those that callers give."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
    """A caller's function, whose results are looked at; `state`: what it reads beside its argument, None if unknown."""

    fn: str
    function: Callable[[jax.Array], jax.Array]
    state: Any = ()

    def __call__(self, x: jax.Array) -> jax.Array:
        try:
            out = self.function(x)
        except jax.errors.TracerArrayConversionError as error:
            raise TypeError(
                f"{self.fn}: activation must be a function of JAX arrays, got one that makes NumPy's of them; pass "
                "jnp.tanh for np.tanh, say"
            ) from error
        except jax.errors.ConcretizationTypeError as error:
            raise TypeError(
                f"{self.fn}: activation must not depend on values in Python (if, while, float), got a function that "
                "reads them; pass one with jnp.where"
            ) from error
        dtype = getattr(out, "dtype", x.dtype)
        if jnp.issubdtype(dtype, jnp.complexfloating) and not jnp.issubdtype(x.dtype, jnp.complexfloating):
            raise TypeError(f"{self.fn}: activation must return real numbers of {x.dtype}, got {dtype}")
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
    if isinstance(activation, _Pointwise):  # the argument of the function that calls this one
        return activation
    if not isinstance(activation, str):
        function = _arguments.function(fn, "activation", activation)
        _check_takes_one(fn, function)
        try:
            state: Any = _state_of(function)
            hash(function)
        except TypeError:  # a module of arrays, say
            state = None
        if state is None:
            function = functools.partial(function)  # another for every call
        return _Pointwise(fn, function, state)
    named = {**PLAIN, **GATED}
    if activation not in named:
        raise ValueError(f"{fn}: activation {activation!r} is unknown; pass a function or one of {sorted(named)}")
    return named[activation]


def _check_takes_one(fn: str, function: Any) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of no Python function
        return
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(
            f"{fn}: activation must be a function of one array, got one of {signature}; bind other arguments with "
            "functools.partial, or pass 'swiglu' or 'geglu' for one of gate and up"
        ) from None


# What is compiled for a function that reads values of these types serves again while they are the same.
_VALUES = (type(None), bool, int, float, complex, str, bytes)
_LIBRARIES = ("jax", "jaxlib", "ml_dtypes", "numpy", "builtins", "math", "functools", "operator")
_DEEPEST = 8  # functions that call functions


def _state_of(function: Any, depth: int = 0) -> Any:
    """Return the values that a function reads beside its argument, or None where those may change without a word.

    A method or a callable object reads its object, another function what its module and the functions around it hold:
    arrays there may be others at the next call, or belong to another trace.
    """
    if depth > _DEEPEST or not callable(function):
        return None
    if isinstance(function, functools.partial):
        held = [function.func, *function.args, *function.keywords.values()]
    elif _is_of_library(getattr(function, "__module__", None) or ""):
        # What they wrap is the user's: a function under jit, or with a derivative of its own.
        inner = getattr(function, "__wrapped__", None)
        return () if inner is None else _state_of(inner, depth + 1)
    elif isinstance(function, types.FunctionType):
        # What jit wraps has the name and the module of the function, but is none.
        held = _globals_of(function)
        held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        try:
            held += [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # a name that is not bound yet
            return None
    elif (inner := getattr(function, "__wrapped__", None)) is not None and _is_of_jax(function):
        held = [inner]
    else:
        return None
    found: list[tuple[Any, Any]] = []
    for value in held:
        if isinstance(value, _VALUES):
            found.append((type(value), repr(value)))
        elif isinstance(value, type) and not _is_of_library(value.__module__):
            return None  # whose attributes may be others then
        elif not isinstance(value, (types.ModuleType, type, np.dtype)):
            state = _state_of(value, depth + 1)
            if state is None:
                return None
            found.append((value, state))
    return tuple(found)


def _globals_of(function: types.FunctionType) -> list[Any]:
    """Return what a function, and functions written inside of it, may read of its module and of modules in there."""
    names: set[str] = set()
    codes = [function.__code__]
    for code in codes:  # which grows
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    held = [function.__globals__[n] for n in sorted(names) if n in function.__globals__]
    seen: set[str] = set()
    for value in held:  # which grows
        if isinstance(value, types.ModuleType) and not _is_of_library(value.__name__) and value.__name__ not in seen:
            seen.add(value.__name__)
            held += [getattr(value, n) for n in sorted(names) if hasattr(value, n)]
    return held


def _is_of_library(module: str) -> bool:
    return module.split(".")[0] in _LIBRARIES


def _is_of_jax(function: Any) -> bool:
    return _is_of_library(type(function).__module__)


# JAX keeps what is compiled for static arguments, and with them functions and what these hold. One that is written anew
# for each call outside of jit would fill memory: of those that callers give, so many stay.
MOST_GIVEN = 128


def jit_of_given(*static: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`jax.jit` with keywords that are static, and may hold activations that callers give."""

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        of_named = jax.jit(f, static_argnames=static)
        of_given: dict[Any, Any] = {}  # the latest last; JAX forgets what it keeps for functions that are gone
        lock = threading.Lock()

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            fixed = {name: kwargs.pop(name) for name in static if name in kwargs}
            if not any(map(_is_given, fixed.values())):
                return of_named(*args, **kwargs, **fixed)
            if any(map(is_of_one_call, fixed.values())):
                return jax.jit(functools.partial(f, **fixed))(*args, **kwargs)
            key = tuple(fixed.items())
            with lock:
                jitted = of_given[key] = of_given.pop(key, None) or jax.jit(functools.partial(f, **fixed))
                while len(of_given) > MOST_GIVEN:
                    del of_given[next(iter(of_given))]
            return jitted(*args, **kwargs)

        return call

    return decorate


def _is_given(static: Any) -> bool:
    return isinstance(getattr(static, "activation", static), _Pointwise)


def is_of_one_call(static: Any) -> bool:
    """Whether an activation, or what has one, may hold arrays or belong to a trace: no cache keeps it."""
    return getattr(getattr(static, "activation", static), "state", ()) is None
