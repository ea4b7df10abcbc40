"""Nested tensors as pytrees under every JAX transform."""

import functools

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_fuser as jf


def nan_tail(rows, *dense, total, seed=0):
    data = np.random.default_rng(seed).normal(size=(rows, *dense)).astype("f")
    data[total:] = np.nan
    return jnp.asarray(data)


@pytest.fixture
def nt():
    return jf.as_nested(nan_tail(9, 2, total=7), extents=[3, 0, 4])


def work(nt, w):
    y = jf.nested.map(jnp.sin, nt) * w + 1
    return jf.nested.map(lambda a: a * a, y)


def loss(nt, w):
    return jnp.sum(work(nt, w).data)


w = jnp.arange(1.0, 7.0).reshape(3, 1, 2)


def test_tree(nt):
    leaves, tree = jax.tree.flatten(nt)
    assert [leaf.shape for leaf in leaves] == [(9, 2), (3,)]
    assert jax.tree.unflatten(tree, [object(), object()]) is not None
    assert jax.tree.unflatten(tree, leaves).shape == nt.shape
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(nt)]
    assert paths == [".data", ".extents"]
    gapped = nt.replace(starts=nt.starts)
    assert len(jax.tree.leaves(gapped)) == 3
    assert jax.tree.structure(gapped) != tree
    assert jax.tree.structure(jf.as_nested(jnp.ones((2, 9)), extents=[3, 0, 4], ragged_dim=1)) != tree
    with pytest.raises(TypeError):
        hash(nt)
    with pytest.raises(AttributeError):
        nt.data = leaves[0]


def test_jit_traces_once_for_all_extents(nt):
    traces = []

    @jax.jit
    def f(nt):
        traces.append(nt.shape)
        return work(nt, w)

    for extents in ([3, 0, 4], [0, 0, 0], [9, 0, 0]):
        f(jf.as_nested(nt.data, extents=extents))
    assert traces == [(3, "ragged", 2)]


def test_eval_shape(nt):
    out = jax.eval_shape(work, nt, w)
    assert out.shape == (3, "ragged", 2) and out.dtype == jnp.float32 and out.capacity == 9
    assert repr(out) == "NestedTensor(f32[expert=3, ragged=?<=9, 2])"


def test_grad(nt):
    value, (g, dw) = jf.nested.value_and_grad(loss, argnums=(0, 1))(nt, w)
    assert isinstance(g, jf.NestedTensor) and g.extents is nt.extents
    assert (g.data[7:] == 0).all() and np.isfinite(g.data).all() and np.isfinite(dw).all()
    assert (dw[1] == 0).all()
    dense, ddw = jax.grad(lambda d, w: loss(nt.replace(data=d), w), argnums=(0, 1))(nt.data, w)
    np.testing.assert_array_equal(g.data, dense)
    np.testing.assert_array_equal(dw, ddw)
    assert float(value) == pytest.approx(float(loss(nt, w)))
    assert jf.nested.allclose(jax.jit(jf.nested.grad(loss))(nt, w), g)
    stepped = nt - 0.1 * g
    assert (stepped.data[7:] == 0).all()


def test_grad_of_trees_and_aux(nt):
    params = {"x": nt, "b": jnp.ones(2), "n": jnp.arange(3)}

    def f(p):
        y = p["x"] * p["b"]
        return jnp.sum(y.data), y

    g, y = jf.nested.grad(f, has_aux=True)(params)
    assert g["x"].extents is nt.extents and g["b"].shape == (2,) and g["n"].dtype == jax.dtypes.float0
    assert jf.nested.allclose(y, nt)
    # Raw data may read padding; its gradient is zero all the same.
    raw = jf.nested.grad(lambda nt: jnp.sum(jnp.nan_to_num(nt.data)))(nt)
    assert raw.data[:, 0].tolist() == [1.0] * 7 + [0.0] * 2


def test_second_derivative(nt):
    def inner(d):
        return jnp.sum(jf.nested.grad(loss)(nt.replace(data=d), w).data ** 2)

    g = jax.grad(inner)(nt.data)
    eps = 1e-2
    direction = jnp.where(nt.row_mask()[:, None], jnp.ones((9, 2)), 0.0)
    numeric = (inner(nt.data + eps * direction) - inner(nt.data - eps * direction)) / (2 * eps)
    assert float(jnp.vdot(g, direction)) == pytest.approx(float(numeric), rel=2e-2)


def test_forward_mode(nt):
    def g(d):
        y = nt.replace(data=d) * 2.0 + 1
        return jf.nested.to_padded(jf.nested.map(jnp.sin, y), 5)

    clean = jnp.nan_to_num(nt.data)
    _, tangent = jax.jvp(g, (clean,), (jnp.ones_like(clean),))
    back = jax.grad(lambda d: jnp.sum(g(d)))(clean)
    assert float(jnp.sum(tangent)) == pytest.approx(float(jnp.sum(back)), rel=1e-5)


def test_vmap():
    data = jnp.stack([nan_tail(9, 2, total=7, seed=s) for s in range(3)])
    extents = jnp.array([[3, 0, 4], [0, 7, 0], [1, 2, 3]], jnp.int32)
    batch = jf.as_nested(data, extents=extents, ragged_dim=1)
    out = jax.jit(jax.vmap(work, in_axes=(0, None)))(batch, w)
    assert out.shape == (3, 3, "ragged", 2) and out.ragged_dim == 1
    assert jf.nested.allclose(out[1], work(batch[1], w))
    assert jf.nested.allclose(out, work(batch, w))
    ids = jnp.array([[0, 1, 2, 0, 1, 2, 0, 1, 9]] * 3)
    sort = functools.partial(jf.nested.sort_by_group, num_groups=3)
    many, _ = jax.jit(jax.vmap(sort))(jnp.nan_to_num(data), ids)
    one, _ = sort(jnp.nan_to_num(data[1]), ids[1])
    assert jf.nested.allclose(many[1], one)
    g = jax.jit(jax.vmap(jf.nested.grad(loss), in_axes=(0, None)))(batch, w)
    assert jf.nested.allclose(g[1], jax.jit(jf.nested.grad(loss))(batch[1], w), rtol=1e-4)


def test_vmap_with_shared_extents(nt):
    batch = jf.as_nested(jnp.stack([nt.data, 2 * nt.data]), extents=nt.extents, ragged_dim=1)
    out = jax.vmap(lambda nt: work(nt, w), in_axes=(jf.NestedTensor(0, None),), out_axes=jf.NestedTensor(0, None))(
        batch
    )
    assert out.extents.shape == (3,) and out.shape == (2, 3, "ragged", 2)
    assert jf.nested.allclose(out, work(batch, w))
    sliced = jax.vmap(lambda nt: jf.nested.to_padded(nt, 5), in_axes=(jf.NestedTensor(0, None),))(batch)
    np.testing.assert_array_equal(sliced, jf.nested.to_padded(batch, 5))


def test_scan(nt):
    layers = jf.as_nested(jnp.stack([nt.data] * 2), extents=jnp.stack([nt.extents] * 2), ragged_dim=1)

    def body(carry, layer):
        return carry + layer, carry.total

    out, totals = jax.lax.scan(body, nt * 0, layers)
    assert jf.nested.allclose(out, nt * 2) and totals.tolist() == [7, 7]

    def f(nt):
        return jnp.sum(jax.lax.scan(lambda c, _: (work(c, w), None), nt, length=2)[0].data)

    assert np.isfinite(jf.nested.grad(f)(nt).data).all()


def test_cond_and_while(nt):
    out = jax.jit(lambda p, nt: jax.lax.cond(p, lambda x: x * 2.0, lambda x: x + 1.0, nt))(True, nt)
    assert jf.nested.allclose(out, nt * 2.0)
    out = jax.lax.fori_loop(0, 3, lambda _, nt: nt * 2.0, nt)
    assert jf.nested.allclose(out, nt * 8.0)


def test_checkpoint(nt):
    want = jf.nested.grad(loss)(nt, w)
    assert jf.nested.allclose(jf.nested.grad(jax.checkpoint(loss))(nt, w), want)


def test_custom_vjp(nt):
    @jax.custom_vjp
    def f(nt):
        return jnp.sum((nt * nt).data)

    f.defvjp(lambda nt: (f(nt), nt), lambda nt, ct: (nt.replace(data=(nt * 2 * ct).data, extents=None),))
    assert jf.nested.allclose(jf.nested.grad(f)(nt), nt * 2)


def step(nt, w, ids):
    """Every data movement, with replicated weights, so that types must agree under check_vma."""
    y, _ = jf.nested.sort_by_group(work(nt, w).data, ids, 2)
    y = jf.nested.map(jnp.tanh, y) * w[:2]
    gapped = y.replace(starts=y.starts)
    dense = jf.nested.to_padded(gapped, 9)
    return y.replace(data=jf.as_flattened(gapped) + jnp.sum(dense))


@pytest.mark.parametrize("specs", ["prefix", "nested"])
def test_shard_map(device, specs):
    data = jnp.concatenate([nan_tail(9, 2, total=7), nan_tail(9, 2, total=5, seed=1)])
    extents = jnp.array([3, 0, 4, 1, 1, 3], jnp.int32)
    nt = jf.NestedTensor(data, extents)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 3, 18))
    spec = P("ep") if specs == "prefix" else jf.NestedTensor(P("ep"), P("ep"))
    sharded = jax.shard_map(step, mesh=meshes.mesh(ep=2), in_specs=(spec, P(), P("ep")), out_specs=spec)

    def total(data, w):
        return jnp.sum(jnp.sin(sharded(nt.replace(data=data), w, ids).data))

    def one_by_one(data, w):
        shards = [(slice(9 * i, 9 * i + 9), slice(3 * i, 3 * i + 3)) for i in range(2)]
        return sum(
            jnp.sum(jnp.sin(step(jf.NestedTensor(data[rows], extents[groups]), w, ids[rows]).data))
            for rows, groups in shards
        )

    got = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(data, w)
    want = jax.jit(jax.value_and_grad(one_by_one, argnums=(0, 1)))(data, w)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-5), got, want)


def test_replicated_rows_with_varying_groups(device):
    """Cotangents of replicated operands of row movements are summed over the devices."""
    x, ids = jnp.arange(8.0).reshape(4, 2), jnp.array([1, 0, 1, 0, 0, 0, 5, 1])
    scale = jnp.array([[[2.0]], [[3.0]]])

    def local(x, scale, ids):
        nt, _ = jf.nested.sort_by_group(x, ids, 2)
        return jnp.sum((nt * scale).data * jnp.arange(1.0, 5.0)[:, None])[None]

    sharded = jax.shard_map(local, mesh=meshes.mesh(ep=2), in_specs=(P(), P(), P("ep")), out_specs=P("ep"))
    got = jax.jit(jax.grad(lambda x, s: jnp.sum(sharded(x, s, ids)), argnums=(0, 1)))(x, scale)
    apart = jax.grad(lambda x, s: sum(local(x, s, i)[0] for i in (ids[:4], ids[4:])), argnums=(0, 1))
    want = jax.jit(apart)(x, scale)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), got, want)


def test_extents_of_other_integers():
    """Wider and unsigned ones, which nothing but the constructors makes int32, are read as they are."""
    x = jnp.arange(10.0).reshape(5, 2)
    with jax.enable_x64(True):
        for dtype in ("int64", "uint32"):
            extents, starts = jnp.array([2, 1], dtype), jnp.array([3, 0], dtype)
            nt, gapped = jf.NestedTensor(x, extents), jf.NestedTensor(x, extents, starts)
            assert {a.dtype for a in (nt.offsets, nt.total, nt.starts, gapped.starts)} == {jnp.dtype("int32")}
            np.testing.assert_array_equal(jf.nested.sum(gapped), [x[3] + x[4], x[0]])
            np.testing.assert_array_equal(jf.nested.align(nt, 2).data[:3], x[:3])
            np.testing.assert_array_equal((gapped * 2).row_ids(), [1, 2, 2, 0, 0])
            w = jnp.ones((2, 2, 1), x.dtype)
            np.testing.assert_array_equal((nt @ w).data[:3], x[:3].sum(1, keepdims=True))
    huge = jf.NestedTensor(x, jnp.array([2, 2**32 - 1], jnp.uint32))
    np.testing.assert_array_equal(jf.nested.sum(huge), [x[:2].sum(0), x[2:].sum(0)])


def test_jax_refuses_extents_and_data_are_what_to_differentiate():
    """JAX looks at the leaves alone before it calls anything: docs/nested.md quotes its words."""
    small = jf.as_nested(jnp.arange(6.0).reshape(3, 2), extents=[2, 0])
    loss = lambda nt: jf.nested.sum(nt * nt).sum()  # noqa: E731
    with pytest.raises(TypeError, match=r"requires real- or complex-valued inputs .*, but got int32"):
        jax.grad(loss)(small)
    want = jf.nested.grad(loss)(small).data
    for got in (
        jax.grad(lambda x: loss(small.replace(data=x)))(small.data),
        jax.grad(loss, allow_int=True)(small).data,
    ):
        np.testing.assert_array_equal(got, want)
