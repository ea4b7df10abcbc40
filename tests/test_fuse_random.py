"""Random programs of pointwise ops and reductions against numpy in float64, and their derivatives.

A failing one is shrunk and printed with its seed as fusion text. `Program(seed)` makes it again.
"""

import concurrent.futures
import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_programs import Program, is_float

import jax_fuser as jf

# Programs, most of them compiled as fusions of their own, and how many at once. With the 550 of the tests below
# and of test_fuse_gather, _mesh, _pad, _random_ragged, _reshape and _updates they are more than 2000.
PROGRAMS, BATCH = {"cpu": 1500, "cuda": 400}, 20
SEEDS = 10
COMPILERS = 2  # threads that compile


def results(programs, as_one):
    """Return each program's outputs; all programs in one fusion, or a fusion for each."""

    def together(arguments):
        return [p.run(a) for p, a in zip(programs, arguments)]

    def apart(arguments):
        return [jf.fuse(p.run)(a) for p, a in zip(programs, arguments)]

    return (jf.fuse(together) if as_one else jax.jit(apart))([p.arguments for p in programs])


def failures(programs, as_one):
    try:
        outputs = results(programs, as_one)
    except Exception:
        # One that does not compile: found by itself.
        outputs = [None] * len(programs)
    return [p.report() for p, got in zip(programs, outputs) if is_wrong(p, got)]


def is_wrong(program, got):
    if got is None:
        return any(program.fails(i, ()) for i in program.outputs)
    return any(program.wrong(g, i) for g, i in zip(got, program.outputs))


def check(device, programs, as_one, wide=False):
    # Configuration belongs to a thread.
    with jax.default_device(device), jax.enable_x64(True) if wide else contextlib.nullcontext():
        return failures(programs, as_one)


def check_batches(device, batches):
    """Check batches of (programs, whether as one, whether under x64) in a few threads, since most time is compiling."""
    with concurrent.futures.ThreadPoolExecutor(COMPILERS) as pool:
        found = list(itertools.chain.from_iterable(pool.map(lambda batch: check(device, *batch), batches)))
    assert not found, f"{len(found)} programs are wrong\n\n" + "\n\n".join(found)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs(device, seed):
    count = PROGRAMS["cpu" if device.platform == "cpu" else "cuda"] // SEEDS
    programs = [Program([seed, i]) for i in range(count)]
    check_batches(device, [(programs[i : i + BATCH], i // BATCH % 4 == 1) for i in range(0, count, BATCH)])


def test_large_programs(device):
    # Many elements: several tasks or blocks, reductions in two stages.
    sizes = [1, 2, 3, 7, 31, 64, 257, 1000, 4099, 50_000]
    programs = [Program([20, i], steps=6, sizes=sizes, largest=400_000) for i in range(40)]
    check_batches(device, [(programs[:20], False), (programs[20:], True)])


def test_wide_programs(device):
    dtypes = ("float64", "float64", "float32", "int64", "int32")
    programs = [Program([30, i], dtypes=dtypes) for i in range(60)]
    check_batches(device, [(programs[i : i + BATCH], i == BATCH, True) for i in range(0, 60, BATCH)])


@pytest.mark.parametrize("seed", range(2))
def test_random_derivatives(device, seed):
    programs = [Program([40, seed, i], steps=5, dtypes=("float32",) * 3, smooth=True) for i in range(6)]

    def loss(run):
        def f(arguments, dtype):
            return sum(
                jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=dtype)).reshape(y.shape))
                for p, a in zip(programs, arguments)
                for y in run(p)(a)
                if is_float(y.dtype)
            )

        return f

    arguments = [p.arguments for p in programs]
    got = jax.jit(jax.grad(loss(lambda p: jf.fuse(p.run))), static_argnums=1)(arguments, "float32")
    plain = jax.jit(jax.grad(loss(lambda p: p.run)), static_argnums=1)(arguments, "float32")
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: a.astype("float64"), arguments)
        truth = jax.jit(jax.grad(loss(lambda p: lambda a: p.run(a, wide=True))), static_argnums=1)(wide, "float64")
    for program, *each in zip(programs, got, plain, truth):
        for g, p, want in zip(*each):
            g, p, want = (np.asarray(x, np.float64) for x in (g, p, want))
            # As exact as the same ops by XLA, which add in another order.
            allowed = 8 * np.abs(p - want).max(initial=0) + 2e-5 * max(1.0, np.abs(want).max(initial=0))
            assert np.abs(g - want).max(initial=0) <= allowed, f"seed {program.seed}\n{program.report()}"
