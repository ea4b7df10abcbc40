"""8-bit floats in fused functions: every number of 16 bits as XLA rounds it, views of them, and what is left to XLA."""

import jax
import jax.numpy as jnp
import loop_interpreter
import ml_dtypes
import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip

import jax_fuser as jf
from jax_fuser import _core, _quant, _reciprocal

FORMATS = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
NUMBERS = np.arange(65536, dtype=np.uint16)


def assert_same(got, want):
    """Equal bits, and NaN where NaN is wanted: those have signs and bits of the machine's."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape
    nan = np.isnan(want.astype(np.float32))
    assert np.isnan(got.astype(np.float32))[nan].all()
    kind = f"uint{8 * want.dtype.itemsize}"
    np.testing.assert_array_equal(got.view(kind)[~nan], want.view(kind)[~nan])


@pytest.mark.parametrize("dtype", FORMATS)
def test_conversions_are_those_of_ml_dtypes(device, dtype):
    """Of all 16-bit floats, of f32 near every rounding boundary, and back."""
    rng = np.random.default_rng(0)
    wide = np.concatenate([rng.integers(0, 2**32, 2**15, np.uint32), NUMBERS.astype(np.uint32) << 16])
    wide = np.concatenate([wide + np.uint32(step) for step in (0, 1, 2**32 - 1)]).view(np.float32)
    half, short = NUMBERS.view(np.float16), NUMBERS.view(ml_dtypes.bfloat16)
    every = np.arange(256, dtype=np.uint8).view(dtype)

    def convert(half, short, wide, every, count, flag):
        back = (every.astype(kind) for kind in (jnp.float32, jnp.bfloat16, jnp.float16))
        return *(x.astype(dtype) for x in (half, -short, wide, count, flag)), *back

    count, flag = np.arange(-600, 600, dtype=np.int32), np.arange(300) % 3 == 0
    arguments = half, short, wide, every, count, flag
    results = jf.ir.run(jf.ir.trace(convert, *arguments), *arguments)  # fuse leaves lone casts to XLA
    with np.errstate(all="ignore"):
        for got, of in zip(results, (half, -short, wide, count, flag)):
            assert_same(got, of.astype(np.float32).astype(dtype))
        for got in results[5:]:
            assert_same(got, every.astype(np.float32).astype(got.dtype))


@pytest.mark.parametrize("dtype", FORMATS)
def test_views_of_8_bit_floats(device, dtype):
    x = jnp.asarray(np.random.default_rng(1).normal(size=(24, 70)) * 30, "float32")
    y, rows = x.astype(dtype), jnp.array([3, 0, 23, 7])

    def move(x, y, rows):
        small = x.astype(dtype)
        joined = jnp.concatenate([small[:, ::2].T, y.T[:9]], axis=0)
        padded = jnp.pad(y, ((1, 2), (0, 3))).reshape(27, 73, 1)
        chosen = jnp.where(x[rows] > 0, y[rows], small[rows])
        return joined, padded, chosen, jax.lax.bitcast_convert_type(small, jnp.uint8) + jnp.uint8(1)

    got, want = jf.fuse(move)(x, y, rows), move(x, y, rows)
    for a, b in zip(got, want):
        assert_same(a, b) if a.dtype == dtype else np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", FORMATS)
def test_cuda_loops_of_8_bit_floats(dtype):
    """Without a GPU: conversions, choices and a transpose, as the loops of their kernels say."""
    wide = np.random.default_rng(5).normal(size=(24, 70)).astype(np.float32) * 300
    given = {"x": wide, "y": wide[::-1].astype(dtype)}

    def f(x, y):
        small = x.astype(dtype)
        return small, y.astype(jnp.float32) + x, jnp.where(x > 0, y, small), (x * 3).astype(dtype).T

    fusion = jf.ir.trace(f, *given.values())
    for schedule in jf.ir.propose(fusion, "cuda"):
        results = loop_interpreter.run(schedule, *(given[name] for name in schedule.fusion.inputs))
        given |= dict(zip(schedule.fusion.outputs, results, strict=True))
    for got, want in zip((given[name] for name in fusion.outputs), f(*map(jnp.asarray, (wide, given["y"])))):
        assert_same(got, want) if got.dtype == dtype else np.testing.assert_array_equal(got, want)


def test_arithmetic_of_8_bit_floats_stays_with_xla():
    x = jnp.linspace(-2, 2, 64).astype(jnp.float8_e4m3fn)
    text = str(jf.explain(lambda x: (x + x) * x)(x))
    assert "computes with float8_e4m3fn" in text
    assert_same(jf.fuse(lambda x: (x + x).astype(jnp.float32) * 2)(x), (x + x).astype(jnp.float32) * 2)
    with jax.enable_x64(True):
        assert "rounds float64 to float8_e5m2" in str(
            jf.explain(lambda x: x.astype(jnp.float8_e5m2))(np.linspace(0, 1, 64))
        )


def test_reciprocals_are_rounded_to_nearest(device):
    rng = np.random.default_rng(2)
    bits = rng.integers(1 << 23, 252 << 23, 40000, np.uint32)
    x = np.concatenate([bits.view(np.float32), np.float32([1, 3, np.inf, np.nan, 2.0**-126, 0.1])])
    want = np.float32(1) / x
    for f in (jf.fuse(lambda x: _reciprocal.reciprocal(x)), jax.jit(_reciprocal.reciprocal), _reciprocal.by_steps):
        np.testing.assert_array_equal(np.asarray(f(x)), want)
    fractions = np.arange(127 << 23, 128 << 23, dtype=np.uint32).view(np.float32)  # all there are
    np.testing.assert_array_equal(jf.fuse(lambda x: _reciprocal.reciprocal(x))(fractions), np.float32(1) / fractions)


@pytest.mark.parametrize(("dtype", "block"), [("float8_e4m3fn", (None,)), ("float8_e5m2", (128,))])
def test_a_function_that_quantizes_is_one_kernel(device, dtype, block):
    """The scales of what is computed; blocks with a NaN or an infinity are NaN."""
    rng = np.random.default_rng(3)
    gate, up = (jnp.asarray(rng.normal(size=(70, 384)), "bfloat16") for _ in range(2))
    gate = gate.at[3, 5].set(jnp.nan).at[4].set(0).at[5, 200].set(jnp.inf).at[6, 7].set(-1e38)
    format = "fp8_row" if block == (None,) else "fp8_block"

    def quantized(gate, up):
        h = (jax.nn.relu(gate.astype(jnp.float32)) * up).astype(jnp.bfloat16)
        made = jf.quantize(h, format, dtype=dtype)
        return made.data, made.scales

    f = jf.fuse(quantized)
    assert str(jf.explain(f)(gate, up)).count(": reduction ") == 1 and "1 fused call\n" in str(jf.explain(f)(gate, up))
    data, scales = (np.asarray(x).astype(np.float32) for x in f(gate, up))
    bad = 384 if block == (None,) else 128
    assert np.isnan(data[3]).sum() == bad and np.isnan(scales[3]).any() and (data[4] == 0).all()
    assert np.isinf(scales[5]).sum() == 1 and np.isnan(data[5]).sum() == 1
    for got, want in zip((data, scales), quantized(gate, up)):  # XLA's maximum on the CPU may lose a NaN
        np.testing.assert_array_equal(np.delete(got, 3, 0), np.delete(np.asarray(want, np.float32), 3, 0))
    with pytest.raises(TypeError, match="has no derivative"):
        jax.grad(lambda g: f(g, up)[1].sum())(gate.astype(jnp.float32))


@pytest.mark.parametrize(
    ("format", "dtype", "block"),
    [("fp8_row", "float8_e5m2", (None,)), ("fp8_block", "float8_e4m3fn", (128, 128))],
)
def test_large_arrays_are_quantized_by_kernels(device, format, dtype, block):
    x = jnp.asarray(np.random.default_rng(4).normal(size=(2, 300, 256)), "bfloat16")
    assert x.size >= _quant.MANY
    quantize = jax.jit(lambda x: jf.quantize(x, format, dtype=dtype, block=block))
    assert "jax_fuser.program" in quantize.lower(x).as_text()
    got, want = quantize(x), jax.jit(lambda x: _quant.quantize_floats(x, dtype, block))(x)
    assert_same(got.data, want[0])
    np.testing.assert_array_equal(got.scales, want[1])


@pytest.mark.parametrize("capability", [80, 90])
def test_cuda_sources_compile(capability):
    """Vectors, single elements and pairs of both formats."""
    nvrtc_or_skip()

    def f(x, y):
        return x.astype(jnp.float8_e4m3fn), y.astype(jnp.float32) + x, (x * 3).astype(jnp.float8_e5m2).T

    shape = jax.ShapeDtypeStruct((64, 96), jnp.float32), jax.ShapeDtypeStruct((64, 96), jnp.float8_e5m2)
    program = str(jf.ir.trace(f, *shape))
    target = _core.cuda_target_for(capability)
    assert len(_core.compile_cuda(program, target)) >= 1
    if capability == 90:
        assert "F2FP" in _core.sass(program, target)
