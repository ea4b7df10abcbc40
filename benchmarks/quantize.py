"""Quantizing rows, alone and behind what computes them, beside plain JAX and a copy of as many bytes; and results of
grouped matmuls in the product's kernel, beside the product alone and a kernel behind it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jax_fuser as jf
from jax_fuser import _fp4, _quant

from .grouped import CPU_SHAPES, GPU_SHAPES, QUICK_ON_GPU, Operands, measured
from .measure import Contender, time_all
from .report import OURS, Case

SHAPES = {"gpu": [(32768, 7168), (65536, 2048), (8192, 4096)], "cpu": [(4096, 4096)]}
FORMATS = ("fp8_row", "fp8_block", "mxfp8", "nvfp4", "mxfp4", "int4")
IN_PRODUCTS = ("fp8_block", "mxfp8", "nvfp4", "mxfp4")


def stored(x: jax.Array, format: str) -> tuple[jax.Array, jax.Array]:
    """Return what `quantize` stores."""
    made = jf.quantize(x, format)
    return made.data, made.scales


def plain(x: jax.Array, format: str) -> tuple[jax.Array, jax.Array]:
    """Return the same by jax.numpy alone."""
    block = _quant.FORMATS[format].blocks[0]
    if format in _fp4.FORMATS:
        return _quant.four_bits_of_floats(x, None, format, _quant.columns_of_scale(block))
    return _quant.quantize_floats(x, "float8_e4m3fn", block, format == "mxfp8")


def swiglu(x: jax.Array) -> jax.Array:
    """Multiply silu of the first half of the columns by the second half."""
    gate, up = jnp.split(x, 2, axis=1)
    return jax.nn.silu(gate) * up


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Divide rows by their root mean square, in float32, and multiply them by weights."""
    wide = x.astype("float32")
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * weight


# From rows and a weight for each column.
BEFORE: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "": lambda x, weight: x,
    "swiglu, ": lambda x, weight: swiglu(x),
    "rms norm, ": rms_norm,
}


def cases(*, quick: bool, only: str, rests: bool = False) -> Iterator[Case]:
    """Yield measured cases."""
    platform = "gpu" if jax.default_backend() == "gpu" else "cpu"
    for rows, columns in SHAPES[platform][: 1 if quick else None]:
        for format in FORMATS:
            for prefix, before in BEFORE.items():
                name = f"{prefix}{format} bfloat16"
                if only in name:
                    yield _of_rows(name, rows, columns, before, format, quick, rests)
    for shape in [s for s in GPU_SHAPES if not quick or s.name in QUICK_ON_GPU] if platform == "gpu" else CPU_SHAPES:
        for format in IN_PRODUCTS:
            name = f"{shape.name} {format} bfloat16"
            if only in name:
                o = Operands.draw(shape, "bfloat16", "dirichlet")
                yield measured("quantize", name, shape, "dirichlet", _of_products(o, format), quick, rests)


def _of_rows(name: str, rows: int, columns: int, before: Any, format: str, quick: bool, rests: bool) -> Case:
    x = jax.random.normal(jax.random.key(0), (rows, columns), "bfloat16")
    weight = jax.random.normal(jax.random.key(1), (columns,), "bfloat16")
    ours = jax.jit(jf.fuse(lambda x, weight: stored(before(x, weight), format)))
    moved = x.nbytes + sum(a.nbytes for a in ours(x, weight))
    half = jnp.zeros(moved // 2, "int8")
    contenders = [
        Contender(OURS, functools.partial(ours, x, weight)),
        Contender("plain JAX", functools.partial(jax.jit(lambda x, w: plain(before(x, w), format)), x, weight)),
        Contender("a copy of as many bytes", functools.partial(jax.jit(jf.fuse(lambda x: x + 1)), half), bound=True),
    ]
    gpu = jax.default_backend() == "gpu"
    case = Case("quantize", name, {"rows": rows, "columns": columns}, "TB/s" if gpu else "GB/s", float(moved))
    case.timings = time_all(
        contenders, seconds=0.4 if quick else 4, repeats=7 if quick else 15, inner=10 if gpu else 1, rests=rests
    )
    return case


def _of_products(o: Operands, format: str) -> list[Contender]:
    def product(x: Any, w: Any, sizes: Any, **how: Any) -> Any:
        return jf.grouped_matmul(x, w, sizes, validate=False, **how)

    def one(x: Any, w: Any, sizes: Any) -> Any:
        made = product(x, w, sizes, output_format=format)
        return made.data, made.scales

    ways = {
        OURS: one,
        "two kernels": lambda x, w, sizes: stored(product(x, w, sizes), format),
        "the product alone": product,
    }
    return [
        Contender(n, functools.partial(jax.jit(f), o.x, o.w, o.sizes), bound=n.endswith("alone"))
        for n, f in ways.items()
    ]
