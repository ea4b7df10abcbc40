"""vmap of the grouped product with every mix of batched operands, and under other transforms."""

import functools
import itertools

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from grouped_reference import MODES, make, run, truth
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

SIZE, M = 3, 10
EXTENTS = np.array([[3, 0, 5], [0, 4, 6], [1, 1, 0]], np.int32)
STARTS = np.array([[0, 4, 4], [0, 0, 4], [2, 5, 9]], np.int32)


def stacked(mode):
    pairs = [make(mode, EXTENTS[0], m=M, k=4, n=3, seed=seed) for seed in range(SIZE)]
    return [np.stack(x) for x in zip(*pairs)]


def check(mode, f, operands, batched, axes):
    """Map `f` over the operands of which `batched` tells; the others are entry 0."""
    arrays = [np.moveaxis(x, 0, axis) if b else x[0] for x, b, axis in zip(operands, batched, axes)]
    in_axes = [axis if b else None for b, axis in zip(batched, axes)]
    got = jax.jit(jax.vmap(f, in_axes=in_axes))(*arrays)
    for i in range(SIZE):
        assert_close(got[i], truth(mode, *(x[i if b else 0] for x, b in zip(operands, batched))))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batched", [b for b in itertools.product([0, 1], repeat=3) if any(b)])
def test_every_mix_of_batched_operands(device, mode, batched):
    operands = [*stacked(mode), EXTENTS]
    f = functools.partial(run, mode)
    check(mode, f, operands, batched, [0, 0, 0])
    if mode in ("rows", "contraction"):
        check(mode, f, operands, batched, [1, 2, 1])


@pytest.mark.parametrize("mode", ["rows", "contraction", "batch"])
@pytest.mark.parametrize(
    "batched", [(1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0), (1, 0, 1, 1), (0, 1, 1, 1), (1, 1, 1, 1)]
)
def test_with_starts(device, mode, batched):
    check(mode, functools.partial(run, mode), [*stacked(mode), EXTENTS, STARTS], batched, [0, 0, 0, 0])


def test_few_rows_and_stacked_weights_do_not_move_the_weights(device):
    rng = np.random.default_rng(0)
    lhs, rhs = rng.normal(size=(2, 4)).astype("f"), rng.normal(size=(SIZE, 3, 4, 8)).astype("f")
    f = jax.vmap(lambda w: run("rows", jnp.asarray(lhs), w, [1, 0, 1]))
    got = jax.jit(f)(rhs)
    for i in range(SIZE):
        assert_close(got[i], truth("rows", lhs, rhs[i], [1, 0, 1]))
    assert "transpose[" not in str(jax.make_jaxpr(f)(rhs))


def test_clipped_extents_do_not_reach_the_next_entry(device):
    lhs, rhs = stacked("rows")
    extents = np.array([[9, 9, 9], [0, 20, 1], [3, 3, 3]], np.int32)
    check("rows", functools.partial(run, "rows"), [lhs, rhs, extents], (1, 1, 1), [0, 0, 0])
    check("rows", functools.partial(run, "rows"), [lhs, rhs, extents], (1, 0, 1), [0, 0, 0])
    check("rows", functools.partial(run, "rows"), [lhs, rhs, extents], (1, 0, 0), [0, 0, 0])


def test_nan_of_one_entry_stays_there(device):
    lhs, rhs = stacked("rows")
    poisoned = lhs.copy()
    poisoned[1] = np.nan
    got = jax.jit(jax.vmap(functools.partial(run, "rows"), in_axes=(0, None, 0)))(poisoned, rhs[0], EXTENTS)
    for i in (0, 2):
        assert_close(got[i], truth("rows", lhs[i], rhs[0], EXTENTS[i]))


@pytest.mark.parametrize("batched", [(1, 0, 0), (1, 0, 1), (0, 1, 0), (1, 1, 1)])
def test_gradient_of_vmap_and_vmap_of_gradient(device, batched):
    operands = [jnp.asarray(x if b else x[0]) for x, b in zip([*stacked("rows"), EXTENTS], batched)]
    axes = [0 if b else None for b in batched]

    def loss(a, b, extents):
        return jnp.sum(jnp.sin(run("rows", a, b, extents)))

    outer = jax.jit(jax.grad(lambda a, b, e: jnp.sum(jax.vmap(loss, in_axes=axes)(a, b, e)), (0, 1)))(*operands)
    inner = jax.jit(jax.vmap(jax.grad(loss, (0, 1)), in_axes=axes))(*operands)
    for got, want, b in zip(outer, inner, batched):
        assert_close(got, want if b else want.sum(0))


def test_nested_vmap(device):
    rng = np.random.default_rng(0)
    lhs, rhs = rng.normal(size=(2, SIZE, M, 4)).astype("f"), rng.normal(size=(2, 3, 4, 5)).astype("f")
    f = jax.vmap(jax.vmap(functools.partial(run, "rows"), in_axes=(0, None, 0)), in_axes=(0, 0, None))
    got = jax.jit(f)(jnp.asarray(lhs), jnp.asarray(rhs), jnp.asarray(EXTENTS))
    for a, b in itertools.product(range(2), range(SIZE)):
        assert_close(got[a, b], truth("rows", lhs[a, b], rhs[a], EXTENTS[b]))


def test_scan_checkpoint_and_eval_shape(device):
    lhs, rhs = stacked("rows")
    lhs, rhs = lhs[0] @ np.ones((4, 3), "f"), rhs[:, :, :3]

    def layers(x, weights):
        step = jax.checkpoint(lambda x, w: (jnp.tanh(run("rows", x, w, [3, 0, 5])), None))
        return jax.lax.scan(step, x, weights)[0]

    want = lhs
    for w in rhs:
        want = np.tanh(truth("rows", want, w, [3, 0, 5]))
    assert_close(jax.jit(layers)(jnp.asarray(lhs), jnp.asarray(rhs)), want)
    assert jax.eval_shape(layers, lhs, rhs).shape == lhs.shape
    grads = jax.jit(jax.grad(lambda x, w: jnp.sum(layers(x, w)), (0, 1)))(jnp.asarray(lhs), jnp.asarray(rhs))
    assert all(np.isfinite(g).all() for g in grads)


def test_shard_map_tracks_what_varies():
    mesh = meshes.mesh(d=4)
    rng = np.random.default_rng(0)
    lhs, rhs = rng.normal(size=(4 * M, 4)).astype("f"), rng.normal(size=(3, 4, 5)).astype("f")
    extents = np.concatenate([EXTENTS, EXTENTS[:1]])

    def local(a, b, extents):
        return run("rows", a, b, extents[0])

    f = jax.shard_map(local, mesh=mesh, in_specs=(P("d"), P(), P("d")), out_specs=P("d"))
    operands = [jnp.asarray(x) for x in (lhs, rhs, extents)]
    want = np.concatenate([truth("rows", lhs[i * M : i * M + M], rhs, extents[i]) for i in range(4)])
    assert_close(jax.jit(f)(*operands), want)
    # The gradient of the replicated weights sums over devices.
    grads = jax.jit(jax.grad(lambda a, b: jnp.sum(f(a, b, operands[2]) ** 2), (0, 1)))(*operands[:2])
    plain = jax.jit(
        jax.grad(
            lambda a, b: sum(jnp.sum(run("rows", a[i * M : i * M + M], b, extents[i]) ** 2) for i in range(4)), (0, 1)
        )
    )(*operands[:2])
    for got, expected in zip(grads, plain):
        assert_close(got, expected)
    with pytest.raises(ValueError, match="out_specs"):
        jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P("d"), P(), P("d")), out_specs=P()))(*operands)
