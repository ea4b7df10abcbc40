"""Tables, JSON and pictures of what was measured."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from typing import Any

import jax

from .measure import Timing

OURS = "jax_fuser"


@dataclass
class Case:
    """One workload: what was run, how much work it is, and what every contender took."""

    benchmark: str
    name: str
    parameters: dict[str, Any]
    unit: str  # "TFLOP/s", "GFLOP/s", "GB/s" or "us"
    work: float  # FLOPs or bytes of one call; unused for "us"
    timings: list[Timing] = field(default_factory=list)

    def rate(self, timing: Timing) -> float:
        """Return work per second in the case's unit (or microseconds for latency)."""
        if self.unit == "us":
            return timing.median * 1e6
        scale = {"TFLOP/s": 1e12, "GFLOP/s": 1e9, "GB/s": 1e9, "TB/s": 1e12}[self.unit]
        return self.work / timing.median / scale

    def best_peer(self) -> Timing | None:
        """Return the fastest contender that is neither ours nor a bound."""
        peers = [t for t in self.timings if not t.name.startswith(OURS) and not t.bound and not math.isnan(t.median)]
        return min(peers, key=lambda t: t.median, default=None)

    def ours(self) -> Timing | None:
        """Return our own timing."""
        return next((t for t in self.timings if t.name == OURS), None)


def machine() -> dict[str, str]:
    """Describe where the numbers come from."""
    device = jax.devices()[0]
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            cpu = next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    facts = {
        "device": device.device_kind if device.platform != "cpu" else f"{cpu}, {os.cpu_count()} cores",
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    if device.platform == "cpu":
        from jax_fuser import _core

        facts["target"] = _core.host_target()
    else:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        smi = subprocess.run(query, capture_output=True, text=True, check=False)
        facts["driver"] = smi.stdout.strip().splitlines()[0] if smi.stdout else "unknown"
    return facts


def _note(timing: Timing) -> str:
    return " (bound)" if timing.bound else ""


def print_case(case: Case) -> None:
    """Print one case as a table: time, spread, rate, error, and our ratio to the best peer."""
    parameters = ", ".join(f"{k}={v}" for k, v in case.parameters.items())
    print(f"\n{case.benchmark}: {case.name}  ({parameters})")
    best = case.best_peer()
    header = "" if case.unit == "us" else f"{case.unit:>10}"
    width = max([28, *(len(t.name) + len(_note(t)) for t in case.timings)])
    print(f"  {'':{width}}{'median':>12}{'10%..90%':>20}{header}  error")
    for t in sorted(case.timings, key=lambda t: (math.isnan(t.median), t.median)):
        if math.isnan(t.median):
            print(f"  {t.name:{width}}{'-':>12}  {t.note}")
            continue
        scale, unit = (1e3, "ms") if t.median > 1e-3 else (1e6, "us")
        spread = f"{t.low * scale:.2f}..{t.high * scale:.2f}"
        digits = 2 if case.unit == "TB/s" else 1
        rate = "" if case.unit == "us" else f"{case.rate(t):>10.{digits}f}"
        error = "" if t.error is None else f"{t.error:.1e}"
        print(f"  {t.name + _note(t):{width}}{t.median * scale:>9.2f} {unit}{spread:>20}{rate}  {error}")
    ours = case.ours()
    if best is not None and ours is not None and not math.isnan(ours.median):
        print(f"  -> {best.median / ours.median:.2f}x the best peer ({best.name})", flush=True)


def save_json(path: str, cases: list[Case]) -> None:
    """Write every number of the run, with the machine."""
    with open(path, "w") as f:
        json.dump({"machine": machine(), "cases": [asdict(c) for c in cases]}, f, indent=1)


def save_plot(path: str, cases: list[Case]) -> None:
    """Draw one group of bars per case: time per call, shorter is better."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted({t.name for c in cases for t in c.timings}, key=lambda n: (n != OURS, n))
    colors = dict(zip(names, [plt.get_cmap("tab10")(i % 10) for i in range(len(names))]))
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.9 * len(cases)))
    y = 0.0
    ticks, labels = [], []
    for case in cases:
        timings = sorted((t for t in case.timings if not math.isnan(t.median)), key=lambda t: t.median)
        ticks.append(y + (len(timings) - 1) / 2)
        labels.append(f"{case.name}\n" + " ".join(f"{k}={v}" for k, v in case.parameters.items()))
        for t in timings:
            low, high = (t.median - t.low) * 1e3, (t.high - t.median) * 1e3
            axes.barh(y, t.median * 1e3, xerr=[[low], [high]], color=colors[t.name], hatch="//" if t.bound else None)
            axes.text(t.high * 1e3 * 1.05, y, f"{t.name} {t.median * 1e3:.3g} ms", va="center", fontsize=7)
            y += 1
        y += 1
    axes.set_yticks(ticks, labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds per call, median; whiskers 10% to 90% (log scale, shorter is better)")
    measured = [t for c in cases for t in c.timings if not math.isnan(t.median)]
    if measured:
        left = 0.5e3 * min(t.median for t in measured)
        longest = 1e3 * max(t.high for t in measured)
        axes.set_xlim(left, left * (longest / left) ** (1 / 0.75))  # the rest is for the longest bar's label
    facts = machine()
    axes.set_title(f"{cases[0].benchmark} on {facts['device']}, JAX {facts['jax']}", fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
