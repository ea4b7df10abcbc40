"""Time several contenders in turn, so that a change of the machine's mood hits all of them, each time in another order:
what runs behind a kernel of little power looks faster on a GPU."""

from __future__ import annotations

import functools
import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from .kernel_times import kernel_times

REST = 0.02  # seconds


@dataclass
class Contender:
    """One way to do the work: a function of no arguments whose result can be waited for."""

    name: str
    run: Callable[[], Any]
    wait: Callable[[Any], Any] = jax.block_until_ready
    calls: int = 1  # how often one run does the work
    bound: bool = False  # a bound (dense matmul of the same size), not a peer that does the same work


@dataclass
class Timing:
    """Seconds per call: median and the 10% and 90% quantiles of the repetitions."""

    name: str
    median: float
    low: float
    high: float
    bound: bool = False
    error: float | None = None  # against float32 truth, relative to its largest element
    note: str = ""
    samples: list[float] = field(default_factory=list, repr=False)


def run_once(c: Contender) -> None:
    """Run a contender and wait for it."""
    c.wait(c.run())


def time_all(
    contenders: list[Contender], *, seconds: float, repeats: int = 7, inner: int = 1, rests: bool = False
) -> list[Timing]:
    """Run every contender `repeats` times, in rounds of random order, and return their timings.

    `inner` calls are issued before waiting (GPU calls are asynchronous). `seconds` is the budget of each contender:
    slow ones get fewer repetitions, down to one. A contender that raises is reported with its error and no time.

    `rests`: one call at a time on a GPU, each after a rest, and the time of its kernels alone: what is reached where
    no limit of power is, which calls in a row meet.
    """
    samples: dict[str, list[float]] = {c.name: [] for c in contenders}
    failed: dict[str, str] = {}
    slow: set[str] = set()  # one call takes the whole budget
    for c in contenders:  # compile and warm up
        try:
            c.wait(c.run())
            begin = time.perf_counter()
            c.wait(c.run())
            spent_once = time.perf_counter() - begin
            if spent_once > seconds:
                slow.add(c.name)
                samples[c.name].append(spent_once / c.calls)
        except Exception as e:
            failed[c.name] = f"{type(e).__name__}: {str(e).splitlines()[0][:80]}"
    gc.collect()
    rng = random.Random(0)
    for _ in range(repeats):
        for c in rng.sample(contenders, len(contenders)):
            spent = samples[c.name]
            if c.name in failed or c.name in slow or (len(spent) >= 3 and sum(spent) * inner * c.calls > seconds):
                continue
            c.wait(c.run())  # what the last contender used is still being given back while its results are ready
            if rests:
                time.sleep(REST)
                spent.append(kernel_times().seconds(functools.partial(run_once, c))[0] / c.calls)
                continue
            begin = time.perf_counter()
            result = None
            for _ in range(inner):
                result = c.run()
            c.wait(result)
            spent.append((time.perf_counter() - begin) / (inner * c.calls))
            del result
    timings = []
    for c in contenders:
        if c.name in failed:
            timings.append(Timing(c.name, float("nan"), float("nan"), float("nan"), c.bound, note=failed[c.name]))
            continue
        s = sorted(samples[c.name])
        low, high = s[len(s) // 10], s[-1 - len(s) // 10]
        timings.append(Timing(c.name, statistics.median(s), low, high, c.bound, samples=s))
    return timings
