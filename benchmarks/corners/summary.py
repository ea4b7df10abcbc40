"""Lines, a summary and a picture of the functions that were timed."""

from __future__ import annotations

import math
import statistics
from typing import Any

from ..report import OURS, Case, machine
from ..sweep import COPY, XLA
from ..sweep_report import lead_of, median_of, share_of
from .cases import chosen, described

LIMITS = (1.1, 1.5, 2.0)
NAMED = 10  # at both ends


def ratio_of(case: Case) -> float:
    """Return how many times as long as with `jax.jit`."""
    return 1 / lead_of(case)


def faults(done: list[Case]) -> list[str]:
    """Return what is wrong and what failed."""
    return [f"{c.name}: {t.name}: {t.note}" for c in done for t in c.timings if t.note]


def ranked(done: list[Case]) -> list[Case]:
    """Return the cases that both ran, the slowest beside `jax.jit` first."""
    return sorted((c for c in done if not math.isnan(ratio_of(c))), key=lambda c: -ratio_of(c))


def by_family(done: list[Case]) -> dict[str, list[Case]]:
    """Return the families' cases, ranked."""
    found: dict[str, list[Case]] = {}
    for case in ranked(done):
        found.setdefault(case.name.split(".")[0], []).append(case)
    return found


def mean_of(cases: list[Case]) -> float:
    """Return the geometric mean of the ratios."""
    return statistics.geometric_mean(map(ratio_of, cases))


def above(cases: list[Case]) -> list[int]:
    """Return how many take longer than each limit."""
    return [sum(ratio_of(c) > limit for c in cases) for limit in LIMITS]


def ends(cases: list[Case]) -> dict[str, list[Case]]:
    """Return those at both ends of a ranking, each once."""
    count = min(NAMED, (len(cases) + 1) // 2)
    return {"slowest": cases[:count], "fastest": cases[count:][-NAMED:]}


def print_list(only: str, part: tuple[int, int], quick: bool, scale: str) -> None:
    """Print names and operands."""
    for corner in chosen(only, part, quick):
        print(f"{corner.name:36} {described(corner.shapes(scale))}")


def print_header() -> None:
    """Print what the columns are."""
    both = "".join(f"{f'{name} us':>13}{'10%..90%':>17}" for name in (OURS, XLA))
    print(f"{'function':36}{both}{'ratio':>7}{'floor us':>10}{'share':>7}{'kernels':>8}{'difference':>12}")


def print_line(case: Case) -> None:
    """Print a function: microseconds, ours as a multiple of `jax.jit`'s, the share of the floor, the largest error."""
    line = f"{case.name:36}"
    for name in (OURS, XLA):
        t = next(t for t in case.timings if t.name == name)
        line += f"{t.median * 1e6:>13.1f}{f'{t.low * 1e6:.1f}..{t.high * 1e6:.1f}':>17}"
    line += f"{ratio_of(case):>7.2f}{median_of(case, COPY) * 1e6:>10.1f}{share_of(case):>7.2f}"
    ours = case.ours()
    error = "-" if ours is None or ours.error is None else f"{ours.error:.1e}"
    print(f"{line}{case.parameters['kernels']:>8}{error:>12}", flush=True)
    for fault in faults([case]):
        print(f"  {fault.removeprefix(case.name + ': ')}", flush=True)


def print_summary(done: list[Case]) -> None:
    """Print means, how many are slower, the families, both ends, and what is wrong."""
    cases = ranked(done)
    if cases:
        slower = ", ".join(f"{n} above {limit}" for n, limit in zip(above(cases), LIMITS))
        print(f"\n{len(cases)} functions take {mean_of(cases):.3f} of {XLA}'s time (geometric mean): {slower}")
        print(f"share of the floor: {statistics.geometric_mean(map(share_of, cases)):.3f} (geometric mean)")
        print(
            f"\n{'family':10}{'count':>6}{'mean':>7}" + "".join(f"{f'> {limit}':>7}" for limit in LIMITS) + "  slowest"
        )
        for family, of in sorted(by_family(done).items(), key=lambda item: -mean_of(item[1])):
            counts = "".join(f"{n:>7}" for n in above(of))
            print(f"{family:10}{len(of):>6}{mean_of(of):>7.2f}{counts}  {of[0].name} {ratio_of(of[0]):.2f}")
        for which, end in ends(cases).items():
            print(f"\n{which}: " + ", ".join(f"{c.name} {ratio_of(c):.2f}" for c in end))
    for fault in faults(done):
        print(f"WRONG {fault}")


def save_picture(path: str, done: list[Case]) -> None:
    """Draw every function as a dot in its family's row, and name those at both ends."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = ranked(done)
    if not cases:
        return
    families = sorted(by_family(done).items(), key=lambda item: mean_of(item[1]))
    height = 1.8 + 0.36 * max(len(families), 12)
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, height), width_ratios=[1.5, 1])
    for y, (_, of) in enumerate(families):
        spread = [y + 0.22 * math.sin(2.4 * i) for i in range(len(of))]
        shares = [min(share_of(c), 1.0) for c in of]
        dots = left.scatter(
            [ratio_of(c) for c in of], spread, c=shares, cmap="viridis", vmin=0, vmax=1, s=26, lw=0.4, ec="white"
        )
        left.plot([mean_of(of)] * 2, [y - 0.38, y + 0.38], color="crimson", lw=2)
    left.set_yticks(range(len(families)), [f"{family} ({len(of)})" for family, of in families])
    left.set_xscale("log")
    left.set_xticks(*zip(*ticks(ratio_of(cases[-1]), ratio_of(cases[0]))))
    left.minorticks_off()
    left.axvline(1, color="black", lw=0.8)
    for limit in LIMITS:
        left.axvline(limit, color="grey", lw=0.6, ls=":")
    limits = ", ".join(f"{limit:g}" for limit in LIMITS)
    left.set_xlabel(f"times as long as {XLA} (dotted: {limits}); red: geometric mean of the family")
    left.set_ylim(-0.7, len(families) - 0.3)
    figure.colorbar(dots, ax=left, pad=0.01, label="share of the floor (a copy of as many bytes)")
    draw_ends(right, ends(cases))
    facts = machine()
    slower = ", ".join(f"{n} above {limit}" for n, limit in zip(above(cases), LIMITS))
    figure.suptitle(
        f"{len(cases)} functions of models' corners on {facts['device']}, JAX {facts['jax']}: "
        f"{mean_of(cases):.2f} of {XLA}'s time, {slower}",
        fontsize=11,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def ticks(least: float, most: float) -> list[tuple[float, str]]:
    """Return places on the axis of ratios, with their labels."""
    places = [2.0**e for e in range(math.floor(math.log2(least)), math.ceil(math.log2(most)) + 1)]
    shown = places[:: max(1, len(places) // 9)]
    return [(p, f"{p:g}" if p >= 1 else f"1/{1 / p:g}") for p in sorted({*shown, 1.0})]


def draw_ends(axes: Any, found: dict[str, list[Case]]) -> None:
    """Draw bars of the slowest and of the fastest, with microseconds."""
    y = 0
    labels: dict[int, str] = {}
    for which, color in (("slowest", "crimson"), ("fastest", "seagreen")):
        for case in found[which]:
            ratio = ratio_of(case)
            axes.barh(y, ratio - 1, left=1, color=color, height=0.7)
            ours, plain = (f"{median_of(case, name) * 1e6:,.0f}" for name in (OURS, XLA))
            side = "left" if ratio > 1 else "right"
            axes.text(ratio, y, f" {ratio:.2f}: {ours} us, {plain} ", va="center", ha=side, fontsize=7)
            labels[y] = case.name
            y += 1
        y += 1
    ratios = [1.0, *(ratio_of(c) for cases in found.values() for c in cases)]
    axes.set_xscale("log")
    axes.set_xlim(min(ratios) / 12, max(ratios) * 12)  # room for the texts
    axes.set_xticks([])
    axes.minorticks_off()
    axes.set_yticks(list(labels), list(labels.values()), fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", lw=0.8)
    axes.set_title(f"slowest and fastest: times as long, ours, {XLA}", fontsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)
