"""Runs the loop program of one kernel, as its text says, on numpy: CUDA schedules computed and checked without a GPU.

All threads of a block take each statement together. What a GPU may do otherwise is refused: an access out of bounds, a
barrier that not all threads reach, two threads that meet at one shared element without a barrier between them, a stage
that is read before its bulk copies have arrived or filled while it is read, an element of an output that is written
with two values, or not at all.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from block_clusters import Cluster, side_by_side
from loop_ops import DTYPES, FOLDS, OPS, computed_in, identity

import jax_fuser as jf
from jax_fuser import _core

WARP = 32
BULK = 16  # bytes: what bulk copies move and begin at is a multiple
EVERY_THREAD = 1 << 30  # touched an element: several of them did
GRID = {"task": "task", "block": "x", "block_y": "y", "cluster": "rank"}


def behind(values: np.ndarray, factors: np.ndarray, before: np.ndarray, resets: bool = False) -> np.ndarray:
    """Return what stands behind an element of a linear recurrence; with resets a NaN factor forgets what is before."""
    with np.errstate(invalid="ignore", over="ignore"):
        result = values + factors * before
        return np.where(np.isnan(factors), values, result) if resets else result


def recurred(
    values: np.ndarray, factors: np.ndarray, before: Any, resets: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return what stands before each element, along the last axis, and behind the last one."""
    result = np.empty_like(values, shape=(*values.shape[:-1], values.shape[-1] + 1))
    result[..., 0] = before
    for i in range(values.shape[-1]):
        result[..., i + 1] = behind(values[..., i], factors[..., i], result[..., i], resets)
    return result[..., :-1], result[..., -1]


@dataclass
class Line:
    text: str
    body: list[Line] = field(default_factory=list)


def tree(lines: list[str]) -> list[Line]:
    """Nest lines by their indentation."""
    root = Line("")
    open_lines = [(0, root)]
    for line in lines:
        depth = len(line) - len(line.lstrip())
        while open_lines[-1][0] >= depth:
            open_lines.pop()
        made = Line(re.sub(r"  # .*", "", line.strip()))
        open_lines[-1][1].body.append(made)
        open_lines.append((depth, made))
    return root.body


@functools.cache
def parsed(text: str) -> tuple[Any, tuple[str, ...]]:
    """Return what runs a statement, and its operands: loops run each one often."""
    for pattern, method in STATEMENTS:
        if found := pattern.fullmatch(text):
            return method, found.groups()
    raise NotImplementedError(text)


@functools.cache
def arithmetic(text: str) -> Any:
    return compile(text.replace("/", "//"), text, "eval")


@dataclass
class Active:
    """Which threads take a statement, and which of their lanes exist."""

    threads: np.ndarray
    lanes: np.ndarray


class Buffer:
    """Memory of one block or of all, and who touched each element since the threads met."""

    def __init__(self, name: str, dtype: str, size: int, data: np.ndarray | None = None):
        self.name, self.written = name, np.full(size, data is not None)
        self.data = np.zeros(size, DTYPES[dtype]) if data is None else data

        self.unfenced = np.full(size, False)  # written by threads, not yet to be seen by bulk copies
        self.copied: list[np.ndarray] = []  # elements that bulk stores may still read
        self.meet()

    def meet(self) -> None:
        self.writer, self.reader = np.full((2, self.data.size), -1)
        for elements in self.copied:
            self.reader[elements] = EVERY_THREAD


@dataclass
class Ring:
    """A shared buffer in stages that bulk copies fill in turn."""

    stages: int
    size: int
    filled: int = 0  # stages committed, and waited for, so far
    awaited: int = 0
    arriving: dict[int, list[np.ndarray]] = field(default_factory=dict)  # by number of the stage


class Block:
    """The threads of one block. `at` is its place in the grid."""

    def __init__(self, kernel: Kernel, at: dict[str, int], cluster: Cluster | None = None):
        self.kernel, self.at, self.cluster = kernel, at, cluster
        count = kernel.block[0] * kernel.block[1]
        self.y, self.x = np.divmod(np.arange(count), kernel.block[0])
        self.thread = np.arange(count)
        self.variables: dict[str, Any] = {}
        self.registers: dict[str, np.ndarray] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self.shared = {name: Buffer(name, dtype, size) for name, (dtype, size) in kernel.shared.items()}
        self.rings = {name: Ring(stages, size) for name, (stages, size) in kernel.rings.items()}
        everything = Active(np.full(count, True), np.full((count, kernel.width), True))
        self.run(kernel.body, everything)

    def index(self, text: str) -> np.ndarray:
        found = eval(arithmetic(text), {"min": np.minimum, "where": np.where}, self.variables)
        return found if np.shape(found) == self.thread.shape else np.broadcast_to(found, self.thread.shape)

    def condition(self, text: str) -> np.ndarray:
        bounds = [part.rsplit(" < ", 1) for part in text.split(" and ")]
        return np.logical_and.reduce([self.index(index) < self.index(bound) for index, bound in bounds])

    def run(self, body: list[Line], active: Active) -> None:
        for line in body:
            if active.threads.any():
                self.statement(line, active)

    def statement(self, line: Line, active: Active) -> None:
        method, operands = parsed(line.text)
        method(self, active, line.body, *operands)

    def loop(
        self, active: Active, body: list[Line], variable: str, extent: str, parallel: str, back: str, runs: str | None
    ) -> None:
        count = int(extent)
        if parallel in ("serial", "unroll"):
            for i in range(count)[:: -1 if back else 1]:
                self.variables[variable] = i
                if runs:
                    active = Active(active.threads & self.condition(runs), active.lanes)
                    if not active.threads.any():
                        return
                self.run(body, active)
            return
        mine = {"thread": self.x, "thread_y": self.y}.get(parallel)
        i = self.at[GRID[parallel]] if mine is None else mine
        self.variables[variable] = i
        self.run(body, Active(active.threads & (i < count), active.lanes))

    def vector(
        self,
        active: Active,
        body: list[Line],
        variable: str,
        base: str,
        before: str | None,
        limits: str | None,
    ) -> None:
        first = self.variables[variable] = self.index(base) - (self.index(before) if before else 0)
        lane = first[:, None] + np.arange(self.kernel.width)
        exists = lane >= (0 if limits else -np.inf)
        for limit in limits.split(" and ") if limits else ():
            bound, _, ahead = limit.partition(" less ")
            exists &= lane < int(bound) - (self.index(ahead)[:, None] if ahead else 0)
        self.run(body, Active(active.threads & exists.any(1), exists))

    def guard(self, active: Active, body: list[Line], condition: str) -> None:
        self.run(body, Active(active.threads & self.condition(condition), active.lanes))

    def decide(self, active: Active, body: list[Line], inverse: str | None, register: str) -> None:
        holds = self.registers[register]
        assert (holds == holds[:, :1])[active.threads].all(), f"lanes of {register} differ"
        self.run(body, Active(active.threads & (holds[:, 0] != bool(inverse)), active.lanes))

    def touched(
        self, active: Active, buffer: Buffer, offset: str, step: str | None, moved: Any = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return elements by thread and lane, and where they are touched: without a step in the first lane alone."""
        element = self.index(offset)[:, None] + np.arange(self.kernel.width) * int(step or 0) + moved
        where = active.threads[:, None] & (active.lanes if step else np.arange(self.kernel.width) == 0)
        outside = where & ((element < 0) | (element >= buffer.data.size))
        assert not outside.any(), f"{buffer.name}[{offset}] reaches {element[outside][0]} of {buffer.data.size}"
        return element, where

    def load(self, active: Active, _: Any, to: str, dtype: str, name: str, at: str, *where: str) -> None:
        step, here, when, within, taken, count, place, period, turn, start, _ = where
        buffer = self.buffer(name)
        if count:
            return self.load_vector(active, to, dtype, buffer, at, here, count)
        if when:
            active = Active(active.threads & self.condition(when), active.lanes)
        for begin, index, lane, end in re.findall(RANGE, within):
            position = self.index(index)[:, None] + np.arange(self.kernel.width) * bool(lane)
            inside = (position >= int(begin)) & (position < (int(end) if end else np.inf))
            active = Active(active.threads & (inside[:, 0] | bool(lane)), active.lanes & inside)
        if here:
            conditions = " & ".join(f"({bound})" for bound in here.split(" and "))
            at = f"where({conditions}, {at}, 0)"
        moved: Any = 0
        if period:  # lanes go round
            first = self.index(start)[:, None]
            lane = first + np.arange(self.kernel.width)
            moved = (lane % int(period) - first) * int(place) + lane // int(period) * int(turn)
            step = step or "0"
        for weight, register, each, limit in re.findall(STEP, taken):
            index = np.clip(self.registers[register].astype(np.int64), 0, int(limit)) * int(weight)
            moved, step = moved + (index if each else index[:, :1]), step or (each and "0")
        element, where = self.touched(active, buffer, at, step, moved)
        thread = np.broadcast_to(self.thread[:, None], where.shape)
        touched, by = element[where], thread[where]
        assert buffer.written[touched].all(), f"{name} is read before it is written"
        if name in self.shared:
            others = (buffer.writer[touched] >= 0) & (buffer.writer[touched] != by)
            assert not others.any(), f"{name}[{at}] is read beside its writing, without a barrier"
            met = (buffer.reader[touched] >= 0) & (buffer.reader[touched] != by)
            buffer.reader[touched] = np.where(met, EVERY_THREAD, by)
        result = np.zeros(where.shape, computed_in(dtype))
        result[where] = buffer.data[touched].astype(result.dtype)
        if not step:
            result[:] = result[:, :1]
        self.registers[to] = result

    def load_vector(
        self, active: Active, to: str, dtype: str, buffer: Buffer, at: str, here: str | None, count: str
    ) -> None:
        """Load lanes of which those that do not run mean nothing: here 99."""
        width = self.kernel.width
        first, size = self.index(at), buffer.data.size
        if count == " whole":
            first = np.where(self.condition(here), first, 0) if here else first
            assert not (first % width)[active.threads].any(), f"{buffer.name}[{at}] is no whole vector"
            reached = (first >= 0) & (first < size)
            assert reached[active.threads].all(), f"{buffer.name}[{at}] reads a vector outside of it"
        else:
            size = int(count.removeprefix(" around "))
            assert size <= buffer.data.size
        element = first[:, None] + np.arange(width)
        result = np.full(element.shape, 99, computed_in(dtype))
        where = active.threads[:, None] & (element >= 0) & (element < size)
        result[where] = buffer.data[element[where]].astype(result.dtype)
        self.registers[to] = result

    def store(self, active: Active, _: Any, name: str, at: str, step: str | None, register: str) -> None:
        buffer = self.buffer(name)
        element, where = self.touched(active, buffer, at, step)
        thread = np.broadcast_to(self.thread[:, None], where.shape)
        touched, by, value = element[where], thread[where], self.registers[register][where].astype(buffer.data.dtype)
        if name in self.shared:
            for seen in (buffer.writer, buffer.reader):
                others = (seen[touched] >= 0) & (seen[touched] != by)
                assert not others.any(), f"{name}[{at}] is written beside another access, without a barrier"
            # Threads may write the same, but each of them has to wait before it reads.
            buffer.data[touched] = value
            np.testing.assert_array_equal(buffer.data[touched], value, f"{name}[{at}] is written with two values")
            buffer.writer[touched] = by
            buffer.writer[touched[buffer.writer[touched] != by]] = EVERY_THREAD
            buffer.unfenced[touched] = True
        elif buffer.written[touched].any():
            again = buffer.written[touched]
            np.testing.assert_array_equal(buffer.data[touched][again], value[again], f"{name} is written twice")
        buffer.data[touched], buffer.written[touched] = value, True

    def store_interleaved(self, active: Active, body: Any, names: str, at: str, step: str, registers: str) -> None:
        for i, (name, register) in enumerate(zip(names.split(", "), registers.split(", "))):
            self.store(active, body, name, f"{at} + {i}", step, register)

    def buffer(self, name: str) -> Buffer:
        return self.shared.get(name) or self.kernel.buffers[name]

    def read_index(self, active: Active, _: Any, to: str, name: str, at: str, high: str, when: str | None) -> None:
        if when:
            active = Active(active.threads & self.condition(when), active.lanes)
        element, _ = self.touched(active, self.buffer(name), at, None)
        value = np.zeros(self.thread.shape, np.int64)
        value[active.threads] = self.buffer(name).data[element[:, 0][active.threads]]
        self.variables[to] = np.clip(value, 0, int(high))

    def from_index(self, active: Active, _: Any, to: str, dtype: str, at: str, step: str | None) -> None:
        element = self.index(at)[:, None] + np.arange(self.kernel.width) * int(step or 0)
        self.registers[to] = element.astype(computed_in(dtype))

    def search(self, active: Active, _: Any, to: str, name: str, at: str, step: str | None, *how: str) -> None:
        count, number, each, left, when = how
        if when:
            active = Active(active.threads & self.condition(when), active.lanes)
        wanted, data, stride = self.registers[number], self.buffer(name).data, int(step or 0)
        first = self.index(at)[:, None] + np.arange(self.kernel.width) * stride
        where = active.threads[:, None] & (active.lanes if each else np.arange(self.kernel.width) == 0)
        result = np.zeros(where.shape, np.int32)
        for thread, lane in zip(*np.nonzero(where)):
            begin = first[thread, lane]
            assert 0 <= begin <= data.size - int(count), f"{name}[{at}] is outside of {data.size} elements"
            table = data[begin : begin + int(count)]
            result[thread, lane] = np.searchsorted(table, wanted[thread, lane], "left" if left else "right")
        if not each:
            result[:] = result[:, :1]
        self.registers[to] = result

    def compute(self, active: Active, _: Any, to: str, dtype: str, op: str, operands: str) -> None:
        shape = (self.thread.size, self.kernel.width)
        if op == "constant":
            text = operands.strip().partition(":")[0]  # a NaN is followed by its bits
            number = {"true": True, "false": False}.get(text, text)
            result = np.full(shape, float(number) if dtype[0] in "fb" else int(number))
        elif op == "bitcast":
            bits = np.ascontiguousarray(self.registers[operands.strip()])
            assert bits.dtype.itemsize == np.dtype(DTYPES[dtype]).itemsize, "of what registers hold as it is"
            result = bits.view(DTYPES[dtype])
        else:
            with np.errstate(all="ignore"):
                result = OPS[op](*(self.registers[r] for r in operands.split()))
        if op == "convert":
            result = result.astype(DTYPES[dtype])
        self.registers[to] = np.asarray(result).astype(computed_in(dtype))

    def declare(self, active: Active, _: Any, name: str, fold: str | None) -> None:
        dtype, size = self.kernel.arrays[name]
        start = np.full((self.thread.size, size, self.kernel.width), identity(fold, dtype) if fold else 99)
        self.arrays[name] = start.astype(dtype)

    def get(self, active: Active, _: Any, to: str, dtype: str, name: str, at: str) -> None:
        self.registers[to] = self.arrays[name][self.thread, self.element(active, name, at)]

    def set(self, active: Active, _: Any, name: str, at: str, register: str, existing: str | None) -> None:
        element, array = self.element(active, name, at), self.arrays[name]
        on = active.threads[:, None] & (active.lanes if existing else True)
        array[self.thread, element] = np.where(on, self.registers[register], array[self.thread, element])

    def scan(self, active: Active, _: Any, to: str, dtype: str, register: str, fold: str, *how: str) -> None:
        factor, resets, carry, at, lanes, back, when = how
        if when:
            active = Active(active.threads & self.condition(when), active.lanes)
        ufunc, turn = FOLDS.get(fold, [None])[0], slice(None, None, -1 if back else 1)
        on = active.threads[:, None] & active.lanes
        value = self.registers[register]
        if carry:
            element, array = self.element(active, carry, at), self.arrays[carry]
            old = array[self.thread, element]
        if factor:
            times = self.registers[factor]
            if lanes:
                value, times = np.where(on, value, 0)[:, turn], np.where(on, times, 1)[:, turn]
                value, last = recurred(value, times, old[:, 0] if carry else 0, bool(resets))
                value, last = value[:, turn], np.repeat(last[:, None], self.kernel.width, 1)
            else:
                value, last = (old, behind(value, times, old, bool(resets))) if carry else (np.zeros_like(value), None)
        else:
            if lanes:
                turned = np.where(on, value, identity(fold, value.dtype))[:, turn]
                value = ufunc.accumulate(turned, axis=1)[:, turn]
            value = ufunc(old, value) if carry else value
            last = np.repeat(value[:, :1] if back else value[:, -1:], self.kernel.width, 1) if lanes else value
        if carry:
            array[self.thread, element] = np.where(active.threads[:, None] if lanes else on, last, old)
        self.registers[to] = np.where(active.threads[:, None], value, 0).astype(value.dtype)

    def scan_threads(self, active: Active, _: Any, name: str, fold: str, *how: str) -> None:
        factors, resets, carry, at, lanes, over, run, back = how
        assert active.threads.all(), f"not all threads reach the scan of {name}"
        (x, y), array, turn = self.kernel.block, self.arrays[name], slice(None, None, -1 if back else 1)
        if x > WARP or over == "threads_y":
            self.meet()
        # What is scanned comes last: runs, threads, the elements of a run, and lanes where they lie along it.
        order, kept = ((0, 2, 1, 3, 4), 1) if over == "threads" else ((1, 4, 2, 0, 3), 2)

        def parts_of(array: np.ndarray) -> np.ndarray:
            parts = array.reshape(y, x, -1, int(run), self.kernel.width)
            return (parts[..., :1] if over == "threads" and not lanes else parts).transpose(order)

        parts = parts_of(array)
        line = parts.reshape(*parts.shape[:kept], -1)[..., turn]
        if carry:
            element, carries = self.element(active, carry, at), self.arrays[carry]
            old = carries[self.thread, element].reshape(y, x, -1)
            before = old[:, 0, 0] if over == "threads" else old[0]
        if factors:
            times = parts_of(self.arrays[factors]).reshape(line.shape)[..., turn]
            line, last = recurred(line, times, before if carry else 0, bool(resets))
        else:
            ufunc = FOLDS[fold][0]
            line = ufunc.accumulate(line, axis=-1)
            line = ufunc(before[..., None], line) if carry else line
            last = line[..., -1]
        if carry:
            last = np.broadcast_to(last[:, None, None] if over == "threads" else last, old.shape)
            carries[self.thread, element] = last.reshape(self.thread.size, -1)
        scanned = line[..., turn].reshape(parts.shape).transpose(np.argsort(order))
        scanned = np.broadcast_to(scanned, (*scanned.shape[:-1], self.kernel.width))
        self.arrays[name] = scanned.reshape(array.shape).copy()

    def accumulate(self, active: Active, _: Any, name: str, at: str, fold: str, register: str) -> None:
        element, array = self.element(active, name, at), self.arrays[name]
        old = array[self.thread, element]
        on = active.threads[:, None] & active.lanes
        array[self.thread, element] = np.where(on, FOLDS[fold][0](old, self.registers[register]), old)

    def element(self, active: Active, name: str, at: str) -> np.ndarray:
        element = np.where(active.threads, self.index(at), 0)
        assert (element < self.arrays[name].shape[1]).all(), f"{name}[{at}] is out of bounds"
        return element

    def combine(self, active: Active, _: Any, names: str, fold: str, over: str) -> None:
        x, y = self.kernel.block
        words = over.split()
        if "threads" in over:
            assert active.threads.all(), f"not all threads reach the fold of {names}"
        if ("threads" in words and x > WARP) or ("threads_y" in words and x * y > WARP):
            self.meet()
        if "cluster" in words:
            assert active.threads.all(), f"not all threads reach the fold of {names}"
            self.meet()
        for name in names.split():
            self.fold(name, FOLDS[fold][0], over)

    def fold(self, name: str, ufunc: Any, over: str) -> None:
        array = self.arrays[name]
        x, y = self.kernel.block
        folded = array.reshape(y, x, *array.shape[1:])
        axes = {"threads_y": 0, "threads": 1, "lanes": 3}
        for word in over.split():
            if word == "cluster":
                assert self.cluster is not None
                array = folded.reshape(array.shape)
                assert (array == array[:1])[~np.isnan(array)].all(), f"the threads of a block differ in {name}"
                folded = functools.reduce(ufunc, self.cluster.exchange(self.at["rank"], array)).reshape(folded.shape)
                continue
            whole = functools.reduce(ufunc, np.moveaxis(folded, axes[word], 0))
            folded = np.broadcast_to(np.expand_dims(whole, axes[word]), folded.shape)
        self.arrays[name] = folded.reshape(array.shape).copy()

    def sync(self, active: Active, _: Any) -> None:
        assert active.threads.all(), "not all threads reach a barrier"
        self.meet()

    def meet(self) -> None:
        for buffer in self.shared.values():
            buffer.meet()

    # Bulk copies: one thread begins them, and all wait for them.

    def uniform(self, active: Active, text: str) -> int:
        assert active.threads.all(), "not all threads reach a bulk copy"
        values = np.unique(self.index(text))
        assert values.size == 1, f"threads do not agree on {text}"
        return int(values[0])

    def runs(self, active: Active, total: str, row: str | None, limits: str) -> np.ndarray:
        """Return which elements of a copy there are, from its first one on."""
        length = int(row or total)
        run = np.arange(int(total)) // length
        for first, limit in re.findall(r" while (.+?) \+ run < (\d+)", limits):
            run = run[self.uniform(active, first) + run < int(limit)]
        return np.arange(run.size)

    def open(self, active: Active, _: Any, name: str) -> None:
        assert active.threads.all() and self.rings[name].filled == 0

    def fill(self, active: Active, _: Any, name: str, to: str, source: str, at: str, *extent: Any) -> None:
        *extent, anywhere = extent
        data, elements = self.kernel.buffers[source].data, self.runs(active, *extent)
        read = self.uniform(active, at) + elements
        begins = {self.uniform(active, at) * data.itemsize % BULK, self.uniform(active, to) * data.itemsize % BULK}
        assert len(begins) == 1 if anywhere else begins == {0} and elements.size * data.itemsize % BULK == 0, (
            f"a bulk copy of {elements.size} elements of {source} begins {begins} bytes after a multiple of {BULK}"
        )
        assert (read < data.size).all(), f"a bulk copy reaches {read.max()} of {data.size} of {source}"
        self.arrive(name, self.uniform(active, to) + elements, data[read])

    def fill_tile(self, active: Active, _: Any, name: str, to: str, number: str, at: str) -> None:
        source, extents, strides, box, swizzle = self.kernel.maps[int(number)]
        data, rest = self.kernel.buffers[source].data, np.arange(math.prod(box))
        byte = rest * data.itemsize
        if swizzle:  # 16-byte chunks trade places by the number of 128 bytes
            byte = byte ^ (byte // 128 % (swizzle // 16)) * 16
        inside, read = np.full(rest.size, True), np.zeros(rest.size, int)
        for first, extent, stride, length in zip(at.split(", "), extents, strides, box, strict=True):
            index = self.uniform(active, first) + rest % length
            inside, read, rest = inside & (index < extent), read + index * stride, rest // length
        values = np.where(inside, data[np.where(inside, read, 0)], data.dtype.type(0))
        self.arrive(name, self.uniform(active, to) + byte // data.itemsize, values)

    def arrive(self, name: str, written: np.ndarray, values: np.ndarray) -> None:
        ring, buffer = self.rings[name], self.shared[name]
        stage = ring.filled % ring.stages
        assert (written < ring.size).all(), f"a bulk copy reaches {written.max()} of {ring.size} of a stage of {name}"
        assert ring.filled - ring.awaited < ring.stages, f"a stage of {name} is filled again before it is waited for"
        written = written + stage * ring.size
        assert (buffer.reader[written] < 0).all(), f"{name} is filled while it is read"
        buffer.data[written], buffer.written[written] = values, False
        ring.arriving.setdefault(ring.filled, []).append(written)

    def commit(self, active: Active, _: Any, name: str) -> None:
        assert active.threads.all(), f"not all threads commit {name}"
        self.rings[name].filled += 1

    def wait(self, active: Active, _: Any, variable: str, name: str) -> None:
        ring, buffer = self.rings[name], self.shared[name]
        assert active.threads.all() and ring.awaited < ring.filled, f"{name} is waited for before it is committed"
        for elements in ring.arriving.pop(ring.awaited, []):
            buffer.written[elements], buffer.writer[elements] = True, -1
        self.variables[variable] = ring.awaited % ring.stages
        ring.awaited += 1

    def bulk_store(self, active: Active, _: Any, name: str, to: str, source: str, at: str, *extent: Any) -> None:
        target, buffer = self.kernel.buffers[name], self.shared[source]
        elements = self.runs(active, *extent)
        read, written = self.uniform(active, at) + elements, self.uniform(active, to) + elements
        assert (written < target.data.size).all(), f"a bulk copy reaches {written.max()} of {name}"
        assert buffer.written[read].all() and (buffer.writer[read] < 0).all(), f"{source} is copied while it is written"
        assert not buffer.unfenced[read].any(), f"{source} is copied without a fence"
        buffer.copied.append(read)
        buffer.reader[read] = EVERY_THREAD
        target.data[written], target.written[written] = buffer.data[read], True

    def turn(self, active: Active, _: Any, name: str, to: str, pitch: str, source: str, at: str, *sizes: str) -> None:
        step, before, tile, row, rows, column, columns = sizes
        data, buffer = self.kernel.buffers[source].data, self.shared[name]
        r, c = np.meshgrid(np.arange(-int(before), int(tile)), np.arange(int(tile)), indexing="ij")
        in_row, in_column = self.uniform(active, row) + r, self.uniform(active, column) + c
        there = (in_row >= 0) & (in_row < int(rows)) & (in_column < int(columns))
        read = self.uniform(active, at) + r * int(step) + c
        written = self.uniform(active, to) + c * int(pitch) + r
        assert (read[there] >= 0).all() and (read[there] < data.size).all(), f"a tile reaches outside of {source}"
        assert written.min() >= 0 and written.max() < buffer.data.size, f"a tile reaches outside of {name}"
        buffer.data[:] = 99  # what is beside the tile means nothing
        buffer.data[written[there]], buffer.written[written[there]] = data[read[there]], True

    def fence(self, active: Active, _: Any) -> None:
        assert active.threads.all(), "not all threads reach a fence"
        for buffer in self.shared.values():
            buffer.unfenced[:] = False

    def drain(self, active: Active, _: Any) -> None:
        for buffer in self.shared.values():
            buffer.copied.clear()


RANGE = r" within (\d+) <= (.+?)( \+ lane)?(?: < (\d+))?(?= within|$)"
STEP = r" at (\d+) \* (r\d+)( of each lane)? up to (\d+)"
EXTENT = r" \* (\d+)(?: by (\d+))?((?: while .+? \+ run < \d+)*)"
STATEMENTS = [
    (re.compile(pattern), method)
    for pattern, method in (
        (r"for (\w+) < (\d+) (\w+)( reverse)?(?: while (.+))?", Block.loop),
        (r"vector (\w+) = (.+?)(?: before (.+?))?(?: full| below (\d.*))", Block.vector),
        (r"if( not)? (r\d+)", Block.decide),
        (r"if (.+)", Block.guard),
        (
            r"(r\d+): (\w+) = load (\w+)\[(.+?)\](?: lane \* (-?\d+))?(?: where (.+?) else first)?(?: if (.+?))?"
            r"((?: within .+?)?)((?: at .+?)?)( whole| around \d+)?"
            r"(?: by (-?\d+) in turns of (\d+) by (-?\d+) from (.+?))?( interleaved)?",
            Block.load,
        ),
        (r"store \((.+?)\)\[(.+?)\] lane \* (\d+) = \((.+?)\)", Block.store_interleaved),
        (r"store (\w+)\[(.+?)\](?: lane \* (-?\d+))? = (r\d+)", Block.store),
        (r"(r\d+): (\w+) = index (.+?)(?: lane \* (\d+))?", Block.from_index),
        (r"(i\d+) = read (\w+)\[(.+)\] up to (\d+)(?: if (.+))?", Block.read_index),
        (
            r"(r\d+): s32 = search (\w+)\[(.+?)\](?: lane \* (\d+))? of (\d+) for (r\d+)"
            r"( of each lane)?( left)?(?: if (.+))?",
            Block.search,
        ),
        (r"(r\d+): (\w+) = (\w+)\[(.+)\]", Block.get),
        (
            r"(r\d+): (\w+) = scan (r\d+) by (\w+)(?: times (r\d+)( resets)?)?(?: from (\w+)\[(.+?)\])?"
            r"( over lanes)?( reverse)?(?: if (.+))?",
            Block.scan,
        ),
        (r"(r\d+): (\w+) = (\w+)((?: \S+)*)", Block.compute),
        (
            r"scan (\w+) by (\w+)(?: times (\w+)( resets)?)?(?: from (\w+)\[(.+?)\])?"
            r" over( lanes)? (threads(?:_y)?) in runs of (\d+)( reverse)?",
            Block.scan_threads,
        ),
        (r"declare (\w+)(?: for (\w+))?", Block.declare),
        (r"(\w+)\[(.+)\] = (r\d+)( where it exists)?", Block.set),
        (r"(\w+)\[(.+)\] (\w+)= (r\d+)", Block.accumulate),
        (r"combine (\w+(?: \w+)*) by (\w+) over(.+)", Block.combine),
        (r"sync", Block.sync),
        (r"open (\w+)", Block.open),
        (rf"fill (\w+)\[(.+?)\] = bulk (\w+)\[(.+?)\]{EXTENT}( anywhere)?", Block.fill),
        (r"fill (\w+)\[(.+?)\] = tile map(\d+)\((.+)\)", Block.fill_tile),
        (r"commit (\w+)", Block.commit),
        (r"(i\d+) = await (\w+)", Block.wait),
        (rf"bulk (\w+)\[(.+?)\] = (\w+)\[(.+?)\]{EXTENT}", Block.bulk_store),
        (
            r"turn (\w+)\[(.+?) by (\d+)\] = (\w+)\[(.+?) by (-?\d+)\] \* (\d+)\+(\d+) x \d+"
            r" while (.+?) \+ run < (\d+) and (.+?) \+ run < (\d+)",
            Block.turn,
        ),
        (r"fence bulk", Block.fence),
        (r"drain bulk", Block.drain),
    )
]


class Kernel:
    """A loop program and the buffers that it runs on."""

    def __init__(self, text: str):
        head, *lines = text.rstrip().splitlines()
        found = re.fullmatch(
            r"kernel \w+ width=(\d+) grid=(\d+)(?:x(\d+))?(?: cluster=(\d+))? block=(\d+)(?:x(\d+))?.*", head
        )
        assert found, head
        width, *sizes = (int(n or 1) for n in found.groups())
        self.width, self.grid, self.cluster, self.block = width, tuple(sizes[:2]), sizes[2], tuple(sizes[3:])
        self.parameters: list[tuple[bool, str]] = []
        self.shared: dict[str, tuple[str, int]] = {}
        self.arrays: dict[str, tuple[Any, int]] = {}
        self.rings: dict[str, tuple[int, int]] = {}
        self.buffers: dict[str, Buffer] = {}
        described = re.compile(r"  map\d+: (\w+) \((.+)\) strides \((.+)\) box \((.+)\) swizzle (\d+)")
        declaration = re.compile(r"  (in|out|shared|array|ring) (\w+): (\w+)(?:\[(\d+)\]| stages of (\d+))?")
        self.maps: list[tuple[Any, ...]] = []  # buffer, extents, strides, box, swizzle
        while lines and (found := declaration.fullmatch(lines[0]) or described.fullmatch(lines[0])):
            if found.re is described:
                name, *axes, swizzle = found.groups()
                self.maps.append((name, *([int(n) for n in numbers.split(",")] for numbers in axes), int(swizzle)))
                lines.pop(0)
                continue
            kind, name, dtype, size, stage = found.groups()
            if kind in ("in", "out"):
                self.parameters.append((kind == "in", name))
            elif kind == "shared":
                self.shared[name] = (dtype, int(size))
            elif kind == "array":
                self.arrays[name] = (computed_in(dtype), int(size))
            else:
                self.rings[name] = (int(dtype), int(stage))
            lines.pop(0)
        self.body = tree(lines)

    def places(self) -> Iterator[dict[str, int]]:
        for y in range(self.grid[1]):
            for x in range(self.grid[0]):
                yield {"x": x, "y": y, "task": x}

    def run(self) -> None:
        for place in self.places():
            side_by_side(self.cluster, functools.partial(Block, self), place)


def run(
    schedule: jf.ir.Schedule, *arrays: Any, platform: str = "cuda", wholes: Mapping[str, Buffer] = MappingProxyType({})
) -> list[np.ndarray]:
    """Return the results of a schedule's kernel for a platform, run as its loops say; parts of one array are that.

    `wholes`: by the name of an output that is a part of a larger array, that array, which other kernels store, too.

    Kernels before it fill outputs with zeros that it stores in part.
    """
    fusion = schedule.fusion
    text = jf.ir.lower(schedule, platform).as_text("loops")
    *fills, kernel = (Kernel(part) for part in re.split(r"\n(?=kernel )", text))
    values = iter(zip(fusion.inputs, arrays))
    names = [name for is_input, name in kernel.parameters if not is_input]
    for name, (value, data) in zip((name for is_input, name in kernel.parameters if is_input), values):
        flat = np.asarray(data).reshape(-1)
        kernel.buffers[name] = Buffer(name, fusion.dtype(value), math.prod(fusion.shape(value)), flat)
    made = []
    for parts, shape, _ in _core.results(fusion):
        whole = wholes.get(parts[0]) or Buffer(names[0], fusion.dtype(parts[0]), math.prod(shape))
        made.append((whole, shape))
        for value in parts:
            kernel.buffers[names.pop(0)] = wholes.get(value) or whole
    filled = []
    for fill in fills:
        [(_, name)] = fill.parameters
        fill.buffers[name] = kernel.buffers[name]
        filled.append(kernel.buffers[name])
        fill.run()
        assert filled[-1].written.all(), f"{name} is not filled everywhere"
        filled[-1].written[:] = False
    kernel.run()
    for buffer, _ in made:
        elsewhere = buffer in filled or buffer in wholes.values()
        assert buffer.written.all() or elsewhere, f"{buffer.name} is not written everywhere"
    return [buffer.data if buffer in wholes.values() else buffer.data.reshape(shape) for buffer, shape in made]
