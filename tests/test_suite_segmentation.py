"""How a function becomes kernels: how many, in which order, and what goes between them through memory."""

from __future__ import annotations

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import numbers as array
from random_programs import Program
from tolerances import assert_close

import jax_fuser as jf

PLATFORMS = ["cpu", "cuda"]


class Segments:
    """What the text of a fused function's only region says about its kernels."""

    def __init__(self, f, *args, platform: str):
        lowered = jf.fuse(f).lower(*args)
        text, self.host = (lowered.as_text(stage, platform=platform) for stage in ("segments", "host"))
        assert text.count("# region") == 1, text
        parts = re.split(r"^segment (\d+) ", text, flags=re.MULTILINE)[1:]
        self.heads, self.fusions = [], []
        for number, part in zip(parts[::2], parts[1::2]):
            assert int(number) == len(self.heads)
            head, fusion = part.split("\n", 1)
            self.heads.append(head)
            self.fusions.append(jf.ir.Fusion(fusion) if "fusion" in fusion else None)
        self.launches = self.host.count("launch ")
        self.workspace = int(re.search(r"workspace=(\d+)", self.host).group(1))

    def reads(self, number: int) -> list[tuple[str, int]]:
        """Return (value, segment that makes it) of what a segment reads of others."""
        return [(v, int(s)) for v, s in re.findall(r"(\w+) of segment (\d+)", self.heads[number])]

    def check(self) -> None:
        """Nothing is read before it is made, and nothing is made twice."""
        made: dict[str, int] = {}
        for number, fusion in enumerate(self.fusions):
            for value, by in self.reads(number):
                assert by < number and made.get(value, by) == by
            if fusion is None:
                continue
            for value in fusion.outputs:
                assert value not in made, f"{value} is made by segments {made[value]} and {number}"
                made[value] = number


def segments(f, *args, platform="cpu"):
    found = Segments(f, *args, platform=platform)
    found.check()
    return found


X = array(12, 40)

# By how many kernels on both platforms.
COUNTS = {
    "pointwise": (lambda x: jnp.tanh(x) * x, 1),
    "two outputs": (lambda x: (jnp.tanh(x), x * 2), 1),
    "a fold and its producer": (lambda x: jnp.tanh(x).sum(1), 1),
    "a fold and its reader": (lambda x: x / x.sum(1, keepdims=True), 1),
    "three folds of one row": (
        lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True) + x.max(1)[:, None],
        1,
    ),
    "a chain of folds": (lambda x: jax.nn.softmax(jax.nn.softmax(x, 1), 1), 1),
    "folds over other axes": (lambda x: x / x.sum(0) + x / x.sum(1, keepdims=True), 2),
    "a fold of folded rows": (lambda x: (x * 2).sum(1).max(), 2),
    "everything, then everything": (lambda x: x - x.max(), 2),
    "two unrelated folds over other axes": (lambda x: ((x * x).sum(0), jnp.abs(x).max(1)), 2),
    "a fold crosswise": (lambda x: x[:12, :12] + x[:12, :12].sum(1), 2),
    "halves of rows beside a fold": (lambda x: (x[:, :20] * x[:, 20:], (x[:, :20] + x[:, 20:]).sum(1)), 1),
    "joined halves beside a fold": (
        lambda x: (jnp.concatenate([jnp.sin(x[:, :20]), x[:, 20:] * 3], 1), (x[:, :20] * x[:, 20:]).sum(1)),
        1,
    ),
    "folds with an operand in common": (
        lambda x: (x[:, :20] / abs(x[:, :20]).max(1, keepdims=True), (x[:, 20:] * x[:, :20]).sum(1)),
        1,
    ),
}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("case", COUNTS)
def test_as_many_kernels_as_needed(case, platform):
    f, most = COUNTS[case]
    found = segments(f, X, platform=platform)
    assert found.launches == len(found.heads) <= most


@pytest.mark.parametrize("case", COUNTS)
def test_the_kernels_compute_it(device, case):
    f, _ = COUNTS[case]
    got, want = jax.tree.leaves(jf.fuse(f)(X)), jax.tree.leaves(f(jnp.asarray(X)))
    for one, exact in zip(got, want):
        assert_close(one, exact, scale=4)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_random_programs_are_cut_without_cycles(platform):
    cut = 0
    for seed in range(40):
        program = Program([77, seed])
        lowered = jf.fuse(program.run).lower(program.arguments)
        if lowered.as_text("fusion").count("# region") != 1 or "no kernel" in lowered.as_text("fusion"):
            continue
        cut += len(segments(program.run, program.arguments, platform=platform).heads) > 1
    assert cut > 5


def test_equal_functions_are_cut_alike():
    f, _ = COUNTS["folds over other axes"]
    texts = [jf.fuse(lambda x: f(x), name="f").lower(X).as_text(stage) for stage in ("segments", "host") for _ in "ab"]
    assert texts[0] == texts[1] and texts[2] == texts[3]


# What goes between kernels.


def test_only_what_is_read_later_goes_through_memory():
    """The rows' sums, not the rows."""
    x = array(64, 500)
    found = segments(lambda x: x - jnp.exp(x).sum(1).max(), x)
    assert 0 < found.workspace < x.nbytes // 16


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_a_cast_is_made_by_each_kernel_that_reads_it(dtype, platform):
    """A narrow input is read by both kernels; its wide copy never lies in memory."""

    def f(x):
        wide = x.astype(jnp.float32)
        return (wide / (wide * wide).sum(1, keepdims=True)).astype(dtype), (wide * (wide + 1).sum(0)).astype(dtype)

    found = segments(f, X.astype(dtype), platform=platform)
    assert found.launches == 2 and found.workspace == 0
    for fusion in found.fusions:
        assert fusion.inputs == ["x"] and fusion.dtype("x") == ("bf16" if dtype == jnp.bfloat16 else "f16")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_a_squeezed_cast_too(device, dtype):
    def f(x):
        wide = jnp.squeeze(x.astype(jnp.float32), 0)
        return wide / (wide * wide).sum(1, keepdims=True), wide * (wide + 1).sum(0)

    x = array(1, 12, 40).astype(dtype)
    found = segments(f, x)
    assert found.launches == 2 and found.workspace == 0
    wide = np.float64(x[0])
    want = wide / (wide * wide).sum(1, keepdims=True), wide * (wide + 1).sum(0)
    for got, exact in zip(jf.fuse(f)(x), want):
        assert_close(got, exact)


def test_a_cheap_chain_is_computed_where_it_is_read():
    """Two kernels that read 2 x + 1 both compute it from x."""
    found = segments(lambda x: ((2 * x + 1).sum(0) * (2 * x + 1), (2 * x + 1) / (2 * x + 1).max(1, keepdims=True)), X)
    assert found.workspace == 0 and all(fusion.inputs == ["x"] for fusion in found.fusions)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_so_is_next_to_nothing_without_a_reduction(platform):
    """Two kernels of other shapes read as much either way, and a store is saved."""

    def shapes(y):
        return jnp.tanh(y), jnp.sin(y.T)

    found = segments(lambda x: shapes(2 * x + 1), X, platform=platform)
    assert len(found.heads) == 2 and found.workspace == 0
    assert all(fusion.inputs == ["x"] for fusion in found.fusions)
    # Much arithmetic, two arrays instead of one, and a wider array are worth a store.
    for f, *args in (
        (lambda x: shapes(jnp.exp(x)), X),
        (lambda x, z: shapes(x + z), X, X + 1),
        (lambda x: shapes(2 * x.astype(jnp.bfloat16)), X),
    ):
        assert segments(f, *args, platform=platform).workspace > 0


def test_rows_that_are_columns_in_memory_are_turned_first():
    """Where whole rows are folded and stored; sums, and what CPUs have in their cache, read columns."""
    x = jax.ShapeDtypeStruct((4096, 1031), jnp.bfloat16)
    found = segments(lambda x: jax.nn.softmax(x.T, -1), x, platform="cuda")
    assert [head.split(":")[0] for head in found.heads] == ["pointwise", "reduction"]
    assert found.fusions[1].inputs == found.fusions[0].outputs
    for f, platform in ((lambda x: jax.nn.softmax(x.T, -1), "cpu"), (lambda x: x.T.sum(-1), "cuda")):
        assert {head.split(":")[0] for head in segments(f, x, platform=platform).heads} == {"reduction"}
    assert len(segments(lambda x: jax.nn.softmax(x.T, -1), X, platform="cuda").heads) == 1


def test_a_value_that_is_an_output_is_not_stored_twice():
    """Another kernel reads the output instead of a copy of it."""
    found = segments(lambda x: ((y := jnp.tanh(jnp.exp(x)).sum(1)), y.max() + y), X)
    assert len(found.heads) == 2 and found.workspace < X.nbytes // 2


# Inputs and outputs that are one another.

ALIASES = {
    "an input again": lambda x: (x, x * 2),
    "twice the same": lambda x: ((y := jnp.tanh(x)), y),
    "an input twice": lambda x: (x, x, x.sum(1)),
    "a transposed input": lambda x: (x.T, x * 2),
    "a view of an output": lambda x: ((y := jnp.tanh(x)), y[None], y.T),
    "a view of a fold": lambda x: ((y := x.sum(1)), y[:, None], jnp.broadcast_to(y[:, None], (12, 3))),
    "a part of an input": lambda x: (x[:, :7] + 0 * x[:, 1:8], x[2:4]),
    "only inputs": lambda x: (x, x),
    "a constant": lambda x: (jnp.zeros((3, 4)), x + 1),
    "an output that is folded again": lambda x: ((y := x * 2), y.sum(0), y.sum(1)),
    "an unused input": lambda x: jnp.arange(5) * 2.0,
}


@pytest.mark.parametrize("case", ALIASES)
def test_outputs_that_are_inputs_or_each_other(device, case):
    f = ALIASES[case]
    got, want = jf.fuse(f)(X), f(jnp.asarray(X))
    for one, exact in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(one, exact, scale=2)


@pytest.mark.parametrize("case", ALIASES)
def test_under_jit_with_donated_inputs(device, case):
    f = ALIASES[case]
    jitted = jax.jit(lambda x: f(jf.fuse(lambda x: x + 1)(x)), donate_argnums=0)
    want = f(jnp.asarray(X) + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not every input can be donated
        got = jitted(jnp.asarray(X))
    for one, exact in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(one, exact, scale=2)


# Shapes at the ends.


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (1, 7), (7, 1)])
def test_empty_and_single(device, shape):
    x = array(*shape)
    f = lambda x: (x * 2, x.sum(0), x.sum(1), x.sum(), jnp.exp(x))  # noqa: E731
    for got, want in zip(jf.fuse(f)(x), f(jnp.asarray(x))):
        assert_close(got, want)


def test_scalars_stay_scalars(device):
    f = lambda a, b: (a * b, jnp.tanh(a) + b)  # noqa: E731
    for got, want in zip(jf.fuse(f)(np.float32(2), np.float32(3)), f(jnp.float32(2), jnp.float32(3))):
        assert got.shape == () and got == pytest.approx(want)


def test_wide_fusions_keep_within_what_a_kernel_takes(device):
    """Many inputs and outputs: more kernels, the same results."""
    xs = [X + i for i in range(40)]

    def f(xs):
        total = sum(x.sum(1, keepdims=True) for x in xs)
        return [x / total for x in xs]

    for got, want in zip(jf.fuse(f)(xs), f([np.float64(x) for x in xs])):
        assert_close(got, want, scale=10)


def test_what_no_loops_go_together_for_is_cut(device):
    """A fold that needs another one of the same scan, and one that is only added to it, along axes of extent 1 too."""
    fusion = jf.ir.Fusion("""fusion folds(x: f32[3,5,4,1,2], r: f32[3,4,2]) -> (y) {
      s: f32[3,5,4,1,2] = scan_sum(x) {axis=1}
      most: f32[3,4,2] = reduce_max(s) {dims=[1,3]}
      wide: f32[3,b1,4,b1,2] = broadcast(most) {dims=[0,2,4]}
      wider: f32[3,b5,4,b1,2] = broadcast(wide) {dims=[0,1,2,3,4]}
      one: f32[] = constant() {value=1}
      ones: f32[b3,b5,b4,b1,b2] = broadcast(one) {dims=[]}
      a: f32[3,5,4,1,2] = add(ones, s)
      square: f32[3,5,4,1,2] = mul(a, a)
      over: f32[3,5,4,1,2] = div(ones, square)
      cube: f32[3,5,4,1,2] = mul(a, square)
      alone: f32[3,4,1,2] = reduce_sum(over) {dims=[1]}
      first: f32[3,4,2] = squeeze(alone) {dims=[2]}
      both: f32[3,5,4,1,2] = add(cube, wider)
      second: f32[3,4,2] = reduce_sum(both) {dims=[1,3]}
      sum: f32[3,4,2] = add(first, second)
      y: f32[3,4,2] = add(sum, r)
    }""")
    x, r = np.random.default_rng(0).uniform(0.2, 0.8, (3, 5, 4, 1, 2)).astype("f"), np.ones((3, 4, 2), "f")
    s = np.cumsum(np.float64(x), 1)
    want = ((1 + s) ** -2 + (1 + s) ** 3 + s.max(1, keepdims=True)).sum((1, 3)) + r
    assert_close(jf.ir.run(fusion, x, r)[0], want, "float32")
