"""Rows that are folded and read again: kept between their uses where they fit, read again where they do not, over one
axis or several, in chains, and never where nothing is read again."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import numbers as array
from tolerances import assert_close

import jax_fuser as jf


def lowered(f, *args, platform="cuda"):
    fused = jf.fuse(f).lower(*args)
    return {stage: fused.as_text(stage, platform=platform) for stage in ("host", "loops", "segments")}


def launches(f, *args, platform="cuda"):
    return lowered(f, *args, platform=platform)["host"].count("launch ")


def loads(f, *args):
    """Return how often the CUDA kernels read each input, in the order of the parameters."""
    text = lowered(f, *args)["loops"]
    names = dict.fromkeys(re.findall(r"^  in (\w+): ", text, re.M))
    return [len(re.findall(rf"load {name}\[", text)) for name in names]


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_norm(xp, x, g, b):
    c = x - x.mean(-1, keepdims=True)
    return c / xp.sqrt((c * c).mean(-1, keepdims=True) + 1e-3) * g + b


def rms_norm(xp, x, g):
    return x / xp.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * g


HIDDEN = [1, 3, 7, 32, 63, 100, 257, 1024, 1025, 4099]


@pytest.mark.parametrize("hidden", HIDDEN)
def test_softmax_of_any_hidden_size(device, hidden):
    x = array(5, hidden)
    assert_close(jf.fuse(lambda x: jax.nn.softmax(x, axis=-1))(x), softmax(np.float64(x)))


@pytest.mark.parametrize("hidden", [3, 64, 257, 3000, 40_000])
@pytest.mark.parametrize("rows", [1, 9])
def test_layer_norm_of_small_and_large_rows(device, hidden, rows):
    x, g, b = array(rows, hidden), array(hidden), array(hidden + 1)[1:]
    want = layer_norm(np, np.float64(x), g, b)
    assert_close(jf.fuse(lambda x, g, b: layer_norm(jnp, x, g, b))(x, g, b), want, scale=2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
@pytest.mark.parametrize("hidden", [100, 1024, 20_000])
def test_norms_of_low_precision_keep_what_they_read(device, hidden, dtype):
    x, g = array(4, hidden).astype(dtype), array(hidden).astype(dtype)

    def f(x, g):
        return rms_norm(jnp, x.astype(jnp.float32), g.astype(jnp.float32)).astype(dtype)

    assert_close(jf.fuse(f)(x, g), rms_norm(np, np.float64(x), np.float64(g)))


ONE_READ = {
    "softmax": (lambda x: jax.nn.softmax(x, axis=-1), [(64, 1024)], [1]),
    "layer norm": (lambda x, g, b: layer_norm(jnp, x, g, b), [(64, 1024), (1024,), (1024,)], [1, 1, 1]),
    "rms norm": (lambda x, g: rms_norm(jnp, x, g), [(64, 1024), (1024,)], [1, 1]),
    "add, then norm": (lambda x, y: rms_norm(jnp, x + y, 1.0), [(64, 1024), (64, 1024)], [1, 1]),
    "of a transformed input": (lambda x: jax.nn.softmax(jnp.tanh(x) * 3, axis=-1), [(64, 1024)], [1]),
    "several axes": (lambda x: x - x.max((1, 2), keepdims=True), [(64, 32, 32)], [1]),
    "twice": (lambda x: jax.nn.softmax(jax.nn.softmax(x, axis=-1) * 2, axis=-1), [(64, 1024)], [1]),
    "bfloat16": (
        lambda x: jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(jnp.bfloat16),
        [(64, 1024)],
        [1],
    ),
}


@pytest.mark.parametrize("case", ONE_READ)
def test_a_row_that_fits_is_read_once(case):
    f, shapes, want = ONE_READ[case]
    dtype = jnp.bfloat16 if case == "bfloat16" else np.float32
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    assert loads(f, *args) == want
    assert launches(f, *args) == launches(f, *args, platform="cpu") == 1


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_a_row_that_does_not_fit_is_one_kernel_still(platform):
    args = [jax.ShapeDtypeStruct((132, 500_000), np.float32)]
    assert launches(lambda x: jax.nn.softmax(x, axis=-1), *args, platform=platform) == 1


def test_what_only_looks_kept_is_not():
    """A value that is folded and read again by nothing needs no place."""
    args = [jax.ShapeDtypeStruct((64, 1024), np.float32)]
    text = lowered(lambda x: jnp.exp(x).sum(-1), *args)["loops"]
    assert loads(lambda x: jnp.exp(x).sum(-1), *args) == [1]
    arrays = re.findall(r"array \w+: f32\[(\d+)\]", text)
    assert all(int(size) <= 4 for size in arrays), text  # sums only


# Over other axes, and over several.


@pytest.mark.parametrize("shape", [(33, 7), (257, 5), (64, 64), (1000, 3)])
def test_norms_along_the_outer_axis(device, shape):
    x = array(*shape)
    assert_close(jf.fuse(lambda x: jax.nn.softmax(x, axis=0))(x), softmax(np.float64(x), 0))
    want = (x - x.mean(0, dtype=np.float64)) / np.sqrt(x.var(0, dtype=np.float64) + 0.1)
    assert_close(jf.fuse(lambda x: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 0.1))(x), want, scale=2)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1), (0, 1, 2)])
def test_norms_over_several_axes(device, axes):
    """Batch, instance and group norms: what is folded may lie around what is not."""
    x = array(4, 6, 35)
    mean, var = x.mean(axes, keepdims=True, dtype=np.float64), x.var(axes, keepdims=True, dtype=np.float64)

    def f(x):
        return (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + 0.1)

    assert_close(jf.fuse(f)(x), (x - mean) / np.sqrt(var + 0.1), scale=2)


def test_group_norm_as_a_reshape(device):
    x = array(2, 6, 5, 4)

    def f(xp, x):
        g = x.reshape(2, 3, 2 * 5 * 4)
        return ((g - g.mean(2, keepdims=True)) / xp.sqrt(g.var(2, keepdims=True) + 0.1)).reshape(x.shape)

    assert_close(jf.fuse(lambda x: f(jnp, x))(x), f(np, np.float64(x)), scale=2)


# Several values kept, chains, and rows that are broadcast along more axes.


@pytest.mark.parametrize("hidden", [60, 1024, 9000])
def test_a_norm_of_a_norm(device, hidden):
    x = array(6, hidden)
    f = lambda xp, x: rms_norm(xp, layer_norm(xp, x, 2.0, 1.0) + x, 0.5)  # noqa: E731
    assert_close(jf.fuse(lambda x: f(jnp, x))(x), f(np, np.float64(x)), scale=2)


@pytest.mark.parametrize("hidden", [60, 1024, 9000])
def test_the_residual_is_an_output_too(device, hidden):
    x, y = array(6, hidden), array(6, hidden + 1)[:, 1:]
    f = lambda xp, x, y: (x + y, rms_norm(xp, x + y, 0.5))  # noqa: E731
    for got, want in zip(jf.fuse(lambda x, y: f(jnp, x, y))(x, y), f(np, np.float64(x), np.float64(y))):
        assert_close(got, want, scale=2)


def test_two_values_of_one_row_are_kept(device):
    x, y = array(7, 300), array(7, 301)[:, 1:]

    def f(rows, x, y):
        return rows(x) * y.sum(-1, keepdims=True) + rows(y)

    want = f(softmax, np.float64(x), np.float64(y))
    assert_close(jf.fuse(lambda x, y: f(jax.nn.softmax, x, y))(x, y), want, scale=2)


def test_a_fold_is_spread_over_several_axes(device):
    """Its result stands along axes that the folded value did not have."""
    x, z = array(5, 40), array(3, 5, 40)
    f = lambda x, z: (x / x.sum(1, keepdims=True))[None] * z + x.max(1)[None, :, None]  # noqa: E731
    assert_close(jf.fuse(f)(x, z), f(np.float64(x), np.float64(z)), scale=100)


def test_a_fold_and_its_scalar(device):
    x = array(30, 50)
    f = lambda x: x / x.sum(1, keepdims=True).max() + x.min()  # noqa: E731
    assert_close(jf.fuse(f)(x), f(np.float64(x)), scale=2)


@pytest.mark.parametrize("shape", [(6, 40), (33, 257), (300, 5)])
def test_inner_and_outer_folds_of_one_value(device, shape):
    """The backward of a norm: sums along rows and along columns of the same products."""
    x, dy, g = array(*shape), array(*shape)[::-1].copy(), array(shape[1])

    def f(x, g, dy):
        return jax.vjp(lambda x, g: rms_norm(jnp, x, g), x, g)[1](dy)

    got = jf.fuse(f)(x, g, dy)
    with jax.enable_x64(True):
        want = [np.asarray(a) for a in f(*(jnp.asarray(a, jnp.float64) for a in (x, g, dy)))]
    for one, exact in zip(got, want):
        assert_close(one, exact, scale=4)


# By hand: the row in registers, in shared memory, or computed again.


@pytest.mark.parametrize("kept", ["registers", "shared", "again"])
@pytest.mark.parametrize("columns", [64, 50])
def test_where_a_row_is_kept_by_hand(kept, columns, machine):
    if kept == "shared" and machine.platform == "cpu":
        pytest.skip("shared memory is CUDA's")
    fusion = jf.ir.Fusion(f"""fusion row(x: f32[6,{columns}]) -> (y) {{
      t: f32[6,{columns}] = exp(x)
      {f"again: f32[6,{columns}] = exp(x)" if kept == "again" else ""}
      total: f32[6] = reduce_sum(t) {{dims=[1]}}
      wide: f32[6,b{columns}] = broadcast(total) {{dims=[0]}}
      y: f32[6,{columns}] = div({"again" if kept == "again" else "t"}, wide)
    }}""")
    s = jf.ir.Scheduler(fusion)
    s.split("y", 1, 16)
    s.parallelize("y", 0, machine.outer)
    s.parallelize("y", 2, machine.inner)
    s.transform_like("y")
    s.parallelize_like("y")
    if kept == "shared":
        s.set_memory("t", "shared")
    s.inline_most()
    position = {"registers": 1, "shared": 1, "again": 3}[kept]
    assert s.schedule.inline_position("again" if kept == "again" else "t") == position
    x = array(6, columns)
    text = jf.ir.lower(s.schedule, machine.platform).as_text("loops")
    assert ("shared t" in text) == (kept == "shared") and text.count("load x[") == (2 if kept == "again" else 1)
    assert_close(machine.run(s.schedule, x)[0], np.exp(x) / np.exp(x).sum(1, keepdims=True))


def test_more_than_shared_memory_holds_is_refused():
    fusion = jf.ir.Fusion("""fusion f(x: f32[2,100000]) -> (y) {
      t: f32[2,100000] = exp(x)
      total: f32[2] = reduce_sum(t) {dims=[1]}
      wide: f32[2,b100000] = broadcast(total) {dims=[0]}
      y: f32[2,100000] = div(t, wide)
    }""")
    s = jf.ir.Scheduler(fusion)
    s.split("y", 1, 128)
    s.parallelize("y", 0, "block")
    s.parallelize("y", 2, "thread")
    s.transform_like("y")
    s.parallelize_like("y")
    s.set_memory("t", "shared")
    s.inline_most()
    with pytest.raises(
        jf.UserError, match=r"\[lower\] f needs 400\d+ bytes of shared memory; .* smaller parts of them"
    ):
        jf.ir.lower(s.schedule, "cuda")
    s.set_memory("t", "register")
    # Each thread's 782 elements are no more than an array of registers and stack.
    jf.ir.lower(s.schedule, "cuda")


def norms(n):
    def f(x):
        for _ in range(n):
            x = x - x.mean(-1, keepdims=True)
            x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) + 0.1
        return x

    return f


@pytest.mark.parametrize("width", [2048, 8192, 65536])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_many_folds_of_a_row_one_after_the_other_keep_what_fits(platform, width):
    # Each kept value has an array of its own: what is alive at the same time may fit where all of them do not.
    x = jax.ShapeDtypeStruct((64, width), jnp.float32)
    assert 0 < launches(norms(14), x, platform=platform) < 14


def test_iterations_over_long_rows(device):
    x = array(3, 8192)
    assert_close(jf.fuse(norms(6))(x), norms(6)(np.float64(x)), "float32", scale=4)
