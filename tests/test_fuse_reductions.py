"""Reductions inside fused functions: every op and dtype against numpy, normalisations, losses and their derivatives."""

import functools

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
AXES = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]


def one_region(f, *args):
    """Return the only region of a function of which nothing is left to XLA."""
    report = jf.explain(f)(*args)
    assert [c.primitive for c in report.cuts] == []
    (region,) = report.regions
    return region


def values(shape, dtype, seed=0):
    x = np.random.default_rng(seed).standard_normal(shape)
    if np.issubdtype(np.dtype(dtype), np.integer):
        return jnp.asarray((x * 50).astype(np.int64).astype(dtype))
    return jnp.asarray(x).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_folds_over_every_axis(device, dtype):
    with jax.enable_x64(True):
        x = values((6, 5, 7), dtype)
        folds = {"sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min}

        def f(x):
            y = x * 0.03 + 1 if dtype in FLOATS else x ^ 3
            return {
                (name, axes, keepdims): fold(y, axis=axes, keepdims=keepdims, **arguments(name))
                for name, fold in folds.items()
                for axes in AXES
                for keepdims in (False, True)
            }

        def arguments(name):
            return {"dtype": x.dtype} if name in ("sum", "prod") else {}

        wide = np.asarray(x).astype(np.float64 if dtype in FLOATS else dtype)
        y = wide * 0.03 + 1 if dtype in FLOATS else wide ^ wide.dtype.type(3)
        for (name, axes, keepdims), got in jf.fuse(f)(x).items():
            kind = {} if name in ("max", "min") else {"dtype": y.dtype}
            want = getattr(np, name)(y, axis=axes, keepdims=keepdims, **kind)
            assert got.dtype == dtype
            assert_close(got, want, dtype, scale=4)  # 210 factors, each of which rounds once


def test_logical_folds(device):
    x = values((6, 5, 7), "int32")
    operators = {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}

    def f(x):
        identity = {"and": np.int32(-1), "or": np.int32(0), "xor": np.int32(0)}
        return {
            (name, axes): lax.reduce(x * 3, identity[name], op, axes) for name, op in operators.items() for axes in AXES
        }

    assert {"reduce_and", "reduce_or", "reduce_xor"} == set(one_region(f, x).reductions)
    for (name, axes), got in jf.fuse(f)(x).items():
        np.testing.assert_array_equal(got, getattr(np, f"bitwise_{name}").reduce(np.asarray(x * 3), axis=axes))


def test_booleans(device):
    x = values((6, 5, 7), "float32")

    def f(x):
        above = x > 0.5
        return [
            g(above, axis=axes, keepdims=keepdims)
            for g in (jnp.any, jnp.all, jnp.sum, jnp.count_nonzero, jnp.max, jnp.min)
            for axes in AXES
            for keepdims in (False, True)
        ]

    for got, want in zip(jf.fuse(f)(x), jax.jit(f)(x)):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


SHAPES = [(1,), (7,), (1, 1), (3, 1), (1, 5), (2, 3, 4, 5), (1023,), (64, 129), (4099, 3), (3, 4099), (2, 1, 300, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device, shape):
    def f(x):
        y = jnp.sin(x)
        return y.sum(), y.sum(0), y.sum(-1), y.max(0, keepdims=True), y - y.mean(-1, keepdims=True), y.min()

    x = values(shape, "float32")
    with jax.enable_x64(True):
        truth = f(x.astype(jnp.float64))
    for got, want in zip(jf.fuse(f)(x), truth):
        assert_close(got, want, scale=10)


@pytest.mark.parametrize("shape", [(1 << 20,), (100_000, 8), (8, 100_000), (1000, 1000)], ids=str)
def test_large(device, shape):
    x = values(shape, "float32")
    f = lambda x: (jnp.sum(x * x), jnp.sum(x * x, 0), jnp.max(x * x, -1), x / jnp.sum(x * x))  # noqa: E731
    wide = np.asarray(x, np.float64)
    y = wide * wide
    for got, want in zip(jf.fuse(f)(x), (y.sum(), y.sum(0), y.max(-1), wide / y.sum())):
        assert_close(got, want, scale=10)


# Parts of 33 rows of 255 elements, and of 8197 elements: none ends with a vector, and the last ones before the others.
ODD_LARGE = [(127, 129, 255), (500_003,), (1_000_003,), (3, 200_003)]


@pytest.mark.parametrize("shape", ODD_LARGE, ids=str)
def test_parts_that_no_vectors_divide_have_lanes(device, shape):
    x = values(shape, "float32")
    f = lambda x: (jnp.sum(x), jnp.max(jnp.abs(x)))  # noqa: E731
    assert "width=1 " not in jf.fuse(f).lower(x).as_text("loops")
    wide = np.asarray(x, np.float64)
    for got, want in zip(jf.fuse(f)(x), (wide.sum(), np.abs(wide).max())):
        assert_close(got, want, scale=10)


def test_narrow_floats_are_folded_in_f32(device):
    # In bf16 one more is lost from 256 on.
    x = jnp.ones((3, 5000), jnp.bfloat16)
    assert_close(jf.fuse(lambda x: lax.reduce_sum(x * 1, (1,)))(x), jnp.full(3, 5000.0), "bfloat16")
    small = jnp.full((4096,), 1e-4, jnp.float16)
    assert_close(jf.fuse(lambda x: lax.reduce_sum(x * 1, (0,)))(small), np.float32(np.float16(1e-4)) * 4096, "float16")


def test_integers_wrap(device):
    x = jnp.full((4, 300), 1 << 30, jnp.int32) + jnp.arange(300)
    np.testing.assert_array_equal(jf.fuse(lambda x: jnp.sum(x + 1, 1))(x), jnp.sum(x + 1, 1))
    f = lambda x: (jnp.sum(x * 3, 1, dtype=jnp.int8), jnp.prod(x * 3, 1, dtype=jnp.int8))  # noqa: E731
    for got, want in zip(jf.fuse(f)(x.astype(jnp.int8)), f(x.astype(jnp.int8))):
        assert got.dtype == jnp.int8
        np.testing.assert_array_equal(got, want)


def test_nan_and_infinity(device):
    x = np.ones((6, 70), np.float32)
    x[1, 3], x[2, 69], x[3, :], x[4, 5] = np.nan, -np.inf, -np.inf, np.inf
    x = jnp.asarray(x)

    def f(x):
        y = x * 2
        return (
            *(g(y, axis=axis) for g in (jnp.max, jnp.min, jnp.sum) for axis in (0, 1, None)),
            *(g(y.astype(jnp.bfloat16), axis=1) for g in (jnp.max, jnp.min)),
            jax.nn.softmax(y),
            jax.nn.logsumexp(y, axis=-1),
        )

    for got, want in zip(jf.fuse(f)(x), jax.jit(f)(x)):
        assert_close(got, want)


@pytest.mark.parametrize("columns", [264, 1001, 4096])
def test_largest_and_smallest_of_rows_of_bf16(columns, device):
    x = np.array(jax.random.normal(jax.random.key(columns), (8, columns)))
    x[1, 0], x[2, -1], x[3, :], x[4, 5], x[5, :] = np.nan, np.nan, -np.inf, np.inf, -0.0
    x = jnp.asarray(x, jnp.bfloat16)
    wide = np.asarray(x.astype(jnp.float32))
    f = lambda x: [g(y, axis=-1) for y in (x, x.astype(jnp.float32)) for g in (jnp.max, jnp.min)]  # noqa: E731
    for got, want in zip(jf.fuse(f)(x), 2 * [wide.max(-1), wide.min(-1)]):
        np.testing.assert_array_equal(got.astype(jnp.float32), want)


def test_no_element(device):
    f = lambda x: ((x + 1).sum(0), (x * 2).sum(), x.sum(0) * 3)  # noqa: E731
    for shape in [(0, 3), (0,), (3, 0)]:
        for got, want in zip(jf.fuse(f)(jnp.ones(shape)), f(jnp.ones(shape))):
            assert_close(got, want)


def monoids(dtype):
    """Folds of the first axis that are primitives of their own."""
    if dtype == "bool":
        return [(lax.bitwise_or, False), (lax.bitwise_and, True), (lax.bitwise_xor, False)]
    if jnp.issubdtype(dtype, jnp.floating):
        return [(lax.add, 0), (lax.mul, 1), (lax.max, -np.inf), (lax.min, np.inf)]
    limits, ones = jnp.iinfo(dtype), ~np.zeros((), dtype)
    bitwise = [(lax.bitwise_or, 0), (lax.bitwise_and, ones)]
    return [(lax.add, 0), (lax.mul, 1), (lax.max, limits.min), (lax.min, limits.max), *bitwise]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint32", "bool"])
def test_folds_of_nothing_are_constants(dtype):
    """The gradient of a pad folds as many elements as the pad has, often none."""
    x = jnp.ones((5, 4), dtype)

    def f(x):
        folds = [lax.reduce(x[:0], np.asarray(start, jnp.dtype(dtype)), op, (0,)) for op, start in monoids(dtype)]
        return [*folds, *[jnp.where(x == 1, fold, x) for fold in folds]]

    for got, want in zip(jf.fuse(f)(x), f(x), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    assert not any(c.primitive.startswith("reduce") for c in jf.explain(f)(x).cuts)


def test_the_gradient_of_edge_pads_is_one_region():
    def f(x):
        return (jnp.pad(x, ((0, 0), (1, 1), (3, 3), (0, 0)), mode="edge") ** 2).sum()

    x = jnp.ones((2, 5, 6, 3))
    assert len(jf.explain(jax.grad(f))(x).regions) == 1
    assert_close(jf.fuse(jax.grad(f))(x), jax.grad(f)(x))


def test_views_are_folded(device):
    def f(x, b):
        wide = jnp.broadcast_to(b, (5, 4, 6))
        return (
            (wide * 2).sum((0, 1)),
            wide.sum(0) + x,
            (x.T * 3).sum(0),
            jnp.transpose(wide * x, (2, 0, 1)).max((0, 2)),
            (jnp.arange(24.0).reshape(4, 6) * 0 + jnp.arange(6.0)).sum(1) * x[:, 0].sum(),
            (x[:, None, :] * x[None]).sum(-1),
        )

    x, b = values((4, 6), "float32"), values((6,), "float32", 1)
    for got, want in zip(jf.fuse(f)(x, b), f(x, b)):
        assert_close(got, want)


def test_scalars_made_by_a_reduction_stay_in_its_region(device):
    def f(x):
        norm = jnp.sqrt(jnp.sum(x * x)) + 1e-6
        return x / norm, norm * 2

    x = values((30, 20), "float32")
    assert one_region(f, x).reductions == ("reduce_sum",)
    for got, want in zip(jf.fuse(f)(x), f(x)):
        assert_close(got, want)


def test_results_broadcast_along_some_of_the_folded_axes(device):
    def f(x):
        total, rows = x.sum(), x.sum((1, 2))
        return (
            jnp.broadcast_to(total, (2,)),
            jnp.broadcast_to(total + 1, (3, 1, 1)),
            jnp.broadcast_to(rows[:, None], (5, 3)),
            jnp.broadcast_to(rows[:, None], (5, 2)),
            x * jnp.broadcast_to(rows[:, None], (5, 3))[:, :, None],
        )

    x = values((5, 3, 2), "float32")
    for got, want in zip(jf.fuse(f)(x), f(x)):
        assert_close(got, want)


# Normalisations and losses.


def layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias


def rms_norm(x, scale, _):
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def batch_norm(x, scale, bias):
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5) * scale + bias


def cross_entropy(x, scale, bias):
    target = jax.nn.one_hot(jnp.arange(x.shape[0]) % x.shape[1], x.shape[1], dtype=x.dtype)
    return -jnp.sum(target * jax.nn.log_softmax(x * scale + bias), -1).mean()


PATTERNS = {
    "softmax": lambda x, s, b: jax.nn.softmax(x * s + b),
    "softmax over columns": lambda x, s, b: jax.nn.softmax(x * s + jnp.sin(x * b), axis=0),
    "softmax with where": lambda x, s, b: jax.nn.softmax(x * s + b, where=x < 1),
    "log_softmax": lambda x, s, b: jax.nn.log_softmax(x * s + b),
    "logsumexp": lambda x, s, b: jax.nn.logsumexp(x * s + b, axis=-1),
    "standardize": lambda x, s, b: jax.nn.standardize(x) * s + b,
    "layer norm": layer_norm,
    "rms norm": rms_norm,
    "batch norm": batch_norm,
    "cross entropy": cross_entropy,
    "l2 loss": lambda x, s, b: jnp.mean((x * s - b) ** 2),
    "mean of two axes": lambda x, s, b: (x[None] * s + b).mean((0, 1)),
    "largest": lambda x, s, b: jnp.max(x * s + b, -1),
}


def pattern_arguments(dtype):
    return tuple(values(shape, dtype, i) for i, shape in enumerate([(9, 33), (33,), (33,)]))


def vjp(f):
    def run(*args):
        out, pull = jax.vjp(f, *args)
        cotangent = np.cos(np.arange(out.size)).reshape(out.shape)
        return pull(jnp.asarray(cotangent, out.dtype))

    return run


def check(f, wanted, dtype, scale):
    args = pattern_arguments(dtype)
    truth = jax.tree.leaves(wanted(*(a.astype(jnp.float32) for a in args)))
    for got, want in zip(jax.tree.leaves(f(*args)), truth):
        assert got.dtype == dtype
        assert_close(got, want, dtype, scale=scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns(device, name, dtype):
    f = PATTERNS[name]
    assert one_region(f, *pattern_arguments(dtype)).reductions
    check(jf.fuse(f), jax.jit(f), dtype, scale=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PATTERNS)
def test_gradients_of_patterns(device, name, dtype):
    f = PATTERNS[name]
    # The derivative of a fused call, and the fused derivative.
    # XLA's kernels may round what they compare with the largest in another way than what they took it from.
    truth = vjp(f) if name == "largest" else jax.jit(vjp(f))
    check(jax.jit(vjp(jf.fuse(f))), truth, dtype, scale=4)
    check(jf.fuse(vjp(f)), truth, dtype, scale=4)
    report = jf.explain(vjp(jf.fuse(f)))(*pattern_arguments(dtype))
    assert [c for c in report.cuts if c.reason != "moves or casts data between ops of XLA"] == []


def tangents(args):
    return tuple(jnp.sin(3 * a) for a in args)


TRANSFORMS = {
    "jit": jax.jit,
    "jvp": lambda f: lambda *args: jax.jvp(f, args, tangents(args)),
    "vmap": lambda f: lambda *args: jax.vmap(f)(*(jnp.stack([a, a * 0.5, a + 1]) for a in args)),
    "vmap of one": lambda f: lambda x, s, b: jax.vmap(f, (None, 0, None))(x, jnp.stack([s, s + 1]), b),
    "vmap of the middle": lambda f: lambda x, s, b: jax.vmap(f, (1, None, None))(jnp.stack([x, x + 1], 1), s, b),
    "vmap of the last": lambda f: (
        lambda x, s, b: jax.vmap(f, (2, 1, None))(jnp.stack([x, x + 1], 2), jnp.stack([s, s], 1), b)
    ),
    "vmap of vjp": lambda f: lambda *args: jax.vmap(vjp(f))(*(jnp.stack([a, a + 1]) for a in args)),
    "vjp of vmap": lambda f: lambda *args: vjp(jax.vmap(f))(*(jnp.stack([a, a + 1]) for a in args)),
    "jvp of vjp": lambda f: lambda *args: jax.jvp(vjp(f), args, tangents(args))[1],
    "jacrev": lambda f: jax.jacrev(f, 1),
    "jacfwd": lambda f: jax.jacfwd(f, 2),
    "checkpoint": lambda f: vjp(jax.checkpoint(f)),
    "scan": lambda f: lambda x, s, b: lax.scan(lambda c, t: (c + f(x, t, b).sum(), c), 0.0, jnp.stack([s, b])),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", ["softmax", "layer norm", "cross entropy"])
def test_transforms(name, transform):
    f, of = PATTERNS[name], TRANSFORMS[transform]
    args = pattern_arguments("float32")
    got, want = jax.jit(of(jf.fuse(f)))(*args), jax.jit(of(f))(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert_close(a, b, scale=10)


def test_a_batch_axis_shifts_the_axes_that_are_folded():
    f = lambda x: (x * 2).sum((0, 2))  # noqa: E731
    x = values((3, 4, 5, 6), "float32")
    for axis in range(4):
        batched = functools.partial(jax.vmap, in_axes=axis, out_axes=1)
        assert_close(batched(jf.fuse(f))(x), batched(f)(x))


def test_in_shard_map():
    devices = meshes.mesh(d=4)
    spec = jax.sharding.PartitionSpec

    def f(x):
        return lax.psum(jf.fuse(lambda x: (jax.nn.softmax(x) * x).sum(0))(x), "d")

    x = values((8, 12), "float32")
    got = jax.shard_map(f, mesh=devices, in_specs=spec("d"), out_specs=spec())(x)
    assert_close(got, (jax.nn.softmax(x) * x).sum(0))


def test_around_a_product(device):
    def f(x, w):
        return (jax.nn.softmax(layer_norm(x, 2.0, 1.0) @ w) @ w.T).sum(0)

    x, w = values((9, 16), "float32"), values((16, 11), "float32", 1)
    assert_close(jf.fuse(f)(x, w), f(x, w), scale=2)
    for got, want in zip(vjp(jf.fuse(f))(x, w), vjp(f)(x, w)):
        assert_close(got, want, scale=4)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_heads_move_in_the_kernel_of_their_norm(platform):
    """Rows are stored elsewhere as a whole: a transpose that leaves the last axis belongs to the kernel before it."""

    def norm(x):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    f = lambda x: jnp.tanh(norm(x).transpose(0, 2, 1, 3)) * 2  # noqa: E731
    x = jax.ShapeDtypeStruct((2, 64, 4, 128), "float32")
    text = jf.fuse(f).lower(x).as_text("loops", platform=platform)
    assert text.count("kernel ") == 1
    # Here rows would be stored element by element.
    text = jf.fuse(lambda x: norm(x).transpose(0, 1, 3, 2)).lower(x).as_text("loops", platform=platform)
    assert text.count("kernel ") == 2


@pytest.mark.parametrize("shape", [(3, 5, 4, 33), (2, 4, 4, 64)])
def test_values_of_norms_whose_heads_move(device, shape):
    x = jnp.asarray(np.random.default_rng(0).standard_normal(shape), "float32")
    y = jnp.asarray(np.random.default_rng(1).standard_normal(shape), "float32")

    def f(x, y):
        p = jax.nn.softmax(x, -1)
        heads = p.transpose(0, 2, 1, 3)
        return heads + y.transpose(0, 2, 1, 3), p, heads.sum(-1) + 1, heads.transpose(1, 0, 2, 3) * x[0, 0, 0]

    for got, want in zip(jf.fuse(f)(x, y), f(x, y), strict=True):
        assert_close(got, want)
