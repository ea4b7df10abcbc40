"""What a user gets wrong is said by name: the call, the axis of the value, what was expected and what to do instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import jax_fuser as jf

FUSION = """fusion f(x: f32[16,10], r: f32[10]) -> (y) {
  wide: f32[b16,10] = broadcast(r) {dims=[1]}
  t: f32[16,10] = add(x, wide)
  total: f32[16] = reduce_sum(t) {dims=[1]}
  spread: f32[16,b10] = broadcast(total) {dims=[0]}
  y: f32[16,10] = sub(t, spread)
}"""


ALONE = "fusion g(x: f32[16]) -> (y) { y: f32[16] = neg(x) }"


def lowered(*calls, platform="cuda", fusion=FUSION):
    """Return what makes these calls, each (name, value, arguments...), and lowers the schedule."""

    def run():
        s = jf.ir.Scheduler(jf.ir.Fusion(fusion))
        for name, *arguments in calls:
            getattr(s, name)(*arguments)
        jf.ir.lower(s.schedule, platform)

    return run


def built(*calls):
    """Return what makes x: f32[4], y: f32[5], z: f32[4,4] and calls the builder, each call (name, arguments...)."""

    def run():
        b = jf.ir.Builder("b")
        b.input("x", "f32", [4])
        b.input("y", "f32", [5])
        b.input("z", "f32", [4, 4])
        for name, *arguments in calls:
            getattr(b, name)(*arguments)

    return run


def graph(call, *arguments):
    return lambda: getattr(jf.ir.IndexGraph(jf.ir.Schedule(jf.ir.Fusion(FUSION))), call)(*arguments)


def parsed(text):
    return lambda: jf.ir.Schedule(jf.ir.Fusion(FUSION), text)


SHARED = ("set_memory", "t", "shared")
BAD: dict[str, tuple[Callable, str]] = {
    # Axes that are not there.
    "split": (lowered(("split", "y", 2, 4)), r"\[split\] y has 2 loop axes; expected an axis in \[-2, 2\), got 2"),
    "split back": (lowered(("split", "y", -3, 4)), r"\[split\] y has 2 loop axes; .* got -3"),
    "merge": (
        lowered(("merge", "y", 1)),
        r"\[merge\] y has loop axes \[16,10\]; axis 1 and the next one are not among",
    ),
    "reorder": (lowered(("reorder", "y", [0, 1, 2])), r"\[reorder\] y has 2 loop axes; .* got 2"),
    "reorder none": (
        lowered(("reorder", "y", [])),
        r"\[reorder\] y has 2 loop axes \[16,10\]; .* name each of them once",
    ),
    "swizzle": (lowered(("swizzle", "y", 0, 9)), r"\[swizzle\] y has 2 loop axes; .* got 9"),
    "pad": (lowered(("pad", "y", 5, 4)), r"\[pad\] y has 2 loop axes; .* got 5"),
    "parallelize": (lowered(("parallelize", "y", 2, "thread")), r"\[parallelize\] y has 2 loop axes; .* got 2"),
    "allocation": (lowered(SHARED, ("set_allocation", "t", 2)), r"\[set_allocation\] t has 2 loop axes; .* got 2"),
    "like": (lowered(("parallelize_like", "y", [], 3)), r"\[parallelize_like\] y has 2 loop axes; .* \[0, 2\], got 3"),
    "inline": (lowered(("inline_at", "t", 3)), r"\[inline_at\] t agrees in 2 outer loop axes .* \[0, 2\], got 3"),
    "rfactor": (lowered(("rfactor", "total", [7])), r"\[rfactor\] total has 2 loop axes; .* got 7"),
    "graph": (graph("loop", "y", 5), r"\[loop\] y has 2 loop axes; expected an axis in \[-2, 2\), got 5"),
    "root": (graph("root", "total", 2), r"\[root\] total has 2 root axes; expected one in \[0, 2\), got 2"),
    # Values that are not there.
    "value": (lowered(("split", "z", 0, 2)), r"\[split\] f has no value 'z'; it has x, r, wide, t, total, spread, y"),
    "selected": (lowered(("inline_most", ["z"])), r"\[inline_most\] f has no value 'z'"),
    "text": (parsed("schedule { z[16,10]: -> [16, 10] }"), r"\[parse\] line 1: expected a value of f, got 'z"),
    # Extents that do not fit.
    "factor": (lowered(("split", "y", 1, 0)), r"\[split\] axis 1 of y: expected a positive factor, got 0"),
    "multiple": (lowered(("pad", "y", 1, 0)), r"\[pad\] axis 1 of y: expected a multiple of 1 to .*, got 0"),
    "xor": (lowered(("swizzle", "y", 0, 1)), r"\[swizzle\] axes 0 and 1 of y have extents 16 and 10; .*split first"),
    "lanes": (
        lowered(("parallelize", "y", 1, "vector")),
        r"axis 1 of y has extent 10; .* power of two up to 64, split",
    ),
    "many lanes": (
        lowered(("split", "y", 1, 128), ("parallelize", "y", -1, "vector")),
        r"\[parallelize\] axis 2 of y has extent 128; a vector axis needs a power of two up to 64, split first",
    ),
    "lanes outside": (
        lowered(("parallelize", "y", 0, "vector")),
        r"axis 0 of y of 2: only the innermost axis.*reorder",
    ),
    "shape": (
        parsed("schedule { y[16,9]: -> [16, 9] }"),
        r"\[parse\] line 1: expected the shape \[16,10\], got '\[16,9",
    ),
    "loops": (parsed("schedule { y[16,10]: -> [16, 9] }"), r"the loop axes of y are not what its transforms give"),
    # Order of calls.
    "parallel split": (
        lowered(("parallelize", "y", 0, "block"), ("split", "y", 0, 2)),
        r"\[split\] axis 0 of y is already block; transform axes before parallelizing them",
    ),
    "twice": (
        lowered(("parallelize", "y", 0, "thread"), ("parallelize", "y", 1, "thread")),
        r"\[parallelize\] y has a second thread axis, 1; merge the two first",
    ),
    "name": (
        lowered(("parallelize", "y", 0, "warp")),
        r"\[parallelize\] y: unknown parallel type 'warp'; expected one of",
    ),
    "types": (lowered(("parallelize_like", "y", [], None, ["warp"])), r"\[parallelize_like\] y: unknown parallel type"),
    "fold and kept": (
        lowered(("merge", "total", 0)),
        r"\[merge\] axes 0 and 1 of total: one is reduced .*reorder first",
    ),
    "all folded": (lowered(("rfactor", "total", [1])), r"\[rfactor\] total folds its axes 1; .* split the folded axis"),
    "no fold": (lowered(("rfactor", "y", [1])), r"\[rfactor\] y is not a reduction"),
    "like a merge": (
        lowered(("merge", "y", 0), ("transform_like", "y")),
        r"\[transform_like\] total cannot have the loops of y: \[merge\] axes 0 and 1 of total: one is reduced",
    ),
    # Memory.
    "input": (lowered(("set_memory", "x", "shared")), r"\[set_memory\] x is an input, which is in global memory"),
    "memory": (
        lowered(("set_memory", "t", "cache")),
        r"\[set_memory\] t: unknown memory 'cache'; expected register or",
    ),
    "registers": (
        lowered(("set_allocation", "t", 0)),
        r"\[set_allocation\] t is kept in registers, .*set_memory\(shared",
    ),
    "pad of registers": (
        lowered(("circular_buffer", "t", 2)),
        r"\[circular_buffer\] t is kept in registers; call set_m",
    ),
    "shared on cpu": (
        lowered(SHARED, platform="cpu"),
        r"\[lower\] t is shared between threads, .* keep it in registers",
    ),
    "shared fold": (
        lowered(("set_memory", "total", "shared")),
        r"\[lower\] total is a reduction, .*share a copy of it",
    ),
    "one place": (
        lowered(SHARED, ("set_allocation", "t", 1)),
        r"\[lower\] t is inlined at 0 and not stored over its loop axis 0, .* call set_allocation\(0\)",
    ),
    "each thread's": (
        lowered(*(("parallelize", v, 0, "thread") for v in ("t", "total", "y")), SHARED, ("inline_at", "t", 1)),
        r"\[lower\] t is shared between threads, but inlined at 1 inside of its thread axis 0, .* at most at 0",
    ),
    "other blocks": (
        lowered(*(("parallelize", v, 0, "block") for v in ("t", "total", "y")), SHARED),
        r"\[lower\] t is shared by the threads of one block, but its block axis 0 .* call inline_at\(1\)",
    ),
    "other blocks than its reader's": (
        lowered(SHARED, ("parallelize", "t", 0, "block")),
        r"block axis 0 .* its consumer total has axis 0 serial where t has it block; call parallelize_like\(t, types=",
    ),
    # What a machine or a kernel cannot do.
    "cpu": (lowered(("parallelize", "y", 0, "block"), platform="cpu"), r"\[lower\] y has a block axis, .* use task"),
    "cuda": (lowered(("parallelize", "y", 0, "task")), r"\[lower\] y has a task axis, .* use block and thread"),
    "threads": (
        lowered(("split", "y", 0, 2**32), ("parallelize", "y", 1, "thread"), fusion=ALONE),
        r"\[lower\] g has 4294967296 threads; the target has 1024 in a block, split the axis",
    ),
    "blocks": (
        lowered(("split", "y", 0, 2**33), ("parallelize", "y", 1, "block"), fusion=ALONE),
        r"\[lower\] g has 8589934592 iterations of block; at most 2147483647: split the axis",
    ),
    "blocks along y": (
        lowered(("split", "y", 0, 2**16), ("parallelize", "y", 1, "block_y"), fusion=ALONE),
        r"\[lower\] g has 65536 iterations of block_y; at most 65535: use block for the longer axis",
    ),
    "iterations": (
        lowered(SHARED, ("split", "t", 0, 2**32), ("split", "t", 2, 2**32)),
        r"\[lower\] the loops of t have more than 1e\+17 iterations; split its axes by smaller factors",
    ),
    "apart": (
        lowered(("parallelize", "total", 1, "block")),
        r"total is folded along loop axis 1, which is block: blocks of one kernel do not wait .* axis thread or",
    ),
    "other loops": (
        lowered(("split", "y", 1, 5)),
        r"\[lower\] t is kept in registers from its loop axis 1 on, .*transf",
    ),
    "other elements": (
        lowered(
            *(("split", v, 0, 4) for v in ("wide", "t", "total", "spread", "y")),
            *(("reorder", v, [1, 0, 2]) for v in ("wide", "t")),
        ),
        r"\[lower\] loop axis 0 of t runs over other elements than that of its consumer total; use transform_like",
    ),
    "inside of a fold": (
        lowered(("inline_at", "total", 2)),
        r"\[lower\] total is inlined at 2 loop axes, inside of axis 1, along which it is folded",
    ),
    # Fusions.
    "dtype": (lambda: jf.ir.Builder("b").input("x", "c64", [4]), r"unknown dtype 'c64'; expected one of pred, s8..s64"),
    "extent": (
        lambda: jf.ir.Builder("b").input("x", "f32", [-4]),
        r"\[input\] axis extents must not be negative, got -4",
    ),
    "op": (built(("pointwise", "frob", [0])), r"\[pointwise\] unknown op 'frob'"),
    "operands": (built(("pointwise", "add", [0])), r"\[add\] expected 2 operands, got 1"),
    "operand": (built(("pointwise", "add", [0, 99])), r"\[\w+\] unknown value 99"),
    "shapes": (
        built(("pointwise", "add", [0, 1])),
        r"\[add\] .* equal shapes, got f32\[4\] and f32\[5\]; broadcast them",
    ),
    "dims": (built(("reduce", "reduce_sum", 0, [1])), r"\[reduce_sum\] dims must .* rank of f32\[4\], got dims\[0\]=1"),
    "permutation": (
        built(("transpose", 0, [1])),
        r"\[transpose\] dims must be a permutation of the 1 axes of f32\[4\]",
    ),
    "turned": (
        built(("broadcast", 2, [4, 4], [1, 0])),
        r"\[broadcast\] dims must increase and stay below rank 2, got dims\[1\]=0",
    ),
    "axes without a place": (
        built(("broadcast", 2, [4, 4], [0])),
        r"\[broadcast\] expected one result axis for each axis of f32\[4,4\], got 1",
    ),
    "fraction": (built(("constant", "s32", 1.5)), r"\[constant\] s32: expected an integer that it holds, got 1.5"),
    "too large": (built(("constant", "s8", 300)), r"\[constant\] s8: expected an integer that it holds, got 300"),
    "too large for all": (built(("constant", "u64", 2**64)), r"\[constant\] u64: expected an integer that it holds"),
    "neither true nor false": (built(("constant", "pred", 2)), r"\[constant\] pred: expected an integer that it holds"),
    "no number": (built(("constant", "f32", "a")), r"\[constant\] f32: expected a number, got 'a'"),
    "no output": (lambda: jf.ir.Builder("b").finish(), r"\[verify\] the fusion has no output"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_said_by_name(case):
    call, message = BAD[case]
    with pytest.raises(jf.UserError, match=message) as error:
        call()
    assert "bug" not in str(error.value) and ".cpp" not in str(error.value)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda s: s.split("y", "0", 2),
            r"\[split\] axis must be an int, got '0' \(str\); call it as split\(value: str, ",
        ),
        (lambda s: s.split("y", 0, 2.5), r"\[split\] factor must be an int, got 2.5 \(float\)"),
        (
            lambda s: s.split("y", 0, 2**70),
            r"\[split\] factor must be from -2\*\*63 to 2\*\*63 - 1, got 1180591620717411303424; call it as",
        ),
        (
            lambda s: s.reorder("y", [0, -(2**70)]),
            r"\[reorder\] order must be from -2\*\*63 to 2\*\*63 - 1, got -1180591620717411303424",
        ),
        (lambda s: s.split("y", 0), r"\[split\] needs factor; call it as split"),
        (lambda s: s.split("y", 0, 2, outer=True), r"\[split\] has no argument 'outer'"),
        (lambda s: s.split("y", 0, 2, True, 1), r"\[split\] takes 4 arguments, got 5"),
        (lambda s: s.parallelize("y", 0, None), r"\[parallelize\] parallel must be a string, got None \(NoneType\)"),
        (lambda s: s.reorder("y", 1), r"\[reorder\] order must be a list of ints, got 1 \(int\)"),
        (lambda s: s.inline_most("y"), r"\[inline_most\] selected must be a list of strings, got 'y' \(str\)"),
        (lambda s: jf.ir.Builder("b").input("x", "f32", 4), r"\[input\] shape must be a list of ints, got 4 \(int\)"),
        (lambda s: jf.ir.Builder(), r"\[Builder\] needs name; call it as Builder\(name: str"),
        (lambda s: jf.ir.Scheduler("text"), "Scheduler: expected a Fusion or a Schedule to go on from, got str"),
        (lambda s: jf.ir.Fusion(3), "Fusion: expected the text of one, as print.fusion. writes it, got int"),
        (lambda s: jf.ir.Schedule(), "Schedule: expected a Fusion and the text of a schedule, or none, got nothing"),
        (lambda s: jf.ir.IndexGraph(s.fusion), "IndexGraph: expected a Schedule; .*, got Fusion"),
        (lambda s: jf.ir.propose(s), "propose: expected a Fusion, got Scheduler; pass its fusion"),
        (lambda s: jf.ir.run(s), "run: expected a Fusion or a Schedule, got Scheduler; pass its schedule"),
        (lambda s: jf.ir.trace(3), "trace: f must be a function, got 3"),
        (lambda s: jf.ir.evaluate("f"), "evaluate: expected a Fusion, got str; make one with trace or Builder"),
        (lambda s: jf.ir.run(s.schedule), r"run: f takes 2 arrays \(x, r\), got 0"),
        (lambda s: jf.ir.schedule(s.fusion, "reduction", "cpu", 3), "schedule: parameters must be a dict as of"),
    ],
)
def test_arguments_of_other_types_are_type_errors(call, message):
    with pytest.raises(TypeError, match=message):
        call(jf.ir.Scheduler(jf.ir.Fusion(FUSION)))
