"""Scans inside fused functions: cumsum, cumprod, cummax, cummin, cumlogsumexp along any axis, both ways."""

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax import lax
from tolerances import assert_close

import jax_fuser as jf

FLOATS = ["float32", "float64", "bfloat16", "float16"]
INTEGERS = ["int8", "int32", "int64", "uint8", "uint32"]
SCANS = {"cumsum": lax.cumsum, "cumprod": lax.cumprod, "cummax": lax.cummax, "cummin": lax.cummin}
TRUTH = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}
SHAPES = [(1,), (2,), (7,), (1, 1), (3, 1), (1, 5), (2, 3, 4, 5), (1023,), (64, 129), (4099, 3), (3, 4099), (2, 1, 300)]


def one_region(f, *args):
    """Return the only region of a function of which nothing is left to XLA."""
    report = jf.explain(f)(*args)
    assert [c.primitive for c in report.cuts] == []
    (region,) = report.regions
    return region


def kernels(region):
    return sum(line.startswith("segment") for line in region.kernels.splitlines())


def values(shape, dtype, seed=0):
    x = np.random.default_rng(seed).standard_normal(shape)
    if np.issubdtype(np.dtype(dtype), np.integer):
        return jnp.asarray((x * 50).astype(np.int64).astype(dtype))
    return jnp.asarray(x).astype(dtype)


def accumulated(ufunc, x, axis, reverse):
    x = np.flip(x, axis) if reverse else x
    with np.errstate(all="ignore"):
        y = ufunc.accumulate(x, axis, dtype=x.dtype)
    return np.flip(y, axis) if reverse else y


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_scans_along_every_axis(device, dtype, reverse):
    with jax.enable_x64(True):
        x = values((6, 35, 70), dtype)

        def f(x):
            y = x * 0.03 + 1 if dtype in FLOATS else x ^ 3
            return {(name, axis): scan(y, axis, reverse) for name, scan in SCANS.items() for axis in range(3)}

        # The operand as XLA rounds it, and then exact.
        y = np.asarray(x * 0.03 + 1 if dtype in FLOATS else x ^ 3)
        y = y.astype(np.float64) if dtype in FLOATS else y
        for (name, axis), got in jf.fuse(f)(x).items():
            assert got.dtype == dtype
            assert_close(got, accumulated(TRUTH[name], y, axis, reverse), dtype, scale=8)
        one_region(lambda x: lax.cumsum(x + x, 1, reverse), x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_cumlogsumexp(device, dtype, reverse):
    with jax.enable_x64(True):
        x = values((6, 35, 70), dtype) * 9
        x = x.at[0, 1].set(-jnp.inf).at[1, 2, 5].set(jnp.inf)
        f = lambda x: [lax.cumlogsumexp(-x, axis, reverse) for axis in range(3)]  # noqa: E731
        wide = -np.asarray(x).astype(np.float64)
        for axis, got in enumerate(jf.fuse(f)(x)):
            want = accumulated(np.logaddexp, wide, axis, reverse)
            want[np.isnan(want)] = np.inf  # numpy adds equal infinities as a NaN in some versions
            assert_close(got, want, dtype, scale=2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device, shape):
    def f(x):
        y = jnp.sin(x)
        return [lax.cumsum(y, axis, reverse) * 2 for axis in range(x.ndim) for reverse in (False, True)]

    x = values(shape, "float32")
    wide = np.sin(np.asarray(x, np.float64))
    truth = [accumulated(np.add, wide, axis, reverse) * 2 for axis in range(x.ndim) for reverse in (False, True)]
    for got, want in zip(jf.fuse(f)(x), truth):
        assert_close(got, want, scale=4)


LARGE = [(1 << 20,), (1_000_003,), (100_000, 8), (8, 100_000), (1000, 1000), (3, 70_001), (70_001, 3), (2, 2, 50_000)]


@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_large(device, shape, reverse):
    x = values(shape, "float32")
    f = lambda x: [lax.cumsum(x * x, axis, reverse) for axis in (0, x.ndim - 1)]  # noqa: E731
    wide = np.asarray(x, np.float64) ** 2
    for got, axis in zip(jf.fuse(f)(x), (0, len(shape) - 1)):
        assert_close(got, accumulated(np.add, wide, axis, reverse), scale=4)


@pytest.mark.parametrize("shape", [(1 << 20,), (32_768, 128), (9001, 3), (2, 70_001)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_few_long_rows_are_scanned_in_parts(device, shape, dtype):
    axis = len(shape) - 1 if shape[-1] > 1000 else 0
    x = values(shape, dtype)
    # First what each part adds up to, then what stands before each, then each part.
    assert kernels(one_region(lambda x: lax.cumsum(x * 2, axis) + 1, x)) == 3

    def f(x):
        return [scan(x * 2, axis, reverse) for scan in (lax.cumsum, lax.cummax) for reverse in (False, True)]

    wide = np.asarray(x * 2).astype(np.float64 if dtype != "int32" else np.int32)
    truth = [accumulated(u, wide, axis, reverse) for u in (np.add, np.maximum) for reverse in (False, True)]
    for got, want in zip(jf.fuse(f)(x), truth):
        assert_close(got, want, dtype, scale=4)
    # Scans of scans, and what is between them.
    g = lambda x: lax.cumsum(jnp.tanh(lax.cumsum(x, axis)) * x, axis, reverse=True)  # noqa: E731
    if dtype == "float32":
        assert_close(jf.fuse(g)(x), g(x), scale=40)


def test_what_is_scanned_in_parts_is_read_by_others(device):
    # Places by counting: a scan along one axis, a fold along the other.
    experts = jnp.asarray(np.random.default_rng(1).integers(0, 16, 20_000), jnp.int32)

    def places(experts):
        one_hot = (experts[:, None] == jnp.arange(16)).astype(jnp.int32)
        load = one_hot.sum(0)
        return (one_hot * (jnp.cumsum(one_hot, 0) - 1 + jnp.cumsum(load) - load)).sum(1)

    np.testing.assert_array_equal(np.argsort(jf.fuse(places)(experts)), np.argsort(experts, stable=True))


def test_large_integers_and_products(device):
    x = values((3, 200_000), "int32")
    y = values((200_000,), "float32") * 1e-3 + 1
    got = jf.fuse(lambda x, y: (lax.cumsum(x, 1), lax.cummax(x, 1, reverse=True), lax.cumprod(y, 0)))(x, y)
    np.testing.assert_array_equal(got[0], np.cumsum(x, 1, dtype=np.int32))
    np.testing.assert_array_equal(got[1], accumulated(np.maximum, np.asarray(x), 1, True))
    assert_close(got[2], np.cumprod(np.asarray(y, np.float64)), scale=20)


def test_nan_and_infinities(device):
    x = np.array(values((4, 300), "float32")) * 0.1 + 1  # products neither vanish nor overflow
    x[0, 100], x[1, 200], x[2, 50], x[2, 60] = np.nan, np.inf, -np.inf, np.inf
    for name, scan in SCANS.items():
        for axis in (0, 1):
            for reverse in (False, True):
                got = jf.fuse(lambda x, s=scan, a=axis, r=reverse: s(x * 1, a, r))(x)
                want = accumulated(TRUTH[name], x, axis, reverse)
                np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
                np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


def test_narrow_floats_are_carried_in_f32(device):
    # In bf16 one more is lost from 256 on.
    x = jnp.ones((3, 2000), "bfloat16")
    got = jf.fuse(lambda x: jnp.cumsum(x * 1, 1))(x)
    assert_close(got, np.cumsum(np.ones((3, 2000)), 1), "bfloat16")
    assert float(got[0, -1]) == 2000


def test_booleans(device):
    x = values((6, 70), "float32")

    def f(x):
        above = x > 1
        return jnp.cumsum(above, 1), jnp.cumsum(~above, 0), lax.cumsum(above.astype("int8"), 1, reverse=True)

    for got, want in zip(jf.fuse(f)(x), f(x)):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


# What comes before and after.


def scaled(x):
    s = jnp.cumsum(jnp.exp(x), -1)
    return s / jnp.max(s, -1, keepdims=True)


ONE_KERNEL = {
    "softmax": lambda x: jnp.cumsum(jax.nn.softmax(x, -1), -1) * x,
    "scaled": scaled,
    "twice": lambda x: jnp.cumsum(jnp.cumsum(x, -1) * x, -1),
    "many": lambda x: (jnp.cumsum(x, -1), lax.cummax(x * 2, 1) - x, jnp.cumsum(x, -1).sum(-1), x.max(-1)),
    "columns": lambda x: jnp.cumsum(x - x.mean(0), 0) * jnp.arange(x.shape[1]),
    "backwards": lambda x: lax.cumsum(jnp.tanh(x), 1, reverse=True) - x.sum(1, keepdims=True),
    "broadcast": lambda x: jnp.cumsum(jnp.broadcast_to(x[:, :1] * 2, x.shape), 1) + x,
    "transposed": lambda x: jnp.cumsum((x * 2).T, 0) + 1,
}


@pytest.mark.parametrize("shape", [(50, 300), (300, 50), (5, 3000), (2000, 7)], ids=str)
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(device, name, shape):
    f, x = ONE_KERNEL[name], values(shape, "float32")
    region = one_region(f, x)
    if min(shape) >= 50 and max(shape) <= 300 and name != "columns":  # whose mean is folded in parts
        assert kernels(region) == 1
    with jax.enable_x64(True):
        truth = jax.tree.leaves(f(x.astype("float64")))
    for got, want in zip(jax.tree.leaves(jf.fuse(f)(x)), truth):
        assert_close(got, want, scale=20)


def test_opposite_directions_are_kernels_of_their_own(device):
    def f(x):
        return jnp.cumsum(x * 2, 1) + lax.cumsum(x * 3, 1, reverse=True)

    x = values((50, 300), "float32")
    assert kernels(one_region(f, x)) == 2
    assert_close(jf.fuse(f)(x), f(x), scale=4)


def test_another_axis_than_a_reduction_is_a_kernel_of_its_own(device):
    f = lambda x: jnp.cumsum(jax.nn.softmax(x, 1), 0)  # noqa: E731
    x = values((50, 300), "float32")
    assert kernels(one_region(f, x)) == 2
    assert_close(jf.fuse(f)(x), f(x), scale=4)


# Transforms.


def test_the_gradient_of_a_cumsum_is_one_reversed_cumsum(device):
    x = values((50, 300), "float32")
    f = lambda x: (jnp.sin(jnp.cumsum(x * 2, 1)) ** 2).sum()  # noqa: E731
    report = jf.explain(jf.fuse(jax.grad(f)))(x)
    assert [c.primitive for c in report.cuts] == []
    assert report.regions[0].reductions == ("cumsum", "cumsum")
    text = jf.fuse(jax.grad(f)).lower(x).as_text("fusion")
    assert "scan_sum" in text and "reverse" in text
    with jax.enable_x64(True):
        want = jax.grad(f)(x.astype("float64"))
    assert_close(jax.grad(jf.fuse(f))(x), want, scale=50)  # the sine of a long sum


@pytest.mark.parametrize("name", SCANS)
def test_derivatives(device, name):
    scan = SCANS[name]
    x = values((4, 9, 5), "float32") * 0.1 + 1

    def f(x):
        return jnp.sin(scan(x * 2, 1)).sum()

    assert_close(jax.grad(jf.fuse(f))(x), jax.jit(jax.grad(f))(x), scale=10)
    got, want = (jax.jvp(g, (x,), (x,)) for g in (jf.fuse(f), jax.jit(f)))
    assert_close(got[1], want[1], scale=10)


def test_vmap(device):
    x = values((3, 4, 50), "float32")
    f = lambda x: lax.cumsum(x * 2, 1, reverse=True)  # noqa: E731
    for axis in range(3):
        g = lambda x, axis=axis: jax.vmap(lambda y: lax.cumsum(y * 2, 0), axis, axis)(x)  # noqa: E731
        assert_close(jax.vmap(jf.fuse(lambda y: lax.cumsum(y * 2, 0)), axis, axis)(x), g(x))
    assert_close(jax.vmap(jf.fuse(f))(x), jax.vmap(f)(x))


def test_equal_runs_give_equal_bits(device):
    x = values((7, 100_000), "float32")
    f = jf.fuse(lambda x: jnp.cumsum(x * 2, 1))
    first = np.asarray(f(x))
    for _ in range(3):
        np.testing.assert_array_equal(f(x), first)


def test_the_axis_is_whole_on_every_device():
    mesh = meshes.mesh(d=4)
    x = values((8, 12), "float32")
    for axis in (0, 1):
        f = jf.fuse(lambda x, axis=axis: jnp.cumsum(x * 2, axis) + x.sum(axis, keepdims=True))
        for spec in (("d", None), (None, "d")):
            y = jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))
            got = f(y)
            assert_close(got, np.cumsum(np.asarray(x, np.float64) * 2, axis) + np.asarray(x).sum(axis, keepdims=True))


def test_axes_without_elements():
    for shape in ((0, 3), (3, 0)):
        for axis in (0, 1):
            assert jf.fuse(lambda x, axis=axis: jnp.cumsum(x * 2, axis) + 1)(jnp.zeros(shape)).shape == shape


PARTS = """fusion g(x: f32[64], s: f32[4]) -> (t3) {
  t1: f32[64] = scan_sum(x) {axis=0 parts=4}
  t2: f32[64] = spread(s) {dims=[0]}
  t3: f32[64] = add(t1, t2)
}
"""


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_only_a_scan_in_parts_begins_with_something(platform):
    assert "scan" in jf.ir.lower(jf.ir.Fusion(PARTS), platform).as_text("loops")
    message = r"\[spread\] t2 is what 4 parts of axis 0 begin with; only .* not the add that makes t3"
    for old, new in ((" parts=4", ""), (" parts=4", " parts=8"), ("add(t1", "add(x")):
        with pytest.raises(jf.UserError, match=message):
            jf.ir.lower(jf.ir.Fusion(PARTS.replace(old, new)), platform)
    x = values((64,), "float32")
    if platform == "cpu":
        starts = jnp.arange(4, dtype="float32")
        want = np.cumsum(np.asarray(x).reshape(4, 16), 1) + np.asarray(starts)[:, None]
        assert_close(jf.ir.run(jf.ir.Fusion(PARTS), x, starts)[0], want.reshape(64))
