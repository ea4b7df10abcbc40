"""Folds of the rows of each group, under `fuse` and outside of it, against a loop over groups in numpy."""

import functools
import itertools

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from test_cuda_sources import nvrtc_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core, _ffi

ROWS, GROUPS = 700, 5
# Rows of each group, and where they begin if storage has gaps. One program serves all: extents are data.
LAYOUTS = {
    "first empty": ([0, 130, 65, 301, 4], None),
    "last empty": ([257, 1, 128, 3, 0], None),
    "several empty": ([0, 0, 640, 0, 9], None),
    "all empty": ([0, 0, 0, 0, 0], None),
    "all rows in one": ([0, 700, 0, 0, 0], None),
    "even, without padding": ([140] * 5, None),
}
GAPS = {"gaps": ([3, 0, 200, 1, 129], [560, 2, 20, 1, 300]), "gaps, all in one": ([0, 0, 0, 600, 0], [0, 0, 0, 50, 0])}


def slices(extents, starts=None):
    starts = np.cumsum([0, *extents[:-1]]) if starts is None else starts
    return [slice(s, s + n) for s, n in zip(starts, extents)]


def make(layout, h, dtype=np.float32):
    """Return a nested tensor with NaN padding, and its groups."""
    extents, starts = {**LAYOUTS, **GAPS}[layout]
    rng = np.random.default_rng(len(layout) + h)
    x = np.full((ROWS, h), np.nan)
    for part in slices(extents, starts):
        x[part] = rng.uniform(-2, 2, x[part].shape)
    x = x.astype(dtype)
    own = None if starts is None else jnp.array(starts, jnp.int32)
    nt = jf.NestedTensor(jnp.asarray(x), jnp.array(extents, jnp.int32), own)
    return nt, [x[part].astype(np.float64) for part in slices(extents, starts)]


def everything(nt, b):
    """Folds of a computed value, values spread back, and what is computed of both."""
    y = nt * b
    centred = jf.nested.map(lambda x, m: x - m, y, jf.nested.mean(y)[:, None])
    return (
        jf.nested.sum(y),
        jf.nested.max(y),
        jf.nested.min(y),
        jf.nested.logsumexp(y),
        jf.nested.softmax(y).data,
        jf.nested.layer_norm(y, "ragged").data,
        jf.nested.sum(centred * centred),
        jnp.sum(jf.nested.sum(y), axis=-1),
    )


def truth(nt, groups, b):
    parts = [g * w for g, w in zip(groups, np.float64(b)[:, 0])]
    total = [p.sum(0) for p in parts]
    rows = np.zeros((2, ROWS, b.shape[-1]))
    extents, starts = np.asarray(nt.extents), np.asarray(nt.starts)
    for p, at in zip(parts, slices(extents, starts)):
        if len(p):
            e = np.exp(p - p.max(0))
            rows[0, at] = e / e.sum(0)
            rows[1, at] = (p - p.mean(0)) / np.sqrt(p.var(0) + 1e-6)
    with np.errstate(divide="ignore"):
        lse = [np.log(np.exp(p).sum(0)) for p in parts]
    return (
        np.stack(total),
        np.stack([p.max(0, initial=-np.inf) for p in parts]),
        np.stack([p.min(0, initial=np.inf) for p in parts]),
        np.stack(lse),
        rows[0],
        rows[1],
        np.stack([((p - p.mean(0)) ** 2).sum(0) if len(p) else p.sum(0) for p in parts]),
        np.stack(total).sum(-1),
    )


@functools.cache
def fused():
    return jf.fuse(everything)


def scales(h, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(h).uniform(0.5, 1.5, (GROUPS, 1, h)), dtype)


@pytest.mark.parametrize("layout", [*LAYOUTS, *GAPS])
def test_values(device, layout):
    nt, groups = make(layout, 24)
    b = scales(24)
    got = fused()(nt, b)
    for g, want in zip(got, truth(nt, groups, b)):
        np.testing.assert_array_equal(np.isinf(g), np.isinf(want))
        assert_close(np.where(np.isinf(g), 0, g), np.where(np.isinf(want), 0, want), "float32", scale=20)
    again = fused()(nt, b)
    for one, two in zip(got, again):
        np.testing.assert_array_equal(one, two)


def test_values_that_are_not_finite(device):
    """A part of a group may hold nothing finite while the group does."""
    nt, groups = make("first empty", 24)
    x = np.array(nt.data)
    first = 130 + 65  # of the fourth group
    x[first : first + 200, 0] = -np.inf
    x[first + 7, 1] = np.inf
    x[first + 290, 2] = np.nan
    x[first : first + 200, 3], x[first + 200 : first + 301, 3] = -1000, 1000
    got = fused()(nt.replace(data=jnp.asarray(x)), jnp.ones((GROUPS, 1, 24)))
    part = x[first : first + 301].astype(np.float64)
    want = np.array(jax.nn.logsumexp(part[:, :4], axis=0))
    np.testing.assert_allclose(got[3][3, :4], want, rtol=2e-6)
    np.testing.assert_allclose(got[4][first : first + 301, 0], np.exp(part[:, 0] - want[0]), rtol=2e-5)
    assert_close(got[3][3, 4:], np.log(np.exp(groups[3][:, 4:]).sum(0)), "float32")


def test_nothing_is_left_to_xla():
    nt, _ = make("first empty", 24)
    for platform in ("cpu", "cuda"):
        report = jf.explain(everything, platform=platform)(nt, scales(24))
        assert not report.cuts
        # Rows are read by few kernels: the largest, the sums with both, the norm's, and what is stored for each row.
        readers = [s for r in report.regions for s in r.segments if any(f.shape == (ROWS, 24) for f in s.reads)]
        assert len(readers) <= 8


def test_softmax_reads_rows_in_two_kernels():
    nt, _ = make("first empty", 24)
    report = jf.explain(lambda nt: jf.nested.softmax(nt).data, platform="cuda")(nt)
    large = [
        s
        for r in report.regions
        for s in r.segments
        if any(np.prod(f.shape) >= ROWS * 24 for f in (*s.reads, *s.writes))
    ]
    assert len(large) == 2


def test_derivative_of_softmax_reads_its_result_alone():
    nt, _ = make("first empty", 100)

    def derivative(x, ct):
        return jax.vjp(lambda x: jf.nested.softmax(nt.replace(data=x)).data, x)[1](ct)[0]

    report = jf.explain(derivative, platform="cuda")(nt.data, nt.data)
    reads = [
        sum(np.prod(f.shape) == nt.data.size for f in s.reads)
        for r in report.regions
        for s in r.segments
        if "change" in s.name
    ]
    # The result and the cotangent: once for a sum for each group, once for what is stored.
    assert sorted(n for n in reads if n) == [2, 2]


def test_derivative_of_log_softmax_in_16_bits_has_all_digits():
    rows = 3080  # the logarithm of a share of which is rounded by 0.03

    def first(x):
        return jf.nested.log_softmax(jf.as_nested(x, extents=[rows])).data[0].astype("f4").sum()

    got = jax.grad(first)(jnp.zeros((rows, 4), jnp.bfloat16))
    np.testing.assert_allclose(np.float32(got[1:]), -1 / rows, rtol=5e-3)


@pytest.mark.parametrize("axis", ["ragged", "group"])
def test_softmax_of_infinities_is_that_of_dense_arrays(device, axis):
    x = np.random.default_rng(0).normal(size=(900, 100)).astype("f")
    x[:300, 0], x[5, 1], x[7, 2], x[:, 3] = -np.inf, -np.inf, np.inf, -np.inf
    x[850:] = np.nan
    nt = jf.as_nested(x, extents=[300, 0, 550])
    for f, dense in ((jf.nested.softmax, jax.nn.softmax), (jf.nested.log_softmax, jax.nn.log_softmax)):
        parts = [x[:300], x[300:850]] if axis == "ragged" else [x[:850]]
        got = np.asarray(f(nt, axis).data)
        np.testing.assert_allclose(got[:850], np.concatenate([dense(p, axis=0) for p in parts]), rtol=2e-5, atol=2e-6)
        assert not got[850:].any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "int8", "bool"])
def test_dtypes(device, dtype):
    nt, _ = make("first empty", 3)
    x = jnp.nan_to_num(nt.data)
    nt = nt.replace(data=(x > 0) if dtype == "bool" else (3 * x).astype(dtype))
    folds = {"sum": 0, "max": None, "min": None}
    got = jf.fuse(lambda nt: [getattr(jf.nested, f)(nt) for f in folds])(nt)
    groups = [np.asarray(nt.data[s]) for s in slices(LAYOUTS["first empty"][0])]
    for name, g in zip(folds, got):
        wide = [p.astype(np.float64) for p in groups]
        want = np.stack([getattr(p, name)(0) if len(p) else np.zeros(3) for p in wide])
        assert g.dtype == getattr(jnp, name)(nt.data[:1], 0).dtype
        filled = np.where(nt.extents[:, None] > 0, np.float64(g), 0)
        if name == "sum" and dtype.endswith("float16"):
            assert_close(filled, want, dtype)
        else:
            np.testing.assert_array_equal(filled, want)
    if dtype == "int8":
        assert np.asarray(got[1][0]).tolist() == [-128] * 3


def group_loss(x, b, spans):
    total = 0.0
    for s, w in zip(spans, b):
        if s.stop > s.start:
            y = jnp.tanh(x[s] * w)
            total += jnp.sum(jax.nn.softmax(y, axis=0) ** 2 + y.max(0) + y * y.mean(0))
    return total


def nested_loss(nt, b):
    y = jf.nested.map(lambda x, b: jnp.tanh(x * b), nt, b)
    top = jf.nested.max(y)
    # Of a shift by a group's own value every row of the group has a part.
    both = jf.nested.softmax(y) * jf.nested.softmax(y)
    rest = jf.nested.sum(y) * jf.nested.mean(y)
    return jnp.sum(both.data) + _rows(nt, jnp.where(jnp.isfinite(top), top, 0)) + jnp.sum(rest)


def _rows(nt, values):
    return jnp.sum(values * nt.extents[:, None])


@pytest.mark.parametrize("h", [3, 100])
def test_gradients(device, h):
    """With 100 columns nested functions are kernels by themselves, too."""
    nt, _ = make("first empty", h)
    b, spans = scales(h), slices(LAYOUTS["first empty"][0])
    x = nt.data

    def loss(x, b):
        return nested_loss(nt.replace(data=x), b)

    want = jax.jit(jax.grad(lambda x, b: group_loss(x, b, spans), argnums=(0, 1)))(x, b)
    for f in (jf.fuse(loss),) if h == 3 else (loss,):
        for g, w in zip(jax.jit(jax.grad(f, argnums=(0, 1)))(x, b), want):
            assert_close(g, w, "float32", scale=20)


def test_second_derivatives(device):
    nt, _ = make("first empty", 3)
    b, spans = scales(3), slices(LAYOUTS["first empty"][0])

    def ours(b):
        return jnp.sum((jf.nested.softmax(nt * b) * jf.nested.softmax(nt * b)).data)

    def exact(b):
        parts = [(nt.data[s], w) for s, w in zip(spans, b) if s.stop > s.start]
        return sum(jnp.sum(jax.nn.softmax(x * w, axis=0) ** 2) for x, w in parts)

    got, want = (jax.jit(lambda b, f=f: jax.jvp(jax.grad(f), (b,), (b,))[1])(b) for f in (jf.fuse(ours), exact))
    assert_close(got, want, "float32", scale=50)


def test_an_extreme_value_shares_its_gradient(device):
    x = jnp.array([[2.0], [1.0], [2.0], [5.0], [jnp.nan]])
    nt = jf.NestedTensor(x, jnp.array([3, 0, 1], jnp.int32))
    top = jf.fuse(lambda x: jnp.where(nt.extents[:, None] > 0, jf.nested.max(nt.replace(data=x)), 0).sum())
    np.testing.assert_array_equal(jax.grad(top)(x)[:, 0], [0.5, 0, 0.5, 1, 0])
    np.testing.assert_array_equal(jax.jvp(top, (x,), (jnp.arange(5.0)[:, None],))[1], 4.0)


def others(p):
    """Return for each row the product of all others."""
    return np.stack([np.delete(p, i, 0).prod(0) for i in range(len(p))]) if len(p) else p


@pytest.mark.parametrize("layout", ["first empty", "all rows in one", "gaps"])
def test_products_and_their_derivatives(device, layout):
    """Of no zero, one and two in a group; and of rows whose product is too small to hold, but not without one."""
    nt, _ = make(layout, 5)
    where = slices(*{**LAYOUTS, **GAPS}[layout])
    x = np.exp2(np.asarray(nt.data) / 16)
    for s in where:
        x[s][:1, 1] = x[s][-1:, 2] = x[s][1:2, 2] = 0
        x[s][:2, 3] = 1e-30
    nt, weights = nt.replace(data=jnp.asarray(x)), np.arange(1.0, 6.0, dtype="f")[:, None]
    groups, slope = [np.float64(x[s]) for s in where], np.zeros(x.shape)
    for s, p, w in zip(where, groups, weights):
        slope[s] = np.float32(others(p) * w)
    run = jax.jit(lambda f, x: jax.value_and_grad(lambda x: (f(x) * weights).sum())(x), static_argnums=0)
    for f in (jf.nested.prod, jf.fuse(jf.nested.prod)):
        assert_close(f(nt), np.stack([p.prod(0) for p in groups]), "float32", scale=4)
        got, again = (run(lambda x, f=f: f(nt.replace(data=x)), nt.data)[1] for _ in range(2))
        assert_close(got / np.where(slope, slope, 1), np.sign(slope), "float32", scale=20)
        np.testing.assert_array_equal(got, again)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "uint8", "bool"])
def test_products_of_dtypes(device, dtype):
    x = np.random.default_rng(1).choice([0.5, 2.0] if "float" in dtype else [0, 1, 2, 3, 5], (ROWS, 3))
    x[:8] = 1
    x[8:72:2], x[9:72:2] = 2.0, (0.5 if "float" in dtype else 1.0)
    nt = jf.as_nested(jnp.asarray(x).astype(dtype), extents=[3, 0, 19, 100])
    got = jf.fuse(lambda nt: [jf.nested.prod(nt, axis) for axis in ("ragged", "group")])(nt)
    wide = np.asarray(nt.data[:122]).astype(np.int64 if "float" not in dtype else np.float64)
    want = [np.stack([p.prod(0) for p in np.split(wide, [3, 3, 22])]), wide.prod(0)]
    for g, w in zip(got, want):
        assert g.dtype == jnp.prod(nt.data, 0).dtype
        w = w.astype(np.uint64).astype(g.dtype) if "float" not in dtype else w.astype(g.dtype)
        np.testing.assert_array_equal(np.asarray(g), w)


def test_second_derivatives_of_products(device):
    """Of `x y z` by `x` and `y` it is `z`: zeros and other groups, even of NaN, do not change that."""
    x = jnp.array([2.0, 3.0, 0.0, 5.0, 4.0, jnp.nan, 7.0, jnp.inf])
    nt = jf.as_nested(x, extents=[2, 3, 0, 1, 1])
    got = np.asarray(jax.jit(jax.hessian(lambda x: jf.nested.prod(nt.replace(data=x))[:2].sum()))(x))
    want = np.zeros((8, 8))
    want[0, 1], want[2, 3], want[2, 4] = 1, 4, 5
    np.testing.assert_array_equal(got[:5], (want + want.T)[:5])


def two(h):
    """Return two outer indices with layouts of their own."""
    (a, groups_a), (b, groups_b) = make("first empty", h), make("all rows in one", h)
    data, extents = jnp.stack([a.data, b.data]), jnp.stack([a.extents, b.extents])
    return jf.NestedTensor(data, extents, ragged_dim=1), (groups_a, groups_b)


@pytest.mark.parametrize("h", [6, 60])
def test_vmap_and_outer_dimensions(device, h):
    nt, groups = two(h)

    def f(nt):
        return jf.nested.sum(nt), jf.nested.softmax(nt * 2).data

    b = np.full((GROUPS, 1, h), 2.0)
    wants = [truth(nt[d], groups[d], b) for d in range(2)]
    want = np.stack([w[0] for w in wants]) / 2, np.stack([w[4] for w in wants])
    fn = jf.fuse(f) if h == 6 else f  # with 60 columns it is kernels by itself
    for run in (jax.jit(fn), jax.jit(jax.vmap(fn))):
        for g, w in zip(run(nt), want):
            assert_close(g, w, "float32", scale=20)
    # A layout that a batch shares.
    data = jnp.stack([nt.data[0], 3 * nt.data[0]])
    shared = jax.jit(jax.vmap(lambda x: jf.nested.sum(nt[0].replace(data=x))))(data)
    assert_close(shared, np.stack([want[0][0], 3 * want[0][0]]), "float32")


def test_scan_and_checkpoint(device):
    nt, _ = make("several empty", 100)

    def step(x, _):
        y = nt.replace(data=x)
        return (y - jf.nested.mean(y)[:, None] * 0.5).data, jf.nested.sum(y)

    def loss(x):
        last, sums = jax.lax.scan(jax.checkpoint(step), x, length=2)
        return jnp.sum(jnp.where(nt.row_mask()[:, None], last, 0) ** 2) + jnp.sum(sums)

    def want(x):
        parts, total = [x[s] for s in slices(LAYOUTS["several empty"][0])], 0.0
        for p in parts:
            for _ in range(2 if len(p) else 0):
                total, p = total + p.sum(), p - p.mean(0) * 0.5
            total += jnp.sum(p * p)
        return total

    got, slope = jax.jit(jax.value_and_grad(loss))(nt.data)
    value, exact = jax.jit(jax.value_and_grad(want))(nt.data)
    assert_close(got, value, "float32")
    assert_close(slope, exact, "float32", scale=10)


def both(layouts, h):
    made = [make(layout, h)[0] for layout in layouts]
    return jf.NestedTensor(*(jnp.concatenate([getattr(nt, name) for nt in made]) for name in ("data", "extents")))


@pytest.mark.parametrize("fuses", [False, True])
def test_shard_map(device, fuses):
    nt, b = both(["first empty", "all rows in one"], 100), scales(100)
    mesh = meshes.mesh(ep=2)

    def local(nt, b):
        return jf.nested.softmax(nt * b) * jf.nested.sum(nt)[:, None]

    f = jf.fuse(local) if fuses else local
    spread = jax.shard_map(f, mesh=mesh, in_specs=(P("ep"), P()), out_specs=P("ep"))
    got, slope = jax.jit(jax.value_and_grad(lambda b: jnp.sin(spread(nt, b).data).sum()))(b)

    def alone(b):
        halves = [jf.NestedTensor(nt.data[i * ROWS :][:ROWS], nt.extents[i * GROUPS :][:GROUPS]) for i in range(2)]
        return sum(jnp.sin(local(half, b).data).sum() for half in halves)

    want, exact = jax.jit(jax.value_and_grad(alone))(b)
    assert_close(got, want, "float32", scale=10)
    assert_close(slope, exact, "float32", scale=10)


def test_columns_on_a_mesh(device):
    """Each device folds its columns; rows and groups are whole everywhere."""
    nt, groups = make("first empty", 96)
    mesh = meshes.mesh(x=2)
    for spec in (P(None, "x"), P("x")):
        data = jax.device_put(nt.data, NamedSharding(mesh, spec))
        got = jax.jit(jf.fuse(lambda x: jf.nested.softmax(nt.replace(data=x)).data))(data)
        assert_close(got, truth(nt, groups, np.ones((GROUPS, 1, 96)))[4], "float32", scale=20)
        assert spec != P(None, "x") or got.sharding.spec == spec


def test_outer_dimensions_on_a_mesh(device):
    """Each device folds the rows of its outer indices, whichever operand says how they are split."""
    nt, groups = two(6)
    mesh = meshes.mesh(x=2)
    want = np.stack([truth(nt[d], groups[d], np.ones((GROUPS, 1, 6)))[4] for d in range(2)])
    f = jax.jit(jf.fuse(lambda x, e: jf.nested.softmax(jf.NestedTensor(x, e, ragged_dim=1)).data))
    for spec in (P("x"), P()), (P(), P("x")):
        got = f(*(jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip((nt.data, nt.extents), spec)))
        assert_close(got, want, "float32", scale=20)
        assert got.sharding.spec == P("x")


def test_producers_and_consumers_of_other_shapes(device):
    """Dense folds, reshapes and transposes around folds of rows, in one program."""
    nt, groups = make("last empty", 24)

    def f(x):
        y = x.reshape(ROWS, 4, 6).transpose(1, 0, 2)  # [heads, rows, h]
        unit = jax.nn.softmax(jnp.where(nt.row_mask()[:, None], y, 1), axis=-1)
        heads = jf.nested.sum(nt.replace(data=unit.transpose(1, 0, 2).reshape(ROWS, 24)))
        largest = jf.nested.max(nt.replace(data=jnp.abs(x)))
        table = jnp.cumsum(heads, axis=0) * 2 + jnp.where(jnp.isfinite(largest), largest, 0).mean(-1, keepdims=True)
        back = jf.nested.map(lambda x, t: x * t, nt.replace(data=x), table[:, None])
        return table, back.data, jf.nested.sum(back).T

    def unit(p):
        e = np.exp(p.reshape(-1, 4, 6))
        return (e / e.sum(-1, keepdims=True)).reshape(-1, 24)

    heads = np.stack([unit(p).sum(0) for p in groups])
    largest = np.stack([np.abs(p).max(0, initial=0) for p in groups])
    table = np.cumsum(heads, 0) * 2 + largest.mean(-1, keepdims=True)
    rows = np.zeros((ROWS, 24))
    for p, t, at in zip(groups, table, slices(LAYOUTS["last empty"][0])):
        rows[at] = p * t
    want = table, rows, np.stack([(p * t).sum(0) for p, t in zip(groups, table)]).T
    for g, w in zip(jf.fuse(f)(nt.data), want):
        assert_close(g, w, "float32", scale=4)


def test_extents_that_lie_stay_in_bounds(device):
    x, f = jnp.ones((640, 4)), jf.fuse(lambda nt: (jf.nested.sum(nt), jf.nested.max(nt)))
    for extents in ([2000, 2000], [-3, 5], [2**31 - 1, 2**31 - 1], [-(2**31), 4]):
        total, top = f(jf.NestedTensor(x, jnp.array(extents, jnp.int32)))
        assert (np.asarray(total) <= 640).all() and np.isin(np.asarray(top), [1, -np.inf]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cuda_sources(dtype):
    nvrtc_or_skip()
    nt, _ = make("first empty", 24)
    lowered = jf.fuse(everything).lower(nt.replace(data=nt.data.astype(dtype)), scales(24, dtype))
    for program in lowered.as_text("fusion").split("# region")[1:]:
        for _, _, cubin in _core.compile_cuda(program.split("\n", 1)[1], _core.cuda_target_for(90)):
            assert cubin


CALL = "@jax_fuser.program"
FEW = {
    "sum": jf.nested.sum,
    "mean": jf.nested.mean,
    "max": jf.nested.max,
    "prod": jf.nested.prod,
    "logsumexp": jf.nested.logsumexp,
    "softmax": lambda nt: jf.nested.softmax(nt).data,
    "rms_norm": lambda nt: jf.nested.rms_norm(nt, "ragged").data,
}


@pytest.mark.parametrize("name", FEW)
def test_few_elements_are_kernels_on_cpus_alone(name):
    def f(x, extents):
        return FEW[name](jf.as_nested(x, extents=extents))

    def gradient(x, extents):
        return jax.grad(lambda x: jnp.sum(f(x, extents) ** 2))(x)

    extents = jnp.array([1, 0, 17, 3])
    for rows in (210, 21):
        for fn in (f, gradient):
            traced = jax.jit(fn).trace(jnp.ones((rows, 3)), extents)
            cpu, cuda = (traced.lower(lowering_platforms=(p,)).as_text().count(CALL) for p in ("cpu", "cuda"))
            assert cuda == 0
            assert cpu == 0 if rows == 21 else cpu == 1 if fn is f else cpu


def test_few_elements_without_a_compiler(monkeypatch):
    """XLA folds them, and nobody is warned: nothing is lost that GPUs would have."""
    monkeypatch.setattr(_ffi, "can_compile", lambda platform: "no C++ compiler for this test")
    rng, ends = np.random.default_rng(0), [0, 1, 1, 18, 21]
    x, extents = rng.uniform(-2, 2, (23, 3)), np.diff(ends)
    groups = [x[a:b] for a, b in itertools.pairwise(ends)]

    @jax.jit
    def f(x, extents):
        nt = jf.as_nested(x, extents=extents)
        gradient = jax.grad(lambda x: jnp.sum(jf.nested.sum(jf.as_nested(x, extents=extents)) ** 2))
        return jf.nested.sum(nt), jf.nested.max(nt), jf.nested.softmax(nt).data, gradient(x)

    assert "jax_fuser.program" not in f.lower(jnp.asarray(x), jnp.asarray(extents)).as_text()
    total, largest, shares, gradient = f(jnp.asarray(x, jnp.float32), jnp.asarray(extents))
    assert_close(total, np.stack([g.sum(0) for g in groups]), "float32")
    assert_close(largest, np.stack([g.max(0, initial=-np.inf) for g in groups]), "float32")
    padding = np.zeros((2, 3))
    shares_of = [np.exp(g) / np.exp(g).sum(0) for g in groups]
    assert_close(shares, np.concatenate([*shares_of, padding]), "float32")
    assert_close(gradient, np.concatenate([*(0 * g + 2 * g.sum(0) for g in groups), padding]), "float32", scale=10)


def test_few_elements_that_a_batch_makes_many():
    """Whether GPUs are worth a launch is decided by what they are to compute."""
    f = jax.vmap(lambda x: jf.nested.sum(jf.as_nested(x, extents=[1, 15])))
    for batch, calls in ((2, 0), (1 << 12, 1)):
        lowered = jax.jit(f).trace(jnp.ones((batch, 16, 2))).lower(lowering_platforms=("cuda",))
        assert lowered.as_text().count(CALL) == calls


def test_explain_of_few_elements():
    """By themselves they are explained as parts of what is fused; beside fused functions as what XLA runs on GPUs."""
    x = jnp.ones((210, 3))

    def mean(x):
        return jf.nested.mean(jf.as_nested(x, extents=[1, 20]))

    def both(x):
        return jf.fuse(jnp.tanh)(mean(x))

    for platform in ("cpu", "cuda"):
        assert not jf.explain(mean, platform=platform)(x).cuts
    names = {p: [region.name for region in jf.explain(both, platform=p)(x).regions] for p in ("cpu", "cuda")}
    assert names == {"cpu": ["nested_mean", "tanh"], "cuda": ["tanh"]}
    assert "nested_mean" in [cut.primitive for cut in jf.explain(both, platform="cuda")(x).cuts]
