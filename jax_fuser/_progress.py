"""What a long measurement says on stderr while it runs."""

from __future__ import annotations

import shutil
import sys
import time


class ProgressLine:
    """One line of a terminal's stderr that says where the work is; elsewhere a line for each kernel that is done."""

    def __init__(self, name: str, shown: bool):
        self._name, self._begin = name, time.monotonic()
        self._rewrites = shown and sys.stderr.isatty()
        self._adds = shown and not self._rewrites
        self._written = False

    def write(self, text: str) -> None:
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1  # of two lines only the second would be written over
            sys.stderr.write(f"\r\x1b[K{self._stamped(text)[:width]}")
            sys.stderr.flush()
            self._written = True

    def done(self, text: str) -> None:
        if self._adds:
            print(self._stamped(text), file=sys.stderr, flush=True)

    def _stamped(self, text: str) -> str:
        return f"{self._name} {text}, {time.monotonic() - self._begin:.0f} s"

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._written:
            sys.stderr.write("\n")
