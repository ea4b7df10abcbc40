"""Tables and a picture of a sweep: shares of the copy's bandwidth, and where a peer is faster."""

from __future__ import annotations

import math
import statistics
from typing import Any

from .report import OURS, Case, machine
from .sweep import REFERENCES

LEAST_SHARE, LEAST_MEAN, TIE = 0.85, 0.90, 0.98


def median_of(case: Case, *names: str) -> float:
    """Return the least median of the contenders with these names, or NaN."""
    return min((t.median for t in case.timings if t.name in names and not math.isnan(t.median)), default=math.nan)


def share_of(case: Case) -> float:
    """Return the share of the copy's bandwidth."""
    return median_of(case, *REFERENCES) / median_of(case, OURS)


def lead_of(case: Case) -> float:
    """Return how many times as fast as the fastest peer."""
    peer = case.best_peer()
    return peer.median / median_of(case, OURS) if peer else math.nan


def shape_of(case: Case) -> str:
    """As columns of the tables are headed."""
    return f"{case.parameters['rows']}x{case.parameters['columns']}"


def by_dtype(done: list[Case]) -> dict[str, tuple[list[str], list[str], dict[tuple[str, str], Case]]]:
    """Return, for each dtype, the patterns, the shapes and the cases."""
    found = {}
    for dtype in dict.fromkeys(c.name.split()[-1] for c in done):
        members = [c for c in done if c.name.endswith(dtype)]
        at = {(c.name.removesuffix(f" {dtype}"), shape_of(c)): c for c in members}
        members.sort(key=lambda c: (c.parameters["rows"] % 2, c.parameters["rows"], c.parameters["columns"]))
        shapes = list(dict.fromkeys(shape_of(c) for c in members))
        found[dtype] = (list(dict.fromkeys(p for p, _ in at)), shapes, at)
    return found


def print_cell(case: Case) -> None:
    """Print a line: microseconds and the two numbers of the tables."""
    times = ", ".join(f"{t.name} {t.median * 1e6:.1f}" for t in sorted(case.timings, key=lambda t: t.median))
    print(
        f"{case.name} {shape_of(case)}: {share_of(case):.2f} of the copy, {lead_of(case):.2f}x; us: {times}", flush=True
    )


def print_sweep(done: list[Case]) -> None:
    """Print the tables, the means and the worst cells."""
    for dtype, (patterns, shapes, at) in by_dtype(done).items():
        print(f"\n{dtype}: share of the copy's bandwidth; in brackets the fastest peer's where it is faster")
        print(" " * 20 + "".join(f"{s:>13}" for s in shapes) + f"{'mean':>8}")
        for pattern in patterns:
            line, shares = f"{pattern:20}", []
            for shape in shapes:
                case = at.get((pattern, shape))
                if case is None:
                    line += f"{'':>13}"
                    continue
                share, lead = share_of(case), lead_of(case)
                shares.append(share)
                line += f"{share:>6.2f} " + (f"({share / lead:.2f})" if lead < TIE else "").ljust(6)
            good = [s for s in shares if not math.isnan(s)]
            print(line + (f"{statistics.geometric_mean(good):>8.2f}" if good else ""))
        known = {k: share_of(c) for k, c in at.items() if not math.isnan(share_of(c))}
        even = {k: s for k, s in known.items() if at[k].parameters["rows"] % 2 == 0}
        for what, part in (("all", known), ("even sizes", even)):
            if part:
                print(
                    f"{what}: geometric mean {statistics.geometric_mean(part.values()):.3f}, "
                    f"{sum(s < LEAST_SHARE for s in part.values())} of {len(part)} below {LEAST_SHARE}"
                )
        leads = {k: lead_of(c) for k, c in at.items() if not math.isnan(lead_of(c))}
        behind = {k: lead for k, lead in leads.items() if lead < TIE}
        if leads:
            mean = statistics.geometric_mean(leads.values())
            print(f"against the fastest peer: {mean:.2f}x, {len(behind)} of {len(leads)} slower than {TIE}x")
        worst = sorted(known, key=lambda k: known[k])[:24]
        if worst:
            print("worst: " + ", ".join(f"{p} {s} {known[p, s]:.2f}" for p, s in worst))
        if behind:
            by_lead = sorted(behind, key=lambda k: behind[k])
            print("behind: " + ", ".join(f"{p} {s} {behind[p, s]:.2f}x" for p, s in by_lead))
        wrong = [(k, t.error) for k, c in at.items() for t in c.timings if t.error is not None and not t.error < 0.02]
        if wrong:
            print(f"differs from jax.jit: {wrong}")
        failed = [(k, t.name, t.note) for k, c in at.items() for t in c.timings if math.isnan(t.median)]
        if failed:
            print(f"failed: {failed}")


def save_heat_map(path: str, done: list[Case]) -> None:
    """Draw the shares on the left, the lead over the fastest peer on the right; framed: below the goal or behind."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tables = by_dtype(done)
    heights = [len(patterns) for patterns, _, _ in tables.values()]
    figure, panels = plt.subplots(
        len(tables), 2, figsize=(22, 2.5 + 0.42 * sum(heights)), squeeze=False, height_ratios=heights
    )
    for (dtype, (patterns, shapes, at)), (left, right) in zip(tables.items(), panels):
        for axes, value, limits, least, title in (
            (left, share_of, (0.5, 1.1), LEAST_SHARE, "share of the copy's bandwidth (red: below 0.85)"),
            (right, lead_of, (0.5, 1.5), TIE, "times as fast as the fastest peer (red: slower)"),
        ):
            draw(
                axes, [[value(at[p, s]) if (p, s) in at else math.nan for s in shapes] for p in patterns], limits, least
            )
            axes.set_xticks(range(len(shapes)), shapes, rotation=45, ha="right", fontsize=10)
            axes.set_yticks(range(len(patterns)), patterns, fontsize=10)
            axes.set_title(f"{dtype}: {title}", fontsize=12)
    facts = machine()
    figure.suptitle(f"fused functions on {facts['device']}, JAX {facts['jax']}, kernel times")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw(axes: Any, values: list[list[float]], limits: tuple[float, float], least: float) -> None:
    """Draw one table in colours, its numbers in it."""
    axes.imshow(values, vmin=limits[0], vmax=limits[1], cmap="viridis", aspect="auto")
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if not math.isnan(value):
                bad = value < least
                box = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "red"} if bad else None
                color = "red" if bad else "black" if value > (limits[0] + 2 * limits[1]) / 3 else "white"
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=9, color=color, bbox=box)
