"""Which equations of a jaxpr become fusions, and which stay with XLA.

1. `flatten` (`_flatten`) opens calls, so that a region can reach across them.
2. Every equation is cut (no rule), a view, or computes. Views belong to whoever reads them: each region that needs
   one makes it anew from its source, which has fewer bytes; a cut equation that needs one has it from XLA, which
   folds it in. Only a view that the program returns is written by the region of its source. One element made of
   constants is a view. A grouped product of 16-bit floats or f32 is in the region that reads it, where nothing else
   does, or that goes on with it row by row and stores it for others. What feeds nothing but reductions that are cut
   (`lax.reduce` by a function) stays with XLA too: it computes such values inside the reduction and never stores
   them. So does an update (x.at[i].set) of what a region neither makes nor alone reads: XLA may write it in place.
3. Depth: a computing equation is at the largest depth of its producers, plus one for those that are cut; a cut equation
   is at the largest depth of its producers. In the order region 0, cuts 0, region 1, cuts 1, ... everything is defined
   before its use, so no cycle can arise. An equation whose readers all lie deeper moves down to them: a store is saved.
   A reduction, whose operand is larger, does so only with all that feeds it, to where its operand is read anyway.
4. Values that depend linearly on given inputs (tangents, cotangents) are never made together with others that are
   needed elsewhere: partial evaluation must be able to take the linear part alone. The linear region computes again
   what it needs.
5. Scalars that depend on no array of a region have regions of their own, to be arrays under `vmap`; XLA runs them as
   they are otherwise. Unrelated parts of a region become separate programs when their shapes differ, and no program has
   more than MAX_BUFFERS arguments and results.
   Random bits, and what is made of nothing else, are in the region that reads them where that computes each once; else
   they are a region of their own.
6. A region that only moves or converts data, or holds no element, stays with XLA. So does one that XLA fuses as well
   with complex numbers or windows beside it, where at least a third of its bytes would go from one to the other.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jax.extend.core import JaxprEqn, Var

from jax_fuser import _fused_by_xla, _random, _trace, _trace_updates, _trace_writer
from jax_fuser._flatten import Flat

# Arguments of one program: CUDA kernels take 4 KiB of parameters, and registers run out before that.
MAX_BUFFERS = 64
# Equations of one program: compile time grows faster than linearly beyond.
MAX_EQUATIONS = 512


@dataclass(frozen=True)
class Region:
    """Equations that become one program."""

    eqns: list[JaxprEqn]
    invars: list[Var]
    outvars: list[Var]


def variables(step: Any) -> list[Var]:
    """Return the operands that are not literals."""
    return [v for v in step.invars if isinstance(v, Var)]


def shape(v: Any) -> tuple[int, ...]:
    """Return the shape of a variable."""
    return v.aval.shape


def shrinks(eqn: JaxprEqn) -> bool:
    """Whether the results of an equation that computes have fewer elements than its operands: it reduces."""
    return _largest(eqn.invars) > _largest(eqn.outvars)


def _bytes(v: Any) -> int:
    return math.prod(shape(v)) * int(v.aval.dtype.itemsize)


def _largest_bytes(values: Iterable[Any]) -> int:
    return max(map(_bytes, values))


def _largest(values: Iterable[Any]) -> int:
    return max((math.prod(shape(v)) for v in values), default=0)


def dependent(eqns: Sequence[JaxprEqn], inputs: Iterable[Var]) -> set[Var]:
    """Return the inputs and every value that depends on them."""
    reached = set(inputs)
    for eqn in eqns if reached else ():
        if not reached.isdisjoint(variables(eqn)):
            reached.update(eqn.outvars)
    return reached


def live(eqns: Sequence[JaxprEqn], outvars: Iterable[Any]) -> list[JaxprEqn]:
    """Drop equations that reach no output and have no effect."""
    needed = {v for v in outvars if isinstance(v, Var)}
    kept = []
    for eqn in reversed(eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.update(variables(eqn))
            kept.append(eqn)
    return kept[::-1]


def feeds_reductions(eqns: Sequence[JaxprEqn], cut: Sequence[bool], returned: set[Var]) -> set[int]:
    """Return the numbers of supported equations whose every reader is a reduction that is cut, or such an equation."""
    if not any(is_cut and eqn.primitive.name in _trace.REDUCTIONS for is_cut, eqn in zip(cut, eqns)):
        return set()
    readers: dict[Var, list[int]] = defaultdict(list)
    found: set[int] = set()
    folding: set[int] = set()
    for i in reversed(range(len(eqns))):
        eqn = eqns[i]
        reading = [j for v in eqn.outvars for j in readers[v]]
        if cut[i]:
            folding.update([i] if eqn.primitive.name in _trace.REDUCTIONS else [])
        elif reading and returned.isdisjoint(eqn.outvars) and not shrinks(eqn):
            found.update([i] if all(j in found or j in folding for j in reading) else [])
        for v in variables(eqn):
            readers[v].append(i)
    return found


# What makes random bits is with the one region that reads them where that computes them once, is always a region of
# its own, or is left to XLA.
Draws = Literal["with readers", "apart", "left"]


def partition(
    flat: Flat, linear: Iterable[Var] = (), draws: Draws = "with readers", leave_products: bool = False
) -> list[Region | JaxprEqn]:
    """Return regions and left equations, in an order that defines everything before its use.

    `leave_products`: grouped products are left, too.
    """
    return _Partition(flat, linear, draws, leave_products).steps()


class _Partition:
    """Equations go by their number; `members` are computing equations."""

    def __init__(self, flat: Flat, linear: Iterable[Var], draws: Draws, leave_products: bool):
        self.eqns = live(flat.eqns, flat.outvars)
        self.returned = {v for v in flat.outvars if isinstance(v, Var)}
        self.operands = [variables(eqn) for eqn in self.eqns]
        self.maker = {v: i for i, eqn in enumerate(self.eqns) for v in eqn.outvars}
        self.number = {v: n for n, v in enumerate([*flat.invars, *self.maker])}
        self.readers: dict[Var, list[int]] = defaultdict(list)
        for i, operands in enumerate(self.operands):
            for v in dict.fromkeys(operands):
                self.readers[v].append(i)
        linear_values = dependent(self.eqns, {*linear, *flat.linear})
        self.linear = [not linear_values.isdisjoint(eqn.outvars) for eqn in self.eqns]
        self.cut = [_trace.unsupported(eqn) is not None for eqn in self.eqns]
        for i in feeds_reductions(self.eqns, self.cut, self.returned):
            self.cut[i] = True
        for i in _trace_updates.in_place(self.eqns, self.returned, self.cut, _trace.is_view):
            self.cut[i] = True
        if draws == "left":
            self.cut = [cut or _random.draws(_trace_writer.label(eqn)) for cut, eqn in zip(self.cut, self.eqns)]
        self.joins: list[JaxprEqn] = []  # products apart that a region may have, and give to others as well
        for i, eqn in enumerate(self.eqns):
            if eqn.primitive.name in _trace.PRODUCTS and (leave_products or linear_values or not self._has_tail(i)):
                if not (self.cut[i] or leave_products or self.linear[i]):
                    self.joins.append(eqn)
                self.cut[i] = True
        self.fusing = {i for i, cut in enumerate(self.cut) if cut and _fused_by_xla.fuses(self.eqns[i])}
        self.view = self._views()
        self.drawn = self._draws()
        self.depth = self._depths()
        self.holds_arrays = self._array_holders()
        self._sink()
        self.fused: set[int] = set()
        if draws == "with readers":
            self._join_draws()

    def _has_tail(self, product: int) -> bool:
        """Whether all that reads a grouped product is computed in regions, row by row: its kernel may go on with that.

        Where derivatives are taken, they read the product as well: see `_join`.
        """
        todo = list(self.eqns[product].outvars)
        found = False
        while todo:
            v = todo.pop()
            if v in self.returned:
                return False
            for j in self.readers[v]:
                if self.cut[j] or self.eqns[j].primitive.name in _trace.REDUCTIONS | _trace.PRODUCTS:
                    return False
                if _trace.is_view(self.eqns[j]):
                    todo += self.eqns[j].outvars
                else:
                    found = True
        return found

    def _views(self) -> list[bool]:
        view: list[bool] = []
        constant: set[Var] = set()
        for cut, eqn, operands in zip(self.cut, self.eqns, self.operands):
            one = all(math.prod(shape(v)) == 1 for v in eqn.outvars)
            fixed = not cut and constant.issuperset(operands) and one
            if fixed:
                constant.update(eqn.outvars)
            view.append(fixed or (not cut and _trace.is_view(eqn)))
        return view

    def _draws(self) -> list[bool]:
        """Return which computing equations make random bits, or no larger values of those and of constants."""
        drawn: list[bool] = []
        fixed: set[Var] = set()  # made of constants and of scalars that are given
        bits: set[Var] = set()
        for cut, view, eqn, operands in zip(self.cut, self.view, self.eqns, self.operands):
            known = {v for v in operands if v in fixed or (v not in self.maker and not shape(v))}
            own = not cut and not view and _random.draws(_trace_writer.label(eqn))
            if not cut and not own:
                others = [v for v in operands if v not in known]
                # Scalars have regions of their own, which wait for no array; an array would be made beside readers
                # of the bits.
                if not others and (view or not any(map(shape, eqn.outvars))):
                    fixed.update(eqn.outvars)
                elif others and bits.issuperset(others) and _largest_bytes(eqn.outvars) <= _largest_bytes(others):
                    bits.update(eqn.outvars)
                    own = not view
            if own:
                bits.update(eqn.outvars)
            drawn.append(own)
        return drawn

    def _join_draws(self) -> None:
        """Let bits go to what reads them, where that is one region which computes each element once, and has room."""
        count = Counter(depth for depth, cut, drawn in zip(self.depth, self.cut, self.drawn) if not cut and not drawn)
        for part in self._parts([i for i, drawn in enumerate(self.drawn) if drawn], by_sources=False):
            depth, size = self.depth[part[0]], len(self._collect(self._results(part), {*part}))
            if count[depth] + size <= MAX_EQUATIONS and self._is_read_in_place(part):
                count[depth] += size
                for i in part:
                    self.drawn[i] = False

    def _is_read_in_place(self, drawn: list[int]) -> bool:
        """Whether all that depends on these equations, up to cuts, is of one region, its elements in the same order."""
        size = _largest(v for i in drawn for v in self.eqns[i].outvars)
        members, todo = {*drawn}, [*drawn]
        while todo:
            i = todo.pop()
            if self.drawn[i] and self._is_stored(i):
                return False
            readers = {j for v in self.eqns[i].outvars for j in self.readers[v] if not self.cut[j]} - members
            for eqn in (self.eqns[j] for j in readers):
                moves = eqn.primitive.name in ("transpose", "rev") or _largest(eqn.outvars) != size
                if moves or not _trace.is_elementwise(eqn):
                    return False
            members |= readers
            todo += readers
        computing = [i for i in members if not self.view[i]]
        return len({(self.depth[i], self.holds_arrays[i], self.linear[i]) for i in computing}) == 1

    def _array_holders(self) -> list[bool]:
        """Return which equations have an array or depend on one that a region makes."""
        holds: list[bool] = []
        for i, eqn in enumerate(self.eqns):
            operands = self.operands[i]
            own = not self.view[i] and any(shape(v) for v in (*operands, *eqn.outvars))
            holds.append(not self.cut[i] and (own or any(holds[self.maker[v]] for v in operands if v in self.maker)))
        return holds

    def _source(self, v: Var) -> Var:
        """Return the value that a chain of views starts from; a view without operand is its own source."""
        while (i := self.maker.get(v)) is not None and self.view[i] and (operands := self.operands[i]):
            v = operands[0]
        return v

    def _depths(self) -> list[int]:
        depth: list[int] = []
        last_effect = 0
        for i, eqn in enumerate(self.eqns):
            own = 0
            for v in self.operands[i]:
                maker = self.maker.get(self._source(v))
                if maker is not None:
                    own = max(own, depth[maker] + (self.cut[maker] and not self.cut[i]))
            # Keys that come from no region are there before any region.
            if self.cut[i] and eqn.primitive.name in _random.KEY_OPS:
                makers = [self.maker.get(self._source(v)) for v in self.operands[i]]
                if all(j is None or depth[j] < 0 for j in makers):
                    own = -1
            if eqn.effects:
                own = last_effect = max(own, last_effect)
            depth.append(own)
        return depth

    def _sink(self) -> None:
        for i in reversed(range(len(self.eqns))):
            readers = [j for v in self.eqns[i].outvars for j in self.readers[v]]
            if readers and not self._is_stored(i):
                depth = min(self.depth[j] for j in readers)
                if depth > self.depth[i] and (not shrinks(self.eqns[i]) or self._sinks_whole(i, depth)):
                    self.depth[i] = depth

    def _sinks_whole(self, reduction: int, depth: int) -> bool:
        """Whether all that a reduction is made of can move down with it, to where its sources are read anyway."""
        cone = {reduction}
        sources: set[Var] = set()
        todo = [reduction]
        while todo:
            for v in self.operands[todo.pop()]:
                source = self._source(v)
                i = self.maker.get(source)
                if i is None or self.view[i] or self.depth[i] < self.depth[reduction] or self._is_stored(i):
                    sources.add(source)
                elif self.maker[v] not in cone:
                    cone.add(self.maker[v])
                    todo.append(self.maker[v])
        made = {v for i in cone for v in self.eqns[i].outvars}
        if any(j not in cone and self.depth[j] < depth for v in made for j in self.readers[v]):
            return False
        shared = (made | sources).difference(self.eqns[reduction].outvars)
        return any(j not in cone and self.depth[j] >= depth for v in shared for j in self.readers[v])

    def _is_stored(self, i: int) -> bool:
        outvars = self.eqns[i].outvars
        read_by_xla = any(self.cut[j] for v in outvars for j in self.readers[v])
        return self.cut[i] or read_by_xla or not self.returned.isdisjoint(outvars)

    def steps(self) -> list[Region | JaxprEqn]:
        groups: dict[tuple[int, bool, bool, bool], list[int]] = defaultdict(list)
        for i in range(len(self.eqns)):
            if not self.cut[i] and not self.view[i]:
                groups[self.depth[i], self.holds_arrays[i], self.linear[i], self.drawn[i]].append(i)
        regions: list[Region] = []
        # Linear groups first: what they make again for themselves need not be stored for them.
        for depth, holds_arrays, is_linear, is_drawn in sorted(groups, key=lambda g: not g[2]):
            members = groups[depth, holds_arrays, is_linear, is_drawn]
            again = groups.get((depth, holds_arrays, False, False), []) if is_linear else []
            regions += self._programs(members, again)
        return functools.reduce(self._join, self.joins, self._in_order(regions))

    def _join(self, steps: list[Region | JaxprEqn], product: JaxprEqn) -> list[Region | JaxprEqn]:
        """Let a product be in the first region that goes on with it, row by row; others read what this stores of it."""
        [out] = product.outvars
        for region in (s for s in steps if isinstance(s, Region) and out in s.invars):
            if any(self.linear[self.maker[v]] for v in region.outvars) or not _is_row_by_row(out, region.eqns):
                continue
            others = [s for s in steps if s is not product and s is not region]
            if _needs(region, product, others):
                continue
            is_read = out in self.returned or any(out in s.invars for s in others)
            invars = {*region.invars, *variables(product)} - {out}
            joined = Region(
                [product, *region.eqns],
                sorted(invars, key=self.number.__getitem__),
                [*region.outvars, *([out] if is_read else [])],
            )
            if self._fits(joined):
                return _sorted_by_need(list(enumerate(joined if s is region else s for s in steps if s is not product)))
        return steps

    def _programs(self, members: list[int], again: list[int]) -> list[Region]:
        """Return the programs of one group; `again` are equations outside of it that a program may repeat."""
        needed = self._collect(self._results(members), {*members})
        programs: dict[Any, list[list[int]]] = defaultdict(list)
        for part in self._parts([i for i in members if i in needed]):
            if self._is_fused_by_xla(self._region(part, again)):
                continue
            values = (v for i in part for v in (*self.operands[i], *self.eqns[i].outvars))
            largest = max(map(shape, values), key=math.prod)
            packed = programs[largest]
            if packed and self._fits(self._region(packed[-1] + part, again)):
                packed[-1] = sorted(packed[-1] + part)
            else:
                packed.append(part)
        regions = []
        for program in (p for packed in programs.values() for p in packed):
            for piece in self._pieces(program, again):
                region = self._region(piece, again)
                if _is_worth_a_program(region):
                    regions.append(region)
                    self.fused.update(piece)
        return regions

    def _is_fused_by_xla(self, region: Region) -> bool:
        """Whether XLA computes a region as well, and much of what this reads and writes is between XLA's ops and it."""
        if not self.fusing or not _fused_by_xla.is_simple(region.eqns):
            return False

        def is_read(v: Var) -> bool:
            return any(
                j in self.fusing or (self.view[j] and any(map(is_read, self.eqns[j].outvars))) for j in self.readers[v]
            )

        between = [v for v in region.invars if self.maker.get(v) in self.fusing]
        between += [v for v in region.outvars if is_read(v)]
        return 3 * sum(map(_bytes, between)) >= sum(map(_bytes, (*region.invars, *region.outvars)))

    def _parts(self, members: list[int], by_sources: bool = True) -> list[list[int]]:
        """Return the members in connected parts: no part makes an array for another, or (`by_sources`) shares one."""
        parent = {i: i for i in members}

        def root(i: int) -> int:
            while parent[i] != i:
                parent[i] = i = parent[parent[i]]
            return i

        first_reader: dict[Var, int] = {}
        for i in members:
            for v in self.operands[i]:
                source = self._source(v)
                maker = self.maker.get(source)
                if maker in parent:
                    parent[root(i)] = root(maker)
                elif by_sources and shape(source) and (maker is None or not self.view[maker]):
                    parent[root(i)] = root(first_reader.setdefault(source, i))
        parts: dict[int, list[int]] = defaultdict(list)
        for i in members:
            parts[root(i)].append(i)
        return list(parts.values())

    def _pieces(self, members: list[int], again: list[int]) -> list[list[int]]:
        """Cut a program that is too large in two, in the order of its equations; what is too large alone is XLA's."""
        region = self._region(members, again)
        grows = _trace.grows(region.invars, region.eqns)
        if len(members) == 1 or (self._fits(region) and not grows):
            return [] if grows else [members]
        half = len(members) // 2
        return self._pieces(members[:half], again) + self._pieces(members[half:], again)

    def _fits(self, region: Region) -> bool:
        return len(region.invars) + len(region.outvars) <= MAX_BUFFERS and len(region.eqns) <= MAX_EQUATIONS

    def _results(self, members: list[int]) -> list[Var]:
        """Return the values that members make for others, and the views of their values that the program returns."""
        inside = {*members}
        results: dict[Var, None] = {}

        def read_outside(v: Var, maker: int) -> bool:
            outside = False
            todo = [v]  # then views of it
            while todo:
                value = todo.pop()
                if value is not v and value in self.returned:
                    results[value] = None
                readers = [j for j in self.readers[value] if not self.view[j]]
                outside |= any(j not in inside and not self._makes_again(j, maker) for j in readers)
                views = [view for j in self.readers[value] if self.view[j] for view in self.eqns[j].outvars]
                todo += reversed(views)
            return outside

        for i in members:
            for v in self.eqns[i].outvars:
                if read_outside(v, i) or v in self.returned:
                    results[v] = None
        return list(results)

    def _makes_again(self, reader: int, maker: int) -> bool:
        """Whether the reader's program makes this value again."""
        return (
            reader in self.fused
            and self.linear[reader]
            and not self.linear[maker]
            and not self.drawn[maker]
            and self.depth[reader] == self.depth[maker]
            and self.holds_arrays[reader] == self.holds_arrays[maker]
        )

    def _collect(self, results: Iterable[Var], members: set[int]) -> set[int]:
        """Return the members and views that these values need."""
        found: set[int] = set()
        todo = list(results)
        while todo:
            i = self.maker.get(todo.pop())
            if i is not None and i not in found and (self.view[i] or i in members):
                found.add(i)
                todo += self.operands[i]
        return found

    def _region(self, members: list[int], again: list[int]) -> Region:
        results = self._results(members)
        eqns = [self.eqns[i] for i in sorted(self._collect(results, {*members, *again}))]
        made = {v for eqn in eqns for v in eqn.outvars}
        invars = {v for eqn in eqns for v in variables(eqn) if v not in made}
        return Region(eqns, sorted(invars, key=self.number.__getitem__), results)

    def _in_order(self, regions: list[Region]) -> list[Region | JaxprEqn]:
        made = {v for region in regions for v in region.outvars}
        left = {i for i, cut in enumerate(self.cut) if cut}
        todo = [*self.returned, *(v for r in regions for v in r.invars)]
        todo += [v for i in left for v in self.operands[i]]
        while todo:
            v = todo.pop()
            i = self.maker.get(v)
            if i is not None and v not in made and i not in left:
                left.add(i)
                todo += self.operands[i]
        steps: list[tuple[int, Region | JaxprEqn]] = [(i, self.eqns[i]) for i in left]
        steps += [(max(self.maker[v] for v in region.outvars), region) for region in regions]
        return _sorted_by_need(sorted(steps, key=lambda step: step[0]))


def _sorted_by_need(steps: list[tuple[int, Region | JaxprEqn]]) -> list[Region | JaxprEqn]:
    """Sort so that values are made before they are read and effects keep their order, else by the number of a step."""
    maker = {v: k for k, (_, step) in enumerate(steps) for v in step.outvars}
    followers: dict[int, list[int]] = defaultdict(list)
    waits = [0] * len(steps)
    last_effect = None
    for k, (_, step) in enumerate(steps):
        before = {maker[v] for v in variables(step) if v in maker}
        if isinstance(step, JaxprEqn) and step.effects:
            before |= {last_effect} if last_effect is not None else set()
            last_effect = k
        waits[k] = len(before)
        for j in before:
            followers[j].append(k)
    ready = [k for k, count in enumerate(waits) if count == 0]
    result = []
    while ready:
        k = heapq.heappop(ready)
        result.append(steps[k][1])
        for j in followers[k]:
            waits[j] -= 1
            if waits[j] == 0:
                heapq.heappush(ready, j)
    assert len(result) == len(steps), "a region needs a value that needs the region"
    return result


def _is_row_by_row(product: Var, eqns: list[JaxprEqn]) -> bool:
    """Whether what reads a product, or views of it, is neither a reduction nor another product."""
    read, found = {product}, False
    for eqn in eqns:
        if read.isdisjoint(variables(eqn)):
            continue
        if eqn.primitive.name in _trace.REDUCTIONS | _trace.PRODUCTS:
            return False
        if _trace.is_view(eqn):
            read.update(eqn.outvars)
        else:
            found = True
    return found


def _needs(region: Region, product: JaxprEqn, others: list[Region | JaxprEqn]) -> bool:
    """Whether a region needs what other steps make of a product."""
    maker = {v: step for step in others for v in step.outvars}
    todo, seen = [v for v in region.invars if v not in product.outvars], set()
    while todo:
        step = maker.get(todo.pop())
        if step is None or id(step) in seen:
            continue
        seen.add(id(step))
        if not {*product.outvars}.isdisjoint(variables(step)):
            return True
        todo += variables(step)
    return False


def _is_worth_a_program(region: Region) -> bool:
    if any(0 in shape(v) for v in (*region.invars, *region.outvars)):
        return False
    moves = ("convert_element_type", "pad", "gather", "dynamic_slice", "dynamic_update_slice", "scatter")
    return any(not _trace.is_view(e) and e.primitive.name not in moves for e in region.eqns)
