"""XLA captures our calls into CUDA graphs and replays them: handlers run for the captures, not for every call."""

import grouped_reference as ref
import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
