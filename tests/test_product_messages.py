"""What the grouped products refuse: by the name that the caller passed, with what was expected and what to do."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fuser as jf

X, W, SIZES = jnp.ones((5, 4)), jnp.ones((3, 4, 6)), [2, 0, 3]
X16, W16, X64 = jnp.ones((5, 16)), jnp.ones((3, 8, 16)), jnp.ones((5, 64))
PACKED = jf.repack_weights(jf.quantize(jnp.ones((3, 32, 64)), "nvfp4"))
STACKED = jax.tree.map(lambda a: jnp.stack([a, a]), PACKED)
ROWS, MATRICES = jf.quantize(X16, "fp8_row"), jf.quantize(W16, "fp8_row")


def grouped(lhs: Any = X, rhs: Any = W, sizes: Any = SIZES, **options: Any) -> Any:
    return jf.grouped_matmul(lhs, rhs, None if isinstance(lhs, jf.NestedTensor) else sizes, **options)


def floats(lhs: Any = X16, rhs: Any = W16, sizes: Any = SIZES, **options: Any) -> Any:
    sizes = None if isinstance(lhs, jf.NestedTensor) else sizes
    return jf.scaled_grouped_matmul(lhs, rhs, sizes, **{"format": "fp8_row", **options})


def scaled(lhs: Any = ROWS, rhs: Any = MATRICES, sizes: Any = SIZES, **options: Any) -> Any:
    inside = lhs.data if isinstance(lhs, jf.ScaledTensor) else lhs
    return floats(lhs, rhs, None if isinstance(inside, jf.NestedTensor) else sizes, format=None, **options)


def packed(lhs: Any = X64, sizes: Any = SIZES, **changes: Any) -> Any:
    return scaled(lhs, dataclasses.replace(PACKED, **changes), sizes)


def nested(extents: Any, starts: Any = None, data: Any = X) -> jf.NestedTensor:
    return jf.NestedTensor(data, jnp.array(extents), None if starts is None else jnp.array(starts))


REFUSED = {
    # Sizes.
    "negative": (
        lambda: grouped(sizes=[-1, 2, 3]),
        ValueError,
        "grouped_matmul: group_sizes must be non-negative; group_sizes[0]=-1; pass how many rows each group has",
    ),
    "sum": (
        lambda: grouped(sizes=[9, 9, 0]),
        ValueError,
        "grouped_matmul: group_sizes sum to 18, which exceeds lhs.shape[0]=5; lower them, or pass more rows in lhs",
    ),
    "sum by index": (
        lambda: grouped(sizes=[1, 1, 1], row_index=jnp.zeros(2, int)),
        ValueError,
        "group_sizes sum to 3, which exceeds row_index.shape[0]=2; lower them, or pass more rows in row_index",
    ),
    "sum of floats": (lambda: floats(sizes=[9, 1, 1]), ValueError, "group_sizes sum to 11, which exceeds lhs.shape[0]"),
    "sum of scaled": (lambda: scaled(sizes=[9, 1, 1]), ValueError, "group_sizes sum to 11, which exceeds lhs.shape[0]"),
    "sum of packed": (lambda: packed(sizes=[9, 1, 1]), ValueError, "group_sizes sum to 11, which exceeds lhs.shape[0]"),
    "offset": (
        lambda: grouped(rhs=W[:2], group_offset=2),
        ValueError,
        "group_offset=2 and the 2 groups of rhs exceed 3 groups in all; pass an offset from 0 to 1, or sizes of more",
    ),
    # Nested tensors that are none.
    "extents": (
        lambda: grouped(nested([9, 9, 9])),
        ValueError,
        "grouped_matmul: lhs.extents sum to 27, which exceeds lhs.data.shape[0]=5; lower them",
    ),
    "negative extents": (
        lambda: floats(nested([-3, 9, 9], data=X16)),
        ValueError,
        "scaled_grouped_matmul: lhs.extents must be non-negative; lhs.extents[0]=-3",
    ),
    "extents of packed": (lambda: packed(nested([3, 3, 0], data=X64)), ValueError, "lhs.extents sum to 6, which"),
    "extents of scaled": (
        lambda: scaled(dataclasses.replace(ROWS, data=nested([5, 1, 0], data=ROWS.data))),
        ValueError,
        "scaled_grouped_matmul: lhs.extents sum to 6, which exceeds lhs.data.shape[0]=5",
    ),
    "starts": (
        lambda: grouped(nested([2, 0, 3], [0, 2, 4])),
        ValueError,
        "grouped_matmul: group 2 begins at row 4 and has 3 of the 5 rows; it must lie inside of the data",
    ),
    "negative starts": (lambda: floats(nested([2, 0, 3], [-1, 2, 2], X16)), ValueError, "group 0 begins at row -1"),
    "negative beside starts": (
        lambda: packed(nested([2, -1, 3], [0, 2, 2], X64)),
        ValueError,
        "scaled_grouped_matmul: lhs.extents must be non-negative; lhs.extents[1]=-1",
    ),
    "order": (lambda: floats(nested([2, 0, 3], [3, 2, 0], X16)), ValueError, "must lie in ascending order, but group"),
    "floats as extents": (
        lambda: grouped(nested([2.0, 0.0, 3.0])),
        TypeError,
        "NestedTensor: extents must be int32, got float32; build one with as_nested",
    ),
    "list as extents": (
        lambda: grouped(jf.NestedTensor(X, SIZES)),
        TypeError,
        "NestedTensor: extents must be an array, got a list; build one with as_nested",
    ),
    # Types and functions.
    "int4": (
        lambda: grouped(preferred_element_type=jnp.int4),
        TypeError,
        "grouped_matmul: preferred_element_type=int4 not supported for float32 x float32; take a type of 8 bits",
    ),
    "int4 of ragged_dot": (
        lambda: jf.ragged_dot(X, W, jnp.array(SIZES), preferred_element_type=jnp.int4),
        TypeError,
        "ragged_dot: preferred_element_type=int4 not supported for float32 x float32",
    ),
    "int2": (
        lambda: grouped(X.astype(int), W.astype(int), preferred_element_type=jnp.int2),
        TypeError,
        "preferred_element_type=int2 not supported for int32 x int32",
    ),
    "function of NumPy": (
        lambda: grouped(activation=np.tanh),
        TypeError,
        "grouped_matmul: activation must be a function of JAX arrays, got one that makes NumPy's of them; pass jnp.",
    ),
    "function of NumPy, packed": (
        lambda: jf.scaled_grouped_matmul(X64, PACKED, SIZES, activation=lambda x: np.tanh(x)),
        TypeError,
        "scaled_grouped_matmul: activation must be a function of JAX arrays",
    ),
    "function of two": (
        lambda: grouped(activation=lambda gate, up: gate * up),
        TypeError,
        "grouped_matmul: activation must be a function of one array, got one of (gate, up); bind other arguments",
    ),
    "function of values": (
        lambda: grouped(activation=lambda x: x if x.sum() > 0 else -x),
        TypeError,
        "grouped_matmul: activation must not depend on values in Python (if, while, float)",
    ),
    "validate": (
        lambda: grouped(validate="no"),
        TypeError,
        "grouped_matmul: validate must be True or False, got 'no'",
    ),
    "validate floats": (lambda: floats(validate=1), TypeError, "scaled_grouped_matmul: validate must be True or False"),
    "float64": (
        lambda: floats(X16.astype(int)),
        TypeError,
        "format= quantizes floats, bfloat16, float16, float32; got int32 x float32; convert them with astype",
    ),
    "quantized": (
        lambda: floats(ROWS),
        TypeError,
        "got fp8_row x float32; leave it out for operands that are quantized",
    ),
    "text": (lambda: floats("a"), TypeError, "scaled_grouped_matmul: lhs must be an array, got a str"),
    "nothing": (lambda: floats(rhs=None), TypeError, "scaled_grouped_matmul: rhs must be an array, got a NoneType"),
    # What quantized operands hold.
    "no scales": (
        lambda: scaled(jf.ScaledTensor(ROWS.data, None)),
        TypeError,
        "scaled_grouped_matmul: lhs.scales must be an array, got a NoneType",
    ),
    "complex scales": (
        lambda: scaled(rhs=dataclasses.replace(MATRICES, scales=MATRICES.scales * 1j)),
        TypeError,
        "scaled_grouped_matmul: rhs.scales must be floats, got complex64; quantize makes them",
    ),
    "list as data": (
        lambda: scaled(jf.ScaledTensor([[1.0]], ROWS.scales)),
        TypeError,
        "scaled_grouped_matmul: 8-bit formats hold ['float8_e4m3fn', 'float8_e5m2'], got float32; quantize makes them",
    ),
    "kind of pieces": (
        lambda: packed(pieces=PACKED.pieces.astype(jnp.float32)),
        TypeError,
        "scaled_grouped_matmul: rhs.pieces must be an array of uint32, got float32; repack_weights makes them",
    ),
    "no factors": (lambda: packed(factors=None), TypeError, "rhs.factors must be an array of float32, got a NoneType"),
    "length of pieces": (
        lambda: packed(pieces=PACKED.pieces[..., :100]),
        ValueError,
        "rhs of n=32 and k=64 needs pieces (3, 1, 1, 576) and factors (3,), got (3, 1, 1, 100) and (3,); repack_weigh",
    ),
    "length of factors": (lambda: packed(factors=PACKED.factors[:2]), ValueError, "needs pieces (2, 1, 1, 576) and"),
    "block": (lambda: packed(block=7), ValueError, "rhs has format 'nvfp4' and block 7, expected one of"),
    "stacked": (
        lambda: scaled(X64, STACKED),
        ValueError,
        "scaled_grouped_matmul: rhs must be the weights of one layer, (groups, n, k), got a stack of them, (2, 3, 32, "
        "64); pass it to jax.lax.scan or jax.vmap, or take one with jax.tree.map(lambda a: a[i], weights)",
    ),
    "stacked experts": (
        lambda: jf.moe.mlp(X64, jnp.zeros((5, 2), int), jnp.ones((5, 2)), STACKED, STACKED),
        ValueError,
        "mlp: w13 must be the weights of one layer, (groups, n, k), got a stack",
    ),
    # The words of jax.lax, with whose they are.
    "k of ragged_dot": (
        lambda: jf.ragged_dot(X[:, :3], W, jnp.array(SIZES)),
        TypeError,
        "ragged_dot: dot_general requires contracting dimensions to have the same shape, got (3,) and (4,); expected "
        "lhs (m, k), rhs (g, k, n) and integer group_sizes (g,), got lhs float32[5, 3], rhs float32[3, 4, 6] and "
        "group_sizes int32[3]; transpose or reshape them",
    ),
    "groups of ragged_dot": (
        lambda: jf.ragged_dot(X, W, jnp.array([2, 3])),
        TypeError,
        "ragged_dot: expected rhs group dimension size to be 2, got 3; expected lhs (m, k), rhs (g, k, n)",
    ),
    "precision": (
        lambda: jf.ragged_dot(X, W, jnp.array(SIZES), precision="foo"),
        ValueError,
        "ragged_dot: Precision argument must be one of",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=re.escape(message)):
        call()


def gone(x: Any) -> jax.Array:
    """Return a copy whose memory is taken back, as that of a donated argument is."""
    copy = jnp.array(x)
    copy.delete()
    return copy


DELETED = {
    "grouped_matmul: lhs float32[5, 4]": lambda: grouped(gone(X)),
    "grouped_matmul: rhs float32[3, 4, 6]": lambda: grouped(rhs=gone(W)),
    "grouped_matmul: group_sizes int32[3]": lambda: grouped(sizes=gone(SIZES)),
    "grouped_matmul: row_index int32[5]": lambda: grouped(row_index=gone(jnp.arange(5))),
    "grouped_matmul: bias float32[3, 6]": lambda: grouped(bias=gone(jnp.ones((3, 6)))),
    "grouped_matmul: lhs.data float32[5, 4]": lambda: grouped(jf.NestedTensor(gone(X), jnp.array(SIZES))),
    "grouped_matmul: lhs.extents int32[3]": lambda: grouped(jf.NestedTensor(X, gone(SIZES))),
    "ragged_dot: lhs float32[5, 4]": lambda: jf.ragged_dot(gone(X), W, jnp.array(SIZES)),
    "scaled_grouped_matmul: lhs float32[5, 16]": lambda: floats(gone(X16)),
    "scaled_grouped_matmul: rhs.scales float32[3, 8]": lambda: scaled(
        rhs=dataclasses.replace(MATRICES, scales=gone(MATRICES.scales))
    ),
    "scaled_grouped_matmul: rhs.pieces uint32[3, 1, 1, 576]": lambda: packed(pieces=gone(PACKED.pieces)),
}


@pytest.mark.parametrize("message", DELETED)
def test_deleted_arrays_are_named(message):
    with pytest.raises(RuntimeError, match=re.escape(message) + " has been deleted or donated; pass a copy"):
        DELETED[message]()


def test_float64_is_converted_by_the_caller():
    with jax.enable_x64(True), pytest.raises(TypeError, match="got float64 x float64; convert them with astype"):
        floats(np.ones((5, 16)), np.ones((3, 8, 16)))


def test_impossible_groups_are_clipped_where_nobody_looks():
    for run in (
        lambda extents: grouped(jf.NestedTensor(X, extents), validate=False).data,
        jax.jit(lambda extents: grouped(jf.NestedTensor(X, extents)).data),
    ):
        np.testing.assert_array_equal(run(jnp.array([9, 9, 9])), np.full((5, 6), 4))


def test_lists_and_no_dtype_are_taken_alike():
    assert grouped([[1.0] * 4] * 5, preferred_element_type=None).dtype == jnp.float32
    want = floats()
    np.testing.assert_array_equal(floats([[1.0] * 16] * 5, W16.tolist(), preferred_element_type=None), want)
    np.testing.assert_array_equal(packed([[1.0] * 64] * 5), packed())


def test_packed_weights_of_several_layers():
    assert STACKED.shape == (2, 3, 32, 64) and repr(STACKED) == "PackedWeights(nvfp4 1x16, [2, 3, 32, 64])"
    made = jax.vmap(lambda w: jf.repack_weights(jf.quantize(w, "int4")))(jnp.ones((2, 3, 32, 64)))
    assert made.shape == (2, 3, 32, 64)
    assert repr(jax.tree.map(lambda _: 0, PACKED)) == "PackedWeights(nvfp4 1x16, [?, 32, 64])"

    def step(sum, layer):
        assert layer.shape == (3, 32, 64)
        return sum + jf.scaled_grouped_matmul(X64, layer, SIZES), None

    total, _ = jax.lax.scan(step, jnp.zeros((5, 32), jnp.bfloat16), STACKED)
    np.testing.assert_array_equal(total, 2 * jf.scaled_grouped_matmul(X64, PACKED, SIZES))
