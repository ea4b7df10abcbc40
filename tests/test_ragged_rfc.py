"""The examples and numbers of nvFuser's RFC on ragged dimensions, on one device and on a mesh.

A dimension that devices split is merged by an all-to-all: each device ends with the experts that it owns.
"""

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf

HIDDEN = 8
TOKENS = np.random.default_rng(0).normal(size=(2, 100, HIDDEN)).astype(np.float32)
OFFSETS = np.array([[0, 30, 30, 70, 100], [0, 25, 60, 85, 100]], np.int32)
EXTENTS = np.diff(OFFSETS)


def by_expert(tokens, offsets):
    """Return the rows of each expert, device after device."""
    experts = offsets.shape[1] - 1
    return [np.concatenate([t[o[e] : o[e + 1]] for t, o in zip(tokens, offsets)]) for e in range(experts)]


def test_example_1(device):
    """Tokens of three experts: [127, 0, 198] of 325 rows."""
    tokens = np.random.default_rng(1).normal(size=(325, HIDDEN)).astype(np.float32)
    nt = jf.nested.partition(tokens, 0, [0, 127, 127, 325])
    assert nt.shape == (3, "ragged", HIDDEN) and nt.extents.tolist() == [127, 0, 198]
    for got, want in zip(nt, (tokens[:127], tokens[:0], tokens[127:])):
        np.testing.assert_array_equal(got, want)
    done = jax.jit(jf.fuse(lambda nt: jf.nested.map(jnp.tanh, nt) * 2))(nt)
    assert_close(jf.as_flattened(done), 2 * np.tanh(tokens))
    np.testing.assert_array_equal(jf.as_flattened(nt), tokens)


@pytest.mark.parametrize("devices", [2, 4])
def test_example_1_on_a_mesh(device, devices):
    """Each device has three experts' tokens of its own; rows behind its last offset are padding."""
    sizes = np.array([[127, 0, 198], [0, 300, 25], [5, 6, 0], [0, 0, 0]], np.int32)[:devices]
    tokens = np.random.default_rng(devices).normal(size=(devices, 325, HIDDEN)).astype(np.float32)
    for x, own in zip(tokens, sizes):
        x[own.sum() :] = np.nan

    def local(x, extents):
        nt = jf.nested.partition(x[0], 0, extents=extents[0])
        return (jf.nested.map(jnp.tanh, nt) * 2).data[None], jf.nested.sum(nt)[None]

    on_mesh = jax.shard_map(jf.fuse(local), mesh=meshes.mesh(gpu=devices), in_specs=P("gpu"), out_specs=P("gpu"))

    def loss(x):
        rows, sums = on_mesh(x, sizes)
        return jnp.square(sums).sum() / 2, (rows, sums)

    slope, (rows, sums) = jax.jit(jax.grad(loss, has_aux=True))(tokens)
    for d, (x, own) in enumerate(zip(tokens, sizes)):
        part = np.split(x[: own.sum()], np.cumsum(own)[:-1])
        want = np.stack([p.sum(0) for p in part])
        assert_close(sums[d], want, "float32", scale=4)
        assert_close(rows[d, : own.sum()], 2 * np.tanh(x[: own.sum()]))
        assert_close(slope[d, : own.sum()], np.repeat(want, own, 0), "float32", scale=4)
        assert not np.asarray(rows)[d, own.sum() :].any() and not np.asarray(slope)[d, own.sum() :].any()


def example_2(tokens, offsets, devices=2):
    nt = jf.nested.partition(tokens, 1, offsets)
    return jf.nested.split(jf.nested.merge(nt, 0, 2), 0, num=devices)


def test_example_2(device):
    """Rows of two devices by expert: [55, 35, 65, 45], two experts for each device."""
    nt = jax.jit(example_2)(TOKENS, OFFSETS)
    assert nt.extents.tolist() == [[55, 35], [65, 45]] and nt.shape == (2, 2, "ragged", HIDDEN)
    for e, want in enumerate(by_expert(TOKENS, OFFSETS)):
        np.testing.assert_array_equal(nt[e // 2, e % 2], want)
    np.testing.assert_array_equal(nt.data[0, 90:], 0)
    np.testing.assert_array_equal(nt.data[1, 110:], 0)
    grad = jax.jit(jax.grad(lambda t: jnp.square(example_2(t, OFFSETS).data).sum()))(TOKENS)
    assert_close(grad, 2 * TOKENS)


def test_example_2_by_name(device):
    """As the RFC's readers would write it; inside of a mesh the same line is the all-to-all."""

    def by_name(tokens, offsets):
        nt = jf.as_nested(tokens, offsets=offsets, ragged_dim=1)
        return nt.merge("gpu", "ragged").split("expert", 2)

    assert jf.nested.allclose(jax.jit(by_name)(TOKENS, OFFSETS), example_2(TOKENS, OFFSETS))
    with pytest.raises(ValueError, match=r"^merge: no dimension 'gpus'; names are 'ragged', 'group' and 'outer',"):
        jf.as_nested(TOKENS, OFFSETS, ragged_dim=1).merge("gpus", "ragged")
    with pytest.raises(ValueError, match=r"^merge: 'outer' is the only outer dimension, of which .* has 0"):
        jf.as_nested(TOKENS[0], OFFSETS[0]).merge("outer", "ragged")
    if device.platform == "cpu":
        named, (data, extents, _) = by_name_on_mesh(), exchanged(TOKENS, OFFSETS, 2)
        np.testing.assert_array_equal(named[0], data)
        np.testing.assert_array_equal(named[1], extents)


def by_name_on_mesh():
    def local(tokens, offsets):
        nt = jf.as_nested(tokens, offsets=offsets, ragged_dim=1).merge("gpu", "ragged")
        return nt.data[None], nt.extents[None]

    return jax.jit(jax.shard_map(local, mesh=meshes.mesh(gpu=2), in_specs=P("gpu"), out_specs=P("gpu")))(
        TOKENS, OFFSETS
    )


def exchanged(tokens, offsets, devices, **options):
    """Return each device's rows and extents, `[devices, ..]`, and the gradient of the rows' squares."""

    def local(tokens, offsets):
        nt = jf.nested.partition(tokens, 1, offsets)
        nt = jf.nested.merge(nt, 0, 2, axis_name="gpu", **options)
        assert nt.shape == ((offsets.shape[1] - 1) // devices, "ragged", HIDDEN)
        return nt.data[None], nt.extents[None]

    on_mesh = jax.shard_map(local, mesh=meshes.mesh(gpu=devices), in_specs=P("gpu"), out_specs=P("gpu"))

    def loss(tokens):
        data, extents = on_mesh(tokens, offsets)
        return jnp.square(data).sum(), (data, extents)

    grad, found = jax.jit(jax.grad(loss, has_aux=True))(tokens)
    return *found, grad


@pytest.mark.parametrize("devices", [2, 4])
def test_example_2_on_a_mesh(device, devices):
    draw = np.random.default_rng(devices)
    tokens, offsets = TOKENS, OFFSETS
    if devices == 4:
        # One device has nothing for most experts, rows behind the last offset are padding.
        tokens = draw.normal(size=(4, 100, HIDDEN)).astype(np.float32)
        sizes = [[30, 0, 40, 30], [25, 35, 25, 15], [0, 0, 0, 91], [7, 0, 0, 0]]
        offsets = np.pad(np.cumsum(sizes, axis=1), ((0, 0), (1, 0))).astype(np.int32)
        for t, o in zip(tokens, offsets):
            t[o[-1] :] = np.nan
    data, extents, grad = exchanged(tokens, offsets, devices)
    experts = by_expert(tokens, offsets)
    assert extents.tolist() == np.reshape([len(e) for e in experts], (devices, -1)).tolist()
    if devices == 2:
        assert extents.tolist() == [[55, 35], [65, 45]]
    own = len(experts) // devices
    for d in range(devices):
        want = np.concatenate(experts[d * own : (d + 1) * own])
        np.testing.assert_array_equal(data[d, : len(want)], want)
        np.testing.assert_array_equal(data[d, len(want) :], 0)
    rows = np.arange(tokens.shape[1])[None, :, None] < offsets[:, -1:, None]
    assert_close(grad, np.where(rows, 2 * tokens, 0))


def test_capacity_on_a_mesh(device):
    """Rows behind the capacity are dropped, and extents say so."""
    data, extents, grad = exchanged(TOKENS, OFFSETS, 2, capacity=100)
    assert data.shape == (2, 100, HIDDEN) and extents.tolist() == [[55, 35], [65, 35]]
    want = np.concatenate(by_expert(TOKENS, OFFSETS)[2:])[:100]
    np.testing.assert_array_equal(data[1], want)
    kept = np.ones_like(TOKENS)
    kept[1, 90:] = 0
    assert_close(grad, 2 * TOKENS * kept)


def test_messages_of_merge():
    nt = jf.nested.partition(TOKENS, 1, OFFSETS)
    with pytest.raises(NameError, match=r"^merge: axis 'gpu' is not bound; call inside jax.shard_map over"):
        jf.nested.merge(nt, 0, 2, axis_name="gpu")
    with pytest.raises(ValueError, match=r"^merge: 3 experts not divisible by the 2 devices of axis 'gpu'"):
        exchanged(TOKENS, OFFSETS[:, :4], 2)
    with pytest.raises(ValueError, match=r"^merge: capacity must not be negative, got -1$"):
        jf.nested.merge(nt, 0, 2, capacity=-1)
    with pytest.raises(ValueError, match=r"those alone take axis_name= and capacity="):
        jf.nested.merge(nt, 1, 2, axis_name="gpu")


# Section 6.4.


def nested(sizes, *dense):
    x = np.random.default_rng(2).normal(size=(sum(sizes), *dense)).astype(np.float32)
    return x, jf.as_nested(x, extents=sizes)


def test_split_of_a_ragged_axis():
    """[3, 5, 2] by 2: [2, 3, 1] blocks of 2, the last of each filled up with zeros."""
    x, nt = nested([3, 5, 2], HIDDEN)
    blocks = jf.nested.split(nt, 1, factor=2, blocks=True)
    assert blocks.extents.tolist() == [2, 3, 1] and blocks.shape == (3, "ragged", 2, HIDDEN)
    for got, s, n in zip(blocks, (0, 3, 8), (3, 5, 2)):
        want = np.pad(x[s : s + n], ((0, n % 2), (0, 0))).reshape(-1, 2, HIDDEN)
        np.testing.assert_array_equal(got, want)
    assert jf.nested.merge(blocks, 1, 2).extents.tolist() == [4, 6, 2]
    with pytest.raises(ValueError, match=r"^split: blocks= is for the ragged dimension, 1; got axis 0$"):
        jf.nested.split(nt, 0, factor=3, blocks=True)


def test_merge_with_a_regular_axis():
    """[3, 5, 2] times 4: [12, 20, 8]."""
    x, nt = nested([3, 5, 2], 4, HIDDEN)
    merged = jf.nested.merge(nt, 1, 2)
    assert merged.extents.tolist() == [12, 20, 8]
    np.testing.assert_array_equal(merged[1], x[3:8].reshape(20, HIDDEN))


def test_merge_with_an_outer_axis():
    """[[30, 0, 40, 30], [25, 35, 25, 15]] over the outer axis: [55, 35, 65, 45]."""
    merged = jf.nested.merge(jf.nested.partition(TOKENS, 1, OFFSETS), 0, 2)
    assert EXTENTS.tolist() == [[30, 0, 40, 30], [25, 35, 25, 15]] and merged.extents.tolist() == [55, 35, 65, 45]
    for got, want in zip(merged, by_expert(TOKENS, OFFSETS)):
        np.testing.assert_array_equal(got, want)


def test_merge_with_its_component_and_select():
    x, nt = nested([3, 5, 2], 4)
    np.testing.assert_array_equal(jf.nested.merge(nt, 0, 1), x)
    np.testing.assert_array_equal(jf.nested.select(nt, 1), x[3:8])
