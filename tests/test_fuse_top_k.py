"""lax.top_k inside fused functions, and few columns side by side."""

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax import lax
from tolerances import assert_close

import jax_fuser as jf

FLOATS = ["float32", "bfloat16", "float16"]
DTYPES = [*FLOATS, "int8", "int16", "int32", "uint8", "uint16", "uint32"]
SHAPES = [(1,), (9,), (3, 1), (1, 5), (4, 9, 7), (37, 130), (1023,), (5, 4096), (2000, 16)]


def values(shape, dtype, seed=0):
    # Few different ones, so that there are ties.
    x = np.random.default_rng(seed).integers(-20, 21, shape) / 2
    return jnp.asarray(np.abs(x) if dtype.startswith("uint") else x).astype(dtype)


def kernels(f, *args):
    report = jf.explain(f)(*args)
    assert [cut.primitive for cut in report.cuts] == []
    (region,) = report.regions
    return sum(line.startswith("segment") for line in region.kernels.splitlines())


def check(f, *args):
    """Compare bits, since -0 is below 0 and NaN are ordered."""
    assert [cut.primitive for cut in jf.explain(f)(*args).cuts] == []
    for got, want in zip(jf.fuse(f)(*args), f(*args)):
        assert got.dtype == want.dtype and got.shape == want.shape
        bits = f"uint{8 * got.dtype.itemsize}"
        np.testing.assert_array_equal(np.asarray(got).view(bits), np.asarray(want).view(bits))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(device, dtype):
    for k in (1, 2, 8, 16):
        check(lambda x, k=k: lax.top_k(x, k), values((37, 130), dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device, shape):
    for k in {1, min(3, shape[-1]), min(16, shape[-1])}:
        check(lambda x, k=k: lax.top_k(x * 2, k), values(shape, "float32"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_infinities_and_zeros(device, dtype):
    x = np.array(values((6, 70), "float32"))
    x[0, :5] = [np.nan, np.inf, -np.inf, -0.0, 0.0]
    x[1], x[2], x[3] = -np.inf, 0, np.nan
    x[2, 9], x[3, 9], x[4, 7] = -0.0, 1, np.copysign(np.nan, -1)
    check(lambda x: lax.top_k(x, 16), jnp.asarray(x).astype(dtype))


def test_what_is_computed_is_ordered_in_its_own_dtype(device):
    # In f32 the last one is larger; rounded to bf16 all are equal.
    x, y = jnp.full((4, 40), 1, "bfloat16"), jnp.linspace(0, 1e-3, 40, dtype="bfloat16")
    check(lambda x, y: lax.top_k(x + y, 3), x, y)


def router(x):
    value, index = lax.top_k(jax.nn.softmax(x, -1), 8)
    return value / value.sum(-1, keepdims=True), index


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_router_is_one_kernel(device, dtype):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((300, 128)) * 3).astype(dtype)
    assert kernels(router, x) == 1
    weight, index = jf.fuse(router)(x)
    p = np.asarray(jax.nn.softmax(x.astype("float32"), -1), np.float64)
    want = np.take_along_axis(p, np.asarray(index), -1)
    assert_close(weight, want / want.sum(-1, keepdims=True), dtype)
    if dtype == "float32":
        np.testing.assert_array_equal(index, router(x)[1])


def test_transforms(device):
    x = values((3, 5, 40), "float32")
    f = lambda x: lax.top_k(x * 2, 4)[0]  # noqa: E731
    for axis in (0, 1):
        assert_close(jax.vmap(jf.fuse(f), axis, axis)(x), jax.vmap(f, axis, axis)(x))
    loss = lambda x: (jnp.sin(f(x))).sum()  # noqa: E731
    assert_close(jax.grad(jf.fuse(loss))(x), jax.grad(loss)(x))


REFUSED = {
    "finds the 17 largest; up to 16 fuse": (values((3, 40), "float32"), 17),
    "orders rows of 5000 elements; up to 4096 fuse": (values((3, 5000), "float32"), 2),
    "orders bool": (values((3, 50), "float32") > 0, 2),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused(reason):
    x, k = REFUSED[reason]
    report = jf.explain(lambda x: lax.top_k(x, k)[1] * 2)(x)
    assert {cut.primitive: cut.reason for cut in report.cuts}["top_k"] == reason


def test_the_axis_is_whole_on_every_device():
    mesh = meshes.mesh(d=4)
    x = values((8, 12), "float32")
    for spec in (("d", None), (None, "d")):
        y = jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))
        for got, want in zip(jf.fuse(lambda x: lax.top_k(x * 2, 3))(y), lax.top_k(x * 2, 3)):
            np.testing.assert_array_equal(got, want)


def test_few_columns_are_computed_one_by_one(device):
    x = values((300, 5), "float32")

    def f(x):
        y = jnp.stack([x * 2, jnp.tanh(x), x + 1], -1)
        z = y / (40 + y.max(-1, keepdims=True))
        return z, (z * z).sum(-1), jnp.exp(z).astype("bfloat16")

    assert kernels(f, x) == 1
    for got, want in zip(jf.fuse(f)(x), f(x)):
        assert_close(got, want)


def test_a_reduction_read_at_two_places_is_kept_for_its_row(device):
    # Not for all rows: 64 MiB of sums would not fit.
    f = lambda x: ((s := x.sum(1)) * 2, s * 3)  # noqa: E731
    x = jnp.ones((1 << 20, 4))
    for got, want in zip(jf.fuse(f)(x), f(x)):
        assert_close(got, want)
