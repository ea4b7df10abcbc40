"""`jf.ir.evaluate` is what kernels compute, op by op in jnp; `jf.ir.run` differentiates and batches by it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import FLOATS, INTEGERS, all_ops
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _evaluate

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def arguments(fusion, seed=0):
    rng = np.random.default_rng(seed)
    arrays = []
    for name in fusion.inputs:
        dtype, shape = fusion.dtype(name), fusion.shape(name)
        if dtype[0] in "su":
            info = np.iinfo(f"{'u' if dtype[0] == 'u' else ''}int{dtype[1:]}")
            arrays.append(jnp.asarray(rng.integers(info.min, info.max, shape, info.dtype, endpoint=True)))
        else:
            values = rng.uniform(-3, 3, shape)
            arrays.append(jnp.asarray(values, jnp.float64 if dtype == "f64" else DTYPES[dtype]))
    return arrays


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_every_pointwise_op(x64, dtype):
    fusion = jf.ir.Fusion(all_ops(dtype, 5, 77))
    args = arguments(fusion)
    evaluated = jax.jit(functools.partial(jf.ir.evaluate, fusion))(*args)
    for name, got, want in zip(fusion.outputs, jf.ir.run(fusion, *args), evaluated):
        got, want = np.asarray(got), np.asarray(want)
        if dtype in FLOATS:
            finite = np.isfinite(np.float64(want))
            np.testing.assert_array_equal(finite, np.isfinite(np.float64(got)), err_msg=name)
            assert_close(got[finite], want[finite], scale=4)
        else:
            np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("parts", [0, 1, 3, 7])
@pytest.mark.parametrize("dims", [[0], [1], [0, 2]])
def test_reductions_in_parts(device, op, parts, dims):
    b = jf.ir.Builder("parts")
    b.output(b.reduce(f"reduce_{op}", b.input("x", "f32", [7, 11, 5]), dims, parts=parts))
    fusion = b.finish()
    x = jnp.linspace(0.5, 1.5, 7 * 11 * 5).reshape(7, 11, 5)
    [got], [want] = jf.ir.run(fusion, x), jf.ir.evaluate(fusion, x)
    assert_close(got, want)
    if parts:
        assert f"parts={parts}" in str(fusion) and got.shape[dims[0]] == parts
        fold = {"sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min}[op]
        assert_close(fold(got, axis=dims[0]), fold(x, axis=tuple(dims)), scale=5)


@pytest.mark.parametrize("op, dtype", [("and", "s32"), ("or", "u8"), ("xor", "s16"), ("and", "pred"), ("max", "pred")])
def test_logical_reductions(op, dtype):
    b = jf.ir.Builder("logical")
    x = b.input("x", "s32", [9, 4])
    value = b.pointwise("gt", [x, b.broadcast(b.constant("s32", 0), [9, 4], [])]) if dtype == "pred" else x
    b.output(b.reduce(f"reduce_{op}", value if dtype == "pred" else b.convert(x, dtype), [0]))
    fusion = b.finish()
    [x] = arguments(fusion)
    np.testing.assert_array_equal(jf.ir.run(fusion, x)[0], jf.ir.evaluate(fusion, x)[0])


def views(x, y):
    part = jnp.concatenate([x[1:, ::2] * 2, jnp.tanh(y)], axis=1)
    return part.T + jax.lax.broadcasted_iota(jnp.float32, (part.shape[1], 1), 0), x.astype(jnp.bfloat16)[:, None] * 3


def test_views_slices_and_concatenations(device):
    x, y = jnp.linspace(-1, 1, 30).reshape(5, 6), jnp.ones((4, 2))
    fusion = jf.ir.trace(views, x, y)
    for got, also, want in zip(jf.ir.run(fusion, x, y), jf.ir.evaluate(fusion, x, y), views(x, y)):
        assert_close(got, want)
        assert_close(also, want)


@pytest.mark.parametrize("mode, lhs, rhs", [("rows", [12, 8], [3, 8, 4]), ("contraction", [12, 8], [12, 4])])
@pytest.mark.parametrize("starts", [False, True])
def test_grouped_products(mode, lhs, rhs, starts):
    b = jf.ir.Builder("grouped")
    operands = [b.input("lhs", "f32", lhs), b.input("rhs", "f32", rhs), b.input("extents", "s32", [3])]
    own = b.input("starts", "s32", [3]) if starts else None
    b.output(b.grouped_matmul(*operands, own, mode, False, "f32"))
    fusion = b.finish()
    lhs, rhs, *_ = arguments(fusion)
    rest = [jnp.array([3, 0, 5])] + ([jnp.array([0, 4, 6])] if starts else [])
    lhs = lhs.at[-1].set(jnp.nan)  # padding
    assert_close(jf.ir.run(fusion, lhs, rhs, *rest)[0], jf.ir.evaluate(fusion, lhs, rhs, *rest)[0], scale=3)


def softmax(x, b):
    return jax.nn.softmax(x + b, axis=1)


X, B = jnp.linspace(-1, 1, 24).reshape(4, 6), jnp.linspace(0, 1, 6)


@pytest.mark.parametrize("by_hand", [False, True])
def test_run_differentiates_and_batches(device, by_hand):
    fusion = jf.ir.trace(softmax, X, B)
    platform = "cuda" if device.platform == "gpu" else "cpu"
    program = jf.ir.schedule(fusion, "reduction", platform) if by_hand else fusion

    def f(x, b):
        return jf.ir.run(program, x, b)[0]

    def loss(f):
        return lambda x, b: (f(x, b) ** 2 * X).sum()

    assert_close(jax.jit(f)(X, B), softmax(X, B))
    got, want = (jax.grad(loss(g), (0, 1))(X, B) for g in (f, softmax))
    assert_close(got[0], want[0], scale=3)
    assert_close(got[1], want[1], scale=3)
    assert_close(*(jax.jit(jax.vmap(g, (0, None)))(jnp.stack([X, 2 * X]), B) for g in (f, softmax)))
    assert_close(
        *(jax.jit(jax.vmap(jax.grad(loss(g), 1), (0, None)))(jnp.stack([X, 2 * X]), B) for g in (f, softmax)), scale=5
    )
    assert_close(*(jax.jvp(jax.jit(g), (X, B), (X, B))[1] for g in (f, softmax)), scale=3)
    assert_close(*(jax.jit(jax.hessian(loss(g), 1))(X, B) for g in (f, softmax)), scale=9)


def test_an_op_that_only_kernels_have(monkeypatch):
    fusion = jf.ir.trace(lambda x: jnp.tanh(x) + 2.5, X)
    monkeypatch.setattr(_evaluate, "_POINTWISE", {k: v for k, v in _evaluate._POINTWISE.items() if k != "tanh"})
    with pytest.raises(jf.UserError, match=r"evaluate: tanh, which makes t1 of .* has no rule; run the fusion instead"):
        jf.ir.evaluate(fusion, X)
    assert_close(jf.ir.run(fusion, X)[0], jnp.tanh(X) + 2.5)
    with pytest.raises(NotImplementedError, match=r"run: .* no derivative and no batch; evaluate: tanh.*use jf.fuse"):
        jax.grad(lambda x: jf.ir.run(fusion, x)[0].sum())(X)
    with pytest.raises(NotImplementedError, match=r"run: .*use jf.fuse"):
        jax.vmap(lambda x: jf.ir.run(fusion, x)[0])(X[None])


def test_evaluate_checks_its_arrays():
    fusion = jf.ir.trace(softmax, X, B)
    with pytest.raises(TypeError, match=r"evaluate: softmax takes 2 arrays \(x, b\), got 1"):
        jf.ir.evaluate(fusion, X)
    with pytest.raises(ValueError, match=r"evaluate: input b is f32\[6\], got f32\[4,6\]"):
        jf.ir.evaluate(fusion, X, X)


def test_evaluate_is_plain_jax():
    text = str(jax.make_jaxpr(lambda x, b: jf.ir.evaluate(jf.ir.trace(softmax, X, B), x, b))(X, B))
    assert "jax_fuser" not in text and "reduce_sum" in text and "reduce_max" in text


def test_constants_that_are_no_numbers():
    fusion = jf.ir.trace(lambda x: (jnp.where(x > 0, x, jnp.nan), jnp.where(x > 0, x, -jnp.inf)), X)
    for got in (jf.ir.evaluate(fusion, X), jf.ir.run(fusion, X)):
        np.testing.assert_array_equal(got[0], np.where(X > 0, X, np.nan))
        np.testing.assert_array_equal(got[1], np.where(X > 0, X, -np.inf))


def test_64_bit_values_need_x64():
    # top_k packs an element and its index into 64 bits, of which JAX by itself keeps 32.
    fusion = jf.ir.trace(lambda x: jax.lax.top_k(x, 2), X, name="best")
    with pytest.raises(
        jf.UserError, match=r"evaluate: t\d+ of best is s64, which JAX computes with jax_enable_x64 alone"
    ):
        jf.ir.evaluate(fusion, X)
    want = jax.lax.top_k(X, 2)
    jax.tree.map(np.testing.assert_array_equal, tuple(jf.ir.run(fusion, X)), tuple(want))
    with pytest.raises(NotImplementedError, match=r"run: .* no derivative and no batch; evaluate: .*use jf.fuse"):
        jax.vmap(lambda x: jf.ir.run(fusion, x))(X[None])
    with jax.enable_x64(True):
        jax.tree.map(np.testing.assert_array_equal, tuple(jf.ir.evaluate(fusion, X)), tuple(want))
        [values, _] = jax.vmap(lambda x: jf.ir.run(fusion, x))(jnp.stack([X, -X]))
        np.testing.assert_array_equal(values[1], jax.lax.top_k(-X, 2)[0])
