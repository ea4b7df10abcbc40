"""Weights of four bits: what quantization stores, the order of packed weights, and products with them."""

import re

import grouped_reference as ref
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip, resources
from test_grouped_hopper import EDGES, sass
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _ffi, _fp4, _packed_matmul, _packed_weights, _trace, _tuned

FORMATS = [("nvfp4", 16), ("mxfp4", 32), ("int4", 32), ("int4", 64), ("int4", 128)]
rng = np.random.default_rng(0)


def weights(groups, n, k, format, block, **options):
    spread = np.exp2(rng.integers(-6, 7, (groups, n, 1)))
    return jf.quantize(jnp.asarray(rng.normal(size=(groups, n, k)) * spread, jnp.float32), format, block=(block,),
                       **options)  # fmt: skip


def test_e2m1_rounds_as_ml_dtypes_does():
    x = np.concatenate([rng.normal(size=4000) * 3, np.linspace(-8, 8, 1025), [0.0, -0.0, 1e9, -1e9]]).astype(np.float32)
    codes = np.asarray(_fp4.to_e2m1(jnp.asarray(x)))
    want = x.astype(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(codes, want.view(np.uint8) & 15)
    np.testing.assert_array_equal(np.asarray(_fp4.from_e2m1(jnp.asarray(codes))), want.astype(np.float32))


@pytest.mark.parametrize("gain", [None, 448 * 6 / 5.0])
def test_nvfp4_is_the_recipe_with_rounded_scales_bit_by_bit(gain):
    """In numpy and ml_dtypes, with blocks of zeros, of tiny and of huge numbers, and one with a NaN."""
    x = rng.normal(size=(64, 64)).astype(np.float32)
    x[0], x[1], x[2], x[3, :16] = 0, x[1] * 1e-7, x[2] * 1e6, 0
    x[4, 3] = np.nan
    got = jf.quantize(jnp.asarray(x), "nvfp4", global_scale=gain)
    blocks = x.reshape(64, 4, 16)
    with np.errstate(all="ignore"):
        scale = np.abs(blocks).max(-1) / np.float32(6) * np.float32(1 if gain is None else gain)
        scales = np.where(scale > 448, np.float32(448), scale).astype(ml_dtypes.float8_e4m3fn)
        inverse = np.float32(1) if gain is None else np.float32(1) / np.float32(gain)
        factor = np.minimum(np.float32(1) / (scales.astype(np.float32) * inverse), np.finfo(np.float32).max)
        codes = (blocks * factor[..., None]).astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(64, 64) & 15
    np.testing.assert_array_equal(np.asarray(got.scales).view(np.uint8), scales.view(np.uint8))
    of_numbers = np.delete(np.arange(64), 4)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    np.testing.assert_array_equal(np.asarray(got.data)[of_numbers], packed[of_numbers])
    wide = np.asarray(jf.dequantize(got))
    assert np.isnan(wide[4, :16]).all() and np.isfinite(wide[4, 16:]).all() and not wide[0].any()
    assert_close(wide[5:], x[5:], scale=1e4)


def test_mxfp4_scales_are_powers_of_two_that_no_value_exceeds():
    x = rng.normal(size=(40, 96)).astype(np.float32) * np.exp2(rng.integers(-100, 100, (40, 1))).astype(np.float32)
    x[0], x[1, 0] = 0, np.nan
    got = jf.quantize(jnp.asarray(x), "mxfp4")
    scales = np.asarray(got.scales).astype(np.float32)
    most = np.abs(x.reshape(40, 3, 32)).max(-1)
    assert np.isnan(scales[1, 0]) and (most[2:] <= 6 * scales[2:]).all() and (most[2:] > 2.99 * scales[2:]).all()
    want = (x[2:].reshape(38, 3, 32) / scales[2:, :, None]).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(jf.dequantize(got))[2:], (want * scales[2:, :, None]).reshape(38, 96))


@pytest.mark.parametrize("block", [32, 64, 128])
def test_int4_is_within_half_a_scale(block):
    x = rng.normal(size=(20, 256)).astype(np.float32)
    x[0] = 0
    got = jf.quantize(jnp.asarray(x), "int4", block=(block,))
    assert got.shape == (20, 256) and got.scales.dtype == jnp.bfloat16
    error = np.abs(np.asarray(jf.dequantize(got)) - x).reshape(20, -1, block).max(-1)
    assert (error <= 0.55 * np.asarray(got.scales).astype(np.float32)).all()


@pytest.mark.parametrize(
    ("format", "block", "n", "k"), [(*f, 200, 128) for f in FORMATS] + [("nvfp4", 16, 8, 384), ("int4", 128, 8, 384)]
)
def test_packed_weights_hold_the_same_values(format, block, n, k):
    w = weights(2, n, k, format, block, **({"global_scale": 300.0} if format == "nvfp4" else {}))
    packed = jf.repack_weights(w)
    assert packed.shape == (2, n, k)
    want = np.asarray(jf.dequantize(w))
    if format == "int4":
        want = want.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(_packed_weights.unpack_weights(packed, jnp.float32)), want)


def test_packed_weights_keep_every_code_and_scale():
    """All pairs of a code and a scale, negative scales, zeros and NaN among them; -8 of int4."""
    scales = np.arange(256, dtype=np.uint8)
    codes = np.tile(np.arange(16, dtype=np.uint8), (1, 256, 16))
    data = jnp.asarray(codes[..., 0::2] | codes[..., 1::2] << 4)
    for format, block, dtype in (("nvfp4", 16, jnp.float8_e4m3fn), ("mxfp4", 32, jnp.float8_e8m0fnu)):
        stored = jnp.asarray(np.tile(scales[None, :, None], (1, 1, 256 // block))).view(dtype)
        if format == "mxfp4":  # no farther apart than bf16 reaches
            stored = stored.at[:, :130].set(stored[:, 130:131])
        w = jf.ScaledTensor(data, stored, None, format, (block,))
        got = np.asarray(_packed_weights.unpack_weights(jf.repack_weights(w), jnp.float32))
        want = np.asarray(jf.dequantize(w))
        far = np.abs(want) > 3e38 if format == "mxfp4" else np.zeros(want.shape, bool)
        np.testing.assert_array_equal(got[~far], want[~far])
    w = jf.ScaledTensor(data, jnp.full((1, 256, 8), 0.5, jnp.bfloat16), None, "int4", (32,))
    assert jf.dequantize(w).min() == -4
    np.testing.assert_array_equal(np.asarray(_packed_weights.unpack_weights(jf.repack_weights(w), jnp.float32)),
                                  np.asarray(jf.dequantize(w)))  # fmt: skip


def test_scales_of_int4_are_relative_to_the_largest_of_a_group():
    """Within 2^120 of it they are exact, also negative; smaller ones become zero, those that no factor reaches NaN."""
    data = jnp.asarray(np.tile(np.arange(16, dtype=np.uint8) * 17, (2, 6, 1)))
    scales = np.array([[1.5 * 2.0**100, -(2.0**99), 1.25 * 2.0**-20, 1.75 * 2.0**-21, 0, np.nan],
                       [1, -0.0, 2.0**-126, -1.5 * 2.0**-120, np.inf, 1.5 * 2.0**122]])  # fmt: skip
    w = jf.ScaledTensor(data, jnp.asarray(scales[..., None], jnp.bfloat16), 2.0, "int4", (32,))
    packed = jf.repack_weights(w)
    assert np.isfinite(packed.factors).all()
    want = scales.copy()
    want[0, 3], want[1, 2], want[1, 4:] = 0, 0, np.nan
    codes = np.repeat((np.arange(16) ^ 8) - 8, 2)
    np.testing.assert_array_equal(np.asarray(_packed_weights.unpack_weights(packed, jnp.float32)),
                                  (want[..., None] * 2.0 * codes).astype(np.float32))  # fmt: skip


def multiply(x, w, extents, starts=None, dtype=jnp.float32):
    run = jax.jit(lambda x, e, s: _packed_matmul.packed_product(x, w, e, s, dtype=dtype))
    return run(x, jnp.asarray(extents, jnp.int32), None if starts is None else jnp.asarray(starts, jnp.int32))


def truth(x, w, extents, starts=None):
    wide = np.asarray(jf.dequantize(w)).astype(ml_dtypes.bfloat16).astype(np.float64)
    return ref.rows(np.asarray(x).astype(np.float64), wide.swapaxes(1, 2), extents, starts)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("format", "block"), FORMATS[:4])
def test_ragged_edges(edge, format, block, device):
    """Padding rows hold NaN; sizes fit no tile."""
    if device.platform == "cpu" and format != "nvfp4":
        pytest.skip("unpacked, all formats are one product")
    if device.platform == "cpu" and edge in ("first and last empty", "all in one", "one group", "odd"):
        pytest.skip("the product of arrays has been tested")
    extents, starts = EDGES[edge]
    m, k, n = 700, 192, 136
    w = weights(len(extents), n, k, format, block)
    x = np.asarray(rng.normal(size=(m, k)), ml_dtypes.bfloat16)
    want = truth(x, w, extents, starts)
    x[~ref.owned_rows(extents, m, starts)] = np.nan
    got = multiply(jnp.asarray(x), jf.repack_weights(w), extents, starts)
    assert_close(got, want, dtype="float32", scale=2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("m", [40, 80, 130, 200, 560, 1500])
def test_every_tile(m, dtype, device):
    """One group has most rows, one none, and the rows of every tile's height occur."""
    if device.platform == "cpu" and m > 40:
        pytest.skip("tiles are those of the kernel")
    groups, k, n = 6, 320, 264
    extents = [m // 2, 0, m // 8, 1, m // 4, 3]
    w = weights(groups, n, k, "nvfp4", 16, global_scale=77.0)
    x = jnp.asarray(rng.normal(size=(m, k)), jnp.bfloat16)
    wide = np.asarray(jf.dequantize(w)).astype(np.float64)
    want = ref.rows(np.asarray(x).astype(np.float64), wide.swapaxes(1, 2), extents, None)
    # Without a kernel the factor is part of the weights, which are rounded to bfloat16.
    assert_close(multiply(x, jf.repack_weights(w), extents, dtype=dtype), want, dtype=dtype,
                 scale=1 if dtype == jnp.bfloat16 else 200)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("m", [40, 80, 200, 560, 1500])
def test_every_tile_of_products_that_sum_over_columns(m):
    device, groups, k, n = hopper_or_skip(), 6, 320, 264
    extents = [m // 2, 0, m // 8, 1, m // 4, 3]
    w = weights(groups, n, k, "mxfp4", 32)
    dy = jnp.asarray(rng.normal(size=(m, n)), jnp.bfloat16)
    want = ref.rows(np.asarray(dy).astype(np.float64), np.asarray(jf.dequantize(w)).astype(np.float64), extents, None)
    with jax.default_device(device):
        packed = jax.device_put(jf.repack_weights(w), device)
        multiply_rows = jax.jit(lambda x: multiply(x, packed, extents, dtype=jnp.bfloat16))
        [got] = jax.vjp(multiply_rows, jnp.zeros((m, k), jnp.bfloat16))[1](dy)
    assert_close(got, want, dtype="bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("m", [200, 3000])
def test_many_groups_and_tiles_on_hopper(m):
    """Every block takes several tiles, its share of them where rows are few, else from a queue."""
    device, groups, k, n = hopper_or_skip(), 40, 192, 1152
    extents = rng.multinomial(m - 10, rng.dirichlet(np.full(groups, 0.3)))
    w = weights(groups, n, k, "mxfp4", 32)
    x = np.asarray(rng.normal(size=(m, k)), ml_dtypes.bfloat16)
    want = truth(x, w, extents)
    x[-10:] = np.nan
    with jax.default_device(device):
        packed = jax.device_put(jf.repack_weights(w), device)
        assert_close(multiply(jnp.asarray(x), packed, extents), want, dtype="float32", scale=2)


def test_a_nan_stays_in_its_group(device):
    w = weights(3, 64, 64, "mxfp4", 32)
    scales = w.scales.view(jnp.uint8).at[1, 5, 0].set(255).view(jnp.float8_e8m0fnu)
    w = jf.ScaledTensor(w.data, scales, None, "mxfp4", (32,))
    got = multiply(jnp.ones((9, 64), jnp.bfloat16), jf.repack_weights(w), [4, 2, 3])
    bad = np.isnan(np.asarray(got))
    assert bad[4:6, 5].all() and bad.sum() == 2


def test_public_product_takes_arrays_and_nested_tensors_and_differentiates():
    w = weights(3, 40, 64, "mxfp4", 32)
    x = jnp.asarray(rng.normal(size=(20, 64)), jnp.float32)
    sizes = jnp.array([5, 0, 11])
    dense = jnp.swapaxes(jf.dequantize(w), 1, 2)
    want = jf.grouped_matmul(x, dense, sizes)
    packed = jf.repack_weights(w)
    f32 = {"preferred_element_type": jnp.float32}
    assert_close(jf.scaled_grouped_matmul(x, packed, sizes, **f32), want)
    assert_close(jf.scaled_grouped_matmul(x, w, sizes, **f32), want)
    nested = jf.as_nested(x, extents=[5, 0, 11])
    assert_close(jf.scaled_grouped_matmul(nested, packed, **f32).data, want)
    assert jf.scaled_grouped_matmul(x.astype(jnp.bfloat16), packed, sizes).dtype == jnp.bfloat16

    def loss(multiply):
        return jax.grad(lambda x: (multiply(x) ** 2).sum())(x)

    got = loss(lambda x: jf.scaled_grouped_matmul(x, packed, sizes, **f32))
    assert_close(got, loss(lambda x: jf.grouped_matmul(x, dense, sizes)), scale=2)
    batch = jnp.stack([x, -x])
    got = jax.vmap(lambda x: jf.scaled_grouped_matmul(x, packed, sizes, validate=False, **f32))(batch)
    assert_close(got, jnp.stack([want, -want]))
    got = jax.vmap(lambda x, s: jf.scaled_grouped_matmul(x, packed, s, validate=False, **f32))(
        batch, jnp.stack([sizes, sizes[::-1]])
    )
    assert_close(got[1], -jf.grouped_matmul(x, dense, sizes[::-1]))


@pytest.mark.parametrize("format", ["int4", "mxfp4", "nvfp4"])
@pytest.mark.parametrize(("n", "k"), [(64, 0), (0, 128)])
def test_weights_without_elements(format, n, k):
    """Products of no terms are zero, and what follows is of zeros; products of no columns have none."""
    w = jf.repack_weights(jf.quantize(jnp.ones((3, n, k)), format))
    assert w.shape == (3, n, k)

    def swiglu(x, bias):
        return jf.scaled_grouped_matmul(
            x, w, jnp.array([2, 0, 1]), bias=bias, activation="swiglu", preferred_element_type=jnp.float32
        )

    x, bias = jnp.ones((4, k)), jnp.full((3, n), 2.0)
    want = np.full((4, n // 2), 2 * 2 / (1 + np.exp(-2.0)))
    want[3] = 0
    assert_close(swiglu(x, bias), want)
    to_x, to_bias = jax.grad(lambda *args: swiglu(*args).sum(), (0, 1))(x, bias)
    np.testing.assert_array_equal(to_x, np.zeros((4, k)))
    assert to_bias.shape == (3, n) and np.all(np.asarray(to_bias[1]) == 0)


def product_with(value, global_scale=None, x=None, **options):
    x = jnp.full((4, 32), value) if x is None else x
    w = jf.quantize(jnp.ones((2, 8, 32)), "nvfp4")
    w = jf.ScaledTensor(w.data, w.scales, global_scale, "nvfp4", (16,))
    return jf.scaled_grouped_matmul(x, w, jnp.array([1, 1]), **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jf.quantize(jnp.ones((4, 40)), "nvfp4"), ValueError, "the last axis must be a multiple of the block"),
        (lambda: jf.quantize(jnp.ones((4, 64)), "int4", block=(16,)), ValueError, "int4 has blocks"),
        (lambda: jf.quantize(jnp.ones((4, 64)), "mxfp4", global_scale=2.0), ValueError, "global_scale= is for nvfp4"),
        (lambda: jf.repack_weights(jf.quantize(jnp.ones((2, 4, 32)), "fp8_row")), TypeError, "got fp8_row"),
        (
            lambda: jax.grad(lambda g: product_with(1.0, global_scale=g).sum())(2.0),
            TypeError,
            "repack_weights: has no derivative in the scales of nvfp4",
        ),
        (lambda: product_with(1.0, preferred_element_type="float64"), TypeError, "must be one of .*, got 'float64'"),
        (
            lambda: jax.eval_shape(
                jax.vmap(lambda x: product_with(1.0, x=x)), jax.ShapeDtypeStruct((1 << 29, 4, 32), "f4")
            ),
            ValueError,
            r"vmap of 536870912 x 4 rows exceeds 2\*\*31-1",
        ),
        (lambda: product_with(1.0, bias=jnp.ones((2, 4))), ValueError, r"bias must be \(groups, n\)=\(2, 8\)"),
        (lambda: product_with(1.0, row_scale=jnp.ones(3)), ValueError, r"one value per row \(4,\), got \(3,\)"),
        (
            lambda: product_with(1.0, transpose_rhs=False),
            ValueError,
            r"got transpose_rhs=False; leave it out, and quantize jnp.swapaxes\(weights, 1, 2\)",
        ),
        (lambda: product_with(1.0, activation="tanh"), ValueError, "activation 'tanh' is unknown"),
        (
            lambda: product_with(1.0, activation=lambda x: x.sum(1)),
            ValueError,
            r"scaled_grouped_matmul: activation must return an array of the shape that it gets, \(4, 8\), got \(4,\)",
        ),
        (
            lambda: jf.grouped_matmul(
                jnp.ones((4, 2)), jnp.ones((1, 2, 8)), group_sizes=[4], activation=lambda x: (x,)
            ),
            ValueError,
            r"grouped_matmul: activation must return an array of the shape that it gets, \(4, 8\), got tuple",
        ),
        (lambda: product_with(jnp.float8_e4m3fn(1)), TypeError, "float8_e4m3fn x nvfp4 not supported"),
        (lambda: jf.repack_weights(jf.quantize(jnp.ones((4, 32)), "mxfp4")), ValueError, r"\(groups, n, k\), got"),
        (
            lambda: jf.scaled_grouped_matmul(
                jnp.ones((4, 48)), jf.quantize(jnp.ones((2, 8, 32)), "mxfp4"), jnp.array([1, 1])
            ),
            ValueError,
            r"need lhs \(m, 32\) and group_sizes \(2,\), got \(4, 48\) and \(2,\)",
        ),
    ],
)
def test_errors_say_what_fits(call, error, message):
    with pytest.raises(error, match=message):
        call()


def program(weights, m, dtype="bf16", starts=False, groups=4, k=192, n=136, transpose_rhs=True):
    words = 512 + (64 if weights in ("nvfp4", "int4x32") else 32)
    sides = (n, k) if transpose_rhs else (k, n)
    pieces = (groups, *(-(-side // 64) for side in sides), words)
    types = [("bf16", (m, k)), ("u32", pieces), ("f32", (groups,)), ("s32", (groups,))]
    return _packed_matmul._program((*types, *types[3:] * starts), weights, n, dtype, transpose_rhs)


HOPPER = _core.cuda_target_for(90)


@pytest.mark.parametrize(
    ("weights", "m", "dtype", "starts", "tile"),
    [
        ("mxfp4", 20, "bf16", False, "tile=16x128 stages=8 blocks=2 units=shared"),
        ("nvfp4", 60, "f32", True, "tile=32x128 stages=5 blocks=2"),
        ("int4x32", 90, "bf16", False, "tile=64x128 stages=4 blocks=2"),
        ("int4x64", 400, "f16", True, "tile=96x128 stages=3 blocks=2"),
        ("nvfp4", 1000, "bf16", False, "tile=256x128 stages=5 blocks=1"),
    ],
)
def test_kernels_decode_into_operands_of_products(weights, m, dtype, starts, tile, tmp_path):
    """Products take their first operand from registers; nothing spills, and the compiler lets products overlap."""
    text = program(weights, m, dtype, starts)
    [facts] = _core.facts(text, HOPPER)
    assert tile in facts["parameters"] and f"{weights.split('x3')[0].split('x6')[0]} weights" in facts["parameters"]
    nvrtc_or_skip()
    [(_, _, cubin)] = _core.compile_cuda(text, HOPPER)
    [used] = resources(cubin, tmp_path / "kernel.cubin")
    # Rows of 96 want two registers more outside of the loops.
    assert used["LOCAL"] == 0 and used["STACK"] <= 8 * ("tile=96" in tile) and used["REG"] <= 168
    lines = sass(tmp_path / "kernel.cubin")
    products = re.findall(r"HGMMA\.64x\d+x16\.F32\.BF16 R\d+, (\w+)", lines)
    assert len(products) >= 8 and all(operand.startswith("R") for operand in products)
    assert "UBLKCP" in lines and "UTMALDG" in lines
    # One scale for both of a pair is half a register, not one made for it.
    half = r"R\d+(\.reuse)?\.H0_H0"
    assert re.search(rf"HMUL2\.BF16_V2 R\d+, R\d+, {half}|HFMA2\.BF16_V2 R\d+, R\d+, {half}, {half}", lines)
    assert_overlapping(facts, lines)


def compiled(text, tmp_path, stack=0):
    """Facts, registers and instructions of a program of one kernel; no more than so many bytes spill."""
    [facts] = [f for f in _core.facts(text, HOPPER) if f["strategy"] != "empty"]
    nvrtc_or_skip()
    [(_, _, cubin)] = _core.compile_cuda(text, HOPPER)
    [used] = resources(cubin, tmp_path / "kernel.cubin")
    assert used["LOCAL"] == 0 and used["STACK"] <= stack
    return facts, used, sass(tmp_path / "kernel.cubin")


def assert_overlapping(facts, lines):
    """Products that wait for each other would meet at a barrier of their own after each. Of tiles of 96 rows, those of
    32 begin in pairs and the other two thirds one by one."""
    products, share = lines.count("HGMMA.64x"), 5 / 6 if "tile=96" in facts["parameters"] else 1 / 2
    assert products >= 8 and len(re.findall(r"WARPGROUP\.ARRIVE", lines)) <= products * share


@pytest.mark.parametrize(("weights", "m"), [("mxfp4", 20), ("nvfp4", 150), ("int4x32", 300), ("int4x64", 1000)])
def test_products_that_sum_over_columns_turn_weights_in_registers(weights, m, tmp_path):
    facts, _, lines = compiled(program(weights, m, k=136, n=192, transpose_rhs=False), tmp_path)
    assert "weights in registers" in facts["parameters"]
    assert_overlapping(facts, lines)
    assert "MOVM.16.MT88" in lines


@pytest.mark.parametrize("transpose_rhs", [True, False])
def test_other_tiles_may_be_chosen(transpose_rhs, tmp_path):
    """By `autotune`: each is one kernel, whose products overlap."""
    text = program("mxfp4", 60, transpose_rhs=transpose_rhs, k=256, n=256)
    [(kernel, now, others)] = _core.alternatives(text, HOPPER)
    assert now == "tile_m=32" and others == [f"tile_m={rows}" for rows in (16, 32, 64, 96, 128, 256)]
    for other in others:
        facts, _, lines = compiled(text + _tuned.text_of({kernel: other}), tmp_path, stack=16)
        assert f"tile={other.removeprefix('tile_m=')}x128" in facts["parameters"]
        assert_overlapping(facts, lines)
    for wrong in ("tile_m=48", "tile_n=64", "tile_m=64 stages=3"):
        with pytest.raises(jf.UserError, match=f"expected tile_m of 16, 32, .* got .*{wrong.split()[-1]}"):
            _core.stages(text + _tuned.text_of({kernel: wrong}), HOPPER)


def fused_programs(f, *args):
    """The programs that a fused function becomes."""
    texts = []

    def visit(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == _trace.FUSED:
                texts.append(_trace.write_program(eqn.params["jaxpr"].jaxpr, "fused")[0].text)
            for value in eqn.params.values():
                for part in value if isinstance(value, (tuple, list)) else (value,):
                    inner = getattr(part, "jaxpr", part)
                    if hasattr(inner, "eqns"):
                        visit(inner)

    visit(jax.make_jaxpr(f)(*args).jaxpr)
    return texts


def gated(x, w, sizes, bias=None, scale=None):
    return jf.scaled_grouped_matmul(x, w, sizes, bias=bias, activation="swiglu", row_scale=scale, validate=False)


@pytest.mark.parametrize("m", [20, 45, 60, 120, 1000])
def test_a_gated_product_is_one_kernel(m, tmp_path):
    """With bias and row scale, and an array added; gate and up of every tile overlap as without."""
    w = jf.repack_weights(weights(3, 128, 64, "nvfp4", 16))
    x, sizes = jnp.zeros((m, 64), jnp.bfloat16), jnp.array([1, 2, 3])
    added = jnp.zeros((m, 64), jnp.bfloat16)
    args = (x, jnp.ones((3, 128)), jnp.ones(m), added)
    [text] = fused_programs(jf.fuse(lambda x, b, s, y: gated(x, w, sizes, b, s) + y), *args)
    # All of them in tiles of 64 and 96 rows want registers more outside of the loops.
    facts, _, lines = compiled(text, tmp_path, stack={60: 16, 120: 72}.get(m, 0))
    assert "nvfp4 weights in registers" in facts["parameters"]
    assert_overlapping(facts, lines)


def test_kernels_beside_a_product_may_be_others_on_other_gpus():
    """Sums of columns are, whose room on any GPU is asked of those, too, that have no such product."""
    w = jf.repack_weights(weights(3, 4096, 64, "nvfp4", 16))

    def f(x, y):
        scaled = y * y.mean(1, keepdims=True)
        return jf.scaled_grouped_matmul(x, w, jnp.array([1, 2, 3]), validate=False) + scaled, scaled.sum(0)

    args = [jax.ShapeDtypeStruct((8192, columns), jnp.bfloat16) for columns in (64, 4096)]
    [text] = fused_programs(jf.fuse(f), *args)
    assert len(_core.facts(text, HOPPER)) >= 3
    with pytest.raises(jf.UserError, match="for GPUs of compute capability"):
        _core.facts(text, _core.cuda_target_for(80))


def test_halves_within_a_piece_are_gated_by_a_kernel_of_their_own():
    w = jf.repack_weights(weights(3, 80, 64, "nvfp4", 16))
    x = jnp.zeros((40, 64), jnp.bfloat16)
    [text] = fused_programs(jf.fuse(lambda x: gated(x, w, jnp.array([1, 2, 3]))), x)
    facts = [f for f in _core.facts(text, HOPPER) if f["strategy"] != "empty"]
    assert len(facts) == 2 and "it begins at column 40 of packed weights" in " ".join(f["reason"] for f in facts)


TAILS = {
    "bias": lambda b, s: {"bias": b},
    "silu": lambda b, s: {"activation": "silu"},
    "swiglu": lambda b, s: {"activation": "swiglu"},
    "all": lambda b, s: {"bias": b, "activation": "geglu", "row_scale": s},
}


# Derivatives of f32 results by bf16 rows multiply f32, which the kernel does not, and say so.
@pytest.mark.filterwarnings("ignore:scaled_grouped_matmul. unpacks its weights:UserWarning")
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("format", ["nvfp4", "int4"])
def test_what_follows_a_product(tail, format, device):
    """As after the product with unpacked weights, and so are the derivatives; padding rows hold NaN."""
    if device.platform == "cpu" and format == "int4":
        pytest.skip("unpacked, all formats are one product")
    check_tail(tail, format, 70, [40, 0, 13])
    if device.platform != "cpu":
        check_tail(tail, format, 900, [3, 600, 200])


def check_tail(tail, format, m, extents):
    w = weights(3, 128, 128, format, 32 if format == "int4" else 16)
    packed, dense = jf.repack_weights(w), jf.dequantize(w).astype(jnp.bfloat16).astype(jnp.float32)
    total, sizes = sum(extents), jnp.array(extents)
    x = jnp.asarray(rng.normal(size=(m, 128)), jnp.bfloat16).at[total:].set(jnp.nan)
    bias, scale = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((3, 128), (m,)))

    def four_bits(x, bias, scale):
        how = {**TAILS[tail](bias, scale), "preferred_element_type": jnp.float32, "validate": False}
        return jf.scaled_grouped_matmul(x, packed, sizes, **how)

    def plain(x, bias, scale):
        how = {**TAILS[tail](bias, scale), "preferred_element_type": jnp.float32, "validate": False}
        return jf.grouped_matmul(x.astype(jnp.float32), dense, sizes, transpose_rhs=True, **how)

    size = 100 * float(jnp.abs(dense).max())
    assert_close(jax.jit(four_bits)(x, bias, scale), plain(x, bias, scale), dtype="bfloat16", scale=size)
    got, want = (
        jax.jit(jax.grad(lambda *a, f=f: (f(*a)[:total] ** 2).sum(), argnums=(0, 1, 2)))(x, bias, scale)
        for f in (four_bits, plain)
    )
    for g, v in zip(got, want):
        assert_close(g, v, dtype="bfloat16", scale=100 * float(jnp.abs(v).max() + 1))


def test_tails_of_eight_bits_are_those_of_grouped_matmul():
    x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((12, 32), (3, 16, 32)))
    sizes, bias, scale = jnp.array([4, 0, 5]), jnp.ones((3, 16)), jnp.arange(12.0)
    how = {"bias": bias, "activation": "swiglu", "row_scale": scale, "preferred_element_type": jnp.float32}
    wide = [jf.dequantize(jf.quantize(a, "fp8_row")) for a in (x, w)]
    want = jf.grouped_matmul(*wide, sizes, transpose_rhs=True, **how)
    for given in ((jf.quantize(x, "fp8_row"), jf.quantize(w, "fp8_row"), sizes), (wide[0], wide[1], sizes)):
        options = how if isinstance(given[0], jf.ScaledTensor) else {**how, "format": "fp8_row"}
        assert_close(jf.scaled_grouped_matmul(*given, **options), want, scale=20)


def test_units_come_from_a_queue_where_they_take_unlike_times():
    for m, n, units in ((400, 4096, "shared"), (1000, 4096, "queued"), (1000, 136, "shared")):
        [facts] = _core.facts(program("mxfp4", m, n=n), HOPPER)
        assert facts["parameters"].endswith(f"units={units}")


def test_few_kernels_serve_any_number_of_rows():
    sources = {_core.stages(program("mxfp4", m), HOPPER)["source"] for m in range(1, 8000, 97)}
    assert 1 <= len(sources) <= 5


def test_other_targets_say_why_there_is_no_kernel():
    for target in (_core.host_target(), _core.cuda_target_for(80)):
        with pytest.raises(jf.UserError, match="no kernel takes packed weights here: the kernel is for GPUs"):
            _core.stages(program("mxfp4", 20), target)


@pytest.mark.parametrize(
    ("m", "k", "n", "lhs", "dtype", "why"),
    [
        (2**31 - 2**16, 128, 128, "bfloat16", "bfloat16", None),
        (2**31 - 2**16 + 1, 128, 128, "bfloat16", "bfloat16", "a size of 2147418113, it takes 2147418112"),
        (20, 128, 132, "bfloat16", "bfloat16", "k=128 or n=132 is no multiple of 8"),
        (20, 128, 128, "float32", "float32", "need mode rows and lhs bf16"),
        (20, 128, 128, "bfloat16", "float64", "bf16 -> f64, it takes bf16 rows"),
    ],
)
def test_the_core_says_what_the_kernel_takes(m, k, n, lhs, dtype, why):
    """What it does not take is unpacked, with a warning: nothing here allocates."""
    pieces = (4, -(-n // 64), k // 64, 512 + 32)
    types = ((lhs, (m, k)), ("uint32", pieces), ("float32", (4,)), ("int32", (4,)))
    avals = [
        jax.ShapeDtypeStruct(shape, np.dtype(kind) if kind != "bfloat16" else jnp.bfloat16) for kind, shape in types
    ]
    options = {"format": "mxfp4", "block": 32, "n": n, "transpose_rhs": True}
    got = _ffi.why_no_kernel(lambda: _packed_matmul.program_of(avals, jnp.dtype(dtype), **options), HOPPER)
    assert got is None if why is None else why in got
