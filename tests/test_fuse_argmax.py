"""argmax and argmin, stacks and lax.reduce_precision inside fused functions."""

import re

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax import lax
from tolerances import assert_close

import jax_fuser as jf

DTYPES = ["float32", "float64", "bfloat16", "float16", "int8", "int32", "int64", "uint8", "uint32", "bool"]
SHAPES = [(1,), (7,), (1, 1), (3, 1), (1, 5), (6, 5, 7), (1023,), (64, 129), (4099, 3), (3, 4099), (1 << 20,)]


def values(shape, dtype, seed=0):
    # Few different ones, so that there are ties.
    x = np.random.default_rng(seed).integers(-9, 10, shape) / 2
    if dtype == "bool":
        return jnp.asarray(x > 1)
    return jnp.asarray(np.abs(x) if dtype.startswith("uint") else x).astype(dtype)


def both(x, axis):
    return jnp.argmax(x, axis), jnp.argmin(x, axis), jnp.argmax(x, axis, keepdims=True)


def check(f, *args):
    assert [cut.primitive for cut in jf.explain(f)(*args).cuts] == []
    with jax.default_device(jax.devices("cpu")[0]):  # on CUDA XLA may find a later NaN
        wanted = f(*(np.asarray(a) for a in args))
    for got, want in zip(jf.fuse(f)(*args), wanted):
        assert got.dtype == want.dtype
        # numpy knows NaN of its own dtypes only.
        np.testing.assert_array_equal(
            *(np.asarray(y).astype(y.dtype if y.dtype != "bfloat16" else "f4") for y in (got, want))
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_axis(device, dtype):
    with jax.enable_x64(True):
        x = values((6, 5, 70), dtype)
        for axis in (0, 1, 2, -1):
            check(lambda x, axis=axis: both(x if dtype == "bool" else x + x, axis), x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device, shape):
    x = values(shape, "float32")
    for axis in {0, len(shape) - 1}:
        check(lambda x, axis=axis: both(x * 2, axis), x)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_the_first_nan_is_both(device, dtype):
    with jax.enable_x64(True):
        x = np.array(values((6, 70), dtype))
        x[0, 9], x[0, 60] = np.nan, np.nan
        x[1], x[2] = np.nan, -np.inf
        x[3], x[4] = np.inf, 1
        x[4, 7:9], x[4, 5] = -0.0, 0.0  # equal
        check(lambda x: both(-x, 1), x)
        check(lambda x: both(-x, 0), x)


@pytest.mark.parametrize("index", ["uint8", "int16", "int32", "int64", "uint32"])
def test_index_dtypes(device, index):
    with jax.enable_x64(True):
        x = values((7, 300), "float32").at[:, 299].set(50)
        check(lambda x: (lax.argmax(x, 1, index), lax.argmin(-x, 1, index), lax.argmax(x[:, :1], 1, index)), x)


def test_what_is_computed_is_compared_in_its_own_dtype(device):
    # In f32 the last one is larger; rounded to bf16 all are equal.
    x = jnp.full((4, 40), 1, "bfloat16")
    y = jnp.linspace(0, 1e-3, 40, dtype="bfloat16")
    check(lambda x, y: both(x + y, 1), x, y)


def test_softmax_and_argmax_are_one_kernel(device):
    x = values((50, 300), "float32")

    def f(x):
        p = jax.nn.softmax(x * 3, -1)
        return jnp.argmax(p, -1), p.max(-1), jax.nn.one_hot(jnp.argmax(p, -1), 300) - p

    report = jf.explain(f)(x)
    (region,) = report.regions
    assert region.kernels.count("segment") == 1 and set(region.reductions) == {"argmax", "reduce_max", "reduce_sum"}
    for got, want in zip(jf.fuse(f)(x), f(x)):
        assert_close(got, want)


def test_transforms(device):
    x = values((5, 6, 7), "float32")
    f = lambda x: jnp.argmax(x * 2, -1)  # noqa: E731
    np.testing.assert_array_equal(jax.vmap(jf.fuse(f))(x), f(x))
    np.testing.assert_array_equal(jax.vmap(jf.fuse(f), 1, 1)(x), f(x))
    g = lambda x: (x * jax.nn.one_hot(jnp.argmax(x, -1), 7)).sum()  # noqa: E731
    assert_close(jax.grad(jf.fuse(g))(x), jax.grad(g)(x))


def test_an_axis_without_elements_is_refused_as_by_jax():
    with pytest.raises(ValueError, match="empty"):
        jf.fuse(lambda x: jnp.argmax(x, 0))(jnp.zeros((0, 3)))
    assert jf.fuse(lambda x: jnp.argmax(x, 1))(jnp.zeros((0, 3))).shape == (0,)


def test_the_axis_is_whole_on_every_device():
    mesh = meshes.mesh(d=4)
    x = values((8, 12), "float32")
    for spec in (("d", None), (None, "d")):
        y = jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))
        np.testing.assert_array_equal(jf.fuse(lambda x: jnp.argmax(x * 2, 1))(y), jnp.argmax(x, 1))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_stack_and_unstack(device, axis):
    x = values((4, 5), "float32")

    def f(x):
        y = jnp.stack([x * 2, jnp.tanh(x), x + 1], axis)
        a, b, c = jnp.unstack(y * y, axis=axis)
        return y, a - b * c

    for got, want in zip(jf.fuse(f)(x), f(x)):
        assert_close(got, want)
    g = lambda x: jnp.stack([x * 2, jnp.tanh(x)], axis)  # noqa: E731
    assert [cut.primitive for cut in jf.explain(g)(x).cuts] == []


def test_a_slice_of_one_element_with_a_long_stride(device):
    x = values((1, 5), "float32")
    assert_close(jf.fuse(lambda x: lax.slice(x * 2, (0, 1), (1, 2), (2, 9)) + 1)(x), x[:1, 1:2] * 2 + 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(("exponent", "mantissa"), [(5, 10), (8, 7), (4, 3), (8, 23), (2, 1), (3, 50)])
def test_reduce_precision(device, dtype, exponent, mantissa):
    with jax.enable_x64(True):
        scale = 2.0 ** np.random.default_rng(0).integers(-20, 21, 999)
        x = np.random.default_rng(1).standard_normal(999) * scale
        x[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 65520]
        x = jnp.asarray(x).astype(dtype)
        f = lambda x: (lax.reduce_precision(-x, exponent, mantissa),)  # noqa: E731
        check(f, x)
        got, want = jf.fuse(f)(x)[0][1:], f(x)[0][1:]  # the sign of a NaN is the machine's
        assert np.array_equal(np.signbit(got), np.signbit(want))


KEYED = ["float32", "bfloat16", "float16", "int8", "int16", "int32", "uint8", "uint16", "uint32"]


@pytest.mark.parametrize("dtype", KEYED)
@pytest.mark.parametrize("op", [jnp.argmax, jnp.argmin])
def test_keys_for_gpus_are_in_the_order_of_elements(op, dtype):
    x = np.array(values((40, 64), dtype))
    if jnp.issubdtype(x.dtype, jnp.floating):
        x[9, 0], x[20, 0], x[3:, 1], x[5, 2], x[7, 3] = np.nan, -np.nan, np.nan, np.inf, -np.inf
        x[:, 4], x[:20, 5], x[20:, 5] = -0.0, 0.0, -0.0
    else:
        x[[3, 30], 0], x[[4, 31], 1] = np.iinfo(dtype).max, np.iinfo(dtype).min
    text = jf.fuse(lambda x: op(x, 0)).lower(x).as_text("segments", platform="cuda")
    [fusion] = re.findall(r"^fusion .*?^}", text, re.MULTILINE | re.DOTALL)
    assert fusion.count("= reduce_") == 1
    with jax.enable_x64(True):
        [got] = jf.ir.evaluate(jf.ir.Fusion(fusion), jnp.asarray(x))
    np.testing.assert_array_equal(got, op(jnp.asarray(x), 0))


def test_one_long_row_is_one_fold_in_parts_on_gpus():
    x = jax.ShapeDtypeStruct((1, 128256), "float32")
    [region] = jf.explain(lambda x: x.argmax(-1), platform="cuda")(x).regions
    assert len(re.findall(r"^segment \d", region.kernels, re.MULTILINE)) == 2
