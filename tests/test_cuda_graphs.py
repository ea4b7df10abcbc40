"""XLA captures our calls into CUDA graphs and replays them: handlers run for the captures, not for every call."""

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kinds_of_products import KINDS, assert_same_bits, make
from test_split_k import HOPPER, program_of
from test_tma import hopper_or_skip
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core


@pytest.mark.gpu
def test_calls_are_captured_and_replayed():
    try:
        gpu = jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("no cuda device on this machine")
    calls, runs = 8, 500

    @jax.jit
    def chain(x, w, sizes):
        for _ in range(calls):
            x = jf.ragged_dot(x, w, sizes)
        return x

    w = jnp.stack([jnp.eye(64)] * 3)
    x, w, sizes = jax.device_put((jnp.arange(640.0).reshape(10, 64), w, jnp.array([4, 0, 6], jnp.int32)), gpu)
    before = jf.counters()["executed"]
    for _ in range(runs):
        y = chain(x, w, sizes)
    assert jnp.allclose(y, x)
    assert jf.counters()["executed"] - before < calls * runs / 4


@pytest.mark.gpu
def test_launches_that_say_how_many_blocks_share_k_are_captured():
    gpu, calls, runs = hopper_or_skip(), 8, 300
    shapes = {(1, 1, 1024): 8, (1, 1, 2048): 4, (2, 2, 4096): 2, (8, 16, 2048): 1}  # of groups, rows, n: blocks

    @jax.jit
    def products(operands):
        return [[jf.grouped_matmul(x + i, w, sizes) for i in range(calls)] for x, w, sizes in operands]

    rng = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(rng.integers(-1, 2, shape), jnp.bfloat16)  # noqa: E731
    operands = [(make(m, 4096), make(g, 4096, n), jnp.full(g, m // g, jnp.int32)) for g, m, n in shapes]
    for one, blocks in zip(operands, shapes.values()):
        [facts] = _core.facts(program_of(jf.grouped_matmul, *one), HOPPER)
        assert (f"in clusters of {blocks}," in facts["launch"]) == (blocks > 1)
    operands = jax.device_put(operands, gpu)
    before = jf.counters()["executed"]
    for _ in range(runs):
        results = products(operands)
    for (x, w, sizes), of_shape in zip(operands, results):
        x, w = (np.asarray(a, np.float32) for a in (x, w))
        for i, y in enumerate(of_shape):
            assert_close(y, ref.rows(x + i, w, sizes), jnp.bfloat16)
    assert jf.counters()["executed"] - before < len(shapes) * calls * runs / 4


@pytest.mark.gpu
def test_warpgroup_products_read_their_sizes_at_every_replay():
    """The order of their tiles is counted in memory that each replay clears."""
    gpu = hopper_or_skip()
    groups, k, m, repeats = 5, 128, 1400, 3
    dims = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])

    @jax.jit
    def chain(x, w, sizes):
        for _ in range(repeats):
            y = jf.grouped_matmul(x, w, sizes, activation="relu")
            x = jf.ragged_dot(y, w, sizes)
        return x, jf.ragged_dot_general(x, y, sizes, dims)

    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (m, k)), np.stack([np.roll(np.eye(k), g, 0) for g in range(groups)])
    x, w = jax.device_put((jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.bfloat16)), gpu)
    cases = [[300, 0, 513, 1, 400], [1, 700, 64, 635, 0], [0, 0, 0, 0, 1400]]
    sizes = jax.device_put([jnp.asarray(c, jnp.int32) for c in cases], gpu)
    before, runs = jf.counters()["executed"], 300
    for i in range(runs):
        result = chain(x, w, sizes[i % 3])
        if i >= runs - 3:
            want = np.zeros((m, k), np.float32)
            want_sums = np.zeros((groups, k, k), np.float32)
            first = 0
            for g, count in enumerate(cases[i % 3]):
                rows = slice(first, first + count)
                y = z = np.asarray(x[rows], np.float32)
                for _ in range(repeats):
                    y = np.maximum(np.roll(z, -g, 1), 0)
                    z = np.roll(y, -g, 1)
                want[rows], want_sums[g] = z, z.T @ y
                first += count
            np.testing.assert_array_equal(np.asarray(result[0], np.float32), want)
            assert_close(result[1], want_sums, jnp.bfloat16)
    assert jf.counters()["executed"] - before < (2 * repeats + 1) * runs / 4


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_product_is_captured(kind, device):
    """Its replays read the sizes that there are then, and give the bits of a call by itself."""
    on_gpu, calls = device.platform != "cpu", 8
    if on_gpu:
        hopper_or_skip()
    f, arrays, sizes = make(kind, device)
    want = [jax.jit(f)(arrays, one) for one in sizes]
    many = jax.jit(lambda arrays, sizes: [f(arrays, one) for one in sizes])
    turns = [[sizes[(i + turn) % 3] for i in range(calls)] for turn in range(3)]
    before, runs = jf.counters()["executed"], 300 if on_gpu else 3
    for i in range(runs):
        results = many(arrays, turns[i % 3])
        if i >= runs - 3:
            assert_same_bits(results, [want[(j + i) % 3] for j in range(calls)])
    assert not on_gpu or jf.counters()["executed"] - before < calls * runs / 4


def test_gradients_of_an_expert_layer_are_captured(device):
    """Experts without tokens among them; which experts are chosen changes from call to call."""
    on_gpu, (tokens, d, f, experts) = device.platform != "cpu", (2048, 256, 128, 6)
    if on_gpu:
        hopper_or_skip()
    rng = np.random.default_rng(0)
    shapes = ((tokens, d), (tokens, 2), (experts, d, 2 * f), (experts, f, d))
    operands = [rng.normal(size=s) / (s[-2] ** 0.5 if len(s) == 3 else 1) for s in shapes]
    operands = jax.device_put([jnp.asarray(a, jnp.bfloat16) for a in operands], device)
    chosen = [rng.integers(0, most, (tokens, 2)).astype(np.int32) for most in (experts, 3, 1)]
    chosen = jax.device_put(chosen, device)

    def loss(operands, chosen):
        x, weights, w13, w2 = operands
        return jnp.sum(jf.moe.mlp(x, chosen, weights, w13, w2).astype(jnp.float32) ** 2)

    gradients = jax.jit(jax.grad(loss))
    calls = gradients.lower(operands, chosen[0]).as_text().count("jax_fuser.program")
    assert calls >= 6
    want = [jax.block_until_ready(gradients(operands, one)) for one in chosen]
    on_cpu = jax.device_put((operands, chosen), jax.devices("cpu")[0])
    for grads, one, used in zip(want, on_cpu[1], (experts, 3, 1), strict=True):
        assert not np.asarray(grads[2][used:], np.float32).any()
        for got, truth in zip(grads, gradients(on_cpu[0], one), strict=True):
            got, truth = (np.asarray(a, np.float32) for a in (got, truth))
            assert np.linalg.norm(truth) > 0 and np.linalg.norm(got - truth) < 0.03 * np.linalg.norm(truth)
    before, runs = jf.counters()["executed"], 300 if on_gpu else 3
    for i in range(runs):
        got = gradients(operands, chosen[i % 3])
        if i >= runs - 3:
            assert_same_bits(got, want[i % 3])
    assert not on_gpu or jf.counters()["executed"] - before < calls * runs / 2
