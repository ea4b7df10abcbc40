"""Rows from device to device, as many as each pair has for another: `ragged_all_to_all` beside JAX's, on all devices.

The bound is a dense `all_to_all` of as many rows, which every pair has equally many of. Rates count the rows that leave
one device, those that it keeps among them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_fuser as jf

from .measure import Contender, time_all
from .report import OURS, Case

# Rows of each device, their columns.
CPU_ROWS = [(4096, 512)]
GPU_ROWS = [(8192, 2048), (16384, 7168)]
SPREADS = ("even", "uneven", "most to one")


def sizes_of(spread: str, devices: int, rows: int) -> np.ndarray:
    """Return int32 rows from device to device, `[from, to]`; each device sends `rows`."""
    if spread == "even":
        return np.full((devices, devices), rows // devices, np.int32)
    rng = np.random.default_rng(0)
    chances = np.stack([rng.dirichlet(np.full(devices, 4.0)) for _ in range(devices)])
    if spread == "most to one":
        chances = 0.25 / devices + 0.75 * np.eye(devices)[np.zeros(devices, int)]
    return np.stack([rng.multinomial(rows, c / c.sum()) for c in chances]).astype(np.int32)


def layout_of(sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return offsets and sizes of slices one after another on both sides, as `ragged_all_to_all` takes them."""
    first, placed = np.cumsum(sizes, 1) - sizes, np.cumsum(sizes, 0) - sizes
    return tuple(a.reshape(-1).astype(np.int32) for a in (first, sizes, placed, sizes.T))


def dense(x: jax.Array, output: jax.Array, *_: jax.Array) -> jax.Array:
    """Send as many rows to every device."""
    return jax.lax.all_to_all(x, "x", 0, 0, tiled=True)


def with_gradient(f: Callable[..., jax.Array]) -> Callable[..., Any]:
    """The exchange and, with its result as cotangent, the one back."""

    def both(x: jax.Array, output: jax.Array, *layout: jax.Array) -> Any:
        out, back = jax.vjp(lambda x: f(x, output, *layout), x)
        return back(out)

    return both


def cases(*, quick: bool, only: str) -> Iterator[Case]:
    """Yield measured cases."""
    devices, gpu = jax.device_count(), jax.default_backend() == "gpu"
    mesh = jax.make_mesh((devices,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    ways: dict[str, Callable[..., jax.Array]] = {
        OURS: functools.partial(jf.parallel.ragged_all_to_all, axis_name="x"),
        "jax.lax.ragged_all_to_all": functools.partial(jax.lax.ragged_all_to_all, axis_name="x"),
        "dense all_to_all": dense,
    }
    for rows, columns in GPU_ROWS if gpu else CPU_ROWS:
        key = jax.random.key(0)
        place = jax.NamedSharding(mesh, jax.P("x"))
        x = jax.device_put(jax.random.normal(key, (devices * rows, columns), jnp.bfloat16), place)
        for spread in SPREADS[: 1 if quick else None]:
            sizes = sizes_of(spread, devices, rows)
            room = int(sizes.sum(0).max())
            output = jax.device_put(jnp.zeros((devices * room, columns), jnp.bfloat16), place)
            layout = jax.device_put(layout_of(sizes), place)
            for which in ("forward", "forward+backward"):
                name = f"{rows} x {columns} {spread} {which} on {devices} devices"
                if only not in name:
                    continue
                contenders = []
                for way, f in ways.items():
                    f = with_gradient(f) if which != "forward" else f
                    step = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))
                    run = functools.partial(step, x, output, *layout)
                    contenders.append(Contender(way, run, bound=way.startswith("dense")))
                parameters = {"rows": rows, "columns": columns, "most to a device": room, "dtype": "bfloat16"}
                work = 2.0 * rows * columns * (1 if which == "forward" else 2)
                case = Case("exchange", name, parameters, "GB/s", work)
                case.timings = time_all(contenders, seconds=4, repeats=7, inner=5 if gpu else 1)
                yield case
