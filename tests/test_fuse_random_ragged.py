"""Random functions of nested tensors under `fuse` against a loop over groups in numpy, and their derivatives.

A failing one is shrunk and printed with its seed as fusion text. `Ragged(seed)` makes it again.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_ragged import Ragged, float_inputs
from test_cuda_sources import nvrtc_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

PROGRAMS, BATCH, SEEDS = {"cpu": 120, "cuda": 60}, 10, 3


def results(programs):
    """Return each program's outputs, every program a fusion of its own."""
    return jax.jit(lambda arguments: [jf.fuse(p.run)(a) for p, a in zip(programs, arguments)])(
        [p.arguments for p in programs]
    )


def failures(programs):
    try:
        outputs = results(programs)
    except Exception:
        # One that does not compile: found by itself.
        return [p.report() for p in programs if any(p.fails(i, ()) for i in p.outputs)]
    return [p.report() for p, got in zip(programs, outputs) if any(p.wrong(g, i) for g, i in zip(got, p.outputs))]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_functions(device, seed):
    count = PROGRAMS["cpu" if device.platform == "cpu" else "cuda"] // SEEDS
    programs = [Ragged([40, seed, i]) for i in range(count)]
    found = [report for i in range(0, count, BATCH) for report in failures(programs[i : i + BATCH])]
    assert not found, f"{len(found)} programs are wrong\n\n" + "\n\n".join(found)


@pytest.mark.parametrize("seed", range(8))
def test_random_derivatives(device, seed):
    with jax.enable_x64(True):
        program = Ragged([41, seed], steps=5, dtypes=("float64", "float64"))
        x, back = float_inputs(program.arguments)

        def loss(f, x):
            total = jnp.zeros(())
            for leaf in jax.tree.leaves(f(back(x))):
                if jnp.issubdtype(leaf.dtype, jnp.floating):
                    total += jnp.sin(leaf).sum()
            return total

        got = jax.grad(lambda x: loss(jf.fuse(program.run), x))(x)
        want = jax.jit(jax.grad(lambda x: loss(program.run, x)))(x)
        for a, b in zip(got, want):
            assert np.isfinite(np.asarray(a)).all(), f"seed {program.seed}"
            assert_close(a, b, scale=1e4)


@pytest.mark.parametrize("seed", range(4))
def test_cuda_sources(seed):
    nvrtc_or_skip()
    program = Ragged([42, seed])
    text = jf.fuse(program.run).lower(program.arguments).as_text("fusion")
    for fusion in text.split("# region")[1:]:
        assert _core.compile_cuda(fusion.split("\n", 1)[1], _core.cuda_target_for(90))


def test_programs_use_what_they_are_for():
    programs = [Ragged([40, 0, i], steps=4) for i in range(40)]
    layouts = [p.layout for p in programs]
    assert any(x.starts is not None for x in layouts) and any(x.outer and not x.shared for x in layouts)
    assert any(x.shared for x in layouts) and any(not x.extents.any() for x in layouts)
    assert {step.form for p in programs for step in p.steps} == {"map", "operator", "ids", "fold", "group"}
