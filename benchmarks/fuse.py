"""Fused functions beside jax.jit of the same function, and torch.compile where torch is installed."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_fuser as jf

from . import fuse_torch
from .measure import Contender, time_all
from .report import OURS, Case


@dataclass(frozen=True)
class Pattern:
    """A function of `full` arrays [rows, n], then `columns` of one row [n], then what `extra` makes."""

    name: str
    f: Callable[..., Any]
    full: int
    columns: int = 0
    extra: Callable[[int, int], list[jax.Array]] = lambda rows, n: []


def rms_norm(x: jax.Array, g: jax.Array) -> jax.Array:
    """x / rms(x) * g in float32."""
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6) * g).astype(x.dtype)


def layer_norm(x: jax.Array, g: jax.Array, b: jax.Array) -> jax.Array:
    """(x - mean) / std * g + b in float32."""
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, -1, keepdims=True)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6) * g + b).astype(x.dtype)


def cross_entropy(x: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the loss of each row."""
    y = x.astype(jnp.float32)
    return jax.nn.logsumexp(y, -1) - jnp.take_along_axis(y, labels[:, None], -1)[:, 0]


def rotary(x: jax.Array, angle: jax.Array) -> jax.Array:
    """Rotate the halves of each row by its angles [rows, n / 2]."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    c, s = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * c - b * s, b * c + a * s], axis=-1).astype(x.dtype)


def backward(f: Callable[..., Any], operands: int) -> Callable[..., Any]:
    """Return (operands..., dy) -> the derivatives of all operands."""
    return lambda *args: jax.vjp(f, *args[:operands])[1](args[operands])


def norm_backward(f: Callable[..., Any], columns: int) -> Callable[..., Any]:
    """As backward, with arguments (x, dy, columns...)."""
    return lambda x, dy, *rest: jax.vjp(f, x, *rest[:columns])[1](dy)


def row_labels(rows: int, n: int) -> list[jax.Array]:
    """One label for each row."""
    return [jax.random.randint(jax.random.key(7), (rows,), 0, n)]


def row_angles(rows: int, n: int) -> list[jax.Array]:
    """Angles of one head, shared by all."""
    return [jax.random.uniform(jax.random.key(7), (rows, n // 2), jnp.float32)]


def softmax(x: jax.Array) -> jax.Array:
    """Softmax in float32."""
    return jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype)


PATTERNS = [
    Pattern("copy", lambda x: -x, 1),
    Pattern("bias gelu", lambda x, b: jax.nn.gelu(x + b), 1, columns=1),
    Pattern("swiglu", lambda g, u: jax.nn.silu(g) * u, 2),
    Pattern("scaled residual", lambda x, y, s: x + y * s, 2, columns=1),
    Pattern("rms norm", rms_norm, 1, columns=1),
    Pattern("layer norm", layer_norm, 1, columns=2),
    Pattern("add rms norm", lambda x, y, g: (x + y, rms_norm(x + y, g)), 2, columns=1),
    Pattern("softmax", softmax, 1),
    Pattern("cross entropy", cross_entropy, 1, extra=row_labels),
    Pattern("column sum", lambda x: jnp.sum(x.astype(jnp.float32), 0), 1),
    Pattern("transpose", lambda x: x.T * 2, 1),
    Pattern("rotary", rotary, 1, extra=row_angles),
    Pattern("gelu backward", lambda x, dy: jax.vjp(jax.nn.gelu, x)[1](dy)[0], 2),
    Pattern("swiglu backward", backward(lambda g, u: jax.nn.silu(g) * u, 2), 3),
    Pattern("softmax backward", backward(softmax, 1), 2),
    Pattern("rms norm backward", norm_backward(rms_norm, 1), 2, columns=1),
    Pattern("layer norm backward", norm_backward(layer_norm, 2), 2, columns=2),
]
CPU_ROWS = [(4096, 4096), (1024, 1024)]
GPU_ROWS = [(16384, 8192), (2048, 16384), (65536, 768), (8191, 5003)]


def cases(*, quick: bool, only: str) -> Iterator[Case]:
    """Yield measured cases; work counts every operand read once and every result written once."""
    gpu = jax.default_backend() == "gpu"
    sizes = GPU_ROWS if gpu else CPU_ROWS
    for pattern in PATTERNS:
        for rows, columns in sizes[:1] if quick else sizes:
            for dtype in ("float32", "bfloat16"):
                name = f"{pattern.name} {dtype}"
                if only not in name or (pattern.name == "rotary" and columns % 2):
                    continue
                yield measure(pattern, rows, columns, dtype, quick=quick, gpu=gpu)


def measure(pattern: Pattern, rows: int, columns: int, dtype: str, *, quick: bool, gpu: bool) -> Case:
    """Measure one pattern."""
    keys = jax.random.split(jax.random.key(0), pattern.full + pattern.columns)
    shapes = [(rows, columns)] * pattern.full + [(columns,)] * pattern.columns
    args = [jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes)] + pattern.extra(rows, columns)
    results = jax.eval_shape(pattern.f, *args)
    work = sum(a.size * a.dtype.itemsize for a in [*args, *jax.tree.leaves(results)])
    sizes = {"rows": rows, "columns": columns}
    case = Case("fuse", f"{pattern.name} {dtype}", sizes, "TB/s" if gpu else "GB/s", work)
    fused, plain = jax.jit(jf.fuse(pattern.f)), jax.jit(pattern.f)
    contenders = [
        Contender(OURS, functools.partial(fused, *args)),
        Contender("jax.jit", functools.partial(plain, *args)),
        *fuse_torch.contender(pattern.name, args, gpu),
    ]
    case.timings = time_all(contenders, seconds=1 if quick else 3, repeats=11 if quick else 31, inner=20 if gpu else 1)
    want = jax.tree.leaves(pattern.f(*[a.astype(jnp.float32) if a.dtype == jnp.bfloat16 else a for a in args]))
    for c, t in zip(contenders, case.timings):
        if not t.note:
            got = [r if isinstance(r, jax.Array) else jnp.from_dlpack(r) for r in jax.tree.leaves(c.run())]
            t.error = max(relative_error(g, w) for g, w in zip(got, want))
    return case


def print_summary(done: list[Case]) -> None:
    """Print, for each shape and dtype, how much of the copy's bandwidth the patterns reach, and the speed of peers."""
    groups: dict[str, list[Case]] = {}
    for case in done:
        groups.setdefault(f"{case.name.split()[-1]} {case.parameters}", []).append(case)
    for group, members in groups.items():
        copy = next((c for c in members if c.name.startswith("copy")), None)
        if copy is None:
            continue
        print(f"\n{group}")
        shares = {c.name: rate_of(c, OURS) / rate_of(copy, OURS) for c in members}
        least = min(shares, key=lambda name: shares[name])
        mean = statistics.geometric_mean(shares.values())
        print(f"  of the copy's bandwidth: geometric mean {mean:.2f}, least {shares[least]:.2f} ({least})")
        for peer in sorted({t.name for c in members for t in c.timings} - {OURS}):
            faster = {c.name: rate_of(c, OURS) / rate_of(c, peer) for c in members if not math.isnan(rate_of(c, peer))}
            if faster:
                least = min(faster, key=lambda name: faster[name])
                mean = statistics.geometric_mean(faster.values())
                print(f"  against {peer}: geometric mean {mean:.2f}x, least {faster[least]:.2f}x ({least})")


def rate_of(case: Case, contender: str) -> float:
    """Return what a contender reached, or NaN."""
    return next((case.rate(t) for t in case.timings if t.name == contender), math.nan)


def relative_error(got: jax.Array, want: jax.Array) -> float:
    """Return the largest difference, relative to the largest element of `want`."""
    w = np.asarray(want)
    return float(np.abs(np.asarray(got.astype(jnp.float32)) - w).max() / np.abs(w).max())
