"""Compiles the functions ahead in threads, then times and compares them one by one.

The floor of a function is every operand that results need read once and every result written once, at the rate of a
copy of 256 MB. Values are compared with those of `jax.jit`.
"""

from __future__ import annotations

import concurrent.futures
import functools
import gc
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import jax_fuser as jf

from ..measure import Contender, Timing, time_all
from ..report import OURS, Case
from ..sweep import COPY, XLA, negation
from .cases import Corner, chosen, described
from .summary import print_header

ROUNDS, QUICK_ROUNDS, CALLS, SECONDS = 7, 3, 10, 0.3
COPIED = {"full": 256 << 20, "small": 1 << 20}  # bytes
COMPILING = 0.7  # of the budget, at most
# Of the largest element; wider than in tests, for sums are of millions and phases of thousands. Of integers, the share
# that may differ: indices of equal elements, what is rounded.
LIMITS = {"float32": 1e-3, "complex64": 1e-3, "bfloat16": 2e-2, "float8_e4m3fn": 0.13}
INTEGERS = 1e-2


@dataclass(frozen=True)
class Compiled:
    """What is run for a function, and what is known of it before."""

    corner: Corner
    make: Callable[[jax.Array], list[Any]]
    ours: Callable[..., Any]
    plain: Callable[..., Any]
    compare: Callable[[Any, Any], Any]
    floor: int  # bytes
    parameters: dict[str, Any]


def default_scale() -> str:
    return "full" if jax.default_backend() == "gpu" else "small"


def cases(
    *,
    quick: bool,
    only: str,
    part: tuple[int, int] = (1, 1),
    budget: float = math.inf,
    scale: str | None = None,
) -> Iterator[Case]:
    """Yield measured cases, for `budget` seconds; then say which functions are left."""
    begin = time.perf_counter()
    scale = scale or default_scale()
    corners = chosen(only, part, quick)

    def compile_in_time(corner: Corner) -> Compiled | None:
        late = time.perf_counter() - begin > COMPILING * budget
        return None if late else compile_corner(corner, scale)

    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        compiled = [pool.submit(compile_in_time, corner) for corner in corners]
    gc.freeze()  # the many objects of the compiled programs: they need not be looked through between the functions
    print(f"{len(corners)} functions, compiled for {time.perf_counter() - begin:.0f} s", flush=True)
    rate = copy_rate(COPIED[scale])
    print(f"{scale} scale; a copy of {COPIED[scale] >> 20} MB: {rate / 1e12:.3g} TB/s", flush=True)
    print_header()
    left = []
    for corner in corners:
        try:
            ready = compiled.pop(0).result()
            if ready is None or time.perf_counter() - begin > budget:
                left.append(corner.name)
                continue
            case = measure(ready, rate, QUICK_ROUNDS if quick else ROUNDS)
        except Exception as e:
            case = Case("corners", corner.name, {"scale": scale, "kernels": 0}, "us", 0)
            note = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:120]}"
            nan = math.nan
            case.timings = [Timing(OURS, nan, nan, nan, note=note), Timing(XLA, nan, nan, nan)]
        yield case
    if left:
        print(f"\n{budget:g} s are over; left out: {', '.join(left)}")


def copy_rate(size: int) -> float:
    """Return bytes per second, read and written."""
    x = jnp.ones((size // 4,), jnp.float32)
    copy = negation(jax.ShapeDtypeStruct(x.shape, x.dtype))
    [timing] = time_all([Contender(COPY, functools.partial(copy, x))], seconds=1, repeats=11, inner=CALLS)
    return 2 * x.nbytes / timing.median


def compile_corner(corner: Corner, scale: str) -> Compiled:
    """Compile all that runs for a function."""
    f, shapes = corner.function(), corner.shapes(scale)
    jaxpr, results = jax.make_jaxpr(f, return_shape=True)(*shapes)
    make = jax.jit(functools.partial(corner.arrays, scale=scale))
    kernels, left = plan(f, shapes)
    return Compiled(
        corner,
        make.lower(jax.ShapeDtypeStruct((), jnp.uint32)).compile(),
        jax.jit(jf.fuse(f)).lower(*shapes).compile(),
        jax.jit(f).lower(*shapes).compile(),
        jax.jit(differences).lower(results, results).compile(),
        floor_bytes(jaxpr.jaxpr, corner.floor),
        {"operands": described(shapes), "scale": scale, "kernels": kernels, "left to XLA": left},
    )


def plan(f: Callable[..., Any], shapes: list[Any]) -> tuple[int, str]:
    """Return how many kernels of ours there are, and what is left to XLA."""
    explained = jf.explain(f)(*shapes)
    kernels = sum(region.count * len(region.segments) for region in explained.regions)
    return kernels, ", ".join(f"{cut.primitive} x{cut.count}" for cut in explained.cuts if not cut.own_call)


def floor_bytes(jaxpr: Any, of_written: Callable[[int], int] | None) -> int:
    """Return the bytes of the operands that results need and of the results, or what is known of the latter's."""
    needed = set(map(id, jaxpr.outvars))
    for equation in reversed(jaxpr.eqns):
        if any(id(v) in needed for v in equation.outvars):
            needed.update(map(id, equation.invars))

    def size(variables: list[Any]) -> int:
        return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)

    written = size(jaxpr.outvars)
    return of_written(written) if of_written else written + size([v for v in jaxpr.invars if id(v) in needed])


def measure(compiled: Compiled, rate: float, rounds: int) -> Case:
    """Time one function and compare its values."""
    operands = jax.block_until_ready(compiled.make(jnp.uint32(1)))
    runs = {OURS: functools.partial(compiled.ours, *operands), XLA: functools.partial(compiled.plain, *operands)}
    case = Case("corners", compiled.corner.name, compiled.parameters, "us", compiled.floor)
    contenders = [Contender(name, run) for name, run in runs.items()]
    case.timings = time_all(contenders, seconds=SECONDS, repeats=rounds, inner=CALLS)
    if not any(t.note for t in case.timings):
        got, want = runs[OURS](), runs[XLA]()
        found = compiled.compare(got, want)
        case.timings[0].error, case.timings[0].note = judge(compiled.corner, found, operands, got, want)
    floor = compiled.floor / rate
    case.timings.append(Timing(COPY, floor, floor, floor, bound=True))
    return case


def judge(corner: Corner, found: Any, operands: list[Any], got: Any, want: Any) -> tuple[float, str]:
    """Return the largest difference, and what is wrong. In low precision it is right to be as near as jax.jit to what
    the function is of the same operands in float32."""
    results = [(float(apart), int(odd), w.dtype.name) for (apart, odd), w in zip(found, jax.tree.leaves(want))]
    wrong = [
        f"result {i}, {dtype}: {f'{odd} elements not finite in one alone' if odd else f'differs by {apart:.2g}'}"
        for i, (apart, odd, dtype) in enumerate(results)
        if odd or not apart <= LIMITS.get(dtype, INTEGERS)
    ]
    if wrong and corner.dtype == "bf16" and not any(odd for _, odd, _ in results):
        wide = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, operands)
        truth = jax.jit(corner.function())(*wide)
        in_wide = [jax.tree.map(lambda x, t: x.astype(t.dtype), r, truth) for r in (got, want)]
        ours, theirs = (max(float(d) for d, _ in jax.jit(differences)(r, truth)) for r in in_wide)
        wrong = [] if ours <= 1.2 * theirs else [f"{wrong[0]}; of float32 {ours:.2g}, {XLA} {theirs:.2g}"]
    return max((apart for apart, _, _ in results), default=0.0), "; ".join(f"wrong: {w}" for w in wrong[:1])


def differences(got: Any, want: Any) -> list[tuple[jax.Array, jax.Array]]:
    """Return, for each result, the largest difference relative to the largest element, of integers the share that
    differs, and how many elements are not finite in one alone."""

    def one(g: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        if not jnp.issubdtype(w.dtype, jnp.inexact):
            return jnp.mean((g != w).astype(jnp.float32)), jnp.int32(0)
        if jnp.issubdtype(w.dtype, jnp.complexfloating):
            g, w = (jnp.stack([z.real, z.imag]) for z in (g, w))
        g, w = g.astype(jnp.float32), w.astype(jnp.float32)
        same = (g == w) | (jnp.isnan(g) & jnp.isnan(w))
        finite = jnp.isfinite(g) & jnp.isfinite(w)
        apart = jnp.max(jnp.where(finite, jnp.abs(g - w), 0))
        largest = jnp.max(jnp.where(jnp.isfinite(w), jnp.abs(w), 0))
        return apart / jnp.maximum(largest, 1e-30), jnp.sum(~same & ~finite)

    return [one(g, w) for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want))]
