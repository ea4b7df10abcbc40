"""`jax.random` inside fused functions: the same bits as outside, drawn by their reader or in a kernel of their own."""

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf

KEY = jax.random.key(7)
SHAPE = (40, 60)
X = jnp.linspace(-2, 2, 2400).reshape(SHAPE)


def draws(f, *args):
    return sum(region.draws for region in jf.explain(f)(*args).regions)


@pytest.mark.parametrize("shape", [(5000,), (33, 70), (3, 5, 100), (1, 2048)])
@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32, jnp.uint64])
def test_bits_are_those_of_jax(device, shape, dtype):
    with jax.enable_x64(dtype == jnp.uint64):

        def f(key):
            return jax.random.bits(key, shape, dtype) | 1

        assert draws(f, KEY) == 1
        np.testing.assert_array_equal(jf.fuse(f)(KEY), f(KEY))


SAMPLERS = {
    "uniform": lambda key: jax.random.uniform(key, SHAPE, minval=-1, maxval=3),
    "uniform bf16": lambda key: jax.random.uniform(key, SHAPE, jnp.bfloat16),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, SHAPE),
    "bernoulli by row": lambda key: jax.random.bernoulli(key, X[:, :1] / 8 + 0.5, SHAPE),
    "normal": lambda key: jax.random.normal(key, SHAPE),
    "randint": lambda key: jax.random.randint(key, SHAPE, 0, 16),
    "gumbel": lambda key: jax.random.gumbel(key, SHAPE),
    "exponential": lambda key: jax.random.exponential(key, SHAPE),
    "rademacher": lambda key: jax.random.rademacher(key, SHAPE, jnp.float32),
    "two draws": lambda key: sum(jax.random.uniform(k, SHAPE) for k in jax.random.split(key)),
    "a folded key": lambda key: jax.random.uniform(jax.random.fold_in(key, 3), SHAPE),
    "an argmax": lambda key: jnp.argmax(jax.random.gumbel(key, SHAPE), axis=1),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_are_those_of_jax(device, name):
    got, want = jf.fuse(SAMPLERS[name])(KEY), SAMPLERS[name](KEY)
    assert got.dtype == want.dtype
    if jnp.issubdtype(got.dtype, jnp.floating):
        assert_close(got, want)
    else:
        np.testing.assert_array_equal(got, want)


def test_raw_keys_and_many_keys(device):
    raw = jax.random.PRNGKey(3)
    np.testing.assert_array_equal(*(f(raw) for f in (jf.fuse(SAMPLERS["bernoulli"]), SAMPLERS["bernoulli"])))
    keys = jax.random.split(KEY, 3)
    got, want = (jax.vmap(f)(keys) for f in (jf.fuse(SAMPLERS["bernoulli"]), SAMPLERS["bernoulli"]))
    np.testing.assert_array_equal(got, want)
    got, want = (f(keys) for f in (jf.fuse(jax.vmap(SAMPLERS["uniform"])), jax.vmap(SAMPLERS["uniform"])))
    assert_close(got, want)


def dropout_norm(key, x, residual, scale):
    """Dropout, residual and layer norm."""
    keep = jax.random.bernoulli(key, 0.8, x.shape)
    y = jnp.where(keep, x / 0.8, 0) + residual
    y = y - y.mean(axis=1, keepdims=True)
    return y * jax.lax.rsqrt((y * y).mean(axis=1, keepdims=True) + 1e-5) * scale


ARGS = (KEY, X, jnp.cos(X * 9), jnp.linspace(0.5, 1.5, 60))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dropout_residual_and_layer_norm(device, dtype):
    args = (KEY, *(a.astype(dtype) for a in ARGS[1:]))
    assert_close(jf.fuse(dropout_norm)(*args), dropout_norm(KEY, *ARGS[1:]), dtype, scale=3)

    def slopes(f, *args):
        loss = lambda *a: (f(args[0], *a).astype(jnp.float32) * jnp.sin(X)).sum()  # noqa: E731
        return jax.grad(loss, argnums=(0, 1, 2))(*args[1:])

    for got, want in zip(slopes(jf.fuse(dropout_norm), *args), slopes(dropout_norm, *ARGS)):
        assert_close(got, want, dtype, scale=5)


def test_the_mask_is_drawn_once_and_kept_as_a_byte():
    report = jf.explain(jf.fuse(jax.grad(lambda *a: (dropout_norm(*a) * X).sum(), argnums=(1, 2, 3))))(*ARGS)
    assert sum(region.draws for region in report.regions) == 1
    [mask] = [region for region in report.regions if region.draws]
    assert "random_bits" in mask.title(0)
    [flow] = mask.segments[0].writes
    assert (flow.dtype, flow.shape) == ("pred", SHAPE)
    assert {c.primitive for c in report.cuts} <= {"random_unwrap"}
    _, pullback = jax.vjp(jf.fuse(dropout_norm), *ARGS)
    kept = [leaf for leaf in jax.tree.leaves(pullback) if getattr(leaf, "dtype", None) == jnp.bool_]
    assert [leaf.shape for leaf in kept] == [SHAPE]


def test_dropout_does_not_cut_what_is_around_it():
    report = jf.explain(dropout_norm)(*ARGS)
    assert len(report.regions) == 2

    def block(key, x, scale):
        y = jnp.tanh(x / jnp.sqrt((x * x).mean(axis=1, keepdims=True) + 1) * scale)
        return x + jnp.where(jax.random.bernoulli(key, 0.9, x.shape), y, 0)

    report = jf.explain(block)(KEY, X, ARGS[3])
    assert len([s for r in report.regions for s in r.segments]) == 1
    assert_close(jf.fuse(block)(KEY, X, ARGS[3]), block(KEY, X, ARGS[3]))


def dropout(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def noise(key, x):
    return x + 0.1 * jax.random.normal(key, x.shape, x.dtype)


def tokens(key, x):
    u = jax.random.uniform(key, x.shape)
    return jnp.where(u < 0.12, 103, jnp.where(u < 0.135, 7, x))


def two(key, x):
    a, b = jax.random.split(key)
    return jnp.tanh(dropout(a, x)) * jax.nn.relu(noise(b, x)).reshape(x.shape)


@pytest.mark.parametrize("f, shape", [(dropout, (3, 17, 41)), (noise, (1025,)), (tokens, (1, 1031)), (two, (33, 65))])
def test_one_reader_draws_its_bits(device, f, shape):
    x = jnp.cos(jnp.arange(np.prod(shape)).reshape(shape) * 9.0)
    [region] = jf.explain(f)(KEY, x).regions
    assert region.draws == (2 if f is two else 1) and len(region.segments) == 1
    assert_close(jf.fuse(f)(KEY, x), f(KEY, x))
    slope = jax.vjp(f, KEY, x)[1](x)[1]
    assert_close(jax.vjp(jf.fuse(f), KEY, x)[1](x)[1], slope)
    assert_close(jf.fuse(lambda key, x: jax.vjp(f, key, x)[1](x)[1])(KEY, x), slope)


def test_derivatives_draw_no_bits_again():
    def slope(f):
        return lambda key, x: jax.value_and_grad(lambda x: jf.fuse(f)(key, x).sum())(x)

    assert [draws(slope(f), KEY, X) for f in (dropout, noise, two)] == [1, 1, 2]
    kept = jax.tree.leaves(jax.vjp(jf.fuse(dropout), KEY, X)[1])
    assert [(a.dtype, a.shape) for a in kept if getattr(a, "shape", ()) == SHAPE] == [(jnp.bool_, SHAPE)]
    assert not [a for a in jax.tree.leaves(jax.vjp(lambda x: jf.fuse(noise)(KEY, x), X)[1]) if a.shape == SHAPE]


def test_what_would_be_drawn_twice_is_stored():
    def before_and_after(keep, x):
        return jnp.where(keep, jnp.where(keep, x, 0) @ jnp.eye(60), 1)

    def rows_again(keep, x):
        return jax.nn.softmax(x * keep)

    def in_two_orders(keep, x):
        return x * keep, (x * keep).T * 2

    def moved(keep, x):
        return jnp.roll(x * keep, 1, 0) * 2 + x

    def by_xla(keep, x):
        return jnp.where(keep, x, 0) + (keep.astype(float) @ jnp.eye(60))

    def many(keep, x):
        for i in range(500):
            x = jnp.sin(x) + i
        return x * keep

    for f in (before_and_after, rows_again, in_two_orders, moved, by_xla, many):
        of_key = lambda key, x, f=f: f(jax.random.bernoulli(key, 0.7, x.shape), x)  # noqa: E731
        report = jf.explain(of_key)(KEY, X)
        [bits] = [region for region in report.regions if region.draws]
        assert bits.bytes_in <= 16 and bits.bytes_out == X.size
        if f is not many:
            for got, want in zip(
                jax.tree.leaves(jf.fuse(of_key)(KEY, X)), jax.tree.leaves(of_key(KEY, X)), strict=True
            ):
                assert_close(got, want)


def test_a_threshold_that_the_function_computes(device):
    def f(key, x):
        rate = jax.nn.sigmoid(x.mean())
        return jnp.where(jax.random.uniform(key, x.shape) < rate, x, 0) / rate

    assert_close(jf.fuse(f)(KEY, X), f(KEY, X))

    def noisy(key, x):
        u = jax.random.uniform(key, x.shape)
        y = jnp.tanh(x + u)
        return jnp.where(u < y.max(axis=1, keepdims=True) / 2, y, u), u

    for got, want in zip(jf.fuse(noisy)(KEY, X), noisy(KEY, X)):
        assert_close(got, want)


def test_bits_and_regions_never_wait_for_each_other(device):
    def threshold(key, x, p):
        limit = jnp.full(x.shape, p) * 2
        keep = jax.random.uniform(key, x.shape) < limit
        return jnp.where(keep, x, limit), limit

    def row_threshold(key, x, p):
        limit = p.reshape(1, 1) * 2
        keep = jax.random.uniform(key, x.shape) < limit
        return jnp.where(keep, x, limit) + limit

    def key_of_the_data(key, x, p):
        y = jnp.tanh(x)
        seed = jnp.floor(jnp.abs(y).sum()).astype(jnp.int32)
        keep = jax.random.bernoulli(jax.random.key(seed), p, x.shape)
        return jnp.where(keep, y, 0) + y.mean()

    def folded(key, x, p):
        n = jnp.floor(x.max() * 7).astype(jnp.int32)
        keep = jax.random.bernoulli(jax.random.fold_in(key, n), p, x.shape)
        return jnp.where(keep, jnp.cos(x) * n, x)

    for f in (threshold, row_threshold, key_of_the_data, folded):
        got, want = (jax.jit(g)(KEY, X, jnp.float32(0.2)) for g in (jf.fuse(f), f))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert_close(a, b)


def test_what_stays_with_xla():
    for f, key in [
        (lambda key: jax.random.uniform(key, (8,)) * 2, KEY),  # few
        (lambda key: jax.random.uniform(key, SHAPE) * 2, jax.random.key(1, impl="rbg")),
    ]:
        report = jf.explain(f)(key)
        assert "random_bits" in {c.primitive for c in report.cuts}
        assert_close(jf.fuse(f)(key), f(key))
    with jax.threefry_partitionable(False):
        f = SAMPLERS["uniform"]
        assert draws(f, KEY) == 0
        assert_close(jf.fuse(f)(KEY), f(KEY))


def test_scan_and_jit(device):
    def step(f):
        def body(carry, key):
            return f(key, carry, *ARGS[2:]), carry.sum()

        return jax.jit(lambda x: jax.lax.scan(body, x, jax.random.split(KEY, 3))[0])

    assert_close(step(jf.fuse(dropout_norm))(X), step(dropout_norm)(X), scale=5)


def test_on_a_mesh():
    mesh = meshes.mesh(d=4)
    key, x, residual, scale = ARGS
    rows, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
    args = (jax.device_put(key, whole), *(jax.device_put(a, rows) for a in (x, residual)), jax.device_put(scale, whole))
    f = jax.jit(jf.fuse(dropout_norm))
    got = f(*args)
    assert_close(got, dropout_norm(*ARGS), scale=3)
    assert got.sharding.is_equivalent_to(rows, 2)
    assert "all-gather" not in f.lower(*args).compile().as_text()

    def local(f):
        def body(keys, x, residual, scale):
            return f(keys[0], x, residual, scale)

        specs = (P("d"), P("d"), P("d"), P())
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("d"))

    X4 = jnp.tile(x, (4, 1))
    keys = jax.random.split(key, 4)
    got, want = (local(f)(keys, X4, X4, scale) for f in (jf.fuse(dropout_norm), dropout_norm))
    assert_close(got, want, scale=3)
