"""Fused pointwise functions beside jax.jit (and torch.compile's eager peer, torch) on the same function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_fuser as jf

from .measure import Contender, time_all
from .report import OURS, Case


@dataclass(frozen=True)
class Pattern:
    """A function of arrays; `columns` marks operands of one row ([n]) rather than [rows, n]."""

    name: str
    f: Callable[..., Any]
    operands: int
    columns: int = 0
    outputs: int = 1


PATTERNS = [
    Pattern("bias gelu", lambda x, b: jax.nn.gelu(x + b), 1, columns=1),
    Pattern("swiglu", lambda g, u: jax.nn.silu(g) * u, 2),
    Pattern("gelu backward", lambda x, dy: jax.vjp(jax.nn.gelu, x)[1](dy)[0], 2),
    Pattern("swiglu backward", lambda g, u, dy: jax.vjp(lambda g, u: jax.nn.silu(g) * u, g, u)[1](dy), 3, outputs=2),
    Pattern("scaled residual", lambda x, y, s: x + y * s, 2, columns=1),
]
CPU_ROWS = [(4096, 4096), (1024, 1024)]
GPU_ROWS = [(16384, 8192)]


def cases(*, quick: bool, only: str) -> Iterator[Case]:
    """Yield measured cases; work counts every operand read once and every result written once."""
    gpu = jax.default_backend() == "gpu"
    sizes = GPU_ROWS if gpu else CPU_ROWS[:1] if quick else CPU_ROWS
    for pattern in PATTERNS:
        for rows, columns in sizes:
            for dtype in ("float32", "bfloat16"):
                name = f"{pattern.name} {dtype}"
                if only not in name:
                    continue
                keys = jax.random.split(jax.random.key(0), pattern.operands + pattern.columns)
                shapes = [(rows, columns)] * pattern.operands + [(columns,)] * pattern.columns
                args = [jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes)]
                elements = rows * columns * (pattern.operands + pattern.outputs) + columns * pattern.columns
                unit = "TB/s" if gpu else "GB/s"
                case = Case(
                    "fuse", name, {"rows": rows, "columns": columns}, unit, elements * jnp.dtype(dtype).itemsize
                )
                fused, plain = jax.jit(jf.fuse(pattern.f)), jax.jit(pattern.f)
                contenders = [
                    Contender(OURS, functools.partial(fused, *args)),
                    Contender("jax.jit", functools.partial(plain, *args)),
                ]
                case.timings = time_all(contenders, seconds=3, repeats=11 if quick else 31, inner=20 if gpu else 1)
                want = jax.tree.leaves(pattern.f(*[a.astype(jnp.float32) for a in args]))
                for c, t in zip(contenders, case.timings):
                    got = jax.tree.leaves(c.run())
                    t.error = max(relative_error(g, w) for g, w in zip(got, want))
                yield case


def relative_error(got: jax.Array, want: jax.Array) -> float:
    """Return the largest difference, relative to the largest element of `want`."""
    w = np.asarray(want)
    return float(np.abs(np.asarray(got.astype(jnp.float32)) - w).max() / np.abs(w).max())
