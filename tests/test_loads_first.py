"""Loads read nothing beyond their array, whatever conditions are left out or put together for them."""

import re

import jax.numpy as jnp
import loop_interpreter
import numpy as np

import jax_fuser as jf


def unrolled(fusion):
    """Vectors of 4 in an unrolled loop with a remainder."""
    s = jf.ir.Scheduler(fusion)
    [out] = fusion.outputs
    s.split(out, 0, 4)
    s.split(out, 0, 2)
    for axis, parallel in enumerate(["thread", "unroll", "vector"]):
        s.parallelize(out, axis, parallel)
    s.transform_like(out)
    s.parallelize_like(out)
    s.inline_most()
    return s.schedule


def negated():
    b = jf.ir.Builder("all")
    b.output(b.pointwise("neg", [b.input("x", "f32", [12])]))
    return unrolled(b.finish())


def test_loads_go_before_the_condition():
    schedule = negated()
    assert "else first" in jf.ir.lower(schedule, "cuda").as_text("loops")
    x = np.arange(12, dtype=np.float32)
    np.testing.assert_array_equal(loop_interpreter.run(schedule, x)[0], -x)


def test_an_array_of_fewer_elements_than_lanes():
    b = jf.ir.Builder("few")
    padded = b.pad(b.input("x", "f32", [2]), [10], [0], b.constant("f32", 0.0))
    b.output(b.pointwise("neg", [padded]))
    x = np.float32([3, 5])
    [got] = loop_interpreter.run(unrolled(b.finish()), x)
    np.testing.assert_array_equal(got, -np.pad(x, (10, 0)))


def test_what_holds_in_the_first_iterations_does_not_stand_for_all():
    """A padded vector beside a fold: the iteration must exist, and its element, too."""
    b = jf.ir.Builder("beside")
    x = b.input("x", "f32", [10, 64])
    padded = b.pad(b.input("v", "f32", [6]), [3], [1], b.constant("f32", 0.0))
    b.output(b.pointwise("add", [padded, b.reduce("reduce_sum", x, [1])]))
    s = jf.ir.Scheduler(b.finish())
    [fold] = [value for value in s.fusion.values if s.fusion.is_reduction(value)]
    s.split(fold, 0, 4)
    for axis, parallel in enumerate(["thread_y", "unroll", "thread"]):
        s.parallelize(fold, axis, parallel)
    s.transform_like(fold)
    s.parallelize_like(fold)
    s.inline_most()
    source = jf.ir.lower(s.schedule, "cuda").as_text("source")
    assert re.search(r"= \(i1 < 2 \|\| i0 \* 4 \+ i1 < 10\) && 3 <= i0 \* 4 \+ i1 && ", source)
    assert not re.search(r"\|\|[^)]*&&", source)


def test_offsets_are_masked_and_not_chosen():
    """Ptxas 13 reads the 64-bit zero of a choice too early: kernels failed on an H200 with misaligned addresses."""
    source = jf.ir.lower(negated(), "cuda").as_text("source")
    assert "jf::or_first(" in source
    assert ": 0)" not in source


def test_arrays_of_one_buffer_have_names_of_their_own():
    """A roll reads its array at two places in one loop."""
    x = np.random.default_rng(1).integers(-3, 4, 1088).astype(np.int8)
    fusion = jf.ir.trace(lambda x: jnp.argmin(jnp.roll(x, 433)), x)
    known = {"x": x}
    for schedule in jf.ir.propose(fusion, "cuda"):
        declared = re.findall(r"declare (\w+)", jf.ir.lower(schedule, "cuda").as_text("loops"))
        assert "x_ahead_2" in declared and len(declared) == len(set(declared))
        made = loop_interpreter.run(schedule, *(known[name] for name in schedule.fusion.inputs))
        known.update(zip(schedule.fusion.outputs, made))
    assert known[fusion.outputs[0]] == np.argmin(np.roll(x, 433))
