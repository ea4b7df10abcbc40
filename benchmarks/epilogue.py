"""What follows a grouped matmul: one kernel with it, beside the matmul alone and the matmul before XLA's own ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jax_fuser as jf

from .grouped import CPU_SHAPES, GPU_SHAPES, QUICK_ON_GPU, Operands, measured
from .measure import Contender
from .report import OURS, Case

Tail = Callable[..., jax.Array]


def swiglu(y: jax.Array, *_: Any) -> jax.Array:
    """Multiply silu of the first half of the columns by the second half."""
    gate, up = jnp.split(y.astype(jnp.float32), 2, axis=1)
    return (jax.nn.silu(gate) * up).astype(y.dtype)


# What grouped_matmul is asked for, and the same in jnp on (product, residual).
TAILS: dict[str, tuple[Callable[..., Any], Tail]] = {
    "swiglu": (lambda x, w, sizes, dy: jf.grouped_matmul(x, w, sizes, activation="swiglu"), swiglu),
    "gelu": (
        lambda x, w, sizes, dy: jf.grouped_matmul(x, w, sizes, activation="gelu"),
        lambda y, dy: jax.nn.gelu(y.astype(jnp.float32)).astype(y.dtype),
    ),
    "residual": (jf.fuse(lambda x, w, sizes, dy: jf.ragged_dot(x, w, sizes) + dy), lambda y, dy: y + dy),
}


def cases(*, quick: bool, only: str) -> Iterator[Case]:
    """Yield measured cases. The bound is the product of the same width, stored."""
    gpu = jax.default_backend() == "gpu"
    for shape in [s for s in GPU_SHAPES if not quick or s.name in QUICK_ON_GPU] if gpu else CPU_SHAPES:
        names = {tail: f"{shape.name} {tail} bfloat16" for tail in TAILS if only in f"{shape.name} {tail} bfloat16"}
        if not names:
            continue
        o = Operands.draw(shape, "bfloat16", "dirichlet")
        for tail, name in names.items():
            ours, after = TAILS[tail]

            def apart(x: Any, w: Any, sizes: Any, dy: Any, after: Tail = after) -> jax.Array:
                return after(jf.ragged_dot(x, w, sizes), dy)

            ways = {
                OURS: ours,
                "ragged_dot, then XLA": apart,
                "ragged_dot alone": lambda x, w, s, dy: jf.ragged_dot(x, w, s),
            }
            contenders = [
                Contender(n, functools.partial(jax.jit(f), o.x, o.w, o.sizes, o.dy), bound=n.endswith("alone"))
                for n, f in ways.items()
            ]
            yield measured("epilogue", name, shape, "dirichlet", contenders, quick)
