"""Parameters of kernels that `autotune` measured: a file for each program and target, beside the compile cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

import jax_fuser

from . import _core

_kept: dict[str, str] = {}  # by `_key` of program and target: what was measured for it
# Of the thread that measures, which is the one that lowers: what another compiles meanwhile is none of its trials.
_trial: ContextVar[Mapping[str, str]] = ContextVar("trial", default={})  # noqa: B039  by program: what to try instead
_seen: ContextVar[tuple[list[str], ...]] = ContextVar("seen", default=())  # of each `programs_seen` that is open


def text_of(choices: dict[str, str]) -> str:
    """Return what follows a program's text to choose parameters, of kernels by name."""
    lines = "".join(f"  {kernel}: {parameters}\n" for kernel, parameters in sorted(choices.items()))
    return f"tuned {{\n{lines}}}\n" if choices else ""


def choices_of(text: str) -> dict[str, str]:
    """Return the choices whose `text_of` this is."""
    return dict(line.strip().split(": ", 1) for line in text.splitlines()[1:-1])


def with_choices(program: str, target: str) -> str:
    """Return the program with the parameters that were measured for it, where there are any."""
    for seen in _seen.get():
        seen.append(program)
    tried = _trial.get().get(program)
    return program + (kept(program, target) if tried is None else tried)


def kept(program: str, target: str) -> str:
    """Return the text of what was chosen for a program, by this process or another."""
    key = _key(program, target)
    if key not in _kept:
        _kept[key] = _read(program, target, key)
    return _kept[key]


def _key(program: str, target: str) -> str:
    return hashlib.sha256(f"{jax_fuser.__version__}\n{target}\n{program}".encode()).hexdigest()


def _path(key: str) -> str | None:
    folder = _core.cache_folder()
    return os.path.join(folder, "tuned", f"{key}.txt") if folder is not None else None


def _read(program: str, target: str, key: str) -> str:
    try:
        with open(_path(key) or "", encoding="utf-8") as file:
            chosen = file.read()
        _core.workspace_bytes(program + chosen, target)
    except (OSError, ValueError, _core.UserError, _core.InternalError):
        return ""  # none, or damaged, or of other kernels
    return chosen


def keep(program: str, target: str, choices: dict[str, str]) -> None:
    """Keep what was chosen for a program: in this process and, where there is a cache, for others of this user."""
    key = _key(program, target)
    _kept[key] = text_of(choices)
    path = _path(key)
    if path is None:
        return
    try:
        if choices:
            _write(path, text_of(choices))
        elif os.path.exists(path):
            os.unlink(path)
    except OSError as error:
        warnings.warn(f"autotune: what was measured is kept for this process alone: {error}", stacklevel=2)


def _write(path: str, text: str) -> None:
    """Write a file that another process reads whole or not at all."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    file = tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), delete=False, encoding="utf-8")  # noqa: SIM115
    try:
        with file:
            file.write(text)
        os.replace(file.name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(file.name)
        raise


@contextlib.contextmanager
def trial(program: str, choices: dict[str, str]) -> Iterator[None]:
    """Lower a program with these parameters and no others, in this thread."""
    before = _trial.set({**_trial.get(), program: text_of(choices)})
    try:
        yield
    finally:
        _trial.reset(before)


def is_trial() -> bool:
    """Return whether this thread lowers what is timed."""
    return bool(_trial.get())


@contextlib.contextmanager
def programs_seen() -> Iterator[list[str]]:
    """Collect the programs that this thread lowers, without what was chosen for them."""
    seen: list[str] = []
    before = _seen.set((*_seen.get(), seen))
    try:
        yield seen
    finally:
        _seen.reset(before)
