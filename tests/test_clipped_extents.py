"""Traced extents that lead past the rows, or are negative: each group has the rows that earlier ones leave."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_cuda_sources import nvrtc_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

ROWS, H, MOST = 8, 3, 2**31 - 1
WILD = {
    "the sum wraps": [3, MOST, MOST],
    "it wraps back": [3, MOST, MOST, 3],
    "each is too much": [MOST, MOST, MOST],
    "past the end": [5, 2, 4, 1],
    "negative": [3, -5, 4],
    "lowest": [-(2**31), 2, 9],
    "both": [MOST, -MOST, 3, MOST],
}
wild = pytest.mark.parametrize("extents", WILD.values(), ids=WILD)


def clipped(extents, rows=ROWS):
    """Return what each group gets, by a loop."""
    left, got = rows, []
    for n in extents:
        got.append(min(max(n, 0), left))
        left -= got[-1]
    return got


def data(*shape):
    return jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32))


def built(x, extents, **more):
    return jf.as_nested(x, extents=extents, **more)


def leaves(result):
    """Return arrays; of nested tensors the rows, since extents are as they were given."""
    return jax.tree.leaves(jax.tree.map(lambda r: getattr(r, "data", r), result, is_leaf=is_nested))


def is_nested(x):
    return isinstance(x, jf.NestedTensor)


def assert_as_clipped(f, x, *several, **more):
    run = jax.jit(lambda x, e: f(built(x, e, **more)))
    for extents in several:
        want = clipped(extents) if np.ndim(extents) == 1 else [clipped(e) for e in extents]
        got, right = (leaves(run(x, jnp.asarray(e, jnp.int32))) for e in (extents, want))
        for one, other in zip(got, right, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(extents))


REDUCTIONS = ["sum", "mean", "max", "min", "prod", "logsumexp", "softmax", "log_softmax", "rms_norm", "layer_norm"]
FUNCTIONS = {
    "accessors": lambda nt: (nt.starts, nt.offsets, nt.total, nt.row_ids(), nt.row_mask(), jf.nested.stats(nt)),
    "reductions": lambda nt: [getattr(jf.nested, n)(nt, a) for n in REDUCTIONS for a in ("ragged", "group")],
    "operators": lambda nt: (nt * 2, -nt, nt + jnp.arange(1.0, nt.num_groups + 1)[:, None, None], nt == nt),
    "padded": lambda nt: [jf.nested.to_padded(nt, n, fill=-1) for n in (1, 4, ROWS)],
    "selected": lambda nt: [jf.nested.select(nt, g, ROWS) for g in range(nt.num_groups)],
    "aligned": lambda nt: [getattr(jf.nested.align(nt, 4), k) for k in ("data", "extents", "starts")],
    "blocks": lambda nt: [getattr(jf.nested.split(nt, "ragged", 2, blocks=True), k) for k in ("data", "extents")],
    "split groups": lambda nt: [getattr(jf.nested.split(nt, 0, num=nt.num_groups), k) for k in ("data", "extents")],
    "merged": lambda nt: [getattr(jf.nested.merge(nt, 1, 2), k) for k in ("data", "extents")],
    "joined": lambda nt: [getattr(jf.nested.concat([nt, nt], axis), k) for axis in (0, 1) for k in ("data", "extents")],
    "flattened": lambda nt: jf.as_flattened(jf.nested.align(nt, 4)),
    "gradients": lambda nt: [
        jf.nested.grad(lambda nt, n=n: jnp.sum(getattr(jf.nested, n)(nt) ** 2))(nt) for n in ("sum", "max", "prod")
    ],
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_nested_functions(function):
    assert_as_clipped(FUNCTIONS[function], data(ROWS, H), *WILD.values())


def test_outer_dimensions():
    extents, x = [[3, MOST, MOST], [-1, 4, 9]], data(2, ROWS, H)
    for f in (FUNCTIONS["accessors"], FUNCTIONS["reductions"], FUNCTIONS["padded"]):
        assert_as_clipped(f, x, extents, ragged_dim=1)
    assert_as_clipped(lambda nt: [getattr(nt.merge(0, 2), k) for k in ("data", "extents")], x, extents, ragged_dim=1)


@wild
def test_values_of_the_accessors(extents):
    want = clipped(extents)
    nt = jax.jit(built)(data(ROWS, H), jnp.asarray(extents, jnp.int32))
    assert nt.offsets.tolist() == [0, *np.cumsum(want)] and nt.starts.tolist() == nt.offsets[:-1].tolist()
    assert nt.total == sum(want)
    assert nt.row_ids().tolist() == [*np.repeat(np.arange(len(want)), want), *[len(want)] * (ROWS - sum(want))]
    for g, (start, n) in enumerate(zip(np.cumsum([0, *want]), want)):
        np.testing.assert_array_equal(nt[g], nt.data[start : start + n])


@wild
def test_fused(extents):
    @jf.fuse
    def f(nt):
        top = jf.nested.max(nt)
        share = jf.nested.map(lambda x, t: jnp.exp(x - t), nt, top[:, None])
        return share, jf.nested.sum(share), jf.nested.prod(nt)

    assert_as_clipped(f, data(ROWS, H), extents)


@pytest.mark.parametrize("mode", ["rows", "contraction", "batch"])
@wild
def test_products(mode, extents):
    groups = len(extents)
    lhs, rhs = {
        "rows": (data(ROWS, 4), data(groups, 4, H)),
        "contraction": (data(ROWS, 4), data(ROWS, H)),
        "batch": (data(ROWS, 2, 4), data(ROWS, 4, H)),
    }[mode]
    dims = {
        "rows": ((([1], [1]), ([], [])), [0], [0]),
        "contraction": ((([0], [0]), ([], [])), [0], []),
        "batch": ((([2], [1]), ([0], [0])), [0], []),
    }[mode]
    numbers = jax.lax.RaggedDotDimensionNumbers(*dims)

    @jax.jit
    def f(lhs, rhs, sizes):
        return jf.ragged_dot_general(lhs, rhs, sizes, numbers)

    want = clipped(extents)
    got = f(lhs, rhs, jnp.asarray(extents, jnp.int32))
    np.testing.assert_array_equal(got, f(lhs, rhs, jnp.asarray(want, jnp.int32)))
    begins, lhs, rhs = np.cumsum([0, *want]), np.float64(lhs), np.float64(rhs)
    spec = {"rows": "mk,kn->mn", "contraction": "mk,mn->kn", "batch": "mrk,mkn->mrn"}[mode]
    parts = []
    for g, (begin, n) in enumerate(zip(begins, want)):
        own = slice(begin, begin + n)
        parts.append(np.einsum(spec, lhs[own], rhs[g] if mode == "rows" else rhs[own]))
    if mode == "contraction":
        assert_close(got, np.stack(parts))
    else:
        whole = np.concatenate(parts)
        assert_close(got, np.pad(whole, [(0, ROWS - len(whole)), *[(0, 0)] * (whole.ndim - 1)]))


@wild
def test_products_of_nested_rows(extents):
    w = data(len(extents), H, 4)
    assert_as_clipped(lambda nt: (nt @ w, jax.grad(lambda w: jnp.sum((nt @ w).data ** 2))(w)), data(ROWS, H), extents)


# More groups of all rows than int32 counts.
GROUPS, MANY = 4200, 1 << 19


@pytest.mark.parametrize("extents", [[MANY - 5, *[MOST] * (GROUPS - 1)], [-1, *[MANY] * (GROUPS - 1)], [100] * GROUPS])
def test_sums_that_wrap_within_the_rows(extents):
    x, want = jnp.ones(MANY), clipped(extents, MANY)
    nt = jax.jit(built)(x, jnp.asarray(extents, jnp.int32))
    np.testing.assert_array_equal(nt.offsets, [0, *np.cumsum(want)])
    assert nt.total == sum(want) and int(nt.row_mask().sum()) == sum(want)
    np.testing.assert_array_equal(jf.nested.sum(nt), want)
    np.testing.assert_array_equal(np.bincount(nt.row_ids(), minlength=GROUPS)[:GROUPS], want)


def test_split_in_the_ir():
    """Components that share rows have more of them together than int32 counts."""
    rows, groups = 70_000, 40_000
    b = jf.ir.Builder("regroup")
    x, s, e = b.input("x", "f32", [rows]), b.input("starts", "s32", [groups]), b.input("sizes", "s32", [groups])
    value, starts, counts = b.split(b.partition(x, s, e, 0, rows), 1, 2)
    for out in (starts, counts, b.reduce("reduce_sum", value, [1, 2])):
        b.output(out)
    parts = rows // 2 + groups
    starts, counts, sums = jf.ir.run(
        b.finish(), np.ones(rows, np.float32), np.zeros(groups, np.int32), np.full(groups, rows, np.int32)
    )
    want = clipped([rows // 2] * groups, parts)
    np.testing.assert_array_equal(counts, want)
    np.testing.assert_array_equal(starts, np.cumsum([0, *want])[:-1])
    np.testing.assert_array_equal(sums, 2 * np.asarray(want))


@pytest.mark.parametrize("groups", [3, GROUPS])
def test_cuda_sources_compile(groups):
    nvrtc_or_skip()
    x, e = jnp.ones((MANY, 4)), jnp.ones(groups, jnp.int32)
    fused = jf.fuse(lambda x, e: jf.nested.softmax(built(x, e)).data)
    text = fused.lower(x, e).as_text("fusion").partition("\n")[2]
    assert ("scan_max" in text) == (groups == GROUPS)
    for _, _, cubin in _core.compile_cuda(text, _core.cuda_target_for(90)):
        assert cubin
