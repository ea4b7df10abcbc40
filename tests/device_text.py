"""Device headers and printed kernels compiled by g++ for a GPU's compiler, and run: see warpgroup.h."""

import subprocess
from pathlib import Path

import pytest

from jax_fuser import _core

TESTS = Path(__file__).parent
# Files of one instruction a function, whose CPU forms are in warpgroup.h and in what a test brings.
STUBS = ("codegen/ptx.cuh", "codegen/ptx_convert.cuh", "grouped/cuda/ptx_hopper.cuh", "grouped/cuda/ptx_fp8.cuh",
         "grouped/cuda/ptx_four_bit.cuh", "grouped/cuda/ptx_quantize.cuh")  # fmt: skip


def run_on_cpu(text, folder, flags=("-O1",), headers=("warpgroup.h",), **how):
    """Return what a program of these headers and this text does in `folder`, with `how` to run it; skip without g++."""
    compiler = _core.host_compiler()[0]
    if not compiler.endswith("g++"):
        pytest.skip(f"the device headers are compiled by g++ here, got {compiler or 'no compiler'}")
    for stub in STUBS:
        (folder / stub).parent.mkdir(parents=True, exist_ok=True)
        (folder / stub).write_text("#pragma once\n")
    before = "".join((TESTS / name).read_text().replace("#pragma once", "", 1) for name in headers)
    (folder / "main.cpp").write_text(before + text)
    command = [compiler, "-std=c++20", "-w", *flags, f"-I{folder}", f"-I{TESTS.parent / 'csrc'}"]
    subprocess.run([*command, "main.cpp", "-o", "main"], cwd=folder, check=True)
    return subprocess.run(["./main"], cwd=folder, check=True, capture_output=True, timeout=120, **how).stdout
