"""What this machine has: targets, compilers, and what each kind of program would run on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass

import jax

from . import _core, _ffi


@dataclass(frozen=True)
class Diagnosis:
    """The answer of `doctor`: (subject, finding, works) rows; its text is a table."""

    rows: tuple[tuple[str, str, bool], ...]

    def __repr__(self) -> str:
        width = max(len(subject) for subject, _, _ in self.rows)
        return "\n".join(f"{'ok' if ok else '--'}  {subject:<{width}}  {finding}" for subject, finding, ok in self.rows)

    @property
    def healthy(self) -> bool:
        """Whether every program can run on this machine's CPU."""
        return all(ok for subject, _, ok in self.rows if subject.startswith("CPU"))


def doctor() -> Diagnosis:
    """Look at this machine and say what jax_fuser finds and would use.

    Returns:
      A `Diagnosis`; print it. A row that begins with `--` names what is missing and what to do.

    Example:
      >>> import jax_fuser as jf
      >>> jf.doctor().rows[0][0]
      'Python'
    """
    compiler, compiler_note = _core.host_compiler()
    nvrtc, nvrtc_note = _core.nvrtc()
    cuda = _core.cuda_target(0)
    cpu_reason, cuda_reason = _ffi.can_compile("cpu"), _ffi.can_compile("cuda")
    isa = _core.host_target().split()[1].removeprefix("isa=")
    rows = [
        ("Python", f"{platform.python_version()}, JAX {jax.__version__}", True),
        ("CPU target", _core.host_target(), True),
        ("CPU compiler", f"{compiler} ({compiler_note})" if compiler else compiler_note, compiler is not None),
        ("CPU fusions", "generated C++" if cpu_reason is None else "plain XLA ops: no compiler", cpu_reason is None),
        ("CPU grouped matmul", f"compiled into the package, {isa} kernels", True),
        ("CUDA target", cuda or "no CUDA driver or device", cuda is not None),
        ("CUDA compiler", f"{nvrtc} ({nvrtc_note})" if nvrtc else nvrtc_note, nvrtc is not None),
    ]
    if cuda is not None:
        finding = "NVRTC kernels" if cuda_reason is None else cuda_reason
        rows.append(("CUDA fusions", finding, cuda_reason is None))
        rows.append(
            ("CUDA grouped matmul", _grouped_kernels(cuda) if cuda_reason is None else finding, cuda_reason is None)
        )
        scaled = "operands become float32, 4-bit weights the dtype of the rows: no fp8 or 4-bit kernel here"
        if " sm=90 " in cuda:
            scaled = "fp8 on tensor cores (wgmma), 4-bit weights decoded for bf16 rows"
        rows.append(("CUDA scaled matmul", scaled if cuda_reason is None else finding, cuda_reason is None))
    folder = _core.cache_folder()
    rows.append(("Kernels kept in", folder or "no folder: every process compiles anew", folder is not None))
    return Diagnosis((*rows, *_settings()))


_SETTINGS = {"JAX_FUSER_DUMP": (), "JAX_FUSER_CACHE_DIR": (), "JAX_FUSER_LOG": ("info", "debug"), "JAX_FUSER_CXX": ()}


def _settings() -> Iterator[tuple[str, str, bool]]:
    """Yield a row for each variable of the environment that is ours, or looks so."""
    for name, value in sorted(os.environ.items()):
        if name.startswith("JAX_FUSER_"):
            values = _SETTINGS.get(name)
            hint = f"; no such variable: {', '.join(_SETTINGS)}" if values is None else ""
            hint = f"; expected {' or '.join(values)}" if values and value not in ("", *values) else hint
            if name == "JAX_FUSER_DUMP" and (reason := _core.why_no_dump()):
                hint = f"; {reason}"
            yield name, value + hint, not hint


def _grouped_kernels(target: str) -> str:
    if " sm=90 " in target:
        return "tensor cores (wgmma for bf16 and f16 with k and n in multiples of 8, else mma.sync)"
    return "tensor cores (mma.sync)"


def counters() -> dict[str, int]:
    """Return what this process compiled, loaded and ran so far, by name.

    Example:
      >>> import jax_fuser as jf
      >>> "compiled_host" in jf.counters()
      True
    """
    return _core.counters()
