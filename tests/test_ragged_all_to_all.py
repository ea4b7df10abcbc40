"""`ragged_all_to_all` on several devices against a loop over slices, with its derivatives and what it refuses."""

import functools
import re

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _rounds

N, M, D = 13, 15, 3
call = functools.partial(jf.parallel.ragged_all_to_all, axis_name="ep")


# On the CPU, and on as many GPUs.
pytestmark = pytest.mark.usefixtures("device")


def on_mesh(f, devices, **options):
    return jax.shard_map(f, mesh=meshes.mesh(ep=devices), in_specs=P("ep"), out_specs=P("ep"), **options)


@pytest.fixture(params=["one round", "many rounds"])
def rounds(request, monkeypatch):
    """Slabs as they are, where these few rows go in one round, and slabs of few rows."""
    if request.param == "many rounds":
        for name, value in {"_LOOP_BYTES": 0, "_ROUND_BYTES": 0, "_ROOM": 0.6, "_LOOPS_ON_CPUS": True}.items():
            monkeypatch.setattr(_rounds, name, value)
    return request.param


def tables(sizes, m=M, rng=None):
    """Return offsets and sizes `[devices, slices]` for rows from device to device `[from, to, slices of a pair]`.

    Slices lie one after another on both sides, or with `rng` anywhere, so that they overlap.
    """
    sizes = np.asarray(sizes, np.int32)
    devices = len(sizes)
    flat = sizes.reshape(devices, -1)
    arriving = sizes.transpose(1, 0, 2).reshape(devices, -1)
    first = np.cumsum(flat, 1) - flat
    placed = np.cumsum(arriving, 1) - arriving
    if rng is not None:
        first, placed = rng.integers(0, N + 1 - flat), rng.integers(0, m + 1 - arriving)
    assert (first + flat <= N).all() and (placed + arriving <= m).all()
    # Senders say where their slices shall lie.
    told = placed.reshape(devices, devices, -1).transpose(1, 0, 2).reshape(devices, -1)
    return tuple(a.astype(np.int32) for a in (first, flat, told, arriving))


def origins(first, flat, told, arriving, m=M):
    """Return for each result row `[devices, m]` the operand row it is, as device * N + row; -1 where `output` stays."""
    devices, slices = flat.shape
    found = np.full((devices, m), -1)
    each = slices // devices
    for to in range(devices):
        for i in range(slices):
            source, k = i // each, to * each + i % each
            assert arriving[to, i] == flat[source, k]
            for row in range(flat[source, k]):
                found[to, told[source, k] + row] = source * N + first[source, k] + row
    return found


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def cases(devices):
    """Return sizes `[from, to, 1 or 2]` by name."""
    rng = np.random.default_rng(devices)
    some = rng.integers(0, 3, (devices, devices, 1))
    two = rng.integers(0, 2, (devices, devices, 2))
    found = {"random": some, "two slices": two, "nothing": 0 * some, "one row each": 0 * some + 1}
    found["all to the first"], found["all to the last"] = 0 * some, 0 * some
    found["all to the first"][:, 0], found["all to the last"][:, -1] = 3, 3
    found["all from one"] = 0 * some
    found["all from one"][1] = 2
    found["first device has nothing"], found["none for the last device"] = some.copy(), some.copy()
    found["first device has nothing"][0], found["none for the last device"][:, -1] = 0, 0
    found["empty slices at one offset"] = two.copy()
    found["empty slices at one offset"][:, :, 0] = 0
    return found


# Sizes are traced: one compilation for all that have as many slices.
@functools.cache
def compiled(_, devices, rounds):
    f = on_mesh(call, devices)

    def everything(operand, output, cotangent, *layout):
        out, back = jax.vjp(lambda a, b: f(a, b, *layout), operand, output)
        return out, *back(cotangent)

    return jax.jit(everything)


def check(layout, devices, rounds, m=M):
    operand, output, cotangent = random(devices, N, D), random(devices, m, D, seed=1), random(devices, m, D, seed=2)
    found = origins(*layout, m)
    sent = np.isin(np.arange(devices * N), found)
    # What is not sent is padding: a NaN there reaches nothing.
    operand = np.where(sent[:, None], operand.reshape(-1, D), np.nan).astype(np.float32)
    out, d_operand, d_output = compiled(jax.config.jax_default_device, devices, rounds)(
        operand, output.reshape(-1, D), cotangent.reshape(-1, D), *(a.reshape(-1) for a in layout)
    )
    kept = (found < 0)[..., None]
    np.testing.assert_array_equal(out.reshape(output.shape), np.where(kept, output, operand[found]))
    np.testing.assert_array_equal(d_output.reshape(output.shape), np.where(kept, cotangent, 0))
    want = np.zeros_like(operand)
    np.add.at(want, found[found >= 0], cotangent[found >= 0])
    assert_close(d_operand, want)


@pytest.mark.parametrize("devices", [2, 4])
def test_slices_one_after_another(devices, rounds):
    for sizes in cases(devices).values():
        check(tables(sizes), devices, rounds)


@pytest.mark.parametrize("devices", [2, 4])
def test_slices_that_overlap(devices, rounds):
    """On the sender, where cotangents add up, and on the receiver, where the last slice stays."""
    rng = np.random.default_rng(5)
    for each in (1, 3):
        for _ in range(3):
            check(tables(rng.integers(0, 6, (devices, devices, each)), rng=rng), devices, rounds)
    everything_to_everyone = np.full((devices, devices, 1), N)
    first, flat, told, arriving = tables(everything_to_everyone, m=devices * N, rng=rng)
    told[:] = np.arange(devices)[:, None] * N
    check((first, flat, told, arriving), devices, rounds, m=devices * N)


@pytest.mark.parametrize("first", [-2, N - 2, -(2**31), 2**31 - 1])
def test_rows_outside_of_an_array_are_neither_read_nor_get_cotangents(first, rounds):
    """Those that arrive from there are zeros."""
    sizes, told = np.array([4, 0, 0, 4], np.int32), np.array([3, 0, 0, 3], np.int32)
    offsets = np.array([first, 0, 0, first], np.int32)
    operand, output = random(2 * N, D), random(2 * M, D, seed=1)
    f = on_mesh(lambda a, b: call(a, b, *(jnp.asarray(x)[_own(2)] for x in (offsets, sizes, told, sizes))), 2)
    out, back = jax.vjp(jax.jit(f), operand, output)
    cotangent = random(2 * M, D, seed=2)
    d_operand, d_output = back(cotangent)
    want, d_want, kept = output.reshape(2, M, D).copy(), np.zeros((2, N, D)), np.ones((2, M, 1))
    want[:, 3:7], kept[:, 3:7] = 0, 0
    for row in range(first, first + 4):
        if 0 <= row < N:
            want[:, 3 + row - first] = operand.reshape(2, N, D)[:, row]
            d_want[:, row] = cotangent.reshape(2, M, D)[:, 3 + row - first]
    np.testing.assert_array_equal(out.reshape(2, M, D), want)
    np.testing.assert_array_equal(d_operand.reshape(2, N, D), d_want)
    np.testing.assert_array_equal(d_output.reshape(2, M, D), kept * cotangent.reshape(2, M, D))


def _own(slices):
    return slices * jax.lax.axis_index("ep") + jnp.arange(slices)


def test_example_of_jax():
    args = [jnp.array(a) for a in ([1.0, 2, 2, 3, 4, 0], [0.0] * 8, [0, 1, 0, 1], [1, 2, 1, 1], [0, 0, 1, 2])]
    out = on_mesh(call, 2)(*args, jnp.array([1, 1, 2, 1]))
    assert out.tolist() == [1, 3, 0, 0, 2, 2, 4, 0]


def a_layout(devices=2):
    rng = np.random.default_rng(3)
    return [a.reshape(-1) for a in tables(rng.integers(0, 5, (devices, devices, 1)), rng=rng)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "bool", "complex64", "float8_e4m3fn"])
def test_dtypes(dtype):
    layout = a_layout()
    operand, output = jnp.asarray(random(2 * N, D), dtype), jnp.asarray(random(2 * M, D, seed=1), dtype)
    out = jax.jit(on_mesh(call, 2))(operand, output, *layout)
    found = origins(*(a.reshape(2, -1) for a in layout)).reshape(-1)
    assert out.dtype == dtype
    want = np.where((found < 0)[:, None], np.asarray(output), np.asarray(operand)[found])
    np.testing.assert_array_equal(np.asarray(out), want)


def test_cotangents_add_in_float32():
    """Each of 4 devices sends one row to all, and the rows of 16 bits that come back are 256, 1, 1 and 1."""
    zeros, ones = np.zeros(4, np.int32), np.ones(4, np.int32)
    f = on_mesh(lambda x: call(x, jnp.zeros_like(x, shape=(4, 1)), zeros, ones, _index(4), ones), 4)
    back = jax.vjp(f, jnp.ones((4, 1), jnp.bfloat16))[1]
    cotangent = jnp.ones((4, 4, 1), jnp.bfloat16).at[0].set(256)
    assert back(cotangent.reshape(16, 1))[0].tolist() == [[260.0]] * 4


def _index(slices):
    return jnp.full(slices, jax.lax.axis_index("ep"), jnp.int32)


def test_transforms(rounds):
    """Batches of each argument alone, forward mode, twice in reverse, eagerly, without the check of varying axes."""
    layout = a_layout()
    operand, output = random(2 * N, D), random(2 * M, D, seed=1)
    f = on_mesh(call, 2)
    one = jax.jit(lambda a, b: f(a, b, *layout))
    batch = jax.jit(jax.vmap(f, in_axes=(0, None, None, None, None, None)))(
        np.stack([operand, -operand]), output, *layout
    )
    assert_close(batch, np.stack([one(operand, output), one(-operand, output)]))
    others = [np.zeros_like(layout[0]), *layout[1:]]
    batch = jax.jit(jax.vmap(f, in_axes=(None, None, 0, None, None, None)))(
        operand, output, np.stack([layout[0], others[0]]), *layout[1:]
    )
    assert_close(batch, np.stack([one(operand, output), f(operand, output, *others)]))
    tangents = random(2 * N, D, seed=4), random(2 * M, D, seed=5)
    out, moved = jax.jvp(one, (operand, output), tangents)
    assert_close(moved, one(*tangents))

    def slope(a):
        return jnp.sum(jax.grad(lambda a: jnp.sum(one(a, output) ** 3))(a) ** 2)

    sent = origins(*(a.reshape(2, -1) for a in layout)).reshape(-1)
    counts = np.bincount(sent[sent >= 0], minlength=2 * N)[:, None]
    # The sum of (3 counts a^2)^2.
    assert_close(jax.jit(jax.grad(slope))(operand), 36 * counts**2 * operand**3, scale=4)
    np.testing.assert_array_equal(f(operand, output, *layout), out)
    np.testing.assert_array_equal(jax.jit(on_mesh(call, 2, check_vma=False))(operand, output, *layout), out)


def test_donated_output_and_explicit_mesh():
    layout = a_layout()
    operand, output = random(2 * N, D), random(2 * M, D, seed=1)
    want = np.asarray(jax.jit(on_mesh(call, 2))(operand, output, *layout))
    step = jax.jit(on_mesh(call, 2), donate_argnums=1)
    for _ in range(2):
        np.testing.assert_array_equal(step(operand, jnp.array(output), *layout), want)
    explicit = meshes.mesh(AxisType.Explicit, ep=2)
    args = [jax.device_put(a, jax.NamedSharding(explicit, P("ep"))) for a in (operand, output, *layout)]
    with jax.set_mesh(explicit):
        f = jax.jit(jax.shard_map(call, in_specs=P("ep"), out_specs=P("ep")))
        np.testing.assert_array_equal(f(*args), want)
        gradient = jax.jit(jax.grad(lambda a, b: jnp.sum(f(a, b, *args[2:]) ** 2), (0, 1)))(*args[:2])
    for a, like in zip(gradient, args):
        assert a.sharding.is_equivalent_to(like.sharding, a.ndim)


def test_empty_arrays_and_replicated_operands():
    sizes = np.zeros(4, np.int32)
    for n, m, d in ((0, 4, 3), (4, 0, 3), (4, 4, 0)):
        out = jax.jit(on_mesh(call, 2))(jnp.ones((n, d)), jnp.full((m, d), 2.0), *[sizes] * 4)
        np.testing.assert_array_equal(out, np.full((m, d), 2.0))
    ones = np.ones(4, np.int32)

    def from_all(x):
        return call(x, jnp.zeros(2), ones[:2], ones[:2], _index(2), ones[:2])

    f = jax.shard_map(from_all, mesh=meshes.mesh(ep=2), in_specs=P(), out_specs=P("ep"))
    assert jax.jit(f)(jnp.array([5.0, 6.0])).tolist() == [6.0] * 4
    assert jax.jit(jax.grad(lambda x: f(x).sum()))(jnp.array([5.0, 6.0])).tolist() == [0.0, 4.0]


def test_rows_move_by_all_to_all_and_gathers(rounds):
    """Rows of further rounds are put in their places, and nothing is added in an order that is not fixed."""
    layout = a_layout()

    def loss(a, b):
        return jnp.sum(on_mesh(call, 2)(a, b, *layout) ** 2)

    text = jax.jit(jax.grad(loss, (0, 1))).lower(random(2 * N, D), random(2 * M, D)).as_text()
    further = rounds == "many rounds"
    assert ("stablehlo.scatter" in text) == ("unique_indices = true" in text) == ("stablehlo.while" in text) == further
    assert "all_gather" not in text and "ragged" not in text and "stablehlo.all_to_all" in text


def refused(message, error=ValueError, **changes):
    def f(x, *layout):
        args = dict(zip(("input_offsets", "send_sizes", "output_offsets", "recv_sizes"), layout))
        jf.parallel.ragged_all_to_all(**{"operand": x, "output": x, **args, "axis_name": "ep", **changes})
        return x

    with pytest.raises(error, match=re.escape(message)):
        jax.jit(on_mesh(f, 2))(jnp.ones((4, 3)), *[jnp.zeros(4, jnp.int32)] * 4)


def test_messages():
    message = "ragged_all_to_all: axis 'ep' is not bound; call inside jax.shard_map over a mesh with that axis"
    with pytest.raises(NameError, match=re.escape(message)):
        call(jnp.ones(3), jnp.ones(3), *[jnp.zeros(1, jnp.int32)] * 4)
    refused(
        "ragged_all_to_all: axis_index_groups is not supported; give the mesh",
        NotImplementedError,
        axis_index_groups=[[0, 1]],
    )
    refused(
        "operand and output must have one dtype, got float32 and int32", TypeError, output=jnp.ones((2, 3), "int32")
    )
    refused("operand and output must have rows of one shape, got (2, 3) and (2, 4)", output=jnp.ones((2, 4)))
    refused("operand must be an array, got a str", TypeError, operand="x")
    refused("send_sizes must be an integer array, got float32", TypeError, send_sizes=jnp.ones(2))
    refused(
        "offsets and sizes must all be (slices,), a multiple of the 2 devices of axis 'ep', got input_offsets (2,), "
        "send_sizes (3,)",
        send_sizes=jnp.ones(3, jnp.int32),
    )
    odd = {name: jnp.zeros(3, jnp.int32) for name in ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")}
    refused("a multiple of the 2 devices of axis 'ep', got input_offsets (3,)", **odd)
