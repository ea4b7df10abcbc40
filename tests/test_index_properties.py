"""Random transforms against plain arithmetic: positions, predicates and groups, every iteration of every case.

A case is shapes and transforms as plain numbers, where any sublist of the transforms is a case again, so that a
failing one is cut down to the transforms that matter before it is shown.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

MAX_ITERATIONS = 2048
Choice = tuple[str, int, int, int]  # kind and three numbers, taken modulo what there is to choose from


@dataclass
class Axes:
    """What transforms make of root axes, in plain Python: nodes in the numbering of the compiler."""

    extents: list[int]
    loop: list[int]
    steps: list[tuple[str, int, int, int]] = field(default_factory=list)

    @staticmethod
    def of(shape: tuple[int, ...]) -> Axes:
        return Axes(list(shape), list(range(len(shape))))

    def add(self, extent: int) -> int:
        self.extents.append(extent)
        return len(self.extents) - 1

    def loop_extents(self) -> list[int]:
        return [self.extents[node] for node in self.loop]

    def indices(self) -> np.ndarray:
        """Return the index of every node (rows) at every iteration of the loops (columns), outermost slowest."""
        loops = self.loop_extents()
        grid = np.indices(loops).reshape(len(loops), -1)
        at = np.full((len(self.extents), math.prod(loops)), -1)
        at[self.loop] = grid
        for kind, a, b, c in reversed(self.steps):
            if kind == "split":
                at[a] = at[b] * self.extents[c] + at[c]
            elif kind == "merge":
                at[a], at[b] = at[c] // self.extents[b], at[c] % self.extents[b]
            elif kind == "same":
                at[a] = at[b]
            elif kind == "none":
                at[a] = 0
            else:
                at[b] = at[a] ^ at[c]
        return at

    def in_bounds(self, at: np.ndarray) -> np.ndarray:
        return (at < np.array(self.extents)[:, None]).all(axis=0)


def apply(axes: Axes, choice: Choice, scheduler: jf.ir.Scheduler, value: str) -> None:
    """Make one transform on both sides, or none where it does not apply."""
    kind, a, b, c = choice
    rank = len(axes.loop)
    if kind == "split":
        axis, factor, inner = a % rank, (1, 2, 2, 3, 4, 4, 5, 8)[b % 8], bool(c % 2)
        node = axes.loop[axis]
        other = -(-axes.extents[node] // factor)
        if math.prod(axes.loop_extents()) // axes.extents[node] * factor * other > MAX_ITERATIONS:
            return
        outer, last = (other, factor) if inner else (factor, other)
        parts = [axes.add(outer), axes.add(last)]
        axes.steps.append(("split", node, *parts))
        axes.loop[axis : axis + 1] = parts
        scheduler.split(value, axis, factor, inner)
    elif kind == "pad":
        axis, multiple = a % rank, (2, 3, 4, 7, 8)[b % 5]
        node = axes.loop[axis]
        extent = -(-axes.extents[node] // multiple) * multiple
        if (
            extent == axes.extents[node]
            or math.prod(axes.loop_extents()) // axes.extents[node] * extent > MAX_ITERATIONS
        ):
            return
        # In the compiler's numbering there are a split into (1, extent) and a merge.
        one, inner, padded = axes.add(1), axes.add(extent), axes.add(extent)
        axes.steps += [("same", node, inner, 0), ("none", one, 0, 0), ("same", inner, padded, 0)]
        axes.loop[axis] = padded
        scheduler.pad(value, axis, multiple)
    elif kind == "merge" and rank > 1:
        axis = a % (rank - 1)
        first, second = axes.loop[axis : axis + 2]
        merged = axes.add(axes.extents[first] * axes.extents[second])
        axes.steps.append(("merge", first, second, merged))
        axes.loop[axis : axis + 2] = [merged]
        scheduler.merge(value, axis)
    elif kind == "reorder":
        order = list(range(rank))
        random.Random(a).shuffle(order)
        axes.loop = [axes.loop[i] for i in order]
        scheduler.reorder(value, order)
    elif kind == "swizzle":
        extents = axes.loop_extents()
        pairs = [(x, y) for x in range(rank) for y in range(rank) if x != y and extents[x] == extents[y]]
        pairs = [(x, y) for x, y in pairs if extents[x].bit_count() == 1]
        if not pairs:
            return
        x, y = pairs[a % len(pairs)]
        swizzled = axes.add(extents[y])
        axes.steps.append(("swizzle", axes.loop[x], axes.loop[y], swizzled))
        axes.loop[y] = swizzled
        scheduler.swizzle(value, x, y)


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    choices: dict[str, tuple[Choice, ...]]  # by value
    vector: bool

    def schedule(self) -> tuple[jf.ir.Schedule, dict[str, Axes]]:
        scheduler = jf.ir.Scheduler(fusion_over(self.shape))
        axes = {value: Axes.of(self.shape) for value in self.choices}
        for value, choices in self.choices.items():
            for choice in choices:
                apply(axes[value], choice, scheduler, value)
            last = axes[value].loop_extents()[-1]
            if self.vector and last.bit_count() == 1 and last <= 64:
                scheduler.parallelize(value, -1, "vector")
        return scheduler.schedule, axes

    def smaller(self) -> Iterator[Case]:
        for value, choices in self.choices.items():
            for i in range(len(choices)):
                yield replace(self, choices={**self.choices, value: choices[:i] + choices[i + 1 :]})
        for i, extent in enumerate(self.shape):
            if extent > 1:
                yield replace(self, shape=(*self.shape[:i], extent - 1, *self.shape[i + 1 :]))
        if self.vector:
            yield replace(self, vector=False)


def fusion_over(shape: tuple[int, ...]) -> jf.ir.Fusion:
    """x and a row that is stretched to x's shape, added, then another op: t2 is stretched, t3 and t4 are not."""
    b = jf.ir.Builder("chain")
    x, row = b.input("x", "f32", shape), b.input("r", "f32", shape[-1:])
    b.output(b.pointwise("exp", [b.pointwise("add", [x, b.broadcast(row, shape, [len(shape) - 1])])]))
    return b.finish()


def random_case(seed: int, values: tuple[str, ...]) -> Case:
    draw = random.Random(seed)
    shape = tuple(draw.choice((1, 2, 3, 4, 4, 6, 8, 8, 12, 16)) for _ in range(draw.randint(2, 3)))
    kinds = ("split", "split", "split", "merge", "merge", "reorder", "swizzle", "swizzle", "pad")

    def choices() -> tuple[Choice, ...]:
        count = draw.randint(1, 7)
        return tuple(
            (draw.choice(kinds), draw.randrange(64), draw.randrange(64), draw.randrange(64)) for _ in range(count)
        )

    own = {value: choices() for value in values}
    if len(values) > 1 and draw.random() < 0.6:
        # Related transforms map more often: a common beginning.
        first, second = values[:2]
        common = draw.randint(1, len(own[first]))
        own[second] = own[first][:common] + own[second][:2]
    return Case(shape, own, draw.random() < 0.4)


def fails(check: Callable[[Case], None], case: Case) -> bool:
    try:
        check(case)
    except AssertionError:
        return True
    return False


def assert_holds(check: Callable[[Case], None], case: Case) -> None:
    if not fails(check, case):
        return
    smallest = case
    while (next_one := next((c for c in smallest.smaller() if fails(check, c)), None)) is not None:
        smallest = next_one
    print(f"{smallest}\n{smallest.schedule()[0]}")
    check(smallest)


def check_positions(case: Case) -> None:
    """Positions are the plain ones; predicates admit every element exactly once."""
    schedule, axes = case.schedule()
    for value, plain in axes.items():
        at = plain.indices()
        valid = plain.in_bounds(at)
        rank = len(case.shape)
        rows = np.cumprod((1, *case.shape[:0:-1]))[::-1]
        for weights in (rows, rows[::-1], np.arange(rank), np.full(rank, 7)):
            got = schedule.positions(value, [int(w) for w in weights])
            want = (np.array(weights)[:, None] * at[:rank]).sum(axis=0)
            assert got == [int(w) if v else None for w, v in zip(want, valid)], (value, list(weights))
        elements = [p for p in schedule.positions(value) if p is not None]
        assert sorted(elements) == list(range(math.prod(case.shape))), value


def at_elements(plain: Axes, shape: tuple[int, ...]) -> np.ndarray:
    """Return the index of every node where each element of the value is computed."""
    at = plain.indices()
    at = at[:, plain.in_bounds(at)]
    order = np.argsort(np.ravel_multi_index(tuple(at[: len(shape)]), shape))
    return at[:, order]


def check_groups(case: Case) -> None:
    """Axes of one group have one index wherever the same element is computed."""
    schedule, axes = case.schedule()
    at = {value: at_elements(plain, case.shape) for value, plain in axes.items()}
    graph = jf.ir.IndexGraph(schedule)
    for kind in ("exact", "almost_exact", "permissive"):
        for group in graph.groups(kind):
            members = [(value, node) for value, node in group if value in at]
            for value, node in members[1:]:
                first, first_node = members[0]
                assert (at[value][node] == at[first][first_node]).all(), (kind, members[0], (value, node))
    finer = {axis: i for i, group in enumerate(graph.groups("almost_exact")) for axis in group}
    for group in graph.groups("exact"):
        assert len({finer[axis] for axis in group}) == 1, group


def check_text(case: Case) -> None:
    """The text says everything."""
    schedule, axes = case.schedule()
    assert jf.ir.Schedule(schedule.fusion, str(schedule)) == schedule
    for value, plain in axes.items():
        assert [extent for extent, _ in schedule.loops(value)] == plain.loop_extents()


BATCHES, CASES, RUNS = 10, 60, 10


@pytest.mark.parametrize("batch", range(BATCHES))
def test_positions_and_predicates_are_plain_arithmetic(batch):
    for seed in range(batch * CASES, (batch + 1) * CASES):
        assert_holds(check_positions, random_case(seed, ("t4",)))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_one_group_is_one_index(batch):
    for seed in range(batch * CASES, (batch + 1) * CASES):
        assert_holds(check_groups, random_case(1000 + seed, ("t2", "t3", "t4")))


def test_text_is_complete():
    for seed in range(3 * CASES):
        assert_holds(check_text, random_case(5000 + seed, ("t3", "t4")))


def test_cases_reach_what_they_test():
    """Remainders, swizzles, pads, vectors, and axes that map although transforms differ all occur many times."""
    remainder = swizzles = pads = vectors = mapped = 0
    for seed in range(2 * CASES):
        case = random_case(1000 + seed, ("t2", "t3", "t4"))
        schedule, axes = case.schedule()
        swizzles += any(step[0] == "swizzle" for step in axes["t4"].steps)
        pads += any(step[0] == "same" for step in axes["t4"].steps)
        remainder += None in schedule.positions("t4")
        vectors += schedule.loops("t4")[-1][1] == "vector"
        graph = jf.ir.IndexGraph(schedule)
        size = {kind: sum(len(g) > 1 for g in graph.groups(kind)) for kind in ("exact", "almost_exact")}
        mapped += size["almost_exact"] > size["exact"]
    assert min(remainder, swizzles, pads, vectors, mapped) > CASES // 4


def hand_scheduled(case: Case, fusion: jf.ir.Fusion, value: str) -> jf.ir.Schedule:
    """Transform one value by the choices that it allows, and the others like it."""
    scheduler, axes = jf.ir.Scheduler(fusion), Axes.of(case.shape)
    for choice in case.choices["t4"]:
        tried = copy.deepcopy(axes)
        try:
            apply(tried, choice, scheduler, value)
        except jf.UserError as refused:
            # A folded axis and another one cannot be mixed.
            assert "one is reduced and the other is not" in str(refused)
            continue
        axes = tried
    last = scheduler.loops(value)[-1][0]
    if case.vector and last.bit_count() == 1 and last <= 64:
        scheduler.parallelize(value, -1, "vector")
    scheduler.transform_like(value)
    scheduler.parallelize_like(value)
    scheduler.inline_most()
    return scheduler.schedule


@pytest.mark.parametrize("seed", range(RUNS))
def test_random_schedules_run(seed):
    case = random_case(9000 + seed, ("t4",))
    x = np.linspace(-1, 1, math.prod(case.shape), dtype=np.float32).reshape(case.shape)
    row = np.linspace(0, 2, case.shape[-1], dtype=np.float32)
    [got] = jf.ir.run(hand_scheduled(case, fusion_over(case.shape), "t4"), x, row)
    assert_close(got, np.exp(x + row))


@pytest.mark.parametrize("seed", range(RUNS))
def test_random_schedules_of_a_fold_run(seed):
    case = random_case(9500 + seed, ("t4",))
    b = jf.ir.Builder("fold")
    folded = seed % len(case.shape)
    b.output(b.reduce("reduce_sum", b.pointwise("square", [b.input("x", "f32", case.shape)]), [folded]))
    fusion = b.finish()
    x = np.linspace(-1, 1, math.prod(case.shape), dtype=np.float32).reshape(case.shape)
    [got] = jf.ir.run(hand_scheduled(case, fusion, fusion.outputs[0]), x)
    assert_close(got, np.square(x).sum(axis=folded))
