"""Every scheduling call of nvFuser's Python front end, by name: what it is here, on a small fusion that still computes
the right numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from schedules import check_schedule
from tolerances import assert_close

import jax_fuser as jf

# The calls of `fd.sched`.
NAMES = [
    "to_string",
    "user_schedule_ir",
    "_set_device_mesh",
    "parallelize",
    "merge",
    "reduction_factor",
    "rfactor",
    "reorder",
    "split",
    "set_allocation_as_loop",
    "cache_after",
    "cache_before",
    "cache_fork",
    "set_memory_type",
    "transform_like",
    "parallelize_like",
    "inline_most",
    "inline_at",
    "tensors",
    "is_reduction",
    "can_schedule",
    "find_compatible_schedulers",
    "schedule",
    "compute_pointwise_heuristics",
    "compute_reduction_heuristics",
    "compute_matmul_heuristics",
    "schedule_hyperparameters",
]
ROWS, COLUMNS = 12, 20


def shares() -> jf.ir.Fusion:
    """e = exp(x + r), e over its row sums; e is an output too."""
    return jf.ir.Fusion(f"""fusion shares(x: f32[{ROWS},{COLUMNS}], r: f32[{COLUMNS}]) -> (y, e) {{
      wide: f32[b{ROWS},{COLUMNS}] = broadcast(r) {{dims=[1]}}
      u: f32[{ROWS},{COLUMNS}] = add(x, wide)
      e: f32[{ROWS},{COLUMNS}] = exp(u)
      total: f32[{ROWS}] = reduce_sum(e) {{dims=[1]}}
      totals: f32[{ROWS},b{COLUMNS}] = broadcast(total) {{dims=[0]}}
      y: f32[{ROWS},{COLUMNS}] = div(e, totals)
    }}""")


def arrays() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(ROWS, COLUMNS)).astype(np.float32), random.normal(size=COLUMNS).astype(np.float32)


def check(schedule: jf.ir.Schedule, machine) -> None:
    x, r = arrays()
    e = np.exp(np.float64(x) + r)
    wants = {"y": e / e.sum(1, keepdims=True), "e": e}
    check_schedule(schedule, machine, (x, r), *(wants[name] for name in schedule.fusion.outputs))


def finish(s: jf.ir.Scheduler, reference: str = "y") -> jf.ir.Schedule:
    s.transform_like(reference)
    s.parallelize_like(reference)
    s.inline_most()
    return s.schedule


def extents(s: jf.ir.Scheduler | jf.ir.Schedule, value: str) -> list[int]:
    return [extent for extent, _ in s.loops(value)]


# One function for each name: it makes the call, says what it did, and returns a schedule to run.


def to_string(s, machine):
    s.split("y", 1, 4)
    assert f"y[{ROWS},{COLUMNS}]: split(1,4) -> [{ROWS}, 5, 4]" in str(s)
    return finish(s)


def user_schedule_ir(s, machine):
    s.cache_after("x")
    assert "x_cache: f32[12,20] = copy(x)" in str(s.fusion)
    assert jf.ir.Fusion(str(s.fusion)) == s.fusion
    return finish(s)


def parallelize(s, machine):
    s.split("y", 1, 32)
    s.parallelize("y", 0, machine.outer)
    s.parallelize("y", 2, machine.inner)
    assert s.loops("y") == [(ROWS, machine.outer), (1, "serial"), (32, machine.inner)]
    return finish(s)


def merge(s, machine):
    s.split("y", 1, 4)
    s.merge("y", 0)
    assert extents(s, "y") == [ROWS * 5, 4]
    # A row's sum is complete after the row, so what is folded stays apart.
    with pytest.raises(jf.UserError, match=r"\[merge\] axes 0 and 1 of total: one is reduced"):
        s.merge("total", 0)
    s = jf.ir.Scheduler(s.fusion)
    s.split("y", 1, 4)
    s.split("y", 1, 2)
    s.merge("y", 2)
    assert extents(s, "y") == [ROWS, 3, 8]
    return finish(s)


def rfactor(s, machine):
    s.split("total", 1, 5, inner=False)
    made = s.rfactor("total", [2])
    assert s.fusion.shape(made) == [ROWS, 5] and s.fusion.is_reduction(made) and s.fusion.is_reduction("total")
    s.transform_like(made, ["wide", "u", "e", "totals", "y"])
    s.inline_most()
    return s.schedule


def reorder(s, machine):
    s.reorder("y", [1, 0])
    assert extents(s, "y") == [COLUMNS, ROWS]
    return finish(s)


def split(s, machine):
    s.split("y", 1, 3)
    s.split("y", 0, 5, inner=False)
    assert extents(s, "y") == [5, 3, 7, 3]
    return finish(s)


def set_allocation_as_loop(s, machine):
    kept = s.cache_after("e")
    if machine.platform == "cpu":
        with pytest.raises(jf.UserError, match=r"\[set_allocation\] e_cache is kept in registers"):
            s.set_allocation(kept, 0)
        return finish(s)
    s.split("y", 1, 8)
    s.parallelize("y", 0, "block")
    s.parallelize("y", 2, "thread")
    s.transform_like("y")
    s.parallelize_like("y")
    s.set_memory(kept, "shared")
    s.set_allocation(kept, 1)
    s.inline_most()
    assert f"shared {kept}: f32[24]" in jf.ir.lower(s.schedule, "cuda").as_text("loops")
    return s.schedule


def cache_after(s, machine):
    assert s.cache_after("x") == "x_cache"
    assert "u: f32[12,20] = add(x_cache, wide)" in str(s.fusion)
    return finish(s)


def cache_before(s, machine):
    assert s.cache_before("y") == "y_cache"
    assert "y_cache: f32[12,20] = div(e, totals)" in str(s.fusion) and "copy(y_cache)" in str(s.fusion)
    return finish(s)


def cache_fork(s, machine):
    assert s.cache_fork("e") == "e_cache"
    text = str(s.fusion)
    assert "e: f32[12,20] = copy(e_cache)" in text and "div(e_cache, totals)" in text
    return finish(s)


def set_memory_type(s, machine):
    kept = s.cache_after("e")
    s.set_memory(kept, "shared")
    assert s.schedule.memory(kept) == "shared"
    if machine.platform == "cpu":
        s.set_memory(kept, "register")
        return finish(s)
    s.split("y", 1, 8)
    s.parallelize("y", 0, "block")
    s.parallelize("y", 2, "thread")
    return finish(s)


def transform_like(s, machine):
    s.split("y", 1, 4)
    s.transform_like("y", ["e", "u"])
    assert extents(s, "e") == extents(s, "u") == [ROWS, 5, 4] and extents(s, "total") == [ROWS, COLUMNS]
    s.transform_like("y")
    assert extents(s, "total") == extents(s, "totals") == [ROWS, 5, 4]
    return s.schedule


def parallelize_like(s, machine):
    s.split("y", 1, 4)
    s.transform_like("y")
    s.parallelize("y", 0, machine.outer)
    s.parallelize("y", 2, "vector")
    s.parallelize_like("y", ["u"], position=1)
    assert [p for _, p in s.loops("u")] == [machine.outer, "serial", "serial"]
    s.parallelize_like("y", types=["vector"])
    assert [p for _, p in s.loops("e")] == ["serial", "serial", "vector"]
    s.parallelize_like("y")
    assert s.loops("e") == s.loops("total") == s.loops("y")
    s.inline_most()
    return s.schedule


def inline_most(s, machine):
    s.inline_most(["wide"])
    assert [s.schedule.inline_position(v) for v in ("wide", "u", "total")] == [2, 0, 0]
    s.inline_most()
    assert [s.schedule.inline_position(v) for v in ("wide", "u", "e", "total")] == [2, 2, 1, 1]
    return s.schedule


def inline_at(s, machine):
    s.inline_at("u", 1)
    assert s.schedule.inline_position("u") == 1
    s.inline_at("u", 99, best_effort=True)
    assert s.schedule.inline_position("u") == 2
    return s.schedule


def tensors(s, machine):
    assert s.fusion.values == ["x", "r", "wide", "u", "e", "total", "totals", "y"]
    return s.schedule


def is_reduction(s, machine):
    assert [v for v in s.fusion.values if s.fusion.is_reduction(v)] == ["total"]
    return s.schedule


def can_schedule(s, machine):
    assert jf.ir.can_schedule(s.fusion, "reduction", machine.platform) == (True, "")
    fits, why = jf.ir.can_schedule(s.fusion, "pointwise", machine.platform)
    assert not fits and "total folds axes" in why
    return s.schedule


def find_compatible_schedulers(s, machine):
    assert jf.ir.find_compatible_schedulers(s.fusion, machine.platform) == ["reduction"]
    return s.schedule


def schedule(s, machine):
    made = jf.ir.schedule(s.fusion, "reduction", machine.platform)
    assert made != s.schedule and [str(made)] == [str(s) for s in jf.ir.propose(s.fusion, machine.platform)]
    return made


def compute_pointwise_heuristics(s, machine):
    twice = jf.ir.Fusion("fusion twice(x: f32[6,8]) -> (y) { y: f32[6,8] = add(x, x) }")
    parameters = jf.ir.compute_heuristics(twice, "pointwise", machine.platform)
    parameters["lanes"] = 2
    made = jf.ir.schedule(twice, "pointwise", machine.platform, parameters)
    assert made.loops("y")[-1] == (2, "vector")
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    assert_close(machine.run(made, x)[0], 2 * x)
    return s.schedule


def compute_reduction_heuristics(s, machine):
    parameters = jf.ir.compute_heuristics(s.fusion, "reduction", machine.platform)
    made = jf.ir.schedule(s.fusion, "reduction", machine.platform, {**parameters, "lanes": 2})
    assert made.loops("y")[-1] == (2, "vector")
    return made


def schedule_hyperparameters(s, machine):
    parameters = jf.ir.compute_heuristics(s.fusion, "reduction", machine.platform)
    assert {"lanes", "chunk" if machine.platform == "cpu" else "threads"} <= parameters.keys()
    edit = {"lanes": 1, "chunk": 2} if machine.platform == "cpu" else {"lanes": 1, "unroll": 2, "threads": 4}
    return jf.ir.schedule(s.fusion, "reduction", machine.platform, edit)


BY_NAME: dict[str, Callable] = {name: globals()[name] for name in NAMES if name in globals()}
BY_NAME["reduction_factor"] = rfactor
# Why there is no such call.
NONE = {"_set_device_mesh": "meshes are JAX's", "compute_matmul_heuristics": "grouped products"}


def table() -> dict[str, tuple[str, str]]:
    """Return each name of jf.ir's table with what is in its other columns."""
    rows = re.findall(r"^\| (`.*) \| (.*) \| (.*) \|$", jf.ir.__doc__, re.MULTILINE)
    return {name: (here, differs) for names, here, differs in rows for name in re.findall(r"`(\w+)`", names)}


def test_no_name_is_forgotten():
    assert set(BY_NAME) | set(NONE) == set(NAMES) and not set(BY_NAME) & set(NONE)
    assert set(table()) >= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_names_what_exists(name):
    here, differs = table()[name]
    if name in NONE:
        assert here == "none" and NONE[name] in differs
        return
    names = [name] if here == "the same" else re.findall(r"`(?:Fusion\.)?(\w+)`", here)
    assert names or here.startswith("`str(")
    for own in names:
        assert any(hasattr(place, own) for place in (jf.ir.Scheduler, jf.ir.Fusion, jf.ir)), own


@pytest.mark.parametrize("name", BY_NAME)
def test_a_call_by_name(name, machine):
    check(BY_NAME[name](jf.ir.Scheduler(shares()), machine), machine)
