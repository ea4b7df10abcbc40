"""Functions whose results are put together or reshaped are scheduled by hand: their parts are the kernel's outputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from schedules import check_schedule, nvrtc_compiles
from tolerances import assert_close

import jax_fuser as jf


def rotary(x, c, s):
    a, b = x[:, :10], x[:, 10:]
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1)


def group_norm(x, w):
    y = x.reshape(2, 4, 18)
    centered = y - y.mean(-1, keepdims=True)
    return (centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)).reshape(2, 8, 9) * w[:, None]


# Name: function, shapes of its arguments, strategy.
FUNCTIONS = {
    "rotary": (rotary, [(12, 20), (12, 10), (12, 10)], "pointwise"),
    "group norm": (group_norm, [(2, 8, 9), (8,)], "reduction"),
    "interior": (lambda x: lax.pad(x * 2, 0.0, ((1, 2, 1), (0, 0, 0))), [(12, 20)], "pointwise"),
    "stacked": (lambda x: jnp.stack([x * 2, x + 1], -1), [(12, 20)], "pointwise"),
    "two arrays": (
        lambda x: (jnp.concatenate([x * 2, x + 1], 1), jnp.tanh(x), jnp.concatenate([x * 3, x + 4], 0)),
        [(12, 20)],
        "pointwise",
    ),
    "reshaped": (lambda x: jnp.tanh(x).reshape(4, 60), [(12, 20)], "pointwise"),
    "folded": (lambda x: jnp.sin(jnp.tanh(x).reshape(4, 60).sum(0)), [(12, 20)], "reduction"),
    "both shapes": (lambda x: (jnp.tanh(x), jnp.tanh(x).reshape(4, 60)), [(12, 20)], "pointwise"),
}


def case(name):
    f, shapes, strategy = FUNCTIONS[name]
    return f, [array(*shape) for shape in shapes], strategy


def in_turn(outer, inner):
    """Split the first axis of the last output and give all others its loops."""

    def edit(s):
        out = s.fusion.outputs[-1]
        s.split(out, 0, 2)
        s.parallelize(out, 0, outer)
        s.parallelize(out, 1, inner)
        s.transform_like(out)
        s.parallelize_like(out)
        s.inline_most()

    return edit


@pytest.mark.parametrize("name", FUNCTIONS)
def test_by_hand(name, machine):
    f, arrays, _ = case(name)
    s = jf.ir.Scheduler(jf.ir.trace(f, *arrays))
    in_turn(machine.outer, machine.inner)(s)
    assert not {op.split("(")[0] for op in str(s.fusion).split(" = ")} & {"concat", "reshape"}
    own = [a.reshape(s.fusion.shape(v)) for a, v in zip(arrays, s.fusion.inputs)]
    results = machine.run(s.schedule, *own)
    for got, want in zip(results, jax.tree.leaves(f(*arrays)), strict=True):
        assert_close(np.asarray(got).reshape(want.shape), want)
    for got, want in zip(jf.ir.evaluate(s.fusion, *own), jax.tree.leaves(f(*arrays)), strict=True):
        assert_close(got.reshape(want.shape), want)
    if machine.platform == "cuda":
        nvrtc_compiles(s.schedule)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fused_with_a_schedule(name):
    f, arrays, strategy = case(name)
    fusion = jf.ir.trace(f, *arrays)
    [proposed] = jf.ir.propose(fusion, "cpu")
    forms = [in_turn("task", "serial"), proposed, str(jf.ir.Scheduler(proposed).schedule.fusion) + str(proposed)]
    for given in [*forms, lambda s: jf.ir.schedule(s.fusion, strategy, "cpu")]:
        fused = jf.fuse(f, schedule=given)
        for got, want in zip(*map(jax.tree.leaves, (fused(*arrays), f(*arrays))), strict=True):
            assert_close(got, want)
        [region] = jf.explain(fused)(*arrays).regions
        assert [s.strategy for s in region.segments] == ["by hand"]


def test_derivatives_and_batches():
    f, arrays, _ = case("rotary")
    fused = jf.fuse(f, schedule=in_turn("task", "serial"))

    def slope(f):
        return jax.grad(lambda *args: (f(*args) ** 2).sum(), (0, 1))(*arrays)

    for got, want in zip(slope(fused), slope(f)):
        assert_close(got, want)
    assert_close(jax.vmap(fused, (0, None, None))(jnp.stack([arrays[0]] * 2), *arrays[1:])[1], f(*arrays))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_strategies(name):
    f, arrays, strategy = case(name)
    fusion = jf.ir.trace(f, *arrays)
    for platform in ("cpu", "cuda"):
        assert jf.ir.find_compatible_schedulers(fusion, platform) == [strategy]
        assert jf.ir.can_schedule(fusion, strategy, platform) == (True, "")
        parameters = jf.ir.compute_heuristics(fusion, strategy, platform)
        schedule = jf.ir.schedule(fusion, strategy, platform, parameters)
        assert len(schedule.fusion.inputs) == len(fusion.inputs)
    wants = jax.tree.leaves(f(*arrays))
    schedule = jf.ir.schedule(fusion, strategy, "cpu")
    got = jf.ir.run(schedule, *(a.reshape(schedule.fusion.shape(v)) for a, v in zip(arrays, schedule.fusion.inputs)))
    for one, want in zip(got, wants, strict=True):
        assert_close(one.reshape(want.shape), want)


def test_text_and_fusion_of_parts(machine):
    f, arrays, _ = case("two arrays")
    s = jf.ir.Scheduler(jf.ir.trace(f, *arrays))
    in_turn(machine.outer, machine.inner)(s)
    check_schedule(s.schedule, machine, arrays, *f(*arrays))
    assert jf.ir.Scheduler(s.fusion).fusion == s.fusion
    for got, want in zip(jf.ir.run(s.fusion, *arrays), f(*arrays), strict=True):  # as the compiler plans it
        assert_close(got, want)


def test_parts_of_several_shapes_have_loops_of_their_own(machine):
    x = array(12, 20)

    def f(x):
        return jnp.concatenate([x * 2, x[:, :3] + 1], 1)

    s = jf.ir.Scheduler(jf.ir.trace(f, x))
    for out in s.fusion.outputs:
        s.parallelize(out, 0, machine.outer)
        loops = s.loops(out)
        s.parallelize_like(
            out, [v for v in s.fusion.values if v not in s.fusion.inputs and s.loops(v)[1:] == loops[1:]]
        )
    s.inline_most()
    check_schedule(s.schedule, machine, [x], f(x))


@pytest.mark.parametrize("unused", [False, True])
def test_what_is_proposed_keeps_the_order_of_arguments_and_results(unused):
    def f(x, y, z):
        late = jnp.tanh(y) * x
        early = y + 1
        return late, early

    arrays = [array(4, 6), array(4, 6), array(3)]
    if not unused:
        arrays[2] = None
    args = [a for a in arrays if a is not None]
    g = f if unused else lambda x, y: f(x, y, None)
    for platform in ("cpu", "cuda"):
        [schedule] = jf.ir.propose(jf.ir.trace(g, *args, name="f"), platform)
        assert schedule.fusion.inputs == ["x", "y", "z"][: len(args)]
    [schedule] = jf.ir.propose(jf.ir.trace(g, *args, name="f"), "cpu")
    for got, want in zip(jf.fuse(g, schedule=schedule)(*args), g(*args)):
        assert_close(got, want)
    for got, want in zip(jf.ir.run(schedule, *args), g(*args)):
        assert_close(got, want)


# What is several kernels.

READ = jf.ir.Fusion("""fusion f(x: f32[4,6]) -> (z) {
  a: f32[4,6] = place(x) {starts=[0,0], shape=[4,12]}
  t: f32[4,6] = exp(x)
  b: f32[4,6] = place(t) {starts=[0,6], shape=[4,12]}
  y: f32[4,12] = concat(a, b) {dims=[1]}
  z: f32[4,12] = neg(y)
}""")


def test_what_is_read_as_a_whole_is_several_kernels():
    message = (
        r"f is no single kernel: it reads an array that it puts together, .* makes 2 kernels, "
        r"f_0 \(stores f32\[4,6\], f32\[4,6\]\), f_1 \(stores f32\[4,12\]\); make a function of what each of them "
    )
    with pytest.raises(jf.UserError, match=r"\[Scheduler\] " + message):
        jf.ir.Scheduler(READ)
    with pytest.raises(jf.UserError, match=r"\[pointwise\] " + message):
        jf.ir.schedule(READ, "pointwise", "cpu")
    assert jf.ir.find_compatible_schedulers(READ, "cpu") == []


def test_one_of_several_kernels_is_no_schedule_of_the_function():
    x = array(12, 20)

    def f(x):
        return jnp.concatenate([x * 2, x[:, :3] + 1], 1)

    first, _ = jf.ir.propose(jf.ir.trace(f, x), "cpu")
    with pytest.raises(
        jf.UserError, match=r"is that of f_0, one of the 2 kernels that the compiler makes on cpu; .* of"
    ):
        jf.fuse(f, schedule=first)(x)
    message = r"t9 \(f32\[12,3\]\) of f_0 is a part of f32\[12,23\], of which other kernels store the rest"
    for call in (jf.ir.run, jf.ir.evaluate):
        with pytest.raises(jf.UserError, match=call.__name__ + ": " + message):
            call(first if call is jf.ir.run else first.fusion, x)
    with pytest.raises(
        jf.UserError, match=r"\[place\] t9 \(f32\[12,3\]\) is a part of an array, f32\[12,23\], and the"
    ):
        jf.ir.propose(first.fusion, "cpu")


def test_lowering_a_concat_says_who_takes_it_apart():
    fusion = jf.ir.trace(lambda x: jnp.concatenate([x * 2, x + 1]), array(3, 4))
    with pytest.raises(jf.UserError, match=r"is a concat, which is no work: .* outputs, as Scheduler\(fusion\) does"):
        jf.ir.lower(jf.ir.Schedule(fusion), "cpu")
