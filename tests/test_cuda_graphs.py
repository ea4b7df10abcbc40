"""XLA captures our calls into CUDA graphs and replays them: handlers run for the captures, not for every call."""

import jax
import jax.numpy as jnp
import pytest

import jax_fuser as jf


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
