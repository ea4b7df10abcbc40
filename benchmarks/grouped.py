"""Grouped matmul: forward, dlhs and drhs beside jax.lax.ragged_dot, a loop of dense dots, torch, tokamax and Pallas."""

from __future__ import annotations

import functools
import importlib
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


@dataclass(frozen=True)
class Shape:
    """Rows x k x n in `groups`; the name says which model's layer it is."""

    name: str
    rows: int
    k: int
    n: int
    groups: int


CPU_SHAPES = [Shape("8 groups", 2048, 1024, 4096, 8), Shape("64 groups", 2048, 1024, 4096, 64)]
GPU_SHAPES = [
    Shape("Mixtral up", 16384, 4096, 14336, 8),
    Shape("DeepSeek-V3 slice up", 32768, 7168, 4096, 32),
    Shape("DeepSeek-V3 slice down", 32768, 2048, 7168, 32),
    Shape("Qwen3 up", 65536, 2048, 1536, 128),
    Shape("Qwen3 down", 65536, 768, 2048, 128),
    Shape("GPT-OSS up", 32768, 2880, 5760, 32),
    Shape("decode", 256, 7168, 4096, 32),
]
QUICK_ON_GPU = ("Mixtral up", "DeepSeek-V3 slice up", "Qwen3 up")
# XLA tunes each dot of the loop by itself when it compiles for GPUs: minutes for many groups. `jax.lax.ragged_dot`
# takes half a minute for 128.
MAX_LOOP_ON_GPU = 8
MAX_LAX_QUICKLY = 8
PASSES = ("forward", "dlhs", "drhs")


@dataclass
class Operands:
    """One case's arrays: x [rows, k], w [groups, k, n], dy [rows, n], sizes [groups]."""

    x: jax.Array
    w: jax.Array
    dy: jax.Array
    sizes: jax.Array
    host_sizes: np.ndarray

    @classmethod
    def draw(cls, shape: Shape, dtype: str, spread: str) -> Operands:
        host = group_sizes(spread, shape.groups, shape.rows)
        keys = jax.random.split(jax.random.key(0), 3)
        w_scale = shape.k**-0.5
        return cls(
            x=jax.random.normal(keys[0], (shape.rows, shape.k), dtype),
            w=(jax.random.normal(keys[1], (shape.groups, shape.k, shape.n), dtype) * w_scale).astype(dtype),
            dy=jax.random.normal(keys[2], (shape.rows, shape.n), dtype),
            sizes=jnp.asarray(host),
            host_sizes=host,
        )


def one_pass(ragged_dot: Callable[..., Any], which: str) -> Callable[..., Any]:
    """Return (x, w, dy, sizes) -> result of one pass of a ragged_dot, by its own derivative."""
    if which == "forward":
        return lambda x, w, dy, sizes: ragged_dot(x, w, sizes)
    if which == "dlhs":
        return lambda x, w, dy, sizes: jax.vjp(lambda x: ragged_dot(x, w, sizes), x)[1](dy)[0]
    return lambda x, w, dy, sizes: jax.vjp(lambda w: ragged_dot(x, w, sizes), w)[1](dy)[0]


def loop_of_dots(host_sizes: np.ndarray) -> Callable[..., Any]:
    """Return a ragged_dot with the sizes known at trace time: what one writes by hand."""

    def ragged_dot(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        ends = np.cumsum(host_sizes)
        parts = [x[e - s : e] @ w[g] for g, (s, e) in enumerate(zip(host_sizes, ends)) if s]
        return jnp.concatenate(parts)

    return ragged_dot


def largest_error(o: Operands, which: str, got: jax.Array) -> float:
    """Return the largest error against float32, relative to the largest element; on the device, group by group."""
    width = int(o.host_sizes.max())  # every group is padded to the largest, to compile once
    x, dy = (jnp.pad(a, ((0, width), (0, 0))) for a in (o.x, o.dy))
    if which != "drhs":
        got = jnp.pad(got, ((0, width), (0, 0)))

    @jax.jit
    def of_group(
        x: jax.Array, dy: jax.Array, w: jax.Array, got: jax.Array, group: jax.Array, begin: jax.Array, size: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def rows(a: jax.Array) -> jax.Array:
            part = jax.lax.dynamic_slice_in_dim(a, begin, width)
            return jnp.where(jnp.arange(width)[:, None] < size, part, 0).astype(jnp.float32)

        matrix = w[group].astype(jnp.float32)
        a, b = {"forward": (rows(x), matrix), "dlhs": (rows(dy), matrix.T), "drhs": (rows(x).T, rows(dy))}[which]
        want = jnp.dot(a, b, precision="highest")
        result = got[group].astype(jnp.float32) if which == "drhs" else rows(got)
        return jnp.abs(result - want).max(), jnp.abs(want).max()

    begins = np.cumsum(o.host_sizes) - o.host_sizes
    both = [of_group(x, dy, o.w, got, g, begins[g], size) for g, size in enumerate(o.host_sizes)]
    errors, sizes = np.asarray(both).T
    return float(errors.max() / sizes.max())


def jax_contenders(o: Operands, which: str, gpu: bool, quick: bool) -> list[Contender]:
    ways: dict[str, Callable[..., Any]] = {OURS: jf.ragged_dot}
    if not (gpu and quick) or len(o.host_sizes) <= MAX_LAX_QUICKLY:
        ways["jax.lax.ragged_dot"] = jax.lax.ragged_dot
    if not gpu or (not quick and len(o.host_sizes) <= MAX_LOOP_ON_GPU):
        ways["loop of jnp.dot"] = loop_of_dots(o.host_sizes)
    passes = {name: one_pass(way, which) for name, way in ways.items()}
    if gpu:
        passes.update(gpu_peers(which, quick))
    contenders = []
    for name, run in passes.items():
        f = jax.jit(run)
        contenders.append(Contender(name, functools.partial(f, o.x, o.w, o.dy, o.sizes)))
    if gpu:
        # Same FLOPs in one dense product: what cuBLAS reaches.
        dense = {
            "forward": lambda x, w, dy: x @ w[0],
            "dlhs": lambda x, w, dy: dy @ w[0].T,
            "drhs": lambda x, w, dy: x.T @ dy,
        }[which]
        f_dense = jax.jit(dense)
        contenders.append(Contender("dense dot", lambda: f_dense(o.x, o.w, o.dy), bound=True))
    if gpu and not quick:
        contenders.append(Contender("tokamax, tuned", tuned_tokamax(o, which)))
    return contenders


def tokamax_pass(which: str) -> Callable[..., Any]:
    ragged_dot = importlib.import_module("tokamax").ragged_dot
    return one_pass(functools.partial(ragged_dot, implementation="mosaic"), which)


def tuned_tokamax(o: Operands, which: str) -> Callable[[], Any]:
    """tokamax as its own `autotune` has chosen before the first call, of some hundred configurations: minutes."""
    operands = o.x, o.w, o.dy, o.sizes

    @functools.cache
    def compiled() -> Callable[..., Any]:
        run = tokamax_pass(which)
        with importlib.import_module("tokamax").autotune(run, *operands, progress_bar=False):
            return jax.jit(run).lower(*operands).compile()

    return lambda: compiled()(*operands)


def gpu_peers(which: str, quick: bool) -> dict[str, Callable[..., Any]]:
    """Return (x, w, dy, sizes) -> result of one pass, by other packages. What is not installed raises when it runs."""

    def tokamax(*operands: Any) -> Any:
        return tokamax_pass(which)(*operands)

    peers: dict[str, Callable[..., Any]] = {"tokamax": tokamax}
    tiles = [(128, 128), (64, 128), (128, 256)] if which != "drhs" else [(128, 128), (64, 128)]
    for block_m, block_n in tiles[:1] if quick else tiles:
        peers[f"Pallas Mosaic {block_m}x{block_n}"] = functools.partial(pallas_pass, which, block_m, block_n)
    return peers


def pallas_pass(which: str, block_m: int, block_n: int, x: Any, w: Any, dy: Any, sizes: Any) -> Any:
    """One pass by the examples in JAX, which have no derivative but a kernel for each."""
    name = "ragged_dot" if which != "drhs" else "transposed_ragged_dot"
    kernel = getattr(importlib.import_module(f"jax.experimental.pallas.ops.gpu.{name}_mgpu"), name)
    operands = {"forward": (x, w), "dlhs": (dy, w), "drhs": (x, dy)}[which]
    blocks = {"block_m": block_m, "block_n": block_n, "block_k": 64, "max_concurrent_steps": 4, "grid_block_n": 8}
    transposed = {"transpose_rhs": True} if which == "dlhs" else {}
    return kernel(*operands, group_sizes=sizes, **blocks, **transposed)


def torch_contenders(o: Operands, which: str, gpu: bool) -> list[Contender]:
    """torch._grouped_mm; without torch a contender that says so."""
    name = "torch._grouped_mm"
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return [Contender(name, functools.partial(importlib.import_module, "torch"))]
    if gpu and not torch.cuda.is_available():
        return [Contender(name, torch.cuda.init)]  # which raises why
    x, w, dy = (torch.from_dlpack(jax.block_until_ready(a)) for a in (o.x, o.w, o.dy))
    ends = torch.from_numpy(np.cumsum(o.host_sizes).astype(np.int32)).to("cuda" if gpu else "cpu")
    run = {
        "forward": lambda: torch._grouped_mm(x, w, offs=ends),
        "dlhs": lambda: torch._grouped_mm(dy, w.transpose(-2, -1), offs=ends),
        "drhs": lambda: torch._grouped_mm(x.t(), dy, offs=ends),
    }[which]

    def wait(result: Any) -> Any:
        if gpu:
            torch.cuda.synchronize()
        return result

    return [Contender(name, run, wait)]


def measured(
    benchmark: str, name: str, shape: Shape, spread: str, contenders: list[Contender], quick: bool, rests: bool = False
) -> Case:
    """Time the contenders on a shape."""
    gpu = jax.default_backend() == "gpu"
    parameters = {"rows": shape.rows, "k": shape.k, "n": shape.n, "groups": shape.groups, "sizes": spread}
    work = 2.0 * shape.rows * shape.k * shape.n
    case = Case(benchmark, name, parameters, "TFLOP/s" if gpu else "GFLOP/s", work)
    case.timings = time_all(
        contenders,
        seconds=(0.4 if gpu else 2) if quick else 8,
        repeats=7 if quick else 15,
        inner=10 if gpu else 1,
        rests=rests,
    )
    return case


def cases(*, quick: bool, only: str, rests: bool = False) -> Iterator[Case]:
    """Yield measured cases."""
    gpu = jax.default_backend() == "gpu"
    spreads = ("dirichlet",) if quick else ("uniform", "zipf", "dirichlet", "odd")
    shapes = [s for s in GPU_SHAPES if not quick or s.name in QUICK_ON_GPU] if gpu else CPU_SHAPES
    for dtype in ("bfloat16",) if gpu else ("float32", "bfloat16"):
        for shape in shapes:
            for spread in spreads:
                names = {which: f"{shape.name} {which} {dtype}" for which in PASSES}
                wanted = [which for which in PASSES if only in names[which]]
                if not wanted:
                    continue
                o = Operands.draw(shape, dtype, spread)
                for which in wanted:
                    contenders = jax_contenders(o, which, gpu, quick) + torch_contenders(o, which, gpu)
                    case = measured("grouped", names[which], shape, spread, contenders, quick, rests)
                    measure_errors(case, contenders, o, which)
                    yield case


def measure_errors(case: Case, contenders: list[Contender], o: Operands, which: str) -> None:
    """Compare one more run of every contender that works with the truth."""
    by_name = {t.name: t for t in case.timings}
    for c in contenders:
        if not c.bound and not by_name[c.name].note:
            by_name[c.name].error = largest_error(o, which, jnp.from_dlpack(c.wait(c.run())))
