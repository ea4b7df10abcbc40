"""What a call costs when there is nothing to compute: small arrays under jit, and the first call."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

import jax_fuser as jf

from .measure import Contender, Timing, time_all
from .report import OURS, Case


def cases(*, quick: bool, only: str) -> Iterator[Case]:
    """Yield measured cases."""
    calls = 2_000 if quick else 10_000
    for elements in (8, 1024):
        if only not in "call":
            continue
        x = jnp.ones(elements, jnp.float32)

        def f(x: jax.Array) -> jax.Array:
            return jnp.tanh(x * 1.5) + x

        fused, plain = jax.jit(jf.fuse(f)), jax.jit(f)
        case = Case("latency", "call under jit", {"elements": elements}, "us", 0)
        contenders = [
            Contender(OURS, functools.partial(call, fused, x)),
            Contender("jax.jit", functools.partial(call, plain, x)),
        ]
        case.timings = time_all(contenders, seconds=10, repeats=15, inner=calls)
        yield case
    if only in "first call":
        yield first_call()


def call(f: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    return f(x).block_until_ready()


def first_call() -> Case:
    """Time the first call of a function that no cache has seen: trace, plan, compile, load."""
    x = jnp.ones((1024, 1024), jnp.float32)
    case = Case("latency", "first call", {"shape": "1024x1024"}, "us", 0)
    for name, wrap in ((OURS, jf.fuse), ("jax.jit", lambda f: f)):
        samples = []
        for i in range(5):
            constant = time.time() % 1 + i  # new text every time
            f = jax.jit(wrap(lambda x, c=constant: jnp.tanh(x * c) * jax.nn.sigmoid(x)))
            begin = time.perf_counter()
            f(x).block_until_ready()
            samples.append(time.perf_counter() - begin)
        samples.sort()
        case.timings.append(Timing(name, samples[2], samples[0], samples[-1], samples=samples))
    return case
