"""Rows in groups: sums, softmax, per-group operands and sorting, beside the `jax.ops.segment_*` form under jax.jit."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_fuser as jf

from .measure import Contender, time_all
from .report import OURS, Case
from .sizes import group_sizes

GROUPS, COLUMNS = 128, 2048
# A run on a GPU does the work on so many arrays: enough that XLA replays their kernels as one graph, so that what is
# timed is the device and not launches.
CALLS = 8
SPREADS = ("uniform", "zipf", "one_group", "tenth_empty")


@dataclass(frozen=True)
class Work:
    """Rows [m, n] with the extents of their groups, the group of each row, and what belongs to each group, [g, n]."""

    x: jax.Array
    extents: jax.Array
    ids: jax.Array
    b: jax.Array

    def nested(self) -> tuple[jax.Array, ...]:
        """Return the arguments of our functions."""
        return self.x, self.extents, self.b

    def segments(self) -> tuple[jax.Array, ...]:
        """Return those of the JAX form, which is given the group of each row."""
        return self.x, self.ids, self.b


@dataclass(frozen=True)
class Pattern:
    """The same function twice; `reads_ids`: ours is given ids, in any order, instead of extents."""

    name: str
    ours: Callable[..., Any]
    segments: Callable[..., Any]
    reads_ids: bool = False


def segment_softmax(x: jax.Array, ids: jax.Array, b: jax.Array) -> jax.Array:
    """Softmax over the rows of each group, in float32."""
    y = x.astype(jnp.float32)
    e = jnp.exp(y - jax.ops.segment_max(y, ids, GROUPS, indices_are_sorted=True)[ids])
    return (e / jax.ops.segment_sum(e, ids, GROUPS, indices_are_sorted=True)[ids]).astype(x.dtype)


def segment_sum(x: jax.Array, ids: jax.Array, b: jax.Array) -> jax.Array:
    """Sum the rows of each group, in float32."""
    return jax.ops.segment_sum(x.astype(jnp.float32), ids, GROUPS, indices_are_sorted=True).astype(x.dtype)


def nested_gelu(x: jax.Array, extents: jax.Array, b: jax.Array) -> jax.Array:
    """gelu(x + b of the row's group)."""
    nt = jf.NestedTensor(x, extents)
    result: jax.Array = jf.nested.map(lambda x, b: jax.nn.gelu(x + b), nt, b[:, None]).data
    return result


PATTERNS = [
    Pattern("copy", jf.fuse(lambda x, extents, b: -x, name="copy"), lambda x, ids, b: -x),
    Pattern("sum", lambda x, extents, b: jf.nested.sum(jf.NestedTensor(x, extents)), segment_sum),
    Pattern("softmax", lambda x, extents, b: jf.nested.softmax(jf.NestedTensor(x, extents)).data, segment_softmax),
    Pattern("bias gelu", jf.fuse(nested_gelu), lambda x, ids, b: jax.nn.gelu(x + b[ids])),
    Pattern(
        "sort_by_group",
        lambda x, ids, b: jf.nested.sort_by_group(x, ids, GROUPS)[0].data,
        lambda x, ids, b: x[jnp.argsort(ids, stable=True)],
        reads_ids=True,
    ),
]


def cases(*, quick: bool, only: str) -> Iterator[Case]:
    """Yield measured cases; work counts every operand read once and every result written once."""
    gpu = jax.default_backend() == "gpu"
    rows = 65536 if gpu or not quick else 16384
    for dtype in ("float32", "bfloat16"):
        for spread in SPREADS:
            work = make(spread, rows, dtype)
            for pattern in PATTERNS:
                # A copy and a sort know nothing of how many rows a group has.
                name = f"{pattern.name} {dtype}"
                if only in name and (spread == "uniform" or pattern.name not in ("copy", "sort_by_group")):
                    yield measure(pattern, work, spread, quick=quick, gpu=gpu)


def make(spread: str, rows: int, dtype: str) -> Work:
    """Return the arrays of one workload."""
    sizes = group_sizes(spread, GROUPS, rows)
    x, b = (jax.random.normal(jax.random.key(i), (n, COLUMNS), dtype) for i, n in enumerate((rows, GROUPS)))
    return Work(x, jnp.asarray(sizes), jnp.asarray(np.repeat(np.arange(GROUPS, dtype=np.int32), sizes)), b)


def measure(pattern: Pattern, work: Work, spread: str, *, quick: bool, gpu: bool) -> Case:
    """Measure one pattern."""
    arguments = [work.nested(), work.segments()]
    if pattern.reads_ids:
        ids = jax.random.permutation(jax.random.key(2), work.ids)
        arguments = [(work.x, ids, work.b)] * 2
    calls = CALLS if gpu else 1
    ours, plain = jax.jit(pattern.ours), jax.jit(pattern.segments)
    result = jax.eval_shape(plain, *arguments[1])
    read = [work.x, work.b] if pattern.name == "bias gelu" else [work.x]
    done = sum(math.prod(a.shape) * a.dtype.itemsize for a in [*read, result])
    parameters = {"rows": len(work.x), "columns": COLUMNS, "groups": GROUPS, "sizes": spread}
    name = f"{pattern.name} {work.x.dtype}"
    case = Case("nested", name, parameters, "TB/s" if gpu else "GB/s", done)
    contenders = [
        Contender(name, repeated(f, given, calls), calls=calls)
        for name, f, given in ((OURS, ours, arguments[0]), ("jax.ops.segment", plain, arguments[1]))
    ]
    case.timings = time_all(contenders, seconds=1 if quick else 3, repeats=5 if quick else 11, inner=10 if gpu else 1)
    want = plain(*(a.astype(jnp.float32) if a.dtype == jnp.bfloat16 else a for a in arguments[1]))
    for contender, timing in zip(contenders, case.timings):
        if not timing.note:
            timing.error = float(relative_error(contender.run()[0], want))
    return case


def repeated(f: Callable[..., Any], arguments: tuple[jax.Array, ...], calls: int) -> Callable[[], Any]:
    """Return a function that calls `f` with copies of its arguments in one program, and returns all results."""
    copies = [arguments, *(tuple(map(jnp.copy, arguments)) for _ in range(calls - 1))]
    return functools.partial(jax.jit(lambda all: [f(*given) for given in all]), copies)


@jax.jit
def relative_error(got: jax.Array, want: jax.Array) -> jax.Array:
    """Return the largest difference, relative to the largest element of `want`."""
    return jnp.abs(got.astype(jnp.float32) - want).max() / jnp.abs(want).max()
