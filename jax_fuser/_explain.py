"""What `fuse` made of a function: every stage as text, and an overview on one screen."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Var, jaxprs_in_params

from jax_fuser import _core, _ffi, _regions, _trace

STAGES = ("jaxpr", "fusion", "segments", "schedule", "loops", "source", "host")
_PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}
_MAX_LINES = 40


class Lowered:
    """A fused function, traced for given shapes. `as_text(stage)` shows a stage, `compile()` returns what runs.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_fuser as jf
      >>> lowered = jf.fuse(lambda x: jnp.tanh(x) * 2, name="f").lower(jnp.ones(8))
      >>> "tanh" in lowered.as_text("fusion")
      True
    """

    def __init__(self, jitted: Any, args: Any, kwargs: Any):
        self._traced = jitted.trace(*args, **kwargs)

    def as_text(self, stage: str = "fusion", *, platform: str | None = None) -> str:
        """Return one stage of every region, under a header line each.

        Args:
          stage: "jaxpr" (regions are `jax_fuser_fused` equations), "fusion" (what is computed), "segments" (kernels),
            "schedule" (how), "loops" (the loop program), "source" (C++ or CUDA C++) or "host" (the steps of the call).
          platform: "cpu" or "cuda"; the default device's if None. CUDA text needs no CUDA device.
        """
        if stage not in STAGES:
            raise ValueError(f"as_text: stage must be one of {', '.join(STAGES)}, got {stage!r}")
        platform = _platform(platform, "as_text")
        if stage == "jaxpr":
            return str(_printable(self._traced.jaxpr))
        parts = []
        for i, eqn in enumerate(_fused_equations(self._traced.jaxpr)):
            program = _program(eqn)
            text = _stages(program, platform)[stage] if program else "no kernel: its results are scalars or inputs"
            parts.append(f"# region {i}: {eqn.params['name']}\n{text.rstrip()}\n")
        return "\n".join(parts) or "# no region: everything is left to XLA\n"

    def compile(self) -> Any:
        """Compile for the default device; call the result with arrays of the traced shapes."""
        return self._traced.lower().compile()


@dataclass(frozen=True)
class RegionReport:
    """One program: its kernels as text, the bytes of its inputs and outputs, its reductions and scans by the names of
    their primitives, and how many calls have this very text.
    """

    name: str
    ops: int
    bytes_in: int
    bytes_out: int
    kernels: str
    count: int = 1
    reductions: tuple[str, ...] = ()


@dataclass(frozen=True)
class CutReport:
    """A primitive that stayed with XLA, how often, and why."""

    primitive: str
    count: int
    reason: str


@dataclass(frozen=True)
class Explanation:
    """What runs as kernels and what was left to XLA; print it."""

    name: str
    platform: str
    regions: tuple[RegionReport, ...]
    cuts: tuple[CutReport, ...]

    def __repr__(self) -> str:
        calls = sum(r.count for r in self.regions)
        lines = [f"{self.name} on {self.platform}: {calls} fused call{'s' * (calls != 1)}"]
        reason = _ffi.can_compile(self.platform)
        if reason is not None:
            lines.append(f"  run as plain XLA ops here: {reason}")
        for i, r in enumerate(self.regions):
            head = f"  [{i}] {r.name}" + (f" x{r.count}" if r.count > 1 else "")
            size = f"{r.ops} op{'s' * (r.ops != 1)}, reads {_bytes(r.bytes_in)}, writes {_bytes(r.bytes_out)}"
            folds = Counter(r.reductions).items()
            size += f" ({', '.join(name + f' x{n}' * (n > 1) for name, n in folds)})" * bool(folds)
            lines.append(f"{head}: {size}")
            lines += [f"      {line}" for line in r.kernels.splitlines() if line.startswith(("segment", "scalars"))]
        if self.cuts:
            lines.append("  left to XLA:")
            width = max(len(f"{c.primitive} x{c.count}") for c in self.cuts)
            lines += [f"    {f'{c.primitive} x{c.count}':<{width}}  {c.reason}" for c in self.cuts]
        if len(lines) > _MAX_LINES:
            hidden = len(lines) - _MAX_LINES + 1
            lines = [*lines[: _MAX_LINES - 1], f"  ... {hidden} more lines; see .regions and .cuts"]
        return "\n".join(lines)


def explain(f: Callable[..., Any], *, platform: str | None = None) -> Callable[..., Explanation]:
    """Say which kernels a function becomes under `fuse`, and what stays with XLA and why.

    Args:
      f: a fused function, anything that calls some (`jax.grad` of one, say), or a plain function, which is then fused.
      platform: "cpu" or "cuda"; the default device's if None.

    Returns:
      A function of f's arguments (arrays or `jax.ShapeDtypeStruct`) that returns an `Explanation`. Nothing runs.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_fuser as jf
      >>> report = jf.explain(lambda x, w: jnp.tanh(x @ w) * 2)(jnp.ones((8, 4)), jnp.ones((4, 8)))
      >>> [(cut.primitive, cut.reason) for cut in report.cuts]
      [('dot_general', 'a matrix product')]
    """
    if not callable(f):
        raise TypeError(f"explain: expected a function, got {type(f).__name__}; write jf.explain(f)(x)")

    @functools.wraps(f)
    def explained(*args: Any, **kwargs: Any) -> Explanation:
        from jax_fuser._fuse import fuse  # that module needs this one

        where = _platform(platform, "explain")
        jaxpr = jax.jit(f).trace(*args, **kwargs).jaxpr
        if not any(True for _ in _fused_equations(jaxpr)):
            jaxpr = fuse(f).lower(*args, **kwargs)._traced.jaxpr
        return _explanation(getattr(f, "__name__", "function"), where, jaxpr)

    return explained


def _explanation(name: str, platform: str, jaxpr: Any) -> Explanation:
    reports: dict[str, RegionReport] = {}
    for eqn in _fused_equations(jaxpr):
        program = _program(eqn)
        key = program or str(eqn)
        seen = reports.get(key)
        inner = eqn.params["jaxpr"].jaxpr
        reports[key] = RegionReport(
            eqn.params["name"],
            len(inner.eqns),
            sum(_ffi.buffer_bytes(v.aval) for v in inner.invars),
            sum(_ffi.buffer_bytes(v.aval) for v in inner.outvars),
            _stages(program, platform)["segments"] if program else "scalars: run as plain XLA ops",
            seen.count + 1 if seen else 1,
            tuple(_trace.reductions(inner)),
        )
    cuts = Counter(_cuts(jaxpr))
    return Explanation(
        name, platform, tuple(reports.values()), tuple(CutReport(p, n, reason) for (p, reason), n in cuts.items())
    )


def _printable(closed: Any) -> Any:
    """Return the jaxpr without the parameter that only speaks to JAX's lowering."""
    eqns = [
        e.replace(params={k: v for k, v in e.params.items() if k != "mesh"}) if e.primitive.name == _trace.FUSED else e
        for e in closed.jaxpr.eqns
    ]
    return closed.jaxpr.replace(eqns=eqns)


def _platform(platform: str | None, function: str) -> str:
    if platform is None:
        return _PLATFORMS.get(jax.default_backend(), "cpu")
    if platform not in ("cpu", "cuda"):
        raise ValueError(f"{function}: platform must be 'cpu' or 'cuda', got {platform!r}")
    return platform


@functools.lru_cache(maxsize=256)
def _stages(program: str, platform: str) -> dict[str, str]:
    target = _ffi.target_text(platform)
    return _core.stages(program, target)


def _program(eqn: Any) -> str | None:
    jaxpr = eqn.params["jaxpr"].jaxpr
    return _trace.write_program(jaxpr, eqn.params["name"])[0].text if _trace.needs_kernel(jaxpr) else None


def _inner(eqn: Any) -> list[Any]:
    return [getattr(j, "jaxpr", j) for j in jaxprs_in_params(eqn.params)]


def _fused_equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name == _trace.FUSED:
            yield eqn
        else:
            for inner in _inner(eqn):
                yield from _fused_equations(inner)


def _cuts(jaxpr: Any) -> Iterator[tuple[str, str]]:
    """Yield (primitive, reason) for every equation that is in no region."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    reduced = _regions.feeds_reductions(jaxpr.eqns, {v for v in jaxpr.outvars if isinstance(v, Var)})
    for i, eqn in enumerate(jaxpr.eqns):
        name = eqn.primitive.name
        if name == _trace.FUSED:
            continue
        if any(True for inner in _inner(eqn) for _ in _fused_equations(inner)):
            for inner in _inner(eqn):
                yield from _cuts(inner)
            continue
        reason = _trace.unsupported(eqn)
        if reason is None and i in reduced:
            reason = "feeds only reductions, which compute it"
        elif reason is None and (_trace.is_view(eqn) or name == "convert_element_type"):
            reason = "moves or casts data between ops of XLA"
        elif reason is None and any(0 in v.aval.shape for v in eqn.outvars):
            reason = "has no element"
        elif reason is None:
            reason = "outside of the fused function; put jf.fuse around the transform to fuse it"
        yield name, reason


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
