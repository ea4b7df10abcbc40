"""The grouped product in its three modes: values, ragged edges, derivatives of any order."""

import functools

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped_reference import MODES, make, run, truth
from tolerances import assert_close

from jax_fuser._row_groups import row_groups


@pytest.mark.parametrize("mode", ["rows", "contraction", "batch"])
@pytest.mark.parametrize("edge", ref.EDGES)
def test_ragged_edges_with_nan_padding(device, mode, edge):
    extents = ref.EDGES[edge]
    lhs, rhs = make(mode, extents)
    padding = ~ref.owned_rows(extents, ref.ROWS)
    want = truth(mode, lhs, rhs, extents)
    lhs[padding] = np.nan
    if not mode.startswith("rows"):
        rhs[padding] = np.nan
    got = run(mode, jnp.asarray(lhs), jnp.asarray(rhs), extents)
    assert_close(got, want)
    if mode == "contraction":
        assert (np.asarray(got)[np.asarray(extents) == 0] == 0).all()
    else:
        assert (np.asarray(got)[padding] == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_gaps_between_groups(device, mode):
    extents, starts = [5, 0, 9, 4], [2, 8, 8, 30]
    lhs, rhs = make(mode, extents)
    want = truth(mode, lhs, rhs, extents, starts)
    lhs[~ref.owned_rows(extents, ref.ROWS, starts)] = np.nan
    assert_close(run(mode, jnp.asarray(lhs), jnp.asarray(rhs), extents, starts), want)


@pytest.mark.parametrize("mode", ["rows", "contraction", "batch"])
@pytest.mark.parametrize("extents, starts", [([30, 30, 30], None), ([50, 5], None), ([5, 90], [33, 38])])
def test_extents_beyond_the_rows_are_clipped(device, mode, extents, starts):
    lhs, rhs = make(mode, extents)
    assert_close(run(mode, jnp.asarray(lhs), jnp.asarray(rhs), extents, starts), truth(mode, lhs, rhs, extents, starts))


@pytest.mark.parametrize("mode", MODES)
def test_nan_stays_in_its_group(device, mode):
    extents = [10, 8, 0, 12]
    lhs, rhs = make(mode, extents)
    want = truth(mode, lhs, rhs, extents)
    poisoned = lhs.copy()
    poisoned[10:18] = np.nan
    got = np.asarray(run(mode, jnp.asarray(poisoned), jnp.asarray(rhs), extents))
    ours = np.zeros(len(got), bool)
    ours[1 if mode == "contraction" else slice(10, 18)] = True
    assert np.isnan(got[ours]).all()
    assert_close(got[~ours], want[~ours])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes(device, mode, dtype):
    extents = ref.EDGES["no_tile_fits"]
    lhs, rhs = (jnp.asarray(x, dtype) for x in make(mode, extents, k=33, n=17))
    got = run(mode, lhs, rhs, extents)
    assert got.dtype == lhs.dtype
    assert_close(got, truth(mode, lhs, rhs, extents))
    wide = run(mode, lhs, rhs, extents, dtype=jnp.float32)
    assert wide.dtype == jnp.float32
    assert_close(wide, truth(mode, lhs, rhs, extents))


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("k", "n"), [(2530, 300), (1055, 2090)])
def test_a_depth_and_columns_of_several_blocks(device, dtype, transpose_rhs, k, n):
    """Blocks that end within a tile: of many rows, of few, of fewer than half a tile."""
    extents = [162, 33, 0, 5]
    rng = np.random.default_rng(0)
    lhs = jnp.asarray(rng.normal(size=(203, k)), dtype).at[200:].set(np.nan)
    rhs = jnp.asarray(rng.normal(size=(4, n, k) if transpose_rhs else (4, k, n)) / k**0.5, dtype)
    want = ref.rows(lhs.at[200:].set(0), rhs, extents, transpose_rhs=transpose_rhs)
    assert_close(run("rows_t" if transpose_rhs else "rows", lhs, rhs, extents), want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sums_over_rows_of_several_blocks(device, dtype):
    extents = [2531, 0, 40]
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.normal(size=(2571, n)) / 50, dtype) for n in (70, 300))
    assert_close(run("contraction", lhs, rhs, extents), ref.contraction(lhs, rhs, extents))


@pytest.mark.parametrize("mode", MODES)
def test_float64(device, mode):
    if device.platform != "cpu":
        pytest.skip("float64 kernels are for CPU")
    extents = ref.EDGES["no_tile_fits"]
    with jax.enable_x64(True):
        lhs, rhs = (jnp.asarray(x) for x in make(mode, extents, dtype=np.float64))
        got = run(mode, lhs, rhs, extents)
        assert got.dtype == jnp.float64
        assert_close(got, truth(mode, lhs, rhs, extents))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "complex64"])
def test_integers_and_complex(device, mode, dtype):
    extents = [3, 0, 5]
    lhs, rhs = (jnp.asarray(np.round(np.abs(x) * 2).astype(dtype)) for x in make(mode, extents, m=10, k=4, n=3))
    out = jnp.int32 if dtype != "complex64" else jnp.complex64
    want = truth(mode, np.asarray(lhs).astype(out), np.asarray(rhs).astype(out), extents)
    np.testing.assert_allclose(np.asarray(run(mode, lhs, rhs, extents, dtype=out)), want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [{"m": 0}, {"k": 0}, {"n": 0}, {"extents": []}])
def test_empty_shapes(device, mode, sizes):
    sizes = {"m": 6, "k": 4, "n": 3, "extents": [2, 1], **sizes}
    extents = sizes.pop("extents")
    lhs, rhs = make(mode, extents, **sizes)
    got = run(mode, jnp.asarray(lhs), jnp.asarray(rhs), extents)
    assert_close(got, truth(mode, lhs, rhs, extents))
    grads = jax.eval_shape(jax.grad(lambda a, b: jnp.sum(run(mode, a, b, extents)), (0, 1)), lhs, rhs)
    assert [g.shape for g in grads] == [lhs.shape, rhs.shape]


def dense(mode, lhs, rhs, extents, starts=None):
    """The same product by plain differentiable JAX ops."""
    name, _, transposed = mode.partition("_")
    m, groups = lhs.shape[0], len(extents)
    group = np.full(m, groups)
    for g, span in ref.groups(extents, starts, m):
        group[span] = g
    onehot = jnp.asarray(group[:, None] == np.arange(groups), lhs.dtype)
    dot = functools.partial(jnp.einsum, precision="highest")
    if name == "rows":
        return dot("mk,gkn,mg->mn", lhs, jnp.swapaxes(rhs, 1, 2) if transposed else rhs, onehot)
    if name == "contraction":
        return dot("mk,mn,mg->gkn", lhs, rhs, onehot)
    return dot("mrk,mkn,mg->mrn", lhs, jnp.swapaxes(rhs, 1, 2) if transposed else rhs, onehot)


@pytest.mark.parametrize("mode", MODES)
def test_derivatives_of_first_and_second_order(device, mode):
    extents, starts = [4, 0, 5, 1], [1, 5, 5, 10]
    lhs, rhs = make(mode, extents, m=12, k=5, n=4)

    def derivatives(f, lhs, rhs):
        def loss(a, b):
            return jnp.sum(jnp.sin(f(a, b, extents, starts)))

        # Reverse, reverse over reverse (the transposes of all three modes), forward, forward over reverse.
        first = jax.grad(loss, (0, 1))
        second = jax.grad(lambda a, b: sum(jnp.sum(jnp.cos(g)) for g in first(a, b)), (0, 1))
        tangents = (jnp.cos(lhs), jnp.sin(rhs))
        return (
            first(lhs, rhs),
            second(lhs, rhs),
            jax.jvp(loss, (lhs, rhs), tangents),
            jax.jvp(first, (lhs, rhs), tangents),
        )

    both = [jax.jit(functools.partial(derivatives, functools.partial(f, mode)))(lhs, rhs) for f in (run, dense)]
    for got, want in zip(*map(jax.tree.leaves, both)):
        assert_close(got, want, scale=4)


@pytest.mark.parametrize("mode", MODES)
def test_padding_and_foreign_nan_never_reach_a_gradient(device, mode):
    extents = [4, 0, 5]
    lhs, rhs = (jnp.asarray(x) for x in make(mode, extents, m=12, k=5, n=4))
    grad = jax.jit(jax.grad(lambda a, b: jnp.sum(run(mode, a, b, extents) ** 2), (0, 1)))
    clean = grad(lhs, rhs)
    lhs = lhs.at[9:].set(jnp.nan)
    if not mode.startswith("rows"):
        rhs = rhs.at[9:].set(jnp.nan)
    dlhs, drhs = grad(lhs, rhs)
    assert_close(dlhs, clean[0])
    assert_close(drhs, clean[1])
    assert (np.asarray(dlhs)[9:] == 0).all()
    if mode.startswith("rows"):
        assert (np.asarray(drhs)[1] == 0).all()


def test_integer_operands_have_no_tangent(device):
    lhs, rhs = (jnp.asarray(np.round(x).astype(np.int32)) for x in make("rows", [2, 3], m=5))
    none = np.zeros(lhs.shape, jax.dtypes.float0)
    out, tangent = jax.jvp(lambda a, s: (run("rows", a, rhs, [2, 3]), s), (lhs, 2.0), (none, 1.0))
    np.testing.assert_array_equal(out[0], truth("rows", lhs, rhs, [2, 3]))
    assert tangent[0].dtype == jax.dtypes.float0 and tangent[1] == 1
    grad = jax.grad(lambda a, s: s * jnp.sum(run("rows", a, rhs, [2, 3])), allow_int=True)(lhs, 2.0)
    assert grad.dtype == jax.dtypes.float0


def test_row_groups():
    find = jax.jit(row_groups, static_argnums=2)
    assert find(jnp.array([2, 0, 1]), None, 5).tolist() == [0, 0, 2, 3, 3]
    # An empty group that starts inside another one hides nothing.
    assert find(jnp.array([4, 0, 1]), jnp.array([0, 2, 5]), 6).tolist() == [0, 0, 0, 0, 3, 2]
    assert find(jnp.zeros((0,), jnp.int32), None, 2).tolist() == [0, 0]
    unordered = jnp.array([2, 0, 1]), jnp.array([3, 4, 0])
    assert row_groups(*unordered, 6, ordered=False).tolist() == [2, 3, 3, 0, 0, 3]


@pytest.mark.parametrize("mode", MODES)
def test_shapes_that_do_not_fit_are_refused(mode):
    lhs, rhs = (jnp.asarray(x) for x in make(mode, [2, 3], m=5))
    with pytest.raises(ValueError, match="operands do not fit mode"):
        run(mode, lhs[..., 1:], rhs[1:] if mode == "contraction" else rhs, [2, 3])
