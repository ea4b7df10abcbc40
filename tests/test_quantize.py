"""Numbers of few bits: what `quantize` stores, bit for bit, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
CASES = [("fp8_row", (None,)), ("fp8_tensor", ()), ("fp8_block", (128,)), ("fp8_block", (128, 128))]


def by_hand(x, block, dtype):
    """The definition, in numpy: elements and scales."""
    x = np.asarray(x).astype(np.float32)
    inverse = np.float32(1) / np.float32(ml_dtypes.finfo(dtype).max)
    sizes = [n if b is None else b for n, b in zip(x.shape[x.ndim - len(block) :], block)] if block else x.shape
    outer = x.shape[: x.ndim - len(sizes)]
    counts = [-(-n // b) for n, b in zip(x.shape[len(outer) :], sizes)]
    scales, elements = np.ones((*outer, *counts), np.float32), np.zeros(x.shape, dtype)
    for index in np.ndindex(scales.shape):
        place = (*index[: len(outer)], *(slice(i * b, (i + 1) * b) for i, b in zip(index[len(outer) :], sizes)))
        most = np.abs(x[place]).max()
        if most != 0:
            scales[index] = np.maximum(most * inverse, np.finfo(np.float32).tiny)
        elements[place] = (x[place] * (np.float32(1) / scales[index])).astype(dtype)
    return elements, scales.reshape((*outer, *(() if None in block or not block else counts)))


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize(("format", "block"), CASES)
def test_quantize_is_bit_exact(format, block, dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 130, 300)) * np.exp2(rng.integers(-12, 12, size=(2, 130, 1)))
    x[0, 5] = 0
    x[1, :, :2] = 0
    x = np.asarray(x, np.float32)
    more = (x.astype(ml_dtypes.bfloat16), x[0].astype(np.float16)) if dtype == E4M3 else ()
    for source in (x, np.zeros_like(x), *more):
        got = jf.quantize(source, format, dtype=dtype, block=block)
        elements, scales = by_hand(source, block, dtype)
        np.testing.assert_array_equal(np.asarray(got.scales), scales)
        np.testing.assert_array_equal(np.asarray(got.data).view(np.uint8), elements.view(np.uint8))
        # Half a step of the largest element: 2^-4 of it, or 2^-3.
        back = np.asarray(jf.dequantize(got), np.float64)
        assert np.isfinite(back).all()
        assert np.abs(back - source.astype(np.float64)).max() <= np.abs(source).max() * (
            2**-4 if dtype == E4M3 else 2**-3
        )


def test_rows_of_zeros_nan_and_tiny_numbers_stay_apart():
    x = np.ones((5, 32), np.float32)
    x[0], x[1, 3], x[2, 3], x[3] = 0, np.nan, np.inf, 1e-42
    got = jf.dequantize(jf.quantize(x, "fp8_row"))
    assert (got[0] == 0).all() and np.isnan(got[1]).all() and np.isnan(got[2]).all()
    assert np.isfinite(got[3]).all() and (got[4] == 1).all()


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_scales_of_mxfp8_are_the_smallest_powers_of_two_that_suffice(dtype):
    rng = np.random.default_rng(1)
    x = np.asarray(rng.normal(size=(40, 80)) * np.exp2(rng.integers(-90, 90, size=(40, 1))), np.float32)
    x[0], x[1, 3], x[2, 40], x[3] = 0, np.nan, -np.inf, np.float32(ml_dtypes.finfo(dtype).max) * 8
    got = jf.quantize(x, "mxfp8", dtype=dtype)
    assert got.scales.dtype == jnp.float8_e8m0fnu and got.scales.shape == (40, 3)
    scales, back = np.asarray(got.scales).astype(np.float32), np.asarray(jf.dequantize(got))
    blocks = np.pad(np.abs(x), ((0, 0), (0, 16))).reshape(40, 3, 32).max(-1)
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    assert (blocks[4:] <= limit * scales[4:] * (1 + 1e-6)).all() and (blocks[3:] > limit * scales[3:] / 2).all()
    wide = np.repeat(scales, 32, axis=1)[:, :80]
    np.testing.assert_array_equal(back[3:], ((x / wide).astype(dtype).astype(np.float32) * wide)[3:])
    np.testing.assert_array_equal(back[[0, 3]], x[[0, 3]])
    for row, span in ((1, slice(0, 32)), (2, slice(32, 64))):
        assert np.isnan(back[row, span]).all() and np.isnan(back[row]).sum() == 32


@pytest.mark.parametrize("format", ["fp8_row", "fp8_tensor", "fp8_block", "mxfp8", "nvfp4", "mxfp4", "int4"])
def test_a_nan_is_in_all_of_its_block(format):
    """In arrays of all sizes: XLA's maximum loses some on CPUs, from 5120 elements on."""
    for rows in (8, 16, 200):
        x = np.random.default_rng(0).normal(size=(rows, 384)).astype(np.float32)
        x[1, 200] = np.nan
        bad = np.isnan(np.asarray(jf.dequantize(jf.quantize(x, format))))
        block = {"fp8_row": 384, "fp8_block": 128, "nvfp4": 16}.get(format, 32)
        assert bad.all() if format == "fp8_tensor" else bad[1, 200] and bad.sum() == block


def test_infinities_of_four_bits_are_nan_in_their_block():
    x = jnp.ones((2, 64)).at[0, 40].set(jnp.inf).at[1, 0].set(-jnp.inf)
    for format, block in (("nvfp4", 16), ("mxfp4", 32), ("int4", 32)):
        bad = np.isnan(np.asarray(jf.dequantize(jf.quantize(x, format))))
        assert bad[0, 32 : 32 + block].all() and bad[1, :block].all() and bad.sum() == 2 * block


def test_a_scaled_tensor_is_a_pytree_that_says_what_it_is():
    x = jf.quantize(jnp.ones((4, 256)), "fp8_block", dtype=jnp.float8_e5m2)
    assert repr(x) == "ScaledTensor(fp8_block 1x128, float8_e5m2[4, 256], scales float32[4, 2])"
    again = jax.jit(lambda t: t)(x)
    assert again.format == "fp8_block" and again.block == (128,) and again.shape == (4, 256)
    each = jax.vmap(lambda row: jf.quantize(row, "fp8_row"))(jnp.ones((3, 4, 16)))
    assert each.scales.shape == (3, 4)


@pytest.mark.parametrize("format", jf._quant.FORMATS)
def test_batches_of_vmap_are_one_tensor(format):
    """As many entries as columns: scales of entries must not go along the columns."""
    x = jax.random.normal(jax.random.key(0), (64, 3, 64)) * jnp.logspace(-3, 3, 64)[:, None, None]
    factor = {"global_scale": 448 * 6 / jnp.abs(x).max((1, 2))} if format == "nvfp4" else {}
    store = lambda x, factor: jf.quantize(x, format, **factor)  # noqa: E731
    made = jax.vmap(store)(x, factor)
    each = jax.lax.map(lambda entry: jf.dequantize(store(*entry)), (x, factor))
    np.testing.assert_array_equal(jf.dequantize(made), each)
    np.testing.assert_array_equal(jax.vmap(jf.dequantize)(made), each)


@pytest.mark.parametrize("extents", [None, jnp.array([[3, 5], [8, 0], [0, 2]])])
def test_batches_of_scales_in_tiles(extents):
    x = jax.random.normal(jax.random.key(0), (3, 8, 64))
    store = lambda x, extents: jf.quantize(x, "mxfp8", layout="block128x4", extents=extents)  # noqa: E731
    made = jax.vmap(store, (0, None if extents is None else 0))(x, extents)
    each = jax.lax.map(lambda entry: jf.dequantize(store(*entry)), (x, extents))
    np.testing.assert_array_equal(jf.dequantize(made), each)


def test_factors_of_the_last_axes_stay_there():
    x = jax.random.normal(jax.random.key(0), (3, 3, 32))
    made = jf.quantize(x, "nvfp4", global_scale=jnp.array([1.0, 100, 10000])[:, None])
    each = [jf.quantize(x[:, i], "nvfp4", global_scale=100.0**i) for i in range(3)]
    np.testing.assert_array_equal(jf.dequantize(made), jnp.stack([jf.dequantize(e) for e in each], axis=1))


def test_padding_of_nested_tensors_counts_for_nothing():
    data = jnp.ones((6, 16)).at[4:].set(jnp.nan)
    nt = jf.as_nested(data, extents=[3, 1])
    for format in ("fp8_row", "fp8_tensor"):
        got = jf.quantize(nt, format)
        assert isinstance(got.data, jf.NestedTensor)
        np.testing.assert_array_equal(jf.dequantize(got, jnp.bfloat16).data[:4], 1)


@pytest.mark.parametrize("format", ["fp8_row", "fp8_tensor", "mxfp8"])
def test_padding_of_a_ragged_last_axis_counts_for_nothing(format):
    x = jnp.full((2, 64), 3.0).at[:, 30:].set(jnp.nan)
    got = jf.quantize(jf.NestedTensor(x, jnp.array([10, 20]), ragged_dim=1), format)
    assert_close(jf.dequantize(got).data[:, :30], jnp.full((2, 30), 3.0), dtype="float16")


def in_tiles(scales, sizes=None):
    """Every scale at its place in layout block128x4, one by one; the groups that the rows belong to, or all at once."""
    m, columns = scales.shape
    sizes = [m] if sizes is None else sizes
    wide, starts = -(-columns // 4) * 4, np.cumsum([0, *(-(-s // 128) * 128 for s in sizes)])
    out, first = np.zeros(starts[-1] * wide, scales.dtype), 0
    for size, start in zip(sizes, starts):
        for r, c in np.ndindex(size, columns):
            at = start * wide + r // 128 * (wide * 128) + c // 4 * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            out[at] = scales[first + r, c]
        first += size
    return out.reshape(-1, wide)


@pytest.mark.parametrize(
    ("format", "k", "sizes"),
    [
        ("nvfp4", 48, [100, 0, 150, 12]),
        ("mxfp8", 144, [0, 0, 262]),
        ("mxfp8", 144, [0, 5, 0, 130, 0]),
        ("mxfp4", 32, [0, 0]),
        ("mxfp4", 32, [262]),
        ("mxfp8", 80, None),
    ],
)
def test_scales_in_tiles_are_where_the_formula_says(format, k, sizes):
    x = jnp.asarray(np.random.default_rng(2).normal(size=(262, k)), "float32")
    plain, wide = jax.jit(lambda x: (made := jf.quantize(x, format), jf.dequantize(made)))(x)
    extents = None if sizes is None else jnp.array(sizes)
    got = jax.jit(lambda x, extents: jf.quantize(x, format, extents=extents, layout="block128x4"))(x, extents)
    bits = np.asarray(got.scales).view(np.uint8)
    want = in_tiles(np.asarray(plain.scales).view(np.uint8), sizes)
    most = 262 + 127 * len(sizes or [1])
    assert len(want) <= len(bits) == (384 if sizes is None else most // 128 * 128)
    np.testing.assert_array_equal(bits[: len(want)], want)
    assert (bits[len(want) :] == 0).all()
    total = 262 if sizes is None else sum(sizes)
    np.testing.assert_array_equal(jax.jit(jf.dequantize)(got)[:total], wide[:total])
    if sizes is not None:
        nested = jax.jit(lambda x: jf.quantize(jf.as_nested(x, extents=sizes), format, layout="block128x4"))(x)
        np.testing.assert_array_equal(np.asarray(nested.scales).view(np.uint8), bits)
        starts = jnp.cumsum(extents) - extents
        if total == 262:
            ones = jnp.ones((262, 3))
            order = jax.jit(functools.partial(jf.preprocess_grouped_matmul_input_sf, input_starts=starts))
            grad = jax.jit(jax.grad(lambda s: order(s, output_starts=jf.block_scale_starts(extents)).sum()))(ones)
            np.testing.assert_array_equal(grad, ones)
            moved = order(plain.scales, output_starts=jf.block_scale_starts(extents))
            np.testing.assert_array_equal(np.asarray(moved).view(np.uint8), bits)


def test_scales_of_weights_are_in_tiles_of_each_matrix():
    x = jnp.asarray(np.random.default_rng(2).normal(size=(2, 130, 80)), "float32")
    plain, got = jf.quantize(x, "nvfp4"), jf.quantize(x, "nvfp4", layout="block128x4")
    assert "block128x4" in repr(got)
    for each, scales in zip(got.scales, plain.scales):
        np.testing.assert_array_equal(np.asarray(each).view(np.uint8), in_tiles(np.asarray(scales).view(np.uint8)))
    np.testing.assert_array_equal(jf.dequantize(got), jf.dequantize(plain))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: jf.quantize(jf.quantize(x, "fp8_row"), "mxfp8"), TypeError, "ScaledTensor of format fp8_row"),
        (lambda x: jf.quantize(x, "fp8_block", block=128), ValueError, "fp8_block has blocks .*, got 128"),
        (lambda x: jf.dequantize(jf.ScaledTensor(x, x, format="fp9")), ValueError, "format 'fp9' is unknown"),
        (lambda x: jf.quantize(x, "mxfp8", layout="tiles"), ValueError, "layout 'tiles' is unknown; expected one of"),
        (
            lambda x: jf.quantize(x, "fp8_row", layout="block128x4"),
            ValueError,
            "is for mxfp8, nvfp4, mxfp4, got fp8_row",
        ),
        (lambda x: jf.quantize(x, "mxfp8", extents=[4]), ValueError, "extents= is for layout"),
        (lambda x: jf.quantize(x, "mxfp8", extents=[4, 900], layout="block128x4"), ValueError, "quantize: extents"),
        (lambda x: jf.block_scale_starts(jnp.ones(3)), TypeError, "extents must be an integer array"),
        (
            lambda x: jf.preprocess_grouped_matmul_input_sf(x, [0, 1], [0, 100]),
            ValueError,
            r"output_starts must be multiples of 128, got \[0, 100\]",
        ),
        (
            lambda x: jf.preprocess_grouped_matmul_input_sf(x, [0, 1], [0, 1024]),
            ValueError,
            r"output_starts must leave \[128, 128\] rows for the groups and end within 256, got \[0, 1024\]",
        ),
        (
            lambda x: jf.preprocess_grouped_matmul_input_sf(x + 1j, [0, 1], [0, 128]),
            TypeError,
            "scales must be real, got complex64",
        ),
        (
            lambda x: jf.quantize(jf.NestedTensor(x, jnp.array([1]), ragged_dim=1), "mxfp8", layout="block128x4"),
            ValueError,
            "needs x with ragged rows, got",
        ),
        (
            lambda x: jf.quantize(jf.NestedTensor(x, jnp.array([1]), ragged_dim=1), "mxfp4"),
            ValueError,
            "mxfp4 stores two elements of the last axis in a byte, which must not be ragged",
        ),
        (
            lambda x: jf.repack_weights(jf.quantize(jnp.ones((1, 128, 128)), "mxfp4", layout="block128x4")),
            ValueError,
            'expected scales of layout "row_major", got "block128x4"',
        ),
        (
            lambda x: jf.scaled_grouped_matmul(
                jnp.ones((2, 128)), jf.quantize(jnp.ones((1, 128, 128)), "nvfp4", layout="block128x4"), [2]
            ),
            TypeError,
            "float32 x nvfp4 block128x4 not supported",
        ),
        (lambda x: jf.quantize(x, "fp9"), ValueError, "format 'fp9' is unknown; expected one of"),
        (lambda x: jf.quantize(x, "fp8_block", block=(64,)), ValueError, "fp8_block has blocks"),
        (lambda x: jf.quantize(x, "fp8_row", dtype="int8"), TypeError, "got int8"),
        (lambda x: jf.quantize(x.astype(int), "fp8_row"), TypeError, "x must hold floats, got int32"),
        (lambda x: jf.quantize(x[0], "fp8_block", block=(128, 128)), ValueError, "needs 2 axes or more"),
        (lambda x: jf.dequantize(x), TypeError, "expected a ScaledTensor"),
        (lambda x: jax.grad(lambda x: jf.dequantize(jf.quantize(x, "fp8_row")).sum())(x), TypeError, "no derivative"),
    ],
)
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call(jnp.ones((4, 32)))


def test_what_is_not_differentiated_may_be_quantized():
    def loss(w, x):
        return (jf.dequantize(jf.quantize(jax.lax.stop_gradient(x), "fp8_row")) * w).sum()

    grads = jax.jit(jax.grad(loss, (0, 1)))(jnp.full((4, 16), 2.0), jnp.ones((4, 16)))
    np.testing.assert_array_equal(grads[0], 1)
    np.testing.assert_array_equal(grads[1], 0)
