"""Random schedules of random fusions: refused by name, or a kernel that computes every element.

A failing case is cut down to the calls that matter and printed with its seed, fusion and schedule.
"""

import functools

import jax
import loop_interpreter
import pytest
from random_schedules import EACH, SEARCHES, Case, outcome, report

import jax_fuser as jf

BATCHES, CASES = 10, 60
RUNS = {"cpu": 24, "cuda": 60}


def check(cases, run):
    found = [report(case, run) for case in cases if outcome(case, run).wrong]
    assert not found, f"{len(found)} cases are wrong\n\n" + "\n\n".join(found)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("batch", range(BATCHES))
def test_loops_compute_every_element(batch, platform):
    run = functools.partial(loop_interpreter.run, platform=platform)
    check([Case.of(batch * CASES + i, platform) for i in range(CASES)], run)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("batch", range(2))
def test_loops_search_tables(batch, platform):
    run = functools.partial(loop_interpreter.run, platform=platform)
    check([Case.of(SEARCHES + batch * CASES + i, platform) for i in range(CASES)], run)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("batch", range(3))
def test_loops_of_values_one_by_one(batch, platform):
    run = functools.partial(loop_interpreter.run, platform=platform)
    check([Case.of(EACH + batch * CASES + i, platform) for i in range(CASES)], run)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_most_cases_are_kernels_and_reach_what_they_test(platform):
    texts = []
    for seed in range(35 * CASES):  # clusters of what folds over them are rare
        case = Case.of(seed, platform)
        found = outcome(case, lambda schedule, *arrays: [])
        if not found.refused:
            lowered = jf.ir.lower(found.schedule, platform)
            texts.append(f"{found.schedule}{lowered.as_text('loops')}")
    assert len(texts) > 14 * CASES
    words = [
        "split(",
        "merge(",
        "reorder(",
        "swizzle(",
        "insert(",
        "vector",
        "below",
        "full",
        "combine",
        "if ",
        "_parts",
    ]
    of_cuda = ["shared (", "pad ", "sync", "thread_y", "over threads", "block_y", "cluster"]
    words += of_cuda if platform == "cuda" else ["task"]
    for word in words:
        assert any(word in text for text in texts), word


def test_kernels_compute_every_element(device):
    """The same on the machine itself, compiled."""
    platform = "cpu" if device.platform == "cpu" else "cuda"
    seeds, cases = [iter(range(first, 2 * first)) for first in (100_000, SEARCHES)], []
    while len(cases) < RUNS[platform]:
        case = Case.of(next(seeds[len(cases) % 3 == 0]), platform)
        found = outcome(case, lambda schedule, *arrays: [])
        if found.schedule is not None and not found.refused and len(case.choices) > 3:
            cases.append(case)
    with jax.default_device(device):
        check(cases, jf.ir.run)
