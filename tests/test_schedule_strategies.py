"""Strategies by name, with the parameters that the compiler proposes and with edited ones."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from schedules import (
    act,
    inputs,
    nvrtc_compiles,
)
from tolerances import assert_close

import jax_fuser as jf

# Strategies.


def strategy_cases() -> dict[str, tuple[Callable, list[np.ndarray], list[str]]]:
    random = np.random.default_rng(0)

    def array(*shape):
        return random.normal(size=shape).astype(np.float32)

    return {
        "row": (lambda x, r: jnp.tanh(x + r) * x, [array(16, 10), array(10)], ["pointwise"]),
        "two places": (lambda r: jnp.tanh(r)[:, None] - jnp.tanh(r)[None, :], [array(12)], ["pointwise"]),
        "unused input": (lambda x, y: y * 2, [array(3), array(4, 5)], ["pointwise"]),
        "across": (lambda x, y: x + y.T, [array(64, 48), array(48, 64)], ["transpose", "pointwise"]),
        "softmax": (lambda x: jax.nn.softmax(x, axis=1), [array(16, 10)], ["reduction"]),
        "columns": (lambda x: (x * x).sum(axis=0), [array(16, 10)], ["reduction"]),
        "all": (lambda x: (x * x).sum(), [array(5, 7)], ["reduction"]),
        "two folds": (lambda x: (x.sum(axis=0), x.sum(axis=1)), [array(16, 10)], []),
    }


@pytest.mark.parametrize("case", strategy_cases())
def test_strategies_by_name(case):
    f, arrays, fits = strategy_cases()[case]
    fusion = jf.ir.trace(f, *arrays, name="f")
    want = jax.tree.leaves(f(*arrays))
    assert jf.ir.find_compatible_schedulers(fusion, "cuda") == fits
    assert jf.ir.find_compatible_schedulers(fusion, "cpu") == [s for s in fits if s != "transpose"]
    for strategy in ("pointwise", "transpose", "reduction"):
        fit, reason = jf.ir.can_schedule(fusion, strategy, "cuda")
        assert fit == (strategy in fits) == (not reason)
        if not fit:
            with pytest.raises(jf.UserError) as error:
                jf.ir.schedule(fusion, strategy, "cuda")
            assert str(error.value) == reason
    for strategy in fits:
        for platform in ("cpu", "cuda") if strategy != "transpose" else ("cuda",):
            parameters = jf.ir.compute_heuristics(fusion, strategy, platform)
            schedule = jf.ir.schedule(fusion, strategy, platform)
            assert schedule == jf.ir.schedule(fusion, strategy, platform, parameters)
            assert schedule.fusion.inputs == fusion.inputs and jf.ir.Fusion(str(schedule.fusion)) == schedule.fusion
            if platform == "cuda":
                nvrtc_compiles(schedule)
                continue
            for got, array in zip(jf.ir.run(schedule, *arrays), want):
                assert_close(got, array)


EDITED_PARAMETERS = [
    ("row", "pointwise", {"lanes": 4, "lane_loop": 0}),
    ("row", "pointwise", {"collapse": [2], "lane_loop": 0, "tasks": 3}),
    ("row", "pointwise", {"lanes": 4, "tile_loop": 0, "tile": 2, "along_rows": True, "vectors": 3}),
    ("across", "pointwise", {"tile": 1, "tile_loop": -1}),
    ("softmax", "reduction", {"keep": "nothing", "lane_loop": 0, "chunk": 2, "lanes": 4}),
    ("softmax", "reduction", {"keep": "rows", "lanes": 1, "tasks": 5}),
    ("columns", "reduction", {"lane_loop": 0, "lanes": 8}),
]


@pytest.mark.parametrize(("case", "strategy", "parameters"), EDITED_PARAMETERS)
def test_edited_parameters_give_the_same_result(case, strategy, parameters):
    f, arrays, _ = strategy_cases()[case]
    fusion = jf.ir.trace(f, *arrays, name="f")
    schedule = jf.ir.schedule(fusion, strategy, "cpu", parameters)
    assert schedule != jf.ir.schedule(fusion, strategy, "cpu")
    assert_close(jf.ir.run(schedule, *arrays)[0], f(*arrays))


@pytest.mark.parametrize(
    ("case", "strategy", "parameters"),
    [
        ("row", "pointwise", {"lanes": 2, "threads": 64, "unroll": 2, "two_axes": True}),
        ("across", "transpose", {"tile": 32, "lanes": 2, "threads": 128}),
        ("softmax", "reduction", {"along": "rows", "threads": 64, "keep": "nothing"}),
        ("columns", "reduction", {"threads": 4, "threads_y": 8}),
    ],
)
def test_edited_parameters_compile_for_cuda(case, strategy, parameters):
    f, arrays, _ = strategy_cases()[case]
    fusion = jf.ir.trace(f, *arrays, name="f")
    schedule = jf.ir.schedule(fusion, strategy, "cuda", parameters)
    assert schedule != jf.ir.schedule(fusion, strategy, "cuda")
    nvrtc_compiles(schedule)


BAD_PARAMETERS = {
    "name": ("row", "pointwise", "cpu", {"lane": 4}, r"\[pointwise\] it has no parameter 'lane' here; it has collapse"),
    "lanes": ("row", "pointwise", "cpu", {"lanes": 3}, r"\[pointwise\] lanes: expected a power of two up to 64, got 3"),
    "type": ("row", "pointwise", "cpu", {"lanes": "4"}, r"\[pointwise\] lanes: expected an integer, got '4'"),
    "type of loop": ("row", "pointwise", "cpu", {"lane_loop": [1]}, r"lane_loop: expected an integer, got \[1\]"),
    "list": ("row", "pointwise", "cpu", {"collapse": [1]}, r"collapse: .* sum to 2, got a sum of 1"),
    "loop": ("row", "pointwise", "cpu", {"lane_loop": 2}, r"lane_loop: expected a loop in \[0, [12]\), got 2"),
    "zero": ("row", "pointwise", "cpu", {"tasks": 0}, r"tasks: expected an integer from 1 to"),
    "tile": ("row", "pointwise", "cpu", {"tile": 4}, r"tile: a tile of 4 needs a tile_loop"),
    "rows": ("row", "pointwise", "cpu", {"along_rows": True}, r"along_rows: tiles along rows need a tile_loop"),
    "threads": ("row", "pointwise", "cuda", {"threads": 2048}, r"threads: expected at most 1024, got 2048"),
    "other platform": ("row", "pointwise", "cuda", {"tasks": 2}, r"no parameter 'tasks' here"),
    "word": ("softmax", "reduction", "cpu", {"keep": "all"}, r"keep: expected nothing, dear or rows, got 'all'"),
    "along": ("softmax", "reduction", "cuda", {"along": "columns"}, r"lane_loop: loop 1 is folded; threads along col"),
    "one row": ("all", "reduction", "cuda", {"along": "rows"}, r"along: there is one row"),
    "warp": ("softmax", "reduction", "cuda", {"threads": 48}, r"threads: expected a power of two up to 32 or a mult"),
    "block": (
        "softmax",
        "reduction",
        "cuda",
        {"threads": 64, "threads_y": 32},
        r"threads times threads_y: .* got 2048",
    ),
    "large tile": ("across", "transpose", "cuda", {"tile": 128}, r"\[transpose\] tiles of 128 x 128 .* a smaller tile"),
    "wrong loop": ("across", "transpose", "cuda", {"loop": 1}, r"\[transpose\] expected a loop in \[0, 1\), got 1"),
}


@pytest.mark.parametrize("name", BAD_PARAMETERS)
def test_a_wrong_parameter_is_named(name):
    case, strategy, platform, parameters, message = BAD_PARAMETERS[name]
    f, arrays, _ = strategy_cases()[case]
    with pytest.raises(jf.UserError, match=message):
        jf.ir.schedule(jf.ir.trace(f, *arrays, name="f"), strategy, platform, parameters)


def test_a_wrong_strategy_is_named():
    for call in (jf.ir.can_schedule, jf.ir.compute_heuristics, jf.ir.schedule):
        with pytest.raises(ValueError, match=rf"{call.__name__}: strategy must be one of .*got 'matmul'"):
            call(act(), "matmul", "cpu")
        with pytest.raises(ValueError, match=rf"{call.__name__}: platform must be"):
            call(act(), "pointwise", "tpu")
    with pytest.raises(TypeError, match=r"schedule: parameter lanes must be a bool, int, str or list of int, got 4\.0"):
        jf.ir.schedule(act(), "pointwise", "cpu", {"lanes": 4.0})
    with pytest.raises(ValueError, match=r"schedule: parameter lanes is out of range"):
        jf.ir.schedule(act(), "pointwise", "cpu", {"lanes": 2**80})


WHY_NOT = {
    "pointwise": (lambda b, x: b.reduce("reduce_sum", x, [0]), r"\[pointwise\] t1 folds axes; use reduction"),
    "transpose": (lambda b, x: b.pointwise("neg", [x]), r"\[transpose\] f reads no long input along another axis"),
    "reduction": (lambda b, x: b.pointwise("neg", [x]), r"\[reduction\] f folds no axis; use pointwise"),
}


def test_what_no_single_kernel_makes():
    x, _ = inputs()
    fusion = jf.ir.trace(lambda x: jnp.concatenate([x * 2, x[:3] + 1]), x, name="joined")
    ok, reason = jf.ir.can_schedule(fusion, "pointwise", "cpu")
    assert not ok and "joined takes 2 kernels" in reason
    empty = jf.ir.Fusion("fusion f(x: f32[0,4]) -> (y) { y: f32[0,4] = neg(x) }")
    assert jf.ir.can_schedule(empty, "pointwise", "cpu") == (False, "[pointwise] y has no elements")
    single = jf.ir.Fusion("fusion f(x: f32[1,4]) -> (y) { y: f32[] = reduce_sum(x) {dims=[0,1]} }")
    assert "squeeze it" in jf.ir.can_schedule(single, "reduction", "cpu")[1]


@pytest.mark.parametrize("strategy", WHY_NOT)
def test_a_strategy_says_why_not(strategy):
    build, message = WHY_NOT[strategy]
    b = jf.ir.Builder("f")
    b.output(build(b, b.input("x", "f32", [8, 4])))
    with pytest.raises(jf.UserError, match=message):
        jf.ir.compute_heuristics(b.finish(), strategy, "cuda")
