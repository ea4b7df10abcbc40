"""The sweep of fused functions: its cells, its numbers, its tables. No GPU is needed."""

from __future__ import annotations

import ctypes
import struct
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

sys.path.append(str(Path(__file__).parent.parent))
from benchmarks import __main__ as benchmarks_main
from benchmarks import kernel_times, measure, sweep
from benchmarks.measure import Timing
from benchmarks.report import OURS, Case
from benchmarks.sweep_report import by_dtype, lead_of, print_sweep, share_of


def case(name, microseconds, rows=64):
    timings = [Timing(n, t * 1e-6, t * 1e-6, t * 1e-6, n in sweep.REFERENCES) for n, t in microseconds.items()]
    return Case("fuse sweep", name, {"rows": rows, "columns": 128}, "TB/s", 1e6, timings)


def test_cells_cover_every_pattern_and_shape():
    cells = sweep.cells("", quick=False)
    assert len(set(cells)) == len(cells)
    for dtype, shapes in sweep.SHAPES.items():
        for rows, columns in shapes:
            here = {c.pattern for c in cells if (c.rows, c.columns, c.dtype) == (rows, columns, dtype)}
            assert len(here) == (15 if columns % 2 == 0 else 14), (rows, columns, dtype)
    sizes = [c.rows * c.columns * jnp.dtype(c.dtype).itemsize for c in cells]
    assert sizes == sorted(sizes, reverse=True)


def test_shares_are_of_the_faster_copy_and_leads_over_the_faster_peer():
    c = case(
        "softmax bfloat16",
        {OURS: 10, sweep.XLA: 12, "torch.compile": 9, sweep.COPY: 8, sweep.DRIVER: 9, "broken": float("nan")},
    )
    assert share_of(c) == pytest.approx(0.8)
    assert lead_of(c) == pytest.approx(0.9)


def test_tables_name_what_is_slow_and_what_failed(capsys):
    done = [
        case("softmax bfloat16", {OURS: 10, sweep.XLA: 5, sweep.COPY: 5}),
        case("softmax bfloat16", {OURS: 10, sweep.XLA: float("nan"), sweep.COPY: 10}, rows=63),
        case("copy float32", {OURS: 10, sweep.COPY: 9}),
    ]
    assert [*by_dtype(done)] == ["bfloat16", "float32"]
    print_sweep(done)
    told = capsys.readouterr().out
    assert "  0.50 (1.00)" in told
    assert "1 of 2 below 0.85" in told
    assert "behind: softmax 64x128 0.50x" in told
    assert "failed: [(('softmax', '63x128'), 'jax.jit', '')]" in told


def test_tables_of_what_failed_everywhere_say_why(capsys):
    failed = case("softmax bfloat16", {OURS: float("nan")})
    failed.timings[0].note = "FileNotFoundError: CUPTI is needed"
    print_sweep([failed])
    told = capsys.readouterr().out
    assert "CUPTI is needed" in told and "worst" not in told and "behind" not in told


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("grouped --sweep", "--sweep and --compile-only go with fuse"),
        ("fuse --compile-only", "times kernels on an NVIDIA GPU; here JAX has cpu"),
        ("fuse --rests", "--rests goes with grouped, scaled and quantize, on an NVIDIA GPU"),
        ("nested --quick --only nobody", "no case of nested has 'nobody' in its name"),
    ],
)
def test_the_command_line_says_what_it_cannot_do(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments.split()])
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setitem(benchmarks_main.BENCHMARKS, "nested", lambda quick, only: iter(()))
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with pytest.raises(SystemExit):
        benchmarks_main.main()
    assert message in capsys.readouterr().err


def test_calls_after_rests_are_times_of_kernels(monkeypatch):
    class Ticks:
        def seconds(self, run):
            run()
            return 2e-3, 2

    rested, ran = [], []
    monkeypatch.setattr(measure, "kernel_times", Ticks)
    monkeypatch.setattr(measure.time, "sleep", rested.append)
    one = measure.Contender("two calls", lambda: ran.append(1), wait=lambda result: result, calls=2)
    [timing] = measure.time_all([one], seconds=1, repeats=3, rests=True)
    assert timing.samples == [1e-3] * 3 and rested == [measure.REST] * 3 and len(ran) == 2 + 3 * 2


@pytest.mark.parametrize("pattern", ["layer norm backward", "cross entropy"])
def test_a_cell_is_timed(monkeypatch, pattern):
    class Ticks:
        def seconds(self, run):
            run()
            return 2e-3, 2

    monkeypatch.setattr(sweep, "kernel_times", Ticks)
    monkeypatch.setattr(sweep, "has_torch", lambda: False)
    monkeypatch.setattr(sweep, "BYTES_BETWEEN", 1 << 17)
    pool = jax.random.normal(jax.random.key(0), (1 << 17,), jnp.bfloat16)
    done = sweep.time_cell(sweep.Compiled(sweep.Cell(pattern, 64, 128, "bfloat16")), pool)
    assert {t.name for t in done.timings} >= {OURS, sweep.XLA, sweep.COPY}
    assert not any(t.note and t.median != t.median for t in done.timings)
    assert done.ours().error < 0.02
    assert done.ours().median == pytest.approx(1e-3)  # of two calls


def test_records_become_seconds():
    """A stand-in for CUPTI hands over two kernels and a record of another kind."""
    record = struct.Struct("<I12x2Q")
    records = [(kernel_times.CONCURRENT_KERNEL, 100, 350), (3, 0, 9), (kernel_times.MEMSET, 400, 1150)]
    times = object.__new__(kernel_times.KernelTimes)
    times.buffers, times.spans = {}, []
    address, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()

    class Cupti:
        def __init__(self):
            self.given = 0

        def cuptiActivityFlushAll(self, flag):
            if address.value is not None:
                times._take_buffer(0, 0, address.value, size.value, record.size * len(records))
            return 0

        def cuptiActivityGetNextRecord(self, buffer, valid, found):
            if self.given == len(records):
                return 12
            found._obj.value = buffer.value + self.given * record.size
            self.given += 1
            return 0

    times.cupti = Cupti()

    def run():
        times._give_buffer(ctypes.pointer(address), ctypes.pointer(size), ctypes.pointer(most))
        for i, values in enumerate(records):
            record.pack_into((ctypes.c_char * size.value).from_address(address.value), i * record.size, *values)

    assert times.seconds(run) == (pytest.approx(1000e-9), 2)
    assert not times.buffers
