"""Arguments that are values, not arrays: `static_argnums` and `static_argnames`, as `jax.jit` has them."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Statics:
    """Positions and names; an argument that can be passed either way is in both."""

    positions: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def bound(self, f: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Callable[..., Any], Any, Any]:
        """Return a function of the other arguments alone, and those."""
        if not self.positions and not self.names:
            return f, args, kwargs
        free = tuple(a for i, a in enumerate(args) if i not in self.positions)
        named = {name: a for name, a in kwargs.items() if name not in self.names}

        def of_arrays(*arrays: Any, **by_name: Any) -> Any:
            rest = iter(arrays)
            merged = [a if i in self.positions else next(rest) for i, a in enumerate(args)]
            return f(*merged, **{**kwargs, **by_name})

        return of_arrays, free, named

    def check(self, name: str, args: Any, kwargs: Any) -> None:
        """Raise where another argument of the function of this name is no array."""
        free = {i: a for i, a in enumerate(args) if i not in self.positions}
        named = {key: a for key, a in kwargs.items() if key not in self.names}
        for path, leaf in jax.tree_util.tree_leaves_with_path((free, named)):
            dtype = getattr(leaf, "dtype", None)
            is_array = dtype is not None and getattr(dtype, "kind", "f") not in "OSUMm"
            if is_array or isinstance(leaf, (bool, int, float, complex)):
                continue
            got = f"a {type(leaf).__name__}" if dtype is None else f"an array of {dtype}"
            raise TypeError(
                f"fuse: {name} got {got} at argument {jax.tree_util.keystr(path[1:])}; arguments must be arrays or "
                "pytrees of arrays: close over everything else (functools.partial), or name it in static_argnames="
            )


NONE = Statics()


def of(f: Callable[..., Any], static_argnums: int | Iterable[int], static_argnames: str | Iterable[str]) -> Statics:
    """Return what `fuse` was given for a function, checked against its parameters."""
    names = [static_argnames] if isinstance(static_argnames, str) else _items("static_argnames", static_argnames)
    numbers = [static_argnums] if isinstance(static_argnums, int) else _items("static_argnums", static_argnums)
    if not names and not numbers:
        return NONE
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"fuse: static_argnames must be strings, got {name!r}")
    try:
        positions = [operator.index(number) for number in numbers]
    except TypeError:
        raise TypeError(f"fuse: static_argnums must be integers, got {numbers!r}") from None
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except ValueError:  # one of Python's own that does not say; it takes what it takes
        parameters = [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_more = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    takes_names = any(p.kind == p.VAR_KEYWORD for p in parameters)
    for i, at in enumerate(positions):
        if not -len(placed) <= at < len(placed) and not (takes_more and at >= 0):
            raise ValueError(f"fuse: static_argnums has {at}, but the function has {len(placed)} positional arguments")
        positions[i] = at + len(placed) if at < 0 else at
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in names:
        if name not in known and not takes_names:
            raise ValueError(f"fuse: static_argnames has {name!r}; the function's arguments are {', '.join(known)}")
    positions += [i for i, p in enumerate(placed) if p.name in names]
    names += [placed[i].name for i in positions if i < len(placed) and placed[i].name in known]
    return Statics(tuple(sorted({*positions})), tuple(sorted({*names})))


def _items(what: str, given: Any) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise TypeError(f"fuse: {what} must be one or several of them, got {given!r}") from None
