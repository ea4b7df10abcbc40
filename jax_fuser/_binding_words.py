"""What calls of the compiler's classes say of arguments of other types: which one, what it must be, what it is."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from typing import Any

_KINDS = {
    "str": ("a string", lambda x: isinstance(x, str)),
    "int": ("an int", lambda x: _is_int(x)),
    "bool": ("True or False", lambda x: isinstance(x, bool)),
    "Sequence[int]": ("a list of ints", lambda x: _all(x, _is_int)),
    "Sequence[str]": ("a list of strings", lambda x: _all(x, lambda item: isinstance(item, str))),
}


def name_arguments(cls: type, base: type) -> None:
    """Give `cls` the bound methods of `base`, whose TypeErrors then name the argument."""
    for name, method in vars(base).items():
        if cls is not base and name in vars(cls):
            continue
        if type(method).__name__ == "nb_method" and (
            (name == "__init__" and cls is not base) or not name.startswith("_")
        ):
            setattr(cls, name, _named(cls.__name__ if name == "__init__" else name, method))


def _named(name: str, method: Any) -> Any:
    signatures = [line[0].replace("\n", " ") for line in method.__nb_signature__]

    @functools.wraps(method, assigned=("__doc__", "__name__"), updated=())
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except TypeError:
            message = _message(name, signatures, args, kwargs)
        raise TypeError(message)

    call.__signature__ = _signature(method)  # type: ignore[attr-defined]
    return call


def _signature(method: Any) -> inspect.Signature:
    """Return what Python's help and editors show of a bound method, in its first form."""
    text, _, values = method.__nb_signature__[0]  # those of defaults
    head = re.sub(r"jax_fuser\._core\.|collections\.abc\.", "", re.sub(r"\\(\d+)", r"_values[\1]", text))
    scope: dict[str, Any] = {"_values": values}
    exec(f"from __future__ import annotations\n{head}: ...", scope)  # the compiler's own words, as a stub has them
    return inspect.signature(scope[method.__name__])


def _message(name: str, signatures: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    forms = [_parameters(signature) for signature in signatures]
    usage = " or ".join(f"{name}({', '.join(f'{p}: {kind}' for p, kind, _ in form)})" for form in forms)
    wrong = _first_wrong(forms[0], args, kwargs) if len(forms) == 1 else None
    if wrong is None:
        wrong = f"got ({', '.join(type(x).__name__ for x in (*args, *kwargs.values()))})"
    return f"[{name}] {wrong}; call it as {usage}"


def _parameters(signature: str) -> list[tuple[str, str, bool]]:
    """Return (name, type, whether it has a default) of each parameter but self."""
    inside = re.sub(r"jax_fuser\._core\.|collections\.abc\.", "", signature.partition("(")[2].rpartition(")")[0])
    parts = re.split(r", (?![^\[]*\])", inside)[1:]
    return [(p.partition(":")[0], p.partition(": ")[2].partition(" = ")[0], " = " in p) for p in parts if ":" in p]


def _first_wrong(form: list[tuple[str, str, bool]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    if len(args) > len(form):
        return f"takes {len(form)} arguments, got {len(args)}"
    for unknown in kwargs.keys() - {p for p, _, _ in form}:
        return f"has no argument {unknown!r}"
    given = {**dict(zip((p for p, _, _ in form), args)), **kwargs}
    for parameter, kind, has_default in form:
        if parameter not in given:
            if has_default:
                continue
            return f"needs {parameter}"
        value = given[parameter]
        optional = kind.endswith(" | None")
        words, fits = _KINDS.get(kind.removesuffix(" | None"), ("", None))
        if fits is not None and not fits(value) and not (optional and value is None):
            short = repr(value) if isinstance(value, (str, int, float, list, tuple, type(None))) else ""
            got = f"{short[:60]} ({type(value).__name__})" if short else f"a {type(value).__name__}"
            return f"{parameter} must be {words}, got {got}"
        numbers = filter(_is_int, value if isinstance(value, (list, tuple)) else [value])
        beyond = [x for x in numbers if "int" in kind and not -(2**63) <= x < 2**63]
        if beyond:
            return f"{parameter} must be from -2**63 to 2**63 - 1, got {str(beyond[0])[:60]}"
    return None


def _is_int(x: Any) -> bool:
    try:
        operator.index(x)
    except TypeError:
        return False
    return not isinstance(x, bool)


def _all(x: Any, fits: Any) -> bool:
    return isinstance(x, (list, tuple)) and all(map(fits, x))
