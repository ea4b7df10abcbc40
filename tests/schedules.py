"""What a schedule must do whatever it is, and the two small fusions on which tests try the scheduling calls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core


def check_schedule(schedule, machine, arrays, *wants):
    """Compare what a schedule computes on a `machine` with the wanted outputs, and its text with what it reads as."""
    assert jf.ir.Fusion(str(schedule.fusion)) == schedule.fusion
    assert jf.ir.Schedule(schedule.fusion, str(schedule)) == schedule
    for got, want in zip(machine.run(schedule, *arrays), wants, strict=True):
        assert_close(got, want)


def nvrtc_compiles(schedule: jf.ir.Schedule) -> None:
    if _core.nvrtc()[0] is None:
        pytest.skip(f"no NVRTC here: {_core.nvrtc()[1]}")
    assert _core.compile_cuda(f"{schedule.fusion}{schedule}", _core.cuda_target_for(90))


ROWS, COLUMNS = 16, 10


def act() -> jf.ir.Fusion:
    """y = tanh(x + r) * x, with a row r; u = x + r is an output too."""
    b = jf.ir.Builder("act")
    x, r = b.input("x", "f32", [ROWS, COLUMNS]), b.input("r", "f32", [COLUMNS])
    u = b.pointwise("add", [x, b.broadcast(r, [ROWS, COLUMNS], [1])])
    b.output(b.pointwise("mul", [b.pointwise("tanh", [u]), x]))
    b.output(u)
    return b.finish()


def inputs() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(ROWS, COLUMNS)).astype(np.float32), random.normal(size=COLUMNS).astype(np.float32)


def scheduled(edit: Callable[[jf.ir.Scheduler], None]) -> jf.ir.Schedule:
    """Schedule the first output by `edit`, and the other values like it."""
    scheduler = jf.ir.Scheduler(act())
    edit(scheduler)
    scheduler.transform_like(Y)
    scheduler.parallelize_like(Y)
    scheduler.inline_most()
    return scheduler.schedule


X, R, STRETCHED, U, T, Y = act().values


def row_sums() -> jf.ir.Fusion:
    """The sum of squares of every row."""
    b = jf.ir.Builder("row_sums")
    b.output(b.reduce("reduce_sum", b.pointwise("square", [b.input("x", "f32", [ROWS, COLUMNS])]), [1]))
    return b.finish()
