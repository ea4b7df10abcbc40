"""Every function of nested tensors under every transform: all functions are one program, whose failures have names."""

import functools

import jax
import jax.numpy as jnp
import meshes
import numpy as np
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import nested

ROWS, WIDTH, GROUPS = 8, 4, 3
EXTENTS = np.array([[3, 0, 2], [0, 6, 1]], np.int32)  # of two calls
IDS = jnp.array([2, 0, 2, 0, 0, 9, 9, 9])  # rows that no call owns are dropped
W = jnp.linspace(0.5, 1.5, GROUPS * WIDTH).reshape(GROUPS, 1, WIDTH)
B = jnp.linspace(-1.0, 1.0, WIDTH)


def rows():
    """Return rows `[2, rows, width]` with NaN behind the groups of each call."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, (2, ROWS, WIDTH))
    for call, extents in enumerate(EXTENTS):
        x[call, extents.sum() :] = np.nan
    return x


def of(f):
    """A function of a nested tensor."""
    return lambda x, e: f(jf.as_nested(x, extents=e))


def of_outer(f):
    """A function of a nested tensor with an outer dimension and extents of its own for each outer index."""
    return lambda x, e: f(jf.as_nested(jnp.stack([x, x * 2]), extents=jnp.stack([e, e[::-1]]), ragged_dim=1))


def offsets(e):
    return jnp.concatenate([jnp.zeros_like(e[:1]), jnp.cumsum(e)])


def slope(nt):
    return jnp.sum(jnp.sin((nt * W).data))


# Every one over the rows of each group; over all groups, and over columns, those that differ in how.
REDUCTIONS = {
    "ragged": ["sum", "mean", "max", "min", "prod", "logsumexp", "softmax", "log_softmax", "rms_norm", "layer_norm"],
    "group": ["sum", "max", "prod", "log_softmax", "layer_norm"],
    -1: ["mean", "min", "prod", "softmax", "rms_norm"],
}
FUNCTIONS = {
    "as_nested": lambda x, e: jf.as_nested(x, extents=e),
    "as_nested of offsets": lambda x, e: jf.as_nested(x, offsets(e)),
    "as_nested like": lambda x, e: jf.as_nested(x * 2, like=jf.as_nested(x, extents=e)),
    "partition": lambda x, e: nested.partition(x.T, 1, extents=e),
    "combine": of(lambda nt: nested.combine(nt * 2)),
    "as_flattened": of(lambda nt: jf.as_flattened(nested.align(nt, 2))),
    "from_segment_ids": of(lambda nt: nested.from_segment_ids(nt.data, nt.row_ids(), GROUPS)),
    "from_list": lambda x, e: nested.from_list([(x * (jnp.arange(ROWS) < e.sum())[:, None])[:3], x[:0]], capacity=5),
    "from_padded": lambda x, e: nested.from_padded(x.reshape(2, 4, WIDTH), jnp.minimum(e[:2], 3)),
    "sort_by_group": of(lambda nt: nested.sort_by_group(nt.data, jnp.where(nt.row_mask(), IDS, 9), GROUPS)[0]),
    "to_padded": of(lambda nt: nested.to_padded(nt, 6, fill=-1.0)),
    "select": of(lambda nt: nested.select(nt, 1, max_extent=6)),
    "select by a traced index": of(lambda nt: nested.select(nt, nt.extents[0] // 3, max_extent=6)),
    "outer index": of_outer(lambda nt: nt[1]),
    "map": of(lambda nt: nested.map(lambda y: (jnp.tanh(y), y[:, :2] ** 2), nt)),
    "map with others": of(lambda nt: nested.map(lambda y, w, b, z: y * w + b - z, nt, W, B, nt * 3)),
    "operators": of(lambda nt: -(abs(nt - 1.2) ** 2 + 1) / (2 * nt + W) - nt * B),
    "comparisons": of(lambda nt: nested.map(jnp.where, nt > W, nt, nt * 2)),
    "matmul": of(lambda nt: nt @ jnp.ones((GROUPS, WIDTH, 3))),
    "merge": of(lambda nt: nested.merge(nt * 2, 0, 1)),
    "merge rows": of(lambda nt: nested.merge(nt, 1, 2)),
    "merge outer": of_outer(lambda nt: nested.merge(nt, 0, 2)),
    "split groups": of(lambda nt: nested.split(nt, 0, num=3)),
    "split rows": of(lambda nt: nested.split(nt, 1, factor=2)),
    "align": of(lambda nt: nested.align(nt, 4)),
    "concat groups": of(lambda nt: nested.concat([nt, nt * 2], axis=0)),
    "concat columns": of(lambda nt: nested.concat([nt, nt * 2], axis=-1)),
    "stats": of(lambda nt: nested.stats(nt)),
    "allclose": of(lambda nt: nested.allclose(nt, nested.align(nt, 2))),
    "grad": of(nested.grad(slope)),
    "value_and_grad": of(nested.value_and_grad(slope)),
    "offsets, starts, total": of(lambda nt: (nt.offsets, nt.starts, nt.total)),
    "row_ids, row_mask": of(lambda nt: (nt.row_ids(), nt.row_mask())),
    "replace": of(lambda nt: nt.replace(data=nt.data[:, :1])),
    "sum over outer": of_outer(nested.sum),
}
PLAIN = list(FUNCTIONS)
for _axis, _names in REDUCTIONS.items():
    FUNCTIONS |= {f"{name} {_axis}": of(functools.partial(getattr(nested, name), axis=_axis)) for name in _names}


def leaves(tree):
    """Return the arrays of a result, zero in padding."""

    def clean(x):
        if not isinstance(x, jf.NestedTensor):
            return x
        mask = x.row_mask().reshape(*x.row_mask().shape, *(1,) * (x.data.ndim - 1 - x.ragged_dim))
        return jnp.where(mask, x.data, jnp.zeros((), x.dtype)), x.extents

    found = jax.tree.leaves(jax.tree.map(clean, tree, is_leaf=lambda x: isinstance(x, jf.NestedTensor)))
    # No group at all reduces to infinities, whose differences are NaN.
    return [jnp.where(jnp.isinf(x), 0, x) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in found]


def loss(f, x, e):
    floats = [y for y in leaves(f(x, e)) if jnp.issubdtype(y.dtype, jnp.floating)]
    return sum((jnp.sum(jnp.cos(jnp.arange(y.size)).reshape(y.shape) * y) for y in floats), jnp.sum(x[:0]))


def values(f):
    return lambda x, e: leaves(f(x, e))


def gradients(f):
    return lambda x, e: [jax.grad(loss, argnums=1)(f, x, e)]


def scan(f, *operands):
    """Return results of all calls from a loop, stacked."""
    return jax.lax.scan(lambda total, own: (total + 1, f(*own)), 0, operands)[1]


def shard_map(f, x, e):
    """Return results of both calls, each from a vmap on a device of its own."""
    mesh = meshes.mesh(d=2)
    return jax.shard_map(jax.vmap(f), mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x, e)


def results(transform, kind, x, e):
    """Return by name what each function gives for both calls, all by one program, and the errors of those that fail."""
    failed = {}

    def program(x, e):
        found = {}
        for name, f in FUNCTIONS.items():
            try:
                found[name] = transform(kind(f), x, e)
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
        return found

    return jax.jit(program)(x, e), failed


def differences(got, want):
    """Return by name how results differ."""
    failed = {}
    for name in got:
        try:
            for a, b in zip(got[name], want[name], strict=True):
                assert a.dtype == b.dtype
                assert_close(a, b, scale=4)
        except AssertionError as error:
            failed[name] = str(error)[:300]
    return failed


def spell(failed):
    return "\n".join(f"{name}: {error}" for name, error in failed.items())


def test_values():
    """Under jit and scan, shard_map and vmap: what an eager call gives."""
    x, e = jnp.asarray(rows(), jnp.float32), jnp.asarray(EXTENTS)
    want, failed = results(scan, values, x, e)
    one = {name: [y[0] for y in want[name]] for name in PLAIN}
    failed |= differences({name: values(FUNCTIONS[name])(x[0], EXTENTS[0]) for name in PLAIN}, one)
    assert not failed, spell(failed)
    got, failed = results(shard_map, values, x, e)
    failed |= differences(got, want)
    assert not failed, spell(failed)


def test_gradients():
    """Of a scan of checkpointed functions, shard_map and vmap: what differences of values say, and zero in padding."""
    with jax.enable_x64(True):
        x, e = jnp.asarray(rows()), jnp.asarray(EXTENTS)
        clean = jnp.nan_to_num(x)
        along = jnp.asarray(np.random.default_rng(1).normal(size=x.shape)) * (clean != 0)
        want, failed = results(scan, lambda f: gradients(jax.checkpoint(f)), x, e)

        @jax.jit
        def losses(x):
            return {name: scan(functools.partial(loss, f), x, e).sum() for name, f in FUNCTIONS.items()}

        step = 1e-5
        above, below = losses(clean + step * along), losses(clean - step * along)
        for name, (gradient,) in want.items():
            exact = float(above[name] - below[name]) / (2 * step)
            if not abs(float(jnp.vdot(gradient, along)) - exact) <= 1e-5 * (1 + abs(exact)):
                failed[name] = f"{float(jnp.vdot(gradient, along))} instead of {exact}"
            if np.asarray(gradient)[np.isnan(rows())].any():
                failed[name] = "padding has a gradient"
        assert not failed, spell(failed)
        got, failed = results(shard_map, gradients, x, e)
        failed |= differences(got, want)
        assert not failed, spell(failed)


# Groups of two outer indices in each of two calls, with gaps and in any order.
OUTER = np.array([[[3, 0, 2], [0, 6, 1]], [[1, 1, 1], [0, 0, 0]]], np.int32)
STARTS = np.array([[[4, 8, 1], [0, 1, 7]], [[7, 0, 3], [2, 2, 5]]], np.int32)
GAPPED = {
    "operators": lambda nt: -(abs(nt - 1.2) ** 2 + 1) / (2 * nt + W) - nt * B,
    "as_flattened": jf.as_flattened,
    "to_padded": lambda nt: nested.to_padded(nt, 6, fill=-1.0),
    "split rows": lambda nt: nested.split(nt, nt.ragged_dim + 1, factor=2, blocks=True),
    "concat groups": lambda nt: nested.concat([nt, nt * 2], axis=nt.ragged_dim),
    "prod": nested.prod,
    "softmax": nested.softmax,
}


def test_outer_dimensions_with_gaps():
    """Values and gradients of N-D extents and starts, in a scan on each device, are those of each outer index alone."""
    x = np.random.default_rng(2).uniform(0.5, 1.5, (2, 2, ROWS, WIDTH)).astype(np.float32)
    inside = np.zeros(x.shape[:3], bool)
    for at in np.ndindex(2, 2, GROUPS):
        inside[at[:2]][STARTS[at] : STARTS[at] + OUTER[at]] = True
    x[~inside] = np.nan

    def of_layout(f, ragged_dim):
        def loss(x, e, s):
            floats = leaves(f(jf.NestedTensor(x, e, s, ragged_dim=ragged_dim)))
            split = [y.reshape(2 if ragged_dim else 1, -1) for y in floats if jnp.issubdtype(y.dtype, jnp.floating)]
            return sum(jnp.sum(jnp.cos(jnp.arange(y.shape[1])) * y) for y in split) + jnp.sum(x[:0]), floats

        return jax.grad(jax.checkpoint(loss), has_aux=True)

    def scanned(f):
        return functools.partial(scan, f)

    def on_devices(f):
        mesh = meshes.mesh(d=2)
        return jax.shard_map(scanned(f), mesh=mesh, in_specs=P("d"), out_specs=P("d"))

    got = jax.jit(lambda *a: {n: on_devices(of_layout(f, 1))(*a) for n, f in GAPPED.items()})(x, OUTER, STARTS)
    want = jax.jit(lambda *a: {n: scanned(scanned(of_layout(f, 0)))(*a) for n, f in GAPPED.items()})(x, OUTER, STARTS)
    got, want = ({name: [slope, *floats] for name, (slope, floats) in found.items()} for found in (got, want))
    failed = differences(got, want)
    failed |= {name: "padding has a gradient" for name in got if np.asarray(got[name][0])[~inside].any()}
    assert not failed, spell(failed)


def test_the_table_has_every_function():
    words = " ".join(FUNCTIONS)
    plain = {"NestedTensor", "Stats", "ragged", "same_layout"}  # a class, its result, a word, a Python bool
    assert [name for name in nested.__all__ if name not in plain and name not in words] == []
