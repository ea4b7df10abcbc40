"""The order of rows by group, counted or sorted, against numpy's stable sort."""

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from test_cuda_sources import nvrtc_or_skip

import jax_fuser as jf
from jax_fuser import _core, _ffi, _group_order

MANY = _group_order._MIN_COUNTED_IDS


def reference(ids, groups):
    keys = np.asarray(ids).astype(object)
    keys = np.array([k if 0 <= k < groups else groups for k in keys], int)
    order = np.argsort(keys, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return order, place, np.bincount(keys, minlength=groups + 1)[:groups]


def check(ids, groups):
    got = _group_order.group_order(ids, groups)
    for a, b in zip(got, reference(ids, groups)):
        assert a.dtype == jnp.int32
        np.testing.assert_array_equal(a, b)


def drawn(n, low, high, dtype="int32", seed=0):
    return np.random.default_rng([seed, n]).integers(low, high, n).astype(dtype)


# Not multiples of a part; GPUs sort fewer.
@pytest.mark.parametrize("n", [0, 1, 37, MANY - 1, MANY, MANY + 1, 5003])
def test_any_number_of_ids(device, n):
    check(drawn(n, -2, 11), 9)


@pytest.mark.parametrize("groups", [1, 7, 128, 513, 1024, 1025])
def test_any_number_of_groups(device, groups):
    check(drawn(3001, -1, groups + 1), groups)


@pytest.mark.parametrize("name", ["all in one", "all in the last", "all dropped", "every second empty", "sorted"])
def test_extreme_ids(device, name):
    n, groups = 3001, 12
    ids = {
        "all in one": np.full(n, 4),
        "all in the last": np.full(n, groups - 1),
        "all dropped": np.full(n, -1),
        "every second empty": 2 * drawn(n, 0, groups // 2),
        "sorted": np.sort(drawn(n, 0, groups)),
    }[name]
    check(ids.astype("int32"), groups)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32"])
@pytest.mark.parametrize("n", [100, 2100])
def test_dtypes(device, dtype, n):
    info = np.iinfo(dtype)
    ids = drawn(n, 0, 120, dtype)
    ids[::7] = info.max
    ids[::11] = info.min
    for groups in (100, 300):
        check(ids, groups)


@pytest.mark.parametrize("n", [100, 2100])
def test_wide_ids_do_not_wrap(device, n):
    with jax.enable_x64(True):
        ids = drawn(n, 0, 9, "int64")
        ids[::5] += 2**32
        check(jnp.asarray(ids), 9)
        nt, perm = jf.nested.sort_by_group(jnp.arange(n), jnp.asarray(ids), 9, validate=False)
        order, _, extents = reference(ids, 9)
        np.testing.assert_array_equal(perm, order)
        np.testing.assert_array_equal(nt.extents, extents)


def test_transforms(device):
    ids = np.stack([drawn(2100, -1, 6, seed=s) for s in range(3)])
    got = jax.jit(jax.vmap(lambda i: _group_order.group_order(i, 5)))(ids)
    _, scanned = jax.lax.scan(lambda c, i: (c, _group_order.group_order(i, 5)), 0, ids)
    for k in range(3):
        for a, b, c in zip(got, scanned, reference(ids[k], 5)):
            np.testing.assert_array_equal(a[k], c)
            np.testing.assert_array_equal(b[k], c)

    x = jnp.asarray(np.random.default_rng(0).normal(size=(2100, 3)), "float32")
    grad = jax.grad(lambda x: jnp.sum(jf.nested.sort_by_group(x, ids[0], 5)[0].data ** 2))(x)
    np.testing.assert_array_equal(grad, np.where((ids[0] >= 0) & (ids[0] < 5), 2, 0)[:, None] * x)


@pytest.mark.parametrize("spec", [P("d"), P()])
def test_meshes(spec):
    mesh = meshes.mesh(d=4)
    ids = drawn(4 * MANY, -1, 9)
    check(jax.device_put(ids, NamedSharding(mesh, spec)), 8)
    if spec == P("d"):
        split = jax.shard_map(lambda i: _group_order.group_order(i, 8)[:2], mesh=mesh, in_specs=spec, out_specs=spec)
        want = [reference(part, 8)[:2] for part in np.split(ids, 4)]
        for a, b in zip(jax.jit(split)(ids), zip(*want)):
            np.testing.assert_array_equal(a, np.concatenate(b))


def test_counted_where_kernels_can_be_compiled_and_sorted_elsewhere(monkeypatch):
    ids = drawn(MANY, 0, 8)
    f = _group_order.group_order
    text = f.lower(ids, 8).as_text()
    assert "jax_fuser.program" in text and "stablehlo.sort" not in text
    assert "stablehlo.sort" in f.trace(ids, 8).lower(lowering_platforms=("tpu",)).as_text()
    assert "stablehlo.sort" in f.lower(ids, 1025).as_text()
    few = f.trace(ids[:-1], 8)
    assert "stablehlo.sort" not in few.lower().as_text()
    assert "stablehlo.sort" in few.lower(lowering_platforms=("cuda",)).as_text()
    assert " sort[" in jf.fuse(lambda ids: f(ids, 8)).lower(ids[:-1]).as_text("jaxpr")
    monkeypatch.setattr(_ffi, "can_compile", lambda platform: "no compiler")
    jax.clear_caches()
    assert "stablehlo.sort" in f.lower(ids, 8).as_text()
    check(ids, 8)


def test_cuda_sources_compile():
    nvrtc_or_skip()
    fusion = jf.ir.trace(lambda ids: _group_order._places(ids, 128), jnp.zeros(16384 * 8, "int32"))
    assert _core.compile_cuda(str(fusion), _core.cuda_target_for(90))
