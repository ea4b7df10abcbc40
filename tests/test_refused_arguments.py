"""Arguments that do not fit are refused by name, before anything is computed: quantization, layouts, moe, ir, tools."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fuser as jf

X = jnp.ones((8, 64))
EXPERTS = jnp.zeros((8, 2), jnp.int32)
LOGITS = jnp.ones((8, 3))
W13, W2 = jnp.ones((3, 64, 32)), jnp.ones((3, 16, 64))
QUANTIZED = jf.quantize(X, "fp8_row")


def ordered(input_starts, output_starts=(0, 128), scales=X):
    return jf.preprocess_grouped_matmul_input_sf(scales, input_starts, output_starts)


def layer(activation, columns=32):
    weights = jnp.ones((8, 2))
    return jf.moe.mlp(X, EXPERTS, weights, jnp.ones((3, 64, columns)), jnp.ones((3, 16, 64)), activation=activation)


def huge():
    return jf.fuse(jnp.tanh).lower(jax.ShapeDtypeStruct((2**31, 2**20), "float32")).as_text("loops")


def products(offset=None, **tail):
    x = jnp.arange(16).reshape(4, 4)
    return jf.grouped_matmul(x, x[None], [4] if offset is None else [2, 1, 1], group_offset=offset, **tail)


def packed(**changes):
    return jf.repack_weights(dataclasses.replace(jf.quantize(jnp.ones((3, 8, 64)), "nvfp4"), **changes))


COLUMNS = jf.as_nested(jnp.ones((6, 64)), extents=[2, 3, 4], ragged_dim=1)

REFUSED = {
    "offset": (lambda: products(np.int32(3)), ValueError, "group_offset=3 and the 1 groups of rhs exceed 3 groups"),
    "negative offset": (lambda: products(jnp.int32(-1)), ValueError, "group_offset=-1 and the 1 groups of rhs exceed"),
    "scale of integers": (
        lambda: products(row_scale=jnp.full(4, 0.5)),
        TypeError,
        "row_scale must hold integers for a product of int32, got float32; convert",
    ),
    "bias of integers": (lambda: products(bias=jnp.full((1, 4), 0.5)), TypeError, "bias must hold integers for a"),
    "complex activation": (
        lambda: layer(lambda x: x * 1j, columns=16),
        TypeError,
        "mlp: activation must return real numbers of float32, got complex64",
    ),
    "complex scale": (lambda: jf.moe.route(LOGITS, 2, scale=1j), TypeError, "route: scale must be real, got complex"),
    "complex bias": (
        lambda: jf.moe.route(LOGITS, 2, bias=jnp.ones(3) * 1j),
        TypeError,
        "route: bias must be real, got complex64",
    ),
    "ragged columns": (
        lambda: jf.scaled_grouped_matmul(COLUMNS, jnp.ones((3, 64, 64)), format="fp8_row"),
        ValueError,
        r"scaled_grouped_matmul: a nested lhs must have its rows ragged, \[groups, ragged, k\], got \(6, 3, ragged\)",
    ),
    "scales of rows": (
        lambda: packed(global_scale=jnp.ones((1, 3, 1))),
        ValueError,
        r"repack_weights: the global scale must be one number, or one for each matrix, \(3, 1, 1\), got \(1, 3, 1\)",
    ),
    "blocks of rows": (
        lambda: packed(block=(None,)),
        ValueError,
        r"repack_weights: nvfp4 has blocks \[\(16,\)\], got \(None,\)",
    ),
    "global scale": (lambda: jf.quantize(X, "nvfp4", global_scale="a"), TypeError, "quantize: global_scale must be an"),
    "no global scale": (
        lambda: jf.quantize(X, "nvfp4", global_scale=[[0.0]] * 8),
        ValueError,
        r"quantize: global_scale must be above 0 and finite, got \[0.0, 0.0, 0.0, 0.0\]",
    ),
    "complex global scale": (
        lambda: jf.quantize(X, "nvfp4", global_scale=1j),
        TypeError,
        "quantize: global_scale must be real, got complex64",
    ),
    "an array of 4 TiB": (
        lambda: jf.explain(jnp.tanh, platform="cuda")(jax.ShapeDtypeStruct((2**40,), "float32")),
        jf.UserError,
        r"x of tanh\w* is f32\[1099511627776\], for which there is no kernel; split it",
    ),
    "kind of scales": (
        lambda: packed(scales=jnp.ones((3, 8, 4), jnp.uint8)),
        TypeError,
        r"repack_weights: scales of nvfp4 must be float8_e4m3fn, got uint8; bits of scales are scales.view\(jnp.float8",
    ),
    "block as a number": (
        lambda: jf.dequantize(dataclasses.replace(QUANTIZED, block=128)),
        TypeError,
        "dequantize: block must be a tuple, of fp8_row one of .* got 128",
    ),
    "truth": (lambda: bool(QUANTIZED), TypeError, "ScaledTensor has no truth value; dequantize it"),
    "comparison": (lambda: QUANTIZED == QUANTIZED, TypeError, "ScaledTensor has no ==; dequantize it"),
    "as an array": (lambda: jnp.asarray(QUANTIZED), TypeError, "ScaledTensor is not one array; use dequantize"),
    "keys": (
        lambda: jf.nested.sort_by_group(jax.random.split(jax.random.key(0), 8), EXPERTS[:, 0], 3),
        TypeError,
        "sort_by_group: x must be an array of numbers, got key<fry>; see jax.random.key_data",
    ),
    "activation of integers": (
        lambda: products(activation="silu"),
        TypeError,
        "grouped_matmul: activation 'silu' is of floats, the result is int32; pass preferred_element_type",
    ),
    "row scale of other groups": (
        lambda: jf.grouped_matmul(X, jnp.ones((2, 64, 8)), [3, 5], row_scale=jf.as_nested(jnp.ones(8), extents=[5, 3])),
        ValueError,
        "grouped_matmul: operands have different ragged layouts: .*; extents differ at group 0: 3 vs 5",
    ),
    "row scale of other groups in 8 bits": (
        lambda: jf.scaled_grouped_matmul(
            X, jnp.ones((2, 8, 64)), [3, 5], format="fp8_row", row_scale=jf.as_nested(jnp.ones(8), extents=[5, 3])
        ),
        ValueError,
        "scaled_grouped_matmul: operands have different ragged layouts: .*; extents differ at group 0: 3 vs 5",
    ),
    "fraction among integers": (
        lambda: jf.nested.to_padded(jf.as_nested(jnp.arange(8), extents=[3, 5]), fill=2.5),
        TypeError,
        "to_padded: fill must be an integer for int32, got 2.5",
    ),
    "extents of an outer dimension": (
        lambda: jf.as_nested(jnp.ones((2, 8)), extents=[[3, 5], [4, 4]]),
        ValueError,
        r"as_nested: 2-D extents for ragged_dim=0 need shape \[G\]; got \(2, 2\); pass ragged_dim=1",
    ),
    "global scales": (
        lambda: jf.quantize(X, "nvfp4", global_scale=jnp.ones(3)),
        ValueError,
        r"quantize: global_scale must be one number, or numbers that broadcast to \(8, 1\), got \(3,\)",
    ),
    "scales of other rows": (
        lambda: jf.dequantize(dataclasses.replace(QUANTIZED, scales=jnp.ones(1))),
        ValueError,
        r"dequantize: fp8_row scales of elements \(8, 64\) must be \(8,\), got \(1,\); quantize makes them",
    ),
    "scales of other blocks": (
        lambda: jf.dequantize(dataclasses.replace(jf.quantize(X, "mxfp4"), scales=jnp.ones((1, 1)))),
        ValueError,
        r"dequantize: mxfp4 scales of elements \(8, 64\) must be \(8, 2\), got \(1, 1\)",
    ),
    "scales of other tiles": (
        lambda: jf.dequantize(
            dataclasses.replace(jf.quantize(X, "mxfp4", layout="block128x4"), scales=jnp.ones((8, 1)))
        ),
        ValueError,
        r"dequantize: mxfp4 scales of elements \(8, 64\) must be \(128, 4\), got \(8, 1\)",
    ),
    "several scales of all": (
        lambda: jf.dequantize(dataclasses.replace(jf.quantize(X, "fp8_tensor"), scales=jnp.ones(3))),
        ValueError,
        r"dequantize: fp8_tensor scales of elements \(8, 64\) must broadcast to \(8, 1\) from the front, got \(3,\)",
    ),
    "factors of packed weights": (
        lambda: jax.grad(
            lambda factors: jnp.sum(
                jf.scaled_grouped_matmul(X, dataclasses.replace(packed(), factors=factors), [8, 0, 0]).astype("float32")
            )
        )(packed().factors),
        TypeError,
        "scaled_grouped_matmul: has no derivative in the factors of PackedWeights; take jax.lax.stop_gradient of them",
    ),
    "scales that are powers of two": (
        lambda: jax.grad(
            lambda scales: jnp.sum(jf.dequantize(dataclasses.replace(jf.quantize(X, "mxfp8"), scales=scales)))
        )(jf.quantize(X, "mxfp8").scales),
        TypeError,
        "dequantize: has no derivative in scales of float8_e8m0fnu; take jax.lax.stop_gradient of them",
    ),
    "scales as bits": (
        lambda: jf.dequantize(dataclasses.replace(jf.quantize(X, "mxfp8"), scales=jnp.ones((8, 2), jnp.uint8))),
        TypeError,
        r"dequantize: scales must be floats, got uint8; those that are bits are scales.view\(jnp.float8_e8m0fnu\)",
    ),
    "layout of no scales": (
        lambda: jf.dequantize(dataclasses.replace(QUANTIZED, layout="tiles")),
        ValueError,
        "dequantize: layout 'tiles' is unknown; expected one of",
    ),
    "complex matrices": (
        lambda: jf.moe.mlp(X, EXPERTS, jnp.ones((8, 2)), W13 * 1j, W2),
        TypeError,
        "mlp: w13 must be real, got complex64; pass w13.real",
    ),
    "scores": (
        lambda: jf.moe.route(LOGITS, 2, scores=np.array(["softmax", "b"])),
        ValueError,
        "route: scores must be",
    ),
    "no scales": (
        lambda: jf.dequantize(dataclasses.replace(QUANTIZED, scales=None)),
        TypeError,
        "dequantize: scales must be an array, got a NoneType",
    ),
    "global scales of other rows": (
        lambda: jf.dequantize(dataclasses.replace(QUANTIZED, global_scale=jnp.ones(5))),
        ValueError,
        r"dequantize: global_scale must be one number, or numbers that broadcast to \(8, 1\) from the front, got",
    ),
    "elements of no bytes": (
        lambda: jf.dequantize(dataclasses.replace(jf.quantize(X, "int4"), data=X)),
        TypeError,
        "dequantize: int4 has two elements in a byte of uint8, got float32",
    ),
    "dtype of no numbers": (
        lambda: jf.ragged_dot(X, W13, jnp.array([8, 0, 0]), preferred_element_type=str),
        TypeError,
        "ragged_dot: preferred_element_type must be a dtype of numbers, got a type",
    ),
    "no dtype of elements": (
        lambda: jf.quantize(X, "fp8_row", dtype=3),
        TypeError,
        "quantize: dtype must be a dtype of numbers, got 3",
    ),
    "no dtype": (
        lambda: jf.dequantize(QUANTIZED, "foo"),
        TypeError,
        "dequantize: dtype must be a dtype of numbers, got 'foo'",
    ),
    "no float": (lambda: jf.dequantize(QUANTIZED, "int32"), TypeError, "dequantize: dtype must be a floating-point"),
    "negative": (lambda: jf.block_scale_starts([2, -1]), ValueError, r"must be non-negative, got \[2, -1\]"),
    "int32": (lambda: jf.block_scale_starts([2**31 - 1, 5]), ValueError, "the groups need 2147483776 rows"),
    "scales": (lambda: ordered([0, 4], scales="a"), TypeError, "input_sf: scales must be an array, got a str"),
    "outside": (lambda: ordered([0, 9]), ValueError, r"input_starts must ascend from 0 to at most the 8 rows"),
    "descending": (lambda: ordered([4, 0]), ValueError, r"input_starts must ascend .* got \[4, 0\]"),
    "bias": (lambda: jf.moe.route(LOGITS, 2, bias=jnp.ones(7)), ValueError, r"route: bias must be of shape \(3,\)"),
    "mask": (lambda: jf.moe.route(LOGITS, 2, mask=jnp.ones(3, bool)), ValueError, r"route: mask must be of shape \(8,"),
    "scale": (lambda: jf.moe.route(LOGITS, 2, scale="a"), TypeError, "route: scale must be an array, got a str"),
    "no scale": (lambda: jf.moe.route(LOGITS, 2, scale=None), TypeError, "route: scale must be an array, got a None"),
    "normalize": (lambda: jf.moe.route(LOGITS, 2, normalize="no"), TypeError, "route: normalize must be True or"),
    "text": (lambda: jf.moe.route("a", 2), TypeError, "route: logits must be an array, got a str$"),
    "shapes": (
        lambda: jf.as_nested(jax.ShapeDtypeStruct((3,), "float32"), extents=[1]),
        TypeError,
        "as_nested: data must be an array, got a ShapeDtypeStruct$",
    ),
    "dimension numbers": (
        lambda: jf.ragged_dot_general(X, W13, jnp.array([8, 0, 0]), None),
        TypeError,
        "ragged_dot_dimension_numbers must be jax.lax.RaggedDotDimensionNumbers, got a NoneType",
    ),
    "unknown": (lambda: layer("foo"), ValueError, "mlp: activation 'foo' is unknown; pass a function or one of"),
    "no function": (lambda: layer(3), TypeError, "mlp: activation must be a function, got 3"),
    "not gated": (lambda: layer(None), ValueError, r"mlp: w13 must have 16 columns for activation None and w2 \(3, 16"),
    "function": (lambda: layer(jnp.tanh), ValueError, "mlp: w13 must have 16 columns for a pointwise function and w2"),
    "integers": (
        lambda: jf.moe.mlp(X.astype(int), jnp.zeros((8, 1), int), jnp.ones((8, 1)), W13, W2),
        TypeError,
        r"mlp: x must be floats, got int32; convert it, x.astype\(jnp.float32\)",
    ),
    "complex weights": (
        lambda: jf.moe.mlp(X, jnp.zeros((8, 1), int), jnp.ones((8, 1), complex), W13, W2),
        TypeError,
        "mlp: weights must be real, got complex64; pass weights.real",
    ),
    "scaled weights": (
        lambda: jf.moe.mlp(X, EXPERTS, jnp.ones((8, 2)), jf.quantize(jnp.ones((3, 32, 64)), "mxfp8"), W2),
        TypeError,
        "mlp: w13 must be an array, PackedWeights, or a ScaledTensor of fp8_row, fp8_tensor, or fp8_block with blocks",
    ),
    "repacked": (
        lambda: jf.dequantize(jf.repack_weights(jf.quantize(W13, "int4"))),
        TypeError,
        "dequantize: expected a ScaledTensor, got PackedWeights; take what repack_weights got",
    ),
    "complex logits": (lambda: jf.moe.route(X.astype(complex), 2), TypeError, "route: logits must be real, got comp"),
    "parameter": (
        lambda: jf.ir.schedule(jf.ir.trace(jnp.tanh, X), "pointwise", "cpu", {3: 4}),
        TypeError,
        "schedule: parameters go by name, a string, got 3",
    ),
    "no result": (lambda: jf.ir.trace(lambda x: None, X), jf.UserError, "trace: <lambda> returns no array"),
    "dates": (
        lambda: jf.fuse(jnp.tanh)(np.array(["2026-01-01"], "datetime64[D]")),
        TypeError,
        r"fuse: tanh got an array of datetime64\[D\]",
    ),
    "huge": (huge, jf.UserError, r"x0 is f32\[2147483648,1048576\]; expected at most 70368744177664 bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()
