"""Loads that do not wait for a condition read nothing beyond their array."""

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


def test_loads_go_before_the_condition():
    b = jf.ir.Builder("all")
    b.output(b.pointwise("neg", [b.input("x", "f32", [12])]))
    schedule = unrolled(b.finish())
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
