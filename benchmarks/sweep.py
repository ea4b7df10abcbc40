"""Fused functions of many shapes beside a copy of as many bytes: `python -m benchmarks fuse --sweep`.

Processes side by side compile everything first. Then each in turn, alone on the GPU, times its cells: what the GPU
itself takes for the kernels of one call, read with CUPTI. Every call has other operands and keeps its results until the
caches have seen several times their size since, so that each reads from memory and leaves as much behind as it found to
be written. Contenders run in another random order in every round.

The copy is of a flat array, half of the bytes that the cell reads and writes: the faster of a fused negation and of the
driver's own copy, in the same rounds.
"""

from __future__ import annotations

import collections
import functools
import importlib.util
import itertools
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import jax
import jax.numpy as jnp

import jax_fuser as jf

from . import fuse, fuse_torch
from .kernel_times import kernel_times
from .measure import Timing
from .report import OURS, Case

SHAPES = {
    "bfloat16": [
        *itertools.product((2048, 16384, 65536), (768, 2048, 4096, 8192, 16384)),
        (8191, 5003),
        (4095, 1537),
    ],
    "float32": [(2048, 8192), (16384, 2048), (16384, 8192), (65536, 768), (8191, 5003)],
}
LEFT_OUT = ("scaled residual", "swiglu backward")  # other pointwise functions stand for them
COPY, DRIVER = "copy of as many bytes", "the driver's copy"
REFERENCES = (COPY, DRIVER)
XLA = "jax.jit"
# Several times the second-level cache; of one contender in one round.
BYTES_BETWEEN, SECONDS_OF_TURN, MOST_CALLS, ROUNDS = 256 << 20, 1e-3, 24, 5
MOST_WORKERS = 14


@dataclass(frozen=True)
class Cell:
    """A pattern at one shape."""

    pattern: str
    rows: int
    columns: int
    dtype: str

    @property
    def name(self) -> str:
        """As cases are named."""
        return f"{self.pattern} {self.dtype}"


def has_torch() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


def cells(only: str, quick: bool) -> list[Cell]:
    """Return the cells whose name contains `only`, the largest first."""
    found = [
        Cell(pattern.name, rows, columns, dtype)
        for dtype, shapes in SHAPES.items()
        for rows, columns in (shapes[-2:] if quick else shapes)
        for pattern in fuse.PATTERNS
        if pattern.name not in LEFT_OUT and not (pattern.name == "rotary" and columns % 2)
    ]
    found = [cell for cell in found if only in cell.name]
    return sorted(found, key=lambda c: -c.rows * c.columns * jnp.dtype(c.dtype).itemsize)


# ---- in a worker ----


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def cut(pool: jax.Array, start: int, shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Return an array of the pool's numbers."""
    return jax.lax.dynamic_slice_in_dim(pool, start, math.prod(shape)).reshape(shape).astype(dtype)


@jax.jit
def difference(got: Any, want: Any) -> jax.Array:
    """Return the largest difference, relative to each result's largest element."""
    apart = [
        jnp.max(jnp.abs(g.astype(jnp.float32) - w.astype(jnp.float32))) / jnp.max(jnp.abs(w.astype(jnp.float32)))
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want))
    ]
    return functools.reduce(jnp.maximum, apart)


class Compiled:
    """A cell's contenders, compiled, and the shapes of their operands."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        pattern = next(p for p in fuse.PATTERNS if p.name == cell.pattern)
        rows, n = cell.rows, cell.columns
        extra = jax.eval_shape(lambda: pattern.extra(rows, n))
        one = [jax.ShapeDtypeStruct((rows, n), cell.dtype)] * pattern.full
        self.operands = [*one, *[jax.ShapeDtypeStruct((n,), cell.dtype)] * pattern.columns, *extra]
        self.shared = range(pattern.full, pattern.full + pattern.columns)
        self.results = jax.eval_shape(pattern.f, *self.operands)
        self.work = sum(a.size * a.dtype.itemsize for a in [*self.operands, *jax.tree.leaves(self.results)])
        flat = jax.ShapeDtypeStruct((self.work // 8,), jnp.float32)
        self.notes: dict[str, str] = {}
        self.runs: dict[str, Callable[..., Any]] = {}
        self._add(OURS, lambda: jax.jit(jf.fuse(pattern.f)).lower(*self.operands).compile())
        self._add(XLA, lambda: jax.jit(pattern.f).lower(*self.operands).compile())
        self._add(COPY, lambda: negation(flat))
        if has_torch():
            self._add(fuse_torch.PEER, self._torch_compiled)
        difference.lower(self.results, self.results).compile()

    def _add(self, name: str, make: Callable[[], Callable[..., Any]]) -> None:
        try:
            self.runs[name] = make()
        except Exception as e:
            self.notes[name] = f"{type(e).__name__}: {str(e).splitlines()[0][:80]}"

    def _torch_compiled(self) -> Callable[..., Any]:
        torch = importlib.import_module("torch")
        compiled = torch.compile(fuse_torch.functions(torch)[self.cell.pattern], dynamic=False)
        arrays = [torch.zeros(a.shape, dtype=getattr(torch, a.dtype.name), device="cuda") for a in self.operands]
        compiled(*arrays)
        torch.cuda.synchronize()
        del arrays
        torch.cuda.empty_cache()
        return compiled


@functools.cache
def negation(flat: jax.ShapeDtypeStruct) -> Callable[..., Any]:
    """Return a fused copy."""
    return jax.jit(jf.fuse(lambda x: -x)).lower(flat).compile()


def operand_sets(compiled: Compiled, pool: jax.Array, count: int) -> list[list[jax.Array]]:
    """Return `count` sets of operands from the pool; parameters of a row's length are the same in all."""
    sets: list[list[jax.Array]] = []
    place = 0
    for _ in range(count):
        operands = []
        for i, a in enumerate(compiled.operands):
            if sets and i in compiled.shared:
                operands.append(sets[0][i])
            elif jnp.issubdtype(a.dtype, jnp.integer):
                operands.append(jnp.arange(a.size, dtype=a.dtype) * 7919 % compiled.cell.columns)
            else:
                place = (place + 1) * 4099 % (pool.size - a.size + 1)
                operands.append(cut(pool, place, a.shape, a.dtype.name))
        sets.append(operands)
    return sets


def time_cell(compiled: Compiled, pool: jax.Array) -> Case:
    """Time every contender of a cell."""
    cell = compiled.cell
    count = max(1, math.ceil(BYTES_BETWEEN / compiled.work))
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()  # what the last cell had
    sets = operand_sets(compiled, pool, count)
    flats = [[cut(pool, 64 * i, (compiled.work // 8,), "float32")] for i in range(count)]
    operands = {OURS: sets, XLA: sets, COPY: flats}
    runs, torch = dict(compiled.runs), None
    if has_torch():
        torch = importlib.import_module("torch")
        operands[fuse_torch.PEER] = [[torch.from_dlpack(a) for a in s] for s in sets]
        operands[DRIVER] = [[torch.from_dlpack(a) for a in s] for s in flats]
        runs[DRIVER] = lambda x: x.clone()
    results: collections.deque[Any] = collections.deque(maxlen=count)

    def turn(name: str, calls: int) -> tuple[float, float]:
        """Seconds of each call and its kernels."""

        def all_calls() -> None:
            result = None
            for i in range(calls):
                result = runs[name](*operands[name][i % count])
                results.append(result)
            if name in (DRIVER, fuse_torch.PEER) and torch is not None:
                torch.cuda.synchronize()
            else:
                jax.block_until_ready(result)

        seconds, kernels = kernel_times().seconds(all_calls)
        return seconds / calls, kernels / calls

    case = Case("fuse sweep", cell.name, {"rows": cell.rows, "columns": cell.columns}, "TB/s", compiled.work)
    calls, kernels = {}, {}
    for name in runs:  # the first calls warm up
        try:
            turn(name, 1)
            once, kernels[name] = turn(name, 2)
            calls[name] = min(MOST_CALLS, max(2, math.ceil(SECONDS_OF_TURN / max(once, 1e-7))))
        except Exception as e:
            compiled.notes[name] = f"{type(e).__name__}: {str(e).splitlines()[0][:80]}"
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(cell.name)
    for _ in range(ROUNDS):
        for name in order.sample(sorted(calls), len(calls)):
            seconds, seen = turn(name, calls[name])
            if seen == kernels[name]:  # no record is lost
                samples[name].append(seconds)
    for name, spent in samples.items():
        s = sorted(spent)
        note = f"{kernels[name]:g} kernels"
        timing = Timing(name, statistics.median(s), s[0], s[-1], name in REFERENCES, note=note, samples=s)
        case.timings.append(timing)
    nan = math.nan
    case.timings += [Timing(name, nan, nan, nan, note=note) for name, note in compiled.notes.items()]
    if OURS in calls and XLA in calls:
        apart = difference(runs[OURS](*sets[0]), runs[XLA](*sets[0]))
        next(t for t in case.timings if t.name == OURS).error = float(apart)
    return case


def work(connection: Connection, share: list[Cell]) -> None:
    """Compile all cells, say so, and time them when told to."""
    if has_torch():
        torch = importlib.import_module("torch")
        for limit in ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit"):
            if hasattr(torch._dynamo.config, limit):
                setattr(torch._dynamo.config, limit, 4096)
    compiled = []
    for cell in share:
        try:
            compiled.append(Compiled(cell))
        except Exception:
            print(f"{cell}: not compiled\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    most = max((max(max(a.size for a in c.operands), c.work // 8) for c in compiled), default=0)
    connection.send(len(compiled))
    if connection.recv():
        pool = jax.random.normal(jax.random.key(0), (most + (1 << 16),), jnp.bfloat16)
        for c in compiled:
            try:
                connection.send(time_cell(c, pool))
            except Exception:
                print(f"{c.cell}: not timed\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    connection.send(None)


# ---- in the parent ----


def cases(*, quick: bool, only: str, compile_only: bool = False) -> Iterator[Case]:
    """Yield the cells' cases; `compile_only` leaves caches filled and yields none.

    The caches are those of the contenders: JAX_FUSER_CACHE_DIR, JAX_COMPILATION_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR.
    """
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wanted = cells(only, quick)
    workers = max(1, min(MOST_WORKERS, (os.cpu_count() or 1) - 2, len(wanted)))
    context = multiprocessing.get_context("spawn")
    begin = time.perf_counter()
    running = []
    for i in range(workers):
        # Neighbours in size, so that few processes hold much memory.
        share = wanted[len(wanted) * i // workers : len(wanted) * (i + 1) // workers]
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, share), daemon=True)
        process.start()
        theirs.close()
        running.append((process, ours))
    done = sum(receive(connection) or 0 for _, connection in running)
    print(f"{done} of {len(wanted)} cells compiled by {workers} processes in {time.perf_counter() - begin:.0f} s")
    begin = time.perf_counter()
    for process, connection in running:
        try:
            connection.send(not compile_only)
        except OSError:
            continue
        while (case := receive(connection)) is not None:
            yield case
        process.join()
    print(f"timed in {time.perf_counter() - begin:.0f} s")


def receive(connection: Connection) -> Any:
    """Return what a worker sends, None where it died."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None
