"""Grouped matmul of 8-bit floats, beside torch and a dense product of the same size; and of bf16 rows with weights of
four bits, beside bf16 weights; and floats that are quantized in every call, with gradients."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_fuser as jf

from .grouped import GPU_SHAPES, QUICK_ON_GPU, Shape, measured
from .measure import Contender
from .report import OURS, Case
from .sizes import group_sizes

CPU_SHAPES = [Shape("8 groups", 512, 512, 1024, 8)]
# Few rows a group, where reading the weights takes the time, and as many as make the products take it.
FOUR_BIT_SHAPES = [
    Shape("decode", 256, 7168, 4096, 32),
    Shape("decode, 128 groups", 256, 2048, 1536, 128),
    Shape("decode, 8 groups", 256, 4096, 14336, 8),
    Shape("32 rows a group", 1024, 7168, 4096, 32),
    Shape("256 rows a group", 8192, 7168, 4096, 32),
]
FOUR_BIT_CPU_SHAPES = [Shape("8 groups", 64, 512, 1024, 8)]
TRAINING_SHAPES = [Shape("training", 32768, 7168, 4096, 32)]
TRAINING_CPU_SHAPES = [Shape("training", 128, 256, 256, 4)]
FOUR_BIT_FORMATS = ("nvfp4", "mxfp4", "int4")
LAYERS = 8  # products of four bits in one program: alone they take less time than a call of a jitted function
STEP = 16  # torch takes multiples of it as group sizes


def sizes_in_steps(spread: str, shape: Shape) -> np.ndarray:
    """Group sizes that are multiples of STEP, but for the largest where the rows are not."""
    sizes = group_sizes(spread, shape.groups, shape.rows) // STEP * STEP
    sizes[sizes.argmax()] += shape.rows - sizes.sum()
    return sizes


def quantized(shape: Shape, format: str) -> tuple[jf.ScaledTensor, jf.ScaledTensor]:
    """Rows and weights of a shape; group by group, since the weights as floats would fill the device."""
    keys = jax.random.split(jax.random.key(0), shape.groups + 1)
    x = jf.quantize(jax.random.normal(keys[0], (shape.rows, shape.k), "bfloat16"), format)
    block = (128, 128) if format == "fp8_block" else None
    one = jax.jit(lambda key: jf.quantize(jax.random.normal(key, (shape.n, shape.k), "bfloat16"), format, block=block))
    return x, jax.lax.map(one, keys[1:])


def torch_contenders(x: jf.ScaledTensor, w: jf.ScaledTensor, sizes: np.ndarray) -> list[Contender]:
    """torch._scaled_grouped_mm with scales for rows, and torch._scaled_mm (cuBLASLt) on the same FLOPs."""
    if importlib.util.find_spec("torch") is None:
        return []
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return []

    def share(a: jax.Array) -> Any:
        bits = jax.lax.bitcast_convert_type(a, jnp.uint8) if a.dtype.itemsize == 1 else a
        tensor = torch.from_dlpack(jax.block_until_ready(bits))
        return tensor.view(torch.float8_e4m3fn) if a.dtype.itemsize == 1 else tensor

    data, weights = share(x.data), share(w.data).transpose(1, 2)
    x_scales, w_scales = share(x.scales), share(w.scales)
    ends = torch.from_numpy(np.cumsum(sizes).astype(np.int32)).cuda()
    one = torch.ones((), device="cuda")
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": True}

    def wait(result: Any) -> Any:
        torch.cuda.synchronize()
        return result

    return [
        Contender(
            "torch._scaled_grouped_mm",
            lambda: torch._scaled_grouped_mm(data, weights, x_scales, w_scales, offs=ends, **options),
            wait,
        ),
        Contender("dense cuBLASLt", lambda: torch._scaled_mm(data, weights[0], one, one, **options), wait, bound=True),
    ]


def four_bit_contenders(shape: Shape, extents: jax.Array) -> list[Contender]:
    """Rows of bf16 by packed weights of each format, and by the same weights in bf16; LAYERS of them in one program."""
    keys = jax.random.split(jax.random.key(0), shape.groups + 1)
    rows = tuple(jax.random.normal(key, (shape.rows, shape.k), "bfloat16") for key in jax.random.split(keys[0], LAYERS))

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (shape.n, shape.k), "bfloat16")

    def contender(label: str, multiply: Any, weights: Any) -> Contender:
        run = jax.jit(lambda rows, weights, sizes: [multiply(x, weights, sizes) for x in rows])
        return Contender(label, functools.partial(run, rows, weights, extents), calls=LAYERS)

    contenders = []
    for format in FOUR_BIT_FORMATS:
        quantized_one = jax.jit(lambda key, format=format: jf.quantize(draw(key), format))
        packed = jf.repack_weights(jax.lax.map(quantized_one, keys[1:]))
        label = OURS if format == FOUR_BIT_FORMATS[0] else f"{OURS}, {format}"
        contenders.append(contender(label, jf.scaled_grouped_matmul, packed))
    weights = jax.lax.map(draw, keys[1:])
    plain = functools.partial(jf.grouped_matmul, transpose_rhs=True)
    contenders.append(contender(f"{OURS}, bf16 weights", plain, weights))
    return contenders


def training_contenders(shape: Shape, extents: jax.Array, backward: bool) -> list[Contender]:
    """Floats on both sides: rows quantized in every call, weights too or once for all; and a product of bf16."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, dy = (jax.random.normal(k, (shape.rows, s), "bfloat16") for k, s in zip(keys, (shape.k, shape.n)))
    w = jax.random.normal(keys[2], (shape.groups, shape.n, shape.k), "bfloat16")

    def contender(label: str, multiply: Any, *others: Any) -> Contender:
        def both(x: Any, w: Any, dy: Any, *others: Any) -> Any:
            return jax.vjp(lambda x, w: multiply(x, w, *others), x, w)[1](dy)

        run = jax.jit(both if backward else lambda x, w, dy, *others: multiply(x, w, *others))
        return Contender(label, functools.partial(run, x, w, dy, *others), calls=2 if backward else 1)

    contenders = []
    for format in ("fp8_row", "fp8_block"):
        quantize = functools.partial(jf.quantize, format=format, block=(128, 128) if format == "fp8_block" else None)
        copies = tuple(jax.jit(quantize)(a) for a in (w, jnp.swapaxes(w, 1, 2)))
        multiply = functools.partial(jf.scaled_grouped_matmul, group_sizes=extents, format=format)
        contenders.append(contender(OURS if format == "fp8_row" else f"{OURS}, {format}", multiply))

        def multiply_copies(x: Any, w: Any, *copies: Any, multiply: Any = multiply) -> jax.Array:
            return multiply(x, w, quantized_rhs=copies)

        contenders.append(contender(f"{OURS}, {format}, weights once", multiply_copies, *copies))
        if backward:
            with_drhs = functools.partial(multiply, drhs_format="fp8_row")
            label = f"{OURS}, {format}, drhs too, weights once"
            contenders.append(contender(label, functools.partial(multiply_copies, multiply=with_drhs), *copies))
    plain = functools.partial(jf.grouped_matmul, group_sizes=extents, transpose_rhs=True)
    contenders.append(contender(f"{OURS}, bf16", plain))
    return contenders


def cases(*, quick: bool, only: str, rests: bool = False) -> Iterator[Case]:
    """Yield measured cases."""
    yield from eight_bit_cases(quick, only, rests)
    gpu = jax.default_backend() == "gpu"
    for shape in TRAINING_SHAPES if gpu else TRAINING_CPU_SHAPES:
        extents = jnp.asarray(group_sizes("dirichlet", shape.groups, shape.rows))
        for which in ("forward", "gradients"):
            if only in (name := f"{shape.name} {which} fp8_row"):
                contenders = training_contenders(shape, extents, which == "gradients")
                yield measured("scaled", name, shape, "dirichlet", contenders, quick, rests)
    for shape in FOUR_BIT_SHAPES if gpu else FOUR_BIT_CPU_SHAPES:
        name = f"{shape.name} forward {FOUR_BIT_FORMATS[0]}"
        if only in name:
            contenders = four_bit_contenders(shape, jnp.asarray(group_sizes("dirichlet", shape.groups, shape.rows)))
            yield measured("scaled", name, shape, "dirichlet", contenders, quick, rests)


def eight_bit_cases(quick: bool, only: str, rests: bool) -> Iterator[Case]:
    """Yield measured cases of 8-bit operands."""
    gpu = jax.default_backend() == "gpu"
    spreads = ("dirichlet",) if quick else ("uniform", "zipf", "dirichlet")
    shapes = [s for s in GPU_SHAPES if not quick or s.name in QUICK_ON_GPU] if gpu else CPU_SHAPES
    for shape in shapes:
        name = f"{shape.name} forward float8_e4m3fn"
        if only not in name:
            continue
        operands = {format: quantized(shape, format) for format in ("fp8_row", "fp8_block")}
        for spread in spreads:
            sizes = sizes_in_steps(spread, shape)
            extents = jnp.asarray(sizes)
            multiply = jax.jit(jf.scaled_grouped_matmul)
            contenders = [
                Contender(label, functools.partial(multiply, *operands[format], extents))
                for label, format in ((OURS, "fp8_row"), (f"{OURS}, blocks of 128", "fp8_block"))
            ]
            if gpu:
                contenders += torch_contenders(*operands["fp8_row"], sizes)
            yield measured("scaled", name, shape, spread, contenders, quick, rests)
