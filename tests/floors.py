"""Check that every C++ include goes to the same room or to a lower floor, as csrc/README.md draws them."""

import pathlib
import re
import sys

FLOORS = {
    "base": 0,
    "ir": 0.5,
    "schedule": 1,
    "loops": 1,
    "runtime": 1,
    "graph": 2,
    "codegen": 2,
    "grouped": 2,
    "plan": 3,
    "lower": 4,
    "host": 5,
    "ffi": 6,
    "python": 7,
}
# Kernels may use codegen/ptx.cuh: they are text for the device compiler, not sources of ours.
DEVICE_TEXT = ".cuh"


def violations(root: pathlib.Path) -> list[str]:
    found = []
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        room = path.relative_to(root).parts[0]
        for include in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            other = include.split("/")[0]
            if include.endswith(DEVICE_TEXT) or other not in FLOORS or other == room:
                continue
            if FLOORS[other] >= FLOORS[room]:
                found.append(
                    f"{path.relative_to(root)} (floor {FLOORS[room]}) includes {include} (floor {FLOORS[other]})"
                )
    return found


if __name__ == "__main__":
    found = violations(pathlib.Path(__file__).parent.parent / "csrc")
    print("\n".join(found) or "floors: no violation")
    sys.exit(bool(found))
