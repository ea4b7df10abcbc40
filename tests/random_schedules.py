"""Random fusions under random schedules: calls with sense and without, on values and axes drawn without looking.

Values are small whole numbers, so that every order of folding gives the same bits and one wrong element shows.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import jax_fuser as jf

LARGEST = 2**18  # of any element: folds stay exact in f32
MOST_ELEMENTS, MOST_ITERATIONS = 700, 6000
UNARY = {"neg": np.negative, "abs": np.abs, "square": np.square}
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
FOLDS = {"reduce_sum": np.sum, "reduce_max": np.max, "reduce_min": np.min}
SCANS = {"scan_sum": np.add, "scan_max": np.maximum, "scan_min": np.minimum}
KINDS = ("unary", "binary", "binary", "binary", "reduce", "reduce", "transpose", "broadcast")
MOVES = ("slice", "pad", "scan", "reshape")
SEARCHES = 300_000  # from this seed on programs search tables, too
EACH = 600_000  # from this seed on axes of extent 1 are stretched, and values get their loops one by one
Choice = tuple[str, int, int, int]  # a call and three numbers, taken modulo what there is to choose from


class Program:
    """A random fusion, its inputs and exact results."""

    def __init__(self, seed: int):
        self.draw = draw = random.Random(f"fusion {seed}")
        self.random, self.searches = np.random.default_rng(seed), SEARCHES <= seed < EACH
        self.stretches = seed >= EACH
        self.builder = jf.ir.Builder("p")
        self.values: list[tuple[int, np.ndarray]] = []
        self.inputs: list[np.ndarray] = []
        self.shape = tuple(
            draw.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)) for _ in range(draw.choice((1, 2, 2, 2, 3)))
        )
        if math.prod(self.shape) > MOST_ELEMENTS:
            self.shape = self.shape[:2]
        self.add_input(self.shape)
        for _ in range(draw.randint(0, 2)):
            self.add_input(self.shape if draw.random() < 0.5 else self.shape[draw.randint(0, len(self.shape) - 1) :])
        first = len(self.values)
        while len(self.values) < first + draw.randint(2, 7):
            self.add_op()
        made = [value for value in self.values[first:] if value[0] not in {i for i, _ in self.values[:first]}]
        chosen = dict(made[-1:] + draw.sample(made, draw.randint(0, min(2, len(made)))))
        for value in chosen:
            self.builder.output(value)
        self.wanted = list(chosen.values())
        self.fusion = self.builder.finish()
        self.inputs = [self.inputs[int(name[1:])] for name in self.fusion.inputs]

    def add(self, value: int, exact: np.ndarray) -> None:
        if value not in dict(self.values) and np.abs(exact).max(initial=0) < LARGEST and exact.size <= MOST_ELEMENTS:
            self.values.append((value, exact))

    def add_input(self, shape: tuple[int, ...]) -> None:
        array = self.random.integers(-3, 4, shape).astype(np.float32)
        self.add(self.builder.input(f"x{len(self.inputs)}", "f32", list(shape)), array)
        self.inputs.append(array)

    def add_op(self) -> None:
        draw, b = self.draw, self.builder
        x, exact = draw.choice(self.values[-4:] if draw.random() < 0.7 else self.values)
        kind = draw.choice(KINDS + MOVES)
        if self.searches and draw.random() < 0.4:
            self.add_search(x, exact)
        elif kind == "unary":
            op = draw.choice(list(UNARY))
            self.add(b.pointwise(op, [x]), UNARY[op](exact))
        elif kind == "binary":
            op = draw.choice(list(BINARY))
            others = [self.stretched(value, other, exact.shape) for value, other in self.values]
            y, other = draw.choice([found for found in others if found is not None])
            self.add(b.pointwise(op, [x, y]), BINARY[op](exact, other))
        elif kind == "reduce" and exact.ndim:
            op = draw.choice(list(FOLDS))
            dims = sorted(draw.sample(range(exact.ndim), draw.randint(1, min(2, exact.ndim))))
            self.add(b.reduce(op, x, dims), FOLDS[op](exact, axis=tuple(dims)))
        elif kind == "transpose" and exact.ndim > 1:
            order = draw.sample(range(exact.ndim), exact.ndim)
            self.add(b.transpose(x, order), exact.transpose(order))
        elif kind == "slice" and exact.size > 1:
            starts = [draw.randrange(n) for n in exact.shape]
            strides = [draw.choice((1, 1, 2, 3)) for _ in starts]
            counts = [draw.randint(1, (n - a - 1) // k + 1) for n, a, k in zip(exact.shape, starts, strides)]
            part = tuple(slice(a, a + (n - 1) * k + 1, k) for a, k, n in zip(starts, strides, counts))
            self.add(b.slice(x, starts, strides, counts), exact[part])
        elif kind == "pad" and exact.ndim:
            low, high = ([draw.choice((0, 0, 1, 2)) for _ in exact.shape] for _ in "lh")
            padded = np.pad(exact, list(zip(low, high)), constant_values=7)
            self.add(b.pad(x, low, high, b.constant("f32", 7.0)), padded)
        elif kind == "scan" and exact.ndim:
            op, axis, back = draw.choice(list(SCANS)), draw.randrange(exact.ndim), draw.random() < 0.5
            turned = np.flip(exact, axis) if back else exact
            made = SCANS[op].accumulate(turned, axis)
            self.add(b.scan(op, x, axis, back), np.flip(made, axis) if back else made)
        elif kind == "reshape" and exact.ndim:
            shape = list(exact.shape)
            if len(shape) > 1 and draw.random() < 0.5:
                shape[:2] = [shape[0] * shape[1]]
            elif shape[-1] % 2 == 0:
                shape[-1:] = [shape[-1] // 2, 2]
            self.add(b.reshape(x, shape), exact.reshape(shape))
        elif kind == "broadcast":
            found = self.stretched(x, exact, self.shape)
            if found is not None:
                self.add(*found)

    def add_search(self, x: int, exact: np.ndarray) -> None:
        """Search numbers in a sorted table, or in one for each index of an axis."""
        draw, b = self.draw, self.builder
        side, length = draw.choice(("left", "right")), draw.choice((1, 2, 3, 5, 8))
        dims = [draw.randrange(exact.ndim)] if exact.ndim and draw.random() < 0.4 else []
        table = np.sort(self.random.integers(-4, 5, (*(exact.shape[d] for d in dims), length)).astype(np.int32))
        given = b.input(f"x{len(self.inputs)}", "s32", list(table.shape))
        self.inputs.append(table)
        places = np.zeros(exact.shape, np.float32)
        for i, row in enumerate(table.reshape(-1, length)):
            where = (slice(None),) * dims[0] + (i,) if dims else ...
            places[where] = np.searchsorted(row, exact[where], side)
        self.add(b.convert(b.search(given, b.convert(x, "s32"), side, dims), "f32"), places)

    def stretched(self, value: int, exact: np.ndarray, shape: tuple[int, ...]) -> tuple[int, np.ndarray] | None:
        """Return the value stretched to a shape, where its axes are some of it in order."""
        if exact.shape == shape:
            return value, exact
        dims: list[int] = []
        start = 0
        for extent in exact.shape:
            stretches = self.stretches and extent == 1
            found = [i for i in range(start, len(shape)) if shape[i] == extent or stretches]
            if not found:
                return None
            dims.append(self.draw.choice(found))
            start = dims[-1] + 1
        place = tuple(exact.shape[dims.index(i)] if i in dims else 1 for i in range(len(shape)))
        wide = np.broadcast_to(exact.reshape(place), shape)
        return self.builder.broadcast(value, list(shape), dims), wide


SPLITS = ("split", "split", "split", "merge", "merge", "reorder", "pad")
CALLS = (
    *SPLITS,
    *("swizzle", "parallelize", "parallelize", "transform_like", "parallelize_like", "inline_at", "inline_at"),
    *("inline_most", "set_memory", "set_allocation", "cache_after", "cache_before", "cache_fork", "rfactor", "like"),
)
LOOPS = (*SPLITS, "turn", "lanes", "lanes", "threads", "threads", "grid", "grid")
PARALLEL = {
    "cpu": ("serial", "unroll", "vector", "vector", "task"),
    "cuda": ("serial", "unroll", "vector", "block", "thread", "thread", "block_y", "thread_y", "bulk", "cluster"),
}
SOME = (1, 2, 2, 3, 4, 4, 5, 8, 16, 32)
POWERS = (2, 4, 4, 8)


class Caller:
    """Makes calls whether they make sense or not, and writes down which."""

    def __init__(self, fusion: jf.ir.Fusion, platform: str):
        self.scheduler, self.platform = jf.ir.Scheduler(fusion), platform
        self.made: list[str] = []

    def do(self, name: str, *arguments: Any) -> Any:
        """Make one call; one that is refused must change nothing and say which call it was."""
        before = self.scheduler.schedule
        try:
            result = getattr(self.scheduler, name)(*arguments)
        except jf.UserError as refused:
            assert str(refused).startswith("["), f"{name}{arguments}: a message without its function: {refused}"
            assert self.scheduler.schedule == before, f"{name}{arguments} changed something and said: {refused}"
            raise
        self.made.append(f"{name}({', '.join(map(repr, arguments))})")
        return result

    def value(self, number: int) -> str:
        values = self.scheduler.fusion.values
        return values[-1 - number % len(values)]

    def make(self, choice: Choice) -> None:
        kind, a, b, c = choice
        value = self.value(a)
        rank = max(len(self.scheduler.loops(value)), 1)
        getattr(self, f"_{kind}", functools.partial(self.plain, kind))(value, rank, b, c)

    def plain(self, kind: str, value: str, rank: int, b: int, c: int) -> None:
        axis = b % rank if c % 16 else b % 7 - 3  # sometimes none of its axes
        factor = SOME[c % 10]
        selected = [self.value(b), self.value(c)]
        arguments: list[Any] = {
            "split": [axis, factor if c % 31 else -c, bool(c % 3)],
            "pad": [axis, factor],
            "merge": [b % max(rank - 1, 1)],
            "reorder": [random.Random(c).sample(range(rank), rank - (b % 16 == 0))],
            "swizzle": [axis, c % rank],
            "parallelize": [-1 if c % 3 == 0 else axis, PARALLEL[self.platform][c % len(PARALLEL[self.platform])]],
            "transform_like": [selected] if b % 3 == 0 else [],
            "parallelize_like": [selected] if b % 3 == 0 else [],
            "inline_at": [b % (rank + 1), bool(c % 4)],
            "set_memory": ["shared" if c % 4 else "register"],
            "set_allocation": [axis, c % 4],
            "rfactor": [[axis] if c % 3 else [axis, c % rank]],
        }.get(kind, [])
        if kind == "inline_most":
            self.do(kind, *([[value]] if c % 4 == 0 else []))
        else:
            self.do(kind, value, *arguments)

    # What people do in several calls.

    def _like(self, value: str, rank: int, b: int, c: int) -> None:
        self.do("transform_like", value)
        self.do("parallelize_like", value)
        self.do("inline_most")

    def _lanes(self, value: str, rank: int, b: int, c: int) -> None:
        self.do("split", value, -1, POWERS[b % 4])
        self.do("parallelize", value, -1, "vector")

    def _threads(self, value: str, rank: int, b: int, c: int) -> None:
        axis = b % rank
        self.do("split", value, axis, POWERS[c % 4], bool(c % 3))
        self.do(
            "parallelize",
            value,
            axis + bool(c % 3),
            "unroll" if self.platform == "cpu" else ("thread", "thread_y")[b % 2],
        )

    def _grid(self, value: str, rank: int, b: int, c: int) -> None:
        self.do("parallelize", value, 0, "task" if self.platform == "cpu" else ("block", "block_y")[b % 4 == 0])

    def _turn(self, value: str, rank: int, b: int, c: int) -> None:
        axis, extent = b % rank, POWERS[c % 4]
        self.do("split", value, axis, extent)
        self.do("split", value, axis, extent)
        self.do("swizzle", value, axis + 1 + c % 2, axis + 2 - c % 2)

    def _each(self, value: str, rank: int, b: int, c: int) -> None:
        """The same call for every computed value, as far as it has such axes."""
        kind = ("split", "split", "pad", "merge", "swizzle", "lanes", "inline_at")[c % 7]
        for value in self.scheduler.fusion.values:
            if value in self.scheduler.fusion.inputs or (b + len(value)) % 29 == 0:
                continue
            with contextlib.suppress(jf.UserError):
                if kind == "lanes":
                    self._lanes(value, rank, b, c)
                else:
                    axis = b % 3 - 2
                    arguments = {"split": [axis, SOME[b % 8]], "pad": [axis, SOME[b % 8]], "merge": [axis]}
                    self.do(kind, value, *arguments.get(kind, [b % 4, bool(b % 3)]))

    def _parts(self, value: str, rank: int, b: int, c: int) -> None:
        folds = [v for v in self.scheduler.fusion.values if self.scheduler.fusion.is_reduction(v)]
        if not folds:
            return
        fold = folds[c % len(folds)]
        axis = b % len(self.scheduler.loops(fold))  # folds have loops
        self.do("split", fold, axis, SOME[c % 10], False)
        made = self.do("rfactor", fold, [axis + 1])
        if c % 2:
            self._like(made, rank, b, c)

    def _stage(self, value: str, rank: int, b: int, c: int) -> None:
        """Bulk copies of an input, in stages."""
        inputs = self.scheduler.fusion.inputs
        made = self.do("cache_after", inputs[b % len(inputs)])
        reference = self.value(c)
        axes = len(self.scheduler.loops(reference))
        if c % 3 and axes:
            self.do("split", reference, 0, POWERS[b % 4])
            self.do("parallelize", reference, 0, "block")
        self._like(reference, rank, b, c)
        for axis in range(c % 2, 3)[::-1]:
            if axis < len(self.scheduler.loops(made)):
                self.do("parallelize", made, axis, "serial" if axis < b % 3 else "bulk")
        if c % 3 and axes:
            self.do("parallelize", made, 0, "block")
        self.do("set_memory", made, "shared")
        self.do("circular_buffer", made, 1 + b % 4, *([b % 3] if c % 5 == 0 else []))
        self.do("inline_at", made, b % 3, True)

    def _share(self, value: str, rank: int, b: int, c: int) -> None:
        if c % 3 and not value.endswith("_cache"):
            value = self.do("cache_after", value)
            reference = self.value(b)
            self._like(reference, rank, b, c)
        rank = max(len(self.scheduler.loops(value)), 1)
        self.do("set_memory", value, "shared")
        if c % 4 == 0:
            self.do("reorder", value, random.Random(b).sample(range(rank), rank))
        if c % 5 < 3:
            self.do("set_allocation", value, b % rank, (0, 0, 1, 3)[b % 4])
        if c % 7 == 0:
            self.do("split", value, b % rank, POWERS[b % 4])
        self.do("inline_at", value, (0, 1, 2, 9)[b % 4], True)


@dataclass(frozen=True)
class Case:
    seed: int
    platform: str
    choices: tuple[Choice, ...]

    @staticmethod
    def of(seed: int, platform: str) -> Case:
        draw = random.Random(f"schedule {seed}")

        def some(kinds: Sequence[str], most: int) -> list[Choice]:
            count = draw.randint(0, most)
            return [(draw.choice(kinds), *(draw.randrange(1 << 16) for _ in range(3))) for _ in range(count)]

        if seed >= EACH:
            calls = some(("cache_after", "cache_before"), 1) + some(("each",), 5) + some(("turn", "parts"), 1)
            return Case(seed, platform, tuple(calls + [("inline_most", 0, 0, 1)][: draw.randint(0, 2)]))
        # Edits, loops of one value, then the others like it, then whatever comes.
        edits = some(("cache_after", "cache_before", "cache_fork", "parts", "parts", "rfactor"), 2)
        last = draw.randrange(3)
        loops = [(kind, last, b, c) for kind, _, b, c in some(LOOPS, 6)]
        like: list[Choice] = [("like", last, 0, 0)] if draw.random() < 0.9 else []
        share = some(("share", "share", "stage"), 1 + (draw.random() < 0.2)) if platform == "cuda" else []
        anything = some(CALLS, 4) if draw.random() < 0.5 else []
        return Case(seed, platform, tuple(edits + loops + like + share + anything))

    def smaller(self) -> list[Case]:
        return [replace(self, choices=self.choices[:i] + self.choices[i + 1 :]) for i in range(len(self.choices))]


@dataclass
class Outcome:
    """What became of a case: `wrong` says why it must not be, `refused` what was said, else it ran."""

    made: list[str]
    schedule: jf.ir.Schedule | None = None
    wrong: str | None = None
    refused: str | None = None


def outcome(case: Case, run: Callable[..., list[np.ndarray]]) -> Outcome:
    program = Program(case.seed)
    try:
        caller = Caller(program.fusion, case.platform)
    except jf.UserError as several:
        wrong = None if "is no single kernel" in str(several) else str(several)
        return Outcome([], refused=str(several), wrong=wrong)
    result = Outcome(caller.made)
    for choice in case.choices:
        try:
            caller.make(choice)
        except jf.UserError:
            continue
        except Exception as error:
            result.wrong = f"{choice}: {type(error).__name__}: {error}"
            return result
    s = caller.scheduler
    schedule = result.schedule = s.schedule
    if any(math.prod(extent for extent, _ in schedule.loops(v)) > MOST_ITERATIONS for v in s.fusion.values):
        result.refused = "too many iterations for a test"
        return result
    try:
        if jf.ir.Schedule(s.fusion, str(schedule)) != schedule:
            result.wrong = "the text does not say everything"
        elif jf.ir.Fusion(str(s.fusion)) != s.fusion:
            result.wrong = "the fusion's text does not say everything"
        else:
            jf.ir.lower(schedule, case.platform)
    except jf.UserError as refused:
        result.refused = str(refused)
        result.wrong = None if result.refused.startswith("[") else f"a message without its function: {refused}"
    except Exception as error:
        result.wrong = f"{type(error).__name__}: {error}"
    if result.wrong or result.refused:
        return result
    try:
        # Reshapes are gone from the schedule's fusion: the same memory by other shapes.
        inputs = [x.reshape(s.fusion.shape(name)) for x, name in zip(program.inputs, s.fusion.inputs)]
        for number, (made, want) in enumerate(zip(run(schedule, *inputs), program.wanted)):
            got = np.asarray(made).reshape(want.shape)
            if not np.array_equal(got, want):
                result.wrong = f"result {number} is wrong in {(got != want).sum()} of {want.size} elements"
    except NotImplementedError as unknown:
        result.refused = f"not run: {unknown}"  # by an interpreter that lacks a statement
    except Exception as error:
        result.wrong = f"{type(error).__name__}: {error}"
    return result


def report(case: Case, run: Callable[..., list[np.ndarray]]) -> str:
    """Cut a failing case down to the calls that matter, and show it."""
    found = outcome(case, run)
    smallest = case
    while True:
        tried = ((c, outcome(c, run)) for c in smallest.smaller())
        better = next(((c, o) for c, o in tried if o.wrong), None)
        if better is None:
            break
        smallest, found = better
    fusion = found.schedule.fusion if found.schedule else Program(case.seed).fusion
    return f"{smallest}\n{found.wrong}\n{chr(10).join(found.made)}\n{fusion}{found.schedule or ''}"
