"""Run a benchmark: `python -m benchmarks grouped --quick --json out.json --plot out.png`."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator

import jax

from . import epilogue, exchange, fuse, grouped, latency, moe, nested, quantize, scaled, sweep
from .corners import summary, timing
from .corners.cases import SCALES
from .report import Case, machine, print_case, save_json, save_plot
from .sweep_report import print_cell, print_sweep, save_heat_map

BENCHMARKS = {
    "grouped": grouped.cases,
    "scaled": scaled.cases,
    "quantize": quantize.cases,
    "epilogue": epilogue.cases,
    "fuse": fuse.cases,
    "corners": timing.cases,
    "moe": moe.cases,
    "latency": latency.cases,
    "nested": nested.cases,
    "exchange": exchange.cases,
}


def part(text: str) -> tuple[int, int]:
    """Return the numbers of I/N; argparse refuses what raises."""
    i, n = map(int, text.split("/"))
    if not 1 <= i <= n:
        raise ValueError
    return i, n


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("--quick", action="store_true", help="fewer shapes and repetitions")
    parser.add_argument("--json", metavar="FILE", help="save every number")
    parser.add_argument("--plot", metavar="FILE", help="save a picture")
    parser.add_argument(
        "--only", metavar="TEXT", help="run the cases whose name contains this (corners: A,B, one of these)"
    )
    parser.add_argument("--sweep", action="store_true", help="fuse: every pattern at many shapes beside a copy")
    parser.add_argument("--compile-only", action="store_true", help="with --sweep: fill the compile caches")
    parser.add_argument(
        "--rests", action="store_true", help="grouped, scaled, quantize: each call after a rest, its kernels alone"
    )
    parser.add_argument("--list", action="store_true", help="corners: print names and operands, run nothing")
    parser.add_argument("--part", type=part, metavar="I/N", help="corners: every N-th function, from the I-th")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="corners: stop then, and say what is left out")
    parser.add_argument("--scale", choices=SCALES, help="corners: sizes; small ones where there is no GPU")
    arguments = parser.parse_args()
    run: Callable[..., Iterator[Case]] = BENCHMARKS[arguments.benchmark]
    if arguments.sweep or arguments.compile_only:
        if arguments.benchmark != "fuse":
            parser.error("--sweep and --compile-only go with fuse")
        if jax.default_backend() != "gpu":
            parser.error(f"--sweep times kernels on an NVIDIA GPU; here JAX has {jax.devices()[0].device_kind} alone")
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # many processes share the GPU's memory
        run = functools.partial(sweep.cases, compile_only=arguments.compile_only)
    if arguments.rests:
        if arguments.benchmark not in ("grouped", "scaled", "quantize") or jax.default_backend() != "gpu":
            parser.error("--rests goes with grouped, scaled and quantize, on an NVIDIA GPU")
        run = functools.partial(run, rests=True)
    corners = arguments.benchmark == "corners"
    given = {k: v for k in ("part", "budget", "scale") if (v := getattr(arguments, k)) is not None}
    if corners:
        run = functools.partial(run, **given)
    elif given or arguments.list:
        parser.error("--list, --part, --budget and --scale go with corners")
    only = arguments.only or ""
    if arguments.list:
        summary.print_list(only, arguments.part or (1, 1), arguments.quick, arguments.scale or timing.default_scale())
        return
    show, draw = (summary.print_line, summary.save_picture) if corners else (print_case, save_plot)
    if arguments.sweep:
        show, draw = print_cell, save_heat_map
    facts = machine()
    print("machine: " + ", ".join(f"{k} {v}" for k, v in facts.items()))
    done = []
    for case in run(quick=arguments.quick, only=only):
        show(case)
        done.append(case)
    if arguments.only and not done and not arguments.compile_only and arguments.budget is None:
        parser.error(f"no case of {arguments.benchmark} has {arguments.only!r} in its name")
    if arguments.sweep:
        print_sweep(done)
    elif arguments.benchmark == "fuse":
        fuse.print_summary(done)
    elif corners:
        summary.print_summary(done)
    if arguments.json:
        save_json(arguments.json, done)
    if arguments.plot and done:
        draw(arguments.plot, done)
    if corners and summary.faults(done):
        sys.exit(1)


if __name__ == "__main__":
    main()
