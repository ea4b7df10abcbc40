"""Axes backwards: read where they are, by the kernel of what follows; a scan of them is the scan from the other end."""

import arrays
import jax
import jax.numpy as jnp
import loop_interpreter
import numpy as np
import pytest
from jax import lax
from tolerances import assert_close

import jax_fuser as jf
from jax_fuser import _core

CASES = {
    "the first axis": lambda x: jnp.tanh(x[::-1]) + 1,
    "the last axis": lambda x: x[..., ::-1] * 2 + x,
    "all axes": lambda x: jnp.flip(x * 3) - x,
    "twice": lambda x: jnp.flip(jnp.flip(x * 2, 0) + x, 0),
    "of a slice": lambda x: (x[1:, ::2] * 2)[::-1, ::-1] + 1,
    "a slice of it": lambda x: (x[::-1, ::-1] * 2)[2:, 5::3] + 1,
    "steps backwards": lambda x: x[::-2, -3::-4] * 2,
    "of parts": lambda x: jnp.concatenate([x, x[:, :7] * 2, x + 1], 1)[:, ::-1] * x[0, 0],
    "parts of it": lambda x: jnp.concatenate([x[:, ::-1], x[::-1]], 1) * 2,
    "of padding": lambda x: jnp.pad(x, ((2, 1), (0, 3)))[::-1, ::-1] * 2 + 1,
    "reflected": lambda x: jnp.pad(x, ((2, 1), (3, 2)), mode="reflect") * 2,
    "symmetric": lambda x: jnp.pad(x, ((2, 1), (3, 2)), mode="symmetric") * 2,
    "holes": lambda x: lax.pad(x[:, ::-1], jnp.zeros((), x.dtype), [(0, 1, 1), (1, 0, 2)]) * 2,
    "turned": lambda x: x[::-1].T * 2,
    "turned the other way": lambda x: x[:, ::-1].T * 2 + 1,
    "other shapes": lambda x: (x.reshape(x.shape[0], -1, 3)[:, ::-1, ::-1] * 2).reshape(x.shape)[::-1] + 1,
    "taken": lambda x: jnp.take(x, jnp.array([3, 0, 2]), 0)[::-1, ::-1] * 2,
    "a window": lambda x: lax.dynamic_slice(x, (jnp.argmax(x[0]), 2), (3, 4))[::-1, ::-1] * 2,
    "taken from it": lambda x: jnp.take(x[::-1, ::-1], jnp.array([3, 0, 2]), 1) * 2,
    "counted": lambda x: (x + jnp.arange(float(x.shape[1])))[:, ::-1] * 2,
    "sums along it": lambda x: (x * x[:, ::-1]).sum(1),
    "sums across it": lambda x: (x * x[::-1]).sum(0),
    "softmax": lambda x: jax.nn.softmax(x[:, ::-1], -1),
    "of a sum": lambda x: (x.sum(1) * 2)[::-1] + 1,
    "sums from the end": lambda x: jnp.flip(jnp.cumsum(jnp.flip(x, 1), 1), 1) * 2,
    "sums down from the end": lambda x: jnp.cumsum(x[::-1], 0)[::-1] * 2,
    "sums both ways": lambda x: (lambda s: s + s[:, ::-1])(jnp.cumsum(x * 2, 1)),
}


@pytest.mark.parametrize(("dtype", "shape"), [("float32", (19, 69)), ("bfloat16", (5, 48))])
@pytest.mark.parametrize("name", CASES)
def test_values(device, name, dtype, shape):
    x, f = arrays.array(*shape, dtype=dtype), CASES[name]
    assert_close(jf.fuse(f)(x), jax.jit(f)(x.astype("float32")), dtype)


@pytest.mark.parametrize("name", ["of a slice", "of parts", "reflected", "taken from it", "sums from the end"])
def test_gradients(device, name):
    f, x = CASES[name], arrays.array(7, 24)
    loss = lambda f: lambda x: jnp.sum(jnp.sin(f(x)))  # noqa: E731
    assert_close(jax.jit(jax.grad(loss(jf.fuse(f))))(x), jax.jit(jax.grad(loss(f)))(x), "float32", scale=5)


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_scans_from_the_end_cut_nothing_off(length):
    """As `jax.lax.associative_scan` does: slices of no elements, of what is backwards."""
    x = arrays.array(3, length, dtype="float32")
    f = lambda x: jax.lax.associative_scan(jnp.add, x, reverse=True, axis=1) * 2  # noqa: E731
    assert_close(jf.fuse(f)(x), 2 * np.cumsum(np.asarray(x, np.float64)[:, ::-1], 1)[:, ::-1])
    nothing = lambda x: jnp.concatenate([x[:, ::-1][:, length:] * 3, x], 1)  # noqa: E731
    assert_close(jf.fuse(nothing)(x), x)


def text(f, *shapes, stage="loops", platform="cpu", dtype="float32"):
    args = (jax.ShapeDtypeStruct(s, dtype) for s in shapes)
    return jf.fuse(f).lower(*args).as_text(stage, platform=platform)


# What is folded, scanned or taken from goes through memory, as what holes are put into does.
KERNELS = {"of a sum": 2, "a window": 2, "taken from it": 2, "sums both ways": 2, "holes": 2}


@pytest.mark.parametrize("name", CASES)
def test_kernels(name):
    assert text(CASES[name], (6, 24)).count("kernel ") == KERNELS.get(name, 1)


def test_a_scan_backwards_goes_the_other_way():
    f, x = CASES["sums from the end"], arrays.array(3, 40)
    assert "lane * -1" not in text(f, (3, 40))
    assert_close(jf.fuse(f)(x), 2 * np.cumsum(np.asarray(x, np.float64)[:, ::-1], 1)[:, ::-1])


@pytest.mark.parametrize(("dtype", "bytes"), [("float32", 4), ("bfloat16", 2), ("int8", 1)])
def test_vectors_are_read_backwards(dtype, bytes):
    f = lambda x: x[:, ::-1] + x[:, ::-1]  # noqa: E731
    assert "jf::load_reversed<" in text(f, (64, 256), stage="source", dtype=dtype)
    cuda = text(f, (4096, 4096), stage="source", platform="cuda", dtype=dtype)
    assert f", {16 // bytes}>(x" in cuda.split("jf::load_reversed<")[1], cuda


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16", "float64", "bool"])
def test_short_rows(dtype):
    """The channels of an image backwards, and images from right to left."""
    with jax.enable_x64(True):
        for shape in [(2, 3, 7, 3), (1, 5, 17, 4), (3, 2, 33, 2)]:
            x = jnp.asarray(np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 99, shape)).astype(dtype)
            for f in (lambda x: x[..., ::-1] * 2.0, lambda x: x[:, :, ::-1] * 2.0, lambda x: x[:, :, ::-1, ::-1] * 2.0):
                assert_close(jf.fuse(f)(x), f(np.asarray(x, np.float64)), "float32")
    assert "by -1 in turns of 3 by 3" in text(lambda x: x[..., ::-1] * 2, (64, 3))
    assert "by 1 in turns of 3 by -3" in text(lambda x: x[:, ::-1] * 2, (4, 64, 3))


def test_an_axis_backwards_is_not_split_over_devices():
    """A device would need what another one has."""
    jaxpr = jax.make_jaxpr(lambda x: x[::-1] + x)(jnp.zeros((8, 4))).jaxpr
    _, builder = jf._trace.write_program(jaxpr, "f")
    assert len(builder._counted) == 2


@pytest.mark.parametrize(
    ("starts", "strides", "counts"),
    [([7, 0], [-1, 1], [9, 4]), ([3, 0], [-2, 1], [3, 4]), ([8, 0], [-1, 1], [2, 4]), ([7, 0], [0, 1], [2, 4])],
)
def test_slices_that_leave_the_array_are_refused(starts, strides, counts):
    b = _core.Builder("f")
    with pytest.raises(_core.UserError, match="do not lie inside"):
        b.slice(b.input("x", "f32", [8, 4]), starts, strides, counts)


def test_text_and_reference():
    program = jf.ir.trace(lambda x: x[::-1, ::-3] * 2, jax.ShapeDtypeStruct((5, 24), "float32"))
    assert "starts=[4,23], strides=[-1,-3]" in str(program)
    x = arrays.array(5, 24)
    assert_close(jf.ir.evaluate(program, x)[0], np.asarray(x)[::-1, ::-3] * 2)


TURNED = {
    "rows backwards": lambda x: x[::-1].T * 2,
    "columns backwards": lambda x: x[:, ::-1].T * 2,
    "columns": lambda x: x[:, 32:].T * 2,
    "rows and columns": lambda x: x[1:, 3:].T * 2,
    "every other row": lambda x: x[::2].T * 2,
    "padding": lambda x: jnp.pad(x, ((3, 1), (2, 2))).T * 2,
    "a part and all": lambda x: x[::-1].T + x.T,
}


@pytest.mark.parametrize("name", TURNED)
def test_parts_are_turned_in_shared_memory(name):
    """A slice of an input is the tile by itself, as a copy of a whole one is."""
    for shape, dtype in [((96, 64), "float32"), ((103, 69), "bfloat16")]:
        x = np.random.default_rng(0).standard_normal(shape).astype(jnp.dtype(dtype))
        schedule = jf.ir.schedule(jf.ir.trace(TURNED[name], jax.ShapeDtypeStruct(shape, dtype)), "transpose", "cuda")
        [got] = loop_interpreter.run(schedule, x)
        assert_close(got, np.asarray(TURNED[name](x), np.float64), dtype)
    assert "shared" in text(TURNED[name], (4096, 4096), platform="cuda")


def test_cuda_sources_compile():
    if _core.nvrtc()[0] is None:
        pytest.skip(f"no NVRTC here: {_core.nvrtc()[1]}")
    f = lambda x: [CASES[n](x) for n in ("all axes", "of padding", "turned the other way", "softmax", "reflected")]  # noqa: E731
    for dtype in ("float32", "bfloat16"):
        program = str(jf.ir.trace(f, jax.ShapeDtypeStruct((512, 768), dtype)))
        assert _core.compile_cuda(program, _core.cuda_target_for(90))
    g = lambda x: [turned(x) for turned in TURNED.values()]  # noqa: E731
    for shape, dtype in [((512, 768), "float32"), ((1030, 690), "bfloat16")]:
        assert _core.compile_cuda(str(jf.ir.trace(g, jax.ShapeDtypeStruct(shape, dtype))), _core.cuda_target_for(90))
