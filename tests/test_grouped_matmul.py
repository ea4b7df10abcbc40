"""`grouped_matmul`: nested operands, bias, activation, scale, row index, checks; a loop over groups as truth."""

import functools
import re

import arrays
import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf

grouped_matmul = jax.jit(jf.grouped_matmul, static_argnames=("activation", "transpose_rhs", "group_offset"))
EXTENTS = [4, 0, 7, 3]
M, K, N = 17, 6, 8


@pytest.fixture
def operands():
    rng = np.random.default_rng(0)
    lhs, rhs = rng.normal(size=(M, K)), rng.normal(size=(4, K, N)) / 2
    bias, scale = rng.normal(size=(4, N)), rng.normal(size=M)
    return [jnp.asarray(x, jnp.float32) for x in (lhs, rhs, bias, scale)]


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "silu": silu,
    "gelu": gelu,
    "relu": lambda x: np.maximum(x, 0),
    "swiglu": lambda x: silu(x[:, : N // 2]) * x[:, N // 2 :],
    "geglu": lambda x: gelu(x[:, : N // 2]) * x[:, N // 2 :],
}


def truth(lhs, rhs, bias=None, scale=None, activation=None, extents=EXTENTS):
    out = ref.rows(lhs, rhs, extents)
    for g, span in ref.groups(extents, None, len(out)):
        out[span] += 0 if bias is None else np.asarray(bias, np.float64)[g]
    out = out if activation is None else activation(out)
    out = out if scale is None else out * np.asarray(scale, np.float64)[:, None]
    out[~ref.owned_rows(extents, len(out))] = 0
    return out


def test_rfc_example_1(device):
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((325, 512), (3, 512, 64)))
    nt = jf.as_nested(x, [0, 127, 127, 325])
    out = jf.grouped_matmul(nt, w)
    assert out.shape == (3, "ragged", 64)
    assert_close(out.data, ref.rows(x, w, [127, 0, 198]))

    grad = jax.jit(jax.grad(lambda x, w: jnp.sum(jf.grouped_matmul(nt.replace(data=x), w).data ** 2), (0, 1)))
    dx, dw = grad(x, w)
    assert (np.asarray(dw)[1] == 0).all()
    ct = 2 * np.asarray(out.data)
    assert_close(dw, ref.contraction(x, ct, [127, 0, 198]))
    assert_close(dx, ref.rows(ct, w, [127, 0, 198], transpose_rhs=True))


def test_nan_beyond_the_total_does_not_leak(device, operands):
    lhs, rhs, bias, scale = operands
    lhs, scale = lhs.at[14:].set(jnp.nan), scale.at[14:].set(jnp.nan)

    def f(lhs, rhs, bias, scale):
        return jf.grouped_matmul(lhs, rhs, EXTENTS, bias=bias, activation="silu", row_scale=scale)

    assert_close(f(lhs, rhs, bias, scale), truth(lhs.at[14:].set(0), rhs, bias, scale.at[14:].set(0), silu))
    grad = jax.jit(jax.grad(lambda *a: jnp.sum(f(*a) ** 2), (0, 1, 2, 3)))
    grads, clean = grad(lhs, rhs, bias, scale), grad(*operands)
    for got, want in zip(grads, clean):
        assert_close(got, want)
    assert (np.asarray(grads[0])[14:] == 0).all() and (np.asarray(grads[3])[14:] == 0).all()
    assert (np.asarray(grads[1])[1] == 0).all() and (np.asarray(grads[2])[1] == 0).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("more", [(), ("bias", "scale")])
def test_activations_bias_and_scale(device, operands, name, more):
    lhs, rhs, bias, scale = operands
    bias, scale = (x if key in more else None for key, x in (("bias", bias), ("scale", scale)))
    got = grouped_matmul(lhs, rhs, jnp.array(EXTENTS), bias=bias, row_scale=scale, activation=name)
    assert_close(got, truth(lhs, rhs, bias, scale, ACTIVATIONS[name]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tail_is_computed_in_float32(device, operands, dtype):
    lhs, rhs, bias, scale = (x.astype(dtype) for x in operands)
    got = jf.grouped_matmul(lhs, rhs, EXTENTS, bias=bias, row_scale=scale, activation="swiglu")
    assert got.dtype == dtype
    assert_close(got, truth(lhs, rhs, bias, scale, ACTIVATIONS["swiglu"]))


def test_function_that_is_not_zero_at_zero(device, operands):
    lhs, rhs, bias, _ = operands
    f = functools.partial(jf.grouped_matmul, group_sizes=EXTENTS, bias=bias, activation=lambda x: 1 / jnp.square(x))
    out = f(lhs, rhs)
    assert_close(out, truth(lhs, rhs, bias, None, lambda x: 1 / np.where(x == 0, 1, x) ** 2), scale=10)
    # Neither the value nor the derivative at the padding's zeros is looked at.
    grads = jax.jit(jax.grad(lambda a, b: jnp.sum(jnp.sin(f(a, b))), (0, 1)))(lhs, rhs)
    assert all(np.isfinite(g).all() for g in grads) and (np.asarray(out)[14:] == 0).all()


def test_gradients_match_finite_formulas(device, operands):
    def ours(lhs, rhs, bias, scale):
        out = jf.grouped_matmul(lhs, rhs, EXTENTS, bias=bias, row_scale=scale, activation="swiglu")
        return jnp.sum(jnp.sin(out))

    onehot = np.zeros((M, 4), "f")
    for g, span in ref.groups(EXTENTS, None, M):
        onehot[span, g] = 1

    def plain(lhs, rhs, bias, scale):
        out = jnp.einsum("mk,gkn,mg->mn", lhs, rhs, onehot, precision="highest") + onehot @ bias
        gate, up = jnp.split(out, 2, axis=1)
        return jnp.sum(jnp.sin(jax.nn.silu(gate) * up * scale[:, None] * onehot.sum(1, keepdims=True)))

    every = (0, 1, 2, 3)

    def derivatives(f, *operands):
        first = jax.grad(f, every)
        second = jax.grad(lambda *a: sum(jnp.vdot(g, g) for g in first(*a)), every)
        return first(*operands), second(*operands), jax.jvp(f, operands, tuple(jnp.cos(x) for x in operands))

    both = [jax.jit(functools.partial(derivatives, f))(*operands) for f in (ours, plain)]
    for got, want in zip(*map(jax.tree.leaves, both)):
        assert_close(got, want, scale=4)


def test_transposed_weights_and_result_dtype(device, operands):
    lhs, rhs, *_ = operands
    got = jf.grouped_matmul(lhs, jnp.swapaxes(rhs, 1, 2), EXTENTS, transpose_rhs=True)
    assert_close(got, truth(lhs, rhs))
    low = [x.astype(jnp.bfloat16) for x in (lhs, rhs)]
    assert jf.grouped_matmul(*low, EXTENTS).dtype == jnp.bfloat16
    wide = jf.grouped_matmul(*low, EXTENTS, preferred_element_type=jnp.float32)
    assert_close(wide, truth(*low))


@pytest.mark.parametrize("activation", [None, "silu"])
def test_results_of_eight_bits(device, operands, activation):
    """Cotangents are of eight bits, too: here numbers that these hold."""
    lhs, rhs, *_ = operands

    def f(dtype, lhs, rhs):
        out = jf.grouped_matmul(lhs, rhs, EXTENTS, activation=activation, preferred_element_type=dtype)
        return jnp.sum(2 * out.astype(jnp.float32))

    got, want = (jax.jit(jax.grad(functools.partial(f, d), (0, 1)))(lhs, rhs) for d in ("float8_e5m2", "float32"))
    for a, b in zip(got, want):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, rtol=0.2, atol=0.15 * float(jnp.abs(b).max()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"activation": lambda y: 2 * y}, {"row_scale": 3}])
def test_results_that_are_integers_do_not_move(dtype, options):
    lhs, rhs = arrays.array(8, 4, scale=3.0).astype(dtype), arrays.array(3, 4, 6, scale=3.0).astype(dtype)
    options = {k: jnp.full(8, v) if k == "row_scale" else v for k, v in options.items()}

    def f(lhs, rhs):
        return jf.grouped_matmul(lhs, rhs, [3, 0, 4], preferred_element_type="int32", **options)

    grads = jax.grad(lambda *a: f(*a).astype(jnp.float32).sum(), (0, 1))(lhs, rhs)
    assert all(g.dtype == dtype and not g.any() for g in grads)
    assert jax.jvp(f, (lhs, rhs), (lhs, rhs))[1].dtype == jax.dtypes.float0


@pytest.mark.parametrize("other, result", [("int8", "int8"), ("bfloat16", "bfloat16"), ("uint4", "int8")])
def test_integers_of_four_bits_give_way(device, other, result):
    rows = jnp.asarray(np.arange(24).reshape(6, 4) % 7 - 3, "int4")
    weights = jnp.asarray(np.arange(24).reshape(2, 4, 3) % 4, other)
    for got in (jf.grouped_matmul(rows, weights, [2, 3]), jax.jit(jf.grouped_matmul)(rows, weights, [2, 3])):
        assert got.dtype == result
        np.testing.assert_array_equal(got, ref.rows(rows, weights, [2, 3]))


@pytest.mark.parametrize("lhs, rhs", [("float16", "bfloat16"), ("bfloat16", "float16")])
def test_two_kinds_of_16_bits_make_float32(lhs, rhs):
    """Where `ragged_dot` has `jax.lax`'s rule."""
    operands = jnp.ones((4, 8), lhs), jnp.ones((2, 8, 3), rhs), jnp.array([1, 3])
    assert jf.grouped_matmul(*operands).dtype == jnp.float32
    assert jf.ragged_dot(*operands).dtype == jax.lax.ragged_dot(*operands).dtype == jnp.bfloat16


def test_row_index_gathers(device, operands):
    tokens, rhs, *_ = operands
    index = np.array([3, 3, 0, 16, 5, 99, 1])
    rows = np.where(index[:, None] < M, np.asarray(tokens)[np.minimum(index, M - 1)], 0)

    def f(tokens):
        return jf.grouped_matmul(tokens, rhs, [2, 0, 3, 1], row_index=index)

    assert_close(f(tokens), truth(rows, rhs, extents=[2, 0, 3, 1]))
    grad = jax.jit(jax.grad(lambda x: jnp.sum(f(x) ** 2)))(tokens)
    per_row = ref.rows(2 * ref.rows(rows, rhs, [2, 0, 3, 1]), rhs, [2, 0, 3, 1], transpose_rhs=True)
    want = np.zeros((M, K))
    np.add.at(want, index[index < M], per_row[index < M])
    assert_close(grad, want)

    # The product of 16-bit rows is one primitive with their gather, linear all the same.
    def linear(x):
        return jf.grouped_matmul(x, rhs.astype(x.dtype), [2, 0, 3, 1], row_index=index)

    for dtype in (jnp.bfloat16, jnp.float32):
        x = tokens.astype(dtype)
        [turned] = jax.jit(jax.linear_transpose(linear, x))(linear(x))
        assert_close(turned, jax.vjp(linear, x)[1](linear(x))[0].astype("float32"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gradients_of_rows_with_many_uses_are_added_in_float32(device, dtype):
    w = jnp.ones((1, 16, 16), dtype)

    def loss(x):
        index = jnp.arange(6000) % x.shape[0]
        return 0.01 * jnp.sum(jf.grouped_matmul(x, w, [6000], row_index=index).astype("float32"))

    for f in (jax.grad(loss), jax.jit(jax.grad(loss)), jf.fuse(jax.grad(loss)), jax.grad(jf.fuse(loss))):
        for tokens, want in ((1, 960), (2, 480), (16, 60)):  # one after another, 16-bit sums would stop at 64 or 512
            np.testing.assert_allclose(np.asarray(f(jnp.ones((tokens, 16), dtype)), np.float32), want, rtol=0.004)


def test_long_row_indices_do_not_wrap(device):
    with jax.enable_x64(True):
        index = jnp.array([1, 2**32, -(2**32), -1], jnp.int64)
        product = jax.jit(lambda i: jf.grouped_matmul(jnp.ones((2, 3)), jnp.ones((1, 3, 1)), [4], row_index=i))(index)
    assert product[:, 0].tolist() == [3, 0, 0, 0]


def test_arrays_of_other_libraries():
    class Other:
        def __jax_array__(self):
            return jnp.ones((2, 3))

    assert jf.grouped_matmul(Other(), jnp.ones((1, 3, 1)), [2]).shape == (2, 1)


def test_group_offset_with_bias(device, operands):
    lhs, rhs, bias, _ = operands
    got = grouped_matmul(lhs, rhs[2:], jnp.array(EXTENTS), bias=bias[2:], activation="silu", group_offset=2)
    want = truth(lhs, rhs, bias, None, silu)
    want[:4] = 0
    assert_close(got, want)


def test_outer_and_inner_dimensions(device, operands):
    rng = np.random.default_rng(1)
    data, scale = (
        jnp.asarray(rng.normal(size=(3, 9, 2, K)), jnp.float32),
        jnp.asarray(rng.normal(size=(3, 9)), jnp.float32),
    )
    rhs, bias = operands[1:3]
    own = np.array([[1, 0, 3, 2], [9, 0, 0, 0], [0, 0, 0, 0]])
    for extents in (own, own[0]):
        nt = jf.as_nested(data, extents=extents, ragged_dim=1)
        out = grouped_matmul(nt, rhs, bias=bias, activation="swiglu", row_scale=nt.replace(data=scale))
        assert out.shape == (3, 4, "ragged", 2, N // 2)
        for d in range(3):
            sizes = 2 * (extents[d] if extents.ndim == 2 else extents)
            want = truth(data[d].reshape(18, K), rhs, bias, np.repeat(scale[d], 2), ACTIVATIONS["swiglu"], sizes)
            assert_close(out.data[d].reshape(18, N // 2), want)


def test_gapped_rows(device, operands):
    lhs, rhs, bias, _ = operands
    starts, extents = [0, 6, 6, 12], [4, 0, 5, 5]
    nt = jf.NestedTensor(lhs, jnp.array(extents), jnp.array(starts))
    out = grouped_matmul(nt, rhs, bias=bias)
    want = ref.rows(lhs, rhs, extents, starts)
    for g, span in ref.groups(extents, starts, M):
        want[span] += np.asarray(bias)[g]
    assert_close(out.data, want)
    assert out.gapped


def test_gapped_rows_with_an_empty_group_inside_another(device, operands):
    lhs, rhs, bias, _ = operands
    extents, starts = [6, 0, 3, 0], [1, 3, 9, 2]
    nt = jf.NestedTensor(lhs, jnp.array(extents), jnp.array(starts))
    want = ref.rows(lhs, rhs, extents, starts)
    for g, span in ref.groups(extents, starts, M):
        want[span] += np.asarray(bias)[g]
    assert_close(jf.grouped_matmul(nt, rhs, bias=bias).data, want)


def test_no_groups_and_no_rows(operands):
    lhs, rhs, bias, _ = operands
    out = jf.grouped_matmul(lhs, rhs[:0], [], bias=bias[:0], activation="silu")
    assert out.shape == (M, N) and (np.asarray(out) == 0).all()
    out = jf.grouped_matmul(lhs[:0], rhs, [1, 0, 1, 0], row_index=[0, 3])
    assert out.shape == (2, N) and (np.asarray(out) == 0).all()


def test_vmap_over_nested_bias_and_scale(device, operands):
    lhs, rhs, bias, scale = operands
    extents = jnp.array([EXTENTS, [0, 17, 0, 0]])
    nt = jf.NestedTensor(jnp.stack([lhs, lhs + 1]), extents, ragged_dim=1)
    f = functools.partial(jf.grouped_matmul, activation="silu")
    both = jnp.stack([bias, -bias])
    for axes, given in ((None, bias), (0, both)):
        out = jax.jit(jax.vmap(lambda nt, b: f(nt, rhs, bias=b, row_scale=scale), in_axes=(0, axes)))(nt, given)
        for i in range(2):
            want = truth(nt.data[i], rhs, given if axes is None else given[i], scale, silu, extents[i])
            assert_close(out.data[i], want)


def test_operator_matmul(operands):
    lhs, rhs, *_ = operands
    nt = jf.as_nested(lhs, extents=EXTENTS)
    assert_close((nt @ rhs).data, truth(lhs, rhs))


ERRORS = {
    "rhs has 2 groups but lhs has 4; for local experts pass group_offset=": lambda x, w: jf.grouped_matmul(x, w[:2]),
    "lhs has k=6 but rhs (4, 8, 6) as (groups, k, n) has k=8": lambda x, w: jf.grouped_matmul(x, jnp.swapaxes(w, 1, 2)),
    "rhs must be (groups, k, n), got (6, 8)": lambda x, w: jf.grouped_matmul(x, w[0]),
    "an even number of columns in rhs, got 7": lambda x, w: jf.grouped_matmul(x, w[..., 1:], activation="swiglu"),
    "activation 'tanh' is unknown; pass a function": lambda x, w: jf.grouped_matmul(x, w, activation="tanh"),
    "bias must be (groups, n)=(4, 8), got (8,); pass a row for each group of rhs: jnp.broadcast_to": lambda x, w: (
        jf.grouped_matmul(x, w, bias=jnp.ones(8))
    ),
    "row_scale must have one value per row (17,), got (3,); reshape it, or give padding rows some values, too": (
        lambda x, w: jf.grouped_matmul(x, w, row_scale=jnp.ones(3))
    ),
    "row_scale must be real, got complex64; pass its real part": lambda x, w: jf.grouped_matmul(
        x, w, row_scale=jnp.ones(17, complex)
    ),
    "bias must be an array, got a str": lambda x, w: jf.grouped_matmul(x, w, bias="none"),
    "bias must be an array of numbers, got key<fry>; see jax.random.key_data": lambda x, w: jf.grouped_matmul(
        x, w, bias=jax.random.split(jax.random.key(0), (4, 8))
    ),
    "group_sizes= is needed": lambda x, w: jf.grouped_matmul(x.data, w),
    "group_sizes= needs lhs as an array": lambda x, w: jf.grouped_matmul(x, w, EXTENTS),
    "row_index must be (m,)": lambda x, w: jf.grouped_matmul(x[0, 0], w, EXTENTS, row_index=[0]),
    "row_index= needs lhs as an array": lambda x, w: jf.grouped_matmul(x, w, row_index=[0]),
    "group_sizes sum to 18, which exceeds lhs.shape[0]=17": lambda x, w: jf.grouped_matmul(x.data, w, [9, 9, 0, 0]),
    "group_sizes must be non-negative; group_sizes[1]=-1": lambda x, w: jf.grouped_matmul(x.data, w, [9, -1, 0, 0]),
    "group_sizes must be an integer array, got float": lambda x, w: jf.grouped_matmul(x.data, w, [9.0, 0, 0, 0]),
    "rhs must be an array (groups, k, n), got a NestedTensor": lambda x, w: jf.grouped_matmul(x, x),
    "lhs needs a last axis k": lambda x, w: jf.grouped_matmul(x.replace(data=x.data[:, 0]), w),
    "float8_e5m2 x float32 not supported; supported pairs:": lambda x, w: jf.grouped_matmul(
        x.replace(data=x.data.astype(jnp.float8_e5m2)), w
    ),
    "groups of gapped storage must lie in ascending order, but group 2 starts before": lambda x, w: jf.grouped_matmul(
        x.replace(starts=jnp.array([7, 0, 0, 11])), w
    ),
    "operands have different ragged layouts: [4 groups, capacity 17] vs [4 groups, capacity 17]; extents differ at": (
        lambda x, w: jf.grouped_matmul(x, w, row_scale=jf.as_nested(jnp.ones(M), extents=[4, 1, 6, 3]))
    ),
    "group_offset=3 and the 2 groups of rhs exceed 4 groups in all": lambda x, w: jf.grouped_matmul(
        x, w[:2], group_offset=3
    ),
    "rhs has 4 groups, more than the 1 of lhs": lambda x, w: jf.grouped_matmul(x.data, w, [3], group_offset=0),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(operands, message):
    nt = jf.as_nested(operands[0], extents=EXTENTS)
    with pytest.raises((TypeError, ValueError), match=f"grouped_matmul: .*{re.escape(message)}"):
        ERRORS[message](nt, operands[1])


def test_unchecked_and_traced_sizes_are_clipped(operands):
    lhs, rhs, *_ = operands
    want = ref.rows(lhs, rhs, [9, 9, 9, 9])
    assert_close(jf.grouped_matmul(lhs, rhs, [9, 9, 9, 9], validate=False), want)
    assert_close(jax.jit(lambda sizes: jf.grouped_matmul(lhs, rhs, sizes))(jnp.full(4, 9)), want)
