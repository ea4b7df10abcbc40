"""The user's names of what goes into a fusion and comes out of it: of arguments, and the paths of results.

They are for people. A region has them as its jaxpr's debug info, and its program is written with them to be read; the
program that is compiled has none, so that calls equal up to names are one program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import DebugInfo, Var

# As jax.tree_util.keystr writes the keys of dicts, sequences and fields.
_PATH = re.compile(r"(\['?\w+'?\]|\.\w+)+", re.ASCII)


@dataclass(frozen=True)
class Names:
    """Identifiers, in the order of a fusion's inputs and results; "" where there is none."""

    arguments: Sequence[str] = ()
    results: Sequence[str] = ()


NONE = Names()


def arguments_of(info: Any, count: int) -> Sequence[str]:
    """Return the names of arguments as JAX has them, params['w1'] for one; "" for each where it has none."""
    names: Sequence[str] = info.arg_names or ()
    return names if len(names) == count else [""] * count


def paths_of(info: Any, count: int) -> Sequence[str | None]:
    """Return the path of each result, as jax.tree_util.keystr writes it; None for each where JAX has none."""
    paths = info.result_paths or ()
    if len(paths) != count:
        return [None] * count
    return [path.removeprefix("result") if path.startswith("result") else None for path in paths]


def debug_info(info: Any, given: tuple[Any, Any], invars: Sequence[Any], outvars: Sequence[Any]) -> DebugInfo:
    """Return the debug info of a part of a jaxpr with this one, by what are `given` (arguments, results) in both."""
    arguments = dict(zip(given[0], arguments_of(info, len(given[0]))))
    paths = zip(given[1], paths_of(info, len(given[1])))
    results = {v: f"result{path}" for v, path in reversed([*paths]) if isinstance(v, Var) and path is not None}
    return DebugInfo(
        "fuse", "fuse", tuple(arguments.get(v, "") for v in invars), tuple(results.get(v, "") for v in outvars)
    )


def of(info: Any, arguments: int, results: int) -> Names:
    """Return what debug info says of so many arguments and results."""
    return Names(identifiers(arguments_of(info, arguments)), [*map(of_path, paths_of(info, results))])


def identifiers(names: Iterable[str]) -> list[str]:
    """Return names of arguments as identifiers: params_w1 for params['w1']."""
    words = (re.sub(r"[^A-Za-z0-9]+", "_", name.replace("<flat index ", "")).strip("_") for name in names)
    return [word if word.isidentifier() else "" for word in words]


def of_path(path: str | None) -> str:
    """Return the path of a result as an identifier, "" where it is none: numbers alone do not name a value."""
    return identifiers([path])[0] if path and _PATH.fullmatch(path) else ""
