"""Rows that are folded whole and run by run, as norms are whose results are quantized in blocks: one CUDA kernel."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from test_cuda_sources import assert_no_spills, nvrtc_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import UserError, _core

FORMATS = {"nvfp4": 16, "mxfp4": 32, "int4": 32, "mxfp8": 32, "fp8_block": 128}


def stored(x, format):
    made = jf.quantize(x, format)
    return made.data, made.scales


def below_largest(x):
    """A row without its largest element: exact, in whatever order that is found."""
    wide = x.astype(jnp.float32)
    return wide - wide.max(-1, keepdims=True)


def rms_norm(x, w):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * w


def in_runs(x, run):
    return x.reshape(*x.shape[:-1], x.shape[-1] // run, run)


def numbers(*shape, dtype="float32"):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def facts(f, *arrays):
    return _core.facts(str(jf.ir.trace(f, *arrays)), _core.cuda_target_for(90))


@pytest.fixture(params=["loops", pytest.param("cuda", marks=pytest.mark.gpu)])
def run(request):
    """Run one kernel as its loops say, in numpy, and on CUDA where there is a device."""
    if request.param == "loops":
        yield lambda schedule, *arrays: loop_interpreter.run(schedule, *of_shapes(schedule, arrays))
        return
    try:
        found = jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("no cuda device on this machine")
    with jax.default_device(found):
        yield lambda schedule, *arrays: jf.ir.run(schedule, *of_shapes(schedule, arrays))


def of_shapes(schedule, arrays):
    fusion = schedule.fusion
    return [np.asarray(a).reshape(fusion.shape(name)) for a, name in zip(arrays, fusion.inputs, strict=True)]


def scheduled(f, *arrays, **parameters):
    return jf.ir.schedule(jf.ir.trace(f, *arrays), "reduction", "cuda", parameters or None)


def codes_of(made, want):
    """What a kernel stores, of the shape that the function returns; pairs of codes in bytes."""
    made = np.asarray(made)
    if want.dtype == np.uint8 and made.size == 2 * want.size:
        made = made.reshape(*want.shape[:-1], -1)
        made = made[..., 0::2] & 15 | made[..., 1::2] << 4
    return made.reshape(want.shape).view(want.dtype) if made.dtype.itemsize == want.dtype.itemsize else made


def assert_same(got, want):
    for made, exact in zip(got, want, strict=True):
        exact = np.asarray(exact)
        np.testing.assert_array_equal(codes_of(made, exact).view(np.uint8), exact.view(np.uint8))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("runs", [32, 45, 64])
@pytest.mark.parametrize("format", FORMATS)
def test_codes_are_those_of_two_kernels(run, format, runs, dtype):
    x = numbers(3, runs * FORMATS[format], dtype=dtype)
    x[0, 5] = -np.inf  # so that one run has no scale
    x[2, : FORMATS[format]] = 0
    f = lambda x: stored(below_largest(x), format)  # noqa: E731
    [kernel] = facts(f, x)
    assert kernel["strategy"] == "reduction"
    codes, scales = run(scheduled(f, x), x)
    want = f(jnp.asarray(x))
    scales = codes_of(scales, want[1])
    assert not np.isfinite(np.float32(scales[0, 0])) and not np.isfinite(np.float32(want[1][0, 0]))
    assert_same([codes_of(codes, want[0])[1:], scales[1:]], [part[1:] for part in want])
    codes, own = codes_of(codes, want[0])[0], want[0].shape[1] // runs
    assert_same([codes[own:], scales[0, 1:]], [want[0][0, own:], want[1][0, 1:]])


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8", "fp8_block"])
@pytest.mark.parametrize("keep", ["rows", "dear", "nothing"])
def test_any_parameters(run, format, keep):
    x = numbers(3, 40 * FORMATS[format], dtype="bfloat16")
    f = lambda x: stored(below_largest(x), format)  # noqa: E731
    want = f(jnp.asarray(x))
    for numbers_of in ((1, 32, 2, 8), (1, 64, 1, 16), (2, 16, 1, 8), (2, 48, 3, 4), (4, 8, 5, 2)):
        how = {"keep": keep, **dict(zip(("threads", "threads_y", "unroll", "lanes"), numbers_of, strict=True))}
        assert_same(run(scheduled(f, x, **how), x), want)


def test_a_norm_with_what_it_is_of(run):
    """The sum that is normed is stored, too."""
    x, y, w = (numbers(*shape, dtype="bfloat16") for shape in ((5, 1440), (5, 1440), (1440,)))

    def f(x, y, w):
        both = x + y
        return both, *stored(rms_norm(both, w), "mxfp8")

    [kernel] = facts(f, x, y, w)
    assert kernel["strategy"] == "reduction"
    both, codes, scales = run(scheduled(f, x, y, w), x, y, w)
    exact = np.asarray(x, np.float32) + np.asarray(y, np.float32)
    assert_close(np.asarray(both).reshape(x.shape), exact, "bfloat16")
    want = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6) * np.asarray(w, np.float32)
    factors = 2.0 ** (np.asarray(scales).view(np.uint8).astype(np.float64) - 127)
    got = codes_of(codes, np.zeros((5, 45, 32), jnp.float8_e4m3fn)).astype(np.float64) * factors.reshape(5, 45, 1)
    largest = np.abs(want.reshape(5, 45, 32)).max(-1, keepdims=True)
    assert (np.abs(got - want.reshape(5, 45, 32)) <= 2**-4 * np.abs(got) + 2**-9 * largest).all()


def test_several_folds_of_rows_and_of_runs(run):
    """Of whole rows before and after those of runs, and runs whose folds wait for each other."""
    x = numbers(4, 33 * 32)

    def f(x):
        y = in_runs(x - x.max(-1, keepdims=True), 32)
        largest = jnp.abs(y).max(-1, keepdims=True)
        shares = jnp.exp(y / largest)
        total = shares.sum((-1, -2), keepdims=True)
        mean = (shares / total).sum(-1)
        return shares / total, mean

    want = f(jnp.asarray(x, "float32"))
    [kernel] = facts(f, x)
    assert kernel["strategy"] == "reduction"
    for got, exact in zip(run(scheduled(f, x), x), want, strict=True):
        assert_close(np.asarray(got).reshape(exact.shape), np.asarray(exact), "float32")


def test_runs_and_rows_of_one_array(run):
    """Scales of runs under one of the row, none of which waits for the other: nvfp4 with a factor for each row."""
    x = numbers(3, 40 * 16, dtype="bfloat16")

    def f(x):
        y = in_runs(jnp.abs(x.astype(jnp.float32)), 16)
        factor = 1024 / y.max((-1, -2), keepdims=True)
        scales = jnp.floor(y.max(-1, keepdims=True) * factor) + 1
        return jnp.floor(y * factor / scales * 8), scales, factor

    [kernel] = facts(f, x)
    assert kernel["strategy"] == "reduction"
    for got, exact in zip(run(scheduled(f, x), x), f(jnp.asarray(x)), strict=True):
        # What a division rounds otherwise is another whole number.
        assert np.mean(np.asarray(got).reshape(exact.shape) != np.asarray(exact)) < 0.01


def random_function(seed):
    """Folds of rows and of runs, and what is computed from them; its arguments."""
    rng = random.Random(seed)
    run_length = rng.choice([16, 32, 64, 128])
    runs = rng.choice([n for n in (4, 8, 9, 20, 33, 48) if 512 <= n * run_length <= 4096])
    rows, columns = rng.choice([(3,), (2, 2), (5,)]), run_length * runs
    kinds = ["row", rng.choice(["with row", "run"]), "run"]
    kinds += [rng.choice(["row", "run", "run", "alone", "with row", "with run"]) for _ in range(rng.randint(4, 9))]
    script = [(kind, rng.random(), rng.random(), rng.random()) for kind in kinds]

    def f(x, w, y):
        whole = [x.astype(jnp.float32), y.astype(jnp.float32) * w.astype(jnp.float32)]
        of_rows, of_runs, results = [], [], []

        def one(values, share):
            return values[int(share * len(values))]

        for kind, a, b, c in script:
            v = one(whole, a)
            fold = one((jnp.max, lambda v, axis: jnp.sum(v, axis) / 64, jnp.min), b)
            if kind == "row":
                of_rows.append(fold(v, axis=-1))
                results += [of_rows[-1]] if c < 0.5 else []
            elif kind == "run":
                of_runs.append(fold(in_runs(v, run_length), axis=-1))
                results += [of_runs[-1]] if c < 0.4 else []
            elif kind == "alone":
                whole.append(one((v - one(whole, b), jnp.abs(v) + 1, jnp.tanh(v), v * 0.5), c))
            elif kind == "with row":
                r = one(of_rows, b)[..., None]
                whole.append(v - r if c < 0.5 else v / (1 + jnp.abs(r)))
            elif of_runs:
                s = one(of_runs, b) + (one(of_rows, a)[..., None] if c < 0.3 else 0)
                whole.append((in_runs(v, run_length) / (1 + jnp.abs(s[..., None]))).reshape(*rows, columns))
        results += [whole[-1], of_runs[-1], of_rows[-1]]
        return [value * (n + 2) for n, value in enumerate(results)]  # each another one

    numbers_of = np.random.default_rng(seed).normal
    dtype = rng.choice(["float32", "bfloat16"])
    return f, [jnp.asarray(numbers_of(size=shape), dtype) for shape in ((*rows, columns), (columns,), (*rows, columns))]


@pytest.mark.parametrize("seed", range(24))
def test_random_functions(run, seed):
    """As `evaluate` has them, where they are one kernel; the others compile."""
    f, arrays = random_function(seed)
    fusion = jf.ir.trace(f, *arrays)
    first, *others = jf.ir.propose(fusion, "cuda")
    if others:
        assert "reduction" in jf.ir.lower(fusion, "cuda").as_text("segments")
        return
    dtype = "float32" if arrays[0].dtype == jnp.float32 else "bfloat16"
    for got, want in zip(run(first, *arrays), jf.ir.evaluate(fusion, *arrays), strict=True):
        exact = np.asarray(want, np.float32)
        assert_close(np.asarray(got, np.float32).reshape(exact.shape), exact, dtype)


@pytest.mark.parametrize("seed", range(100, 105))
def test_random_sources_compile(seed):
    nvrtc_or_skip()
    f, arrays = random_function(seed)
    assert _core.compile_cuda(str(jf.ir.trace(f, *arrays)), _core.cuda_target_for(90))


def test_softmax_in_blocks(run):
    x = numbers(3, 1024)
    f = lambda x: stored(jax.nn.softmax(x, axis=-1), "fp8_block")  # noqa: E731
    [kernel] = facts(f, x)
    assert kernel["strategy"] == "reduction"
    codes, scales = run(scheduled(f, x), x)
    exact = np.asarray(jax.nn.softmax(x, axis=-1), np.float64).reshape(3, 8, 128)
    got = codes_of(codes, np.zeros((3, 8, 128), jnp.float8_e4m3fn)).astype(np.float64)
    got *= np.asarray(scales, np.float64).reshape(3, 8, 1)
    assert (np.abs(got - exact) <= 2**-4 * exact + 2**-9 * exact.max(-1, keepdims=True)).all()


@pytest.mark.parametrize("run_length, runs", [(8, 512), (24, 64), (512, 8), (32, 8), (32, 1024)], ids=lambda n: str(n))
def test_other_lengths_have_kernels_of_their_own(run_length, runs):
    """Short and long runs or rows, and runs that no power of two threads have."""
    x = jax.ShapeDtypeStruct((64, runs * run_length), jnp.float32)
    f = lambda x: in_runs(below_largest(x), run_length).max(-1)  # noqa: E731
    assert len(facts(f, x)) == 2


def test_values_on_devices(device):
    """Through jf.fuse, as users have it: CPUs in kernels of their own."""
    x, w = jnp.asarray(numbers(70, 768, dtype="bfloat16")), jnp.asarray(numbers(768, dtype="bfloat16"))
    for format in ("nvfp4", "mxfp8", "fp8_block"):
        made = jf.fuse(lambda x, w, format=format: jf.quantize(rms_norm(x, w), format))(x, w)
        exact = np.asarray(rms_norm(x.astype("float32"), w.astype("float32")), np.float64)
        step = {"nvfp4": 0.25, "mxfp8": 2**-4, "fp8_block": 2**-4}[format]
        blocks = np.abs(in_runs(exact, FORMATS[format])).max(-1, keepdims=True) * np.ones(FORMATS[format])
        got = np.asarray(jf.dequantize(made), np.float64)
        near = step * np.abs(exact) + {"nvfp4": 0.13}.get(format, 2**-8) * blocks.reshape(exact.shape)
        assert (np.abs(got - exact) <= near).all(), format


def test_parameters_that_do_not_fit_are_refused():
    x = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
    fusion = jf.ir.trace(lambda x: stored(below_largest(x), "mxfp8"), x)
    with pytest.raises(UserError, match=r"\[reduction\] along: runs of rows are folded by themselves; expected runs"):
        jf.ir.schedule(fusion, "reduction", "cuda", {"along": "row"})
    with pytest.raises(UserError, match="lane_loop: loop 1 is not that of a run"):
        jf.ir.schedule(fusion, "reduction", "cuda", {"lane_loop": 1})
    rows = jf.ir.trace(lambda x: x.max(-1), x)
    with pytest.raises(UserError, match="no run of a row is folded by itself"):
        jf.ir.schedule(rows, "reduction", "cuda", {"along": "runs"})
    with pytest.raises(UserError, match="along: expected row, rows, columns or runs, got 'run'"):
        jf.ir.schedule(rows, "reduction", "cuda", {"along": "run"})


@pytest.mark.parametrize("columns", [2048, 5120, 7168, 16384])
@pytest.mark.parametrize("format", ["nvfp4", "mxfp8", "fp8_block"])
def test_sources_compile_without_spills(format, columns, tmp_path):
    nvrtc_or_skip()
    for dtype in ("bfloat16", "float32"):
        x, w = jax.ShapeDtypeStruct((4096, columns), dtype), jax.ShapeDtypeStruct((columns,), dtype)
        fusion = jf.ir.trace(lambda x, w: stored(rms_norm(x, w), format), x, w)
        assert jf.ir.compute_heuristics(fusion, "reduction", "cuda")["keep"] == "rows"
        assert_no_spills(str(fusion), tmp_path)
