"""A fused function traced for given shapes: every stage of what it became, as text."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from jax_fuser import _core, _ffi, _names, _trace, _tuned

STAGES = ("jaxpr", "fusion", "segments", "schedule", "loops", "source", "host", "sass")
_PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}


class Lowered:
    """A fused function, traced for given shapes. `as_text(stage)` shows a stage, `compile()` returns what runs.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_fuser as jf
      >>> lowered = jf.fuse(lambda x: jnp.tanh(x) * 2, name="f").lower(jnp.ones(8))
      >>> "tanh" in lowered.as_text("fusion")
      True
    """

    def __init__(self, traced: Any):
        self._traced = traced

    def __repr__(self) -> str:
        regions = len(list(fused_equations(self._traced.jaxpr)))
        return f"<{regions} fused region{'' if regions == 1 else 's'}; as_text(stage) shows {', '.join(STAGES)}>"

    def as_text(self, stage: str = "fusion", *, platform: str | None = None) -> str:
        """Return one stage of every region, under a header line each.

        Arguments have the function's names, params_w1 for params['w1'], and results those of their paths, where
        these are words. What is compiled has no names, so that equal kernels compile once.

        Args:
          stage: "jaxpr" (regions are `jax_fuser_fused` equations), "fusion" (what is computed), "segments" (kernels),
            "schedule" (how), "loops" (the loop program), "source" (C++ or CUDA C++), "host" (the steps of the call) or
            "sass" (the instructions on CUDA, which needs NVRTC and nvdisasm but no device).
          platform: "cpu" or "cuda"; the default device's if None. CUDA text needs no CUDA device.

        Raises:
          ValueError: for another stage or platform, for "sass" on a CPU, and where a tool for it is missing.
        """
        if stage not in STAGES:
            raise ValueError(f"as_text: stage must be one of {', '.join(STAGES)}, got {stage!r}")
        platform = platform_of(platform, "as_text")
        if stage == "sass" and platform != "cuda":
            raise ValueError("as_text: stage 'sass' is of CUDA; pass platform='cuda', or read stage 'source'")
        if stage == "jaxpr":
            return str(_printable(self._traced.jaxpr))
        parts = []
        for i, eqn in enumerate(fused_equations(self._traced.jaxpr)):
            program = program_of(eqn)
            shown = program_of(eqn, names_of(eqn))
            text = "no kernel: its results are scalars or inputs"
            if program is not None and shown is not None:
                text = stage_text(program, stage, platform, shown)
            parts.append(f"# region {i}: {eqn.params['name']}\n{text.rstrip()}\n")
        return "\n".join(parts) or "# no region: everything is left to XLA\n"

    def compile(self) -> Any:
        """Compile for the default device; call the result with arrays of the traced shapes."""
        return self._traced.lower().compile()


def _printable(closed: Any) -> Any:
    """Return the jaxpr without the parameters that only speak to the lowering."""

    def shown(eqn: Any) -> Any:
        return eqn.replace(params={k: v for k, v in eqn.params.items() if k not in ("mesh", "min_elements")})

    eqns = [shown(eqn) if eqn.primitive.name == _trace.FUSED else eqn for eqn in closed.jaxpr.eqns]
    return closed.jaxpr.replace(eqns=eqns)


def platform_of(platform: str | None, function: str) -> str:
    """Return the argument `platform` of a public function; the default device's if None."""
    if platform is None:
        return _PLATFORMS.get(jax.default_backend(), "cpu")
    if platform not in ("cpu", "cuda"):
        raise ValueError(f"{function}: platform must be 'cpu' or 'cuda', got {platform!r}")
    return platform


def stage_text(program: str, stage: str, platform: str, shown: str) -> str:
    """Return one stage of a program on a platform, with the parameters that `autotune` chose there.

    It is of `shown`, the program with the user's names.
    """
    target = _ffi.target_text(platform)
    shown += _tuned.kept(program, target)
    if stage == "sass":
        text: str = _core.sass(shown, target)
        return text
    return _stages(shown, target)[stage]


@functools.lru_cache(maxsize=256)
def _stages(program: str, target: str) -> dict[str, str]:
    return _core.stages(program, target)


def names_of(eqn: Any) -> _names.Names:
    """Return the user's names of the inputs and results of a fused equation."""
    jaxpr = eqn.params["jaxpr"].jaxpr
    return _names.of(jaxpr.debug_info, len(jaxpr.invars), len(jaxpr.outvars))


def program_of(eqn: Any, names: _names.Names = _names.NONE) -> str | None:
    """Return the program of a fused equation, with these names; None where it needs no kernel."""
    given: str | None = eqn.params.get("program")
    if given is not None:
        return given
    jaxpr = eqn.params["jaxpr"].jaxpr
    return _trace.write_program(jaxpr, eqn.params["name"], names)[0].text if _trace.needs_kernel(jaxpr) else None


def inner_jaxprs(eqn: Any) -> list[Any]:
    """Return the open jaxprs among the parameters of an equation."""
    return [getattr(j, "jaxpr", j) for j in jaxprs_in_params(eqn.params)]


def fused_equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the fused equations of a jaxpr and of those in it."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name == _trace.FUSED:
            yield eqn
        else:
            for inner in inner_jaxprs(eqn):
                yield from fused_equations(inner)
