"""Run a benchmark: `python -m benchmarks grouped --quick --json out.json --plot out.png`."""

from __future__ import annotations

import argparse

from . import epilogue, fuse, grouped, latency, moe, nested, scaled
from .report import machine, print_case, save_json, save_plot

BENCHMARKS = {
    "grouped": grouped.cases,
    "scaled": scaled.cases,
    "epilogue": epilogue.cases,
    "fuse": fuse.cases,
    "moe": moe.cases,
    "latency": latency.cases,
    "nested": nested.cases,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("--quick", action="store_true", help="fewer shapes and repetitions")
    parser.add_argument("--json", metavar="FILE", help="save every number")
    parser.add_argument("--plot", metavar="FILE", help="save a picture")
    parser.add_argument("--only", metavar="TEXT", help="run the cases whose name contains this")
    arguments = parser.parse_args()
    facts = machine()
    print("machine: " + ", ".join(f"{k} {v}" for k, v in facts.items()))
    done = []
    for case in BENCHMARKS[arguments.benchmark](quick=arguments.quick, only=arguments.only or ""):
        print_case(case)
        done.append(case)
    if arguments.benchmark == "fuse":
        fuse.print_summary(done)
    if arguments.json:
        save_json(arguments.json, done)
    if arguments.plot and done:
        save_plot(arguments.plot, done)


if __name__ == "__main__":
    main()
