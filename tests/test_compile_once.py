"""Kernels that are equal up to names are compiled once, and the text that people read keeps the names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

ROWS, WIDTH = 37, 43  # of no other test: nothing is compiled yet


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Count what a function compiles, without an earlier process's cache."""
    monkeypatch.setenv("JAX_FUSER_CACHE_DIR", str(tmp_path / "cache"))

    def count(f, *args):
        before = jf.counters()
        result = jax.block_until_ready(f(*args))
        after = jf.counters()
        return sum(after[k] - before[k] for k in ("compiled_host", "compiled_cuda", "disk_hits")), result

    return count


def layer(x, p):
    h = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["scale"] + p["shift"]
    q, k = h @ p["q"], h @ p["k"]
    a = jax.nn.softmax(q @ k.T / 6, axis=-1) @ h
    x = x + a
    return x + jax.nn.gelu(x @ p["w"] + p["b"]) @ p["q"]


def stack(n, rows=ROWS, width=WIDTH):
    keys = jax.random.split(jax.random.key(0), n)

    def parameters(key):
        q, k, w = (jax.random.normal(k, (width, width)) / 7 for k in jax.random.split(key, 3))
        one = jnp.ones(width)
        return {"q": q, "k": k, "w": w, "scale": one, "shift": one / 3, "b": one / 2}

    return jax.random.normal(jax.random.key(1), (rows, width)), [parameters(key) for key in keys]


def model(x, layers):
    for p in layers:
        x = layer(x, p)
    return x


def test_twelve_layers_compile_each_kernel_once(device, compiled):
    x, layers = stack(12)
    of_two, _ = compiled(jf.fuse(model, name="two"), x, layers[:2])
    of_twelve, got = compiled(jf.fuse(model, name="twelve"), x, layers)
    assert of_two <= 5  # norm, sum and norm, softmax, gelu, sum
    assert of_twelve == 0
    assert_close(got, model(x, layers), scale=10)


def test_the_first_layer_of_twelve_pays_for_all(device, compiled):
    x, layers = stack(12, 29, 31)

    of_one, _ = compiled(jf.fuse(layer), x, layers[0])
    of_twelve, _ = compiled(jf.fuse(model), x, layers)
    assert of_one >= 3 and of_twelve <= 1  # where two layers meet


def test_derivatives_of_equal_layers_compile_once(device, compiled):
    x, layers = stack(4, 23, 29)

    def loss(f):
        return lambda x, layers: jnp.sum(f(x, layers) ** 2)

    of_two, _ = compiled(jax.grad(loss(jf.fuse(model)), argnums=1), x, layers[:2])
    of_four, got = compiled(jax.grad(loss(jf.fuse(model)), argnums=1), x, layers)
    assert of_four <= of_two // 2
    want = jax.jit(jax.grad(loss(model), argnums=1))(x, layers)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert_close(a, b, scale=20)


def chain(n, prefix=""):
    """A fusion of n softmaxes in turn, each of which is a segment; only the names differ from one to the next."""
    b = _core.Builder(f"{prefix}chain")
    x = b.input(f"{prefix}first", "f32", [41, 300])
    w = b.input(f"{prefix}weight", "f32", [300])
    for axis in [1, 0] * n:
        over = [0] if axis == 1 else [1]
        top = b.broadcast(b.reduce("reduce_max", x, [axis]), [41, 300], over)
        e = b.pointwise("exp", [b.pointwise("sub", [x, top])])
        x = b.pointwise("div", [e, b.broadcast(b.reduce("reduce_sum", e, [axis]), [41, 300], over)])
        x = b.pointwise("mul", [x, b.broadcast(w, [41, 300], [1])], f"{prefix}layer/mul")
    b.output(x)
    return jf.ir.Fusion(b.finish())


def test_equal_segments_of_one_program_compile_once(device, compiled):
    x, w = jnp.linspace(-1, 1, 41 * 300).reshape(41, 300), jnp.linspace(1, 2, 300)
    of_four, [got] = compiled(jf.ir.run, chain(4), x, w)
    assert of_four < len(jf.ir.propose(chain(4)))
    want = x
    for axis in [1, 0] * 4:
        want = jax.nn.softmax(want, axis=axis) * w
    assert_close(got, want, scale=20)
    again, [same] = compiled(jf.ir.run, chain(4, "other_"), x, w)
    assert again == 0
    np.testing.assert_array_equal(got, same)


def test_arguments_in_another_order_share_a_kernel(device, compiled):
    def text(inputs):
        return jf.ir.Fusion(
            f"fusion f({inputs}) -> (t) {{\n  s: f32[19,7] = sub(a, b)\n  t: f32[19,7] = mul(s, b)  # label\n}}\n"
        )

    a, b = jnp.arange(133.0).reshape(19, 7), jnp.full((19, 7), 2.0)
    first, [x] = compiled(jf.ir.run, text("a: f32[19,7], b: f32[19,7]"), a, b)
    second, [y] = compiled(jf.ir.run, text("b: f32[19,7], a: f32[19,7]"), b, a)
    assert (first, second) == (1, 0)
    np.testing.assert_array_equal(x, (a - b) * b)
    np.testing.assert_array_equal(x, y)


def test_other_kernels_are_not_mistaken_for_equal(device, compiled):
    a, b = jnp.arange(133.0).reshape(19, 7) + 1, jnp.full((19, 7), 3.0)
    for op, want in [("sub(a, b)", a - b), ("sub(b, a)", b - a), ("div(a, b)", a / b), ("sub(a, a)", a - a)]:
        f = f"fusion f(a: f32[19,7], b: f32[19,7]) -> (t) {{\n  t: f32[19,7] = {op}\n}}\n"
        [got] = jf.ir.run(jf.ir.Fusion(f), a, b)
        assert_close(got, want)


def test_people_read_their_own_names():
    text = jf.ir.lower(chain(1, "my_"), "cpu").as_text("source")
    assert "my_weight" in text and "my_layer/mul" in text and "my_chain_0" in text


def test_the_compiled_entry_says_what_kind_of_kernel_it_is():
    if _core.nvrtc()[0] is None:
        pytest.skip("no NVRTC here")
    entries = [entry for entry, _, _ in _core.compile_cuda(str(chain(4)), _core.cuda_target_for(90))]
    assert len({*entries}) < len(entries)
    assert all(entry.startswith("reduction_") or entry.startswith("pointwise_") for entry in entries)
