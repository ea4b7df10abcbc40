"""Parameters of kernels that `autotune` measured: a file for each program and target, beside the compile cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator

import jax_fuser

from . import _core

_kept: dict[tuple[str, str], str] = {}  # by program and target: what this process measured
_trial: dict[str, str] = {}  # by program: what a measurement tries instead
_seen: list[list[str]] = []  # of each `programs_seen` that is open


def text_of(choices: dict[str, str]) -> str:
    """Return what follows a program's text to choose parameters, of kernels by name."""
    lines = "".join(f"  {kernel}: {parameters}\n" for kernel, parameters in sorted(choices.items()))
    return f"tuned {{\n{lines}}}\n" if choices else ""


def with_choices(program: str, target: str) -> str:
    """Return the program with the parameters that were measured for it, where there are any."""
    for seen in _seen:
        seen.append(program)
    if program in _trial:
        return program + _trial[program]
    chosen = _kept.get((program, target))
    if chosen is None:
        chosen = _kept[program, target] = _read(program, target)
    return program + chosen


def _path(program: str, target: str) -> str | None:
    folder = _core.cache_folder()
    if folder is None:
        return None
    key = hashlib.sha256(f"{jax_fuser.__version__}\n{target}\n{program}".encode()).hexdigest()
    return os.path.join(folder, "tuned", f"{key}.txt")


def _read(program: str, target: str) -> str:
    path = _path(program, target)
    try:
        with open(path or "") as file:
            chosen = file.read()
        _core.workspace_bytes(program + chosen, target)
    except (OSError, _core.UserError):
        return ""  # none, or of other kernels
    return chosen


def keep(program: str, target: str, choices: dict[str, str]) -> None:
    """Keep what was chosen for a program: in this process and, where there is a cache, for others of this user."""
    _kept[program, target] = text_of(choices)
    path = _path(program, target)
    if path is None:
        return
    if not choices:
        with contextlib.suppress(OSError):
            os.unlink(path)
        return
    with contextlib.suppress(OSError):  # a full disk costs what would be kept, no more
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        # Another process reads the whole file or none.
        with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), delete=False) as file:
            file.write(text_of(choices))
        os.replace(file.name, path)


@contextlib.contextmanager
def trial(program: str, choices: dict[str, str]) -> Iterator[None]:
    """Lower a program with these parameters and no others."""
    _trial[program] = text_of(choices)
    try:
        yield
    finally:
        del _trial[program]


@contextlib.contextmanager
def programs_seen() -> Iterator[list[str]]:
    """Collect the programs that are lowered, without what was chosen for them."""
    seen: list[str] = []
    _seen.append(seen)
    try:
        yield seen
    finally:
        _seen.remove(seen)
