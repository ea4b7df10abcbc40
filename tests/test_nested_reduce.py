"""Reductions and normalisations against NumPy in float64, group by group."""

import functools

import arrays
import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from test_nested_operators import group_rows, make, nested_of
from tolerances import assert_close

import jax_fuser as jf

EMPTY = {"sum": 0.0, "mean": 0.0, "max": -np.inf, "min": np.inf, "prod": 1.0, "logsumexp": -np.inf}


def reference(name, x, axis):
    """Reduce or normalise `x` in float64; reductions keep no axis."""
    x = x.astype(np.float64)
    if name in EMPTY:
        if x.shape[axis] == 0:
            return np.full(np.delete(x.shape, axis), EMPTY[name])
        if name == "logsumexp":
            return np.log(np.exp(x).sum(axis))
        return getattr(x, name)(axis)
    if x.shape[axis] == 0:
        return x
    e = np.exp(x)
    if name == "softmax":
        return e / e.sum(axis, keepdims=True)
    if name == "log_softmax":
        return x - np.log(e.sum(axis, keepdims=True))
    if name == "layer_norm":
        x = x - x.mean(axis, keepdims=True)
    return x / np.sqrt((x * x).mean(axis, keepdims=True) + 1e-6)


REDUCTIONS = list(EMPTY)
NORMALISATIONS = ["softmax", "log_softmax", "rms_norm", "layer_norm"]
AXES = ["ragged", "group", -1]


@pytest.mark.parametrize("layout", ["ends empty", "all empty", "gaps"])
def test_reductions(layout):
    nt, x = make(layout, 3)
    slices = group_rows(layout)
    rows = np.concatenate([x[s] for s in slices])
    reduce_all = jax.jit(lambda nt: {n: [getattr(jf.nested, n)(nt, axis) for axis in AXES] for n in REDUCTIONS})
    for name, (ragged, group, dense) in reduce_all(nt).items():
        assert_close(ragged, np.stack([reference(name, x[s], 0) for s in slices]), "float32")
        assert_close(group, reference(name, rows, 0), "float32")
        assert dense.shape == (nt.num_groups, "ragged")
        for s in slices:
            assert_close(dense.data[s], reference(name, x[s], 1), "float32")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_extremes_of_eight_bits(device, dtype):
    """Most such formats have no infinity: the lowest number stands for it."""
    nt = jf.as_nested(jnp.array([[-1], [-2], [3], [0]], dtype), extents=[2, 0, 1])
    info = jnp.finfo(dtype)
    ends = (-np.inf, np.inf) if dtype == "float8_e5m2" else (info.min, info.max)
    for find, end, group, ragged in ((jf.nested.max, ends[0], 3, -1), (jf.nested.min, ends[1], -2, -2)):
        assert find(nt, "group").astype("f").tolist() == [group]
        assert find(nt, "ragged").astype("f").ravel().tolist() == [ragged, end, 3]


def test_sums_of_four_bits():
    nt = jf.as_nested(jnp.array([7, 7, -8, 1], jnp.int4), extents=[2, 1])
    assert jf.nested.sum(nt).tolist() == [14, -8] and jf.nested.sum(nt).dtype == jnp.int32


@pytest.mark.parametrize("layout", ["ends empty", "gaps"])
def test_normalisations(layout):
    nt, x = make(layout, 3)
    slices = group_rows(layout)
    rows = np.concatenate([x[s] for s in slices])
    normalise_all = jax.jit(lambda nt: {n: [getattr(jf.nested, n)(nt, axis) for axis in AXES] for n in NORMALISATIONS})
    for name, results in normalise_all(nt).items():
        wants = [np.zeros_like(x) for _ in AXES]
        at = 0
        for s in slices:
            wants[0][s] = reference(name, x[s], 0)
            wants[1][s] = reference(name, rows, 0)[at : at + len(x[s])]
            wants[2][s] = reference(name, x[s], 1)
            at += len(x[s])
        for got, want in zip(results, wants):
            assert_close(got.data, want, scale=5)
            assert got.extents.tolist() == nt.extents.tolist()


def finite_differences(fn, x, slices, eps=1e-6):
    grad = np.zeros(x.shape)
    for index in [(r, c) for s in slices for r in range(s.start, s.stop) for c in range(x.shape[1])]:
        up, down = x.astype(np.float64), x.astype(np.float64)
        up[index] += eps
        down[index] -= eps
        grad[index] = (fn(up) - fn(down)) / (2 * eps)
    return grad


@pytest.mark.parametrize("name", ["mean", "max", "prod", "logsumexp", "softmax", "layer_norm"])
def test_gradients(name):
    """Ragged and joint axes at once, with NaN padding and an empty group."""
    nt, x = make("gaps", 2)
    slices = group_rows("gaps")
    reduces = name in EMPTY
    rng = np.random.default_rng(3)
    w_ragged = rng.normal(size=(4, 2) if reduces else x.shape).astype("f")
    w_group = rng.normal(size=(2,) if reduces else x.shape).astype("f")

    def loss(data):
        parts = [getattr(jf.nested, name)(nt.replace(data=data), axis) for axis in ("ragged", "group")]
        ragged, group = (y if reduces else y.data for y in parts)
        return jnp.vdot(jnp.where(jnp.isfinite(ragged), ragged, 0), w_ragged) + jnp.vdot(group, w_group)

    def exact(data):
        total = 0.0
        for g, s in enumerate(slices):
            part = reference(name, data[s], 0)
            weight = w_ragged[g] if reduces else w_ragged[s]
            total += np.vdot(np.where(np.isfinite(part), part, 0), weight)
        joint = reference(name, np.concatenate([data[s] for s in slices]), 0)
        return total + np.vdot(joint, w_group if reduces else np.concatenate([w_group[s] for s in slices]))

    got = jax.jit(jax.grad(loss))(nt.data)
    assert_close(got, finite_differences(exact, x, slices), scale=20)


def test_own_extents_and_transforms():
    x = np.random.default_rng(0).normal(size=(2, 7, 3)).astype("f")
    nt = jf.as_nested(x, extents=[[3, 0, 2], [0, 6, 1]], ragged_dim=1)
    got = jax.jit(jf.nested.sum)(nt)
    assert got.shape == (2, 3, 3)
    assert_close(got[0, 2], x[0, 3:5].sum(0))
    assert_close(got[1, 1], x[1, :6].sum(0))
    assert_close(jf.nested.mean(nt, "group")[0], x[0, :5].mean(0))
    assert_close(jax.vmap(jf.nested.max)(nt), jf.nested.max(nt))
    shared = jf.as_nested(x, extents=[3, 0, 2], ragged_dim=1)
    assert_close(jf.nested.softmax(shared).data[1], jf.nested.softmax(shared[1]).data)


def test_dtypes():
    fns = jf.nested
    nt = jf.as_nested(jnp.ones((300, 2), jnp.bfloat16), extents=[300, 0])
    total, soft = jax.jit(lambda nt: (fns.sum(nt), fns.softmax(nt, -1)))(nt)
    # In bfloat16 the sum would stop at 256.
    assert float(total[0, 0]) == 300 and total.dtype == soft.dtype == jnp.bfloat16
    counts = jf.as_nested(jnp.arange(5, dtype=jnp.int8), extents=[2, 0, 2])
    sums, means, largest, flags = jax.jit(lambda nt: (fns.sum(nt), fns.mean(nt), fns.max(nt), fns.sum(nt > 1)))(counts)
    assert sums.tolist() == [1, 0, 5] and sums.dtype == jnp.int32
    assert means.tolist() == [0.5, 0.0, 2.5] and means.dtype == jnp.float32
    assert largest.tolist() == [1, -128, 3] and largest.dtype == jnp.int8
    assert flags.tolist() == [0, 0, 2]
    wide = counts.replace(data=counts.data.astype(jnp.float32))
    for name in ("logsumexp", *NORMALISATIONS):
        for axis in ("ragged", "group"):
            got, want = (getattr(fns, name)(nt, axis) for nt in (counts, wide))
            assert got.dtype == jnp.float32
            assert_close(getattr(got, "data", got), getattr(want, "data", want), "float32")


def test_nan_stays_in_its_group():
    nt = jf.as_nested(jnp.array([1.0, jnp.nan, 2.0, 3.0, jnp.nan]), extents=[2, 2])
    for got in jax.jit(lambda nt: [getattr(jf.nested, name)(nt) for name in REDUCTIONS])(nt):
        assert np.isnan(got[0]) and np.isfinite(got[1])
    grad = jax.jit(jax.grad(lambda d: jf.nested.sum(jf.nested.softmax(nt.replace(data=d)) * 1.0)[1]))(nt.data)
    assert np.isfinite(grad[2:]).all() and grad[4] == 0


@pytest.mark.parametrize(
    "axis, message",
    [
        (0, "sum: axis 0 is the group dimension alone, where rows do not line up; use axis='ragged'"),
        ("rows", "sum: axis must be 'ragged', 'group' or a dimension of 3, got 'rows'"),
        (3, "sum: axis must be 'ragged', 'group' or a dimension of 3, got 3"),
    ],
)
def test_messages(axis, message):
    with pytest.raises(ValueError, match="^" + message):
        jf.nested.sum(nested_of("gaps", jnp.ones((19, 2))), axis)


def test_sum_under_shard_map(device):
    mesh = meshes.mesh(ep=2)
    spec = jax.sharding.PartitionSpec("ep")
    nt = jf.NestedTensor(jnp.arange(12.0).reshape(6, 2), jnp.array([1, 2, 0, 2], jnp.int32))
    fn = jax.shard_map(
        lambda nt: jf.nested.softmax(nt) * jf.nested.sum(nt)[:, None], mesh=mesh, in_specs=spec, out_specs=spec
    )
    loss = jax.jit(jax.value_and_grad(lambda d: jnp.sum(fn(nt.replace(data=d)).data)))
    value, grad = loss(nt.data)
    assert float(value) == pytest.approx(np.arange(12.0).reshape(6, 2)[:5].sum(), rel=1e-6)
    assert (np.asarray(grad)[5] == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("f", "dense"), [("softmax", jax.nn.softmax), ("log_softmax", jax.nn.log_softmax)])
@pytest.mark.parametrize("rows", [60, 6000])
def test_softmax_of_huge_numbers_is_that_of_dense_arrays(f, dense, dtype, rows):
    """Columns of the lowest number, as masks have them, are even; a share beside huge numbers is exact."""
    x = np.random.default_rng(0).normal(size=(rows, 16)).astype(np.float32)
    x[:, 0] = x[: rows // 2, 1] = float(jnp.finfo(dtype).min)
    x[:, 2] *= 0.1 * float(jnp.finfo(dtype).max)
    x[:, 3] += 1e4
    x = jnp.asarray(x, dtype)
    sizes = [rows // 3, 0, rows - rows // 3]
    got = getattr(jf.nested, f)(jf.as_nested(x, extents=sizes)).data
    ends = np.cumsum(sizes)
    parts = [dense(x[end - n : end].astype(jnp.float32), axis=0) for n, end in zip(sizes, ends) if n]
    want = np.concatenate(parts)
    for column in range(16):  # the logarithms of some are huge
        assert_close(np.float32(got[:, column]), np.float32(jnp.asarray(want[:, column], dtype)), dtype)


@pytest.mark.parametrize("axis", ["ragged", "group"])
@pytest.mark.parametrize("name", NORMALISATIONS)
def test_padding_has_no_derivative(name, axis):
    """Neither by padding nor of what stands there: results are zeros, whatever cotangents say."""
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)), jnp.float32)
    weights = jnp.arange(1.0, 11).reshape(5, 2)

    def f(x):
        return getattr(jf.nested, name)(jf.as_nested(x, extents=[1, 2, 0]), axis).data

    _, moved = jax.jvp(f, (rows,), (weights,))
    assert not np.any(moved[3:])
    got = jax.grad(lambda x: jnp.sum(weights * f(x)))(rows)
    assert_close(got, jax.grad(lambda x: jnp.sum(weights[:3] * f(x)[:3]))(rows))
    assert not np.any(got[3:]) and np.any(got[:3])


@pytest.mark.parametrize("axis", ["ragged", "group"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_an_extreme_of_what_is_computed_beside_it_has_its_gradient(device, name, axis):
    """XLA computes the rows once to fold them, once to compare them, and not to the same bit."""
    extents, x = [1, 6, 3, 2], arrays.array(12, 3, scale=1.5)
    function = lambda x: x * x - jnp.log1p(x * x)  # noqa: E731

    def ours(x):
        rows = jf.nested.map(function, jf.as_nested(x, extents=extents))
        return jnp.sum(getattr(jf.nested, name)(rows, axis))

    def slopes(f, x):
        gradient = jax.grad(f)
        return gradient(x), jax.grad(lambda x: jnp.sum(jnp.sin(gradient(x))))(x)

    def by_groups(x):
        groups = jnp.split(x, np.cumsum(extents)[:-1]) if axis == "ragged" else [x]
        return sum(jnp.sum(getattr(jnp, name)(function(rows), 0)) for rows in groups)

    for got, want in zip(jax.jit(functools.partial(slopes, ours))(x), slopes(by_groups, x)):
        assert_close(got, want, scale=4)
    two = jnp.stack([x, -x])
    got = jax.jit(jax.grad(lambda x: jnp.sum(jax.vmap(ours)(x))))(two)
    for part, of in zip((*got, jax.jit(jax.grad(jf.fuse(ours)))(x)), (*two, x)):
        assert_close(part, jax.grad(by_groups)(of), scale=4)


def test_rows_that_tie_share_the_gradient(device):
    x = jnp.array([[1.0, 2.0], [3.0, 2.0], [3.0, 0.0], [4.0, jnp.nan]])
    for axis in ("ragged", "group"):
        gradient = jax.grad(lambda x, axis=axis: jnp.sum(jf.nested.max(jf.as_nested(x, extents=[3]), axis)))(x)
        np.testing.assert_array_equal(gradient, [[0, 0.5], [0.5, 0.5], [0.5, 0], [0, 0]])


@pytest.mark.parametrize("rows", [6, 4000])
@pytest.mark.parametrize("axis", ["ragged", "group"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_a_nan_makes_the_gradient_of_its_group_nan(device, name, axis, rows):
    """As by the rule of jnp.max, whether a kernel folds the rows or XLA does; not in other groups, nor in padding."""
    x = jnp.arange(1.0, 1 + 8 * rows).reshape(rows, 8).at[1, :7].set(jnp.nan)

    def f(x):
        return jnp.sum(getattr(jf.nested, name)(jf.as_nested(x, extents=[3, 0, rows - 4]), axis))

    want = np.zeros((rows, 8))
    want[: 3 if axis == "ragged" else -1, :7] = np.nan
    largest = name == "max"
    if axis == "ragged":
        want[2 if largest else 0, 7] = 1
        want[-2 if largest else 3] = 1
    else:
        want[-2 if largest else 0, 7] = 1
    for gradient in (jax.grad(f), jax.jit(jax.grad(f)), jax.grad(jf.fuse(f)), jf.fuse(jax.grad(f))):
        np.testing.assert_array_equal(gradient(x), want)
    with jax.disable_jit():
        np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(getattr(jnp, name)(x, 0)))(x[:3])[:, :7], want[:3, :7])
